//go:build services

package redis_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// replacing returns a put that replaces the job of another put, and carries over all instants that both have.
func replacing(before, p store.Put) store.Put {
	ids := map[job.ID]job.ID{}
	for _, o := range before.Occurrences {
		ids[o.DeliveryID()] = o.ID
	}
	for _, c := range before.Carried {
		ids[c.As.DeliveryID()] = c.ID
	}
	fresh := p.Occurrences
	p.From, p.Occurrences = store.Replaced{Version: before.Job.Version}, nil
	p.Job.Callback.Data = fmt.Appendf(nil, `{"replaces":%q}`, before.Job.Version)
	for _, o := range fresh {
		if id, both := ids[o.DeliveryID()]; both {
			p.Carried = append(p.Carried, store.Carried{ID: id, As: o})
		} else {
			p.Occurrences = append(p.Occurrences, o)
		}
	}
	return p
}

// broken is a put that carries very many occurrences over and is interrupted at some step, as if the process had died.
type broken struct {
	*testing.T
	server      *server
	s           store.Store // the store of another process
	first, next store.Put
	held        []store.Claimed // of the first, claimed before
	flipped     bool
	fired       map[time.Time]int
}

const brokenBefore, brokenAfter, brokenHeld = 2300, 2500, 300

// breakings calls a function for a put that is interrupted at each of its steps.
func breakings(t *testing.T, then func(b *broken)) {
	t.Helper()
	server := newServer(t)
	first, next := put("k", brokenBefore), put("k", brokenAfter)
	next.Job.Options.Priority = job.PriorityHigh
	for i := range next.Occurrences {
		next.Occurrences[i].Priority = job.PriorityHigh
	}
	next = replacing(first, next)
	next.Now = epoch.Add(time.Second)
	for step, done := 1, false; !done; step++ {
		server.empty()
		b := &broken{T: t, server: server, s: open(t, server.url), first: first, next: next, fired: map[time.Time]int{}}
		mustPut(t, b.s, b.first, put("other", 3))
		b.held = claim(t, b.s, epoch.Add(time.Second), brokenHeld).Occurrences
		mine := slices.DeleteFunc(slices.Clone(b.held), func(c store.Claimed) bool { return c.Name.Key != "k" })
		if err := b.s.Settle(t.Context(), acks(slices.DeleteFunc(b.held, func(c store.Claimed) bool { return c.Name.Key == "k" }))); err != nil {
			t.Fatal(err)
		}
		b.held = mine

		relay := newRelay(t, server)
		dying := open(t, relay.url)
		relay.dieAfter(step)
		r := dying.Put(t.Context(), []store.Put{b.next})[0]
		done = !relay.died()
		there, err := store.ReadJob(t.Context(), b.s, b.first.Job.Name)
		if err != nil {
			t.Fatal(err)
		}
		b.flipped = there.Revision == b.next.Job.Revision
		if !b.flipped && r.Err == nil || !b.flipped && done {
			t.Fatalf("put answers %+v, but is not done", r)
		}
		if r.Err == nil && (r.Carried != brokenBefore || r.InFlight != len(b.held)) {
			t.Errorf("put answers %+v, want %d carried over and %d in flight", r, brokenBefore, len(b.held))
		}
		t.Logf("it breaks off after %d answers; flipped: %v", step, b.flipped)
		then(b)
	}
}

// present returns the put that has taken effect.
func (b *broken) present() store.Put {
	if b.flipped {
		return b.next
	}
	return b.first
}

// pending returns the number of the job's occurrences.
func (b *broken) pending() int {
	if b.flipped {
		return brokenAfter
	}
	return brokenBefore
}

