package handlers_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/access"
	"github.com/carillon-scheduler/carillon/handlers"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/status"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/replicas"
)

// serviceStatus is the state of the service in the form of the answer.
type serviceStatus struct {
	Version, AsOf, Uptime string
	Replicas              []struct {
		ID, Version, Since, Seen string
		Ready                    *bool
	}
	Lateness *struct {
		Window, P50, P99, Max string
		Hours                 []struct {
			From, P50, P99, Max string
			Count               int
		}
	}
	FiredPerSecond *float64
	Objectives     []struct {
		Tenant, Within   string
		Target, BurnRate float64
		Met              *float64
		Windows          []struct {
			Window      string
			Fired, Late int
		}
	}
	Destinations []struct {
		Destination, State, Since string
		PartsDown                 int
	}
	Warnings []string
}

// The status adds up the reports of all replicas. A key for some tenants sees only their objectives.
func TestStatus(t *testing.T) {
	now := func() time.Time { return start }
	objectives := []status.Objective{
		{Target: .9, Within: time.Second}, {Tenant: "acme", Target: .5, Within: time.Second}, {Tenant: "bolt", Target: .5, Within: time.Second},
	}
	var watches [2]*status.Watch
	for i := range watches {
		watches[i], _ = status.NewWatch(objectives, now, nil)
		for range 50 {
			watches[i].Fired(job.Name{Tenant: "acme", Key: "k"}, time.Duration(i)*2*time.Second)
		}
	}
	tell := func(i int) status.Heartbeat {
		return status.Heartbeat{Version: "v1", Since: start.Add(-time.Hour), Ready: i == 0, Rate: 10, Counts: watches[i].Counts()}
	}
	var failing error
	a := newKeyedAPI(t, func(c *handlers.Config) {
		c.Version = "v1"
		c.Replica = handlers.Replica{
			ID: "b", Tell: func() status.Heartbeat { return tell(0) },
			List: func(context.Context, time.Time) ([]replicas.Replica, error) {
				return []replicas.Replica{
					{ID: "a", Seen: start.Add(-5 * time.Second), Tells: tell(1).Encode()}, {ID: "b", Seen: start.Add(-9 * time.Second), Tells: tell(1).Encode()},
					{ID: "old", Seen: start.Add(-time.Second)},
				}, failing
			},
			Hours: (&status.Day{Own: watches[0], Others: func(context.Context, time.Time, time.Time) ([]status.Hour, error) {
				return watches[1].Hours(), nil
			}}).Hours,
		}
		c.Warnings = func(context.Context) []string { return []string{"a warning"} }
		c.Destinations = func() []handlers.DestinationState {
			return []handlers.DestinationState{
				{Name: "carillon-watch check-ins"}, {Name: "http a"}, {Name: "http b", OpenSince: start.Add(-time.Minute)},
				{Name: "http c", PartsOpen: 2, PartOpenSince: start.Add(-time.Hour)},
			}
		}
	})
	got := decode[serviceStatus](a.call("GET", "/v1/status", "", a.key(access.Viewer, "", "*")).want(200))
	if len(got.Replicas) != 3 || got.Replicas[0].ID != "b" || !*got.Replicas[0].Ready || *got.Replicas[1].Ready || got.Replicas[2].Ready != nil {
		t.Errorf("the replicas are %+v", got.Replicas)
	}
	if got.Uptime != "1h" || *got.FiredPerSecond != 20 || len(got.Warnings) != 1 {
		t.Errorf("it is %+v", got)
	}
	if want := "[{http b down 2030-01-01T11:59:00.000Z 0} {http c partly down 2030-01-01T11:00:00.000Z 2} {http a up  0}]"; fmt.Sprint(got.Destinations) != want {
		t.Errorf("the destinations are %v, want %s", got.Destinations, want)
	}
	if l := got.Lateness; l.P50 != "1ms" || l.P99 != "2s" || l.Max != "2s" || l.Window != "5m" {
		t.Errorf("the lateness is %+v", l)
	}
	if h := got.Lateness.Hours; len(h) != 24 || fmt.Sprint(h[0], h[23]) != "{2029-12-31T13:00:00.000Z    0} {2030-01-01T12:00:00.000Z 1ms 2s 2s 100}" {
		t.Errorf("hour by hour it is %+v", h)
	}
	if o := got.Objectives; len(o) != 3 || *o[0].Met != .5 || o[0].BurnRate < 4.99 || o[0].BurnRate > 5.01 || o[0].Windows[0].Fired != 100 || o[2].Met != nil {
		t.Errorf("the objectives are %+v", o)
	}
	some := decode[serviceStatus](a.call("GET", "/v1/status", "", a.key(access.Viewer, "", "acme")).want(200))
	if len(some.Objectives) != 1 || some.Objectives[0].Tenant != "acme" || some.Replicas != nil || some.Lateness != nil || some.Destinations != nil {
		t.Errorf("to a key for one tenant it is %+v", some)
	}
	a.call("GET", "/v1/status?x=1", "", a.key(access.Viewer, "", "*")).want(422)
	failing = errors.Join(store.ErrUnavailable)
	a.call("GET", "/v1/status", "", a.key(access.Viewer, "", "*")).want(503)
}
