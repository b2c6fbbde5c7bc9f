package dispatcher_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/dispatcher"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// spread returns a change for submit.
func spread(window time.Duration) func(*job.Job) {
	return func(j *job.Job) { j.Options.Spread = job.Duration(window) }
}

// firesAt returns when a job's occurrence of an instant is to fire, as the time since the start.
func (b *bench) firesAt(j job.Job, instant time.Duration) time.Duration {
	return j.Options.FiresAt(&job.Occurrence{Name: j.Name, Timestamp: b.start.Add(instant)}).Sub(b.start)
}

// expectSpread checks that a job's deliveries are those of these instants, each with its instant, at the moved time.
func (b *bench) expectSpread(j job.Job, instants ...time.Duration) {
	b.Helper()
	var got, want []string
	for _, d := range b.receiver.of(j.Key) {
		got = append(got, fmt.Sprint(d.Timestamp.Sub(b.start), " at ", d.SentAt.Sub(b.start), " as ", d.ID))
	}
	for _, i := range instants {
		want = append(want, fmt.Sprint(i, " at ", b.firesAt(j, i), " as ", job.DeliveryID(j.Name, b.start.Add(i), 0, "")))
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		b.Errorf("%s: sent %q, want %q", j.Key, got, want)
	}
}

// Occurrences fire at their moved times, to the millisecond, and receivers see the instants.
func TestSpread(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector sees the same in other tests")
	}
	bubble(t, func(b *bench) {
		b.replica(calm)
		b.replica(calm)
		list := b.submit("list", spread(15*time.Minute), time.Hour, 2*time.Hour, 3*time.Hour)
		now := b.submit("now", spread(15*time.Minute), 0)
		every := b.submit("every", func(j *job.Job) { // windows overlap
			crontab("@every 10m")(j)
			spread(25 * time.Minute)(j)
		})
		time.Sleep(4 * time.Hour)
		b.expectSpread(list, time.Hour, 2*time.Hour, 3*time.Hour)
		b.expectSpread(now, 0)
		var fired []time.Duration
		for at := 10 * time.Minute; at < 4*time.Hour; at += 10 * time.Minute {
			if b.firesAt(every, at) <= 4*time.Hour {
				fired = append(fired, at)
			}
		}
		b.expectSpread(every, fired...)
		if missed := b.status(every).Missed; missed != 0 {
			b.Errorf("%d were missed", missed)
		}
	})
}

// A store makes occurrences due at their instants when a job is resumed, and a version without spread inserts them so.
// They fire at their moved times all the same, and the attempt does not count.
func TestSpreadOfWhatIsDueAtItsInstant(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector sees the same in other tests")
	}
	bubble(t, func(b *bench) {
		d, _ := b.replica(calm)
		resumed := b.submit("resumed", spread(6*time.Hour), time.Hour)
		early := b.submit("resumed early", spread(6*time.Hour), time.Hour)
		b.pause(resumed, early)
		older := b.submit("older", nil, time.Hour)
		amended := older
		amended.Options.Spread = job.Duration(6 * time.Hour)
		amendment := store.Amendment{
			Name: older.Name, Of: older.Version, Version: job.NewRevision(time.Now()), Callback: older.Callback, Options: amended.Options,
			Now: time.Now(),
		}
		if err := b.store.Amend(b.Context(), amendment); err != nil {
			b.Fatal(err)
		}
		for _, j := range []job.Job{resumed, amended} {
			if moved := b.firesAt(j, 0); moved < 5*time.Minute {
				b.Fatalf("%s is moved by %s only", j.Key, moved)
			}
		}
		time.Sleep(time.Minute)
		b.resume(d, early)
		time.Sleep(time.Hour)
		b.resume(d, resumed)
		time.Sleep(8 * time.Hour)
		for _, j := range []job.Job{resumed, early, amended} {
			b.expectSpread(j, time.Hour)
			if sent := b.receiver.of(j.Key); len(sent) != 1 || sent[0].Attempt != 1 {
				b.Errorf("%s: %+v", j.Key, sent)
			}
		}
	})
}

// An occurrence that is due at its instant waits for its moved time, less the early window, after one claim.
func TestSpreadBesideAnEarlyWindow(t *testing.T) {
	const early = 5 * time.Second
	bubble(t, func(b *bench) {
		d, _ := b.replica(func(c *dispatcher.Config) { c.Early = early })
		j := b.submit("k", spread(time.Minute), time.Hour)
		moved := b.firesAt(j, time.Hour)
		if moved < time.Hour+3*early {
			b.Fatalf("it is moved by %s only", moved-time.Hour)
		}
		b.pause(j)
		time.Sleep(time.Hour + time.Second)
		before := b.queue.claimed()
		b.queue.set(func(q *flakyQueue) { // a claim takes its time
			q.read = func(*store.Claimed) { time.Sleep(2 * time.Second) }
		})
		b.resume(d, j)
		time.Sleep(5 * time.Second)
		b.queue.set(func(q *flakyQueue) { q.read = nil })
		time.Sleep(2 * time.Minute)
		if sent := b.receiver.of("k"); len(sent) != 1 || !sent[0].SentAt.Equal(b.start.Add(moved-early)) {
			b.Errorf("sent %+v, want it at %s", sent, moved-early)
		}
		if claims := b.queue.claimed() - before; claims > 5 {
			b.Errorf("%d claims", claims)
		}
	})
}

// After an outage, catch-up decides about the ticks that should have fired in it. Those that are moved beyond it fire in
// time.
func TestSpreadAndCatchUp(t *testing.T) {
	const window = 15 * time.Minute
	bubble(t, func(b *bench) {
		var jobs []job.Job
		for _, mode := range []job.CatchUp{job.CatchUpLatest, job.CatchUpAll, job.CatchUpNone} {
			jobs = append(jobs, b.submit(string(mode), func(j *job.Job) {
				crontab("@every 5m")(j)
				spread(window)(j)
				j.Options.CatchUp = mode
			}))
		}
		_, stop := b.replica(calm)
		time.Sleep(idleFrom)
		stop()
		time.Sleep(time.Until(b.start.Add(idleTo)))
		b.replica(calm)
		const end = 2 * time.Hour
		time.Sleep(time.Until(b.start.Add(end)))

		passed := (idleTo - window).Truncate(5 * time.Minute) // the last tick whose window has ended
		for _, j := range jobs {
			var want, got []string
			for at := 5 * time.Minute; at < end; at += 5 * time.Minute {
				fires := b.firesAt(j, at)
				switch missing := fires > idleFrom && fires < idleTo; {
				case fires > end:
				case !missing:
					want = append(want, fmt.Sprint(at, " at ", fires))
				case fires >= idleTo-time.Minute, // late by no more than a lease
					j.Options.CatchUp == job.CatchUpAll, j.Options.CatchUp == job.CatchUpLatest && at >= passed:
					want = append(want, fmt.Sprint(at, " at ", idleTo))
				}
			}
			for _, d := range b.receiver.of(j.Key) {
				got = append(got, fmt.Sprint(d.Timestamp.Sub(b.start), " at ", d.SentAt.Sub(b.start)))
			}
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				b.Errorf("%s: sent\n%q\nwant\n%q", j.Key, got, want)
			}
			if ticks := len(got) + b.status(j).Missed; ticks < 20 || ticks > 23 {
				b.Errorf("%s: %d were sent, %d missed", j.Key, len(got), b.status(j).Missed)
			}
		}
	})
}
