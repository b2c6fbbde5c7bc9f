package events

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/carillon-scheduler/carillon/history"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// event is an event to be stored.
type event struct {
	tenant string
	kind   job.EventType
	// id distinguishes events of one tenant and type. Events with the same id are one.
	id string
	// subject is the subject of the CloudEvent.
	subject string
	at      time.Time
	// keep is the time until which its job stays. Until then, the same event is not sent again. Zero means an hour.
	keep time.Time
	data Data
	// writes are made when the event is stored.
	writes []store.RecordChange
}

// Data is the content of an event. Its fields depend on the event's type; docs/events.md has a table.
type Data struct {
	Tenant string `json:"tenant"`
	// Key is the job's.
	Key         string `json:"key,omitzero"`
	Instant     string `json:"instant,omitzero"`
	DeliveryID  string `json:"deliveryId,omitzero"`
	Subscriber  string `json:"subscriber,omitzero"`
	Attempt     int    `json:"attempt,omitzero"`
	Destination string `json:"destination,omitzero"`
	Status      int    `json:"status,omitzero"`
	Error       string `json:"error,omitzero"`
	// Count is the number of missed instants, if it is more than one.
	Count int `json:"count,omitzero"`
	// Since is the beginning of an outage, and Until its end.
	Since string `json:"since,omitzero"`
	Until string `json:"until,omitzero"`
	// ExpectedBy is the time by which a check-in should have come.
	ExpectedBy string `json:"expectedBy,omitzero"`
	// Outcomes are the outcomes of a finished job.
	Outcomes *Outcomes `json:"outcomes,omitzero"`
	// Quota is the name of a quota, Present the count, and Limit the quota itself.
	Quota   string `json:"quota,omitzero"`
	Limit   int    `json:"limit,omitzero"`
	Present int    `json:"present,omitzero"`
	// LeftOut has the number of events that a summary stands for, by type.
	LeftOut map[job.EventType]int `json:"leftOut,omitempty"`
}

// Outcomes count the occurrences of a finished job.
type Outcomes struct {
	Delivered int `json:"delivered"`
	Failed    int `json:"failed"`
	Missed    int `json:"missed"`
}

// dataOf returns the content of an entry of history.
func dataOf(h *history.Entry) Data {
	d := Data{
		Key: h.Name.Key, Subscriber: h.Subscriber, Attempt: h.Attempt, Destination: h.Destination, Status: h.Status,
		Error: h.Error,
	}
	if len(d.Error) > history.MaxError {
		d.Error = strings.ToValidUTF8(d.Error[:history.MaxError], "") + "…"
	}
	if h.Count > 1 {
		d.Count = h.Count
	}
	if !h.Instant.IsZero() {
		d.Instant, d.DeliveryID = job.FormatTime(h.Instant), h.DeliveryID().String()
	}
	return d
}

// eventKey returns the key of an event's job.
func eventKey(kind job.EventType, id string) string {
	sum := sha256.Sum256([]byte(id))
	short := strings.TrimPrefix(string(kind), "carillon.")
	return job.ReservedPrefix + "event:" + short + ":" + hex.EncodeToString(sum[:16])
}

// put returns the put that stores an event. It fails if the event is stored already.
func (v *event) put(to *job.EventSettings, now time.Time) store.Put {
	v.data.Tenant = v.tenant
	data, err := json.Marshal(v.data, json.Deterministic(true))
	if err != nil { // can't happen: all texts are valid
		data = []byte("{}")
	}
	target := to.Target()
	revision := job.NewRevision(now)
	at := v.at.UTC().Truncate(time.Millisecond)
	j := job.Job{
		Name:     job.Name{Tenant: v.tenant, Key: eventKey(v.kind, v.id)},
		Revision: revision, Version: revision, Callback: target.Callback, Options: target.Options,
		Schedule:  job.Schedule{Instants: []time.Time{at}},
		CreatedAt: now, UpdatedAt: now, ExpiresAt: now.Add(time.Hour), Planned: 1,
	}
	if v.keep.After(j.ExpiresAt) {
		j.ExpiresAt = v.keep.UTC().Truncate(time.Millisecond)
	}
	// So that the event does not wait behind its cause.
	j.Options.Priority = job.PriorityHigh
	j.Options.Event = &job.Event{Type: v.kind, Subject: v.subject, Data: data}
	o := job.Occurrence{
		ID: job.OccurrenceID(j.Name, revision, at, 0, ""), Name: j.Name, Priority: j.Options.Priority, Revision: revision,
		Timestamp: at, DueAt: at,
	}
	return store.Put{Job: j, Occurrences: []job.Occurrence{o}, If: store.Condition{Absent: true}, Now: now}
}

