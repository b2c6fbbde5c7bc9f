package handlers_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/handlers"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

type letters struct {
	Items []struct {
		ID, DeliveryID, Key, Timestamp, FailedAt, Error string
		Attempt                                         int
		Callback                                        struct{ Type string }
	}
	NextCursor string
}

// bury makes each of the keys' only occurrence a dead letter.
func bury(a *api, keys ...string) {
	a.Helper()
	var lines []string
	for i, key := range keys {
		lines = append(lines, body(key, -time.Duration(len(keys)-i)*time.Second))
	}
	a.call("POST", "/v1/jobs/batch", strings.Join(lines, "\n"), "Content-Type: application/x-ndjson").want(200)
	for claimed := a.claim(); len(claimed) > 0; claimed = a.claim() {
		for _, c := range claimed {
			a.settle(c, store.Bury, "410 Gone")
		}
	}
}

func deadLetters(a *api, query string) letters {
	a.Helper()
	return decode[letters](a.call("GET", "/v1/dead-letters"+query, "").want(200))
}

func (l letters) keys() []string {
	var keys []string
	for _, o := range l.Items {
		keys = append(keys, o.Key)
	}
	return keys
}

func TestDeadLettersAreListed(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	if got := deadLetters(a, ""); len(got.Items) != 0 {
		t.Fatalf("%+v", got)
	}
	bury(a, "p/a", "p/b", "p", "q")
	for query, want := range map[string][]string{
		"": {"p/a", "p/b", "p", "q"}, "?prefix=p": {"p/a", "p/b", "p"}, "?prefix=p%2F": {"p/a", "p/b"}, "?key=p": {"p"}, "?key=x": nil,
	} {
		if got := deadLetters(a, query).keys(); !slices.Equal(got, want) {
			t.Errorf("%q: %v, want %v", query, got, want)
		}
	}
	o := deadLetters(a, "?key=q").Items[0]
	if o.Timestamp != at(-time.Second) || o.FailedAt != at(0) || o.Attempt != 1 || o.Error != "410 Gone" || o.Callback.Type != "http" {
		t.Errorf("%+v", o)
	}
	first := deadLetters(a, "?limit=3")
	second := deadLetters(a, "?limit=3&cursor="+first.NextCursor)
	if got := append(first.keys(), second.keys()...); !slices.Equal(got, []string{"p/a", "p/b", "p", "q"}) || second.NextCursor != "" {
		t.Errorf("paged: %v", got)
	}
}

func TestRedriveOne(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*api){
		"finished": func(*api) {},
		"replaced": func(a *api) { a.call("PUT", "/v1/jobs/a", body("a", time.Hour)).want(200) },
		"gone":     func(a *api) { a.call("DELETE", "/v1/jobs/a", "").want(200) },
	} {
		t.Run("its job is "+name, func(t *testing.T) {
			a := newAPI(t)
			bury(a, "a")
			id := deadLetters(a, "").Items[0].ID
			change(a)
			a.takeWakes()
			a.advance(time.Minute)
			if got := string(a.call("POST", "/v1/dead-letters/"+id+"/redrive", "").want(200).body); got != `{"redriven":1}` {
				t.Errorf("%s", got)
			}
			if got := a.takeWakes(); !slices.Equal(got, []time.Time{start.Add(time.Minute)}) {
				t.Errorf("woken for %v", got)
			}
			claimed := a.claim()
			if len(claimed) != 1 || claimed[0].ID.String() != id || claimed[0].Attempt != 1 || string(claimed[0].Callback.Data) != "1" {
				t.Errorf("claimed %+v", claimed)
			}
			a.call("POST", "/v1/dead-letters/"+id+"/redrive", "").want(404)
		})
	}
}

