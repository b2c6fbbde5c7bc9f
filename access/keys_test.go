package access_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillon-scheduler/carillon/access"
	"github.com/carillon-scheduler/carillon/access/limits"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/memory"
)

var epoch = time.Date(2030, 1, 1, 12, 30, 0, 0, time.UTC)

// records is a store's side that counts its calls, and is slow or unavailable on demand.
type records struct {
	store.Store

	mutex         sync.Mutex
	reads, writes int
	fails         bool // every call
	hangs         bool // every call, until its context ends
	noWrites      bool
	answersAfter  time.Duration // of a read
	writesAfter   time.Duration
}

func (r *records) Records(ctx context.Context, f store.RecordFilter) ([]store.Record, error) {
	after, err := r.call(ctx, &r.reads, &r.answersAfter, false)
	if err != nil {
		return nil, err
	}
	page, err := r.Store.Records(ctx, f)
	time.Sleep(after)
	return page, err
}

func (r *records) WriteRecords(ctx context.Context, changes []store.RecordChange) []error {
	after, err := r.call(ctx, &r.writes, &r.writesAfter, true)
	if err != nil {
		return slices.Repeat([]error{err}, len(changes))
	}
	time.Sleep(after)
	return r.Store.WriteRecords(ctx, changes)
}

// call counts a call, and answers how long it takes, or how it fails.
func (r *records) call(ctx context.Context, count *int, takes *time.Duration, writes bool) (time.Duration, error) {
	r.mutex.Lock()
	*count++
	fails, hangs, after := r.fails || writes && r.noWrites, r.hangs, *takes
	r.mutex.Unlock()
	if hangs {
		<-ctx.Done()
	}
	if fails || hangs {
		return 0, fmt.Errorf("%w: the test says so", store.ErrUnavailable)
	}
	return after, nil
}

// set has all calls fail, or hang.
func (r *records) set(fails, hangs bool) {
	r.change(func() { r.fails, r.hangs = fails, hangs })
}

func (r *records) refuseWrites(refuse bool)         { r.change(func() { r.noWrites = refuse }) }
func (r *records) delay(answers time.Duration)      { r.change(func() { r.answersAfter = answers }) }
func (r *records) delayWrites(writes time.Duration) { r.change(func() { r.writesAfter = writes }) }

func (r *records) change(f func()) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	f()
}

// counted answers how many reads and writes there were since it was last called.
func (r *records) counted() (reads, writes int) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	reads, writes = r.reads, r.writes
	r.reads, r.writes = 0, 0
	return reads, writes
}

// bench is two replicas on one store. The first one's side of it can fail.
type bench struct {
	testing.TB
	records     *records
	keys, other *access.Keys
}

func newBench(t testing.TB) *bench {
	r := &records{Store: memory.New()}
	b := &bench{TB: t, records: r, keys: access.NewKeys(r), other: access.NewKeys(r.Store)}
	t.Cleanup(b.close)
	return b
}

func (b *bench) close() {
	_ = b.keys.Close()
	_ = b.other.Close()
}

// create makes a key by the other replica.
func (b *bench) create(p access.KeyParams) (token string, key access.Key) {
	b.Helper()
	token, key, err := b.other.Create(b.Context(), p, "tester", epoch)
	if err != nil {
		b.Fatal(err)
	}
	return token, key
}

// expect asks the first replica whose token it is.
func (b *bench) expect(what, token string, now time.Time, want error) {
	b.Helper()
	if _, err := b.keys.Authenticate(b.Context(), token, now); !errors.Is(err, want) {
		b.Errorf("%s: %v, want %v", what, err, want)
	}
}

var admin = access.KeyParams{Role: access.Admin, Scope: access.Everything()}