// drain claims and delivers all due occurrences, and expects each to come with the present job's callback.
func (b *broken) drain(now time.Time, data string) {
	b.Helper()
	for more := true; more; {
		c, err := b.s.Claim(b.Context(), store.ClaimParams{Now: now, Lease: lease, Quotas: []store.Quota{
			{Lane: job.Lane{Tenant: job.DefaultTenant, Priority: job.PriorityHigh}, Limit: 300}, {Lane: job.DefaultLane, Limit: 300},
		}})
		if err != nil {
			b.Fatal(err)
		}
		for _, o := range c.Occurrences {
			if o.Name.Key != "k" {
				continue
			}
			b.fired[o.Timestamp]++
			if data != "" && string(o.Callback.Data) != data {
				b.Fatalf("%s comes with %s, want %s", o.Timestamp, o.Callback.Data, data)
			}
		}
		if err := b.s.Settle(b.Context(), acks(c.Occurrences)); err != nil {
			b.Fatal(err)
		}
		more = c.More()
	}
}

// firedOnce expects that n instants have fired, once each, and that no occurrences or marks are left.
func (b *broken) firedOnce(n int) {
	b.Helper()
	if len(b.fired) != n {
		b.Errorf("%d instants fired, want %d", len(b.fired), n)
	}
	for at, times := range b.fired {
		if times != 1 {
			b.Errorf("%s fired %d times", at, times)
		}
	}
	for _, key := range []string{"k", "other"} {
		if _, err := b.s.Cancel(b.Context(), []job.Name{{Tenant: job.DefaultTenant, Key: key}}, store.Asked{Now: epoch}); err != nil {
			b.Error(err)
		}
	}
	b.drain(epoch.Add(3*time.Hour), "") // so that orphans are dropped
	nothingLeft(b.T, b.server)
}

// TestBrokenCarry: an interrupted replacement that carries very many occurrences over leaves the old job or the new
// one, complete.
func TestBrokenCarry(t *testing.T) {
	breakings(t, func(b *broken) {
		page, total, err := b.s.Occurrences(t.Context(), store.OccurrenceFilter{
			Name: b.first.Job.Name, Revision: b.present().Job.Revision, Limit: 2 * brokenAfter, Count: true,
		})
		if err != nil || total != b.pending() || len(page) != total {
			t.Errorf("listed %d of %d, want %d, %v", len(page), total, b.pending(), err)
		}
		for _, o := range page {
			if o.Revision != b.present().Job.Revision {
				t.Fatalf("%s is listed as of %s", o.ID, o.Revision)
			}
		}
		b.exported()
		for i, t := range acks(b.held) { // the outcomes of held occurrences count
			t.Outcome = []store.Outcome{store.Ack, store.Retry, store.Bury, store.Release, store.Miss}[i%5]
			t.DueAt, t.At, t.Target = epoch.Add(time.Minute), epoch, b.held[i].Target
			if err := b.s.Settle(b.Context(), []store.Settlement{t}); err != nil {
				b.Fatal(err)
			}
		}
		status, err := store.ReadJob(t.Context(), b.s, b.first.Job.Name)
		if want := (len(b.held)) / 5; err != nil || status.Missed != want {
			t.Errorf("missed are %d, want %d, %v", status.Missed, want, err)
		}
		dead, err := b.s.DeadLetters(t.Context(), store.DeadLetterFilter{Tenant: job.DefaultTenant, Limit: 1000})
		if err != nil || len(dead) != (len(b.held)+2)/5 {
			t.Errorf("%d are dead, %v", len(dead), err)
		}
		b.drain(epoch.Add(30*time.Minute), string(b.present().Job.Callback.Data))
		settled := 0
		for i := range b.held {
			if i%5 != 1 && i%5 != 3 {
				settled++
			}
		}
		for _, d := range dead {
			if n, err := b.s.SettleDead(t.Context(), store.DeadSettlement{Tenant: job.DefaultTenant, IDs: []job.ID{d.ID}, Outcome: store.Discard}); n != 1 || err != nil {
				t.Fatalf("deleted %d, %v", n, err)
			}
		}
		if status, err := store.ReadJob(t.Context(), b.s, b.first.Job.Name); err != nil || status.Live() {
			t.Errorf("at the end the job is live: %v, %v", status.Live(), err)
		}
		b.firedOnce(b.pending() - settled)
	})
}

