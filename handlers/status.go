package handlers

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/carillon-scheduler/carillon/events"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/status"
	"github.com/carillon-scheduler/carillon/store/replicas"
)

// Replica describes the replica that answers, and the others.
type Replica struct {
	// ID is its random id, by which it is listed.
	ID string
	// Tell returns its report on itself. Nil means a report with the version, the time and the readiness only.
	Tell func() status.Heartbeat
	// List returns all replicas that may be claiming. Nil means that there is no other.
	List func(ctx context.Context, now time.Time) ([]replicas.Replica, error)
	// Hours returns the lateness of all replicas, hour by hour. Nil means that it is unknown.
	Hours func(ctx context.Context, now time.Time) ([]status.Hour, error)
}

// statusView is the state of the service in the form of the answer. For a key of some tenants, it has only the
// objectives.
type statusView struct {
	Version        string              `json:"version,omitzero"`
	AsOf           string              `json:"asOf"`
	Uptime         *job.Duration       `json:"uptime,omitzero"`
	Replicas       []replicaView       `json:"replicas,omitzero"`
	Lateness       *latenessView       `json:"lateness,omitzero"`
	FiredPerSecond *float64            `json:"firedPerSecond,omitzero"`
	Objectives     []objectiveView     `json:"objectives"`
	Destinations   []statusDestination `json:"destinations,omitzero"`
	Warnings       []string            `json:"warnings,omitzero"`
}

// replicaView is a replica in the form of the answer. Of a replica of another version, only the id and the time may be
// known.
type replicaView struct {
	ID      string `json:"id"`
	Version string `json:"version,omitzero"`
	Since   string `json:"since,omitzero"`
	Seen    string `json:"seen"`
	Ready   *bool  `json:"ready,omitzero"`
}

// latenessView is the recent lateness of all replicas. Without firings it has no durations.
type latenessView struct {
	Window job.Duration `json:"window"`
	quantiles
	Hours []hourView `json:"hours,omitempty"`
}

// hourView is the lateness of all replicas in an hour.
type hourView struct {
	From  string `json:"from"`
	Count int    `json:"count"`
	quantiles
}

// quantiles are the quantiles of a lateness. Without firings there are none.
type quantiles struct {
	P50 *job.Duration `json:"p50,omitzero"`
	P99 *job.Duration `json:"p99,omitzero"`
	Max *job.Duration `json:"max,omitzero"`
}

type objectiveView struct {
	Tenant   string          `json:"tenant,omitzero"`
	Target   float64         `json:"target"`
	Within   job.Duration    `json:"within"`
	Met      *float64        `json:"met,omitzero"` // this and the next: in the last hour
	BurnRate float64         `json:"burnRate"`
	Windows  []objectivePart `json:"windows"`
}

type objectivePart struct {
	Window   job.Duration `json:"window"`
	Fired    int          `json:"fired"`
	Late     int          `json:"late"`
	BurnRate float64      `json:"burnRate"`
}

type statusDestination struct {
	Destination string `json:"destination"`
	State       string `json:"state"`
	Since       string `json:"since,omitzero"`
	PartsDown   int    `json:"partsDown,omitzero"`
}

// The states of a destination, in the order in which they are listed.
const (
	destinationDown   = "down"
	destinationPartly = "partly down" // a part of it is down
	destinationUp     = "up"
)

// mostDestinations bounds the destinations of a status.
const mostDestinations = 1000

// getStatus answers with the state of the service: its replicas, their lateness, objectives, and destinations.
func (a *api) getStatus(c *gin.Context) error {
	if _, err := readQuery(c.Request); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Request.Context(), storeTime)
	defer cancel()
	now := a.now()
	all, beats, err := a.heartbeats(ctx, now)
	if err != nil {
		return err
	}
	scope := who(c).Scope
	view := statusView{AsOf: job.FormatTime(now), Version: a.Version, Objectives: []objectiveView{}}
	var counts status.Counts
	rate := 0.
	for _, h := range beats {
		counts.Add(h.Counts)
		rate += h.Rate
	}
	for _, met := range counts.Objectives {
		if scope.All() || met.Tenant != "" && scope.HasTenant(met.Tenant) {
			view.Objectives = append(view.Objectives, objectiveOf(&met))
		}
	}
	if !scope.All() {
		return writeJSON(c, http.StatusOK, view)
	}
	uptime := job.Duration(max(0, now.Sub(beats[0].Since).Truncate(time.Second)))
	view.Uptime, view.FiredPerSecond = &uptime, &rate
	view.Lateness = &latenessView{Window: job.Duration(status.LatenessWindow), quantiles: quantilesOf(&counts)}
	if view.Lateness.Hours, err = a.latenessByHour(ctx, now); err != nil {
		return err
	}
	view.Replicas, view.Destinations = all, a.statusDestinations()
	view.Warnings = append([]string{}, a.Warnings(ctx)...)
	return writeJSON(c, http.StatusOK, view)
}

