package sqlite_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/carillon-scheduler/carillon/store"
)

// Jobs that are large come few at a time.
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

// More than fits one transaction is imported as if it did, and counted.
func TestLargeImport(t *testing.T) {
	from, _ := open(t)
	for _, r := range from.Put(t.Context(), []store.Put{put("a", 9000), put("b", 9000)}) {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	var records []store.Record
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
	for _, want := range []int{18_002, 0} {
		if n, err := to.Import(t.Context(), records); n != want || err != nil {
			t.Errorf("imported %d, %v; want %d", n, err, want)
		}
	}
}

// A place that is none is refused, and so is what can't be read, by its name.
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
