//go:build services

package redis_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/replicas"
)

// exported returns all records that a store exports, in pages.
func exported(t *testing.T, s store.Store, limit int, between func()) (all []store.Document) {
	t.Helper()
	for after := store.Place(""); ; between() {
		documents, next, err := s.Export(t.Context(), after, limit)
		if err != nil {
			t.Fatal(err)
		}
		if len(documents) == 0 {
			return all
		}
		all, after = append(all, documents...), next
	}
}

func nothing() {}

// TestTransferBounded: a job with very many occurrences is exported and imported by many short scripts, and its
// cancellation leaves no entry in any index.
func TestTransferBounded(t *testing.T) {
	const n, most = 5000, 1000
	servers := []*server{newServer(t), newServer(t)}
	from, to := open(t, servers[0].url), open(t, servers[1].url)
	p := put("k", n)
	mustPut(t, from, p)
	held := claim(t, from, epoch.Add(time.Hour), 300)
	buries := acks(held.Occurrences)
	for i := range buries {
		buries[i].Outcome, buries[i].At, buries[i].Target, buries[i].Error = store.Bury, epoch, held.Occurrences[i].Target, "it failed"
	}
	if err := from.Settle(t.Context(), buries[:200]); err != nil { // the others stay claimed
		t.Fatal(err)
	}
	if redriven, err := from.SettleDead(t.Context(), store.DeadSettlement{Tenant: job.DefaultTenant, IDs: []job.ID{buries[0].ID, buries[1].ID}, Outcome: store.Redrive, Now: epoch}); err != nil || redriven != 2 {
		t.Fatalf("redriven %d, %v", redriven, err)
	}

	before := servers[0].scripts()
	documents := exported(t, from, 10*n, nothing)
	if ran := servers[0].scripts() - before; len(documents) != n+1 || ran < n/most {
		t.Errorf("%d documents were exported by %d scripts", len(documents), ran)
	}
	before = servers[1].scripts()
	if inserted, err := to.Import(t.Context(), documents); err != nil || inserted != len(documents) {
		t.Errorf("imported %d of %d, %v", inserted, len(documents), err)
	}
	if ran := servers[1].scripts() - before; ran < n/most {
		t.Errorf("the import took %d scripts", ran)
	}
	for _, key := range servers[0].must("keys", "carillon:{0}:*").([]any) {
		for _, ask := range []string{"hlen", "zcard"} {
			has, err := servers[0].direct.Do(t.Context(), ask, key).Result()
			if err != nil {
				continue // it is a record of the other kind
			}
			if got := servers[1].must(ask, key); got != has {
				t.Errorf("%s has %v entries, want %v", key, got, has)
			}
		}
	}
	results, err := to.Cancel(t.Context(), []job.Name{p.Job.Name}, store.Asked{Now: epoch.Add(time.Hour)})
	if want := (store.CancelResult{Found: true, Cancelled: n - 298, InFlight: 100}); err != nil || results[0] != want {
		t.Errorf("cancel answers %+v, %v; want %+v", results, err, want)
	}
	var dead []job.ID
	for _, b := range buries[2:200] {
		dead = append(dead, b.ID)
	}
	if deleted, err := to.SettleDead(t.Context(), store.DeadSettlement{Tenant: job.DefaultTenant, IDs: dead, Outcome: store.Discard}); err != nil || deleted != len(dead) {
		t.Errorf("deleted %d dead letters, %v", deleted, err)
	}
	nothingLeft(t, servers[1])
}