// tell stores the events that their tenants want, within the tenants' bounds. While the store is unavailable, it
// retries; meanwhile other events wait, and are dropped when too many wait.
func (e *Events) tell(ctx context.Context, batch []happening) {
	var telling []happening
	for _, h := range batch {
		if s := e.of(h.tenant); s.Want(h.kind) && e.admit(s, &h.event) {
			telling = append(telling, h)
		} else {
			e.then(ctx, h, nil)
		}
	}
	for failures := 0; len(telling) > 0; failures++ {
		telling = e.putAll(ctx, telling)
		if len(telling) == 0 {
			return
		}
		if failures == 0 {
			e.cfg.Logger.Warn("events can't be stored now; they are tried again", "events", len(telling))
		}
		timer := time.NewTimer(tellInterval)
		select {
		case <-ctx.Done():
			timer.Stop()
			e.metrics.dropped.Add(float64(len(telling)))
			for _, h := range telling {
				e.then(ctx, h, ctx.Err())
			}
			return
		case <-timer.C:
		}
	}
}

// putAll puts events, and returns those to be retried.
func (e *Events) putAll(ctx context.Context, telling []happening) (again []happening) {
	now := e.now()
	puts := make([]store.Put, 0, len(telling))
	putting := make([]happening, 0, len(telling))
	for _, h := range telling {
		s := e.of(h.tenant)
		if s == nil { // the settings were reset meanwhile
			e.then(ctx, h, nil)
			continue
		}
		puts, putting = append(puts, h.put(s, now)), append(putting, h)
	}
	if len(puts) == 0 {
		return nil
	}
	call, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	woken := make(map[string]bool)
	for i, result := range e.cfg.Store.Put(call, puts) {
		h := putting[i]
		switch err := result.Err; {
		case err == nil:
			e.metrics.told.WithLabelValues(string(h.kind)).Inc()
			if !woken[h.tenant] {
				woken[h.tenant] = true
				e.cfg.Wake(puts[i].Occurrences[0].Lane(), now)
			}
			e.then(ctx, h, nil)
		case errors.Is(err, store.ErrPrecondition): // this event is stored already, by any replica
			e.then(ctx, h, nil)
		case errors.Is(err, store.ErrUnavailable) && h.told == nil:
			again = append(again, h)
		default: // a caller that waits retries by itself
			e.then(ctx, h, err)
			if h.told == nil {
				e.metrics.dropped.Inc()
				e.cfg.Logger.Error("an event can't be stored", "type", h.kind, "tenant", h.tenant, "error", err)
			}
		}
	}
	return again
}

// then completes an event: it makes the event's writes, and reports the result.
func (e *Events) then(ctx context.Context, h happening, err error) {
	if err == nil && len(h.writes) > 0 {
		call, cancel := context.WithTimeout(ctx, storeTimeout)
		defer cancel()
		for _, err := range e.cfg.Store.WriteRecords(call, h.writes) {
			if err != nil && !errors.Is(err, store.ErrPrecondition) {
				e.cfg.Logger.Warn("the state of a destination can't be stored", "error", err)
			}
		}
	}
	if h.told != nil {
		h.told <- err
	}
}

// minuteCount counts the events of a tenant in one minute.
type minuteCount struct {
	minute time.Time
	told   int
	left   map[job.EventType]int
}

// admit counts an event, and reports whether it is within the tenant's bound.
func (e *Events) admit(s *job.EventSettings, v *event) bool {
	if v.kind == job.EventSummary {
		return true
	}
	minute := e.now().Truncate(time.Minute)
	e.lock.Lock()
	defer e.lock.Unlock()
	m := e.minutes[v.tenant]
	switch {
	case m == nil:
		m = &minuteCount{minute: minute}
		e.minutes[v.tenant] = m
	case !m.minute.Equal(minute) && len(m.left) == 0: // else its summary comes first
		*m = minuteCount{minute: minute}
	}
	if m.told < s.MostPerMinute() && m.minute.Equal(minute) {
		m.told++
		return true
	}
	if m.left == nil {
		m.left = make(map[job.EventType]int)
	}
	m.left[v.kind]++
	e.metrics.summarized.Inc()
	return false
}

// tellLeftOut stores the summaries of minutes that have ended; with all, of the present minute too.
func (e *Events) tellLeftOut(ctx context.Context, all bool) {
	now := e.now()
	var summaries []happening
	e.lock.Lock()
	for tenant, m := range e.minutes {
		if !all && m.minute.Equal(now.Truncate(time.Minute)) {
			continue
		}
		delete(e.minutes, tenant)
		if len(m.left) > 0 {
			from := job.FormatTime(m.minute)
			summaries = append(summaries, happening{event: event{
				tenant: tenant, kind: job.EventSummary, id: e.cfg.Replica + " " + from, at: now,
				data: Data{Since: from, Until: job.FormatTime(now), LeftOut: m.left},
			}})
		}
	}
	e.lock.Unlock()
	e.tell(ctx, summaries)
}
