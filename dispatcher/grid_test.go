package dispatcher_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillon-scheduler/carillon/dispatcher"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// stalledQueue is a store that does not answer until a time: its calls hang until they are cut off, or fail at once.
type stalledQueue struct {
	*flakyQueue
	hang bool
	ends atomic.Int64 // Unix nanoseconds
}

func (q *stalledQueue) stall(ctx context.Context) error {
	left := func() time.Duration { return time.Until(time.Unix(0, q.ends.Load())) }
	if q.hang && left() > 0 {
		select {
		case <-ctx.Done():
		case <-time.After(left()):
		}
	}
	if left() > 0 || ctx.Err() != nil {
		return fmt.Errorf("%w: stalled", store.ErrUnavailable)
	}
	return nil
}

func (q *stalledQueue) Claim(ctx context.Context, p store.ClaimParams) (store.Claim, error) {
	if err := q.stall(ctx); err != nil {
		return store.Claim{}, err
	}
	return q.flakyQueue.Claim(ctx, p)
}

func (q *stalledQueue) DueLanes(ctx context.Context, p store.DueParams) (store.DuePage, error) {
	if err := q.stall(ctx); err != nil {
		return store.DuePage{}, err
	}
	return q.flakyQueue.DueLanes(ctx, p)
}

func (q *stalledQueue) Settle(ctx context.Context, s []store.Settlement) error {
	if err := q.stall(ctx); err != nil {
		return err
	}
	return q.flakyQueue.Settle(ctx, s)
}

func (q *stalledQueue) ClaimJobs(ctx context.Context, p store.ClaimJobsParams) (store.ClaimedJobs, error) {
	if err := q.stall(ctx); err != nil {
		return store.ClaimedJobs{}, err
	}
	return q.flakyQueue.ClaimJobs(ctx, p)
}

func (q *stalledQueue) Advance(ctx context.Context, advances []store.Advance) error {
	if err := q.stall(ctx); err != nil {
		return err
	}
	return q.flakyQueue.Advance(ctx, advances)
}

func (q *stalledQueue) Sweep(ctx context.Context, p store.SweepParams) (store.Swept, error) {
	if err := q.stall(ctx); err != nil {
		return store.Swept{}, err
	}
	return q.flakyQueue.Sweep(ctx, p)
}

func (q *stalledQueue) Now(ctx context.Context) (time.Time, error) {
	if err := q.stall(ctx); err != nil {
		return time.Time{}, err
	}
	return q.flakyQueue.Now(ctx)
}

// recovery is the time after a stall until everything fires on time again: calls that hang end first, and are repeated.
const recovery = 15 * time.Second

