package sim

import (
	"bytes"
	"cmp"
	"context"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/carillon-scheduler/carillon/handlers"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/sim/checker"
	"github.com/carillon-scheduler/carillon/sim/record"
	"github.com/carillon-scheduler/carillon/store"
)

// client makes an operation, and makes it again while its outcome is unknown.
func (w *world) client(o *Op) {
	time.Sleep(time.Until(w.at(o.At)))
	for try := range o.Again + 1 {
		replica := (o.Replica + try) % w.plan.Replicas
		var second sync.WaitGroup
		if try == 0 && o.Twice > 0 {
			again := *o
			again.Delay, again.LoseRequest, again.LoseReply = o.Delay+o.Twice, false, true
			second.Go(func() { w.observed(&again, w.operate(&again, (replica+1)%w.plan.Replicas, 0)) })
		}
		seen := w.operate(o, replica, try)
		w.observed(o, seen)
		second.Wait()
		if seen.Status != 0 && seen.Status < 500 {
			return
		}
		time.Sleep(w.chance(func(r *rand.Rand) time.Duration { return time.Duration(r.IntN(2000)) * time.Millisecond }))
	}
}

// observed records an operation; a batch is its puts, and a cancellation by prefix is that of each key.
func (w *world) observed(o *Op, seen checker.Op) {
	switch {
	case o.Prefix != "":
		ofOthers := func(key string) bool { return w.tenants[key] != o.Tenant }
		w.record.Op(record.Parts(&seen, slices.DeleteFunc(w.keys(), ofOthers))...)
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

// begin returns the known part of an operation before it is made.
func (w *world) begin(o *Op, replica int) checker.Op {
	seen := checker.Op{
		Kind: o.Kind, Key: o.Key, Prefix: o.Prefix, Tenant: o.Tenant, Caller: o.Caller, Replica: replica, To: o.To, N: o.N,
		Invoked: time.Now(),
		Paused:  o.Paused, Most: o.InFlight, Jobs: o.Jobs, Deadline: o.Deadline.D(), CatchUp: o.CatchUp,
		Attempts: o.Attempts, Retry: retry(o), Past: o.Past, Overlap: o.Overlap.D(),
		Schedule: checker.Schedule{
			Every: o.Every.D(), End: w.at(o.End), Spread: o.Spread.D(), Steps: o.Steps,
		},
	}
	if o.Kind != checker.Amend {
		seen.Attempts = max(1, o.Attempts)
	}
	for _, s := range o.Instants {
		seen.Schedule.Instants = append(seen.Schedule.Instants, w.at(s))
	}
	return seen
}

// placed notes the instant of a job with a delay.
func (w *world) placed(seen *checker.Op, o *Op, next string) {
	record.Placed(seen, o.Wait.D(), link+store.Within, next)
}

// operate makes an operation once.
func (w *world) operate(o *Op, replica, try int) checker.Op {
	match, condition := w.condition(o, replica)
	seen := w.begin(o, replica)
	seen.Match = match
	time.Sleep(o.Delay.D())
	seen.Arrived = time.Now()
	var a record.Answer
	clock := w.clocks[replica]
	before := clock.ahead()
	if try == 0 && o.LoseRequest {
		time.Sleep(time.Second)
	} else {
		method, path, body, headers := w.compose(o)
		shown, number := w.credentials(o)
		seen.Secret = number
		a = w.request(replica, method, path, body, slices.Concat(headers, shown, condition)...)
		if try == 0 && o.LoseReply {
			a = record.Answer{}
		}
		w.rotated(&seen, a)
	}
	next, err := record.Told(&seen, a)
	if err != nil {
		panic(err)
	}
	after := clock.ahead()
	seen.Ahead, seen.Behind = max(0, before, after), max(0, -before, -after)
	w.placed(&seen, o, next)
	return seen
}

// condition returns the payload that a change is conditional on, and its header: those of the present job.
func (w *world) condition(o *Op, replica int) (match int, header []string) {
	if !o.Match {
		return 0, nil
	}
	match, tag, err := record.Present(w.get(replica, o.Key, "/v1/jobs/"+o.Key))
	if err != nil {
		panic(err)
	}
	if tag != "" {
		header = []string{"If-Match", tag}
	}
	return match, header
}

// patience is how long a client waits.
const patience = 45 * time.Second

// request sends a request to a replica.
func (w *world) request(replica int, method, path, body string, headers ...string) record.Answer {
	n := w.present(replica)
	var handler http.Handler
	w.net.with(func() { handler = n.handler })
	if handler == nil {
		return record.Answer{Refused: true}
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	ctx = handlers.KeepConn(ctx, received{at: time.Now()})
	r := httptest.NewRequestWithContext(ctx, method, path, bytes.NewBufferString(body))
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	got := make(chan record.Answer, 1)
	go func() {
		n.standStill()
		recorder := httptest.NewRecorder()
		defer func() { // as net/http's server does: the connection breaks, and the client is told nothing
			switch cause := recover(); cause {
			case nil:
			case http.ErrAbortHandler:
				got <- record.Answer{}
			default:
				panic(cause)
			}
		}()
		handler.ServeHTTP(recorder, r)
		n.standStill()
		got <- record.Answer{Status: recorder.Code, Body: recorder.Body.Bytes()}
	}()
	select {
	case a := <-got:
		if n.isDead() {
			return record.Answer{}
		}
		return a
	case <-ctx.Done():
		return record.Answer{}
	}
}

// get asks a replica about a key.
func (w *world) get(replica int, key, path string) record.Answer {
	headers := w.headers(&Op{Key: key, Tenant: w.tenants[key]})
	return w.request(replica, "GET", path, "", append(headers, bearer(operatorToken)...)...)
}

// compose makes the request of an operation.
func (w *world) compose(o *Op) (method, path, body string, headers []string) {
	path = "/v1/jobs/" + o.Key
	headers = w.headers(o)
	const jsonType = "application/json"
	switch o.Kind {
	case checker.Put, checker.Create:
		if o.Kind == checker.Create {
			headers = append(headers, "If-None-Match", "*")
		}
		return "PUT", path, encoded(w.definition(o)), append(headers, "Content-Type", jsonType)
	case checker.Batch:
		for i := range o.Items {
			d := w.definition(&o.Items[i])
			d["key"] = o.Items[i].Key
			body += encoded(d) + "\n"
		}
		return "POST", "/v1/jobs/batch", body, append(headers, "Content-Type", "application/x-ndjson")
	case checker.Replace, checker.Amend:
		callback, members := callbackOf(o)
		record.Remove(members, "to", "takes", "fails", "url") // the job may have those of another type
		patch := map[string]any{}
		switch {
		case o.Kind == checker.Replace:
			patch = record.Whole(w.definition(o))
		case o.Attempts > 0:
			patch["retry"] = record.Policy(o.Attempts, retry(o))
		}
		patch["callback"] = callback
		return "PATCH", path, encoded(patch), append(headers, "Content-Type", "application/merge-patch+json")
	case checker.Settings:
		d := map[string]any{"paused": o.Paused}
		if o.InFlight > 0 {
			d["maxInFlight"] = o.InFlight
		}
		return "PUT", "/v1/tenants/" + o.Tenant, encoded(d), append(headers, "Content-Type", jsonType)
	case checker.Quota:
		limits := encoded(map[string]any{"maxJobs": o.Jobs})
		return "PUT", "/v1/tenants/" + o.Tenant + "/limits", limits, append(headers, "Content-Type", jsonType)
	case checker.Revoke:
		return "DELETE", "/v1/keys/" + w.made[o.Caller].id, "", headers
	case checker.Rotate:
		overlap := encoded(map[string]any{"overlap": o.Overlap.D().String()})
		return "POST", "/v1/keys/" + w.made[o.Caller].id + "/rotate", overlap, append(headers, "Content-Type", jsonType)
	case checker.List:
		return "GET", "/v1/jobs", "", headers
	case checker.Preview:
		d := w.definition(o)
		if o.Key != "" {
			d["key"] = o.Key
		}
		return "POST", "/v1/preview?count=200", encoded(d), append(headers, "Content-Type", jsonType)
	case checker.Cancel:
		if o.Prefix != "" {
			path = "/v1/jobs?prefix=" + url.QueryEscape(o.Prefix)
		}
		return "DELETE", path, "", headers
	case checker.Pause, checker.Resume, checker.Trigger:
		return "POST", path + "/" + string(o.Kind), "", headers
	case checker.Redrive:
		return "POST", "/v1/dead-letters/redrive?key=" + url.QueryEscape(o.Key), "", headers
	case checker.Discard:
		return "DELETE", "/v1/dead-letters?key=" + url.QueryEscape(o.Key), "", headers
	default:
		return "GET", path, "", headers
	}
}

// headers returns the headers that name an operation's tenant.
func (w *world) headers(o *Op) []string {
	if o.Key == "" && !slices.Contains([]checker.Kind{checker.Batch, checker.List, checker.Preview}, o.Kind) {
		return nil
	}
	return []string{"Carillon-Tenant", cmp.Or(o.Tenant, job.DefaultTenant)}
}

// callbackOf makes the callback of an operation, and returns the members of its data too.
func callbackOf(o *Op) (callback, members map[string]any) {
	members = map[string]any{"payload": record.Payload{N: o.N}}
	if strings.HasPrefix(o.To, "http:") {
		members["url"] = o.To
		return map[string]any{"type": "http", "data": members}, members
	}
	members["to"] = o.To
	if _, ruled := rules[o.To]; !ruled {
		members["to"] = "receiver-" + cmp.Or(o.To, o.Key)
	}
	if o.Takes > 0 {
		members["takes"] = o.Takes
	}
	if o.Fails > 0 {
		members["fails"] = o.Fails
	}
	return map[string]any{"type": "sim", "data": members}, members
}

// retry returns the bounds of the pauses of a put's job, or of an amended one.
func retry(o *Op) checker.Retry {
	if o.Initial == 0 {
		return record.Retry
	}
	return checker.Retry{Initial: o.Initial.D(), Max: o.Longest.D(), Factor: float64(o.Factor)}
}

// definition makes the job of a put.
func (w *world) definition(o *Op) map[string]any {
	callback, _ := callbackOf(o)
	j := record.Job{
		Callback: callback, Attempts: o.Attempts, Retry: retry(o), Deadline: o.Deadline.D(), Spread: o.Spread.D(),
		Wait: o.Wait.D(), Steps: o.Steps, Every: o.Every.D(), End: w.at(o.End), CatchUp: o.CatchUp,
		Past: o.Past,
	}
	for _, at := range o.Instants {
		j.Instants = append(j.Instants, w.at(at))
	}
	return j.Body()
}

func encoded(v any) string {
	b, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		panic(err)
	}
	return string(b)
}

// callers are those that may ask besides the operator, with the permissions of their keys.
var callers = map[string]checker.Permissions{
	second:      {Role: "admin", Tenants: []string{"*"}},
	"viewer":    {Role: "viewer", Tenants: []string{"*"}},
	"submitter": {Role: "submitter", Tenants: []string{"*"}},
	"neighbour": {Role: "operator", Tenants: []string{otherTenant}},
	"prefixed":  {Role: "operator", Tenants: []string{"*"}, Prefix: "ab"},
}

// The callers whose keys end: that of the second is revoked; that of the temporary one expires, is rotated and revoked;
// and the remote one asks a replica that does not reach the store.
const (
	second    = "second"
	temporary = "temporary"
	remote    = "remote"
)

// guests are the callers that ask only in scenes of their own.
var guests = map[string]checker.Permissions{
	temporary: {Role: "submitter", Tenants: []string{"*"}},
	remote:    {Role: "viewer", Tenants: []string{"*"}},
}
