package sqlite_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// A page of large jobs has few of them.
func TestExportLimitsItsPages(t *testing.T) {
	s, _ := open(t)
	const jobs = 3
	var puts []store.Put
	for i := range jobs {
		p := put(fmt.Sprint("k", i), 0)
		p.Job.Callback.Data = bytes.Repeat([]byte("1"), 9<<19)
		puts = append(puts, p)
	}
	for _, r := range s.Put(t.Context(), puts) {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	records, next, err := s.Export(t.Context(), "", 1000)
	if err != nil || len(records) >= jobs {
		t.Fatalf("%d of %d are on the first page, %v", len(records), jobs, err)
	}
	rest, _, err := s.Export(t.Context(), next, 1000)
	if err != nil || len(records)+len(rest) != jobs {
		t.Errorf("%d and %d of %d are on two pages, %v", len(records), len(rest), jobs, err)
	}
}

// An import that exceeds one transaction is complete and is counted.
func TestLargeImport(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector sees the same in other tests")
	}
	from, _ := open(t)
	for _, r := range from.Put(t.Context(), []store.Put{put("a", 5500), put("b", 5500)}) {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	var records []store.Document
	for after := store.Place(""); ; {
		page, next, err := from.Export(t.Context(), after, 5000)
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			break
		}
		records, after = append(records, page...), next
	}
	to, _ := open(t)
	for _, want := range []int{11_002, 0} {
		if n, err := to.Import(t.Context(), records); n != want || err != nil {
			t.Errorf("imported %d, %v; want %d", n, err, want)
		}
	}
}

// An invalid place is refused. So is an unreadable document, by its name.
func TestExportRefuses(t *testing.T) {
	s, beside := open(t)
	for _, place := range []store.Place{"nowhere", "job:", "job:a", "job:%/b", "occurrence:1"} {
		if _, _, err := s.Export(t.Context(), place, 10); err == nil {
			t.Errorf("%q is accepted", place)
		}
	}
	if r := s.Put(t.Context(), []store.Put{put("bad", 1)})[0]; r.Err != nil {
		t.Fatal(r.Err)
	}
	if _, err := beside.Exec("UPDATE jobs SET schedule = 'nonsense'"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Export(t.Context(), "", 10); err == nil || !strings.Contains(err.Error(), "bad") {
		t.Errorf("a job that can't be read is exported, or not named: %v", err)
	}
}

// The sole occurrence of a job that is imported again after its delivery still exists once.
func TestImportAfterDelivery(t *testing.T) {
	s, _ := open(t)
	p := put("k", 1)
	if r := s.Put(t.Context(), []store.Put{p})[0]; r.Err != nil {
		t.Fatal(r.Err)
	}
	records, next, err := s.Export(t.Context(), "", 10)
	if err != nil {
		t.Fatal(err)
	}
	more, _, err := s.Export(t.Context(), next, 10)
	if err != nil {
		t.Fatal(err)
	}
	claim, err := s.Claim(t.Context(), store.ClaimParams{Now: epoch, Lease: time.Minute, Quotas: []store.Quota{{Lane: job.DefaultLane, Limit: 10}}})
	if err != nil || len(claim.Occurrences) != 1 {
		t.Fatalf("claimed %d: %v", len(claim.Occurrences), err)
	}
	c := claim.Occurrences[0]
	if err := s.Settle(t.Context(), []store.Settlement{{ID: c.ID, Token: c.Token}}); err != nil {
		t.Fatal(err)
	}
	if n, err := s.Import(t.Context(), append(records, more...)); n != 1 || err != nil {
		t.Fatalf("imported %d: %v", n, err)
	}
	page, total, err := s.Occurrences(t.Context(), store.OccurrenceFilter{Name: p.Job.Name, Revision: p.Job.Revision, Limit: 10, Count: true})
	if len(page) != 1 || total != 1 || err != nil {
		t.Errorf("there are %d in a list and %d in all: %v", len(page), total, err)
	}
	cancelled, err := s.Cancel(t.Context(), []job.Name{p.Job.Name}, store.Asked{Now: epoch})
	if want := (store.CancelResult{Found: true, Cancelled: 1}); err != nil || cancelled[0] != want {
		t.Errorf("cancelled: %+v, %v; want %+v", cancelled, err, want)
	}
}
