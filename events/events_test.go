package events_test

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/access/limits"
	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/events"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/tenants"
)

func only(types ...job.EventType) job.EventSettings { return job.EventSettings{Types: types} }

func perMinute(n int) job.EventSettings { return job.EventSettings{PerMinute: &n} }

// TestEachType causes each event, and checks that it is sent once, and no other.
func TestEachType(t *testing.T) {
	at := func(after time.Duration) string {
		return job.FormatTime(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).Add(after))
	}
	for kind, test := range map[job.EventType]struct {
		do   func(w *world)
		told []string
		data events.Data
	}{
		job.EventDeadLetter: {func(w *world) {
			w.answers("jobs", errGone)
			w.replica(w.store)
			w.submit("a", nil)
			time.Sleep(time.Minute)
		}, []string{"deadletter.created a"}, events.Data{
			Key: "a", Instant: at(0), Attempt: 1, Destination: "test jobs", Error: "it is gone",
		}},
		job.EventMissed: {func(w *world) {
			w.submit("a", func(j *job.Job) { j.Options.Deadline = job.Duration(time.Second) })
			time.Sleep(time.Minute)
			w.replica(w.store)
			time.Sleep(time.Minute)
		}, []string{"occurrence.missed a"}, events.Data{
			Key: "a", Instant: at(0), Attempt: 1, Error: "its deadline of 1s has passed",
		}},
		job.EventFailing: {func(w *world) {
			w.answers("jobs", errHungUp)
			w.replica(w.store)
			w.submit("a", crontab("@every 10s"))
			time.Sleep(2 * time.Minute)
			w.answers("jobs", nil)
			time.Sleep(time.Hour)
		}, []string{"job.failing a"}, events.Data{
			Key: "a", Instant: at(10 * time.Second), Attempt: 1, Destination: "test jobs", Error: "it hung up",
		}},
		job.EventFinished: {func(w *world) {
			w.replica(w.store)
			w.submit("endless", crontab("@every 10s"))
			w.submit("a", func(j *job.Job) {
				j.Schedule.Instants = append(j.Schedule.Instants, j.Schedule.Instants[0].Add(time.Minute), j.Schedule.Instants[0].Add(2*time.Minute))
			})
			w.submit("ends", func(j *job.Job) {
				crontab("@every 10s")(j)
				j.Schedule.EndAt = time.Now().Add(10 * time.Minute)
			})
			time.Sleep(85 * time.Second)
			w.answers("jobs", errGone)
			time.Sleep(time.Minute)
			w.answers("jobs", nil)
			w.hasTold("job.finished a")
			if got := w.data(job.EventFinished); *got.Outcomes != (events.Outcomes{Delivered: 2, Failed: 1}) {
				w.Errorf("its outcomes are %+v", *got.Outcomes)
			}
			time.Sleep(time.Hour)
		}, []string{"job.finished a", "job.finished ends"}, events.Data{
			Key: "ends", Outcomes: &events.Outcomes{Delivered: 54, Failed: 6},
		}},
		job.EventQuotaNear: {func(w *world) {
			r := w.replica(w.store)
			l := limits.New(limits.Config{Tenant: limits.Limits{Quota: limits.Quota{Jobs: 10}}, Count: w.store, Near: r.events.QuotaNear})
			admit := func(jobs int) { _ = l.Admit(w.Context(), limits.Key{}, tenant, jobs, jobs) }
			admit(7)
			time.Sleep(time.Second)
			w.hasTold()
			for range 5 {
				admit(1)
			}
			time.Sleep(time.Second)
		}, []string{"quota.near tenant-jobs"}, events.Data{Quota: "tenant-jobs", Limit: 10, Present: 8}},
		job.EventExpectationMissed: {func(w *world) {
			w.replica(w.store)
			w.expect("a", time.Minute, nil)
			time.Sleep(time.Minute - time.Millisecond)
			w.hasTold()
			time.Sleep(time.Minute)
		}, []string{"expectation.missed a"}, events.Data{Key: "a", Instant: at(0), ExpectedBy: at(time.Minute)}},
	} {
		t.Run(string(kind), func(t *testing.T) {
			inWorld(t, only(kind), func(w *world) {
				test.do(w)
				w.hasTold(test.told...)
				got := w.data(kind)
				got.Tenant, got.DeliveryID = "", ""
				if test.data.Outcomes != nil {
					if got.Outcomes == nil || *got.Outcomes != *test.data.Outcomes {
						t.Errorf("its outcomes are %+v, want %+v", got.Outcomes, *test.data.Outcomes)
					}
					got.Outcomes, test.data.Outcomes = nil, nil
				}
				if g, want := fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", test.data); g != want {
					t.Errorf("its data are\n%s\nwant\n%s", g, want)
				}
			})
		})
	}
}

