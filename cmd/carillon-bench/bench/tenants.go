package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/tenants"
)

// Tenants measures the cost of a replica and its deviations while many tenants have pending occurrences, and compares
// them with few tenants.
type Tenants struct {
	// Count is the number of tenants, and Few the smaller number for the comparison.
	Count, Few int
	// Rate is the number of occurrences that fall due in a second, each of another tenant. Duration is the time for
	// which they do, and before that the time for which nothing is due.
	Rate     float64
	Duration time.Duration
}

// Run implements [Mode].
func (s Tenants) Run(ctx context.Context, b *Bench) error {
	few, many := &tenancy{Tenants: s, tenants: s.Few}, &tenancy{Tenants: s, tenants: s.Count}
	for round := range b.Rounds {
		made := madeJobs{store: b.store}
		err := errors.Join(func() error {
			for _, t := range []*tenancy{few, many} {
				if err := t.round(ctx, b, &made, round); err != nil {
					return err
				}
			}
			return nil
		}(), made.cancel(context.WithoutCancel(ctx)))
		if err != nil {
			return err
		}
	}
	for _, t := range []*tenancy{few, many} {
		name := fmt.Sprintf("%d tenants: ", t.tenants)
		var raw []float64
		var ratio *goal
		if t == many {
			raw, ratio = few.p99, ratioAtMost(1.2)
		}
		b.figure(name+"first fired after the start", "s", t.first, nil, atMost(5))
		b.figure(name+"processor, idle", "% of a core", t.cpu, nil, atMost(1))
		b.figure(name+"queries of the store, idle", "1/s", t.calls, nil, atMost(2))
		b.figure(name+"deviation p50", "ms", t.p50, nil, nil)
		b.figure(name+"deviation p99", "ms", t.p99, raw, ratio)
		b.figure(name+"memory", "MiB", t.memory, nil, nil)
	}
	b.note("Each tenant has a job that is far from due. %g/s fall due for %s, each of another tenant, submitted past "+
		"the replica that fires them. raw: with %d tenants, in the same round. The store still knows the tenants.",
		s.Rate, s.Duration, s.Few)
	return nil
}

// tenancy holds the measurements with one number of tenants.
type tenancy struct {
	Tenants
	tenants                             int
	first, cpu, calls, p50, p99, memory []float64
}

// round starts a replica, watches it while nothing is due, and then makes it fire.
func (t *tenancy) round(ctx context.Context, b *Bench, made *madeJobs, round int) error {
	b.progress("round %d: %d tenants get a job each", round+1, t.tenants)
	far := time.Now().Add(farAhead)
	if err := made.put(ctx, b, "waiting-", t.tenants-made.waiting, func(i int) (int, time.Time) {
		return made.waiting + i, far.Add(time.Duration(i) * time.Millisecond)
	}); err != nil {
		return err
	}
	made.waiting = t.tenants
	prefix := fmt.Sprintf("%d-%d-", t.tenants, round)
	past := time.Now().Add(-time.Second)
	if err := made.put(ctx, b, prefix+"first-", 1, func(int) (int, time.Time) { return t.tenants / 2, past }); err != nil {
		return err
	}
	start := time.Now()
	replica, _, err := b.startReplica(ctx, ReplicaOptions{Sparse: true, Firings: true})
	if err != nil {
		return err
	}
	if _, err := b.awaitAcked(ctx, []*part{replica}, 1); err != nil {
		return err
	}
	if err := sleep(ctx, 5*time.Second); err != nil {
		return err
	}
	var before, after Stats
	idle := time.Now()
	if err := replica.call(ctx, "stats", nil, &before); err != nil {
		return err
	}
	b.progress("watching it do nothing for %s", t.Duration)
	if err := sleep(ctx, t.Duration); err != nil {
		return err
	}
	if err := replica.call(ctx, "stats", nil, &after); err != nil {
		return err
	}
	took := time.Since(idle).Seconds()

	count := int(t.Rate * t.Duration.Seconds())
	due := time.Now().Add(5*time.Second + time.Duration(count)*400*time.Microsecond)
	if err := made.put(ctx, b, prefix+"timed-", count, func(i int) (int, time.Time) {
		return i * max(1, t.tenants/count) % t.tenants, due.Add(time.Duration(float64(i) / t.Rate * float64(time.Second)))
	}); err != nil {
		return err
	}
	b.progress("the first of %d falls due in %s", count, time.Until(due).Round(100*time.Millisecond))
	if _, err := b.awaitAcked(ctx, []*part{replica}, 1+count); err != nil {
		return err
	}
	var fired map[string]Firings
	if err := replica.call(ctx, "firings", nil, &fired); err != nil {
		return err
	}
	first, timed := fired[keyPrefix+prefix+"first-"], fired[keyPrefix+prefix+"timed-"]
	if len(first.At) == 0 || len(timed.At) < count {
		return fmt.Errorf("%d and %d were fired, of 1 and %d", len(first.At), len(timed.At), count)
	}
	t.first = append(t.first, time.UnixMicro(first.At[0]).Sub(start).Seconds())
	t.cpu = append(t.cpu, 100*(after.CPU-before.CPU).Seconds()/took)
	t.calls = append(t.calls, float64(after.Calls-before.Calls)/took)
	t.memory = append(t.memory, float64(after.Memory)/(1<<20))
	slices.Sort(timed.Deviations)
	t.p50 = append(t.p50, float64(quantile(timed.Deviations, 0.5))/1000)
	t.p99 = append(t.p99, float64(quantile(timed.Deviations, 0.99))/1000)
	b.progress("%d tenants: p99 %.2f ms, idle %.2f %% of a core", t.tenants, t.p99[round], t.cpu[round])
	return replica.stop()
}

