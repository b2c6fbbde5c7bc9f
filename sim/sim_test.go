package sim_test

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"github.com/carillon-scheduler/carillon/sim"
	"github.com/carillon-scheduler/carillon/sim/checker"
	"github.com/carillon-scheduler/carillon/sim/record"
)

// The program carillon-sim sets these.
var (
	first = flag.Uint64("sim.first", 0, "the first seed; 0 is that of $CARILLON_TEST_SEED, or one by the time")
	count = flag.Int("sim.count", 0, "the number of histories; 0 is 200, or 3 with -short")
	plan  = flag.String("sim.plan", "", "run this file's plan instead")
	out   = flag.String("sim.out", "", "run one history, and write what became of it to this file")
	show  = flag.Bool("sim.show", false, "print each history; with -sim.out, write all of its time line")
	stop  = flag.Bool("sim.stop", false, "end with the first history that breaks a guarantee")
	small = flag.Int("sim.minimise", 40, "the number of runs to make a plan smaller that breaks a guarantee")
)

// seedRuntime seeds the runtime's own randomness, if this program can do that.
var seedRuntime func(seed uint64)

// run runs a plan in a bubble of its own.
func run(t *testing.T, p *sim.Plan) (h checker.History, log []record.Line) {
	t.Helper()
	cryptotest.SetGlobalRandom(t, p.Seed)
	if seedRuntime != nil {
		seedRuntime(p.Seed | 1)
		defer seedRuntime(0)
	} else {
		runtime.GC()
		defer debug.SetGCPercent(debug.SetGCPercent(-1)) // a collection changes the order in which goroutines run
	}
	defer func() {
		if r := recover(); r != nil {
			panic(fmt.Sprintf("seed %d: %v", p.Seed, r))
		}
	}()
	synctest.Test(t, func(*testing.T) { h, log = sim.Run(p) })
	return h, log
}

// check runs a plan, and reports the guarantees that it breaks, with a smaller plan.
func check(t *testing.T, p *sim.Plan) {
	t.Helper()
	h, log := run(t, p)
	if *show {
		fmt.Print(record.Timeline(&h, log, ""))
	}
	verdict := checker.Judge(&h)
	if len(verdict.Undecided) > 0 {
		t.Logf("seed %d is undecided: the order of the operations on %q", p.Seed, verdict.Undecided)
	}
	found := verdict.Broken
	if len(found) == 0 {
		return
	}
	before := found
	least := sim.Minimise(p, *small, func(p *sim.Plan) bool {
		again, lines := run(t, p)
		broken := checker.Check(&again)
		same := slices.ContainsFunc(broken, func(v checker.Violation) bool { return v.Rule == before[0].Rule })
		if same {
			h, log, found = again, lines, broken
		}
		return same
	})
	encoded, err := json.Marshal(least)
	if err != nil {
		t.Fatal(err)
	}
	t.Errorf("seed %d breaks a guarantee:", p.Seed)
	for _, v := range before {
		t.Log(v.String())
	}
	t.Logf("the least plan, for a file in sim/testdata:\n%s", encoded)
	for _, f := range least.Faults {
		t.Logf("fault: %s", f)
	}
	t.Logf("%s\n%s", found[0], record.Timeline(&h, log, found[0].Key))
}

// report runs a plan, and writes the report to the file that -sim.out names.
func report(t *testing.T, p *sim.Plan) {
	t.Helper()
	h, log := run(t, p)
	b, err := json.Marshal(sim.NewReport(p, &h, log, *show))
	if err == nil {
		err = os.WriteFile(*out, b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// leftOver is the memory that a history may leave behind.
const leftOver = 16 << 10

// inUse returns the number of bytes of objects that are in use.
func inUse() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestHistories: random histories keep all guarantees.
func TestHistories(t *testing.T) {
	switch {
	case *plan != "" && *out != "":
		report(t, read(t, *plan))
		return
	case *plan != "":
		check(t, read(t, *plan))
		return
	case *out != "":
		report(t, sim.NewPlan(*first))
		return
	}
	seed := *first
	if seed == 0 {
		var err error
		if seed, err = strconv.ParseUint(cmp.Or(os.Getenv("CARILLON_TEST_SEED"), "0"), 10, 64); err != nil {
			t.Fatalf("CARILLON_TEST_SEED: %v", err)
		}
	}
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	histories := *count
	if histories == 0 {
		histories = 200
		if testing.Short() {
			histories = 3
		}
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // in a bubble of virtual time more of them only cost
	n, early := 0, uint64(0)
	for ; n < histories; n++ {
		check(t, sim.NewPlan(seed+uint64(n)))
		if *stop && t.Failed() {
			n++
			break
		}
		if n == 4 { // all values that are made once and kept have been made
			early = inUse()
		}
	}
	late := inUse()
	t.Logf("%d bytes are in use after 5 histories, and %d at the end", early, late)
	if n > 10 && !t.Failed() && late > early+uint64(n)*leftOver {
		t.Errorf("%d bytes were in use after 5 histories, and %d after %d", early, late, n)
	}
	t.Logf("%d histories from seed %d", n, seed)
}

// TestKept: the plans that once broke a guarantee keep all of them.
func TestKept(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector sees the same in other tests")
	}
	files, err := filepath.Glob("testdata/*.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		check(t, read(t, file))
	}
}

func read(t *testing.T, file string) (p *sim.Plan) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(b, &p)
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}
