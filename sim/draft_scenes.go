package sim

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/carillon-scheduler/carillon/sim/checker"
)

// operators adds the changes of operators to the other tenant.
func (d *drafter) operators() {
	if d.IntN(3) == 0 {
		at, caller := d.upTo(d.Until.D()), d.caller()
		for _, paused := range []bool{true, false} {
			d.Ops = append(d.Ops, Op{
				At: at, Kind: checker.Settings, Tenant: otherTenant, Caller: caller, Paused: paused,
				InFlight: d.IntN(3), Replica: d.IntN(d.Replicas), Again: 2,
			})
			at += d.upTo(40*time.Second) + 1000
		}
	}
	if d.IntN(4) == 0 {
		q := Op{
			At: d.upTo(d.Until.D() / 2), Kind: checker.Quota, Tenant: otherTenant, Caller: d.caller(),
			Jobs: 1 + d.IntN(2), Replica: d.IntN(d.Replicas), Again: 4,
		}
		d.Ops = append(d.Ops, q)
		for i := range 4 { // there are more jobs than it allows
			o := Op{
				At: q.At + d.upTo((d.Until - q.At).D()), Kind: checker.Put, Key: fmt.Sprintf("quota-%d", i), Tenant: otherTenant,
				Replica: d.IntN(d.Replicas),
			}
			d.define(&o)
			d.Ops = append(d.Ops, o)
		}
	}
	if len(d.callers) > 0 {
		d.Ops = append(d.Ops, Op{
			At: d.upTo(d.Until.D()), Kind: checker.Revoke, Caller: second, Replica: d.IntN(d.Replicas), Again: 4,
		})
	}
	for range d.callers {
		d.Ops = append(d.Ops, Op{
			At: d.upTo(d.Until.D()), Kind: checker.List, Tenant: []string{"", otherTenant}[d.IntN(2)], Caller: d.caller(),
			Replica: d.IntN(d.Replicas),
		})
	}
	if d.IntN(8) == 0 { // a crowd
		o := Op{
			At: d.upTo(d.Until.D()), Kind: checker.Batch, Tenant: "crowd", Replica: d.IntN(d.Replicas), Again: 2,
		}
		at := (o.At+d.upTo(20*time.Second))/grid*grid + grid
		for i := range 40 {
			d.n++
			o.Items = append(o.Items, Op{
				At: o.At, Kind: checker.Put, Key: fmt.Sprintf("crowd-%d", i), Tenant: o.Tenant, N: d.n, Attempts: 2,
				Instants: []Span{at},
			})
		}
		d.Ops = append(d.Ops, o)
	}
}

// forbidden adds jobs at receivers that the operator's rules forbid to their tenant, or to all, besides others.
func (d *drafter) forbidden() {
	kinds := []checker.Kind{checker.Put, checker.Put, checker.Create, checker.Replace, checker.Amend}
	receivers := append(slices.Sorted(maps.Keys(rules)), "http://open.sim/", "http://both.sim/")
	for range 8 {
		tenant := []string{"", otherTenant}[d.IntN(2)]
		o := Op{
			At: d.upTo(d.Until.D()), Kind: kinds[d.IntN(len(kinds))], Tenant: tenant,
			Key: fmt.Sprintf("called%s-%d", tenant, d.IntN(2)), To: receivers[d.IntN(len(receivers))],
			Replica: d.IntN(d.Replicas), Again: 1,
		}
		d.define(&o)
		d.Ops = append(d.Ops, o)
	}
}

// orphaned has replicas die, stop or stand still, and nothing else, while a crontab fires whose receiver is quick.
func (d *drafter) orphaned() {
	d.n++
	d.Ops = append(d.Ops, Op{
		Kind: checker.Put, Tenant: "punctual", Key: "punctual", N: d.n, Attempts: 2, Every: span(time.Second), End: d.Until,
		CatchUp: "all", Takes: 20, Replica: d.IntN(d.Replicas), Again: 4,
	})
	for at := span(Lease) + d.upTo(10*time.Second); at < d.Until; at += span(10*time.Second) + d.upTo(20*time.Second) {
		f := Fault{
			What: []string{Crash, Stop, Stall}[d.IntN(3)], At: at, For: d.upTo(20*time.Second) + 1000,
			Replica: d.IntN(d.Replicas),
		}
		if f.What == Crash {
			f.N = 1
		}
		d.Faults = append(d.Faults, f)
	}
}

