//go:build services

package mongodb_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

func pause(t *testing.T, s store.Store, now time.Time) {
	t.Helper()
	if err := s.Pause(t.Context(), name("k"), job.NewRevision(now), now); err != nil {
		t.Error(err)
	}
}

func resume(t *testing.T, s store.Store, now time.Time) {
	t.Helper()
	if err := s.Resume(t.Context(), name("k"), job.NewRevision(now), now); err != nil {
		t.Error(err)
	}
}

func amendment(of job.Revision) store.Amendment {
	return store.Amendment{
		Name: name("k"), Of: of, Version: job.NewRevision(epoch), Callback: job.Callback{Type: "http", Data: []byte(`{"payload":2}`)},
		Options: job.Options{Deadline: job.Duration(time.Hour)}, Now: epoch,
	}
}

// TestClaimMeetsAResume: occurrences that a claim finds paused, and puts back when the job is no longer paused, become
// due regardless.
func TestClaimMeetsAResume(t *testing.T) {
	db := newDatabase(t)
	s := db.open(t)
	now := epoch.Add(time.Minute)
	for _, c := range []struct {
		name, command, collection string
		n                         int
		pausedAgain               bool
		claimed, due              int
	}{
		{"before the jobs are read", "find", "jobs", 1, false, 3, 0},
		{"before they are put back", "update", "occurrences", 2, false, 0, 3},
		{"before they are put back, and a pause", "update", "occurrences", 2, true, 0, 0},
		{"before the jobs are read again", "find", "jobs", 2, false, 0, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			db.empty(t, s)
			mustPut(t, s, newPut("k", epoch, 0, time.Second, time.Minute))
			pause(t, s, epoch)
			relayed, r := db.relayed(t)
			expectMany(t, relayed)
			happened := false
			r.on(c.command, c.collection, c.n, func() verdict {
				happened = true
				resume(t, s, now)
				if c.pausedAgain {
					pause(t, s, now)
				}
				return pass
			})
			claim, err := relayed.Claim(t.Context(), claimParams(now, 10))
			if err != nil || !happened {
				t.Fatalf("claim: %v; resumed meanwhile: %v", err, happened)
			}
			if len(claim.Occurrences) != c.claimed || c.claimed == 0 && !claim.More() {
				t.Errorf("claimed %d, more %v, want %d", len(claim.Occurrences), claim.More(), c.claimed)
			}
			expectDue(t, s, now, c.due)
			if c.pausedAgain {
				resume(t, s, now)
				expectDue(t, s, now, 3)
			}
		})
	}
}

// expectDue claims at now, and expects this many occurrences without an earlier claim.
func expectDue(t *testing.T, s store.Store, now time.Time, want int) {
	t.Helper()
	due := mustClaim(t, s, now, 10)
	if len(due) != want {
		t.Errorf("%d are due, want %d", len(due), want)
	}
	for _, o := range due {
		if o.Attempt != 1 || o.Reclaimed {
			t.Errorf("%s has attempt %d, reclaimed %v", o.Timestamp, o.Attempt, o.Reclaimed)
		}
	}
}

