package events

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"maps"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/carillon-scheduler/carillon/history"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// downCollection has a record for each destination of a tenant with an event that it is down, and none that it is up
// again.
const downCollection = "events-down"

// downFor is the time after which the event of a destination that is still down is repeated.
const downFor = 24 * time.Hour

// usedFor is the time after its last delivery to a destination for which a tenant gets events of its outages.
const usedFor = time.Hour

// failedFor is the time before the outage of a part of a destination within which a tenant's failure belongs to the
// outage. Tenants that send to other parts get no event.
const failedFor = time.Minute

// use has the times of a tenant's last delivery to a destination, and of its last failure there.
type use struct{ sent, failed time.Time }

// A replica that has sent the event of a destination that is down confirms its record every confirmEvery. If it does
// not, it has stopped, and another replica may send the event that the destination is up.
const (
	confirmEvery = time.Minute
	confirmedFor = 3 * time.Minute
)

// downRecord is the body of such a record. Times are Unix milliseconds.
type downRecord struct {
	Tenant      string `json:"tenant"`
	Destination string `json:"destination"`
	Since       int64  `json:"since"`
	// Replica is the replica that sent the event, and Confirmed the time of its last confirmation.
	Replica   string `json:"replica"`
	Confirmed int64  `json:"confirmed"`

	version job.Revision
}

func downKey(p place) string {
	sum := sha256.Sum256([]byte(p.destination)) // it may be longer than a key
	return p.tenant + "/" + hex.EncodeToString(sum[:16])
}

// readDown reads the destinations that are known to be down.
func (e *Events) readDown(ctx context.Context) {
	found := make(map[place]downRecord)
	for after := ""; ; {
		const limit = 1000
		page, err := e.cfg.Store.Records(ctx, store.RecordFilter{
			Collection: downCollection, After: after, Limit: limit, Now: e.now(),
		})
		if err != nil {
			return
		}
		for i := range page {
			d := downRecord{version: page[i].Version}
			if json.Unmarshal(page[i].Body, &d) == nil {
				found[place{d.Tenant, d.Destination}] = d
			}
		}
		if len(page) < limit {
			break
		}
		after = page[len(page)-1].Key
	}
	e.down.Store(&found)
	e.confirmDown(ctx)
}

// confirmDown confirms the destinations that are still down.
func (e *Events) confirmDown(ctx context.Context) {
	now := e.now()
	var changes []store.RecordChange
	for p, d := range *e.down.Load() {
		old := now.Sub(time.UnixMilli(d.Confirmed)) >= confirmEvery
		if d.Replica == e.cfg.Replica && old && e.isDown(p.destination) {
			was := d.version
			d.Confirmed, d.version = now.UnixMilli(), job.NewRevision(now)
			changes = append(changes, d.change(p, now, store.RecordCondition{Version: was}))
		}
	}
	if len(changes) > 0 {
		_ = e.cfg.Store.WriteRecords(ctx, changes) // the next reading repeats it
	}
}

// change returns the change that writes the record.
func (d *downRecord) change(p place, now time.Time, condition store.RecordCondition) store.RecordChange {
	body, err := json.Marshal(d)
	if err != nil {
		body = []byte("{}") // can't happen: all are valid texts
	}
	return store.RecordChange{
		Collection: downCollection, Key: downKey(p), Version: d.version, Body: body, ExpiresAt: now.Add(downFor),
		If: condition, Now: now,
	}
}

// knownDown returns the record of a destination that is known to be down.
func (e *Events) knownDown(p place) (d downRecord, is bool) {
	if all := e.down.Load(); all != nil {
		d, is = (*all)[p]
	}
	return d, is
}

// setDown applies a change of the records to the copy in memory.
func (e *Events) setDown(change func(map[place]downRecord)) {
	next := make(map[place]downRecord)
	if all := e.down.Load(); all != nil {
		next = maps.Clone(*all)
	}
	change(next)
	e.down.Store(&next)
}

// isDown reports whether this replica considers a destination, or a part of it, to be down.
func (e *Events) isDown(destination string) bool {
	since, _ := e.cfg.DownSince(destination)
	return !since.IsZero()
}

// noteDestination notes the user of a destination, and checks whether the destination may be down, or is up again.
func (e *Events) noteDestination(s *job.EventSettings, h *history.Entry) {
	if !s.Want(job.EventDestinationDown) && !s.Want(job.EventDestinationUp) {
		return
	}
	p := place{h.Name.Tenant, h.Destination}
	e.lock.Lock()
	if _, known := e.users[p]; !known && len(e.users) >= mostNoted {
		clear(e.users)
	}
	u := e.users[p]
	if u.sent = h.At; h.Kind != history.Delivered && h.Kind != history.Missed {
		u.failed = ended(h)
	}
	e.users[p] = u
	e.lock.Unlock()
	d, down := e.knownDown(p)
	switch delivered := h.Kind == history.Delivered; {
	case h.Kind == history.Missed, down != delivered: // the entry has no news
	case down && !e.isDown(h.Destination):
		gone := h.At.Sub(time.UnixMilli(d.Confirmed)) > confirmedFor
		if (gone || d.Replica == e.cfg.Replica) && e.first("up "+downKey(p)+string(d.version), h.At.Add(time.Minute)) {
			e.up(p, d, ended(h))
		}
	case !down && e.isDown(h.Destination):
		e.enqueue(happening{check: h.Destination, event: event{tenant: h.Name.Tenant, at: ended(h)}})
	default:
	}
}

