package handlers

import (
	"cmp"
	"context"
	"math"
	"net/http"
	"net/url"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/carillon-scheduler/carillon/explain"
	"github.com/carillon-scheduler/carillon/explain/facts"
	"github.com/carillon-scheduler/carillon/history"
	"github.com/carillon-scheduler/carillon/job"
)

// explainJob answers why an instant of a job fired or did not, or why it waits. The job may be deleted.
func (a *api) explainJob(c *gin.Context) error {
	key, err := keyInPath(c)
	if err != nil {
		return err
	}
	query, err := readQuery(c.Request, "at")
	if err != nil {
		return err
	}
	which, at, err := explainParameter(query)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Request.Context(), storeTime)
	defer cancel()
	question, err := a.facts.Gather(ctx, job.Name{Tenant: who(c).tenant, Key: key}, which, at)
	if err != nil {
		return err
	}
	if question.Queue != nil { // the numbers are only for callers that may see all tenants and keys
		question.Queue.Known = who(c).Scope.All() && who(c).Scope.KeyPrefix == ""
	}
	answer := explain.Explain(question)
	return writeJSON(c, http.StatusOK, explanationView(question, &answer))
}

// explainParameter reads the requested instant: "next", "last", or a time.
func explainParameter(query url.Values) (which facts.Which, at time.Time, err error) {
	text := cmp.Or(query.Get("at"), "next")
	if query.Has("at") && query.Get("at") == "" {
		text = ""
	}
	switch text {
	case "next":
		return facts.Next, time.Time{}, nil
	case "last":
		return facts.Last, time.Time{}, nil
	}
	if at, err = job.ParseInstant(text); err != nil {
		return 0, time.Time{}, &parameterError{"at", "is neither next nor last, and as an instant it " + err.Error()}
	}
	return facts.At, at, nil
}

// newFacts returns a reader of the facts for explanations.
func (a *api) newFacts() *facts.Reader {
	return facts.NewReader(facts.Config{
		Jobs: a.Store, Inspector: a.Inspector, Tenants: a.tenants, History: a.readHistory, Kept: a.historyKept,
		Destination: a.destinationState, PrioritiesOf: a.prioritiesOf, Weight: a.Forecast.Policy.Weight, Rate: a.Rate,
		Replicas: a.Replicas, Retain: a.Retain, Now: a.now,
	})
}

// destinationState returns the state of a callback's destination, as this replica sees it; zero if it is unknown.
func (a *api) destinationState(callback job.Callback) explain.Destination {
	name := a.Callbacks.Destination(callback)
	for _, d := range a.Destinations() {
		if d.Name == name {
			return explain.Destination{
				Name: name, Failures: d.Failures, DownSince: d.OpenSince.Truncate(time.Millisecond),
			}
		}
	}
	return explain.Destination{}
}

// historyKept returns which history of a tenant is kept.
func (a *api) historyKept(tenant string) explain.Kept {
	usual := a.HistoryPolicy
	if usual == (history.Policy{}) {
		usual.Keep = math.MaxInt64
	}
	own := a.OwnLimits.History(tenant, usual)
	kept := explain.Kept{On: a.History != nil && own.Keep > 0, Failures: own.Failures}
	if own.Keep != math.MaxInt64 {
		kept.For = own.Keep
	}
	return kept
}

// explanation is an explanation in the form of the answer.
type explanation struct {
	Key        string               `json:"key"`
	Tenant     string               `json:"tenant"`
	At         string               `json:"at,omitzero"`
	FiresAt    string               `json:"firesAt,omitzero"`
	Code       explain.Code         `json:"code"`
	Summary    string               `json:"summary"`
	Facts      []explainedFact      `json:"facts"`
	Occurrence *explainedOccurrence `json:"occurrence,omitzero"`
	Nearest    []string             `json:"nearest,omitempty"`
	AsOf       string               `json:"asOf"`
}

// explainedOccurrence is the occurrence that an explanation is about.
type explainedOccurrence struct {
	ID         string `json:"id"`
	DeliveryID string `json:"deliveryId"`
	part
	State explain.State `json:"state"`
}

// explainedFact is one fact of an explanation.
type explainedFact struct {
	Code        explain.Code `json:"code"`
	Text        string       `json:"text"`
	At          string       `json:"at,omitzero"`
	Since       string       `json:"since,omitzero"`
	Until       string       `json:"until,omitzero"`
	Next        string       `json:"next,omitzero"`
	By          string       `json:"by,omitzero"`
	RequestID   string       `json:"requestId,omitzero"`
	Attempt     int          `json:"attempt,omitzero"`
	Status      int          `json:"status,omitzero"`
	Error       string       `json:"error,omitzero"`
	Destination string       `json:"destination,omitzero"`
	Replica     string       `json:"replica,omitzero"`
	Count       int          `json:"count,omitzero"`
}

func explanationView(q *explain.Question, answer *explain.Answer) explanation {
	view := explanation{
		Key: q.Name.Key, Tenant: q.Name.Tenant, At: instantText(answer.At), FiresAt: instantText(answer.FiresAt),
		Code: answer.Code, Summary: answer.Summary, AsOf: job.FormatTime(q.Now),
	}
	for _, at := range answer.Nearest {
		view.Nearest = append(view.Nearest, job.FormatTime(at))
	}
	if o := answer.Occurrence; o != nil {
		view.Occurrence = &explainedOccurrence{o.ID.String(), o.DeliveryID().String(), partView(o.Part), answer.State}
	}
	for i := range answer.Facts {
		f := &answer.Facts[i]
		view.Facts = append(view.Facts, explainedFact{
			Code: f.Code, Text: f.Text, At: instantText(f.At), Since: instantText(f.Since), Until: instantText(f.Until),
			Next: instantText(f.Next), By: f.By, RequestID: f.Request, Attempt: f.Attempt, Status: f.Status, Error: f.Error,
			Destination: f.Destination, Replica: f.Replica, Count: f.Count,
		})
	}
	return view
}
