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
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Each step's payload and part reach the sender, for each subscriber, and also after a redrive, when only a part of the
// job is kept.
func TestSequence(t *testing.T) {
	wait, unit := time.Hour, "hour"
	if testing.Short() {
		wait, unit = time.Minute, "minute"
	}
	bubble(t, func(b *bench) {
		draft, err := job.Decode([]byte(`{"key":"s","steps":[
			{"type":"job","metadata":{"mail":"welcome"}},
			{"type":"wait_certain_period","delay_period":1,"delay_unit":"` + unit + `"},
			{"type":"job"},
			{"type":"job","metadata":null}
		],"subscribers":["ann","bob"],"deadline":"10m","callback":{"type":"test","data":{"payload":1}}}`))
		if err != nil {
			b.Fatal(err)
		}
		sequence, err := draft.Job(job.DefaultTenant, job.Limits{Instants: 100, Payload: 1000})
		if err != nil {
			b.Fatal(err)
		}
		b.receiver.answers(func(_ context.Context, d callbacks.Delivery) error {
			if d.Part.Subscriber == "bob" && d.Part.Step != 2 {
				return callbacks.Permanent(errors.New("no"))
			}
			return nil
		})
		b.submit("s", func(j *job.Job) {
			j.Schedule, j.Options, j.Callback = sequence.Schedule, sequence.Options, sequence.Callback
		})
		d, _ := b.replica(nil) // it finds the job when it starts
		time.Sleep(2 * wait)
		once, twice := wait.String(), (2 * wait).String()
		want := []string{once + ` 2 ann ""`, once + ` 2 bob ""`, once + ` 3 ann "null"`, once + ` 3 bob "null"`,
			`0s 0 ann "{\"mail\":\"welcome\"}"`, `0s 0 bob "{\"mail\":\"welcome\"}"`}
		ids := b.expectParts(want)

		kept := map[int]string{}
		var dead []job.ID
		for _, o := range b.dead() {
			options := o.Own.Options
			kept[o.Part.Step] = fmt.Sprintf("%s %s %d", options.Deadline, o.Payload(options), len(options.Payloads))
			dead = append(dead, o.ID)
		}
		if len(kept) != 2 || kept[0] != `0s {"mail":"welcome"} 1` || kept[3] != "0s null 1" {
			b.Errorf("the dead letters keep %v", kept)
		}
		b.receiver.answers(nil)
		if n, err := b.store.SettleDead(b.Context(), store.DeadSettlement{Tenant: job.DefaultTenant, IDs: dead, Outcome: store.Redrive, Now: time.Now()}); n != 2 || err != nil {
			b.Fatalf("redrove %d: %v", n, err)
		}
		d.Wake(job.DefaultLane, time.Now())
		time.Sleep(time.Minute)
		again := b.expectParts(append(want, twice+` 3 bob "null"`, twice+` 0 bob "{\"mail\":\"welcome\"}"`))
		if len(ids) != 6 || len(again) != 6 {
			b.Errorf("%d deliveries before the redrive, %d after it; want 6 each time", len(ids), len(again))
		}
	})
}

// expectParts compares the deliveries, in any order, and returns their ids.
func (b *bench) expectParts(want []string) map[job.ID]bool {
	b.Helper()
	ids := make(map[job.ID]bool)
	var got []string
	for _, d := range b.receiver.of("s") {
		ids[d.ID] = true
		got = append(got, fmt.Sprintf("%s %d %s %q", d.SentAt.Sub(b.start).Round(time.Second), d.Part.Step, d.Part.Subscriber, d.Payload))
	}
	slices.Sort(got)
	want = slices.Sorted(slices.Values(want))
	if !slices.Equal(got, want) {
		b.Errorf("sent:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	return ids
}

// A redriven occurrence keeps neither its job's recurrence nor its deadline.
func TestRedriveKeepsNoRecurrence(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector sees the same in other tests")
	}
	bubble(t, func(b *bench) {
		b.receiver.answers(func(_ context.Context, d callbacks.Delivery) error {
			if d.Timestamp.Sub(b.start) == time.Hour {
				return callbacks.Permanent(errors.New("no"))
			}
			return nil
		})
		d, _ := b.replica(nil)
		b.submit("k", func(j *job.Job) {
			crontab("@every 1h")(j)
			j.Options.CatchUp, j.Options.Deadline = job.CatchUpNone, job.Duration(time.Minute)
			j.Options.Retry.MaxAttempts = 7
		})
		time.Sleep(90 * time.Minute)
		dead := b.dead()
		if len(dead) != 1 {
			b.Fatalf("%d dead letters", len(dead))
		}
		o := dead[0].Own.Options
		if o.Recurrence != nil || o.CatchUp != "" || o.Deadline != 0 || o.Retry.MaxAttempts != 7 {
			b.Errorf("the dead letter keeps %+v", o)
		}
		b.receiver.answers(nil)
		if n, err := b.store.SettleDead(b.Context(), store.DeadSettlement{Tenant: job.DefaultTenant, IDs: []job.ID{dead[0].ID}, Outcome: store.Redrive, Now: time.Now()}); n != 1 || err != nil {
			b.Fatalf("redrove %d: %v", n, err)
		}
		d.Wake(job.DefaultLane, time.Now())
		time.Sleep(time.Minute)
		b.expectSent("1h0m0s k #1", "1h30m0s k #1")
	})
}
