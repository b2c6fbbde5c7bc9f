package storetest

import (
	"fmt"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

var partTests = []namedTest{
	{"parts of a sequence are kept", testParts},
	{"parts of a sequence become dead letters", testPartsBuried},
	{"an occurrence of no sequence has no part", testNoParts},
}

// newSequence returns a submission of a sequence at now: a job step at once, and another one, with metadata, a minute
// later.
func newSequence(n job.Name, now time.Time, subscribers string) store.Put {
	draft, err := job.Decode(fmt.Appendf(nil, `{"key":%q,"timezone":"Europe/Paris","subscribers":%s,
		"steps":[{"type":"job"},{"type":"wait_certain_period","delay_period":1,"delay_unit":"minute"},
			{"type":"job","metadata":{"n":[1,"<é>",1e2]}}],
		"callback":{"type":"http","data":{"url":"http://127.0.0.1/","payload":1}}}`, n.Key, subscribers))
	if err != nil {
		panic(err)
	}
	j, err := draft.Job(n.Tenant, job.Limits{Instants: 1000, Payload: 1 << 20})
	if err != nil {
		panic(err)
	}
	j.Revision = job.NewRevision(now)
	j.Version, j.CreatedAt, j.UpdatedAt, j.ExpiresAt = j.Revision, now, now, now
	return begin(j, now)
}

func testParts(f *fixture) {
	for i, subscribers := range []string{"null", "30", `["a","b \"<é>","🔔",{"id":7, "name":"<x>"}]`} {
		n := name(fmt.Sprint("k", i))
		p := newSequence(n, epoch, subscribers)
		f.put(p)
		got := f.job(n)
		expect(f, "schedule", string(got.Schedule.Encode()), string(p.Job.Schedule.Encode()))
		expectOptions(f, "options", got.Options, p.Job.Options)

		want := map[job.ID]job.Occurrence{}
		for _, o := range p.Occurrences {
			want[o.ID] = o
		}
		pending := f.pending(n)
		expect(f, "pending", len(pending), len(want))
		for i, o := range pending {
			expectPart(f, "listed part", o, want[o.ID])
			if i > 0 && pending[i-1].ID.Compare(o.ID) >= 0 {
				f.Errorf("%s is listed after %s", o.ID, pending[i-1].ID)
			}
		}
		fired := f.drain(epoch)
		expect(f, "fired", len(fired), len(want))
		for _, c := range fired {
			expectPart(f, "claimed part", c.Occurrence, want[c.ID])
			expectOptions(f, "claimed options", c.Options, p.Job.Options)
			expect(f, "payload", string(c.Payload(c.Options)), map[int]string{2: `{"n":[1,"<é>",1e2]}`}[c.Part.Step])
		}
	}
}

func expectPart(f *fixture, what string, got, want job.Occurrence) {
	f.Helper()
	expectSame(f, what, got.Part, want.Part)
	expect(f, what+"'s position", got.Position, want.Position)
	expect(f, what+"'s delivery id", got.DeliveryID(), want.DeliveryID())
}

func testPartsBuried(f *fixture) {
	p := newSequence(name("k"), epoch, `["a","b"]`)
	f.put(p)
	want := map[job.ID]job.Occurrence{}
	for _, o := range p.Occurrences {
		want[o.ID] = o
	}
	var ids []job.ID
	for _, c := range f.claim(epoch.Add(time.Minute), 10) {
		f.settle(settlement(c, store.Bury))
		ids = append(ids, c.ID)
	}
	f.cancel(name("k"))
	dead := f.deadLetters(store.DeadLetterFilter{})
	expect(f, "dead letters", len(dead), 4)
	for _, d := range dead {
		expectPart(f, "dead letter's part", d, want[d.ID])
	}
	expect(f, "redriven", f.redrive(ids...), 4)
	fired := f.drain(epoch)
	expect(f, "fired", len(fired), 4)
	for _, c := range fired {
		expectPart(f, "redriven part", c.Occurrence, want[c.ID])
		expectOptions(f, "redriven options", c.Options, p.Job.Options)
	}
}

func testNoParts(f *fixture) {
	f.put(newPut(name("k"), epoch, 0))
	f.trigger(trigger(name("k"), epoch, 1))
	for _, o := range f.pending(name("k")) {
		expect(f, "listed part", o.Part, nil)
	}
	for _, c := range f.claim(epoch, 10) {
		expect(f, "claimed part", c.Part, nil)
	}
}
