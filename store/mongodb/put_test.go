//go:build services

package mongodb_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// TestPutLosesItsFlip: a put whose connection is lost at its flip returns ErrUnavailable. It has then taken effect
// completely or not at all. It deletes nothing, since it can't know which.
func TestPutLosesItsFlip(t *testing.T) {
	db := newDatabase(t)
	s := db.open(t)
	for _, c := range []struct {
		name    string
		replace bool
		lost    verdict
		done    bool
	}{
		{"create, not done", false, cutBefore, false},
		{"create, done", false, cutAfter, true},
		{"replace, not done", true, cutBefore, false},
		{"replace, done", true, cutAfter, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			db.empty(t, s)
			old := newPut("k", epoch, time.Hour)
			if c.replace {
				mustPut(t, s, old)
			}
			relayed, r := db.relayed(t)
			r.on("update", "jobs", 1, func() verdict { return c.lost })
			p := newPut("k", epoch, 0, 2*time.Hour)
			result := relayed.Put(t.Context(), []store.Put{p})[0]
			if !errors.Is(result.Err, store.ErrUnavailable) {
				t.Errorf("put answers %v", result.Err)
			}
			if n := db.count(t, bson.M{"revision": p.Job.Revision}); n != 2 {
				t.Errorf("%d occurrences are left, want 2", n)
			}
			status, err := store.ReadJob(t.Context(), s, name("k"))
			if got := status.Revision == p.Job.Revision; got != c.done {
				t.Errorf("the job is put: %v, want %v (%v)", got, c.done, err)
			}
			want := p.Job.Revision
			if !c.done {
				want = old.Job.Revision
			}
			n := 0
			for _, claimed := range mustClaim(t, s, epoch.Add(50*time.Minute).Add(2*time.Hour), 10) {
				n++
				if claimed.Revision != want {
					t.Errorf("an occurrence of %s was claimed, want only those of %s", claimed.Revision, want)
				}
			}
			if wantN := map[bool]int{true: 2, false: map[bool]int{true: 1}[c.replace]}[c.done]; n != wantN {
				t.Errorf("claimed %d, want %d", n, wantN)
			}
		})
	}
}

// TestPutIsNotAcknowledged: a flip that was made, but not acknowledged by enough servers, counts as neither done nor
// undone.
func TestPutIsNotAcknowledged(t *testing.T) {
	for _, replace := range []bool{false, true} {
		db := newDatabase(t)
		relayed, r := db.relayed(t)
		if replace {
			mustPut(t, relayed, newPut("k", epoch, time.Hour))
		}
		r.answer = bson.D{
			{Key: "ok", Value: 1}, {Key: "n", Value: 1}, {Key: "nModified", Value: 1},
			{Key: "writeConcernError", Value: bson.D{{Key: "code", Value: 64}, {Key: "errmsg", Value: "waited in vain"}}},
		}
		r.on("update", "jobs", 1, func() verdict { return answerAfter })
		p := newPut("k", epoch, 0)
		if result := relayed.Put(t.Context(), []store.Put{p})[0]; !errors.Is(result.Err, store.ErrUnavailable) {
			t.Errorf("replace %v: put answers %v", replace, result.Err)
		}
		if n := db.count(t, bson.M{"revision": p.Job.Revision}); n != 1 {
			t.Errorf("replace %v: %d occurrences are left, want 1", replace, n)
		}
	}
}

// TestPutLimitsItsFlip: the server gets the remaining time as the limit of a flip, whether or not the caller sets a
// deadline.
func TestPutLimitsItsFlip(t *testing.T) {
	relayed, r := newDatabase(t).relayed(t)
	for _, within := range []time.Duration{10 * time.Second, 0} {
		ctx, most := t.Context(), store.Within
		if within > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, within)
			defer cancel()
			most = within
		}
		for _, flip := range []string{"insert", "update"} {
			limit := time.Duration(-1)
			r.set(func(c command) verdict {
				if c.name == flip && c.collection == "jobs" {
					ms, _ := c.body.Lookup("maxTimeMS").AsInt64OK()
					limit = time.Duration(ms) * time.Millisecond
				}
				return pass
			})
			result := relayed.Put(ctx, []store.Put{newPut(fmt.Sprint(within), epoch, 0)})[0]
			r.set(nil)
			if result.Err != nil {
				t.Fatal(result.Err)
			}
			if limit <= 0 || limit > most {
				t.Errorf("within %s: the limit of %s jobs is %s", within, flip, limit)
			}
		}
	}
}

