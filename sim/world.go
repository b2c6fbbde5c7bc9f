package sim

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"slices"
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
		nodes: map[string]*node{},
	}
	w.server = mongosim.New(w.net)
	w.history = checker.History{
		Begun: w.begun, Lease: Lease, CallbackTimeout: callbackTimeout, Within: store.Within, Link: 4 * time.Second,
	}
	for i := range p.Replicas {
		w.clocks = append(w.clocks, &wall{})
		w.clocks[i].set(p.Skew[i].D())
		w.nodes = append(w.nodes, nil)
		w.restart(i)
	}
	var running sync.WaitGroup
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
	case Stall:
		n := w.present(f.Replica)
		w.net.with(func() { n.stalledUntil = later(n.stalledUntil, from.Add(f.For.D())) })
	case Step:
		w.clocks[f.Replica].ahead.Add(int64(f.By.D()))
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
	if f.What == Step {
		w.clocks[f.Replica].ahead.Add(-int64(f.By.D()))
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

// settle ends all faults, and waits for the time in which everything due must be done.
func (w *world) settle() {
	w.net.with(func() {
		w.calm, w.net.active = true, nil
		for _, n := range w.nodes {
			n.countdown = 0
		}
	})
	w.history.Calm = time.Now()
	w.note("calm")
	time.Sleep(checker.Late + 10*time.Second)
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

// client makes an operation, and makes it again while its outcome is unknown.
func (w *world) client(o *Op) {
	time.Sleep(o.At.D())
	for try := range o.Again + 1 {
		seen := w.operate(o, (o.Replica+try)%w.plan.Replicas, try)
		w.lock.Lock()
		seen.ID = len(w.history.Ops)
		w.history.Ops = append(w.history.Ops, seen)
		w.lock.Unlock()
		if seen.Status != 0 && seen.Status < 500 {
			return
		}
		time.Sleep(w.chance(func(r *rand.Rand) time.Duration { return time.Duration(r.IntN(2000)) * time.Millisecond }))
	}
}

// operate makes an operation once.
func (w *world) operate(o *Op, replica, try int) checker.Op {
	seen := checker.Op{
		Kind: o.Kind, Key: o.Key, Replica: replica, N: o.N, Invoked: time.Now(),
		Schedule: checker.Schedule{Every: o.Every.D(), End: w.at(o.End)},
	}
	for _, s := range o.Instants {
		seen.Schedule.Instants = append(seen.Schedule.Instants, w.at(s))
	}
	time.Sleep(o.Delay.D())
	var a answer
	ahead := w.clocks[replica].ahead.Load()
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
	seen.Ahead = time.Duration(max(0, ahead, w.clocks[replica].ahead.Load()))
	seen.Status = a.status
	said := bytes.Contains(a.body, []byte("nothing was changed"))
	seen.Unchanged = a.refused || a.status >= 400 && a.status < 500 || said
	w.understand(&seen, a.body)
	return seen
}

// compose makes the request of an operation.
func (w *world) compose(o *Op) (method, path, body string, headers []string) {
	path = "/v1/jobs/" + o.Key
	callback := map[string]any{"type": "sim", "data": data{To: "receiver-" + o.Key, N: o.N}}
	switch o.Kind {
	case checker.Put, checker.Create:
		d := map[string]any{
			"callback": callback,
			"retry":    map[string]any{"maxAttempts": max(1, o.Attempts), "initial": "500ms", "max": "4s"},
		}
		if o.Every > 0 {
			d["crontab"], d["endAt"] = fmt.Sprintf("*/%d * * * * *", o.Every/1000), job.FormatTime(w.at(o.End))
			d["catchUp"] = o.CatchUp
		} else {
			schedules := make([]string, len(o.Instants))
			for i, at := range o.Instants {
				schedules[i] = job.FormatTime(w.at(at))
			}
			d["schedules"] = schedules
		}
		if o.Kind == checker.Create {
			headers = []string{"If-None-Match", "*"}
		}
		return "PUT", path, encoded(d), append(headers, "Content-Type", "application/json")
	case checker.Amend:
		patch := encoded(map[string]any{"callback": callback})
		return "PATCH", path, patch, []string{"Content-Type", "application/merge-patch+json"}
	case checker.Cancel:
		return "DELETE", path, "", nil
	case checker.Pause, checker.Resume, checker.Trigger:
		return "POST", path + "/" + string(o.Kind), "", nil
	case checker.Redrive:
		return "POST", "/v1/dead-letters/redrive?key=" + url.QueryEscape(o.Key), "", nil
	default:
		return "GET", path, "", nil
	}
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
func (w *world) understand(seen *checker.Op, body []byte) {
	if seen.Status < 200 || seen.Status > 299 {
		return
	}
	switch seen.Kind {
	case checker.Get:
		seen.Shown = jobOf(body)
		return
	case checker.Put, checker.Create, checker.Cancel, checker.Amend:
		var a struct{ Skipped, Cancelled, InFlight int }
		_ = json.Unmarshal(body, &a, json.MatchCaseInsensitiveNames(true))
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
	keys := map[string]bool{}
	for i := range w.plan.Ops {
		keys[w.plan.Ops[i].Key] = true
	}
	for key := range keys {
		a := w.request(0, "GET", "/v1/jobs/"+key, "")
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
	a := w.request(0, "GET", "/v1/dead-letters?limit=1000&key="+key, "")
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
	a := w.request(0, "GET", "/v1/jobs/"+key+"/history?limit=1000", "")
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
