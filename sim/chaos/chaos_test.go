package chaos

import (
	"encoding/binary"
	"io"
	"net"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/sim/checker"
	"github.com/carillon-scheduler/carillon/sim/record"
)

// TestPlan: a seed always makes the same plan, of faults that the world can make, and some instants have passed.
func TestPlan(t *testing.T) {
	world := World{Relay: true, Server: true, Clocks: true}
	seen := make(map[string]bool)
	past, ahead := 0, 0
	for seed := range uint64(50) {
		p := NewPlan(seed, 2*time.Minute, world)
		if again := NewPlan(seed, 2*time.Minute, world); !reflect.DeepEqual(p, again) {
			t.Fatalf("seed %d makes two plans", seed)
		}
		payloads := make(map[int]bool)
		ops := slices.Clone(p.Ops)
		for _, o := range p.Ops {
			ops = append(ops, o.Items...)
		}
		for _, o := range ops {
			for _, at := range o.Instants {
				if at > o.At {
					ahead++
				} else {
					past++
				}
			}
			if o.N > 0 && payloads[o.N] {
				t.Errorf("seed %d: two operations have payload %d", seed, o.N)
			}
			payloads[o.N] = true
			seen[string(o.Kind)] = true
			if o.Prefix != "" {
				seen["prefix"] = true
			}
			if !strings.HasPrefix(o.Key, o.Prefix) || o.Prefix != "" && o.Match {
				t.Errorf("seed %d: %+v", seed, o)
			}
			if o.At > p.Until || o.Replica >= p.Replicas {
				t.Errorf("seed %d: %+v", seed, o)
			}
		}
		ends := make([]time.Duration, p.Replicas)
		for _, f := range p.Faults {
			seen[f.What] = true
			if f.Replica < 0 {
				continue
			}
			if f.At < ends[f.Replica] {
				t.Errorf("seed %d: %s, while replica %d has another fault", seed, f, f.Replica)
			}
			ends[f.Replica] = f.At + f.For
		}
	}
	for _, what := range []string{Crash, Stop, Stall, Cut, Hang, Lossy, Slow, StoreKill, StoreStop, Step, Receivers, "discard", "prefix"} {
		if !seen[what] {
			t.Errorf("there is no %s in 50 plans", what)
		}
	}
	if past == 0 || past > ahead/2 {
		t.Errorf("%d instants have passed, and %d are ahead", past, ahead)
	}
	if seen[Full] {
		t.Error("a disk that is not there is filled")
	}
	for _, f := range NewPlan(1, time.Hour, World{}).Faults {
		if !slices.Contains([]string{Crash, Stop, Stall, Receivers}, f.What) {
			t.Errorf("without a network and a server there is %s", f)
		}
	}
}

// TestFewKeys: a plan with a bound has as many keys as that, in all of its time, and as many faults as without.
func TestFewKeys(t *testing.T) {
	const most = 200
	all := NewPlan(1, time.Hour, World{})
	few := NewPlan(1, time.Hour, World{Keys: most})
	w := world{plan: few}
	if n := len(w.keys()); n != most {
		t.Errorf("%d keys, want %d", n, most)
	}
	if last := few.Ops[len(few.Ops)-1].At; last < time.Hour-round {
		t.Errorf("the last operation is at %s", last)
	}
	if n := len(few.Faults); n < len(all.Faults)*9/10 {
		t.Errorf("%d faults, and %d without a bound", n, len(all.Faults))
	}
	if short := NewPlan(1, time.Minute, World{Keys: most}); !reflect.DeepEqual(short, NewPlan(1, time.Minute, World{})) {
		t.Error("a bound that is not reached changes a plan")
	}
}

// TestClock: the file of a clock has the sum of its steps, and stays the same file, since programs have mapped it.
func TestClock(t *testing.T) {
	c, err := newClock(t.TempDir(), 1)
	if err != nil {
		t.Fatal(err)
	}
	first, err := os.Stat(c.file)
	if err != nil {
		t.Fatal(err)
	}
	sum := time.Duration(0)
	for _, by := range []time.Duration{0, 5 * time.Second, -7 * time.Second} {
		sum += by
		if err := c.step(by); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(c.file)
		if err != nil || len(b) != 8 || time.Duration(binary.NativeEndian.Uint64(b)) != sum || c.ahead() != sum {
			t.Errorf("after a step by %s, the file has %v, and the clock is ahead by %s: %v", by, b, c.ahead(), err)
		}
	}
	if y := c.younger(); y != 5*time.Second {
		t.Errorf("a request seems to have come %s later", y)
	}
	if last, err := os.Stat(c.file); err != nil || !os.SameFile(first, last) {
		t.Errorf("it is another file: %v", err)
	}
}

