package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/dispatcher"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// During the hour from [idleFrom] to [idleTo] nothing fires, because nothing runs or because the job is paused.
const (
	idleFrom = 10*time.Minute + 30*time.Second
	idleTo   = idleFrom + time.Hour
)

// minutes lists the instants from one minute to another.
func minutes(from, to, step int) (list []time.Duration) {
	for m := from; m <= to; m += step {
		list = append(list, time.Duration(m)*time.Minute)
	}
	return list
}

func TestCatchUp(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector sees the same in other tests")
	}
	t.Parallel()
	const runsTo = 75
	all := func(j *job.Job) { j.Options.CatchUp = job.CatchUpAll }
	none := func(j *job.Job) { j.Options.CatchUp = job.CatchUpNone }
	deadline := func(d time.Duration) func(*job.Job) {
		return func(j *job.Job) { j.Options.Deadline = job.Duration(d) }
	}
	type test struct {
		name    string
		crontab string // empty for the instants
		changes []func(*job.Job)
		limit   int
		instant []time.Duration
		onTime  []time.Duration // the occurrences that fire at their instants
		late    []time.Duration // the occurrences that fire when the hour is over
		missed  int
	}
	byLimit := make(map[int][]test)
	for _, c := range []test{
		{name: "interval, latest", crontab: "@every 1m",
			onTime: slices.Concat(minutes(1, 10, 1), minutes(71, runsTo, 1)), late: minutes(70, 70, 1), missed: 59},
		{name: "interval, all", crontab: "@every 1m", changes: []func(*job.Job){all},
			onTime: slices.Concat(minutes(1, 10, 1), minutes(71, runsTo, 1)), late: minutes(11, 70, 1)},
		{name: "interval, none", crontab: "@every 1m", changes: []func(*job.Job){none},
			onTime: slices.Concat(minutes(1, 10, 1), minutes(71, runsTo, 1)), missed: 60},
		{name: "five fields, latest", crontab: "*/5 * * * *",
			onTime: slices.Concat(minutes(5, 10, 5), minutes(75, runsTo, 5)), late: minutes(70, 70, 1), missed: 11},
		{name: "five fields, all", crontab: "*/5 * * * *", changes: []func(*job.Job){all},
			onTime: slices.Concat(minutes(5, 10, 5), minutes(75, runsTo, 5)), late: minutes(15, 70, 5)},
		{name: "five fields, none", crontab: "*/5 * * * *", changes: []func(*job.Job){none},
			onTime: slices.Concat(minutes(5, 10, 5), minutes(75, runsTo, 5)), missed: 12},
		// The only tick of that hour was in the store before it began.
		{name: "hourly, latest", crontab: "0 * * * *", late: minutes(60, 60, 1)},
		{name: "hourly, all", crontab: "@hourly", changes: []func(*job.Job){all}, late: minutes(60, 60, 1)},
		{name: "hourly, none", crontab: "@hourly", changes: []func(*job.Job){none}, missed: 1},
		{name: "all beyond the limit", crontab: "@every 1m", changes: []func(*job.Job){all}, limit: 7,
			onTime: slices.Concat(minutes(1, 10, 1), minutes(71, runsTo, 1)), late: minutes(64, 70, 1), missed: 53},
		// One tick is in the store; 58 are not expanded yet.
		{name: "all, to a limit that reaches into what was expanded", crontab: "@every 1m", changes: []func(*job.Job){all}, limit: 59,
			onTime: slices.Concat(minutes(1, 10, 1), minutes(71, runsTo, 1)), late: minutes(12, 70, 1), missed: 1},
		{name: "all within a deadline", crontab: "@every 1m", changes: []func(*job.Job){all, deadline(10*time.Minute + 30*time.Second)},
			onTime: slices.Concat(minutes(1, 10, 1), minutes(71, runsTo, 1)), late: minutes(60, 70, 1), missed: 49},
		{name: "latest beyond its deadline", crontab: "@hourly", changes: []func(*job.Job){deadline(5 * time.Minute)},
			missed: 1},
		{name: "a deadline shorter than the lease", crontab: "@every 1m", changes: []func(*job.Job){all, deadline(time.Second)},
			onTime: slices.Concat(minutes(1, 10, 1), minutes(71, runsTo, 1)), missed: 60},
		{name: "ended meanwhile", crontab: "@every 1m",
			changes: []func(*job.Job){func(j *job.Job) { j.Schedule.EndAt = time.Now().Add(40 * time.Minute) }},
			onTime:  minutes(1, 10, 1), late: minutes(40, 40, 1), missed: 29},
		{name: "began meanwhile", crontab: "@every 1m", changes: []func(*job.Job){all, func(j *job.Job) { j.Schedule.StartAt = time.Now().Add(68 * time.Minute) }},
			onTime: minutes(71, runsTo, 1), late: minutes(68, 70, 1)},
		{name: "instants", instant: minutes(5, 75, 10), onTime: minutes(5, 75, 70), late: minutes(15, 65, 10)},
		{name: "instants with a deadline", instant: minutes(5, 75, 10), changes: []func(*job.Job){deadline(10 * time.Minute)},
			onTime: minutes(5, 75, 70), late: minutes(65, 65, 1), missed: 5},
	} {
		byLimit[c.limit] = append(byLimit[c.limit], c)
	}
	for limit, tests := range byLimit {
		for _, how := range []string{"outage", "pause"} {
			t.Run(fmt.Sprint(how, " ", limit), func(t *testing.T) {
				bubble(t, func(b *bench) {
					configure := func(cfg *dispatcher.Config) {
						calm(cfg)
						if limit > 0 {
							cfg.CatchUpLimit = limit
						}
					}
					jobs := make([]job.Job, len(tests))
					for i, c := range tests {
						jobs[i] = b.submit(c.name, func(j *job.Job) {
							if c.crontab != "" {
								crontab(c.crontab)(j)
							}
							for _, change := range c.changes {
								change(j)
							}
						}, c.instant...)
					}
					d, stop := b.replica(configure)
					time.Sleep(idleFrom)
					if how == "pause" {
						b.pause(jobs...)
					} else {
						stop()
					}
					time.Sleep(time.Until(b.start.Add(idleTo)))
					if how == "pause" {
						b.resume(d, jobs...)
					} else {
						b.replica(configure)
						b.replica(configure)
					}
					time.Sleep(time.Until(b.start.Add(runsTo*time.Minute + time.Second)))

					for i, c := range tests {
						var onTime, late []time.Duration
						for _, d := range b.receiver.of(c.name) {
							at, instant := d.SentAt.Sub(b.start), d.Timestamp.Sub(b.start)
							switch at {
							case instant:
								onTime = append(onTime, instant)
							case idleTo:
								late = append(late, instant)
							default:
								b.Errorf("%s: the instant %s was fired at %s", c.name, instant, at)
							}
						}
						slices.Sort(late)
						if !slices.Equal(onTime, c.onTime) {
							b.Errorf("%s: fired on time: %v\nwant %v", c.name, onTime, c.onTime)
						}
						if !slices.Equal(late, c.late) {
							b.Errorf("%s: fired late: %v\nwant %v", c.name, late, c.late)
						}
						if missed := b.status(jobs[i]).Missed; missed != c.missed {
							b.Errorf("%s: %d were missed, want %d", c.name, missed, c.missed)
						}
					}
				})
			})
		}
	}
}