// TestPutMeetsAChange: a flip respects a change that another client has made since the job was read.
func TestPutMeetsAChange(t *testing.T) {
	db := newDatabase(t)
	s := db.open(t)
	for _, c := range []struct {
		name   string
		paused bool // before
		change func(t *testing.T, s store.Store, first job.Job)
		then   bool // paused afterwards
	}{
		{"an amendment", false, func(t *testing.T, s store.Store, first job.Job) {
			if err := s.Amend(t.Context(), amendment(first.Version)); err != nil {
				t.Error(err)
			}
		}, false},
		{"a pause", false, func(t *testing.T, s store.Store, _ job.Job) { pause(t, s, epoch) }, true},
		{"a resume", true, func(t *testing.T, s store.Store, _ job.Job) { resume(t, s, epoch) }, false},
	} {
		for _, conditional := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, conditional %v", c.name, conditional), func(t *testing.T) {
				db.empty(t, s)
				first := newCrontab("k", epoch, "@every 1s")
				mustPut(t, s, first)
				if c.paused {
					pause(t, s, epoch)
				}
				read := status(t, s)
				relayed, r := db.relayed(t)
				var changed store.JobStatus
				r.on("update", "jobs", 1, func() verdict {
					c.change(t, s, read.Job)
					changed = status(t, s)
					return pass
				})
				p := newCrontab("k", epoch, "@every 2s")
				if conditional {
					p.If.Versions = []job.Revision{read.Version}
				}
				result := relayed.Put(t.Context(), []store.Put{p})[0]
				got := status(t, s)
				if conditional {
					kept := got.Version == changed.Version && string(got.Callback.Data) == string(changed.Callback.Data)
					if !errors.Is(result.Err, store.ErrPrecondition) || !kept {
						t.Errorf("put answers %v; the change is kept: %v", result.Err, kept)
					}
					if n := db.count(t, bson.M{"revision": p.Job.Revision}); n != 0 {
						t.Errorf("%d occurrences of failed puts are left", n)
					}
					return
				}
				if result.Err != nil || result.Replaced != first.Job.Revision || got.Version != p.Job.Version {
					t.Errorf("put answers %v, replaced %q; version %s is left, want %s", result.Err, result.Replaced, got.Version, p.Job.Version)
				}
				if paused := !got.PausedAt.IsZero(); paused != c.then || got.ExpandAt.IsZero() != c.then {
					t.Errorf("the job is paused %v and expanded at %s, want paused %v", paused, got.ExpandAt, c.then)
				}
				if n := db.count(t, bson.M{}); n != len(p.Occurrences) {
					t.Errorf("%d occurrences, want %d", n, len(p.Occurrences))
				}
			})
		}
	}
}

func status(t *testing.T, s store.Store) store.JobStatus {
	t.Helper()
	status, err := store.ReadJob(t.Context(), s, name("k"))
	if err != nil {
		t.Error(err)
	}
	return status
}

// TestPauseMeetsAnother: a pause or resume that meets another change of the job takes effect after it.
func TestPauseMeetsAnother(t *testing.T) {
	db := newDatabase(t)
	s := db.open(t)
	for _, pausing := range []bool{false, true} {
		t.Run(fmt.Sprintf("pausing %v", pausing), func(t *testing.T) {
			db.empty(t, s)
			mustPut(t, s, newCrontab("k", epoch, "@every 1s"))
			if !pausing {
				pause(t, s, epoch)
			}
			relayed, r := db.relayed(t)
			p := newCrontab("k", epoch, "@every 2s")
			p.Job.Missed = 3
			r.on("update", "jobs", 1, func() verdict {
				mustPut(t, s, p)
				return pass
			})
			if pausing {
				pause(t, relayed, epoch)
			} else {
				resume(t, relayed, epoch)
			}
			got := status(t, s)
			if got.Revision != p.Job.Revision || got.Version == p.Job.Version || got.Missed != 3 || got.PausedAt.IsZero() == pausing {
				t.Errorf("revision %s, version %s, missed %d, paused at %s", got.Revision, got.Version, got.Missed, got.PausedAt)
			}
			if got.ExpandAt.IsZero() != pausing {
				t.Errorf("it is expanded at %s", got.ExpandAt)
			}
		})
	}
}

// TestAmendTooLarge: an amendment that makes the job too large for a document changes nothing.
func TestAmendTooLarge(t *testing.T) {
	s := newDatabase(t).open(t)
	p := newPut("k", epoch, time.Hour)
	mustPut(t, s, p)
	a := amendment(p.Job.Version)
	a.Callback.Data = bytes.Repeat([]byte{'1'}, 48e6)
	if err := s.Amend(t.Context(), a); !errors.Is(err, store.ErrTooLarge) || errors.Is(err, store.ErrUnavailable) {
		t.Errorf("the amendment answers %v", err)
	}
	if got, err := store.ReadJob(t.Context(), s, name("k")); err != nil || got.Version != p.Job.Version {
		t.Errorf("the job's version is %s, %v", got.Version, err)
	}
}

// TestAmendIsRepeated: repeating an amendment whose answer was lost succeeds. An amendment of the same version that
// another client has amended first fails.
func TestAmendIsRepeated(t *testing.T) {
	db := newDatabase(t)
	s := db.open(t)
	p := newPut("k", epoch, 0)
	mustPut(t, s, p)
	relayed, r := db.relayed(t)
	r.on("update", "jobs", 1, func() verdict { return cutAfter })
	a := amendment(p.Job.Version)
	if err := relayed.Amend(t.Context(), a); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("amend answers %v", err)
	}
	if err := relayed.Amend(t.Context(), a); err != nil {
		t.Errorf("once more, amend answers %v", err)
	}
	if err := relayed.Amend(t.Context(), amendment(p.Job.Version)); !errors.Is(err, store.ErrPrecondition) {
		t.Errorf("another's answers %v", err)
	}
}

