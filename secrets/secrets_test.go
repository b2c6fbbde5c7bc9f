package secrets_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/secrets"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/memory"
)

var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const anywhere = "http https://api.example.com"

// ring returns a keyring of keys whose bytes are these numbers.
func ring(t testing.TB, of ...byte) *secrets.Keyring {
	t.Helper()
	var keys [][]byte
	for _, b := range of {
		keys = append(keys, bytes.Repeat([]byte{b}, 32))
	}
	r, err := secrets.NewKeyring(keys...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// replica is one process's view of a store.
type replica struct {
	testing.TB
	*secrets.Secrets
	log *bytes.Buffer
}

func open(t testing.TB, records store.Records, keys *secrets.Keyring) *replica {
	t.Helper()
	var log bytes.Buffer
	r := &replica{t, secrets.New(records, keys, slog.New(slog.NewTextHandler(&log, nil))), &log}
	if err := r.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *replica) put(tenant, name, value string, destinations ...string) {
	r.Helper()
	v := secrets.Value{Text: value, Destinations: destinations}
	if _, _, err := r.Put(r.Context(), tenant, name, v, epoch); err != nil {
		r.Fatal(err)
	}
}

// expect expects a secret to have a value; an empty one stands for none.
func (r *replica) expect(what, tenant, name, want string) {
	r.Helper()
	got, err := r.Secret(r.Context(), tenant, name, anywhere)
	if got != want || (err != nil) != (want == "") {
		r.Errorf("%s: %s of %s is %q, %v; want %q", what, name, tenant, got, err, want)
	}
}

// countingRecords count the calls, and fail on demand.
type countingRecords struct {
	store.Store
	mu     sync.Mutex
	reads  map[string]int // by collection
	fault  error
	writes [][]byte
	meets  func() // is called once, before the next write
}

func newRecords() *countingRecords {
	return &countingRecords{Store: memory.New(), reads: make(map[string]int)}
}

func (c *countingRecords) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fault = err
}

func (c *countingRecords) taken() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	reads := c.reads
	c.reads = make(map[string]int)
	return reads
}

func (c *countingRecords) Records(ctx context.Context, f store.RecordFilter) ([]store.Record, error) {
	c.mu.Lock()
	c.reads[f.Collection]++
	fault := c.fault
	c.mu.Unlock()
	if fault != nil {
		return nil, fault
	}
	return c.Store.Records(ctx, f)
}

func (c *countingRecords) WriteRecords(ctx context.Context, all []store.RecordChange) []error {
	c.mu.Lock()
	for _, one := range all {
		c.writes = append(c.writes, one.Body)
	}
	meets := c.meets
	c.meets = nil
	c.mu.Unlock()
	if meets != nil {
		meets()
	}
	return c.Store.WriteRecords(ctx, all)
}

func TestNamedSecrets(t *testing.T) {
	records := newRecords()
	r := open(t, records, ring(t, 1))
	put, created, err := r.Put(t.Context(), "acme", "api", secrets.Value{Text: "s3cret-1"}, epoch)
	if err != nil || !created || put.Name != "api" || !put.CreatedAt.Equal(epoch) || !put.UpdatedAt.Equal(epoch) {
		t.Errorf("put %+v, created %t, %v", put, created, err)
	}
	r.expect("put", "acme", "api", "s3cret-1")
	r.expect("of another tenant", "other", "api", "")
	r.expect("of another name", "acme", "ap", "")
	later := epoch.Add(time.Hour)
	put, created, err = r.Put(t.Context(), "acme", "api", secrets.Value{Text: "s3cret-2"}, later)
	if err != nil || created || !put.CreatedAt.Equal(epoch) || !put.UpdatedAt.Equal(later) {
		t.Errorf("replaced %+v, created %t, %v", put, created, err)
	}
	r.expect("replaced", "acme", "api", "s3cret-2")
	r.put("acme", "b.c", "s3cret-3")
	r.put("acme-2", "a", "s3cret-4")
	var names []string
	for after := ""; ; {
		page, err := r.List(t.Context(), "acme", after, 1)
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			break
		}
		after = page[0].Name
		names = append(names, after)
	}
	if !slices.Equal(names, []string{"api", "b.c"}) {
		t.Errorf("the secrets of acme are %q", names)
	}
	if err := r.Delete(t.Context(), "acme", "api"); err != nil {
		t.Error(err)
	}
	if err := r.Delete(t.Context(), "acme", "api"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("deleted twice: %v", err)
	}
	r.expect("deleted", "acme", "api", "")
	r.expect("not deleted", "acme", "b.c", "s3cret-3")
	for _, written := range records.writes {
		if bytes.Contains(written, []byte("s3cret")) {
			t.Errorf("the store is given %s", written)
		}
	}
}