// A pause shorter than the lease leaves nothing out, and an occurrence triggered meanwhile fires at once.
func TestShortPause(t *testing.T) {
	bubble(t, func(b *bench) {
		d, _ := b.replica(nil)
		j := b.submit("k", crontab("@every 10s"))
		time.Sleep(15 * time.Second)
		b.pause(j)
		time.Sleep(10 * time.Second)
		now := time.Now()
		own := job.Occurrence{
			ID: job.OccurrenceID(j.Name, "", now, 7, ""), Name: j.Name, Position: 7, Timestamp: now, DueAt: now, Own: &job.Target{Callback: j.Callback},
		}
		if err := b.store.Trigger(b.Context(), own); err != nil {
			b.Fatal(err)
		}
		d.Wake(job.DefaultLane, now)
		time.Sleep(30 * time.Second)
		b.resume(d, j)
		time.Sleep(10 * time.Second)
		b.expectSent("10s k #1", "25s k #1", "55s k #1", "55s k #1", "55s k #1", "55s k #1", "1m0s k #1")
		if missed := b.status(j).Missed; missed != 0 {
			b.Errorf("%d were missed", missed)
		}
	})
}

// A triggered or redriven occurrence fires however late it is.
func TestOwnIsNeverTooLate(t *testing.T) {
	bubble(t, func(b *bench) {
		time.Sleep(time.Hour)
		j := b.submit("k", func(j *job.Job) {
			crontab("@every 1m")(j)
			j.Options.CatchUp, j.Options.Deadline = job.CatchUpNone, job.Duration(time.Minute)
		})
		own := job.Occurrence{
			ID: job.OccurrenceID(j.Name, "", b.start, 7, ""), Name: j.Name, Position: 7, Timestamp: b.start, DueAt: time.Now(),
			Own: &job.Target{Callback: j.Callback, Options: j.Options},
		}
		b.receiver.answers(func(_ context.Context, d callbacks.Delivery) error {
			if d.Attempt == 1 {
				return callbacks.RetryAfter(errors.New("busy"), 10*time.Second)
			}
			return nil
		})
		if err := b.store.Trigger(b.Context(), own); err != nil {
			b.Fatal(err)
		}
		b.replica(nil)
		time.Sleep(30 * time.Second)
		b.expectSent("1h0m0s k #1", "1h0m10s k #2")
	})
}

