package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/carillon-scheduler/carillon/sim/checker"
	"github.com/carillon-scheduler/carillon/sim/record"
)

// client sends each request on a connection of its own.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true, Proxy: nil}}

// request sends a request to a replica. It returns when it was sent, and so was at the replica; zero if it was not.
func (w *world) request(
	replica int, patience time.Duration, method, path string, body []byte, header http.Header,
) (a record.Answer, sent time.Time) {
	var wrote atomic.Pointer[time.Time]
	defer func() {
		if at := wrote.Load(); at != nil {
			sent = *at
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteRequest: func(i httptrace.WroteRequestInfo) {
		if i.Err == nil {
			now := time.Now()
			wrote.Store(&now)
		}
	}})
	address := "http://" + w.replicas[replica].address + path
	r, err := http.NewRequestWithContext(ctx, method, address, bytes.NewReader(body))
	if err != nil {
		panic(err) // can't happen: the parts are ours
	}
	r.Header = header.Clone()
	response, err := client.Do(r)
	if err != nil {
		return record.Answer{Refused: errors.Is(err, syscall.ECONNREFUSED)}, sent
	}
	defer response.Body.Close() //nolint:errcheck // it is only read
	content, err := io.ReadAll(response.Body)
	if err != nil {
		return record.Answer{}, sent
	}
	return record.Answer{Status: response.StatusCode, Body: content}, sent
}

// client makes an operation, and makes it again while its outcome is unknown.
func (w *world) client(ctx context.Context, o *Op) {
	sleep(ctx, time.Until(w.record.Begun().Add(o.At)))
	for try := range o.Again + 1 {
		if ctx.Err() != nil {
			return
		}
		seen := w.operate(o, (o.Replica+try)%len(w.replicas), try)
		w.observed(o, seen)
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

// observed records an operation; a batch is its puts, and a cancellation by prefix is that of each key.
func (w *world) observed(o *Op, seen checker.Op) {
	switch {
	case o.Prefix != "":
		w.record.Op(record.Parts(&seen, w.keys())...)
		return
	case o.Kind != checker.Batch:
		w.record.Op(seen)
		return
	}
	var puts []checker.Op
	for i := range o.Items {
		puts = append(puts, w.begin(&o.Items[i], seen.Replica))
	}
	for i, next := range record.Batch(&seen, puts) {
		w.placed(&puts[i], &o.Items[i], next)
	}
	w.record.Op(puts...)
}

// begin returns an operation before it is made.
func (w *world) begin(o *Op, replica int) checker.Op {
	seen := checker.Op{
		Kind: o.Kind, Key: o.Key, Prefix: o.Prefix, Replica: replica, N: o.N,
		Attempts: o.Attempts, Deadline: o.Deadline, CatchUp: o.CatchUp, Past: o.Past,
		Invoked: time.Now(), Retry: record.Retry,
		Schedule: checker.Schedule{Every: o.Every, End: w.at(o.End)},
	}
	for _, i := range o.Instants {
		seen.Schedule.Instants = append(seen.Schedule.Instants, w.at(i))
	}
	return seen
}

// at is a time since the beginning.
func (w *world) at(d time.Duration) time.Time { return w.record.Begun().Add(d) }

// placed notes the instant of a job with a delay.
func (w *world) placed(seen *checker.Op, o *Op, next string) {
	record.Placed(seen, o.Wait, link+within, next)
}

// operate makes an operation once.
func (w *world) operate(o *Op, replica, try int) checker.Op {
	patience := o.Patience
	if try > 0 {
		patience = 45 * time.Second
	}
	method, path, body, header := w.compose(o)
	match := 0
	if o.Match {
		match = w.condition(o, replica, patience, header)
	}
	clock := w.replicas[replica].clock
	before := clock.ahead()
	seen := w.begin(o, replica)
	seen.Match = match
	answer, sent := w.request(replica, patience, method, path, body, header)
	seen.Arrived = sent.Add(w.younger + clock.younger())
	next, err := record.Told(&seen, answer)
	if err != nil {
		w.fault("%v", err)
	}
	after := clock.ahead()
	seen.Ahead, seen.Behind = max(0, before, after), max(0, -before, -after)
	w.placed(&seen, o, next)
	return seen
}

// condition makes a change one of the job's present version, and returns the payload of that; 0 if there is none.
func (w *world) condition(o *Op, replica int, patience time.Duration, header http.Header) (match int) {
	present, _ := w.request(replica, patience, http.MethodGet, "/v1/jobs/"+o.Key, nil, make(http.Header))
	match, tag, err := record.Present(present)
	if err != nil {
		w.fault("%v", err)
	}
	if tag != "" {
		header.Set("If-Match", tag)
	}
	return match
}

// compose makes the request of an operation.
func (w *world) compose(o *Op) (method, path string, body []byte, header http.Header) {
	path, header = "/v1/jobs/"+o.Key, make(http.Header)
	switch o.Kind {
	case checker.Put, checker.Create:
		if o.Kind == checker.Create {
			header.Set("If-None-Match", "*")
		}
		header.Set("Content-Type", "application/json")
		return http.MethodPut, path, encoded(w.definition(o)), header
	case checker.Batch:
		for i := range o.Items {
			d := w.definition(&o.Items[i])
			d["key"] = o.Items[i].Key
			body = append(append(body, encoded(d)...), '\n')
		}
		header.Set("Content-Type", "application/x-ndjson")
		return http.MethodPost, "/v1/jobs/batch", body, header
	case checker.Replace:
		header.Set("Content-Type", "application/merge-patch+json")
		return http.MethodPatch, path, encoded(record.Whole(w.definition(o))), header
	case checker.Amend:
		header.Set("Content-Type", "application/merge-patch+json")
		return http.MethodPatch, path, encoded(map[string]any{
			"callback": callbackOf(o), "retry": record.Policy(o.Attempts, record.Retry),
		}), header
	case checker.Cancel:
		if o.Prefix != "" {
			path = "/v1/jobs?prefix=" + url.QueryEscape(o.Prefix)
		}
		return http.MethodDelete, path, nil, header
	case checker.Pause, checker.Resume, checker.Trigger:
		return http.MethodPost, path + "/" + string(o.Kind), nil, header
	case checker.Redrive:
		return http.MethodPost, "/v1/dead-letters/redrive?key=" + url.QueryEscape(o.Key), nil, header
	case checker.Discard:
		return http.MethodDelete, "/v1/dead-letters?key=" + url.QueryEscape(o.Key), nil, header
	default:
		return http.MethodGet, path, nil, header
	}
}

func callbackOf(o *Op) map[string]any {
	return map[string]any{"type": "http", "data": map[string]any{
		"url": "http://" + o.Key + host + "/", "payload": record.Payload{N: o.N},
	}}
}

// definition makes the job of a put.
func (w *world) definition(o *Op) map[string]any {
	j := record.Job{
		Callback: callbackOf(o), Attempts: o.Attempts, Retry: record.Retry, Deadline: o.Deadline, Wait: o.Wait,
		Steps: o.Steps, Every: o.Every, End: w.at(o.End), CatchUp: o.CatchUp, Past: o.Past,
	}
	for _, at := range o.Instants {
		j.Instants = append(j.Instants, w.at(at))
	}
	return j.Body()
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
	a, _ := w.request(replica, 30*time.Second, http.MethodGet, path, nil, nil)
	return a
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