// TestPutFailsBeforeItsFlip: a put does not flip if it can't insert its occurrences, or if its deadline passes
// meanwhile.
func TestPutFailsBeforeItsFlip(t *testing.T) {
	for _, over := range []bool{false, true} {
		t.Run(fmt.Sprintf("over %v", over), func(t *testing.T) {
			db := newDatabase(t)
			relayed, r := db.relayed(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			flips := 0
			r.set(func(c command) verdict {
				switch {
				case c.name == "update" && c.collection == "jobs":
					flips++
				case c.name == "insert" && c.collection == "occurrences":
					if over {
						cancel()
					}
					return cutAfter
				}
				return pass
			})
			p := newPut("k", epoch, 0)
			if result := relayed.Put(ctx, []store.Put{p})[0]; !errors.Is(result.Err, store.ErrNotDone) {
				t.Errorf("put answers %v", result.Err)
			}
			if _, err := store.ReadJob(t.Context(), relayed, name("k")); !errors.Is(err, store.ErrNotFound) || flips != 0 {
				t.Errorf("the job was put %d times: %v", flips, err)
			}
			// After the deadline, the server may still be inserting some of the deleted occurrences.
			if n := db.count(t, bson.M{}); n != 0 && !over {
				t.Errorf("%d occurrences are left", n)
			}
		})
	}
}

// TestPutManyInstants puts a job with more instants than one command inserts. One of them exists already.
func TestPutManyInstants(t *testing.T) {
	const instants = 2500
	db := newDatabase(t)
	s := db.open(t)
	after := make([]time.Duration, instants)
	for i := range after {
		after[i] = time.Duration(i) * time.Second
	}
	p := newPut("k", epoch, after...)
	there := p.Occurrences[1234]
	if _, err := db.Collection("occurrences").InsertOne(t.Context(), bson.M{
		"_id": there.ID.String(), "tenant": there.Name.Tenant, "key": there.Name.Key, "revision": there.Revision,
		"timestamp": there.Timestamp, "lane": job.DefaultLane.String(), "dueAt": there.DueAt, "attempt": 0,
	}); err != nil {
		t.Fatal(err)
	}
	mustPut(t, s, p)
	if n := db.count(t, bson.M{"revision": p.Job.Revision}); n != instants {
		t.Errorf("%d occurrences, want %d", n, instants)
	}
	if result := mustPut(t, s, newPut("k", epoch)); result.Replaced != p.Job.Revision {
		t.Errorf("replaced %s", result.Replaced)
	}
	if n := db.count(t, bson.M{}); n != 0 {
		t.Errorf("%d occurrences are left", n)
	}
}

// TestPutMeetsAnother: a change by another client between a put's read and its flip comes first.
func TestPutMeetsAnother(t *testing.T) {
	db := newDatabase(t)
	s := db.open(t)
	first, other := newPut("k", epoch, time.Hour), newPut("k", epoch, 2*time.Hour)
	for _, c := range []struct {
		name      string
		exists    bool
		flip      string
		cancelled bool // by the other client, rather than put
		condition store.Condition
		fails     bool
		replaced  job.Revision
	}{
		{"create meets a put", false, "insert", false, store.Condition{}, false, other.Job.Revision},
		{"create if absent meets a put", false, "insert", false, store.Condition{Absent: true}, true, ""},
		{"create with a stub meets a put", false, "update", false, store.Condition{}, false, other.Job.Revision},
		{"create if absent with a stub meets a put", false, "update", false, store.Condition{Absent: true}, true, ""},
		{"create with a stub meets a cancel", false, "update", true, store.Condition{}, false, ""},
		{"replace meets a put", true, "update", false, store.Condition{}, false, other.Job.Revision},
		{"replace of a version meets a put", true, "update", false, store.Condition{Versions: []job.Revision{first.Job.Version}}, true, ""},
		{"replace if present meets a put", true, "update", false, store.Condition{Present: true}, false, other.Job.Revision},
		{"replace meets a cancel", true, "update", true, store.Condition{}, false, ""},
		{"replace if present meets a cancel", true, "update", true, store.Condition{Present: true}, true, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			db.empty(t, s)
			if c.exists {
				mustPut(t, s, first)
			}
			relayed, r := db.relayed(t)
			r.on(c.flip, "jobs", 1, func() verdict {
				if c.cancelled {
					if _, err := s.Cancel(t.Context(), []job.Name{name("k")}, store.Asked{Now: epoch}); err != nil {
						t.Error(err)
					}
				} else if result := s.Put(t.Context(), []store.Put{other})[0]; result.Err != nil {
					t.Error(result.Err)
				}
				return pass
			})
			p := newPut("k", epoch, 3*time.Hour, 4*time.Hour)
			p.If = c.condition
			result := relayed.Put(t.Context(), []store.Put{p})[0]
			want, n := p.Job.Revision, 2
			if c.fails {
				if !errors.Is(result.Err, store.ErrPrecondition) {
					t.Errorf("put answers %v", result.Err)
				}
				want, n = other.Job.Revision, 1
				if c.cancelled {
					want, n = "", 0
				}
			} else if result.Err != nil || result.Replaced != c.replaced {
				t.Errorf("put answers %v, replaced %s, want %s", result.Err, result.Replaced, c.replaced)
			}
			status, _ := store.ReadJob(t.Context(), s, name("k"))
			if status.Revision != want {
				t.Errorf("the job's revision is %q, want %q", status.Revision, want)
			}
			if of, all := db.count(t, bson.M{"revision": want}), db.count(t, bson.M{}); of != n || all != n {
				t.Errorf("%d occurrences of it and %d in all, want %d", of, all, n)
			}
		})
	}
}