// exported expects that an export has each occurrence of the job once.
func (b *broken) exported() {
	b.Helper()
	ids := map[job.ID]int{}
	for after := store.Place(""); ; {
		records, next, err := b.s.Export(b.Context(), after, 700)
		if err != nil {
			b.Fatal(err)
		}
		for _, r := range records {
			if o := r.Occurrence; o != nil && o.Name.Key == "k" {
				ids[o.ID]++
				if o.Revision != b.present().Job.Revision || ids[o.ID] > 1 {
					b.Fatalf("%s is exported %d times, as of %s", o.ID, ids[o.ID], o.Revision)
				}
			}
		}
		if after = next; len(records) == 0 {
			break
		}
	}
	if len(ids) != b.pending() {
		b.Errorf("exported %d, want %d", len(ids), b.pending())
	}
}

// TestBrokenCarryCancelled: a cancellation after the interruption finds all occurrences.
func TestBrokenCarryCancelled(t *testing.T) {
	breakings(t, func(b *broken) {
		results, err := b.s.Cancel(t.Context(), []job.Name{b.first.Job.Name}, store.Asked{Now: epoch.Add(time.Second)})
		want := store.CancelResult{Found: true, Cancelled: b.pending() - len(b.held), InFlight: len(b.held)}
		if err != nil || results[0] != want {
			t.Errorf("cancel answers %+v, %v, want %+v", results, err, want)
		}
		b.drain(epoch.Add(30*time.Minute), "")
		b.firedOnce(0)
	})
}

// TestBrokenCarryAgain: the next replacement carries all occurrences over, marked or not.
func TestBrokenCarryAgain(t *testing.T) {
	for _, many := range []bool{true, false} {
		thirds := map[bool]store.Put{} // by what they replace
		breakings(t, func(b *broken) {
			third, made := thirds[b.flipped]
			if !made {
				third = replacing(b.present(), put("k", brokenAfter))
				third.Now = epoch.Add(time.Second)
				thirds[b.flipped] = third
			}
			kept := brokenAfter
			if !many { // so few that none are marked
				third.Carried, third.Occurrences = third.Carried[brokenBefore/2:brokenBefore/2+900], nil
				kept = 900
			}
			carried := len(third.Carried)
			r := b.s.Put(t.Context(), []store.Put{third})[0]
			if r.Err != nil || r.Carried != carried || r.InFlight != len(b.held) {
				t.Fatalf("put answers %+v, want %d carried over and %d in flight", r, carried, len(b.held))
			}
			_, total, err := b.s.Occurrences(t.Context(), store.OccurrenceFilter{Name: third.Job.Name, Revision: third.Job.Revision, Limit: 1, Count: true})
			if err != nil || total != kept {
				t.Errorf("%d are pending, want %d, %v", total, kept, err)
			}
			if many {
				b.flipped, b.next = true, third
				b.exported()
			}
			b.drain(epoch.Add(30*time.Minute), string(third.Job.Callback.Data))
			b.firedOnce(kept)
		})
	}
}

// TestCarryRaced: of two replacements of one job that mark occurrences at the same time, exactly one takes place,
// completely.
func TestCarryRaced(t *testing.T) {
	const n = 2500
	server := newServer(t)
	other := open(t, server.url)
	relay := newRelay(t, server)
	s := open(t, relay.url)
	first := put("k", n)
	mustPut(t, s, first)
	warm := put("warm", n)
	mustPut(t, s, warm)
	mustPut(t, s, replacing(warm, put("warm", n))) // so that the server knows the scripts
	one, two := replacing(first, put("k", n)), replacing(first, put("k", n))
	var results []store.PutResult
	relay.after(func() { results = other.Put(t.Context(), []store.Put{two}) })
	results = append(s.Put(t.Context(), []store.Put{one}), results...)
	won := 0
	for i, r := range results {
		if r.Err == nil {
			won++
			if want := []store.Put{one, two}[i].Job.Revision; r.Carried != n || jobRevision(t, s, first.Job.Name) != want {
				t.Errorf("put %d answers %+v, but the job is another", i, r)
			}
		}
	}
	if won != 1 || len(results) != 2 {
		t.Errorf("%d of the puts took place: %+v", won, results)
	}
	fired := map[time.Time]int{}
	fire(t, s, epoch.Add(time.Minute), fired)
	if len(fired) != n {
		t.Errorf("%d instants fired, want %d", len(fired), n)
	}
}