// A secret with destinations goes nowhere else, even if its record is altered.
func TestDestinations(t *testing.T) {
	records := newRecords()
	r := open(t, records, ring(t, 1))
	r.put("acme", "bound", "s3cret", anywhere, "kafka topic orders")
	for to, want := range map[string]string{
		anywhere: "s3cret", "kafka topic orders": "s3cret", "http https://evil.example.com": "", "http https://api.example.com:8443": "",
		"http https://api.example.com.evil.example": "", "": "",
	} {
		if got, err := r.Secret(t.Context(), "acme", "bound", to); got != want || (err == nil) != (want != "") {
			t.Errorf("to %q goes %q, %v", to, got, err)
		}
		err := r.Check(t.Context(), "acme", "bound", to)
		if _, unusable := errors.AsType[*secrets.UnusableError](err); unusable == (want != "") || !unusable && err != nil {
			t.Errorf("to %q is refused for %v", to, err)
		}
	}
	changeRecord(t, records, "secrets", "acme/bound", func(body []byte) []byte {
		return bytes.ReplaceAll(body, []byte("https://api.example.com"), []byte("https://evil.example.com"))
	})
	other := open(t, records, ring(t, 1))
	if got, err := other.Secret(t.Context(), "acme", "bound", "http https://evil.example.com"); err == nil {
		t.Errorf("after the record was changed, %q goes elsewhere", got)
	}
}

// changeRecord changes a record in the store itself, as an attacker with write access could.
func changeRecord(t *testing.T, records store.Records, collection, key string, change func([]byte) []byte) {
	t.Helper()
	now := time.Now()
	found, err := records.Records(t.Context(), store.RecordFilter{Collection: collection, Keys: []string{key}, Limit: 1, Now: now})
	if err != nil || len(found) != 1 {
		t.Fatalf("%s: %v, %v", key, found, err)
	}
	put(t, records, collection, key, change(found[0].Body))
}

func put(t *testing.T, records store.Records, collection, key string, body []byte) {
	t.Helper()
	now := time.Now()
	err := records.WriteRecords(t.Context(), []store.RecordChange{
		{Collection: collection, Key: key, Version: job.NewRevision(now), Body: body, Now: now},
	})[0]
	if err != nil {
		t.Fatal(err)
	}
}

func TestValueCheck(t *testing.T) {
	for name, test := range map[string]struct {
		value secrets.Value
		want  string // the pointer
	}{
		"empty":               {secrets.Value{}, "/value"},
		"too long":            {secrets.Value{Text: strings.Repeat("x", secrets.MaxValueBytes+1)}, "/value"},
		"as long as possible": {secrets.Value{Text: strings.Repeat("x", secrets.MaxValueBytes)}, ""},
		"line break":          {secrets.Value{Text: "a\r\nX-Evil: 1"}, "/value"},
		"beyond ASCII":        {secrets.Value{Text: "schlüssel"}, "/value"},
		"space at the end":    {secrets.Value{Text: "s3cret "}, "/value"},
		"space inside":        {secrets.Value{Text: "Bearer s3cret"}, ""},
		"destinations":        {secrets.Value{Text: "s3cret", Destinations: []string{anywhere, "rabbitmq queue a b"}}, ""},
		"a bare URL":          {secrets.Value{Text: "s3cret", Destinations: []string{anywhere, "https://a.example.com"}}, "/destinations/1"},
		"too many": {secrets.Value{Text: "s3cret", Destinations: slices.Repeat([]string{anywhere}, secrets.MaxDestinations+1)},
			"/destinations"},
	} {
		var invalid job.Invalid
		test.value.Check(&invalid)
		if got := len(invalid.Fields); (got == 0) != (test.want == "") || got > 0 && invalid.Fields[0].Pointer != test.want {
			t.Errorf("%s: %+v, want %q", name, invalid.Fields, test.want)
		}
		if err := invalid.Err(); err != nil && test.value.Text != "" && strings.Contains(err.Error(), test.value.Text) {
			t.Errorf("%s: the error quotes the value: %v", name, err)
		}
	}
}

