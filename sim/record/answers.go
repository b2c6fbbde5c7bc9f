package record

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/carillon-scheduler/carillon/sim/checker"
)

// Payload is the payload of all deliveries, a member of the callback data.
type Payload struct {
	N int `json:"n"`
}

// Answer is the answer to a client.
type Answer struct {
	// Status is 0 if there was no answer.
	Status int
	Body   []byte
	// Refused is set if there was no connection, so nothing can have changed.
	Refused bool
}

// OK reports whether the request succeeded.
func (a Answer) OK() bool { return a.Status >= 200 && a.Status <= 299 }

// Unchanged reports whether nothing was changed for certain.
func (a Answer) Unchanged() bool {
	return a.Refused || a.Status >= 400 && a.Status < 500 || bytes.Contains(a.Body, []byte(NothingChanged))
}

// NothingChanged is the text in the answer to a failed request if nothing was changed.
const NothingChanged = "nothing was changed"

// Told ends an operation by its answer. It returns the next instant that the answer names, if it does. The error says
// that the answer can't be read.
func Told(o *checker.Op, a Answer) (next string, err error) {
	o.Returned, o.Status, o.Body, o.Unchanged = time.Now(), a.Status, a.Body, a.Unchanged()
	if !a.OK() {
		return "", nil
	}
	switch o.Kind {
	case checker.Get:
		if o.Shown, err = jobOf(a.Body); err == nil {
			o.Moved, err = pendingOf(a.Body)
		}
	case checker.Preview:
		o.Moved, err = previewOf(a.Body)
	case checker.List:
		var page struct{ Items []struct{ Key string } }
		err = decode(a.Body, &page)
		for _, j := range page.Items {
			o.Listed = append(o.Listed, j.Key)
		}
	case checker.Put, checker.Create, checker.Replace, checker.Cancel, checker.Amend, checker.Trigger, checker.Redrive,
		checker.Discard:
		var told struct {
			Skipped, Settled, Cancelled, InFlight, Redriven, Deleted, Jobs int
			NextInstant, DeliveryID                                        string
		}
		err = decode(a.Body, &told)
		o.Skipped, o.Settled, o.Cancelled, o.InFlight = told.Skipped, told.Settled, told.Cancelled, told.InFlight
		o.Redriven, o.Deleted, o.Found, o.DeliveryID = told.Redriven, told.Deleted, told.Jobs, told.DeliveryID
		next = told.NextInstant
	default:
	}
	return next, err
}

func decode(body []byte, v any) error {
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("an answer can't be read: %w: %s", err, body)
	}
	return nil
}

func jobOf(body []byte) (checker.Job, error) {
	var s struct {
		Callback struct {
			Data struct{ Payload Payload }
		}
		State, Version  string
		Pending, Missed int
		Outcomes        *struct{ Delivered, Failed, Missed int }
		Occurrences     []struct{ State string }
		LastOutcome     checker.Outcome
	}
	err := decode(body, &s)
	j := checker.Job{
		N: s.Callback.Data.Payload.N, State: s.State, Version: s.Version, Pending: s.Pending, Missed: s.Missed,
		Last: s.LastOutcome,
	}
	if s.Outcomes != nil {
		j.Counted, j.Delivered, j.Failed = true, s.Outcomes.Delivered, s.Outcomes.Failed
	}
	for _, o := range s.Occurrences {
		if o.State == "claimed" {
			j.Held++
		}
	}
	return j, err
}

// Present returns the payload and the entity tag of the job that the answer to a GET shows; zero and empty if it shows
// none. The error says that the answer can't be read.
func Present(a Answer) (n int, tag string, err error) {
	if !a.OK() {
		return 0, "", nil
	}
	j, err := jobOf(a.Body)
	return j.N, strconv.Quote(j.Version), err
}

// Key returns the id and the whole of the key that the answer to its creation or rotation shows. The error says that
// the answer can't be read.
func Key(a Answer) (id, key string, err error) {
	var shown struct{ ID, Key string }
	err = decode(a.Body, &shown)
	return shown.ID, shown.Key, err
}