// madeJobs are jobs of many tenants. The bench writes them to the store directly, since the API would need a request
// for each tenant.
type madeJobs struct {
	store   store.Store
	waiting int // number of tenants with a waiting job
	names   []job.Name
}

// put creates jobs; of returns the tenant and the due time of each.
func (m *madeJobs) put(ctx context.Context, b *Bench, prefix string, count int,
	of func(i int) (tenant int, due time.Time)) error {
	const each = 500
	met := tenants.New(m.store)
	for from := 0; from < count; from += each {
		now := time.Now().Truncate(time.Millisecond)
		var strangers []job.Tenant
		var puts []store.Put
		for i := from; i < min(from+each, count); i++ {
			tenant, due := of(i)
			due = job.CeilMilli(due).UTC()
			w := Work{Prefix: keyPrefix + prefix}
			name := job.Name{Tenant: fmt.Sprintf("bench-%06d", tenant), Key: w.key(i)}
			revision := job.NewRevision(now)
			j := job.Job{
				Name: name, Revision: revision, Version: revision, CreatedAt: now, UpdatedAt: now, ExpiresAt: due.Add(time.Hour),
				Callback: job.Callback{Type: DiscardType, Data: (&Work{Payload: b.Payload}).appendData(nil, i)},
				Schedule: job.Schedule{Instants: []time.Time{due}},
			}
			o := job.Occurrence{Name: name, Revision: revision, Timestamp: due, DueAt: due}
			o.ID = job.OccurrenceID(name, revision, due, 0, "")
			puts = append(puts, store.Put{Job: j, Occurrences: []job.Occurrence{o}, Now: now})
			strangers, m.names = append(strangers, job.Tenant{Name: name.Tenant, FirstSeen: now}), append(m.names, name)
		}
		if _, err := met.Meet(ctx, strangers); err != nil {
			return err
		}
		call, cancel := context.WithTimeout(ctx, store.Within)
		results := m.store.Put(call, puts)
		cancel()
		for _, r := range results {
			if r.Err != nil {
				return r.Err
			}
		}
	}
	return nil
}

// cancel cancels all of them.
func (m *madeJobs) cancel(ctx context.Context) error {
	for names := range slices.Chunk(m.names, 500) {
		if _, err := m.store.Cancel(ctx, names, store.Asked{Now: time.Now()}); err != nil {
			return err
		}
	}
	return nil
}
