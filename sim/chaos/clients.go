package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/carillon-scheduler/carillon/sim/checker"
)

// answer is what a client was told; status 0 is nothing.
type answer struct {
	status int
	body   []byte
	// refused is set if there was no connection, so nothing can have changed.
	refused bool
}

// client sends each request on a connection of its own.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true, Proxy: nil}}

// request sends a request to a replica.
func (w *world) request(
	replica int, patience time.Duration, method, path string, body []byte, header http.Header,
) answer {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	address := "http://" + w.replicas[replica].address + path
	r, err := http.NewRequestWithContext(ctx, method, address, bytes.NewReader(body))
	if err != nil {
		panic(err) // can't happen: the parts are ours
	}
	r.Header = header.Clone()
	response, err := client.Do(r)
	if err != nil {
		return answer{refused: errors.Is(err, syscall.ECONNREFUSED)}
	}
	defer response.Body.Close() //nolint:errcheck // it is only read
	content, err := io.ReadAll(response.Body)
	if err != nil {
		return answer{}
	}
	return answer{status: response.StatusCode, body: content}
}

// client makes an operation, and makes it again while its outcome is unknown.
func (w *world) client(ctx context.Context, o *Op) {
	sleep(ctx, time.Until(w.history.Begun.Add(o.At)))
	for try := range o.Again + 1 {
		if ctx.Err() != nil {
			return
		}
		seen := w.operate(o, (o.Replica+try)%len(w.replicas), try)
		w.lock.Lock()
		seen.ID = len(w.history.Ops)
		w.history.Ops = append(w.history.Ops, seen)
		w.lock.Unlock()
		if seen.Status != 0 && seen.Status < 500 {
			return
		}
		sleep(ctx, w.chance(2*time.Second))
	}
}

// sleep sleeps for a time, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// operate makes an operation once.
func (w *world) operate(o *Op, replica, try int) checker.Op {
	at := func(d time.Duration) time.Time { return w.history.Begun.Add(d) }
	patience := o.Patience
	if try > 0 {
		patience = 45 * time.Second
	}
	method, path, body, header := w.compose(o)
	seen := checker.Op{
		Kind: o.Kind, Key: o.Key, Replica: replica, N: o.N, Invoked: time.Now(),
		Schedule: checker.Schedule{Every: o.Every, End: at(o.End)}, CatchUp: o.CatchUp,
	}
	for _, i := range o.Instants {
		seen.Schedule.Instants = append(seen.Schedule.Instants, at(i))
	}
	a := w.request(replica, patience, method, path, body, header)
	seen.Returned, seen.Status, seen.Body = time.Now(), a.status, a.body
	said := bytes.Contains(a.body, []byte("nothing was changed"))
	seen.Unchanged = a.refused || a.status >= 400 && a.status < 500 || said
	if seen.Status >= 200 && seen.Status < 300 {
		w.understand(&seen, a.body)
	}
	return seen
}

// compose makes the request of an operation.
func (w *world) compose(o *Op) (method, path string, body []byte, header http.Header) {
	path, header = "/v1/jobs/"+o.Key, make(http.Header)
	instant := func(d time.Duration) string { return w.history.Begun.Add(d).UTC().Format("2006-01-02T15:04:05.000Z") }
	callback := map[string]any{"type": "http", "data": map[string]any{
		"url": "http://" + o.Key + host + "/", "payload": map[string]any{"n": o.N},
	}}
	switch o.Kind {
	case checker.Put, checker.Create:
		d := map[string]any{
			"callback": callback,
			"retry":    map[string]any{"maxAttempts": o.Attempts, "initial": "500ms", "max": "4s"},
		}
		if o.Every > 0 {
			d["crontab"] = fmt.Sprintf("*/%d * * * * *", o.Every/time.Second)
			d["endAt"], d["catchUp"] = instant(o.End), o.CatchUp
		} else {
			schedules := make([]string, len(o.Instants))
			for i, at := range o.Instants {
				schedules[i] = instant(at)
			}
			d["schedules"] = schedules
		}
		if o.Kind == checker.Create {
			header.Set("If-None-Match", "*")
		}
		header.Set("Content-Type", "application/json")
		return http.MethodPut, path, encoded(d), header
	case checker.Amend:
		header.Set("Content-Type", "application/merge-patch+json")
		return http.MethodPatch, path, encoded(map[string]any{"callback": callback}), header
	case checker.Cancel:
		return http.MethodDelete, path, nil, header
	case checker.Pause, checker.Resume, checker.Trigger:
		return http.MethodPost, path + "/" + string(o.Kind), nil, header
	case checker.Redrive:
		return http.MethodPost, "/v1/dead-letters/redrive?key=" + url.QueryEscape(o.Key), nil, header
	default:
		return http.MethodGet, path, nil, header
	}
}