// Read reads the state of all replicas and of all jobs of some keys; ask sends a GET about a key, which is empty for
// none, to a replica.
func Read(replicas int, keys []string, ask func(replica int, key, path string) Answer) checker.Final {
	r := reading{ask: ask}
	r.Jobs, r.Dead = map[string]checker.Job{}, map[string][]checker.Dead{}
	r.Missing = map[string]checker.Missing{}
	for i := range replicas {
		if a := ask(i, "", "/readyz"); a.Status != http.StatusOK {
			r.Unready = append(r.Unready, fmt.Sprintf("replica %d is not ready: %d %s", i, a.Status, a.Body))
		}
	}
	for _, key := range keys {
		r.job(key)
		r.dead(key)
		r.recorded(key)
	}
	slices.Sort(r.Unread)
	return r.Final
}

type reading struct {
	checker.Final
	ask func(replica int, key, path string) Answer
}

// get reads one resource of a key, and returns whether there is one.
func (r *reading) get(key, what, path string, read func(body []byte) error) bool {
	a := r.ask(0, key, path)
	if a.Status == http.StatusNotFound {
		return false
	}
	err := error(nil)
	if a.Status == http.StatusOK {
		err = read(a.Body)
	}
	if a.Status != http.StatusOK || err != nil {
		r.Unread = append(r.Unread, fmt.Sprintf("%s of %s: %d %s", what, key, a.Status, a.Body))
		return false
	}
	return true
}

func (r *reading) job(key string) {
	var j checker.Job
	read := func(body []byte) (err error) { j, err = jobOf(body); return err }
	there := r.get(key, "job", "/v1/jobs/"+key, read)
	// The due occurrences of a paused job are claimed for a moment and put back, once in a lease.
	for try := 0; try < 3 && there && j.State == "paused" && j.Held > 0; try++ {
		time.Sleep(time.Second)
		there = r.get(key, "job", "/v1/jobs/"+key, read)
	}
	if there {
		r.Jobs[key] = j
	}
}

func (r *reading) dead(key string) {
	r.get(key, "dead letters", "/v1/dead-letters?limit=1000&key="+key, func(body []byte) error {
		var page struct {
			Items []struct {
				ID, DeliveryID string
				Timestamp      time.Time
				Attempt        int
			}
		}
		err := decode(body, &page)
		for _, d := range page.Items {
			r.Dead[key] = append(r.Dead[key], checker.Dead{
				ID: d.ID, DeliveryID: d.DeliveryID, Instant: d.Timestamp, Attempt: d.Attempt,
			})
		}
		return err
	})
}

func (r *reading) recorded(key string) {
	r.get(key, "history", "/v1/jobs/"+key+"/history?limit=1000", func(body []byte) error {
		var page struct {
			Items []struct {
				DeliveryID, Outcome string
				Attempt             int
				At                  time.Time
			}
			MissingFrom, MissingUntil time.Time
			NextCursor                string
		}
		err := decode(body, &page)
		for _, h := range page.Items {
			if h.Outcome != "" && h.Outcome != "missed" {
				r.Recorded = append(r.Recorded, checker.Recorded{
					Key: key, DeliveryID: h.DeliveryID, Attempt: h.Attempt, Outcome: h.Outcome, At: h.At,
				})
			}
		}
		if page.NextCursor != "" { // the next page is not read
			page.MissingUntil = time.Now()
		}
		if !page.MissingUntil.IsZero() {
			r.Missing[key] = checker.Missing{From: page.MissingFrom, Until: page.MissingUntil}
		}
		return err
	})
}

// Quiet reports whether every replica is ready, everything could be read, and no job has anything left to do.
func Quiet(f *checker.Final) bool {
	for _, j := range f.Jobs {
		if j.Held > 0 || j.State != "finished" && j.State != "paused" {
			return false
		}
	}
	return len(f.Unready) == 0 && len(f.Unread) == 0
}
