package handlers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/carillon-scheduler/carillon/access"
	"github.com/carillon-scheduler/carillon/backlog"
	"github.com/carillon-scheduler/carillon/forecast"
	"github.com/carillon-scheduler/carillon/job"
)

// Forecast has the inputs of forecasts.
type Forecast struct {
	// Definitions has the definitions of all jobs, of the same store. Nil means that there are no forecasts.
	Definitions forecast.Definitions
	// Every is the age of the definitions at which they are read again for the metric of the next hour. With zero, they
	// are only read for forecasts.
	Every time.Duration
	// Policy and Destinations are those of the dispatcher.
	Policy       forecast.Policy
	Destinations forecast.DestinationPolicy
}

// The default number of listed tenants and destinations, and the bounds of a forecast's span.
const (
	defaultTop      = 10
	longestForecast = 366 * 24 * time.Hour
)

// assumedRate is the number of occurrences per second that a replica is assumed to fire, until a backlog shows the true
// number.
const assumedRate = 500

// forecastView is a forecast in the form of the answer.
type forecastView struct {
	AsOf       string         `json:"asOf"`
	From       string         `json:"from"`
	To         string         `json:"to"`
	Step       job.Duration   `json:"step"`
	Rate       *rateView      `json:"rate,omitzero"` // for all tenants only, like the drain
	Steps      []forecastStep `json:"steps"`
	Total      int            `json:"total"`
	Paused     int            `json:"paused"`
	Incomplete bool           `json:"incomplete"`
	Unknown    int            `json:"unknown"`
	Unmatched  []string       `json:"unmatched,omitempty"`
}

// rateView is the rate behind the drain, and its source.
type rateView struct {
	PerSecond float64 `json:"perSecond"`
	Source    string  `json:"source"`
}

// The sources of a rate.
const (
	rateFired   = "fired lately"
	rateAssumed = "assumed"
	rateGiven   = "given"
)

type forecastStep struct {
	From         string                `json:"from"`
	Count        int                   `json:"count"`
	Tenants      []forecastTenant      `json:"tenants"`
	Destinations []forecastDestination `json:"destinations"`
	Priorities   []forecastPriority    `json:"priorities"`
	Left         *int                  `json:"left,omitzero"`
	DrainedAt    string                `json:"drainedAt,omitzero"`
}

type forecastTenant struct {
	Tenant string `json:"tenant"`
	Count  int    `json:"count"`
}

type forecastDestination struct {
	Destination string `json:"destination"`
	Count       int    `json:"count"`
	DrainedAt   string `json:"drainedAt,omitzero"`
}

type forecastPriority struct {
	Priority string `json:"priority"`
	Count    int    `json:"count"`
}

// forecastSpan is the time that a forecast covers.
type forecastSpan struct {
	from time.Time
	step time.Duration
	n    int
	top  int
}

// getForecast answers with the occurrences that fall due, and the times at which they are drained.
func (a *api) getForecast(c *gin.Context) error {
	query, err := readQuery(c.Request, "from", "to", "step", "top")
	if err != nil {
		return err
	}
	span, err := readSpan(query, a.now(), func(name, message string) error { return &parameterError{name, message} })
	if err != nil {
		return err
	}
	if span.top, err = numberParameter(query, "top", defaultTop); err != nil {
		return err
	}
	view, err := a.forecast(c.Request.Context(), who(c).Scope, span, &whatIf{})
	if err != nil {
		return err
	}
	return writeJSON(c, http.StatusOK, view)
}

// readSpan reads from, to and step. Invalid makes the error of one of them.
func readSpan(given url.Values, now time.Time, invalid func(name, message string) error) (s forecastSpan, err error) {
	s.from = now
	if text := given.Get("from"); text != "" {
		if s.from, err = job.ParseInstant(text); err != nil {
			return s, invalid("from", err.Error())
		}
	}
	if s.from.Before(now) { // the past is in the history
		s.from = now
	}
	to := s.from.Add(24 * time.Hour)
	if text := given.Get("to"); text != "" {
		if to, err = job.ParseInstant(text); err != nil {
			return s, invalid("to", err.Error())
		}
	}
	switch length := to.Sub(s.from); {
	case length <= 0:
		return s, invalid("to", "must be later than from and than now")
	case to.Sub(now) > longestForecast:
		return s, invalid("to", "must be at most 366 days ahead")
	default:
		s.step = time.Hour
		if text := given.Get("step"); text != "" {
			step, err := job.ParseDuration(text)
			if err != nil {
				return s, invalid("step", err.Error())
			}
			s.step = time.Duration(step)
		}
		if s.step < time.Second || s.step%time.Millisecond != 0 {
			return s, invalid("step", "must be at least 1s, in whole milliseconds")
		}
		if s.n = int((length + s.step - 1) / s.step); s.n > forecast.MostSteps {
			return s, invalid("step", fmt.Sprintf("must be longer: from to to are %d steps, and at most %d are allowed",
				s.n, forecast.MostSteps))
		}
		return s, nil
	}
}

// whatIf has the assumptions of a request, which replace the known numbers. The zero value has none.
type whatIf struct {
	replicas  int
	perSecond float64
	limits    map[string]float64
	down      []forecast.Down
}

var errReading = &statusError{http.StatusServiceUnavailable,
	"the definitions of all jobs are still being read for the forecast; ask again in some seconds"}