// TestMissedTicks: the ticks that were not expanded while no replica ran are one event. An event's instant is the time
// at which its cause was known. So a callback that takes long does not make its event late.
func TestSlowCallback(t *testing.T) {
	inWorld(t, job.EventSettings{}, func(w *world) {
		w.answers("jobs", errGone)
		w.takes = map[string]time.Duration{"jobs": 10 * time.Second}
		w.replica(w.store)
		j := w.submit("a", nil)
		time.Sleep(time.Minute)
		w.hasTold("deadletter.created a", "job.failing a", "job.finished a")
		for _, d := range w.sent {
			if after := d.Timestamp.Sub(j.Schedule.Instants[0]); after < 10*time.Second || after > 11*time.Second {
				t.Errorf("%s is of an instant %v after the attempt began, which took 10 s", d.Event.Type, after)
			}
		}
	})
}

func TestMissedTicks(t *testing.T) {
	inWorld(t, only(job.EventMissed), func(w *world) {
		w.submit("a", func(j *job.Job) {
			crontab("@every 1m")(j)
			j.Options.CatchUp = job.CatchUpNone
		})
		time.Sleep(time.Hour + time.Second)
		w.replica(w.store)
		time.Sleep(time.Minute - 2*time.Second)
		missed := 0
		w.lock.Lock()
		defer w.lock.Unlock()
		for _, d := range w.sent {
			var data events.Data
			unmarshal(t, d.Payload, &data)
			missed += max(1, data.Count)
		}
		if missed != 60 || len(w.sent) > 4 {
			t.Errorf("%d events tell of %d ticks, want 60", len(w.sent), missed)
		}
	})
}

// TestPartOfADestination: the event of a path's outage goes to the tenant whose deliveries fail there, and not to
// another one that sends to the same host.
func TestPartOfADestination(t *testing.T) {
	inWorld(t, only(job.EventDestinationDown), func(w *world) {
		settings := job.TenantSettings{Events: &job.EventSettings{
			Types: []job.EventType{job.EventDestinationDown}, Callback: &job.CallbackDraft{Type: "test", Data: []byte(`"events"`)},
		}}
		if err := tenants.New(w.store).Set(t.Context(), "other", settings, time.Now()); err != nil {
			t.Fatal(err)
		}
		w.replica(w.store)
		w.answers("jobs#a", &callbacks.Failure{Err: errHungUp, Blame: callbacks.BlamePart})
		for i := range 100 {
			w.submit(fmt.Sprint("a", i), func(j *job.Job) {
				j.Callback.Data, j.Options.Retry.MaxAttempts = []byte(`"jobs#a"`), 1000
			})
			w.submit(fmt.Sprint("b", i), func(j *job.Job) {
				j.Tenant, j.Callback.Data = "other", []byte(`"jobs#b"`)
				j.Schedule.Instants[0] = time.Now().Add(time.Duration(i) * time.Second).Truncate(time.Millisecond)
			})
		}
		time.Sleep(10 * time.Minute)
		w.hasTold("destination.down test jobs") // and nothing to another tenant
	})
}

// TestDestinations: two replicas send one event of an outage and one of its end, to the tenant that sends there.
func TestDestinations(t *testing.T) {
	inWorld(t, only(job.EventDestinationDown, job.EventDestinationUp), func(w *world) {
		first := w.replica(w.store)
		w.replica(w.store)
		begin := time.Now()
		w.answers("jobs", errHungUp)
		for i := range 200 {
			w.submit(fmt.Sprint("j", i), func(j *job.Job) { j.Options.Retry.MaxAttempts = 1000 })
		}
		time.Sleep(time.Minute)
		w.hasTold("destination.down test jobs")
		down := w.data(job.EventDestinationDown)
		if since, err := time.Parse(time.RFC3339, down.Since); err != nil || since.Before(begin) || down.Destination != "test jobs" {
			t.Errorf("its data are %+v", down)
		}
		time.Sleep(10 * time.Minute)
		w.hasTold("destination.down test jobs")
		w.answers("jobs", nil)
		time.Sleep(10 * time.Minute)
		w.hasTold("destination.down test jobs", "destination.up test jobs")
		if up := w.data(job.EventDestinationUp); up.Since != down.Since || up.Until <= up.Since {
			t.Errorf("its data are %+v", up)
		}

		// Another outage. The replica that sends its event does not see its end.
		w.stops[1]()
		w.answers("jobs", errHungUp)
		for i := range 100 {
			w.submit(fmt.Sprint("k", i), func(j *job.Job) { j.Options.Retry.MaxAttempts = 1000 })
		}
		time.Sleep(time.Minute)
		w.hasTold("destination.down test jobs", "destination.up test jobs", "destination.down test jobs")
		first.stop()
		w.answers("jobs", nil)
		w.replica(w.store)
		time.Sleep(10 * time.Minute)
		w.submit("later", nil)
		time.Sleep(time.Minute)
		w.hasTold("destination.down test jobs", "destination.up test jobs", "destination.down test jobs", "destination.up test jobs")
	})
}

