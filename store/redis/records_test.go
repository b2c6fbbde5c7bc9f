//go:build services

package redis_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// record returns a change that creates a record.
func record(key, body string) store.RecordChange {
	return store.RecordChange{
		Collection: "things", Key: key, Version: job.NewRevision(epoch), Body: []byte(body),
		If: store.RecordCondition{Absent: true}, Now: epoch,
	}
}

func mustWrite(t *testing.T, s store.Store, changes ...store.RecordChange) {
	t.Helper()
	for i, err := range s.WriteRecords(t.Context(), changes) {
		if err != nil {
			t.Fatalf("%s: %v", changes[i].Key, err)
		}
	}
}

// TestManyRecords: very many records are written by as many scripts as necessary, all short, and one command reads a
// page.
func TestManyRecords(t *testing.T) {
	const n, most = 2500, 1000
	server := newServer(t)
	s := open(t, server.url+"?shards=5")
	changes := make([]store.RecordChange, n)
	for i := range changes {
		changes[i] = record(fmt.Sprintf("k%04d", i), "1")
	}
	server.must("config", "resetstat")
	mustWrite(t, s, slices.Concat(changes, changes)...)
	if ran := server.scripts(); ran < 2*n/most || ran > 2*n/most+1 { // one run may be refused for an unknown script
		t.Errorf("%d scripts wrote them", ran)
	}
	large := record("large", strings.Repeat("x", store.MaxRecordBody))
	server.must("config", "resetstat")
	for i := range 40 { // 2.5 MB
		changes[i] = large
		changes[i].Key = fmt.Sprint("large", i)
	}
	mustWrite(t, s, changes[:40]...)
	if ran := server.scripts(); ran != 3 {
		t.Errorf("%d scripts wrote 2.5 MB", ran)
	}
	server.must("config", "resetstat")
	page, err := s.Records(t.Context(), store.RecordFilter{Collection: "things", After: "k0009", Limit: most, Now: epoch})
	if err != nil || len(page) != most || page[0].Key != "k0010" || page[most-1].Key != fmt.Sprintf("k%04d", 9+most) {
		t.Errorf("a page has %d records, %v", len(page), err)
	}
	if got := server.commands(); got["zrange"] != 1 || len(got) != 1 {
		t.Errorf("it took %v", got)
	}
}

// TestMovingRecords: while a cluster moves the records' slot, a change of a record is refused before it begins, and
// existing records can be read.
func TestMovingRecords(t *testing.T) {
	server := clusterURL(t)
	url := newStore(t, server, "")
	s := open(t, url)
	_, prefix, _ := strings.Cut(url, "prefix=")
	given := 0
	var want error
	ends := time.Time{}
	give := func(what string, expires time.Time) {
		t.Helper()
		c := record("k", fmt.Sprint(given+1))
		c.If, c.ExpiresAt = store.RecordCondition{}, expires
		err := s.WriteRecords(t.Context(), []store.RecordChange{c})[0]
		if !errors.Is(err, want) {
			t.Errorf("%s a change answers %v", what, err)
		}
		if err == nil {
			given, ends = given+1, expires
		}
		page, err := s.Records(t.Context(), store.RecordFilter{Collection: "things", Limit: 2, Now: epoch})
		if err != nil || len(page) != 1 || string(page[0].Body) != fmt.Sprint(given) || !page[0].ExpiresAt.Equal(ends) {
			t.Errorf("%s there are %v, %v", what, page, err)
		}
	}
	give("before", epoch.Add(time.Hour))
	move := newMove(t, clusterOf(t, server), prefix+":{"+prefix+":tenants}:records")
	move.begin()
	want = store.ErrNotDone
	give("before its keys are moved", epoch.Add(2*time.Hour))
	for move.key() {
		give("after a key was moved", epoch.Add(time.Minute))
	}
	move.end()
	want = nil
	give("in the end", time.Time{})
	swept, err := s.Sweep(t.Context(), store.SweepParams{Now: epoch.Add(10 * time.Hour), Again: time.Hour, Limit: 10})
	if err != nil || swept.Records != 0 {
		t.Errorf("swept %+v, %v", swept, err)
	}
}

// TestUnreadableRecord: an unreadable record is not returned with another body or version.
func TestUnreadableRecord(t *testing.T) {
	for _, rest := range []string{"", "x", "v", "v 0", "v x {}"} {
		server := newServer(t)
		s := open(t, server.url)
		server.must("zadd", "carillon:{carillon:tenants}:records", 0, "things\x00k\x00"+rest)
		for _, f := range []store.RecordFilter{{}, {Keys: []string{"k"}}} {
			f.Collection, f.Limit, f.Now = "things", 1, epoch
			if got, err := s.Records(t.Context(), f); err == nil {
				t.Errorf("%q is read as %+v", rest, got)
			}
		}
	}
}
