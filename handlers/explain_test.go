package handlers_test

import (
	"context"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/handlers"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// explanation is an answer as clients read it. Package explain tests the explanation of each situation.
type explanation struct {
	Key, Tenant, At, Code, Summary, AsOf string
	Facts                                []struct{ Code, Text string }
	Occurrence                           *struct{ ID, State string }
	Nearest                              []string
}

func TestExplain(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.call("PUT", "/v1/jobs/a%2Fb", body("a/b", time.Hour)).want(201)
	next := decode[explanation](a.call("GET", "/v1/jobs/a%2Fb/explain", "").want(200))
	if next.Code != "waiting" || next.Key != "a/b" || next.Tenant != job.DefaultTenant || next.Occurrence == nil ||
		next.At != job.FormatTime(start.Add(time.Hour)) || next.AsOf != job.FormatTime(start) {
		t.Errorf("got %+v", next)
	}
	for _, at := range []string{"next", "2030-01-01T13:00:00Z", "2030-01-01T14:00:00+01:00"} {
		got := decode[explanation](a.call("GET", "/v1/jobs/a%2Fb/explain?at="+url.QueryEscape(at), "").want(200))
		if got.Summary != next.Summary || got.Code != next.Code {
			t.Errorf("at %s: %+v", at, got)
		}
	}
	a.advance(time.Hour)
	held := a.claim()
	if got := decode[explanation](a.call("GET", "/v1/jobs/a%2Fb/explain", "").want(200)); got.Code != "held" || got.Occurrence.State != "held" {
		t.Errorf("held: %+v", got)
	}
	a.settle(held[0], store.Bury, "410 Gone")
	got := decode[explanation](a.call("GET", "/v1/jobs/a%2Fb/explain?at=last", "").want(200))
	if got.Code != "dead" || got.Occurrence.State != "dead" || got.Occurrence.ID != held[0].ID.String() {
		t.Errorf("dead: %+v", got)
	}
}

func TestExplainRefusals(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	for query, names := range map[string]string{
		"at=":                         "?at",
		"at=tomorrow":                 "?at",
		"at=2030-02-30T00%3A00%3A00Z": "?at",
		"at=1969-12-31T23%3A59%3A59Z": "?at",
		"at=next&at=last":             "?at",
		"when=next":                   "?when",
	} {
		got := a.call("GET", "/v1/jobs/k/explain?"+query, "")
		if got.status != 400 && got.status != 422 || strings.Join(got.problem().named(), " ") != names {
			t.Errorf("%s: %d %s", query, got.status, got.body)
		}
	}
	if text := string(a.call("GET", "/v1/jobs/k/explain?at=tomorrow", "").body); !strings.Contains(text, "is neither next nor last, and as an instant it must") {
		t.Errorf("the error does not say what would be right: %s", text)
	}
	a.call("GET", "/v1/jobs/k/explain", "").want(200)
	a.store.setFault(store.ErrUnavailable)
	a.call("GET", "/v1/jobs/k/explain", "").want(503)
}

// The explanation reads a bounded part of the store, however much the job has.
func TestExplainReadsFewOccurrences(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.call("PUT", "/v1/jobs/k", body("k", time.Hour)).want(201)
	a.store.takeListed()
	for _, at := range []string{"next", "last", job.FormatTime(start.Add(time.Hour))} {
		a.call("GET", "/v1/jobs/k/explain?at="+url.QueryEscape(at), "").want(200)
		listed := a.store.takeListed()
		if len(listed) == 0 || len(listed) > 2 {
			t.Errorf("%s: occurrences were listed %d times", at, len(listed))
		}
		for _, f := range listed {
			if f.Limit > 101 || f.Count {
				t.Errorf("%s: occurrences were listed by %+v", at, f)
			}
		}
	}
}

// A tenant's pause has its beginning and its principal, until it ends.
func TestTenantPauseIsKnown(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	type tenant struct{ PausedAt, PausedBy string }
	a.advance(time.Minute)
	first := decode[tenant](a.call("PUT", "/v1/tenants/acme", `{"paused":true}`).want(201))
	a.advance(time.Minute)
	a.call("PUT", "/v1/tenants/acme", `{"paused":true,"weight":2}`).want(200)
	got := decode[tenant](a.call("GET", "/v1/tenants/acme", "").want(200))
	if want := (tenant{job.FormatTime(start.Add(time.Minute)), "anyone"}); first != want || got != want {
		t.Errorf("got %+v and %+v, want %+v", first, got, want)
	}
	a.call("PUT", "/v1/tenants/acme", `{"paused":false,"weight":2}`).want(200)
	if got := decode[tenant](a.call("GET", "/v1/tenants/acme", "").want(200)); got != (tenant{}) {
		t.Errorf("it is resumed: %+v", got)
	}
}

// betweenReads is a store in which something happens before occurrences are listed for the first time.
type betweenReads struct {
	store.Store
	happens func()
}

func (s *betweenReads) Occurrences(ctx context.Context, f store.OccurrenceFilter) ([]job.Occurrence, int, error) {
	if happens := s.happens; happens != nil {
		s.happens = nil
		happens()
	}
	return s.Store.Occurrences(ctx, f)
}

// A job that is replaced while it is explained is not explained as if its instants had been delivered.
func TestExplainWhileTheJobIsReplaced(t *testing.T) {
	t.Parallel()
	between := &betweenReads{}
	a := newAPI(t, func(c *handlers.Config) {
		between.Store = c.Store.(store.Store)
		c.Store = between
	})
	a.call("PUT", "/v1/jobs/k", body("k", time.Hour)).want(201)
	between.happens = func() { a.call("PUT", "/v1/jobs/k", body("k", 2*time.Hour)).want(200) }
	a.advance(time.Minute)
	at := url.QueryEscape(job.FormatTime(start.Add(time.Hour)))
	if got := decode[explanation](a.call("GET", "/v1/jobs/k/explain?at="+at, "").want(200)); got.Code != "no_such_instant" {
		t.Errorf("got %+v", got)
	}
}