// A sealed value can be opened only in its own place, and only unaltered.
func TestSealedAreBoundToTheirPlaces(t *testing.T) {
	records := newRecords()
	r := open(t, records, ring(t, 1))
	r.put("acme", "api", "s3cret")
	bodyOf := func(key string) []byte {
		found, err := records.Records(t.Context(), store.RecordFilter{Collection: "secrets", Keys: []string{key}, Limit: 1, Now: time.Now()})
		if err != nil || len(found) != 1 {
			t.Fatal(found, err)
		}
		return found[0].Body
	}
	sealed := bodyOf("acme/api")
	for _, place := range [][2]string{
		{"secrets", "acme/api2"}, {"secrets", "acm/eapi"}, {"secrets", "other/api"}, {"signing-secrets", "acme/api"}, {"secrets", "acme/"},
	} {
		put(t, records, place[0], place[1], sealed)
	}
	put(t, records, "secrets", "acme/cut", []byte(`{"keyId":`))
	put(t, records, "secrets", "acme/short", bytes.Replace(sealed, []byte(`"sealed":"`), []byte(`"sealed":"AAAA`), 1))
	put(t, records, "secrets", "acme/empty", []byte(`{"keyId":"`+ring(t, 1).Encrypting()+`"}`))
	other := open(t, records, ring(t, 1))
	other.expect("in its place", "acme", "api", "s3cret")
	for _, name := range []string{"api2", "cut", "short", "empty"} {
		other.expect("moved or damaged", "acme", name, "")
	}
	other.expect("of another tenant", "other", "api", "")
	if _, err := other.Sign(t.Context(), "acme", "api", "id", epoch, nil); err == nil {
		t.Error("a named secret signs")
	}
	if so := other.Status(); so.Unreadable != 8 || so.Named+so.Signing != 9 {
		t.Errorf("the status is %+v", so)
	}
	if strings.Contains(other.log.String(), "s3cret") || !strings.Contains(other.log.String(), "can't be decrypted") {
		t.Errorf("the log has %s", other.log)
	}
}

func TestKeys(t *testing.T) {
	records := newRecords()
	none := open(t, records, &secrets.Keyring{})
	if _, _, err := none.Put(t.Context(), "acme", "api", secrets.Value{Text: "s3cret"}, epoch); !errors.Is(err, secrets.ErrNoKey) {
		t.Errorf("without a key: %v", err)
	}
	if _, _, err := none.CreateSigning(t.Context(), "acme", "default", secrets.NewSigning{}, epoch); !errors.Is(err, secrets.ErrNoKey) {
		t.Errorf("without a key: %v", err)
	}
	open(t, records, ring(t, 1)).put("acme", "api", "s3cret")
	open(t, records, ring(t, 2, 1)).put("acme", "other", "s3cret-2")
	open(t, records, ring(t, 1, 2)).expect("both keys", "acme", "other", "s3cret-2")

	for _, given := range []*secrets.Keyring{{}, ring(t, 1), ring(t, 3, 1)} {
		err := secrets.New(records, given, slog.New(slog.DiscardHandler)).Load(t.Context())
		missing, ok := errors.AsType[*secrets.MissingKeyError](err)
		if !ok || !slices.Contains(missing.IDs, ring(t, 2).Encrypting()) || !strings.Contains(err.Error(), missing.IDs[0]) {
			t.Errorf("with %s: %v", given.Encrypting(), err)
		}
	}
	if a, b := ring(t, 1).Encrypting(), ring(t, 2).Encrypting(); a == b || len(a) != 16 {
		t.Errorf("the keys have the ids %s and %s", a, b)
	}
	// A replica that does not have a newer key logs that, and uses the secrets that it can open.
	late := open(t, newRecords(), ring(t, 1))
	late.Secrets = secrets.New(records, ring(t, 1), slog.New(slog.NewTextHandler(late.log, nil)))
	if err := late.Refresh(t.Context()); err != nil {
		t.Error(err)
	}
	late.expect("readable", "acme", "api", "s3cret")
	late.expect("unreadable", "acme", "other", "")
	if _, err := late.Secret(t.Context(), "acme", "other", anywhere); err == nil || !strings.Contains(err.Error(), ring(t, 2).Encrypting()) {
		t.Errorf("the error is %v", err)
	}
	if !strings.Contains(late.log.String(), ring(t, 2).Encrypting()) {
		t.Errorf("the log has %s", late.log)
	}
}

