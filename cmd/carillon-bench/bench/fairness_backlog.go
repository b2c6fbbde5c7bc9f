package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/carillon-scheduler/carillon/job"
)

// backlog drains the backlog of one tenant, while another tenant submits something from time to time.
func (f Fairness) backlog(ctx context.Context, b *Bench) error {
	var waits, alone, beside, losses, shares []float64
	for round := range b.Rounds {
		w, where, err := b.timedWork(ctx, round, timed{})
		if err != nil {
			return err
		}
		long, short := rival(w, "bench-a", job.PriorityDefault, f.Count),
			rival(w, "bench-b", job.PriorityDefault, max(1, f.Count/200))
		var v visits
		fired, err := b.compete(ctx, []*Work{long}, func(replica *part, url string) (more []*Work, err error) {
			v, more, err = b.visit(ctx, replica, url, long, short)
			return more, err
		})
		if err != nil {
			return err
		}
		p, err := v.compare(fired[0], fired[1:])
		if err != nil {
			return err
		}
		b.progress("round %d: B waited %.0f ms (p95); A had %.0f/s alone and %.0f/s beside B", round+1, p.wait, p.alone,
			p.beside)
		waits, alone, beside = append(waits, p.wait), append(alone, p.alone), append(beside, p.beside)
		losses, shares = append(losses, 100*p.loss), append(shares, 100*p.share)
		if err := where.close(ctx); err != nil {
			return err
		}
	}
	b.figure("backlog: wait of B p95", "ms", waits, nil, atMost(2000))
	b.figure("backlog: A drained while B comes", "1/s", beside, alone, nil)
	b.figure("backlog: A's loss beyond B's share", "%", losses, nil, atMost(10))
	b.figure("backlog: A's share while B waits", "%", shares, nil, atLeast(50))
	b.note("backlog: tenant A has %d due; tenant B gets %d at once, up to %d times. Raw of A drained: just before B "+
		"comes, for as long.", f.Count, max(1, f.Count/200), mostVisits)
	return nil
}

// visits are the times at which another tenant's work fell due while a backlog was drained. For each visit, the time
// from due on is compared with the time before its submission. All are Unix microseconds.
type visits struct {
	from []int64 // beginnings of the time before
	due  []int64
	span int64 // length of both times, in microseconds
}

// mostVisits limits the number of visits.
const mostVisits = 6

// visit waits until a tenth of long has fired, and then submits short from time to time while long lasts. Each visit is
// a work of its own and is submitted a little before it falls due, so that neither of the compared times includes the
// submission.
func (b *Bench) visit(ctx context.Context, replica *part, url string, long, short *Work) (v visits, works []*Work,
	err error) {
	submitter, err := b.startPart(ctx, clientRole, b.security.token, nil)
	if err != nil {
		return v, nil, err
	}
	all, err := b.awaitAcked(ctx, []*part{replica}, long.Count/10)
	if err != nil {
		return v, nil, err
	}
	s := all[0]
	span := time.Since(time.Unix(0, s.Begun)) / 2 // about a twentieth of the whole drain
	v.span = span.Microseconds()
	lead := span / 2
	for fired := 0; len(works) < mostVisits && s.Acked-fired < long.Count; fired += short.Count {
		v.from = append(v.from, time.Now().UnixMicro())
		if err := sleep(ctx, span); err != nil {
			return v, nil, err
		}
		w := *short
		w.Prefix += fmt.Sprintf("%d-", len(works))
		begin := time.Now()
		w.Start = job.CeilMilli(begin.Add(lead))
		if err := b.submit(ctx, submitter, url, &w); err != nil {
			return v, nil, err
		}
		there := time.Now()
		lead = max(lead, 2*there.Sub(begin)) // so that the next visit is in the store in time
		if there.Before(w.Start) {
			there = w.Start
		}
		works, v.due = append(works, &w), append(v.due, there.UnixMicro())
		if err := errors.Join(sleep(ctx, time.Until(there.Add(span))), replica.call(ctx, "stats", nil, &s)); err != nil {
			return v, nil, err
		}
	}
	return v, works, submitter.stop()
}

// visited is the result of all visits. Rates and parts are medians, since a stall of the disk spoils single visits.
type visited struct {
	wait          float64 // milliseconds, the 95th percentile of all visits
	alone, beside float64 // firings of the backlog per second, before a visit and during it
	loss          float64 // the backlog's loss of rate beyond the visit's share; a fraction
	share         float64 // the backlog's share of the firings until the visit was served; a fraction
}

// compare evaluates the visits that ended before the backlog did.
func (v *visits) compare(long Firings, short []Firings) (r visited, err error) {
	var waits []int64
	var alone, beside, losses, shares []float64
	for i, s := range short {
		end := v.due[i] + v.span
		before := long.within(v.from[i], v.from[i]+v.span)
		with, got := long.within(v.due[i], end), s.within(v.due[i], end)
		if long.last() < end || before == 0 || with == 0 {
			continue
		}
		until := long.within(v.due[i], s.last())
		for _, at := range s.At {
			waits = append(waits, at-v.due[i])
		}
		alone, beside = append(alone, before/float64(v.span)*1e6), append(beside, with/float64(v.span)*1e6)
		losses, shares = append(losses, 1-got/(got+with)-with/before), append(shares, until/(until+float64(len(s.At))))
	}
	if len(waits) == 0 {
		return r, errors.New("the backlog was drained too soon; --count must be larger")
	}
	slices.Sort(waits)
	return visited{float64(quantile(waits, 0.95)) / 1000, median(alone), median(beside), median(losses), median(shares)},
		nil
}