// forecast makes the forecast of a scope's tenants.
func (a *api) forecast(
	ctx context.Context, scope access.Scope, span forecastSpan, assume *whatIf,
) (forecastView, error) {
	if a.Forecast.Definitions == nil {
		return forecastView{}, &statusError{http.StatusNotImplemented, "this replica makes no forecasts"}
	}
	reading, cancel := context.WithTimeout(ctx, storeTime)
	defer cancel()
	plan, err := a.plans.Plan(reading, a.now())
	if errors.Is(err, context.DeadlineExceeded) {
		return forecastView{}, errReading
	}
	if err != nil {
		return forecastView{}, err
	}
	settings, err := a.settingsOf(ctx, plan)
	if err != nil {
		return forecastView{}, err
	}
	if span.from.Before(plan.At) {
		span.from = plan.At
	}
	q := forecast.Query{
		From: span.from, Step: span.step, Steps: span.n, Top: span.top, Has: scope.HasTenant,
		Capacity: forecast.Capacity{
			Took: a.durations(), Limits: assume.limits, Down: assume.down,
			Policy: a.Forecast.Policy, Destinations: a.Forecast.Destinations,
			Tenant: func(name string) forecast.Tenant { return settings[name] },
		},
	}
	view := forecastView{
		AsOf: job.FormatTime(plan.At), From: job.FormatTime(span.from), Step: job.Duration(span.step),
		To: job.FormatTime(span.from.Add(time.Duration(span.n) * span.step)),
	}
	if scope.All() {
		now, err := a.backlog.Recent(ctx, scope)
		if err != nil {
			return forecastView{}, err
		}
		q.Replicas = cmp.Or(assume.replicas, *now.Replicas)
		view.Rate = a.drainRate(&now, assume, q.Replicas)
		q.PerSecond = view.Rate.PerSecond
		if span.from.Sub(plan.At) < span.step { // later, the backlog has been fired
			q.Waiting = waitingOf(&now)
		}
	}
	r := plan.Report(&q)
	view.Total, view.Paused, view.Incomplete, view.Unknown = r.Total, r.Paused, r.Incomplete, r.Unknown
	view.Unmatched = r.Unmatched
	view.Steps = make([]forecastStep, len(r.Steps))
	for i := range r.Steps {
		view.Steps[i] = stepView(&r.Steps[i], scope.All())
	}
	return view, nil
}

// drainRate returns the occurrences per second that all replicas can fire. The rate of late is their capacity only if
// it is above the assumed rate, or if occurrences of active tenants waited.
func (a *api) drainRate(now *backlog.Backlog, assume *whatIf, replicas int) *rateView {
	const seconds = 5 // of a backlog at the present rate
	lately := a.Rate()
	switch {
	case assume.perSecond > 0:
		return &rateView{assume.perSecond, rateGiven}
	case lately >= assumedRate || lately > 0 && now.DrainSeconds > seconds:
		return &rateView{lately * float64(replicas), rateFired}
	default:
		return &rateView{assumedRate * float64(replicas), rateAssumed}
	}
}

// settingsOf returns the settings of a plan's tenants, with the default priority of each.
func (a *api) settingsOf(ctx context.Context, plan *forecast.Plan) (map[string]forecast.Tenant, error) {
	known, err := a.tenants.ByName(ctx, plan.Tenants())
	if err != nil {
		return nil, err
	}
	tenants := make([]job.Tenant, 0, len(known))
	for _, t := range known {
		tenants = append(tenants, t)
	}
	all := make(map[string]forecast.Tenant, len(known))
	for i, p := range a.prioritiesOf(ctx, tenants) {
		s := tenants[i].Settings
		all[tenants[i].Name] = forecast.Tenant{Weight: s.EffectiveWeight(), Priority: p, Paused: s.Paused}
	}
	return all, nil
}

// durations returns the durations of callbacks by destination, as far as this replica knows them.
func (a *api) durations() func(destination string) time.Duration {
	took := map[string]time.Duration{}
	for _, d := range a.Destinations() {
		took[d.Name] = d.Duration
	}
	return func(destination string) time.Duration { return took[destination] }
}

// waitingOf divides the due occurrences of each tenant among the destinations, in the proportions of the whole backlog.
func waitingOf(now *backlog.Backlog) (all []forecast.Waiting) {
	of := backlog.Tally{}
	for _, d := range now.Destinations {
		of[d.Name] += d.Due
	}
	for _, t := range now.Tenants {
		of.Divide(t.Due, func(name string, n int) {
			if n > 0 {
				all = append(all, forecast.Waiting{
					Flow: forecast.Flow{Lane: job.Lane{Tenant: t.Name}, Destination: name}, N: n,
				})
			}
		})
	}
	return all
}

// stepView returns a step in the form of the answer, with the drain or without.
func stepView(s *forecast.Step, drain bool) forecastStep {
	v := forecastStep{
		From: job.FormatTime(s.From), Count: s.Count, Tenants: make([]forecastTenant, len(s.Tenants)),
		Destinations: make([]forecastDestination, len(s.Destinations)),
		Priorities:   make([]forecastPriority, len(s.Priorities)),
	}
	for i, p := range s.Tenants {
		v.Tenants[i] = forecastTenant{p.Name, p.Count}
	}
	for i, p := range s.Destinations {
		v.Destinations[i] = forecastDestination{Destination: p.Name, Count: p.Count}
		if drain {
			v.Destinations[i].DrainedAt = instantText(p.DrainedAt)
		}
	}
	for i, p := range s.Priorities {
		v.Priorities[i] = forecastPriority{p.Name, p.Count}
	}
	if drain {
		v.Left, v.DrainedAt = &s.Left, instantText(s.DrainedAt)
	}
	return v
}