func TestCreate(t *testing.T) {
	b := newBench(t)
	p := access.KeyParams{
		Role: access.Submitter, Scope: access.Scope{Tenants: []string{"acme", "bolt"}, KeyPrefix: "mail/"},
		ExpiresAt: epoch.Add(time.Hour), Note: "the mailer's",
	}
	token, key := b.create(p)
	want := access.Key{
		ID: key.ID, Role: access.Submitter, Scope: p.Scope, Note: "the mailer's", CreatedBy: "tester", CreatedAt: epoch,
		ExpiresAt: epoch.Add(time.Hour),
	}
	if !reflect.DeepEqual(key, want) {
		t.Errorf("created %+v, want %+v", key, want)
	}
	if id, ok := access.ParseToken(token); !ok || id != key.ID || !scanned.MatchString(token) {
		t.Errorf("the token is %q, of %q", token, id)
	}
	principal, err := b.keys.Authenticate(t.Context(), token, epoch)
	if err != nil || !reflect.DeepEqual(principal, access.Principal{ID: key.ID, Role: access.Submitter, Scope: p.Scope, ExpiresAt: p.ExpiresAt}) {
		t.Errorf("the token is of %+v, %v", principal, err)
	}
	got, err := b.keys.Key(t.Context(), key.ID)
	got.LastUsed = time.Time{} // it may be written by now
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("there is %+v, %v; want %+v", got, err, want)
	}
	b.expect("at its end", token, epoch.Add(time.Hour), access.ErrUnauthenticated)
	b.expect("just before its end", token, epoch.Add(time.Hour-time.Millisecond), nil)

	all, err := b.records.Records(t.Context(), store.RecordFilter{Collection: "keys", Limit: 10})
	if err != nil || len(all) != 1 {
		t.Fatalf("the store has %d keys, %v", len(all), err)
	}
	if secret := token[len(token)-36:]; strings.Contains(string(all[0].Body), secret[:10]) {
		t.Errorf("the store has the secret %s: %s", secret, all[0].Body)
	}
}

// TestLimitsOfKeys hold on another replica after some seconds, and stay when the key is rotated and its use is written.
func TestLimitsOfKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.close()
		ten, twenty := 10, 20
		p := admin
		p.Limits = limits.Draft{MaxJobs: &ten}
		token, key := b.create(p)
		has := func(token string, want limits.Draft) {
			t.Helper()
			got, err := b.keys.Authenticate(t.Context(), token, epoch)
			if err != nil || !reflect.DeepEqual(got.Limits, want) {
				t.Errorf("it has the limits %+v, %v; want %+v", got.Limits, err, want)
			}
		}
		has(token, p.Limits)
		changed := limits.Draft{MaxJobs: &twenty, MaxPayload: &ten}
		if got, err := b.other.SetLimits(t.Context(), key.ID, changed, epoch); err != nil || !reflect.DeepEqual(got.Limits, changed) {
			t.Fatalf("it is changed to %+v, %v", got, err)
		}
		time.Sleep(access.RevokedWithin)
		has(token, changed)
		token, _, err := b.other.Rotate(t.Context(), key.ID, 0, epoch)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		has(token, changed)
		synctest.Wait() // its use is written
		if got, err := b.other.Key(t.Context(), key.ID); err != nil || !reflect.DeepEqual(got.Limits, changed) || got.LastUsed.IsZero() {
			t.Errorf("there is %+v, %v", got, err)
		}
		if _, err := b.other.SetLimits(t.Context(), "none", changed, epoch); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("of no key they are set: %v", err)
		}
	})
}

