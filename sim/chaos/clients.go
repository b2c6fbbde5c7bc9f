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
	"github.com/carillon-scheduler/carillon/sim/record"
)

// client sends each request on a connection of its own.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true, Proxy: nil}}

// request sends a request to a replica.
func (w *world) request(
	replica int, patience time.Duration, method, path string, body []byte, header http.Header,
) record.Answer {
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
		return record.Answer{Refused: errors.Is(err, syscall.ECONNREFUSED)}
	}
	defer response.Body.Close() //nolint:errcheck // it is only read
	content, err := io.ReadAll(response.Body)
	if err != nil {
		return record.Answer{}
	}
	return record.Answer{Status: response.StatusCode, Body: content}
}

// client makes an operation, and makes it again while its outcome is unknown.
func (w *world) client(ctx context.Context, o *Op) {
	sleep(ctx, time.Until(w.record.Begun().Add(o.At)))
	for try := range o.Again + 1 {
		if ctx.Err() != nil {
			return
		}
		seen := w.operate(o, (o.Replica+try)%len(w.replicas), try)
		w.record.Op(seen)
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
	at := func(d time.Duration) time.Time { return w.record.Begun().Add(d) }
	patience := o.Patience
	if try > 0 {
		patience = 45 * time.Second
	}
	method, path, body, header := w.compose(o)
	seen := checker.Op{
		Kind: o.Kind, Key: o.Key, Replica: replica, N: o.N, Invoked: time.Now(),
		Schedule: checker.Schedule{Every: o.Every, End: at(o.End)}, CatchUp: o.CatchUp,
		Attempts: o.Attempts,
	}
	for _, i := range o.Instants {
		seen.Schedule.Instants = append(seen.Schedule.Instants, at(i))
	}
	if _, err := record.Told(&seen, w.request(replica, patience, method, path, body, header)); err != nil {
		w.fault("%v", err)
	}
	return seen
}

// compose makes the request of an operation.
func (w *world) compose(o *Op) (method, path string, body []byte, header http.Header) {
	path, header = "/v1/jobs/"+o.Key, make(http.Header)
	instant := func(d time.Duration) string { return w.record.Begun().Add(d).UTC().Format("2006-01-02T15:04:05.000Z") }
	callback := map[string]any{"type": "http", "data": map[string]any{
		"url": "http://" + o.Key + host + "/", "payload": record.Payload{N: o.N},
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

// get asks a replica.
func (w *world) get(replica int, _, path string) record.Answer {
	return w.request(replica, 30*time.Second, http.MethodGet, path, nil, nil)
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