// TestNoLoops: the outcomes of events make no events.
func TestNoLoops(t *testing.T) {
	inWorld(t, job.EventSettings{}, func(w *world) {
		r := w.replica(w.store)
		w.answers("jobs", errGone)
		w.answers("events", errGone)
		w.submit("a", nil)
		time.Sleep(time.Hour)
		letters, err := w.store.DeadLetters(t.Context(), store.DeadLetterFilter{Tenant: tenant, Limit: 100})
		if err != nil {
			t.Fatal(err)
		}
		kinds := map[job.EventType]int{}
		for _, l := range letters {
			if l.Own.Options.Event != nil {
				kinds[l.Own.Options.Event.Type]++
			}
		}
		want := map[job.EventType]int{job.EventDeadLetter: 1, job.EventFailing: 1, job.EventFinished: 1}
		if !maps.Equal(kinds, want) || len(letters) != 4 {
			t.Errorf("%d dead letters, of events %v, want %v", len(letters), kinds, want)
		}
		if n := r.count(t, "carillon_events_total"); n != 3 {
			t.Errorf("%v events were stored", n)
		}
	})
}

// TestBound: a tenant gets events up to its bound per minute, and one that counts the others.
func TestBound(t *testing.T) {
	inWorld(t, perMinute(5), func(w *world) {
		r := w.replica(w.store)
		time.Sleep(time.Second)
		w.answers("jobs", errGone)
		for i := range 10 {
			w.submit(fmt.Sprint("j", i), nil)
		}
		time.Sleep(30 * time.Second)
		if got := w.told(); len(got) != 5 {
			t.Errorf("it has told %q", got)
		}
		time.Sleep(time.Minute)
		if got := w.told(); len(got) != 6 {
			t.Errorf("it has told %q", got)
		}
		summary, left := w.data(job.EventSummary), 0
		for _, n := range summary.LeftOut {
			left += n
		}
		if left != 25 || summary.Since >= summary.Until || r.count(t, "carillon_events_summarized_total") != 25 {
			t.Errorf("the summary is %+v", summary)
		}
		w.submit("another minute", nil)
		time.Sleep(time.Minute)
		if got := w.told(); len(got) != 9 {
			t.Errorf("in another minute it has told %q", got)
		}
	})
}

// TestOnlyWhatIsWanted: other types and other tenants have no events. After a reset, no tenant has any.
func TestOnlyWhatIsWanted(t *testing.T) {
	inWorld(t, only(job.EventFinished), func(w *world) {
		w.replica(w.store)
		w.answers("jobs", errGone)
		w.submit("a", nil)
		w.submit("b", func(j *job.Job) { j.Tenant = "other" })
		time.Sleep(time.Minute)
		w.hasTold("job.finished a")
		w.reset()
		time.Sleep(time.Minute)
		w.submit("c", nil)
		time.Sleep(time.Minute)
		w.hasTold("job.finished a")
	})
}

// TestStoreIsAway: jobs fire on time while events can't be stored. The events are sent later, or dropped and counted.
func TestStoreIsAway(t *testing.T) {
	inWorld(t, job.EventSettings{Types: []job.EventType{job.EventDeadLetter}, PerMinute: new(6000)}, func(w *world) {
		r := w.replica(w.store)
		w.answers("jobs", errGone)
		w.store.set(errAway, nil)
		const n = 5000
		for i := range n {
			w.submit(fmt.Sprint("j", i), nil)
		}
		time.Sleep(time.Minute)
		letters, err := w.store.DeadLetters(t.Context(), store.DeadLetterFilter{Tenant: tenant, Limit: 2 * n})
		if err != nil || len(letters) != n {
			t.Fatalf("%d were given up: %v", len(letters), err)
		}
		w.hasTold()
		w.store.set(nil, nil)
		time.Sleep(5 * time.Minute)
		told, dropped := len(w.told()), int(r.count(t, "carillon_events_dropped_total"))
		if told+dropped != n || dropped == 0 || told < 4000 {
			t.Errorf("%d were told and %d dropped, of %d", told, dropped, n)
		}
	})
}

// TestClosingTells: a replica that stops stores its events.
func TestClosingTells(t *testing.T) {
	inWorld(t, only(job.EventDeadLetter), func(w *world) {
		r := w.replica(w.store)
		w.answers("jobs", errGone)
		w.submit("a", nil)
		w.submit("b", nil)
		r.Wake(job.Lane{Tenant: tenant}, time.Now())
		time.Sleep(6 * time.Millisecond) // after they were settled
		r.stop()
		w.replica(w.store)
		time.Sleep(time.Minute)
		w.hasTold("deadletter.created a", "deadletter.created b")
	})
}