// Another replica's change shows in time, and costs one small reading until then.
func TestStaleness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records := newRecords()
		writer, reader := open(t, records, ring(t, 1)), open(t, records, ring(t, 1))
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { reader.Run(ctx) })
		defer func() { stop(); running.Wait() }()

		writer.put("acme", "api", "s3cret-1")
		reader.expect("one that is missing is looked for at once", "acme", "api", "s3cret-1")
		writer.put("acme", "api", "s3cret-2")
		time.Sleep(secrets.Staleness)
		reader.expect("replaced", "acme", "api", "s3cret-2")
		if _, _, err := writer.CreateSigning(t.Context(), "acme", "default", secrets.NewSigning{}, epoch); err != nil {
			t.Error(err)
		}
		time.Sleep(secrets.Staleness)
		if signature, err := reader.Sign(t.Context(), "acme", "", "id", epoch, nil); err != nil || signature == "" {
			t.Errorf("signed by %q, %v", signature, err)
		}
		if err := writer.Delete(t.Context(), "acme", "api"); err != nil {
			t.Error(err)
		}
		time.Sleep(secrets.Staleness)
		reader.expect("deleted", "acme", "api", "")

		records.taken()
		time.Sleep(30 * time.Second)
		if reads := records.taken(); reads["secrets"] != 0 || reads["secrets-changes"] > 12 {
			t.Errorf("while nothing changes, these are read: %v", reads)
		}
		for range 1000 { // one that there is not is not asked for again and again
			reader.expect("missing", "acme", "nothing", "")
		}
		if reads := records.taken(); reads["secrets-changes"] > 2 { // one of them by Run
			t.Errorf("a thousand missing secrets cost %v", reads)
		}
		// A writer that died before it noted its change is noticed all the same.
		changeRecord(t, records, "signing-secrets", "acme/default", func([]byte) []byte { return nil })
		time.Sleep(time.Minute + secrets.Staleness)
		if signature, err := reader.Sign(t.Context(), "acme", "", "id", epoch, nil); err != nil || signature != "" {
			t.Errorf("signed by %q, %v", signature, err)
		}
	})
}

// An outage of the store takes nothing from a replica that it has, for however long.
func TestOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records := newRecords()
		writer, reader := open(t, records, ring(t, 1)), open(t, records, ring(t, 1))
		writer.put("acme", "api", "s3cret-1")
		if _, _, err := writer.CreateSigning(t.Context(), "acme", "default", secrets.NewSigning{}, epoch); err != nil {
			t.Error(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { reader.Run(ctx) })
		time.Sleep(secrets.Staleness)
		records.fail(fmt.Errorf("%w: as asked", store.ErrUnavailable))
		time.Sleep(time.Hour)
		reader.expect("in the outage", "acme", "api", "s3cret-1")
		reader.expect("missing in the outage", "acme", "nothing", "")
		if signature, err := reader.Sign(t.Context(), "acme", "", "id", epoch, nil); err != nil || signature == "" {
			t.Errorf("signed by %q, %v", signature, err)
		}
		if age := time.Since(reader.Status().Checked); age < 59*time.Minute {
			t.Errorf("they are %s old", age)
		}
		if err := reader.Check(t.Context(), "acme", "nothing", anywhere); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("whether it is there is answered with %v", err)
		}
		records.fail(nil)
		writer.put("acme", "api", "s3cret-2")
		time.Sleep(secrets.Staleness)
		reader.expect("after the outage", "acme", "api", "s3cret-2")
		stop()
		running.Wait()
		if n := strings.Count(reader.log.String(), "can't be read"); n != 1 {
			t.Errorf("the outage is logged %d times", n)
		}
	})
	err := secrets.New(&countingRecords{Store: memory.New(), reads: map[string]int{}, fault: store.ErrUnavailable}, ring(t, 1),
		slog.New(slog.DiscardHandler)).Load(t.Context())
	if !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("at the start it is %v", err)
	}
}