func TestKeyParams(t *testing.T) {
	names := make([]string, access.MaxKeyTenants+1)
	for i := range names {
		names[i] = fmt.Sprint("t", i)
	}
	for body, want := range map[string][]string{
		`{"role":"admin","tenants":["*"]}`: nil,
		`{"role":"viewer","tenants":["a","b"],"keyPrefix":"é/","expiresAt":"2030-01-01T12:30:00.001Z","note":"for é"}`: nil,
		`{}`:                                                                  {"/role", "/tenants"},
		`{"role":"root","tenants":["*"]}`:                                     {"/role"},
		`{"role":"Admin","tenants":["*"]}`:                                    {"/role"},
		`{"role":"admin","tenants":[]}`:                                       {"/tenants"},
		`{"role":"admin","tenants":"acme"}`:                                   {"/tenants"},
		`{"role":"admin","tenants":["a","*"]}`:                                {"/tenants/1"},
		`{"role":"admin","tenants":["*","*"]}`:                                {"/tenants/0", "/tenants/1"},
		`{"role":"admin","tenants":["a","b/c","","a"]}`:                       {"/tenants/1", "/tenants/2", "/tenants/3"},
		`{"role":"admin","tenants":["` + strings.Join(names, `","`) + `"]}`:   {"/tenants"},
		`{"role":"admin","tenants":["a"],"keyPrefix":"a\u0000"}`:              {"/keyPrefix"},
		`{"role":"admin","tenants":["a"],"keyPrefix":"` + long(256) + `"}`:    {"/keyPrefix"},
		`{"role":"admin","tenants":["a"],"note":"` + long(256) + `"}`:         {"/note"},
		`{"role":"admin","tenants":["a"],"note":"two\nlines"}`:                {"/note"},
		`{"role":"admin","tenants":["a"],"expiresAt":"2030-01-01T12:30:00Z"}`: {"/expiresAt"},
		`{"role":"admin","tenants":["a"],"expiresAt":"tomorrow"}`:             {"/expiresAt"},
		`{"role":"admin","tenants":["a"],"scope":"all"}`:                      {"/scope"},
	} {
		p, err := access.ParseKeyParams([]byte(body), epoch)
		var got []string
		if invalid, ok := errors.AsType[*job.Invalid](err); ok {
			for _, f := range invalid.Fields {
				got = append(got, f.Pointer)
			}
		} else if err != nil {
			t.Errorf("%s: %v", body, err)
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%s: the fields at fault are %q, want %q: %v", body, got, want, err)
		}
		if err == nil && p.Check(epoch) != nil {
			t.Errorf("%s: %v", body, p.Check(epoch))
		}
	}
	if _, err := access.ParseKeyParams([]byte(`{`), epoch); !isMalformed(err) {
		t.Errorf("a document that is none: %v", err)
	}
	b := newBench(t)
	if _, _, err := b.keys.Create(t.Context(), access.KeyParams{}, "tester", epoch); err == nil {
		t.Error("a key was created that may do nothing")
	}
}

func isMalformed(err error) bool { _, is := errors.AsType[*job.Malformed](err); return is }

func long(n int) string { return strings.Repeat("x", n) }

func TestListKeys(t *testing.T) {
	b := newBench(t)
	want := make(map[string]bool)
	for range 25 {
		_, key := b.create(admin)
		want[key.ID] = true
	}
	for _, limit := range []int{1, 10, 25, 100} {
		got := make(map[string]bool)
		for after := ""; ; {
			page, err := b.keys.List(t.Context(), after, limit)
			if err != nil {
				t.Fatal(err)
			}
			for _, key := range page {
				if got[key.ID] || key.ID <= after {
					t.Errorf("%s comes after %s", key.ID, after)
				}
				after = key.ID
				got[key.ID] = true
			}
			if len(page) < limit {
				break
			}
		}
		if !maps.Equal(got, want) {
			t.Errorf("by pages of %d there are %d keys", limit, len(got))
		}
	}
}

func TestRotate(t *testing.T) {
	b := newBench(t)
	first, key := b.create(admin)
	b.expect("the first token", first, epoch, nil)
	rotate := func(overlap time.Duration, now time.Time) (token string) {
		t.Helper()
		token, rotated, err := b.other.Rotate(t.Context(), key.ID, overlap, now)
		if err != nil {
			t.Fatal(err)
		}
		if rotated.ID != key.ID || !rotated.RotatedAt.Equal(now) || !rotated.OldValidUntil.Equal(now.Add(overlap)) {
			t.Errorf("rotated to %+v", rotated)
		}
		return token
	}
	at := epoch.Add(time.Minute)
	second := rotate(time.Hour, at)
	b.expect("the second token at once, on another replica", second, at, nil)
	b.expect("the first token", first, at, nil)
	b.expect("the first token until its end", first, at.Add(time.Hour-time.Millisecond), nil)
	b.expect("the first token after its end", first, at.Add(time.Hour), access.ErrUnauthenticated)
	b.expect("the second token then", second, at.Add(time.Hour), nil)

	third := rotate(time.Hour, at)
	fourth := rotate(0, at)
	b.expect("the third token, with no overlap", third, at, access.ErrUnauthenticated)
	b.expect("the second token, two rotations on", second, at, access.ErrUnauthenticated)
	b.expect("the fourth token", fourth, at, nil)

	_, _, unknown := b.keys.Rotate(t.Context(), someID, 0, at)
	_, _, none := b.keys.Rotate(t.Context(), "../tenants", 0, at)
	if !errors.Is(unknown, store.ErrNotFound) || !errors.Is(none, store.ErrNotFound) {
		t.Errorf("a key that there is not: %v, %v", unknown, none)
	}
	for _, overlap := range []time.Duration{-1, access.MaxKeyOverlap + 1} {
		if _, _, err := b.keys.Rotate(t.Context(), key.ID, overlap, at); !isInvalid(err) {
			t.Errorf("overlap %s: %v", overlap, err)
		}
	}
	p := admin
	p.ExpiresAt = epoch.Add(time.Hour)
	_, expiring := b.create(p)
	if _, _, err := b.keys.Rotate(t.Context(), expiring.ID, 0, p.ExpiresAt); !isInvalid(err) {
		t.Errorf("a key that has expired: %v", err)
	}
}

