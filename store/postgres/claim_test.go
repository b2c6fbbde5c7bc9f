//go:build services

package postgres_test

import (
	"bytes"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// TestClaimBacklog: claims of a backlog take each occurrence once, the longest due first, with its own job's callback.
// Large claims are divided into two. They never exceed their limit, and end with the last occurrence. This holds with
// one connection or several, and with or without another claiming replica.
func TestClaimBacklog(t *testing.T) {
	const each, limit = 700, 301
	for _, c := range []struct {
		name, server string
		replicas     int
		connections  string
	}{
		{"alone", serverURL, 1, "10"},
		{"on one connection", serverURL, 1, "1"},
		{"with another", serverURL, 2, "10"},
		{"through PgBouncer", pgbouncerURL, 2, "10"},
	} {
		t.Run(c.name, func(t *testing.T) {
			sc := newSchema(t, c.server)
			sc.url = with(t, sc.url, "pool_max_conns", c.connections)
			var after []time.Duration
			for i := range each {
				after = append(after, time.Duration(2*i)*time.Millisecond)
			}
			puts := []store.Put{newPut("many", after...), newPut("paused", after[:10]...)}
			for i := range each {
				puts = append(puts, newPut(fmt.Sprintf("k%03d", i), time.Duration(2*i+1)*time.Millisecond))
			}
			for i := range puts {
				puts[i].Job.Callback.Data = fmt.Appendf(nil, `{"of":%q}`, puts[i].Job.Key)
			}
			stores := make([]store.Store, c.replicas)
			for i := range stores {
				stores[i] = sc.open()
			}
			mustPut(t, stores[0], puts...)
			if err := stores[0].Pause(t.Context(), name("paused"), job.NewRevision(epoch), epoch); err != nil {
				t.Fatal(err)
			}

			var lock sync.Mutex
			tokens := make(map[job.ID]string)
			var all sync.WaitGroup
			for _, s := range stores {
				all.Go(func() {
					for more := true; more; {
						claim, err := s.Claim(t.Context(), store.ClaimParams{Now: epoch.Add(time.Hour), Lease: lease, Quotas: []store.Quota{{Lane: job.DefaultLane, Limit: limit}}})
						if err != nil {
							t.Error(err)
							return
						}
						more = claim.More()
						if len(claim.Occurrences) > limit {
							t.Errorf("claimed %d, want at most %d", len(claim.Occurrences), limit)
						}
						for i, o := range claim.Occurrences {
							if want := fmt.Appendf(nil, `{"of":%q}`, o.Name.Key); !bytes.Equal(o.Callback.Data, want) {
								t.Errorf("an occurrence of %s has the callback %s", o.Name.Key, o.Callback.Data)
							}
							if i > 0 && o.Timestamp.Before(claim.Occurrences[i-1].Timestamp) {
								t.Errorf("that of %s comes after that of %s", o.Timestamp, claim.Occurrences[i-1].Timestamp)
							}
							lock.Lock()
							if _, twice := tokens[o.ID]; twice || o.Name.Key == "paused" {
								t.Errorf("%s of %s is claimed, twice: %t", o.ID, o.Name.Key, twice)
							}
							tokens[o.ID] = o.Token
							lock.Unlock()
						}
						if err := s.Settle(t.Context(), acks(claim.Occurrences)); err != nil {
							t.Error(err)
						}
					}
				})
			}
			all.Wait()
			// One claim may have skipped the rows that the other had locked; all others are claimed and settled by now.
			rest := mustClaim(t, stores[0], epoch.Add(time.Hour), 2*each).Occurrences
			if len(tokens)+len(rest) != 2*each || c.replicas == 1 && len(rest) > 0 {
				t.Errorf("claimed %d, and later %d, want %d in all", len(tokens), len(rest), 2*each)
			}
		})
	}
}

// TestClaimMeetsWrites: an occurrence that is written while a claim looks for it, and is still due, is part of that
// claim, or of the next one, which follows at once.
func TestClaimMeetsWrites(t *testing.T) {
	sc := newSchema(t, serverURL)
	s := sc.open()
	first, second := newPut("first", 0), newPut("second", time.Millisecond, 2*time.Millisecond)
	second.Job.Callback.Data = []byte(`2`)
	mustPut(t, s, first, second)
	// The claim waits at the first occurrence, before it reaches the second.
	run(t, sc.admin, fmt.Sprintf(`CREATE FUNCTION %[1]s.wait() RETURNS trigger LANGUAGE plpgsql AS
		'BEGIN PERFORM pg_advisory_xact_lock_shared(hashtext(''%[1]s'')); RETURN NEW; END'`, sc.name))
	run(t, sc.admin, fmt.Sprintf(`CREATE TRIGGER wait BEFORE UPDATE ON %s FOR EACH ROW WHEN (NEW.token IS NOT NULL)
		EXECUTE FUNCTION %s.wait()`, sc.table("occurrences"), sc.name))
	tx, err := sc.admin.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "SELECT pg_advisory_xact_lock(hashtext($1))", sc.name); err != nil {
		t.Fatal(err)
	}
	var claims []store.Claim
	var claimErr error
	var group sync.WaitGroup
	group.Go(func() {
		for more := true; more && claimErr == nil && len(claims) < 5; {
			var claim store.Claim
			claim, claimErr = s.Claim(t.Context(), store.ClaimParams{Now: epoch.Add(time.Second), Lease: lease, Quotas: []store.Quota{{Lane: job.DefaultLane, Limit: 10}}})
			claims, more = append(claims, claim), claim.More()
		}
	})
	sc.awaitWaiting()
	if _, err := tx.Exec(t.Context(), "UPDATE "+sc.table("occurrences")+" SET last_error = 'written' WHERE id = $1",
		[16]byte(second.Occurrences[0].ID)); err != nil {
		t.Error(err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Error(err)
	}
	group.Wait()
	var got []string
	for _, claim := range claims {
		for _, o := range claim.Occurrences {
			got = append(got, o.Name.Key+o.LastError)
			if second := o.Name.Key == "second"; second != (string(o.Callback.Data) == `2`) || o.Callback.Type != "http" {
				t.Errorf("one of %s has the callback %s %s", o.Name, o.Callback.Type, o.Callback.Data)
			}
		}
	}
	if claimErr != nil || fmt.Sprint(got) != "[first second secondwritten]" {
		t.Errorf("%d claims got %v, %v", len(claims), got, claimErr)
	}
}
