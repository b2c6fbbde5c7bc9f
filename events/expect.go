package events

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/checkins"
)

// WatchType is the callback type of watches, which [Watcher] sends.
const WatchType = "carillon-watch"

// WatchName returns the name of the job that watches a job.
func WatchName(of job.Name) job.Name {
	key := job.ReservedPrefix + "expect:" + of.Key
	if len(key) > job.MaxKeyBytes {
		sum := sha256.Sum256([]byte(of.Key))
		key = job.ReservedPrefix + "expect:" + hex.EncodeToString(sum[:])
	}
	return job.Name{Tenant: of.Tenant, Key: key}
}

// watched is the callback data of a watch.
type watched struct {
	Key string `json:"key"`
}

// Watch returns the job that watches a job with an ExpectBy, whose schedule began at a time. The watch has the same
// instants, and fires ExpectBy after each of them: once, however many steps and subscribers a sequence has there. Some
// is false if no instants are left. The error means that this machine does not know the time zone.
func Watch(j *job.Job, begun time.Time) (watch job.Job, some bool, err error) {
	data, err := json.Marshal(watched{j.Key})
	if err != nil {
		data = []byte("{}") // can't happen: a key is a valid text
	}
	watch = job.Job{
		Name:     WatchName(j.Name),
		Callback: job.Callback{Type: WatchType, Data: data},
		Options:  job.Options{After: j.Options.ExpectBy, Priority: job.PriorityHigh},
		Schedule: j.Schedule,
	}
	// The watch is retried until the event is stored.
	watch.Options.Retry = job.Retry{MaxAttempts: 1000, Initial: job.Duration(time.Second), Max: job.Duration(time.Minute)}
	if j.Schedule.Recurs() {
		return watch, true, nil
	}
	all, err := j.Schedule.Distinct()
	watch.Schedule = job.Schedule{Instants: slices.DeleteFunc(all, func(at time.Time) bool {
		return !at.Add(time.Duration(j.Options.ExpectBy)).After(begun)
	})}
	return watch, len(watch.Schedule.Instants) > 0, err
}

// CheckIn records the check-in after a job's instant. Until is the time by which it is expected. A repetition changes
// nothing. The errors are those of [store.Records].
func CheckIn(ctx context.Context, records store.Records, of job.Name, at, until, now time.Time) error {
	// A watch may fire late, since its replica or its tenant may have been stopped.
	const longer = 30 * 24 * time.Hour
	come := checkins.CheckIn{Name: of, At: at, ExpiresAt: until.Add(longer)}
	_, err := checkins.Keep(ctx, records, []checkins.CheckIn{come}, now)
	return err
}

// Watcher is the sender of watches: when a watch fires, it looks for the check-in, and makes an event if there is none.
// Its failures are retried, so a missing check-in becomes an event even if the replica is killed meanwhile. It becomes
// only one, since the event's key follows from the instant.
type Watcher struct{ events *Events }

var _ callbacks.Sender = Watcher{}

// Watcher returns the sender of watches.
func (e *Events) Watcher() Watcher { return Watcher{e} }

// Type returns [WatchType].
func (Watcher) Type() string { return WatchType }

// Validate refuses all data: no client submits a watch.
func (Watcher) Validate([]byte) error {
	return job.InvalidField("", "is for the service's own jobs; give a job expectBy instead")
}

// Destination returns the same for all watches.
func (Watcher) Destination([]byte) string { return "check-ins" }

// Send looks for the check-in. A failure of the store costs no attempt.
func (w Watcher) Send(ctx context.Context, d callbacks.Delivery) error {
	err := w.events.look(ctx, &d)
	if errors.Is(err, store.ErrUnavailable) {
		return callbacks.Unavailable(err, time.Second)
	}
	return err
}

func (e *Events) look(ctx context.Context, d *callbacks.Delivery) error {
	data, err := job.ParseTrusted[watched](d.Data)
	if err != nil {
		return callbacks.Permanent(fmt.Errorf("its data can't be read: %w", err))
	}
	of, now := job.Name{Tenant: d.Name.Tenant, Key: data.Key}, e.now()
	if e.settings.Load() == nil {
		return fmt.Errorf("%w: the tenants' settings have not been read yet", store.ErrUnavailable)
	}
	watch, err := store.ReadJob(ctx, e.cfg.Store, d.Name)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	j, err := store.ReadJob(ctx, e.cfg.Store, of)
	switch {
	case errors.Is(err, store.ErrNotFound), err == nil && (j.Options.ExpectBy == 0 || j.Gone(now)):
		return e.unwatch(ctx, watch.Job, now)
	case err != nil:
		return err
	case !j.PausedAt.IsZero():
		return nil // nothing is expected of a paused job
	}
	if come, err := checkins.Has(ctx, e.cfg.Store, of, d.Timestamp, now); come || err != nil {
		return err
	}
	return e.missed(ctx, &j.Job, d.Timestamp, now)
}

// unwatch cancels a watch whose job is gone or no longer expects check-ins, unless the watch was renewed since it was
// read.
func (e *Events) unwatch(ctx context.Context, watch job.Job, now time.Time) error {
	asked := store.Asked{Now: now, Newer: store.Span{After: watch.Version, Until: job.LastRevision(now.Add(time.Hour))}}
	_, err := e.cfg.Store.Cancel(ctx, []job.Name{watch.Name}, asked)
	return err
}

// missed makes the event of a missing check-in, and returns when it is stored.
func (e *Events) missed(ctx context.Context, j *job.Job, at, now time.Time) (err error) {
	defer func() {
		if err == nil {
			e.metrics.unheeded.Inc()
		}
	}()
	by := at.Add(time.Duration(j.Options.ExpectBy))
	e.cfg.Logger.Info("a check-in did not come", "job", j.String(), "instant", job.FormatTime(at),
		"expectedBy", job.FormatTime(by))
	if !e.of(j.Tenant).Want(job.EventExpectationMissed) {
		return nil
	}
	told := make(chan error, 1)
	if !e.enqueue(happening{told: told, event: event{
		tenant: j.Tenant, kind: job.EventExpectationMissed, id: job.FormatTime(at) + " " + j.Key, subject: j.Key, at: now,
		data: Data{Key: j.Key, Instant: job.FormatTime(at), ExpectedBy: job.FormatTime(by)},
	}}) {
		return fmt.Errorf("%w: too many events wait for it", store.ErrUnavailable)
	}
	select {
	case err := <-told:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}