// An interval stays on its grid, however often the store stalls or no replica runs. Each tick fires once, and on time
// unless it fell due meanwhile; each tick that does not fire is counted.
func TestStaysOnTheGrid(t *testing.T) {
	t.Parallel()
	const every, day = time.Second, 24 * time.Hour
	days := 2 * day
	if testing.Short() {
		days = day
	}
	if os.Getenv("CARILLON_TEST_LONG") != "" {
		days = 7 * day
	}
	for _, c := range []struct {
		lasts   time.Duration
		hang    bool
		stallAt time.Duration // after the beginning of each day
		stall   time.Duration
		rest    time.Duration // after each stall, during which nothing runs
	}{
		{10 * time.Minute, true, 4*time.Minute + 300*time.Millisecond, 3 * time.Minute, 0},
		{10 * time.Minute, false, 4 * time.Minute, 45 * time.Second, 0},
		// Days, and a whole week in a long test. To fire each second of it would take minutes.
		{days, true, 2 * time.Minute, time.Hour, 22*time.Hour + 57*time.Minute},
	} {
		t.Run(fmt.Sprintf("for %s, with stalls of %s", c.lasts, c.stall), func(t *testing.T) {
			bubble(t, func(b *bench) {
				time.Sleep(123456789 * time.Nanosecond)
				j := b.submit("k", crontab("@every "+every.String()))
				queue := &stalledQueue{flakyQueue: b.queue, hang: c.hang}
				configure := func(cfg *dispatcher.Config) { cfg.Store, cfg.Tick = queue, time.Minute }
				_, stop := b.replica(configure)
				late := make(map[int64]bool)
				anchor := j.Schedule.Anchor
				for begin := anchor; begin.Sub(anchor) < c.lasts; begin = begin.Add(day) {
					time.Sleep(time.Until(begin.Add(c.stallAt)))
					synctest.Wait()
					stalled := time.Now()
					queue.ends.Store(stalled.Add(c.stall).UnixNano())
					time.Sleep(c.stall + recovery)
					if c.rest > 0 {
						stop()
						time.Sleep(c.rest)
						_, stop = b.replica(configure)
					}
					for tick := stalled.Add(-every); tick.Before(time.Now()); tick = tick.Add(every) {
						late[grid(anchor, tick, every).UnixMilli()] = true
					}
				}
				time.Sleep(time.Until(anchor.Add(c.lasts + every/2)))
				synctest.Wait()

				seen := make(map[int64]bool)
				for _, d := range b.receiver.of("k") {
					tick := d.Timestamp.UnixMilli()
					switch {
					case seen[tick]:
						b.Errorf("%s was fired twice", d.Timestamp)
					case !grid(anchor, d.Timestamp, every).Equal(d.Timestamp):
						b.Errorf("%s is off the grid", d.Timestamp)
					case !d.SentAt.Equal(d.Timestamp) && !late[tick]:
						b.Errorf("%s was fired at %s", d.Timestamp, d.SentAt)
					}
					seen[tick] = true
				}
				missed := b.status(j).Missed
				if want := int(c.lasts / every); len(seen)+missed != want {
					b.Errorf("%d ticks were fired and %d missed; there were %d", len(seen), missed, want)
				}
				if short := c.stall < dispatcher.Defaults.Lease; short != (missed == 0) {
					b.Errorf("%d ticks were missed in a stall of %s", missed, c.stall)
				}
			})
		})
	}
}

// grid returns the last tick at or before a time.
func grid(anchor, at time.Time, every time.Duration) time.Time {
	return anchor.Add(at.Sub(anchor) / every * every)
}

// Wall times fire at their instants through both changes of the clocks.
func TestClockChanges(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector sees the same in other tests")
	}
	for _, c := range []struct {
		from, to string
		want     map[string][]string // by crontab
	}{
		{"2026-03-29T00:10:00Z", "2026-03-29T05:00:00Z", map[string][]string{
			"30 2 * * *":   {"2026-03-29T01:00:00Z"}, // right after the gap
			"30 */6 * * *": {"2026-03-29T04:30:00Z"},
			"*/20 1-3 * * *": {"2026-03-29T00:20:00Z", "2026-03-29T00:40:00Z",
				"2026-03-29T01:00:00Z", "2026-03-29T01:20:00Z", "2026-03-29T01:40:00Z"},
		}},
		{"2026-10-24T23:50:00Z", "2026-10-25T05:00:00Z", map[string][]string{
			"30 2 * * *":    {"2026-10-25T00:30:00Z"}, // the first time
			"15 */2 * * *":  {"2026-10-25T00:15:00Z", "2026-10-25T01:15:00Z", "2026-10-25T03:15:00Z"},
			"*/30 2 25 * *": {"2026-10-25T00:00:00Z", "2026-10-25T00:30:00Z", "2026-10-25T01:00:00Z", "2026-10-25T01:30:00Z"},
		}},
	} {
		t.Run(c.from, func(t *testing.T) {
			bubble(t, func(b *bench) {
				until := func(text string) {
					at, err := time.Parse(time.RFC3339, text)
					if err != nil {
						b.Fatal(err)
					}
					time.Sleep(time.Until(at))
				}
				until(c.from)
				for expression := range c.want {
					b.submit(expression, func(j *job.Job) {
						crontab(expression)(j)
						j.Schedule.Zone = "Europe/Paris"
					})
				}
				b.replica(calm)
				until(c.to)
				for expression, want := range c.want {
					var got []string
					for _, d := range b.receiver.of(expression) {
						got = append(got, d.SentAt.UTC().Format(time.RFC3339Nano))
						if !d.Timestamp.Equal(d.SentAt) {
							b.Errorf("%s: the instant %s was fired at %s", expression, d.Timestamp, d.SentAt)
						}
					}
					if !slices.Equal(got, want) {
						b.Errorf("%s fired at\n%s\nwant\n%s", expression, strings.Join(got, "\n"), strings.Join(want, "\n"))
					}
				}
			})
		})
	}
}
