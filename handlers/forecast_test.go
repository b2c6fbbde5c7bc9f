package handlers_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/access"
	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/forecast"
	"github.com/carillon-scheduler/carillon/handlers"
	"github.com/carillon-scheduler/carillon/store"
)

// forecastOf is a forecast in the form of the answer.
type forecastOf struct {
	AsOf, From, To, Step string
	Rate                 *struct {
		PerSecond float64
		Source    string
	}
	Steps []struct {
		From      string
		Count     int
		Left      *int
		DrainedAt string
		Tenants   []struct {
			Tenant string
			Count  int
		}
		Destinations []struct {
			Destination, DrainedAt string
			Count                  int
		}
		Priorities []struct {
			Priority string
			Count    int
		}
	}
	Total, Paused, Unknown int
	Incomplete             bool
	Unmatched              []string
}

// A forecast counts the submitted occurrences by tenant, destination and priority, and has the times at which they are
// drained.
func TestForecast(t *testing.T) {
	a := newAPI(t, byData)
	put := func(tenant, key, rest string) {
		a.call("PUT", "/v1/jobs/"+key, `{"callback":{"type":"http","data":"`+key+`"},`+rest+`}`, "Carillon-Tenant: "+tenant).want(201)
	}
	put("acme", "list", `"schedules":["2030-01-01T12:00:00Z","2030-01-01T12:59:59.999Z","2030-01-01T13:00:00Z","2030-02-01T00:00:00Z"]`)
	put("acme", "cron", `"crontab":"*/10 * * * *","priority":"high"`)
	put("bolt", "paused", `"crontab":"0 * * * *"`)
	a.call("POST", "/v1/jobs/paused/pause", "", "Carillon-Tenant: bolt").want(200)
	put("off", "cron", `"crontab":"0 * * * *"`)
	a.call("PUT", "/v1/tenants/off", `{"paused":true}`).want(200)

	got := decode[forecastOf](a.call("GET", "/v1/forecast?to=2030-01-01T14:00:00Z", "").want(200))
	if got.From != "2030-01-01T12:00:00.000Z" || got.To != "2030-01-01T14:00:00.000Z" || got.Step != "1h" || len(got.Steps) != 2 {
		t.Fatalf("%+v", got)
	}
	// The crontab's instant at noon is not after its submission.
	first := fmt.Sprint(got.Steps[0].Count, got.Steps[0].Tenants, got.Steps[0].Destinations, got.Steps[0].Priorities)
	if first != `7 [{acme 7}] [{http "cron"  5} {http "list"  2}] [{high 5} {normal 2}]` {
		t.Errorf("the first step: %s", first)
	}
	if got.Total != 14 || got.Steps[1].Count != 7 || got.Paused != 2 || got.Unknown != 0 || got.Incomplete {
		t.Errorf("%+v", got)
	}
	if got.Rate == nil || got.Rate.Source != "assumed" || got.Rate.PerSecond != 500 || *got.Steps[0].Left != 0 || got.Steps[0].DrainedAt != "" {
		t.Errorf("%+v", got)
	}

	whatIf := decode[forecastOf](a.call("POST", "/v1/forecast", `{"to":"2030-01-01T14:00:00Z","perSecond":100,"top":1,
		"down":[{"destination":"http \"cron\"","from":"2030-01-01T12:30:00Z","for":"30m"}]}`).want(200))
	if s := whatIf.Steps[0]; *s.Left != 3 || s.DrainedAt != "2030-01-01T13:01:00.000Z" || len(s.Destinations) != 1 || whatIf.Rate.Source != "given" {
		t.Errorf("with an outage: %+v", whatIf)
	}
	typos := decode[forecastOf](a.call("POST", "/v1/forecast", `{"to":"2030-01-01T14:00:00Z",
		"limits":{"http \"cron\"":{"perSecond":1},"http \"corn\"":{"perSecond":1},"http \"paused\"":{"perSecond":1}},
		"down":[{"destination":"x","from":"2030-01-01T12:30:00Z","for":"30m"},{"destination":"http \"list\"","from":"2030-01-01T12:30:00Z","for":"30m"}]}`).want(200))
	if want := []string{`http "corn"`, `http "paused"`, "x"}; !slices.Equal(typos.Unmatched, want) || whatIf.Unmatched != nil {
		t.Errorf("nothing is due for %q, want %q; and %q", typos.Unmatched, want, whatIf.Unmatched)
	}
	slow := decode[forecastOf](a.call("POST", "/v1/forecast", `{"to":"2030-01-01T14:00:00Z","limits":{"http \"cron\"":{"perSecond":0.001}}}`).want(200))
	if s := slow.Steps[0]; *s.Left != 2 || s.DrainedAt != "2030-01-01T15:04:00.000Z" {
		t.Errorf("with a limit: %+v", slow)
	}

	// A later change is in the forecast once the definitions are read again.
	a.call("DELETE", "/v1/jobs/cron", "", "Carillon-Tenant: acme").want(200)
	a.advance(time.Minute)
	if got := decode[forecastOf](a.call("GET", "/v1/forecast?step=3m", "").want(200)); got.Total != 2 || len(got.Steps) != 24*20 {
		t.Errorf("after a change: %d in %d steps", got.Total, len(got.Steps))
	}
}

