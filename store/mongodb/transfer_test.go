//go:build services

package mongodb_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

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

// TestExportLeavesOut: an export leaves out the remains of a crash, even if they fill whole pages.
func TestExportLeavesOut(t *testing.T) {
	db := newDatabase(t)
	s := db.open(t)
	list, recurring := newPut("k", epoch, time.Hour), newCrontab("recurring", epoch, "@every 10s")
	mustPut(t, s, list)
	mustPut(t, s, recurring)
	replaced := newPut("k", epoch, 0, time.Second, time.Minute, 2*time.Hour).Occurrences
	gone := newPut("gone", epoch, 0, time.Second, time.Minute, 3*time.Hour).Occurrences
	ahead, err := recurring.Job.Expand(epoch, job.Expansion{Horizon: 3 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	var left []any
	for _, occurrences := range [][]job.Occurrence{replaced, gone, ahead.Occurrences} {
		for _, o := range occurrences {
			left = append(left, bson.M{
				"_id": o.ID.String(), "tenant": o.Name.Tenant, "key": o.Name.Key, "revision": o.Revision,
				"timestamp": o.Timestamp, "lane": job.DefaultLane.String(), "dueAt": o.DueAt, "attempt": 0,
			})
		}
	}
	if _, err := db.Collection("occurrences").InsertMany(t.Context(), left); err != nil {
		t.Fatal(err)
	}
	for _, limit := range []int{1, 4, 1000} {
		want := map[job.ID]bool{}
		for _, p := range []store.Put{list, recurring} {
			for _, o := range p.Occurrences {
				want[o.ID] = true
			}
		}
		for _, r := range exported(t, s, limit) {
			if o := r.Occurrence; o != nil && !want[o.ID] {
				t.Errorf("in pages of %d, an occurrence of %s at %s is exported", limit, o.Name, o.Timestamp.Sub(epoch))
			} else if o != nil {
				delete(want, o.ID)
			}
		}
		if len(want) > 0 {
			t.Errorf("in pages of %d, %d occurrences are not exported", limit, len(want))
		}
	}
}

// TestImportIsInterrupted: repeating an interrupted import completes it.
func TestImportIsInterrupted(t *testing.T) {
	for _, c := range []struct {
		name, collection string
		lost             verdict
	}{
		{"before the jobs", "jobs", cutBefore},
		{"after the jobs", "jobs", cutAfter},
		{"before the occurrences", "occurrences", cutBefore},
		{"after the occurrences", "occurrences", cutAfter},
	} {
		t.Run(c.name, func(t *testing.T) {
			from := newDatabase(t).open(t)
			mustPut(t, from, newPut("k", epoch, 0, time.Second))
			mustPut(t, from, newCrontab("recurring", epoch, "@every 10s"))
			records := exported(t, from, 10)
			db := newDatabase(t)
			relayed, r := db.relayed(t)
			r.on("insert", c.collection, 1, func() verdict { return c.lost })
			if _, err := relayed.Import(t.Context(), records); !errors.Is(err, store.ErrUnavailable) {
				t.Fatalf("the import answers %v", err)
			}
			s := db.open(t)
			if _, err := s.Import(t.Context(), records); err != nil {
				t.Fatal(err)
			}
			if got := exported(t, s, 10); len(got) != len(records) {
				t.Errorf("%d of %d records were imported", len(got), len(records))
			}
		})
	}
}

// TestImportTooLarge: the error of an import names a job that no document can hold.
func TestImportTooLarge(t *testing.T) {
	for name, size := range map[string]int{"refused by the driver": 48e6, "refused by the server": 1e6} {
		t.Run(name, func(t *testing.T) {
			relayed, r := newDatabase(t).relayed(t)
			r.answer = bson.D{{Key: "ok", Value: 0}, {Key: "code", Value: 10334}, {Key: "errmsg", Value: "BSONObj size: 17000000 is invalid"}}
			r.set(func(c command) verdict {
				if c.name == "insert" && c.collection == "jobs" && c.size > 1e6 {
					return answerBefore
				}
				return pass
			})
			var records []store.Document
			for _, key := range []string{"a", "large", "z"} {
				p := newPut(key, epoch, time.Hour)
				if key == "large" {
					p.Job.Callback.Data = bytes.Repeat([]byte("1"), size)
				}
				records = append(records, store.Document{Job: &p.Job})
			}
			_, err := relayed.Import(t.Context(), records)
			if !errors.Is(err, store.ErrTooLarge) || !strings.Contains(err.Error(), "large: ") || errors.Is(err, store.ErrUnavailable) {
				t.Errorf("the import answers %v", err)
			}
		})
	}
}

// TestExportLimitsItsPages: a page of large jobs has few of them.
func TestExportLimitsItsPages(t *testing.T) {
	s := newDatabase(t).open(t)
	const jobs = 3
	for i := range jobs {
		p := newPut(fmt.Sprint("k", i), epoch)
		p.Job.Callback.Data = bytes.Repeat([]byte("1"), 9<<19)
		mustPut(t, s, p)
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

// TestExportFromNowhere: an invalid place is refused.
func TestExportFromNowhere(t *testing.T) {
	s := newDatabase(t).open(t)
	for _, place := range []store.Place{"nowhere", "job:", "job:a", "job:%/b", "occurrence:1"} {
		if _, _, err := s.Export(t.Context(), place, 10); err == nil {
			t.Errorf("%q is accepted", place)
		}
	}
}
