//go:build services

package redis_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// TestPutTogether: each of the jobs that one script puts has its own condition and result, and the replaced occurrences
// are deleted, even if there are more than one script deletes.
func TestPutTogether(t *testing.T) {
	const jobs, many = 250, 700
	server := newServer(t)
	s := open(t, server.url)
	count := func(i int) int {
		if i%100 < 4 { // so that some scripts replace more than they delete
			return many
		}
		return 1
	}
	var olds []store.Put
	for i := range jobs {
		if i%5 != 0 || i%100 < 4 { // the others are new
			olds = append(olds, put(fmt.Sprint(i), count(i)))
		}
	}
	mustPut(t, s, olds...)
	old := map[job.Name]job.Revision{}
	for _, p := range olds {
		old[p.Job.Name] = p.Job.Revision
	}
	if c := claim(t, s, epoch, 1000); len(c.Occurrences) != len(olds) { // the first of each
		t.Fatalf("claimed %d of %d jobs' occurrences", len(c.Occurrences), len(olds))
	}

	var puts []store.Put
	for i := range jobs {
		p := put(fmt.Sprint(i), 1)
		p.If.Absent = i%7 == 6
		p.If.Present = i%7 == 5
		if i%7 == 4 {
			p.If.Versions = []job.Revision{"none", old[p.Job.Name]}
		}
		puts = append(puts, p)
	}
	before := server.scripts()
	results := s.Put(t.Context(), puts)
	if ran := server.scripts() - before; ran > jobs/10 {
		t.Errorf("%d jobs were put by %d scripts", jobs, ran)
	}
	valid := map[job.Revision]bool{}
	for i, r := range results {
		p := &puts[i]
		was, held := old[p.Job.Name], 0
		if was != "" {
			held = 1
		}
		refused := p.If.Absent && was != "" || (p.If.Present || len(p.If.Versions) > 0) && was == ""
		switch {
		case refused:
			if !errors.Is(r.Err, store.ErrPrecondition) {
				t.Errorf("job %d: %v", i, r.Err)
			}
			valid[was] = true
			continue
		case r.Err != nil || r.Replaced != was || r.InFlight != held:
			t.Errorf("job %d replaced %q with %d in flight, %v; want %q with %d", i, r.Replaced, r.InFlight, r.Err, was, held)
		}
		valid[p.Job.Revision] = true
	}
	members, err := server.direct.ZRange(t.Context(), "carillon:{0}:members", 0, -1).Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, member := range members {
		if revision := job.Revision(member[:len(member)-len(":")-26]); !valid[revision] {
			t.Fatalf("%s was replaced, but has occurrences", revision)
		}
	}
	delete(valid, "") // of refused jobs that did not exist
	fired := map[job.Revision]bool{}
	for claimed := claim(t, s, epoch.Add(lease), 1000); len(claimed.Occurrences) > 0; claimed = claim(t, s, epoch.Add(lease), 1000) {
		for _, c := range claimed.Occurrences {
			fired[c.Revision] = true
			if !valid[c.Revision] {
				t.Fatalf("%s fires after it was replaced", c.Name)
			}
		}
	}
	if len(fired) != len(valid) {
		t.Errorf("%d jobs fire, want %d", len(fired), len(valid))
	}
}

// TestAckTogether: of deliveries that are settled together, exactly those whose claims still hold are deleted, in any
// mixture of claims.
func TestAckTogether(t *testing.T) {
	const n = 9
	server := newServer(t)
	s := open(t, server.url)
	mustPut(t, s, put("a", n), put("b", n))
	name := job.Name{Tenant: job.DefaultTenant, Key: "a"}
	triggered := job.Occurrence{ID: job.OccurrenceID(name, "", epoch, 1, ""), Name: name, Position: 1, Timestamp: epoch, DueAt: epoch,
		Own: &job.Target{Callback: job.Callback{Type: "http", Data: []byte("{}")}}}
	if err := s.Trigger(t.Context(), triggered); err != nil {
		t.Fatal(err)
	}

	now := epoch.Add(time.Second)
	first, second := claim(t, s, now, n), claim(t, s, now, 2*n)
	if len(first.Occurrences) != n || len(second.Occurrences) != n+1 {
		t.Fatalf("claimed %d and %d", len(first.Occurrences), len(second.Occurrences))
	}
	var settlements []store.Settlement
	kept := map[job.ID]bool{}
	for i, ack := range append(acks(first.Occurrences[:n-1]), acks(second.Occurrences)...) {
		switch i % 4 {
		case 1:
			ack.Token, kept[ack.ID] = first.Occurrences[n-1].Token+"x", true // the token of no claim
		case 2:
			ack.Token, kept[ack.ID] = "", true
		}
		settlements = append(settlements, ack)
	}
	if err := s.Settle(t.Context(), settlements); err != nil {
		t.Fatal(err)
	}
	// No claim has an occurrence that was given back.
	back := acks(first.Occurrences[n-1:])
	back[0].Outcome, back[0].DueAt, kept[back[0].ID] = store.Retry, now, true
	if err := s.Settle(t.Context(), back); err != nil {
		t.Fatal(err)
	}
	back[0].Outcome, back[0].Token = store.Ack, ""
	if err := s.Settle(t.Context(), back); err != nil {
		t.Fatal(err)
	}
	again := claim(t, s, now.Add(lease), 3*n)
	for _, c := range again.Occurrences {
		if !kept[c.ID] || c.Attempt != 2 || c.Reclaimed == (c.ID == back[0].ID) {
			t.Errorf("%s of %s is there, attempt %d", c.ID, c.Name, c.Attempt)
		}
		delete(kept, c.ID)
	}
	if len(kept) > 0 {
		t.Errorf("%d were deleted though their claims did not hold", len(kept))
	}
	if err := s.Settle(t.Context(), acks(again.Occurrences)); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"occurrences", "pending:default", "lanes", "members", "attempts", "own"} {
		if server.must("exists", "carillon:{0}:"+key) != int64(0) {
			t.Errorf("something is left in %s", key)
		}
	}
}
