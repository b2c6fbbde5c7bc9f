package sim

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/carillon-scheduler/carillon/handlers"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/sim/checker"
	"github.com/carillon-scheduler/carillon/sim/mongosim"
	"github.com/carillon-scheduler/carillon/store"
)

// world is a run under way.
type world struct {
	plan   *Plan
	begun  time.Time
	net    *network
	server *mongosim.Server
	clocks []*wall
	nodes  []*node // the present life of each replica; guarded by the network's lock
	calm   bool    // guarded by the network's lock

	tenants map[string]string // of the keys of all jobs
	key     [2]string         // the id of the second caller's key, and its token

	lock    sync.Mutex
	history checker.History
	log     []Line
	lives   []*node
}

// Line is a line of a run's log.
type Line struct {
	At   time.Duration
	Text string
}

// Run runs a plan, in a bubble of testing/synctest, and returns what was observed. The log tells what happened in the
// world.
func Run(p *Plan) (checker.History, []Line) {
	w := &world{plan: p, begun: time.Now()}
	w.net = &network{
		interleaved: p.Interleaved, random: rand.New(rand.NewPCG(p.Seed, 2)),
		nodes: map[string]*node{}, trace: sha256.New(),
	}
	w.server = mongosim.New(w.net)
	w.tenants = map[string]string{}
	for i := range p.Ops {
		for _, o := range append(p.Ops[i].Items, p.Ops[i]) {
			if o.Key != "" {
				w.tenants[o.Key] = o.Tenant
			}
		}
	}
	w.history = checker.History{
		Begun: w.begun, Lease: Lease, CallbackTimeout: callbackTimeout, Within: store.Within, Link: 4 * time.Second,
		Slots: slots, Settles: settles, ClockBound: min(Lease-callbackTimeout, Lease/2) / 2,
	}
	for i := range p.Replicas {
		w.clocks = append(w.clocks, &wall{})
		w.clocks[i].step(p.Skew[i].D())
		w.nodes = append(w.nodes, nil)
		w.restart(i)
	}
	var running sync.WaitGroup
	if p.Revoked > 0 {
		w.makeKey()
	}
	for i := range p.Ops {
		running.Go(func() { w.client(&p.Ops[i]) })
	}
	for i := range p.Faults {
		running.Go(func() { w.fault(&p.Faults[i]) })
	}
	time.Sleep(p.Until.D())
	running.Wait()
	w.settle()
	w.read()
	for _, n := range w.lives {
		n.cancel()
	}
	for _, n := range w.lives {
		<-n.done
	}
	for range 600 { // messages may still be under way
		if w.server.Connections() == 0 {
			break
		}
		time.Sleep(time.Second)
	}
	w.note("%d commands to the store, digest %x", w.net.commands, w.net.trace.Sum(nil)[:8])
	time.Sleep(time.Minute) // a goroutine that is left after this is a fault, which the bubble tells
	return w.history, w.log
}

// at is the time of a span from the beginning.
func (w *world) at(s Span) time.Time { return w.begun.Add(s.D()) }

func (w *world) note(format string, args ...any) {
	w.lock.Lock()
	defer w.lock.Unlock()
	w.log = append(w.log, Line{time.Since(w.begun), fmt.Sprintf(format, args...)})
}

func (w *world) trouble(what string, replica int, from, to time.Time) {
	w.lock.Lock()
	defer w.lock.Unlock()
	w.history.Troubles = append(w.history.Troubles, checker.Trouble{What: what, Replica: replica, From: from, To: to})
}

// died notes that a replica has died. It is a trouble for as long as its claims last.
func (w *world) died(replica int) {
	w.trouble(Crash, replica, time.Now(), time.Now().Add(Lease))
}

func (w *world) seen(d checker.Delivery) int {
	w.lock.Lock()
	defer w.lock.Unlock()
	d.Ended = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)
	w.history.Deliveries = append(w.history.Deliveries, d)
	return len(w.history.Deliveries) - 1
}

func (w *world) update(i int, change func(*checker.Delivery)) {
	w.lock.Lock()
	defer w.lock.Unlock()
	change(&w.history.Deliveries[i])
}

// restart starts a replica anew.
func (w *world) restart(replica int) {
	n := w.start(replica, len(w.lives))
	w.net.with(func() { w.nodes[replica] = n })
	w.lives = append(w.lives, n)
}

// present returns the present life of a replica.
func (w *world) present(replica int) (n *node) {
	w.net.with(func() { n = w.nodes[replica] })
	return n
}