func TestRedrivenAloneIsNoJobButCanBeCancelled(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	bury(a, "a")
	a.call("DELETE", "/v1/jobs/a", "").want(200)
	a.call("POST", "/v1/dead-letters/redrive?key=a", "").want(200)
	a.call("GET", "/v1/jobs/a", "").want(404)
	if got := string(a.call("DELETE", "/v1/jobs/a", "").want(200).body); got != `{"cancelled":1,"inFlight":0}` {
		t.Errorf("%s", got)
	}
}

func TestRedriveMany(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	keys := make([]string, 1203) // more than two slices
	for i := range keys {
		keys[i] = fmt.Sprintf("p/%04d", i)
	}
	bury(a, append(keys, "q", "p")...)
	a.takeWakes()
	if got := string(a.call("POST", "/v1/dead-letters/redrive?key=q", "").want(200).body); got != `{"redriven":1}` {
		t.Errorf("by key: %s", got)
	}
	if len(a.takeWakes()) == 0 {
		t.Error("no one was woken")
	}
	if got := string(a.call("POST", "/v1/dead-letters/redrive?prefix=p%2F", "").want(200).body); got != `{"redriven":1203}` {
		t.Errorf("by prefix: %s", got)
	}
	if got := deadLetters(a, "").keys(); !slices.Equal(got, []string{"p"}) {
		t.Errorf("left: %v", got)
	}
	a.takeWakes()
	if got := string(a.call("POST", "/v1/dead-letters/redrive?prefix=p%2F", "").want(200).body); got != `{"redriven":0}` {
		t.Errorf("again: %s", got)
	}
	if got := a.takeWakes(); len(got) > 0 {
		t.Errorf("woken for nothing: %v", got)
	}
}

func TestDeleteDeadLetter(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	bury(a, "a", "b")
	id := deadLetters(a, "?key=a").Items[0].ID
	if got := a.call("DELETE", "/v1/dead-letters/"+id, "").want(204); len(got.body) > 0 {
		t.Errorf("%s", got.body)
	}
	a.call("DELETE", "/v1/dead-letters/"+id, "").want(404)
	a.call("DELETE", "/v1/dead-letters/nonsense", "").want(404)
	a.call("POST", "/v1/dead-letters/nonsense/redrive", "").want(404)
	if got := deadLetters(a, "").keys(); !slices.Equal(got, []string{"b"}) {
		t.Errorf("left: %v", got)
	}
}

func TestManyDeadLettersOfTheTenant(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ method, path, answer string }{
		"redrive": {"POST", "/v1/dead-letters/redrive", "redriven"}, "delete": {"DELETE", "/v1/dead-letters", "deleted"},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t)
			var keys []string
			for i := range 700 { // more than a slice
				keys = append(keys, fmt.Sprintf("p/%04d", i))
			}
			bury(a, append(keys, "q", "r")...)
			a.call("PUT", "/v1/jobs/k", body("k", -time.Second), ofAcme).want(201)
			for _, c := range a.claim() {
				a.settle(c, store.Bury, "410 Gone")
			}
			for _, bad := range []string{"", "?all=false", "?all", "?all=true&key=q", "?all=true&prefix=p", "?key=q&prefix=p"} {
				if got := a.call(test.method, test.path+bad, "").want(422).problem(); len(got.Errors) != 1 {
					t.Errorf("%q: %+v", bad, got)
				}
			}
			for _, step := range []struct {
				query string
				n     int
			}{{"?key=q", 1}, {"?prefix=p%2F", 700}, {"?all=true", 1}, {"?all=true", 0}} {
				want := fmt.Sprintf(`{"%s":%d}`, test.answer, step.n)
				if got := string(a.call(test.method, test.path+step.query, "").want(200).body); got != want {
					t.Errorf("%s: %s, want %s", step.query, got, want)
				}
			}
			if got := decode[letters](a.call("GET", "/v1/dead-letters", "", ofAcme).want(200)); len(got.Items) != 1 {
				t.Errorf("another tenant has %d left, want 1", len(got.Items))
			}
			if due := len(a.claim()); (due > 0) != (name == "redrive") {
				t.Errorf("%d are due", due)
			}
		})
	}
}