// TestExportLimitsItsPages: a page of large records has few of them.
func TestExportLimitsItsPages(t *testing.T) {
	const jobs = 4
	s := open(t, newServer(t).url)
	for i := range jobs {
		p := put(fmt.Sprint("k", i), 1)
		p.Job.Callback.Data = bytes.Repeat([]byte("1"), 3<<19)
		mustPut(t, s, p)
	}
	c := claim(t, s, epoch, jobs)
	buries := acks(c.Occurrences)
	for i := range buries {
		buries[i].Outcome, buries[i].At, buries[i].Target = store.Bury, epoch, c.Occurrences[i].Target
	}
	if err := s.Settle(t.Context(), buries); err != nil {
		t.Fatal(err)
	}
	got, pages := 0, 0
	for after := store.Place(""); ; pages++ {
		documents, next, err := s.Export(t.Context(), after, 1000)
		if err != nil {
			t.Fatal(err)
		}
		if len(documents) == 0 {
			break
		}
		if len(documents) > 2 {
			t.Errorf("%d are on one page", len(documents))
		}
		got, after = got+len(documents), next
	}
	if got != 2*jobs || pages != jobs {
		t.Errorf("%d of %d are on %d pages", got, 2*jobs, pages)
	}
}

// TestExportLeavesOut: an export leaves out the remains of a crash, even if they fill whole pages.
func TestExportLeavesOut(t *testing.T) {
	const n = 7
	server := newServer(t)
	s := open(t, server.url)
	mustPut(t, s, put("a", n), put("b", n), put("c", 1))
	for _, key := range []string{"a", "b"} {
		field := job.DefaultTenant + "\x00" + key
		if key == "a" {
			server.must("hdel", "carillon:{0}:jobs", field) // as before the flip
			server.must("zrem", "carillon:{0}:names", field)
			continue
		}
		state, _ := server.must("hget", "carillon:{0}:jobs", field).(string)
		fields := strings.Split(state, " ")
		fields[2] = fmt.Sprint(epoch.UnixMilli()) // the cursor, as before an expansion
		server.must("hset", "carillon:{0}:jobs", field, strings.Join(fields, " "))
	}
	for _, limit := range []int{1, 3, 1000} {
		got := map[string]int{}
		for _, r := range exported(t, s, limit, nothing) {
			if r.Occurrence != nil {
				got[r.Occurrence.Name.Key]++
			}
		}
		if got["a"] != 0 || got["b"] != 1 || got["c"] != 1 {
			t.Errorf("in pages of %d, the exported occurrences are %v", limit, got)
		}
	}
}

// TestExportMeetsBuryAndRedrive: an occurrence that becomes a dead letter during an export, or stops being one, is
// in the export.
func TestExportMeetsBuryAndRedrive(t *testing.T) {
	const n = 9
	s := open(t, newServer(t).url)
	var puts []store.Put
	for i := range n {
		puts = append(puts, put(fmt.Sprint("k", i), 1))
	}
	mustPut(t, s, puts...)
	c := claim(t, s, epoch, n)
	buries := acks(c.Occurrences)
	var ids []job.ID
	for i := range buries {
		buries[i].Outcome, buries[i].At, buries[i].Target = store.Bury, epoch, c.Occurrences[i].Target
		ids = append(ids, buries[i].ID)
	}
	page := 0
	missing := map[job.ID]bool{}
	for _, id := range ids {
		missing[id] = true
	}
	documents := exported(t, s, 2, func() {
		if page++; page%2 == 1 {
			if err := s.Settle(t.Context(), buries); err != nil {
				t.Fatal(err)
			}
			return
		}
		if _, err := s.SettleDead(t.Context(), store.DeadSettlement{Tenant: job.DefaultTenant, IDs: ids, Outcome: store.Redrive, Now: epoch}); err != nil {
			t.Fatal(err)
		}
		again := claim(t, s, epoch.Add(time.Duration(page)*time.Hour), n)
		if len(again.Occurrences) != n {
			t.Fatalf("claimed %d", len(again.Occurrences))
		}
		buries = acks(again.Occurrences)
		for i := range buries {
			buries[i].Outcome, buries[i].At, buries[i].Target = store.Bury, epoch, again.Occurrences[i].Target
		}
	})
	for _, r := range documents {
		if r.Occurrence != nil {
			delete(missing, r.Occurrence.ID)
		}
	}
	if len(missing) > 0 || page < 8 {
		t.Errorf("%d of %d are not exported in %d pages", len(missing), n, page)
	}
}