// TestMissInBulk: many missed instants cost a few commands, and their jobs count them once.
func TestMissInBulk(t *testing.T) {
	const instants = 40
	s, r := newDatabase(t).relayed(t)
	after := make([]time.Duration, instants)
	for i := range after {
		after[i] = time.Duration(i) * time.Second
	}
	keys := []string{"a", "b", "replaced"}
	for _, key := range keys {
		mustPut(t, s, newPut(key, epoch, after...))
	}
	var settlements []store.Settlement
	for _, c := range mustClaim(t, s, epoch.Add(time.Hour), len(keys)*instants) {
		settlements = append(settlements, settlement(c, store.Miss))
	}
	if len(settlements) != len(keys)*instants {
		t.Fatalf("claimed %d, want %d", len(settlements), len(keys)*instants)
	}
	mustPut(t, s, newPut("replaced", epoch))
	commands := 0
	r.set(func(command) verdict {
		commands++
		return pass
	})
	for range 2 {
		if err := s.Settle(t.Context(), settlements); err != nil {
			t.Fatal(err)
		}
	}
	r.set(nil)
	if commands > 10 {
		t.Errorf("%d commands", commands)
	}
	for key, want := range map[string]int{"a": instants, "b": instants, "replaced": 0} {
		got, err := store.ReadJob(t.Context(), s, name(key))
		if err != nil || got.Missed != want || got.Live() {
			t.Errorf("%s has missed %d, live %v, want %d, %v", key, got.Missed, got.Live(), want, err)
		}
	}
}

// TestSweepMeetsAResume: a sweep leaves a job that a client has changed since the sweep read it as finished.
func TestSweepMeetsAResume(t *testing.T) {
	db := newDatabase(t)
	s := db.open(t)
	oldCrontab(t, s)
	a := mustExpand(t, s, epoch)
	a.ExpandAt, a.ExpiresAt, a.Occurrences = time.Time{}, epoch, nil // it has ended
	mustAdvance(t, s, a)
	relayed, r := db.relayed(t)
	happened := false
	r.on("delete", "jobs", 1, func() verdict {
		happened = true
		pause(t, s, epoch)
		resume(t, s, epoch)
		return pass
	})
	swept, err := relayed.Sweep(t.Context(), store.SweepParams{Now: epoch, Again: time.Hour, Limit: 10})
	if err != nil || swept.Jobs != 0 || !happened {
		t.Errorf("swept %+v, %v; resumed meanwhile: %v", swept, err, happened)
	}
	if got := status(t, s); got.Live() || !got.Cursor.IsZero() || !got.ExpandAt.IsZero() {
		t.Errorf("a job whose schedule has ended is live %v, has cursor %s and is expanded at %s", got.Live(), got.Cursor, got.ExpandAt)
	}
	again, err := s.Sweep(t.Context(), store.SweepParams{Now: epoch, Again: time.Hour, Limit: 10})
	if err != nil || again.Jobs != 1 {
		t.Errorf("then swept %+v, %v", again, err)
	}
}

// TestResumeIsInterrupted: repeating a resume completes one that was interrupted between the job and its occurrences.
func TestResumeIsInterrupted(t *testing.T) {
	now := epoch.Add(time.Minute)
	db := newDatabase(t)
	s := db.open(t)
	mustPut(t, s, newPut("k", epoch, 0))
	pause(t, s, epoch)
	if n := len(mustClaim(t, s, epoch, 10)); n != 0 {
		t.Fatalf("claimed %d of a paused job", n)
	}
	relayed, r := db.relayed(t)
	r.on("update", "occurrences", 1, func() verdict { return cutBefore })
	if err := relayed.Resume(t.Context(), name("k"), job.NewRevision(now), now); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("resume answers %v", err)
	}
	version := status(t, s).Version
	resume(t, s, now)
	if got := status(t, s); got.Version != version || !got.PausedAt.IsZero() {
		t.Errorf("version %s, paused at %s, want %s and not paused", got.Version, got.PausedAt, version)
	}
	expectDue(t, s, now, 1)
}