// A cancellation by prefix with a limit takes a part of the jobs, and its cursor continues behind that part.
func TestCancelInParts(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	for i := range 7 {
		a.call("PUT", fmt.Sprintf("/v1/jobs/p%%2F%d", i), body(fmt.Sprint("p/", i), time.Hour)).want(201)
	}
	a.call("PUT", "/v1/jobs/q", body("q", time.Hour)).want(201)
	type part struct {
		Jobs, Cancelled int
		NextCursor      string
	}
	var parts []int
	for cursor, first := "", true; first || cursor != ""; first = false {
		got := decode[part](a.call("DELETE", "/v1/jobs?prefix=p%2F&limit=3"+cursor, "").want(200))
		if parts = append(parts, got.Jobs); got.Cancelled != got.Jobs {
			t.Errorf("%+v", got)
		}
		if cursor = got.NextCursor; cursor != "" {
			cursor = "&cursor=" + cursor
		}
	}
	if !slices.Equal(parts, []int{3, 3, 1}) {
		t.Errorf("in parts: %v", parts)
	}
	a.call("GET", "/v1/jobs/q", "").want(200)
	for bad, names := range map[string]string{
		"?prefix=p&limit=0": "limit", "?prefix=p&limit=1001": "limit", "?prefix=p&cursor=cA": "cursor", "?prefix=p&limit=1&cursor=!": "cursor",
	} {
		if got := a.call("DELETE", "/v1/jobs"+bad, "").want(422).problem().named(); !slices.Equal(got, []string{"?" + names}) {
			t.Errorf("%q: %v", bad, got)
		}
	}
}

// A request with a limit takes a part, and its cursor continues behind that part, even if deliveries fail again
// meanwhile.
func TestManyDeadLettersInParts(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ method, path string }{
		"redrive": {"POST", "/v1/dead-letters/redrive"}, "delete": {"DELETE", "/v1/dead-letters"},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t)
			var keys []string
			for i := range 700 { // more than a slice
				keys = append(keys, fmt.Sprintf("p/%04d", i))
			}
			bury(a, append(keys, "q")...)
			var parts []int
			for cursor, first := "", true; first || cursor != ""; first = false {
				got := decode[struct {
					Redriven, Deleted int
					NextCursor        string
				}](a.call(test.method, test.path+"?prefix=p%2F&limit=600"+cursor, "").want(200))
				parts = append(parts, got.Redriven+got.Deleted)
				for _, c := range a.claim() {
					a.settle(c, store.Bury, "410 Gone")
				}
				if cursor = got.NextCursor; cursor != "" {
					cursor = "&cursor=" + cursor
				}
			}
			if !slices.Equal(parts, []int{600, 100}) {
				t.Errorf("in parts: %v", parts)
			}
			for bad, names := range map[string]string{
				"?all=true&limit=0": "limit", "?all=true&limit=1001": "limit", "?all=true&cursor=" + strings.Repeat("0", 26): "cursor",
				"?all=true&limit=1&cursor=x": "cursor", "?limit=1": "key",
			} {
				got := a.call(test.method, test.path+bad, "").want(422).problem().named()
				if !slices.Equal(got, []string{"?" + names}) {
					t.Errorf("%q: %v", bad, got)
				}
			}
		})
	}
}

// slicesFail is a store that is unavailable for some slices of long requests, and changes nothing then.
type slicesFail struct {
	jobStore
	calls int
	first bool // all of them, or those after the first one
}

func (s *slicesFail) failing() error {
	if s.calls++; s.first || s.calls > 1 {
		return store.ErrNotDone
	}
	return nil
}

func (s *slicesFail) Cancel(ctx context.Context, names []job.Name, asked store.Asked) ([]store.CancelResult, error) {
	if err := s.failing(); err != nil {
		return nil, err
	}
	return s.jobStore.Cancel(ctx, names, asked)
}