// TestSentAgain: a request that is sent again at once, after its connection was closed, is a part of the same attempt.
func TestSentAgain(t *testing.T) {
	begun := time.Now()
	d := checker.Delivery{ID: "i", Attempt: 2, N: 3, Begun: begun}
	kept := &record.Delivery{}
	for _, c := range []struct {
		name   string
		change func(d *checker.Delivery)
		same   bool
	}{
		{"at once", func(*checker.Delivery) {}, true},
		{"another attempt", func(d *checker.Delivery) { d.Attempt = 3 }, false},
		{"another occurrence", func(d *checker.Delivery) { d.ID = "j" }, false},
		{"another payload", func(d *checker.Delivery) { d.N = 4 }, false},
		{"later", func(d *checker.Delivery) { d.Begun = begun.Add(time.Minute) }, false},
	} {
		var r replica
		if attempt, _ := r.again(&d); attempt != nil {
			t.Error("nothing was cut off, and a request is sent again")
		}
		r.cutOff(&d, kept, true)
		next := d
		c.change(&next)
		if attempt, taken := r.again(&next); (attempt == kept) != c.same || taken != c.same {
			t.Errorf("%s: the attempt is %p, taken %v", c.name, attempt, taken)
		}
		r.answered(&next) // an attempt that is redriven then is another one
		if attempt, _ := r.again(&d); (attempt == nil) != (c.name == "at once" || c.name == "later") {
			t.Errorf("%s: after an answer, the attempt is %p", c.name, attempt)
		}
	}
}

// TestRelay: a relay passes the bytes that come, and loses connections as its faults say.
func TestRelay(t *testing.T) {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	go func() {
		for {
			c, err := server.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c); _ = c.Close() }()
		}
	}()
	r, err := newRelay(t.Context(), server.Addr().String(), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	connect := func() net.Conn {
		c, err := net.Dial("tcp", r.address())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	// echo returns whether a message comes back.
	echo := func(c net.Conn) bool {
		if _, err := c.Write([]byte("hello")); err != nil {
			return false
		}
		b := make([]byte, 5)
		_, err := io.ReadFull(c, b)
		return err == nil && string(b) == "hello"
	}
	first := connect()
	if !echo(first) {
		t.Error("nothing comes back")
	}
	r.begin(Cut)
	if echo(first) || echo(connect()) {
		t.Error("something passes a cut")
	}
	r.end(Cut)

	r.begin(Hang)
	hanging, ended := connect(), make(chan bool, 1)
	go func() { ended <- echo(hanging) }()
	r.end(Hang)
	if <-ended; !echo(connect()) {
		t.Error("nothing passes after it hung")
	}

	r.begin(Lossy)
	lost := 0
	for range 200 {
		if !echo(connect()) {
			lost++
		}
	}
	if lost == 0 || lost == 200 {
		t.Errorf("%d of 200 are lost", lost)
	}
}

// TestJudge: a broken guarantee is told with the seed, the plan and a time line.
func TestJudge(t *testing.T) {
	begun := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	at := func(s int) time.Time { return begun.Add(time.Duration(s) * time.Second) }
	result := func(deliveries ...checker.Delivery) *Result {
		return &Result{
			Plan: &Plan{Seed: 4711, Faults: []Fault{{What: Cut, Replica: 1}}},
			History: checker.History{
				Begun: begun, Calm: at(20), Ended: at(60), Due: at(20), Lease: Lease, Within: within,
				Ops: []checker.Op{{
					Kind: checker.Put, Key: "k", N: 1, Invoked: at(1), Returned: at(2), Status: 201,
					Schedule: checker.Schedule{Instants: []time.Time{at(10)}},
				}},
				Deliveries: deliveries,
				Final:      checker.Final{Jobs: map[string]checker.Job{"k": {N: 1, State: "finished"}}},
			},
			Lines: []record.Line{{At: 5 * time.Second, Text: "cut begins"}},
		}
	}
	var out strings.Builder
	delivered := checker.Delivery{
		ID: "i", Key: "k", Instant: at(10), Attempt: 1, N: 1, Begun: at(10), Local: at(10), Ended: at(11), Took: true, Told: true,
	}
	if !result(delivered).Judge(&out) {
		t.Errorf("a history without a fault is judged:\n%s", &out)
	}
	out.Reset()
	if result().Judge(&out) {
		t.Error("a lost instant is not noticed")
	}
	for _, want := range []string{"nothing lost", "seed 4711", "cut for 0s at replica 1", "put k with payload 1", "cut begins"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("it does not tell %q:\n%s", want, &out)
		}
	}
	r := result(delivered)
	if r.Faults = []string{"replica 1 ended by itself"}; r.Judge(&out) {
		t.Error("a replica that ended is not noticed")
	}
}

// TestUnheard: a replica that stands still when an answer comes may not be told it in time.
func TestUnheard(t *testing.T) {
	begun := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	stall := checker.Trouble{What: Stall, Replica: 1, From: begun.Add(10 * time.Second), To: begun.Add(30 * time.Second)}
	for _, one := range []struct {
		stalled, replica int
		ended            time.Duration
		told             bool
	}{
		{1, 1, 8 * time.Second, true}, {1, 1, 9500 * time.Millisecond, false}, {1, 1, 20 * time.Second, false},
		{1, 1, 31 * time.Second, true}, {1, 0, 20 * time.Second, true}, {-1, 0, 20 * time.Second, false},
	} {
		stall.Replica = one.stalled
		h := checker.History{
			Troubles:   []checker.Trouble{{What: Slow, Replica: 1, From: begun, To: begun.Add(time.Minute)}, stall},
			Deliveries: []checker.Delivery{{Replica: one.replica, Ended: begun.Add(one.ended), Took: true, Told: true}},
		}
		if unheard(&h); h.Deliveries[0].Told != one.told {
			t.Errorf("replica %d, which was answered after %s, was told: %v", one.replica, one.ended, h.Deliveries[0].Told)
		}
	}
}
