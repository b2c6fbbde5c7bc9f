package bench

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"strconv"
	"time"

	"github.com/carillon-scheduler/carillon/job"
)

// work returns the work of a round: jobs that are already due.
func (b *Bench) work(round, count int) *Work {
	return &Work{
		Prefix: keyPrefix + strconv.FormatInt(b.started.UnixMilli(), 36) + "-" + strconv.Itoa(round) + "-",
		Count:  count, Callback: b.Callback, Payload: b.Payload,
		Start: time.Now().Add(-time.Second).Truncate(time.Millisecond),
	}
}

// startReplica starts a replica with the bench's setup, and returns the URL of its API.
func (b *Bench) startReplica(ctx context.Context, o ReplicaOptions) (p *part, url string, err error) {
	o.Store, o.Concurrency, o.RabbitmqURL, o.KafkaBrokers = b.Store, b.Concurrency, b.RabbitmqURL, b.KafkaBrokers
	o.Settings = maps.Clone(o.Settings)
	if o.Settings == nil {
		o.Settings = make(map[string]string)
	}
	maps.Copy(o.Settings, b.security.settings)
	if b.History != "" {
		o.Settings["history"] = b.History
	}
	if b.Profile != "" {
		what, n := "", &b.fired
		if o.Idle { // it accepts submissions
			what, n = "api.", &b.filled
		}
		*n++
		o.Profile = fmt.Sprintf("%s.%s%d", b.Profile, what, *n)
	}
	p, err = b.startPart(ctx, replicaRole, o, &url)
	return p, url, err
}

// fill submits works through the API of a replica that fires nothing.
func (b *Bench) fill(ctx context.Context, works ...*Work) error {
	idle, url, err := b.startReplica(ctx, ReplicaOptions{Idle: true})
	if err != nil {
		return err
	}
	submitter, err := b.startPart(ctx, clientRole, b.security.token, nil)
	if err != nil {
		return err
	}
	all, done := 0, 0
	for _, w := range works {
		all += w.Count
	}
	var told time.Time
	const portion = 20_000
	for _, w := range works {
		for from := 0; from < w.Count; from += portion {
			part := *w
			part.From, part.Count = w.From+from, min(portion, w.Count-from)
			if err := b.submit(ctx, submitter, url, &part); err != nil {
				return err
			}
			if done += part.Count; done == all || time.Since(told) > time.Second {
				b.progress("submitted %d of %d", done, all)
				told = time.Now()
			}
		}
	}
	if err := submitter.stop(); err != nil {
		return err
	}
	return idle.stop()
}

// submit calls a submitter to submit work in batches to the API at a URL.
func (b *Bench) submit(ctx context.Context, submitter *part, url string, w *Work) error {
	b.tenants[cmp.Or(w.Tenant, job.DefaultTenant)] = true
	return submitter.call(ctx, "submit", Submission{URL: url, Work: *w, Batch: 1000, Connections: 4}, nil)
}

// awaitAcked waits until the replicas together have delivered count occurrences, and returns the stats of each. It
// fails if they make no progress for a minute.
func (b *Bench) awaitAcked(ctx context.Context, replicas []*part, count int) ([]Stats, error) {
	last, since, told := -1, time.Now(), time.Now()
	for {
		all := make([]Stats, len(replicas))
		sum, failed := 0, 0
		for i, r := range replicas {
			if err := r.call(ctx, "stats", nil, &all[i]); err != nil {
				return nil, err
			}
			sum += all[i].Acked
			failed += all[i].Failed
		}
		now := time.Now()
		switch {
		case sum >= count:
			return all, nil
		case sum > last:
			last, since = sum, now
		case now.Sub(since) > time.Minute:
			return nil, fmt.Errorf("%d of %d occurrences were delivered, %d attempts failed, and there was no progress for a "+
				"minute", sum, count, failed)
		}
		if now.Sub(told) > 2*time.Second {
			b.progress("delivered %d of %d", sum, count)
			told = now
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}