// up makes the event that a destination is up again.
func (e *Events) up(p place, d downRecord, at time.Time) {
	change := store.RecordChange{
		Collection: downCollection, Key: downKey(p), Version: job.NewRevision(at), Now: at.UTC().Truncate(time.Millisecond),
		If: store.RecordCondition{Version: d.version},
	}
	e.enqueue(happening{event: event{
		tenant: p.tenant, kind: job.EventDestinationUp, subject: p.destination, at: at,
		id: job.FormatTime(time.UnixMilli(d.Since)) + " " + p.destination, writes: []store.RecordChange{change},
		data: Data{
			Destination: p.destination, Since: job.FormatTime(time.UnixMilli(d.Since)), Until: job.FormatTime(at),
		},
	}})
}

// checkDestination returns the events that a destination is down, one for each tenant that has lately sent to it. If
// only a part is down, the tenants are those whose deliveries there have failed.
func (e *Events) checkDestination(h happening) (all []happening) {
	since, whole := e.cfg.DownSince(h.check)
	if since.IsZero() {
		return nil
	}
	now := e.now()
	e.lock.Lock()
	var theirs []place
	for p, u := range e.users {
		concerned := whole || u.failed.After(since.Add(-failedFor))
		if p.destination == h.check && now.Sub(u.sent) < usedFor && concerned {
			theirs = append(theirs, p)
		}
	}
	e.lock.Unlock()
	for _, p := range theirs {
		if _, known := e.knownDown(p); known {
			continue
		}
		d := downRecord{
			Tenant: p.tenant, Destination: p.destination, Since: since.UnixMilli(), version: job.NewRevision(now),
			Replica: e.cfg.Replica, Confirmed: now.UnixMilli(),
		}
		e.setDown(func(all map[place]downRecord) { all[p] = d })
		all = append(all, happening{event: event{
			tenant: p.tenant, kind: job.EventDestinationDown, subject: p.destination, at: now,
			id:     job.FormatTime(since.Truncate(time.Minute)) + " " + p.destination,
			data:   Data{Destination: p.destination, Since: job.FormatTime(since)},
			writes: []store.RecordChange{d.change(p, now, store.RecordCondition{Absent: true})},
		}})
	}
	return all
}

// mayHaveFinished notes that an occurrence of a job has ended.
func (e *Events) mayHaveFinished(name job.Name, at time.Time) {
	e.lock.Lock()
	_, known := e.checks[name]
	taken := known || len(e.checks) < mostChecks && !e.ended
	if taken && !e.lives[name].After(at) {
		e.checks[name] = at
	}
	e.lock.Unlock()
	if taken {
		e.nudge()
		return
	}
	e.metrics.dropped.Inc()
}

// checkFinished reads some of the jobs that may have finished, and returns the events of those that have. Unread
// reports that the store was unavailable; the jobs will be read again.
func (e *Events) checkFinished(ctx context.Context) (all []happening, unread bool) {
	e.lock.Lock()
	some := make(map[job.Name]time.Time, min(len(e.checks), mostAtOnce))
	for name, at := range e.checks {
		if len(some) == mostAtOnce {
			break
		}
		some[name] = at
		delete(e.checks, name)
	}
	e.lock.Unlock()
	for name, at := range some {
		h, err := e.finished(ctx, name, at)
		if errors.Is(err, store.ErrUnavailable) {
			unread = true
			break
		}
		if h != nil {
			all = append(all, *h)
		}
		delete(some, name)
	}
	e.lock.Lock()
	maps.Copy(e.checks, some)
	e.lock.Unlock()
	return all, unread
}

// finished returns the event that a job has finished; nil if it has not, or is deleted.
func (e *Events) finished(ctx context.Context, name job.Name, at time.Time) (*happening, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	found, err := e.cfg.Store.Jobs(ctx, store.JobFilter{Tenant: name.Tenant, Key: name.Key, Limit: 1})
	if err != nil || len(found) == 0 {
		return nil, err
	}
	status := found[0]
	if status.Live() {
		if !status.ExpandAt.IsZero() { // it can't finish before
			e.lock.Lock()
			if len(e.lives) >= mostNoted {
				clear(e.lives)
			}
			e.lives[name] = status.ExpandAt
			e.lock.Unlock()
		}
		return nil, nil
	}
	data := Data{Key: name.Key}
	if status.Planned > 0 {
		data.Outcomes = &Outcomes{status.Planned - status.Failed - status.Missed, status.Failed, status.Missed}
	}
	return &happening{event: event{
		tenant: name.Tenant, kind: job.EventFinished, id: string(status.Revision) + " " + name.Key, subject: name.Key,
		at: at, keep: status.ExpiresAt, data: data,
	}}, nil
}
