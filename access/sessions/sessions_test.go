package sessions_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillon-scheduler/carillon/access"
	"github.com/carillon-scheduler/carillon/access/sessions"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/memory"
)

const credential = "carillon_a-credential-of-somebody"

// records are those of a store that may be away.
type records struct {
	store.Store
	away  bool
	reads int
}

func (r *records) Records(ctx context.Context, f store.RecordFilter) ([]store.Record, error) {
	r.reads++
	if r.away {
		return nil, store.ErrUnavailable
	}
	return r.Store.Records(ctx, f)
}

func begin(t *testing.T, s *sessions.Sessions, until time.Time) string {
	t.Helper()
	secret, _, err := s.Begin(t.Context(), credential, until, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return secret
}

func wantError(t *testing.T, s *sessions.Sessions, secret string, want error) {
	t.Helper()
	if got, err := s.Get(t.Context(), secret, time.Now()); !errors.Is(err, want) || want == nil && got.Credential != credential {
		t.Errorf("session %+v, %v; want the error %v", got, err, want)
	}
}

// A session is good on each replica, until it is ended: at that replica at once, at others within the time of a
// revocation.
func TestSessionsAreOfAllReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stored := &records{Store: memory.New()}
		here, there := sessions.New(stored), sessions.New(stored)
		secret := begin(t, here, time.Time{})
		wantError(t, here, secret, nil)
		wantError(t, there, secret, nil)
		before := stored.reads
		wantError(t, there, secret, nil)
		if stored.reads != before {
			t.Error("a session that was just read is read again")
		}
		if err := here.End(t.Context(), secret, time.Now()); err != nil {
			t.Fatal(err)
		}
		wantError(t, here, secret, access.ErrUnauthenticated)
		time.Sleep(access.RevokedWithin)
		wantError(t, there, secret, access.ErrUnauthenticated)
		if err := here.End(t.Context(), secret, time.Now()); err != nil {
			t.Errorf("ended twice: %v", err)
		}
	})
}

func TestSessionsExpire(t *testing.T) {
	for _, c := range []struct {
		name        string
		until, ends time.Duration
	}{
		{"after their lifetime", 0, sessions.Lifetime},
		{"with their credential", time.Hour, time.Hour},
		{"before their credential", 100 * time.Hour, sessions.Lifetime},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, until := sessions.New(memory.New()), time.Time{}
				if c.until > 0 {
					until = time.Now().Add(c.until)
				}
				secret := begin(t, s, until)
				time.Sleep(c.ends - time.Second)
				wantError(t, s, secret, nil)
				time.Sleep(time.Second)
				wantError(t, s, secret, access.ErrUnauthenticated)
				wantError(t, sessions.New(memory.New()), secret, access.ErrUnauthenticated)
			})
		})
	}
}

// While the store is unavailable, sessions in use stay valid for a time. Others are not admitted.
func TestSessionsOutliveAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stored := &records{Store: memory.New()}
		s := sessions.New(stored)
		secret, unused := begin(t, sessions.New(stored), time.Time{}), begin(t, sessions.New(stored), time.Time{})
		wantError(t, s, secret, nil)
		stored.away = true
		time.Sleep(access.OutageUpTo - time.Second)
		wantError(t, s, secret, nil)
		wantError(t, s, unused, store.ErrUnavailable)
		time.Sleep(2 * time.Second)
		wantError(t, s, secret, store.ErrUnavailable)
		stored.away = false
		wantError(t, s, secret, nil)
	})
}

func TestWrongSecrets(t *testing.T) {
	s := sessions.New(memory.New())
	secret := begin(t, s, time.Time{})
	other := "A" + secret[1:]
	if secret[0] == 'A' {
		other = "B" + secret[1:]
	}
	for _, wrong := range []string{"", "x", secret + "A", secret[1:], other, credential, strings.Repeat("A", 43)} {
		wantError(t, s, wrong, access.ErrUnauthenticated)
		if s.Knows(wrong) {
			t.Errorf("%q is known", wrong)
		}
	}
	if !s.Knows(secret) {
		t.Error("a session that was just begun is not known")
	}
}

// A reader of the store learns neither credentials nor secrets, and can't move a session to another name.
func TestStoreHasNoCredentials(t *testing.T) {
	stored := memory.New()
	s := sessions.New(stored)
	secrets := []string{begin(t, s, time.Time{}), begin(t, s, time.Time{})}
	all, err := stored.Records(t.Context(), store.RecordFilter{Collection: "sessions", Limit: 10})
	if err != nil || len(all) != 2 {
		t.Fatalf("%d records, %v", len(all), err)
	}
	var swapped []store.RecordChange
	for i, r := range all {
		for _, hidden := range append(secrets, credential, "credential") {
			if bytes.Contains(r.Body, []byte(hidden)) || strings.Contains(r.Key, hidden) {
				t.Errorf("the record %q %q has %q", r.Key, r.Body, hidden)
			}
		}
		swapped = append(swapped, store.RecordChange{
			Collection: "sessions", Key: r.Key, Version: job.NewRevision(time.Now()), Body: all[1-i].Body, Now: time.Now(),
		})
	}
	for _, err := range stored.WriteRecords(t.Context(), swapped) {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, secret := range secrets {
		wantError(t, sessions.New(stored), secret, access.ErrUnauthenticated)
	}
}
