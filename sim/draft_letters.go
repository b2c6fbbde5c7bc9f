package sim

import (
	"fmt"
	"time"

	"github.com/carillon-scheduler/carillon/sim/checker"
)

// widen makes a third of the cancellations ones by prefix.
func (d *drafter) widen(o *Op) {
	if o.Kind == checker.Cancel && d.IntN(3) == 0 {
		o.Prefix = o.Key[:1+d.IntN(len(o.Key))]
	}
}

// letters adds jobs whose receivers refuse each occurrence for longer than it has attempts. Clients redrive and delete
// the dead letters that these leave, and cancel the jobs by their prefix.
func (d *drafter) letters() {
	const prefix = "letters-"
	at := d.upTo(d.Until.D())
	var others []string
	for i := range 3 {
		d.n++
		o := Op{
			At: at + d.upTo(2*time.Second), Kind: checker.Put, Key: fmt.Sprint(prefix, i), N: d.n, Attempts: 1 + d.IntN(2),
			Replica: d.IntN(d.Replicas), Again: 2,
		}
		o.Fails = o.Attempts * (1 + d.IntN(2))
		d.policy(&o)
		for n := range 3 {
			o.Instants = append(o.Instants, o.At+span(time.Duration(3+n*6)*time.Second)+d.upTo(2*time.Second))
		}
		others = append(others, o.Key)
		d.Ops = append(d.Ops, o)
	}
	kinds := []checker.Kind{checker.Redrive, checker.Redrive, checker.Discard, checker.Discard, checker.Cancel}
	for range 4 + d.IntN(6) {
		o := Op{
			At: at + span(4*time.Second) + d.upTo(30*time.Second), Kind: kinds[d.IntN(len(kinds))],
			Key: others[d.IntN(len(others))], Caller: d.caller(), Replica: d.IntN(d.Replicas), Again: d.IntN(3),
		}
		if o.Kind == checker.Cancel {
			o.Prefix = prefix
		}
		d.Ops = append(d.Ops, o)
		if d.IntN(3) == 0 { // another one at nearly the same moment
			o.Kind, o.Prefix, o.At = kinds[d.IntN(4)], "", o.At+d.upTo(10*time.Millisecond)
			o.Replica = d.IntN(d.Replicas)
			d.Ops = append(d.Ops, o)
		}
	}
}