// heartbeats returns all replicas, and their reports on themselves. This one comes first, with its present state.
func (a *api) heartbeats(ctx context.Context, now time.Time) (all []replicaView, tell []status.Heartbeat, err error) {
	own := status.Heartbeat{Version: a.Version, Since: now, Ready: a.Ready(ctx) == nil}
	if a.Replica.Tell != nil {
		own = a.Replica.Tell()
	}
	self := replicaView{
		ID: a.Replica.ID, Version: own.Version, Since: job.FormatTime(own.Since), Seen: job.FormatTime(now),
		Ready: &own.Ready,
	}
	all, tell = []replicaView{self}, []status.Heartbeat{own}
	if a.Replica.List == nil {
		return all, tell, nil
	}
	listed, err := a.Replica.List(ctx, now)
	if err != nil {
		return nil, nil, err
	}
	for _, r := range listed {
		if r.ID == a.Replica.ID {
			continue
		}
		v := replicaView{ID: r.ID, Seen: job.FormatTime(r.Seen)}
		if h, ok := status.DecodeHeartbeat(r.Tells); ok {
			tell = append(tell, h)
			v.Version, v.Since, v.Ready = h.Version, job.FormatTime(h.Since), &h.Ready
		}
		all = append(all, v)
	}
	return all, tell, nil
}

// latenessByHour returns the lateness of the last hours.
func (a *api) latenessByHour(ctx context.Context, now time.Time) (all []hourView, err error) {
	if a.Replica.Hours == nil {
		return nil, nil
	}
	hours, err := a.Replica.Hours(ctx, now)
	for i := range hours {
		h := &hours[i]
		all = append(all, hourView{job.FormatTime(h.From), h.Fired(), quantilesOf(&h.Counts)})
	}
	return all, err
}

func quantilesOf(counts *status.Counts) (q quantiles) {
	p50, ok := counts.Quantile(.5)
	if !ok {
		return q
	}
	p99, _ := counts.Quantile(.99)
	return quantiles{(*job.Duration)(&p50), (*job.Duration)(&p99), (*job.Duration)(&counts.Max)}
}

func objectiveOf(met *status.Met) objectiveView {
	v := objectiveView{
		Tenant: met.Tenant, Target: met.Target, Within: job.Duration(met.Within),
		Windows: make([]objectivePart, min(len(met.Windows), len(status.Windows))),
	}
	for i := range v.Windows {
		w, length := met.Windows[i], status.Windows[i]
		v.Windows[i] = objectivePart{job.Duration(length), w.Fired, w.Late, w.BurnRate(met.Objective)}
		if part, ok := w.Met(); length == time.Hour {
			if v.BurnRate = w.BurnRate(met.Objective); ok {
				v.Met = &part
			}
		}
	}
	return v
}

// statusDestinations lists the destinations that this replica knows; those that are down come first.
func (a *api) statusDestinations() []statusDestination {
	all := []statusDestination{}
	for _, d := range a.Destinations() {
		if strings.HasPrefix(d.Name, events.WatchType+" ") {
			continue // the service itself
		}
		v := statusDestination{Destination: d.Name, State: destinationUp}
		switch {
		case !d.OpenSince.IsZero():
			v.State, v.Since = destinationDown, job.FormatTime(d.OpenSince)
		case d.PartsOpen > 0:
			v.State, v.Since, v.PartsDown = destinationPartly, job.FormatTime(d.PartOpenSince), d.PartsOpen
		}
		all = append(all, v)
	}
	slices.SortFunc(all, func(a, b statusDestination) int {
		return cmp.Or(cmp.Compare(a.State, b.State), cmp.Compare(a.Destination, b.Destination))
	})
	return all[:min(len(all), mostDestinations)]
}