// fault makes a fault.
func (w *world) fault(f *Fault) {
	time.Sleep(f.At.D())
	from := time.Now()
	w.note("%s begins", f)
	switch f.What {
	case Crash:
		n := w.present(f.Replica)
		w.net.with(func() { n.countdown, n.after = f.N, f.After })
		time.Sleep(f.For.D())
		n.die() // unless it has died already
		w.lock.Lock()
		w.restart(f.Replica)
		w.lock.Unlock()
		w.note("replica %d starts", f.Replica)
		return
	case Stop:
		w.present(f.Replica).cancel()
		time.Sleep(f.For.D())
		w.lock.Lock()
		w.restart(f.Replica)
		w.lock.Unlock()
		w.note("replica %d starts", f.Replica)
		w.trouble(f.What, f.Replica, from, time.Now().Add(Lease))
		return
	case Stall:
		n := w.present(f.Replica)
		w.net.with(func() { n.stalledUntil = later(n.stalledUntil, from.Add(f.For.D())) })
	case Step:
		w.clocks[f.Replica].step(f.By.D())
	case Drift:
		w.clocks[f.Replica].drift(f.By.D())
	case Down:
		w.net.begin(f)
		for _, n := range w.lifeOfEach() {
			w.server.Cut(n.name)
		}
	default:
		w.net.begin(f)
	}
	time.Sleep(f.For.D())
	w.net.end(f)
	switch f.What {
	case Step:
		w.clocks[f.Replica].step(-f.By.D())
	case Drift:
		w.clocks[f.Replica].drift(0)
	default:
	}
	w.trouble(f.What, f.Replica, from, time.Now())
	w.note("%s ends", f)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// lifeOfEach returns the present lives of all replicas.
func (w *world) lifeOfEach() (all []*node) {
	w.net.with(func() { all = slices.Clone(w.nodes) })
	return all
}

// settle ends all faults, and waits until nothing is left to do, or until the time is over in which everything due must
// be done.
func (w *world) settle() {
	w.net.with(func() {
		w.calm, w.net.active = true, nil
		for _, n := range w.nodes {
			n.countdown = 0
		}
	})
	w.history.Calm = time.Now()
	w.note("calm")
	for _, clock := range w.clocks {
		clock.drift(0)
	}
	w.client(&Op{Kind: checker.Settings, Tenant: otherTenant, Again: 10}) // it is not paused any more
	w.history.Due = w.history.Calm.Add(10 * time.Second)
	for time.Since(w.history.Calm) < checker.Late {
		time.Sleep(10 * time.Second)
		if begun := time.Now(); w.quiet() {
			w.history.Due = begun
			return
		}
	}
	time.Sleep(10 * time.Second)
}

// quiet reports whether all replicas are ready, and nothing is left to fire or has been fired lately.
func (w *world) quiet() bool {
	if time.Since(w.history.Calm) < Lease+10*time.Second {
		return false
	}
	w.lock.Lock()
	for i := len(w.history.Deliveries) - 1; i >= 0; i-- {
		if d := &w.history.Deliveries[i]; time.Since(d.Begun) < Lease+10*time.Second {
			w.lock.Unlock()
			return false
		}
	}
	w.lock.Unlock()
	for i := range w.plan.Replicas {
		if w.request(i, "GET", "/readyz", "").status != 200 {
			return false
		}
	}
	for _, key := range w.keys() {
		a := w.request(0, "GET", "/v1/jobs/"+key, "", w.tenant(key)...)
		if a.status == 404 {
			continue
		}
		if a.status != 200 {
			return false
		}
		if j := jobOf(a.body); j.Held > 0 || j.Pending > 0 && j.State != "paused" {
			return false
		}
	}
	return true
}

// tenant returns the headers that name the tenant of a key.
func (w *world) tenant(key string) []string { return w.headers(&Op{Key: key, Tenant: w.tenants[key]}) }

// keys returns the keys of all jobs of the plan, in order.
func (w *world) keys() (all []string) {
	for key := range w.tenants {
		all = append(all, key)
	}
	slices.Sort(all)
	return all
}

// answer is what a client was told; status 0 is nothing.
type answer struct {
	status int
	body   []byte
	header http.Header
	// refused is set if the connection was refused, so nothing can have changed.
	refused bool
}

// patience is how long a client waits.
const patience = 45 * time.Second

// request sends a request to a replica.
func (w *world) request(replica int, method, path, body string, headers ...string) answer {
	n := w.present(replica)
	var handler http.Handler
	w.net.with(func() { handler = n.handler })
	if handler == nil {
		return answer{refused: true}
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	ctx = handlers.KeepConn(ctx, received{at: time.Now()})
	r := httptest.NewRequestWithContext(ctx, method, path, bytes.NewBufferString(body))
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	got := make(chan answer, 1)
	go func() {
		n.standStill()
		recorder := httptest.NewRecorder()
		defer func() { // as net/http's server does: the connection breaks, and the client is told nothing
			switch cause := recover(); cause {
			case nil:
			case http.ErrAbortHandler:
				got <- answer{}
			default:
				panic(cause)
			}
		}()
		handler.ServeHTTP(recorder, r)
		n.standStill()
		got <- answer{status: recorder.Code, body: recorder.Body.Bytes(), header: recorder.Header()}
	}()
	select {
	case a := <-got:
		if n.isDead() {
			return answer{}
		}
		return a
	case <-ctx.Done():
		return answer{}
	}
}

// makeKey makes the key of the second caller.
func (w *world) makeKey() {
	for {
		a := w.request(0, "POST", "/v1/keys", `{"role":"admin","tenants":["*"]}`,
			append(w.headers(&Op{}), "Content-Type", "application/json")...)
		var made struct{ ID, Key string }
		if a.status == http.StatusCreated {
			_ = json.Unmarshal(a.body, &made, json.MatchCaseInsensitiveNames(true))
			w.key = [2]string{made.ID, made.Key}
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
}

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

// observed adds an operation to the history; a batch is its puts.
func (w *world) observed(o *Op, seen checker.Op) {
	w.lock.Lock()
	defer w.lock.Unlock()
	add := func(one checker.Op) {
		one.ID = len(w.history.Ops)
		w.history.Ops = append(w.history.Ops, one)
	}
	if o.Kind != checker.Batch {
		add(seen)
		return
	}
	results := map[int]result{}
	if seen.Status == http.StatusOK {
		for line := range bytes.Lines(seen.Body) {
			var r result
			if err := json.Unmarshal(line, &r, json.MatchCaseInsensitiveNames(true)); err == nil {
				results[r.Index] = r
			}
		}
	}
	for i := range o.Items {
		one := w.begin(&o.Items[i], seen.Replica)
		one.Invoked, one.Returned, one.Ahead, one.Caller = seen.Invoked, seen.Returned, seen.Ahead, o.Caller
		one.Arrived = seen.Arrived
		r, told := results[i]
		switch {
		case told:
			one.Status, one.Skipped, one.InFlight = r.Status, r.Skipped, r.InFlight
			one.Unchanged = r.Status >= 400 && r.Status < 500 || strings.Contains(r.Detail, unchanged)
			w.placed(&one, &o.Items[i], r.NextInstant)
		case seen.Status != http.StatusOK:
			one.Status, one.Unchanged = seen.Status, seen.Unchanged
			w.placed(&one, &o.Items[i], "")
		default: // it was cut off
			w.placed(&one, &o.Items[i], "")
		}
		add(one)
	}
}

// result is a line of the answer to a batch.
type result struct {
	Index, Status, Skipped, InFlight int
	Detail, NextInstant              string
}

// unchanged is what the answer to a failed request says if nothing was changed.
const unchanged = "nothing was changed"

// begin returns what is known of an operation before it is made.
func (w *world) begin(o *Op, replica int) checker.Op {
	seen := checker.Op{
		Kind: o.Kind, Key: o.Key, Tenant: o.Tenant, Caller: o.Caller, Replica: replica, N: o.N, Invoked: time.Now(),
		Paused: o.Paused, Jobs: o.Jobs, Deadline: o.Deadline.D(), CatchUp: o.CatchUp,
		Schedule: checker.Schedule{Every: o.Every.D(), End: w.at(o.End)},
	}
	for _, s := range o.Instants {
		seen.Schedule.Instants = append(seen.Schedule.Instants, w.at(s))
	}
	return seen
}

// placed notes the instant of a job with a delay: the one that the answer tells, or else the bounds of it. Replicas'
// clocks may be wrong by some seconds.
func (w *world) placed(seen *checker.Op, o *Op, next string) {
	if o.Wait == 0 || seen.Unchanged {
		return
	}
	if at, err := job.ParseInstant(next); err == nil && next != "" {
		seen.Schedule.Instants = []time.Time{at}
		return
	}
	const wrong = 15 * time.Second
	seen.Schedule.From = seen.Invoked.Add(o.Wait.D() - wrong)
	seen.Schedule.To = seen.Invoked.Add(o.Wait.D() + wrong + w.history.Link + w.history.Within)
}

// operate makes an operation once.
func (w *world) operate(o *Op, replica, try int) checker.Op {
	seen := w.begin(o, replica)
	time.Sleep(o.Delay.D())
	seen.Arrived = time.Now()
	var a answer
	ahead := w.clocks[replica].ahead()
	if try == 0 && o.LoseRequest {
		time.Sleep(time.Second)
	} else {
		method, path, body, headers := w.compose(o)
		a = w.request(replica, method, path, body, headers...)
		if try == 0 && o.LoseReply {
			a = answer{}
		}
	}
	seen.Returned = time.Now()
	seen.Ahead = max(0, ahead, w.clocks[replica].ahead())
	seen.Status, seen.Body = a.status, a.body
	said := bytes.Contains(a.body, []byte(unchanged))
	seen.Unchanged = a.refused || a.status >= 400 && a.status < 500 || said
	w.understand(&seen, o, a.body)
	return seen
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
	case checker.Amend:
		patch := encoded(map[string]any{"callback": callbackOf(o)})
		return "PATCH", path, patch, append(headers, "Content-Type", "application/merge-patch+json")
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
		return "DELETE", "/v1/keys/" + w.key[0], "", headers
	case checker.Cancel:
		return "DELETE", path, "", headers
	case checker.Pause, checker.Resume, checker.Trigger:
		return "POST", path + "/" + string(o.Kind), "", headers
	case checker.Redrive:
		return "POST", "/v1/dead-letters/redrive?key=" + url.QueryEscape(o.Key), "", headers
	default:
		return "GET", path, "", headers
	}
}

// headers returns the headers that name an operation's tenant and caller.
func (w *world) headers(o *Op) (all []string) {
	if o.Tenant != "" && o.Key != "" || o.Kind == checker.Batch && o.Tenant != "" {
		all = append(all, "Carillon-Tenant", o.Tenant)
	}
	token := operatorToken
	if o.Caller != "" && o.Kind != checker.Revoke {
		token = w.key[1]
	}
	return append(all, "Authorization", "Bearer "+token)
}

func callbackOf(o *Op) map[string]any {
	return map[string]any{"type": "sim", "data": data{To: "receiver-" + o.Key, N: o.N}}
}

// definition makes the job of a put.
func (w *world) definition(o *Op) map[string]any {
	d := map[string]any{
		"callback": callbackOf(o),
		"retry":    map[string]any{"maxAttempts": max(1, o.Attempts), "initial": "500ms", "max": "4s"},
	}
	if o.Deadline > 0 {
		d["deadline"] = o.Deadline.D().String()
	}
	switch {
	case o.Every > 0:
		d["crontab"], d["endAt"] = fmt.Sprintf("*/%d * * * * *", o.Every/1000), job.FormatTime(w.at(o.End))
		d["catchUp"] = o.CatchUp
	case o.Wait > 0:
		d["delay"] = o.Wait.D().String()
	case o.Steps:
		d["startAt"] = job.FormatTime(w.at(o.Instants[0]))
		steps := []any{map[string]any{"type": "job"}}
		for i, at := range o.Instants[1:] {
			wait := map[string]any{
				"type": "wait_certain_period", "delay_unit": "second", "delay_period": (at - o.Instants[i]).D().Seconds(),
			}
			steps = append(steps, wait, map[string]any{"type": "job"})
		}
		d["steps"] = steps
	default:
		schedules := make([]string, len(o.Instants))
		for i, at := range o.Instants {
			schedules[i] = job.FormatTime(w.at(at))
		}
		d["schedules"] = schedules
	}
	return d
}

func encoded(v any) string {
	b, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		panic(err)
	}
	return string(b)
}

// shown is the form of answers, as far as it matters.
type shown struct {
	Callback struct {
		Data data `json:"data"`
	} `json:"callback"`
	State     string
	Pending   int
	Missed    int
	Skipped   int
	Cancelled int
	InFlight  int
	Outcomes  *struct{ Delivered, Failed, Missed int }

	DeliveryID  string
	Occurrences []struct{ State string }
}

// understand reads an answer.
func (w *world) understand(seen *checker.Op, o *Op, body []byte) {
	if seen.Status < 200 || seen.Status > 299 {
		w.placed(seen, o, "")
		return
	}
	switch seen.Kind {
	case checker.Get:
		seen.Shown = jobOf(body)
		return
	case checker.Put, checker.Create, checker.Cancel, checker.Amend:
		var a struct {
			Skipped, Cancelled, InFlight int
			NextInstant                  string
		}
		_ = json.Unmarshal(body, &a, json.MatchCaseInsensitiveNames(true))
		w.placed(seen, o, a.NextInstant)
		seen.Skipped, seen.Cancelled, seen.InFlight = a.Skipped, a.Cancelled, a.InFlight
	case checker.Trigger:
		var a struct{ DeliveryID string }
		_ = json.Unmarshal(body, &a, json.MatchCaseInsensitiveNames(true))
		seen.DeliveryID = a.DeliveryID
	default:
	}
}

func jobOf(body []byte) checker.Job {
	var s shown
	if err := json.Unmarshal(body, &s, json.MatchCaseInsensitiveNames(true)); err != nil {
		panic(fmt.Sprintf("%v in %s", err, body))
	}
	j := checker.Job{N: s.Callback.Data.N, State: s.State, Pending: s.Pending, Missed: s.Missed}
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

// read reads the final state.
func (w *world) read() {
	f := checker.Final{Jobs: map[string]checker.Job{}, Dead: map[string][]checker.Dead{}}
	for i := range w.plan.Replicas {
		if a := w.request(i, "GET", "/readyz", ""); a.status != 200 {
			w.note("goroutines:\n%s", goroutines())
			f.Unready = append(f.Unready, fmt.Sprintf("replica %d is not ready: %d %s", i, a.status, a.body))
		}
	}
	for _, key := range w.keys() {
		a := w.request(0, "GET", "/v1/jobs/"+key, "", w.tenant(key)...)
		// What is due of a paused job is claimed for a moment and put back, once in a lease.
		for range 3 {
			if a.status == http.StatusOK && jobOf(a.body).Held > 0 {
				time.Sleep(time.Second)
				a = w.request(0, "GET", "/v1/jobs/"+key, "", w.tenant(key)...)
			}
		}
		switch a.status {
		case 200:
			f.Jobs[key] = jobOf(a.body)
		case 404:
		default:
			f.Unread = append(f.Unread, fmt.Sprintf("job %s: %d %s", key, a.status, a.body))
		}
		w.readDead(&f, key)
		w.readHistory(&f, key)
	}
	slices.Sort(f.Unread)
	w.history.Final, w.history.Ended = f, time.Now()
}

// goroutines returns the stacks of all goroutines.
func goroutines() []byte {
	b := make([]byte, 8<<20)
	return b[:runtime.Stack(b, true)]
}

func (w *world) readDead(f *checker.Final, key string) {
	var page struct {
		Items []struct{ ID, DeliveryID, Timestamp string }
	}
	a := w.request(0, "GET", "/v1/dead-letters?limit=1000&key="+key, "", w.tenant(key)...)
	if err := json.Unmarshal(a.body, &page, json.MatchCaseInsensitiveNames(true)); a.status != 200 || err != nil {
		f.Unread = append(f.Unread, fmt.Sprintf("dead letters of %s: %d %s", key, a.status, a.body))
		return
	}
	for _, item := range page.Items {
		at, _ := job.ParseInstant(item.Timestamp)
		f.Dead[key] = append(f.Dead[key], checker.Dead{ID: item.ID, DeliveryID: item.DeliveryID, Instant: at})
	}
}

func (w *world) readHistory(f *checker.Final, key string) {
	var page struct {
		Items []struct {
			DeliveryID, Outcome string
			Attempt             int
		}
	}
	a := w.request(0, "GET", "/v1/jobs/"+key+"/history?limit=1000", "", w.tenant(key)...)
	if err := json.Unmarshal(a.body, &page, json.MatchCaseInsensitiveNames(true)); a.status != 200 || err != nil {
		f.Unread = append(f.Unread, fmt.Sprintf("history of %s: %d %s", key, a.status, a.body))
		return
	}
	for _, item := range page.Items {
		if item.Outcome != "" && item.Outcome != "missed" && item.Outcome != "unknown" {
			f.Recorded = append(f.Recorded, checker.Recorded{Key: key, DeliveryID: item.DeliveryID, Attempt: item.Attempt})
		}
	}
}
