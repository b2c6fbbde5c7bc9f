//go:build services

package postgres_test

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// exported returns all records that a store exports.
func exported(t *testing.T, s store.Store, limit int) (all []store.Document) {
	t.Helper()
	for after := store.Place(""); ; {
		records, next, err := s.Export(t.Context(), after, limit)
		if err != nil {
			t.Fatal(err)
		}
		if len(records) == 0 {
			return all
		}
		all, after = append(all, records...), next
	}
}

// TestExportLimitsItsPages: a page of large jobs or large dead letters has few of them.
func TestExportLimitsItsPages(t *testing.T) {
	const jobs = 3
	s := newSchema(t, serverURL).open()
	for i := range jobs {
		p := newPut(fmt.Sprint("k", i), 0)
		p.Job.Callback.Data = bytes.Repeat([]byte("1"), 9<<19)
		mustPut(t, s, p)
	}
	claimed := mustClaim(t, s, epoch, jobs).Occurrences
	buries := acks(claimed)
	for i := range buries {
		buries[i].Outcome, buries[i].At, buries[i].Target = store.Bury, epoch, claimed[i].Target
	}
	if err := s.Settle(t.Context(), buries); err != nil {
		t.Fatal(err)
	}
	var sizes []int
	for after := store.Place(""); ; {
		records, next, err := s.Export(t.Context(), after, 1000)
		if err != nil {
			t.Fatal(err)
		}
		if len(records) == 0 {
			break
		}
		sizes, after = append(sizes, len(records)), next
	}
	if fmt.Sprint(sizes) != "[2 1 2 1]" {
		t.Errorf("the pages have %v records", sizes)
	}
}

// TestLargeImport: an import that exceeds one transaction is complete and is counted.
func TestLargeImport(t *testing.T) {
	after := make([]time.Duration, 9000)
	for i := range after {
		after[i] = time.Duration(i) * time.Second
	}
	puts := []store.Put{newPut("a", after...), newPut("b", after...)}
	puts[0].Job.Callback.Data = bytes.Repeat([]byte("1"), 9<<20)
	from := newSchema(t, serverURL).open()
	mustPut(t, from, puts...)
	records := exported(t, from, 5000)
	to := newSchema(t, serverURL).open()
	for _, want := range []int{18_002, 0} {
		if n, err := to.Import(t.Context(), records); n != want || err != nil {
			t.Errorf("imported %d, %v; want %d", n, err, want)
		}
	}
}

// TestImportMeetsPuts: with concurrent puts during an import, nothing fires under a revision that no job has.
func TestImportMeetsPuts(t *testing.T) {
	const jobs = 30
	from, sc := newSchema(t, serverURL).open(), newSchema(t, serverURL)
	to, other := sc.open(), sc.open()
	var puts, replacements []store.Put
	for i := range jobs {
		puts = append(puts, newPut(fmt.Sprintf("k%02d", i), 0, time.Second))
		replacements = append(replacements, newPut(fmt.Sprintf("k%02d", jobs-i-1), time.Hour))
	}
	mustPut(t, from, puts...)
	records := exported(t, from, 1000)
	var definitions, occurrences []store.Document
	for _, r := range records {
		if r.Job != nil {
			definitions = append(definitions, r)
		} else {
			occurrences = append(occurrences, r)
		}
	}
	if n, err := to.Import(t.Context(), definitions); n != jobs || err != nil {
		t.Fatalf("imported %d, %v", n, err)
	}
	var group sync.WaitGroup
	group.Go(func() {
		for _, p := range replacements {
			if r := other.Put(t.Context(), []store.Put{p})[0]; r.Err != nil {
				t.Error(r.Err)
			}
		}
	})
	for i := 0; i < len(occurrences); i += 4 {
		if _, err := to.Import(t.Context(), occurrences[i:i+4]); err != nil {
			t.Error(err)
		}
	}
	group.Wait()
	for _, c := range mustClaim(t, to, epoch.Add(24*time.Hour), 1000).Occurrences {
		if status, err := store.ReadJob(t.Context(), to, c.Name); err != nil || status.Revision != c.Revision {
			t.Errorf("an occurrence of %s fires that is of no job, %v", c.Name, err)
		}
	}
}