// TestPutTooLarge: a job that exceeds the size of a document is refused with ErrTooLarge, by the driver or the server,
// and leaves no documents. The other jobs of the call are put.
func TestPutTooLarge(t *testing.T) {
	db := newDatabase(t)
	s := db.open(t)
	refused := bson.D{{Key: "ok", Value: 0}, {Key: "code", Value: 10334}, {Key: "errmsg", Value: "BSONObj size: 17000000 is invalid"}}
	refusedDocument := bson.D{{Key: "ok", Value: 1}, {Key: "n", Value: 0}, {Key: "writeErrors", Value: bson.A{bson.D{
		{Key: "index", Value: 0}, {Key: "code", Value: 2}, {Key: "errmsg", Value: "object to insert too large. size in bytes: 16777300"},
	}}}}
	const alone, among = 1, 3
	for _, c := range []struct {
		name     string
		replace  bool
		jobs     int
		size     int    // of the large job's data
		flip     string // the command that the server refuses, if any
		response bson.D
	}{
		{"created, refused by the driver", false, alone, 48e6, "", nil},
		{"created among others, refused by the driver", false, among, 48e6, "", nil},
		{"replaced, refused by the driver", true, alone, 48e6, "", nil},
		{"created, refused by the server", false, alone, 1e6, "update", refused},
		{"created among others, refused by the server", false, among, 1e6, "update", refused},
		{"created, refused as a document", false, alone, 1e6, "update", refusedDocument},
		{"replaced, refused by the server", true, alone, 1e6, "update", refused},
	} {
		t.Run(c.name, func(t *testing.T) {
			db.empty(t, s)
			puts := []store.Put{newPut("k", epoch, time.Hour)}
			if c.jobs == among {
				puts = []store.Put{newPut("a", epoch, time.Hour), puts[0], newPut("z", epoch, time.Hour)}
			}
			large := &puts[len(puts)/2]
			before := newPut("k", epoch, 2*time.Hour)
			if c.replace {
				mustPut(t, s, before)
			}
			large.Job.Callback.Data = bytes.Repeat([]byte{'1'}, c.size)
			relayed, r := db.relayed(t)
			r.answer = c.response
			r.set(func(seen command) verdict {
				if seen.name == c.flip && seen.collection == "jobs" && seen.size > c.size {
					return answerBefore
				}
				return pass
			})
			results := relayed.Put(t.Context(), puts)
			r.set(nil)
			for i, result := range results {
				if &puts[i] != large {
					if result.Err != nil {
						t.Errorf("%s is not put: %v", puts[i].Job.Key, result.Err)
					}
				} else if !errors.Is(result.Err, store.ErrTooLarge) || !strings.Contains(result.Err.Error(), "16 MB") || errors.Is(result.Err, store.ErrUnavailable) {
					t.Errorf("put answers %v", result.Err)
				}
			}
			if n := db.count(t, bson.M{"revision": large.Job.Revision}); n != 0 {
				t.Errorf("%d occurrences of failed puts are left", n)
			}
			got, err := store.ReadJob(t.Context(), s, name("k"))
			if c.replace && got.Revision != before.Job.Revision || !c.replace && !errors.Is(err, store.ErrNotFound) {
				t.Errorf("the job is %q, %v", got.Revision, err)
			}
			if n := len(mustClaim(t, s, epoch.Add(24*time.Hour), 10)); n != c.jobs-1 && !c.replace || c.replace && n != 1 {
				t.Errorf("%d fire", n)
			}
		})
	}
}