func encoded(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // can't happen: it has plain values only
	}
	return b
}

// understand reads an answer, as far as it matters.
func (w *world) understand(seen *checker.Op, body []byte) {
	switch seen.Kind {
	case checker.Get:
		seen.Shown = w.jobOf(body)
	case checker.Put, checker.Create, checker.Cancel, checker.Amend:
		var a struct{ Skipped, Cancelled, InFlight int }
		w.decode(body, &a)
		seen.Skipped, seen.Cancelled, seen.InFlight = a.Skipped, a.Cancelled, a.InFlight
	case checker.Trigger:
		var a struct{ DeliveryID string }
		w.decode(body, &a)
		seen.DeliveryID = a.DeliveryID
	default:
	}
}

func (w *world) decode(body []byte, v any) {
	if err := json.Unmarshal(body, v); err != nil {
		w.fault("an answer can't be read: %v: %s", err, body)
	}
}

func (w *world) jobOf(body []byte) checker.Job {
	var s struct {
		Callback struct {
			Data struct{ Payload struct{ N int } }
		}
		State           string
		Pending, Missed int
		Outcomes        *struct{ Delivered, Failed, Missed int }
		Occurrences     []struct{ State string }
	}
	w.decode(body, &s)
	j := checker.Job{N: s.Callback.Data.Payload.N, State: s.State, Pending: s.Pending, Missed: s.Missed}
	if s.Outcomes != nil {
		j.Counted, j.Delivered, j.Failed = true, s.Outcomes.Delivered, s.Outcomes.Failed
	}
	for _, o := range s.Occurrences {
		if o.State == "claimed" {
			j.Held++
		}
	}
	return j
}

// look reads the state of all keys, once; quiet is set if every replica is ready, and nothing more will happen.
func (w *world) look() (f checker.Final, quiet bool) {
	f = checker.Final{Jobs: map[string]checker.Job{}, Dead: map[string][]checker.Dead{}}
	quiet = true
	const patience = 30 * time.Second
	get := func(what, path string, v any) bool {
		a := w.request(0, patience, http.MethodGet, path, nil, nil)
		switch {
		case a.status == http.StatusNotFound:
			return false
		case a.status != http.StatusOK:
			f.Unread = append(f.Unread, fmt.Sprintf("%s: %d %s", what, a.status, a.body))
			quiet = false
			return false
		case v != nil:
			w.decode(a.body, v)
		}
		return true
	}
	for i := range w.replicas {
		if a := w.request(i, patience, http.MethodGet, "/readyz", nil, nil); a.status != http.StatusOK {
			f.Unready = append(f.Unready, fmt.Sprintf("replica %d is not ready: %d %s", i, a.status, a.body))
			quiet = false
		}
	}
	for _, key := range w.keys() {
		var raw json.RawMessage
		if get("job "+key, "/v1/jobs/"+key, &raw) {
			j := w.jobOf(raw)
			f.Jobs[key] = j
			quiet = quiet && (j.State == "finished" || j.State == "paused" && j.Held == 0)
		}
		var dead struct {
			Items []struct{ ID, DeliveryID, Timestamp string }
		}
		get("dead letters of "+key, "/v1/dead-letters?limit=1000&key="+key, &dead)
		for _, d := range dead.Items {
			at, _ := time.Parse(time.RFC3339, d.Timestamp)
			f.Dead[key] = append(f.Dead[key], checker.Dead{ID: d.ID, DeliveryID: d.DeliveryID, Instant: at})
		}
		var told struct {
			Items []struct {
				DeliveryID, Outcome string
				Attempt             int
			}
		}
		get("history of "+key, "/v1/jobs/"+key+"/history?limit=1000", &told)
		for _, h := range told.Items {
			if h.Outcome != "" && h.Outcome != "missed" && h.Outcome != "unknown" {
				f.Recorded = append(f.Recorded, checker.Recorded{Key: key, DeliveryID: h.DeliveryID, Attempt: h.Attempt})
			}
		}
	}
	return f, quiet
}

// keys returns the keys of all operations.
func (w *world) keys() (all []string) {
	seen := make(map[string]bool)
	for _, o := range w.plan.Ops {
		if !seen[o.Key] {
			seen[o.Key] = true
			all = append(all, strings.Clone(o.Key))
		}
	}
	return all
}