func (s *slicesFail) SettleDead(ctx context.Context, d store.DeadSettlement) (int, error) {
	if err := s.failing(); err != nil {
		return 0, err
	}
	return s.jobStore.SettleDead(ctx, d)
}

// TestSlicesFail: a request that fails in a later slice does not tell that nothing was changed: the slices before hold.
func TestSlicesFail(t *testing.T) {
	t.Parallel()
	for name, request := range map[string][2]string{
		"cancel":  {"DELETE", "/v1/jobs?prefix=p"},
		"redrive": {"POST", "/v1/dead-letters/redrive?prefix=p"},
		"delete":  {"DELETE", "/v1/dead-letters?prefix=p"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, first := range []bool{false, true} {
				s := &slicesFail{first: first}
				a := newAPI(t, func(c *handlers.Config) { s.jobStore, c.Store = c.Store, s })
				var keys []string
				for i := range 700 { // more than a slice
					keys = append(keys, fmt.Sprintf("p/%04d", i))
				}
				bury(a, keys...)
				unchanged := strings.Contains(a.call(request[0], request[1], "").want(503).problem().Detail, "nothing was changed")
				if unchanged != first {
					t.Errorf("all slices fail: %t; it is told that nothing was changed: %t", first, unchanged)
				}
			}
		})
	}
}

func TestPendingOccurrenceIsNoDeadLetter(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.call("PUT", "/v1/jobs/a", body("a", time.Hour)).want(201)
	id := decode[definition](a.call("GET", "/v1/jobs/a", "")).Occurrences[0].ID
	a.call("DELETE", "/v1/dead-letters/"+id, "").want(404)
	a.call("POST", "/v1/dead-letters/"+id+"/redrive", "").want(404)
}

// A page of dead letters with large payloads ends early, and the cursor continues from there.
func TestDeadLetterPagesAreBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector sees the same in other tests")
	}
	t.Parallel()
	type page = letters
	const count, size = 60, 200_000
	a := newAPI(t, func(c *handlers.Config) { c.Limits.Payload, c.MaxBody = 2*size, 4*size })
	for i := range count {
		large := map[string]any{"type": "http", "data": strings.Repeat("x", size)}
		a.call("POST", "/v1/jobs", with(body(fmt.Sprintf("k%02d", i), -time.Second), "callback", large)).want(201)
	}
	for claimed := a.claim(); len(claimed) > 0; claimed = a.claim() {
		for _, c := range claimed {
			a.settle(c, store.Bury, "410 Gone")
		}
	}
	seen, pages := map[string]bool{}, 0
	for cursor := ""; ; pages++ {
		got := a.call("GET", "/v1/dead-letters?limit=1000"+cursor, "").want(200)
		if len(got.body) > 10<<20 {
			t.Errorf("a page of %d bytes", len(got.body))
		}
		p := decode[page](got)
		for _, key := range p.keys() {
			seen[key] = true
		}
		if p.NextCursor == "" {
			break
		}
		cursor = "&cursor=" + p.NextCursor
	}
	if len(seen) != count || pages == 0 {
		t.Errorf("%d of %d dead letters on %d pages and one", len(seen), count, pages)
	}
}

// A cancel by prefix includes redriven occurrences, whether or not their jobs still exist.
func TestCancelByPrefixTakesTheRedriven(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	bury(a, "p/gone", "p/there", "q")
	a.call("DELETE", "/v1/jobs/p%2Fgone", "").want(200)
	a.call("POST", "/v1/dead-letters/redrive?prefix=p", "").want(200)
	a.call("POST", "/v1/dead-letters/redrive?prefix=q", "").want(200)
	if got := string(a.call("DELETE", "/v1/jobs?prefix=p%2F", "").want(200).body); got != `{"jobs":1,"cancelled":2,"inFlight":0}` {
		t.Errorf("%s", got)
	}
	if claimed := a.claim(); len(claimed) != 1 || claimed[0].Name.Key != "q" {
		t.Errorf("claimed %+v", claimed)
	}
}