// The rate of late is the capacity of the replicas only while occurrences wait. Those of a paused tenant do not count.
func TestForecastRate(t *testing.T) {
	a := newAPI(t, byData, func(c *handlers.Config) { c.Rate = func() float64 { return 1 } })
	for i := range 20 {
		a.call("POST", "/v1/jobs", body(fmt.Sprint(i), time.Second), "Carillon-Tenant: off").want(201)
	}
	a.advance(time.Minute)
	for _, c := range []struct{ paused, source string }{{"false", "fired lately"}, {"true", "assumed"}} {
		a.call("PUT", "/v1/tenants/off", `{"paused":`+c.paused+`}`).want(200)
		a.advance(time.Minute)
		if got := decode[forecastOf](a.call("GET", "/v1/forecast", "").want(200)); got.Rate.Source != c.source {
			t.Errorf("paused: %s: %+v", c.paused, got.Rate)
		}
	}
}

// A forecast of some tenants has nothing of others, and no drain, which depends on all.
func TestForecastWithinScope(t *testing.T) {
	a := newKeyedAPI(t)
	root := a.key(access.Admin, "", "*")
	for i, tenant := range []string{"acme", "bolt"} {
		for n := range i + 1 {
			a.call("POST", "/v1/jobs", body(fmt.Sprint(n), time.Hour), root, "Carillon-Tenant: "+tenant).want(201)
		}
	}
	for _, c := range []struct {
		key, tenants string
		drain        bool
	}{
		{root, "[{bolt 2} {acme 1}]", true},
		{a.key(access.Viewer, "", "bolt"), "[{bolt 2}]", false},
		{a.key(access.Viewer, "", "unknown"), "[]", false},
	} {
		got := decode[forecastOf](a.call("GET", "/v1/forecast?step=1d", "", c.key).want(200))
		step := got.Steps[0]
		if fmt.Sprint(step.Tenants) != c.tenants || (got.Rate != nil) != c.drain || (step.Left != nil) != c.drain {
			t.Errorf("%+v, want %s", got, c.tenants)
		}
	}
	a.call("GET", "/v1/forecast", "", a.key(access.Admin, "mail/", "*")).want(403)
}

// Wrong parameters are refused by name.
func TestForecastRefusals(t *testing.T) {
	a := newAPI(t)
	for _, query := range []string{
		"from=noon", "to=2029-01-01T00:00:00Z", "to=2032-01-01T00:00:00Z", "step=500ms", "step=1500us", "step=x", "step=1m&to=2030-01-02T12:00:00Z",
		"top=0", "top=1001", "limit=1",
	} {
		a.call("GET", "/v1/forecast?"+query, "").want(422)
	}
	for _, body := range []string{
		`{"from":"noon"}`, `{"replicas":0}`, `{"perSecond":0}`, `{"limits":{"x":{}}}`, `{"limits":{"x":{"perSecond":0}}}`, `{"top":0}`, `{"bottom":1}`,
		`{"down":[{"destination":"x","for":"1h"}]}`, `{"down":[{"destination":"x","from":"noon","for":"1h"}]}`, `{"down":[{"destination":"x","from":"2030-01-01T00:00:00Z"}]}`,
	} {
		a.call("POST", "/v1/forecast", body).want(422)
	}
	a.call("POST", "/v1/forecast", `{`).want(400)
}

// Without an answer of the store there is no forecast.
func TestForecastWithoutStore(t *testing.T) {
	a := newAPI(t, func(c *handlers.Config) { c.Forecast.Definitions = noDefinitions{} })
	a.call("GET", "/v1/forecast", "").want(503)
}

type noDefinitions struct{}