// Catch-up does not apply to an occurrence that was attempted in time: it is retried until its attempts are used up.
func TestRetriesAreNotCaughtUpOn(t *testing.T) {
	bubble(t, func(b *bench) {
		b.receiver.answers(func(_ context.Context, d callbacks.Delivery) error {
			if d.Timestamp.Sub(b.start) == 2*time.Minute && d.Attempt < 4 {
				return callbacks.RetryAfter(errors.New("busy"), 10*time.Minute)
			}
			return nil
		})
		b.replica(nil)
		j := b.submit("k", func(j *job.Job) {
			crontab("@every 1m")(j)
			j.Options.CatchUp = job.CatchUpNone
		})
		time.Sleep(time.Hour + time.Second)
		// The retries delay no other occurrence.
		attempts := make(map[time.Duration]int)
		for _, d := range b.receiver.of("k") {
			instant := d.Timestamp.Sub(b.start)
			if attempts[instant]++; d.Attempt == 1 && !d.SentAt.Equal(d.Timestamp) {
				b.Errorf("the instant %s was fired at %s", instant, d.SentAt.Sub(b.start))
			}
		}
		if len(attempts) != 60 || attempts[2*time.Minute] != 4 || b.status(j).Missed != 0 {
			b.Errorf("%d instants fired, one of them %d times; %d missed; want 60, 4 and 0", len(attempts), attempts[2*time.Minute], b.status(j).Missed)
		}
	})
}

