//go:build services

package postgres_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// TestLargeCallbacks: many jobs with large callbacks are put and buried in bounded parts, since the server accepts at
// most 1 GB at once.
func TestLargeCallbacks(t *testing.T) {
	const jobs, size, most = 20, 1 << 20, 10 << 20
	sc := newSchema(t, serverURL)
	s := sc.open()
	var puts []store.Put
	for i := range jobs {
		p := newPut(fmt.Sprint("k", i), 0)
		p.Job.Callback.Data = bytes.Repeat([]byte("1"), size)
		puts = append(puts, p)
	}
	mustPut(t, s, puts...)
	claimed := mustClaim(t, s, epoch, jobs).Occurrences
	settlements := acks(claimed)
	for i := range settlements {
		settlements[i].Outcome, settlements[i].At, settlements[i].Target = store.Bury, epoch, claimed[i].Target
	}
	for range 2 { // the second changes nothing
		if err := s.Settle(t.Context(), settlements); err != nil {
			t.Fatal(err)
		}
	}
	for _, table := range []string{"jobs", "occurrences"} {
		written := query[int](sc, "SELECT sum(length(callback_data)) FROM "+sc.table(table))
		largest := query[int](sc, "SELECT max(size) FROM (SELECT sum(length(callback_data)) AS size FROM "+sc.table(table)+" GROUP BY xmin::text) t")
		if written != jobs*size || largest > most {
			t.Errorf("of %s, %d bytes were written, %d of them at once; want %d, and at most %d", table, written, largest, jobs*size, most)
		}
	}
}

// TestClaimReadsTargetsOnce: a claim reads the target of a job with many occurrences once, and each occurrence gets its
// own job's target, in any order.
func TestClaimReadsTargetsOnce(t *testing.T) {
	const size, each = 1 << 20, 40
	sc := newSchema(t, serverURL)
	r := newRelay(t, sc.url)
	sc.url = r.url
	s := sc.open()
	first := newPut("first", 0)
	first.Job.Callback.Data = bytes.Repeat([]byte("1"), size)
	var large []time.Duration
	for i := range each {
		large = append(large, time.Duration(i+1)*time.Millisecond)
	}
	second, third := newPut("second", large...), newPut("third", 5*time.Millisecond, 50*time.Millisecond)
	second.Job.Callback.Data = bytes.Repeat([]byte("2"), size)
	third.Job.Options.Retry.MaxAttempts = 33
	mustPut(t, s, first, second, third)
	own := job.Target{Callback: job.Callback{Type: "http", Data: []byte(`{"own":true}`)}}
	at := epoch.Add(7 * time.Millisecond)
	if err := s.Trigger(t.Context(), job.Occurrence{ID: job.ID{1}, Name: name("second"), Timestamp: at, DueAt: at, Own: &own}); err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	before := r.said
	r.mu.Unlock()
	claimed := mustClaim(t, s, epoch.Add(time.Second), 100).Occurrences
	r.mu.Lock()
	read := r.said - before
	r.mu.Unlock()
	if most := 5 * size; len(claimed) != each+4 || read > most {
		t.Errorf("%d bytes were read for %d claims; want at most %d, for %d", read, len(claimed), most, each+4)
	}
	for i, c := range claimed {
		want := map[string]store.Put{"first": first, "second": second, "third": third}[c.Name.Key].Job
		wantData := want.Callback.Data
		if c.Revision == "" {
			wantData = own.Callback.Data
		}
		if c.Fault != nil || c.Callback.Type != "http" || !bytes.Equal(c.Callback.Data, wantData) {
			t.Errorf("claim %d, of %s, has another callback, of type %q and %d bytes; %v", i, c.Name, c.Callback.Type, len(c.Callback.Data), c.Fault)
		}
		if c.Name.Key == "third" && c.Options.Retry.MaxAttempts != 33 {
			t.Errorf("claim %d has other options: %+v", i, c.Options)
		}
	}
}