func jobRevision(t *testing.T, s store.Store, name job.Name) job.Revision {
	t.Helper()
	status, err := store.ReadJob(t.Context(), s, name)
	if err != nil {
		t.Fatal(err)
	}
	return status.Revision
}

// TestCountedAtOnce: the counts that a cancellation or replacement of very many occurrences returns are those of the
// moment at which the job is deleted, whatever happens until all occurrences are deleted.
func TestCountedAtOnce(t *testing.T) {
	const n = 2500
	server, p := newServer(t), put("k", n)
	for _, c := range []struct {
		what string
		held int
		// meanwhile runs while the occurrences are deleted in parts.
		meanwhile func(s store.Store, held []store.Claimed)
	}{
		{"the held ones are delivered", n, func(s store.Store, held []store.Claimed) {
			if err := s.Settle(t.Context(), acks(held)); err != nil {
				t.Error(err)
			}
		}},
		{"the held ones are given back", n, func(s store.Store, held []store.Claimed) {
			settlements := acks(held)
			for i := range settlements {
				settlements[i].Outcome, settlements[i].DueAt = store.Release, epoch
			}
			if err := s.Settle(t.Context(), settlements); err != nil {
				t.Error(err)
			}
		}},
		{"the others are claimed, and dropped as too old", 0, func(s store.Store, _ []store.Claimed) {
			if _, err := s.Claim(t.Context(), claimParams(epoch.Add(2*time.Hour), 1000)); err != nil {
				t.Error(err)
			}
		}},
	} {
		for _, replaced := range []bool{false, true} {
			server.empty()
			other := open(t, server.url)
			relay := newRelay(t, server)
			s := open(t, relay.url)
			mustPut(t, s, p)
			var held []store.Claimed
			for len(held) < c.held {
				held = append(held, claim(t, s, epoch.Add(time.Minute), n).Occurrences...)
			}
			done := false
			var once func()
			once = func() {
				if !done && jobGone(server, string(p.Job.Revision)) {
					done = true
					c.meanwhile(other, held)
				} else if !done { // the server did not know the script, or returned its time
					relay.after(once)
				}
			}
			relay.after(once)
			now := epoch.Add(time.Minute)
			var cancelled, inFlight int
			if replaced {
				next := put("k", 1)
				next.Now = now
				inFlight = mustPut(t, s, next)[0].InFlight
				cancelled = n - inFlight // a replacement does not return the number
			} else {
				results, err := s.Cancel(t.Context(), []job.Name{p.Job.Name}, store.Asked{Now: now})
				if err != nil {
					t.Fatal(err)
				}
				cancelled, inFlight = results[0].Cancelled, results[0].InFlight
			}
			if cancelled != n-c.held || inFlight != c.held || !done {
				t.Errorf("%s: %d are cancelled and %d in flight, want %d and %d (replaced: %v)",
					c.what, cancelled, inFlight, n-c.held, c.held, replaced)
			}
		}
	}
}

// jobGone reports whether the job k does not exist, or has another revision.
func jobGone(server *server, revision string) bool {
	state, _ := server.must("hget", "carillon:{0}:jobs", job.DefaultTenant+"\x00k").(string)
	return len(state) < len(revision) || state[:len(revision)] != revision
}