func (noDefinitions) Export(context.Context, store.Place, int) ([]store.Document, store.Place, error) {
	return nil, "", store.ErrUnavailable
}

// byData changes an API: the data of a callback are its destination.
func byData(c *handlers.Config) { c.Callbacks = callbacks.NewRegistry(placer{"http"}) }

// Submissions and previews report crowded instants, and change nothing about them.
func TestCrowdedInstants(t *testing.T) {
	a := newAPI(t, func(c *handlers.Config) { c.Crowded = 2 })
	type told struct {
		Crowded []struct {
			At          string
			Occurrences int
		}
	}
	for n := range 4 {
		// A job that is stored while the definitions are read may count twice, so the second may be reported too.
		got := decode[told](a.call("POST", "/v1/jobs", body(fmt.Sprint(n), time.Hour)).want(201)).Crowded
		if n == 0 && len(got) != 0 || n >= 2 && (len(got) != 1 || got[0].At != at(time.Hour) || got[0].Occurrences < n+1) {
			t.Errorf("job %d: %v", n, got)
		}
	}
	preview := decode[told](a.call("POST", "/v1/preview", body("more", time.Hour)).want(200))
	if len(preview.Crowded) != 1 || preview.Crowded[0].Occurrences < 4 {
		t.Errorf("the preview: %v", preview)
	}
	batch := decode[[]told](a.call("POST", "/v1/jobs/batch", "["+body("b", time.Hour)+","+body("c", 2*time.Hour)+"]").want(200))
	if len(batch[0].Crowded) != 1 || len(batch[1].Crowded) != 0 {
		t.Errorf("the batch: %v", batch)
	}
}

// clumsy is a placer that panics over the data "bad".
type clumsy struct{ placer }

func (c clumsy) Destination(data []byte) string {
	if string(data) == `"bad"` {
		panic("a bug")
	}
	return c.placer.Destination(data)
}

// A sender that panics over one job's destination hides no other job: that one is listed by its callback type alone.
func TestPanicOverADestination(t *testing.T) {
	a := newAPI(t, func(c *handlers.Config) {
		c.Callbacks, c.Crowded = callbacks.NewRegistry(clumsy{placer{"http"}}), 1
	})
	for _, key := range []string{"bad", "good"} {
		text := with(body(key, time.Minute), "callback", map[string]any{"type": "http", "data": key})
		a.call("POST", "/v1/jobs", text).want(201)
	}
	for range 2 {
		a.advance(10 * time.Second)
		got := decode[forecastOf](a.call("GET", "/v1/forecast", "").want(200))
		if to := fmt.Sprint(got.Steps[0].Destinations); to != `[{http  1} {http "good"  1}]` {
			t.Errorf("the forecast has %s", to)
		}
		expectDestinations(t, a.backlog(""), []destination{{Name: "http", Pending: 1}, {Name: `http "good"`, Pending: 1}})
		for _, key := range []string{"bad", "good"} {
			a.call("GET", "/v1/jobs/"+key+"/explain", "").want(200)
		}
	}
}

// panickyDefinitions panic until they are mended, and count how often they are read.
type panickyDefinitions struct {
	forecast.Definitions
	mended atomic.Bool
	reads  atomic.Int32
}

func (d *panickyDefinitions) Export(ctx context.Context, after store.Place, limit int) ([]store.Document, store.Place, error) {
	if d.reads.Add(1); !d.mended.Load() {
		panic("a bug")
	}
	return d.Definitions.Export(ctx, after, limit)
}

// A panic while the definitions are read, which happens in the background, fails forecasts for a few seconds. No
// request reads them again meanwhile.
func TestPanicOfAForecast(t *testing.T) {
	var definitions *panickyDefinitions
	a := newAPI(t, func(c *handlers.Config) {
		definitions = &panickyDefinitions{Definitions: c.Forecast.Definitions}
		c.Forecast.Definitions, c.Crowded = definitions, 1
	})
	a.call("POST", "/v1/jobs", body("k", time.Minute)).want(201) // has crowds counted
	for range 3 {
		a.call("GET", "/v1/forecast", "").want(500)
	}
	if n := definitions.reads.Load(); n != 1 {
		t.Errorf("the definitions were read %d times", n)
	}
	definitions.mended.Store(true)
	a.advance(10 * time.Second)
	if got := decode[forecastOf](a.call("GET", "/v1/forecast", "").want(200)); got.Total != 1 {
		t.Errorf("once mended: %+v", got)
	}
}