// TestTransferRefuses: an invalid place is refused. So is a record that can't be read, or would not be read back, by
// its name.
func TestTransferRefuses(t *testing.T) {
	server := newServer(t)
	s := open(t, server.url)
	for _, place := range []store.Place{"nowhere", "0", "0:0", "1:0:", "-1:0:", "0:4:", "0:-1:", "x:0:", "0:x:", "0:0:%"} {
		if _, _, err := s.Export(t.Context(), place, 10); err == nil {
			t.Errorf("%q is accepted", place)
		}
	}
	for what, spoil := range map[string]func(r []store.Document){
		"revision":      func(r []store.Document) { r[0].Job.Revision = "a b" },
		"version":       func(r []store.Document) { r[0].Job.Version = "a\tb" },
		"token":         func(r []store.Document) { r[1].Occurrence.Token = "a b" },
		"callback type": func(r []store.Document) { r[0].Job.Callback.Type = "a\x00b" },
	} {
		p := put("odd", 1)
		documents := []store.Document{{Job: &p.Job}, {Occurrence: &p.Occurrences[0]}}
		spoil(documents)
		if _, err := s.Import(t.Context(), documents); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("an odd %s: %v", what, err)
		}
	}
	if got := exported(t, s, 10, nothing); len(got) != 0 {
		t.Errorf("%d documents were imported", len(got))
	}
	mustPut(t, s, put("bad", 1))
	server.must("hset", "carillon:{0}:schedules", job.DefaultTenant+"\x00bad", "nonsense")
	if _, _, err := s.Export(t.Context(), "", 10); err == nil || !strings.Contains(err.Error(), "bad") {
		t.Errorf("a job that can't be read is exported, or not named: %v", err)
	}
}

// TestImportClaimedWithoutAttempt: an edited file may have a claim without a counted attempt. Its release does no
// damage.
func TestImportClaimedWithoutAttempt(t *testing.T) {
	s := open(t, newServer(t).url)
	p := put("k", 2)
	documents := []store.Document{{Job: &p.Job}, {Occurrence: &p.Occurrences[0]}, {Occurrence: &p.Occurrences[1]}}
	held := &p.Occurrences[0]
	held.Token, held.DueAt = job.NewToken(), epoch.Add(lease)
	if n, err := s.Import(t.Context(), documents); err != nil || n != len(documents) {
		t.Fatalf("imported %d, %v", n, err)
	}
	released := store.Settlement{
		ID: held.ID, Token: held.Token, Outcome: store.Release, DueAt: epoch, Name: held.Name, Revision: held.Revision,
	}
	if err := s.Settle(t.Context(), []store.Settlement{released}); err != nil {
		t.Fatal(err)
	}
	c := claim(t, s, epoch.Add(time.Second), 10)
	if len(c.Occurrences) != 2 || c.Occurrences[0].Attempt != 1 || c.Occurrences[1].Attempt != 1 {
		t.Errorf("claimed %+v", c.Occurrences)
	}
}

// TestTransferFull: a store on a server whose memory is full can be exported, and its replicas send heartbeats; an
// import into it fails.
func TestTransferFull(t *testing.T) {
	server := newServer(t)
	s := open(t, server.url)
	mustPut(t, s, put("k", 3))
	server.must("config", "set", "maxmemory", "1")
	if err := replicas.Beat(t.Context(), s, "a", nil, epoch, epoch.Add(time.Minute)); err != nil {
		t.Errorf("beat answers %v", err)
	}
	if n, err := replicas.Count(t.Context(), s, epoch); err != nil || n != 1 {
		t.Errorf("there are %d replicas, %v", n, err)
	}
	documents := exported(t, s, 10, nothing)
	if len(documents) != 4 {
		t.Errorf("exported %d", len(documents))
	}
	if _, err := s.Import(t.Context(), documents); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("import answers %v", err)
	}
}