// TestImportKnowsBothForms: an occurrence that was buried during the export is the same one, pending or as a dead
// letter. An existing form stays as it is. If one import has both, the first form is inserted.
func TestImportKnowsBothForms(t *testing.T) {
	from := newSchema(t, serverURL).open()
	mustPut(t, from, newPut("k", 0))
	before := exported(t, from, 10)
	c := mustClaim(t, from, epoch, 1).Occurrences[0]
	if err := from.Settle(t.Context(), []store.Settlement{{
		ID: c.ID, Token: c.Token, Outcome: store.Bury, At: epoch, Error: "it failed", Target: c.Target, Name: c.Name, Revision: c.Revision,
	}}); err != nil {
		t.Fatal(err)
	}
	after := exported(t, from, 10)
	for what, c := range map[string]struct {
		imports       [][]store.Document
		pending, dead int
	}{
		"first pending":       {[][]store.Document{before, after}, 1, 0},
		"first a dead letter": {[][]store.Document{after, before}, 0, 1},
		"both at once":        {[][]store.Document{{before[0], before[1], after[1]}}, 1, 0},
	} {
		t.Run(what, func(t *testing.T) {
			to := newSchema(t, serverURL).open()
			sum := 0
			for _, records := range c.imports {
				n, err := to.Import(t.Context(), records)
				if err != nil {
					t.Fatal(err)
				}
				sum += n
			}
			_, pending, err := to.Occurrences(t.Context(), store.OccurrenceFilter{Name: name("k"), Revision: before[0].Job.Revision, Limit: 10, Count: true})
			if err != nil {
				t.Fatal(err)
			}
			dead, err := to.DeadLetters(t.Context(), store.DeadLetterFilter{Tenant: job.DefaultTenant, Limit: 10})
			if err != nil || sum != 2 || pending != c.pending || len(dead) != c.dead {
				t.Errorf("of a job and an occurrence %d were imported; %d are pending and %d buried, want %d and %d; %v",
					sum, pending, len(dead), c.pending, c.dead, err)
			}
		})
	}
}

// TestExportMeetsBurials: an occurrence that is buried before its page is exported comes later, as a dead letter.
func TestExportMeetsBurials(t *testing.T) {
	s := newSchema(t, serverURL).open()
	mustPut(t, s, newPut("a", 0), newPut("b", 0))
	_, place, err := s.Export(t.Context(), "", 2)
	if err != nil {
		t.Fatal(err)
	}
	first, place, err := s.Export(t.Context(), place, 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range mustClaim(t, s, epoch, 2).Occurrences {
		if err := s.Settle(t.Context(), []store.Settlement{{
			ID: c.ID, Token: c.Token, Outcome: store.Bury, At: epoch, Target: c.Target, Name: c.Name, Revision: c.Revision,
		}}); err != nil {
			t.Fatal(err)
		}
	}
	got := map[job.Name]bool{first[0].Occurrence.Name: true}
	for {
		var records []store.Document
		if records, place, err = s.Export(t.Context(), place, 1); err != nil {
			t.Fatal(err)
		}
		if len(records) == 0 {
			break
		}
		got[records[0].Occurrence.Name] = true
	}
	if len(got) != 2 {
		t.Errorf("exported are those of %v alone", got)
	}
}

// TestTransferRefuses: an invalid place is refused. So is an unreadable document, by its name.
func TestTransferRefuses(t *testing.T) {
	sc := newSchema(t, serverURL)
	s := sc.open()
	for _, place := range []store.Place{"nowhere", "job:", "job:a", "job:%/b", "job:a/%00", "job:a/%ff", "occurrence:1", "occurrence:1/" + store.Place(job.ID{}.String())} {
		if _, _, err := s.Export(t.Context(), place, 10); err == nil {
			t.Errorf("%q is accepted", place)
		}
	}
	mustPut(t, s, newPut("bad", 0))
	odd := exported(t, s, 10)
	odd[1].Occurrence.ID, odd[1].Occurrence.LastError = job.ID{1}, "a\x00b\xffc"
	if n, err := s.Import(t.Context(), odd); n != 1 || err != nil {
		t.Errorf("imported %d with an odd error, %v", n, err)
	}
	run(t, sc.admin, "UPDATE "+sc.table("jobs")+" SET schedule = 'nonsense'")
	if _, _, err := s.Export(t.Context(), "", 10); err == nil || !strings.Contains(err.Error(), "bad") {
		t.Errorf("a job that can't be read is exported, or not named: %v", err)
	}
}