func isInvalid(err error) bool { _, is := errors.AsType[*job.Invalid](err); return is }

func TestRevoke(t *testing.T) {
	b := newBench(t)
	token, key := b.create(admin)
	b.expect("before", token, epoch, nil)
	if err := b.keys.Revoke(t.Context(), key.ID, epoch); err != nil {
		t.Fatal(err)
	}
	b.expect("where it was revoked, at once", token, epoch, access.ErrUnauthenticated)
	if err := b.keys.Revoke(t.Context(), key.ID, epoch); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("revoked twice: %v", err)
	}
	if _, err := b.keys.Key(t.Context(), key.ID); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("there is %v", err)
	}
	if all, err := b.keys.List(t.Context(), "", 10); err != nil || len(all) != 0 {
		t.Errorf("there are %v, %v", all, err)
	}
}

// Keys that are copied to another store are valid there, with all that they had.
func TestCopy(t *testing.T) {
	b := newBench(t)
	to := memory.New()
	var tokens []string
	for range 120 {
		token, _ := b.create(admin)
		tokens = append(tokens, token)
	}
	p := admin
	p.ExpiresAt, p.Note = epoch.Add(time.Hour), "for an hour"
	token, want := b.create(p)
	for i, counts := range [][2]int{{121, 0}, {0, 121}} {
		copied, there, err := access.Copy(t.Context(), b.records.Store, to)
		if err != nil || copied != counts[0] || there != counts[1] {
			t.Errorf("copy %d: copied %d, there already %d, %v; want %v", i, copied, there, err, counts)
		}
	}
	keys := access.NewKeys(to)
	defer keys.Close()
	for _, token := range append(tokens, token) {
		if _, err := keys.Authenticate(t.Context(), token, epoch); err != nil {
			t.Errorf("%s: %v", token, err)
		}
	}
	if _, err := keys.Authenticate(t.Context(), token, p.ExpiresAt); !errors.Is(err, access.ErrUnauthenticated) {
		t.Errorf("after its end: %v", err)
	}
	got, err := keys.Key(t.Context(), want.ID)
	got.LastUsed = time.Time{}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("copied %+v, %v; want %+v", got, err, want)
	}
	b.records.set(true, false)
	if _, _, err := access.Copy(t.Context(), b.records, to); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("from a store that is away: %v", err)
	}
	if _, _, err := access.Copy(t.Context(), to, b.records); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("to a store that is away: %v", err)
	}
}

// The answer does not show the fault of a token, and a malformed one costs no call.
func TestWrongTokens(t *testing.T) {
	b := newBench(t)
	token, key := b.create(admin)
	other, _ := b.create(admin)
	b.records.counted()
	for _, malformed := range []string{"", "x", token[1:], token[:len(token)-1], token + token, token + " ", "Bearer " + token,
		strings.Replace(token, key.ID, someID, 1), token[:len(token)-1] + "*"} {
		b.expect(malformed, malformed, epoch, access.ErrUnauthenticated)
	}
	if reads, _ := b.records.counted(); reads != 0 {
		t.Errorf("malformed tokens cost %d reads", reads)
	}
	for range 10 {
		b.expect("of no key", someToken, epoch, access.ErrUnauthenticated)
	}
	if reads, _ := b.records.counted(); reads != 1 {
		t.Errorf("a token of no key costs %d reads in a row, want 1", reads)
	}
	stale, _, err := b.other.Rotate(t.Context(), key.ID, 0, epoch)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := b.other.Rotate(t.Context(), key.ID, 0, epoch); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		b.expect("of another secret", stale, epoch, access.ErrUnauthenticated)
	}
	if reads, _ := b.records.counted(); reads > 2 {
		t.Errorf("a token of another secret costs %d reads in a row", reads)
	}
	b.expect("of another key", other, epoch, nil)
}