// A replica that can't compute which instants are caught up leaves that to the others.
func TestCatchUpUnknown(t *testing.T) {
	bubble(t, func(b *bench) {
		j := b.submit("k", crontab("@every 1m"))
		time.Sleep(time.Hour + time.Second)
		b.queue.set(func(q *flakyQueue) {
			q.read = func(c *store.Claimed) {
				lost := *c.Options.Recurrence
				lost.Timezone = "Mars/Olympus"
				c.Options.Recurrence = &lost
			}
		})
		_, stop := b.replica(nil)
		time.Sleep(10 * time.Second)
		stop()
		b.expectSent("1h0m1s k #1") // it was expanded in time, so there is nothing to compute
		if left := b.pending(j)[0]; left.Attempt != 0 || !strings.Contains(left.LastError, "Mars/Olympus") {
			b.Errorf("after a replica that can't tell: attempt %d, last error %q", left.Attempt, left.LastError)
		}
		b.queue.set(func(q *flakyQueue) { q.read = nil })
		b.replica(nil)
		time.Sleep(20 * time.Second)
		b.expectSent("1h0m1s k #1")
		if missed := b.status(j).Missed; missed != 59 {
			b.Errorf("%d missed, want 59", missed)
		}
	})
}

// An attempt is the last one if the next would come after the deadline.
func TestRetriesEndAtTheDeadline(t *testing.T) {
	const ends = "; the next attempt would come after the deadline"
	pause := callbacks.RetryAfter(errors.New("busy"), 20*time.Second)
	for _, c := range []struct {
		name     string
		deadline time.Duration
		answer   error
		sent     []string
		dead     string // empty for none
		missed   int
	}{
		{"none", 0, pause, []string{"0s k #1", "20s k #2", "40s k #3"}, "busy", 0},
		{"between two attempts", 30 * time.Second, pause, []string{"0s k #1", "20s k #2"}, "busy" + ends, 0},
		{"at an attempt", 40 * time.Second, pause, []string{"0s k #1", "20s k #2", "40s k #3"}, "busy", 0},
		{"before any", 19 * time.Second, pause, []string{"0s k #1"}, "busy" + ends, 0},
		{"beyond the last attempt", time.Hour, pause, []string{"0s k #1", "20s k #2", "40s k #3"}, "busy", 0},
		{"a permanent error", time.Second, callbacks.Permanent(errors.New("gone")), []string{"0s k #1"}, "gone", 0},
		{"never sent", 25 * time.Second, callbacks.Unavailable(errors.New("no connection"), 30*time.Second), []string{"0s k #1"}, "", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(b *bench) {
				b.receiver.answers(func(context.Context, callbacks.Delivery) error { return c.answer })
				j := b.submit("k", func(j *job.Job) {
					j.Options.Deadline = job.Duration(c.deadline)
					j.Options.Retry = job.Retry{MaxAttempts: 3, Initial: job.Duration(time.Millisecond), Max: job.Duration(time.Millisecond)}
				}, 0)
				d, _ := b.replica(nil)
				time.Sleep(5 * time.Minute)
				b.expectSent(c.sent...)
				dead := b.dead()
				if status := b.status(j); status.Live() || status.Missed != c.missed || (len(dead) == 0) != (c.dead == "") {
					b.Fatalf("live %t, %d missed, %d dead letters", status.Live(), status.Missed, len(dead))
				}
				if len(dead) == 0 {
					return
				}
				if dead[0].LastError != c.dead {
					b.Errorf("the dead letter's error is %q, want %q", dead[0].LastError, c.dead)
				}
				// A redriven occurrence fires and is retried in spite of the deadline.
				b.receiver.answers(func(_ context.Context, d callbacks.Delivery) error {
					if d.Attempt == 1 {
						return pause
					}
					return nil
				})
				if n, err := b.store.SettleDead(b.Context(), store.DeadSettlement{Tenant: job.DefaultTenant, IDs: []job.ID{dead[0].ID}, Outcome: store.Redrive, Now: time.Now()}); n != 1 || err != nil {
					b.Fatalf("redrove %d: %v", n, err)
				}
				d.Wake(job.DefaultLane, time.Now())
				time.Sleep(5 * time.Minute)
				b.expectSent(append(c.sent, "5m0s k #1", "5m20s k #2")...)
			})
		})
	}
}