// TestWritesWaitForAMajority: an acknowledged write must survive the loss of the primary. Every write in a job's life
// asks for a majority, unless the URL asks for something else.
func TestWritesWaitForAMajority(t *testing.T) {
	relayed, r := newDatabase(t).relayed(t)
	writes := map[string]int{}
	r.set(func(c command) verdict {
		switch c.name {
		case "insert", "update", "delete", "findAndModify":
			writes[c.name]++
			if w, _ := c.body.Lookup("writeConcern", "w").StringValueOK(); w != "majority" {
				t.Errorf("%s on %s waits for %q", c.name, c.collection, w)
			}
		}
		return pass
	})
	mustPut(t, relayed, newPut("k", epoch, 0))
	mustPut(t, relayed, newPut("k", epoch, 0))
	for _, c := range mustClaim(t, relayed, epoch, 10) {
		mustSettle(t, relayed, c, store.Ack)
	}
	recurring := newCrontab("k", epoch, "@every 1s")
	mustPut(t, relayed, recurring)
	mustAdvance(t, relayed, mustExpand(t, relayed, epoch.Add(time.Minute)))
	if err := relayed.Amend(t.Context(), amendment(recurring.Job.Version)); err != nil {
		t.Error(err)
	}
	pause(t, relayed, epoch)
	resume(t, relayed, epoch)
	if err := trigger(t, relayed); err != nil {
		t.Error(err)
	}
	for _, c := range mustClaim(t, relayed, epoch.Add(time.Minute), 100) {
		mustSettle(t, relayed, c, store.Miss)
	}
	if _, err := relayed.Cancel(t.Context(), []job.Name{name("k")}, store.Asked{Now: epoch}); err != nil {
		t.Fatal(err)
	}
	if _, err := relayed.Import(t.Context(), []store.Document{{Job: &recurring.Job}, {Occurrence: &recurring.Occurrences[0]}}); err != nil {
		t.Error(err)
	}
	r.set(nil)
	for _, write := range []string{"insert", "update", "delete"} {
		if writes[write] == 0 {
			t.Errorf("no %s was seen: the test shows nothing", write)
		}
	}
}