// held adds a crontab that is paused for longer than a lease, in half of the cases beyond its end, so that its rule to
// catch up decides about its ticks.
func (d *drafter) held() {
	d.n++
	o := Op{
		At: d.upTo(d.Until.D()), Kind: checker.Put, Key: "held", N: d.n, Attempts: 2, Replica: d.IntN(d.Replicas), Again: 2,
		Every:   span(time.Duration([]int{5, 10, 30}[d.IntN(3)]) * time.Second),
		CatchUp: []string{"all", "latest", "latest", "none"}[d.IntN(4)],
	}
	o.End = o.At + d.upTo(40*time.Second) + max(o.Every, span(20*time.Second))
	d.spread(&o)
	at := o.At + 1000 + d.upTo(8*time.Second)
	d.Ops = append(d.Ops, o)
	for _, kind := range []checker.Kind{checker.Pause, checker.Resume} {
		d.Ops = append(d.Ops, Op{At: at, Kind: kind, Key: o.Key, Replica: d.IntN(d.Replicas), Again: 2})
		if at += span(Lease) + d.upTo(40*time.Second); d.IntN(2) == 0 {
			at = max(at, o.End+span(Lease))
		}
	}
}

// retried adds a job whose receiver refuses the first attempts at each occurrence.
func (d *drafter) retried() {
	d.n++
	o := Op{
		At: d.upTo(d.Until.D()), Kind: checker.Put, Key: "retried", N: d.n, Attempts: 4, Fails: 2 + d.IntN(2),
		Replica: d.IntN(d.Replicas), Again: 2,
	}
	d.policy(&o)
	at := o.At + 1000 + d.upTo(20*time.Second)
	o.Instants = []Span{at, at + span(15*time.Second), at + span(30*time.Second)}
	d.spread(&o)
	d.Ops = append(d.Ops, o)
}

// limited has an operator limit the other tenant's deliveries under way, and adds jobs of it that are due at one
// moment, and whose receivers take their time.
func (d *drafter) limited() {
	limit := Op{
		At: d.upTo(d.Until.D() / 2), Kind: checker.Settings, Tenant: otherTenant, InFlight: 1 + d.IntN(2),
		Replica: d.IntN(d.Replicas), Again: 4,
	}
	d.Ops = append(d.Ops, limit)
	due := limit.At + span(20*time.Second) + d.upTo(20*time.Second)
	instants := []Span{due, due + span(20*time.Second)}
	for i := range 6 {
		d.n++
		d.Ops = append(d.Ops, Op{
			At: limit.At + d.upTo(10*time.Second), Kind: checker.Put, Tenant: otherTenant, Key: fmt.Sprintf("limited-%d", i),
			N: d.n, Attempts: 2, Instants: instants, Takes: span(time.Second) + d.upTo(2*time.Second),
			Replica: d.IntN(d.Replicas), Again: 2,
		})
	}
}

// backlog adds a tenant with some hundreds of occurrences that are due at one moment and whose receivers take their
// time, beside two with few that are to be punctual. The receiver is a single slow one, or there are several that are
// not slow enough for replicas to hold them back.
func (d *drafter) backlog() {
	due := d.upTo(d.Until.D())/grid*grid + grid
	jobs, each, takes := 1, 200, span(3*time.Second)+d.upTo(2*time.Second)
	if d.IntN(2) == 0 {
		jobs, each, takes = 8, 50, 200
	}
	put := func(tenant string, i int, o Op) {
		d.n++
		o.Kind, o.Tenant, o.Key, o.N = checker.Put, tenant, fmt.Sprintf("%s-%d", tenant, i), d.n
		o.Replica, o.Attempts, o.Again = d.IntN(d.Replicas), 2, 2
		d.Ops = append(d.Ops, o)
	}
	for i := range jobs {
		o := Op{At: max(0, due-span(10*time.Second)), Takes: takes}
		for n := range each {
			o.Instants = append(o.Instants, due+Span(n))
		}
		put("backlog", i, o)
	}
	const quick = 20
	put("punctual", 0, Op{
		At: max(0, due-span(20*time.Second)), Every: grid, End: due + span(30*time.Second), CatchUp: "all",
		To: "quick", Takes: quick,
	})
	for i := range 8 {
		put("soon", i, Op{
			At: due + d.upTo(10*time.Second), Wait: 1 + d.upTo(300*time.Millisecond), To: "quick", Takes: quick,
		})
	}
}