// Several pages of secrets are read, and those of one page are not mistaken for all.
func TestManySecrets(t *testing.T) {
	records := newRecords()
	keys := ring(t, 1)
	r := open(t, records, keys)
	r.put("acme", "a", "s3cret")
	const n = 2500
	var all []store.RecordChange
	now := time.Now()
	for i := range n {
		all = append(all, store.RecordChange{
			Collection: "secrets", Key: fmt.Sprintf("t%04d/x", i), Version: job.NewRevision(now), Body: []byte("{}"), Now: now,
		})
	}
	if err := errors.Join(records.WriteRecords(t.Context(), all)...); err != nil {
		t.Fatal(err)
	}
	if err := r.Delete(t.Context(), "t0000", "x"); err != nil {
		t.Error(err)
	}
	if so := r.Status(); so.Named != n || so.Unreadable != n-1 {
		t.Errorf("the status is %+v", so)
	}
}

// A tenant has no more secrets than fit, of both kinds together; those that it has can be replaced, and others have room.
func TestTooManySecrets(t *testing.T) {
	records := newRecords()
	var all []store.RecordChange
	now := time.Now()
	for i := range secrets.MaxPerTenant - 1 {
		all = append(all, store.RecordChange{
			Collection: []string{"secrets", "signing-secrets"}[i%2], Key: fmt.Sprintf("acme/s%d", i), Version: job.NewRevision(now), Body: []byte("{}"),
			Now: now,
		})
	}
	if err := errors.Join(records.WriteRecords(t.Context(), all)...); err != nil {
		t.Fatal(err)
	}
	r := &replica{TB: t, Secrets: secrets.New(records, ring(t, 1), slog.New(slog.DiscardHandler))}
	if err := r.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.put("acme", "last", "s3cret")
	if _, _, err := r.Put(t.Context(), "acme", "more", secrets.Value{Text: "s3cret"}, epoch); !errors.Is(err, secrets.ErrTooMany) {
		t.Errorf("one more: %v", err)
	}
	if _, _, err := r.CreateSigning(t.Context(), "acme", "more", secrets.NewSigning{}, epoch); !errors.Is(err, secrets.ErrTooMany) {
		t.Errorf("one more for signing: %v", err)
	}
	r.put("acme", "last", "s3cret-2")
	r.put("acme2", "first", "s3cret")
	if err := r.Delete(t.Context(), "acme", "last"); err != nil {
		t.Error(err)
	}
	if _, _, err := r.CreateSigning(t.Context(), "acme", "more", secrets.NewSigning{}, epoch); err != nil {
		t.Errorf("in place of another: %v", err)
	}
}

// A change that another overtakes, after it has read and before it writes, undoes nothing of that.
func TestOvertakenChanges(t *testing.T) {
	records := newRecords()
	old, other := open(t, records, ring(t, 1)), open(t, records, ring(t, 2, 1))
	meet := func(do func()) {
		records.mu.Lock()
		defer records.mu.Unlock()
		records.meets = do
	}
	old.put("acme", "a", "before")
	meet(func() { other.put("acme", "a", "after") })
	all := secrets.New(records, ring(t, 2, 1), slog.New(slog.DiscardHandler))
	if so, err := all.Reencrypt(t.Context()); err != nil || so.Before != 1 || so.Done != 0 {
		t.Errorf("encrypted anew: %+v, %v", so, err)
	}
	other.expect("replaced while it was encrypted anew", "acme", "a", "after")

	meet(func() {
		if err := other.Delete(t.Context(), "acme", "a"); err != nil {
			t.Error(err)
		}
	})
	old.put("acme", "a", "again")
	other.expect("deleted while it was replaced", "acme", "a", "again")

	meet(func() {
		if _, _, err := other.CreateSigning(t.Context(), "acme", "default", secrets.NewSigning{}, epoch); err != nil {
			t.Error(err)
		}
	})
	if _, _, err := old.CreateSigning(t.Context(), "acme", "default", secrets.NewSigning{}, epoch); !errors.Is(err, secrets.ErrExists) {
		t.Errorf("made while another was made: %v", err)
	}
	var theirs string
	meet(func() {
		var err error
		if theirs, _, err = other.Rotate(t.Context(), "acme", "default", "", time.Hour, epoch); err != nil {
			t.Error(err)
		}
	})
	both := open(t, records, ring(t, 2, 1))
	ours, _, err := both.Rotate(t.Context(), "acme", "default", "", time.Hour, epoch)
	if err != nil {
		t.Fatal(err)
	}
	signature, err := both.Sign(t.Context(), "acme", "", "id", epoch, nil)
	if err != nil || !verifies(t, ours, "id", epoch, nil, signature) || !verifies(t, theirs, "id", epoch, nil, signature) {
		t.Errorf("of two rotations at once, one signs not: %q, %v", signature, err)
	}
}
