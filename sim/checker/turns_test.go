package checker

import (
	"slices"
	"testing"
	"time"
)

// TestTakenOver: what falls due after a replica has died, stopped or come to stand still is not late, as long as
// another one is well, and nothing else may have delayed it.
func TestTakenOver(t *testing.T) {
	const rule = "a dead replica's turn is taken over"
	trouble := func(what string, replica int, from float64) Trouble {
		return Trouble{What: what, Replica: replica, From: at(from), To: at(from + 20)}
	}
	put := told(Put, 30, 201)
	put.N, put.Attempts, put.Schedule.Instants = 1, 2, []time.Time{at(35), at(70), at(100)}
	op := func(kind Kind, from float64, change func(*Op)) Op {
		o := told(kind, from, 200)
		if change != nil {
			change(&o)
		}
		return o
	}
	sent := func(instant, from float64) Delivery {
		d := attemptAt(instant, 1, true)
		d.Begun, d.Local, d.Ended = at(from), at(from), at(from+0.1)
		return d
	}
	fast := sent(70, 70)
	fast.Local = at(70.5)
	failed := sent(70, 70)
	failed.Took = false
	longAgo := sent(35, 35)
	longAgo.Took = false
	slow := sent(70, 70)
	slow.Ended = at(70.3)
	other := sent(100, 99)
	other.ID, other.Key, other.Ended = "o", "o", at(102)
	elsewhere := func(to string) Delivery {
		d := failed
		d.ID, d.Key, d.To = "e", "e", to
		return d
	}
	busy := slices.Repeat([]Delivery{other}, 5)
	crash := trouble("crash", 1, 90)
	for name, c := range map[string]struct {
		ops      []Op // besides the put
		sent     []Delivery
		late     float64 // 0 is 1.2 s
		troubles []Trouble
		replicas int // 0 are two
		to       string
		early    time.Duration
		spread   time.Duration
		fine     bool
	}{
		"late after a crash":              {troubles: []Trouble{crash}},
		"after a stop":                    {troubles: []Trouble{trouble("stop", 1, 90)}},
		"after a stall":                   {troubles: []Trouble{trouble("stall", 1, 90)}},
		"after two crashes of one":        {troubles: []Trouble{trouble("crash", 1, 85), crash}},
		"after crashes of two, of three":  {troubles: []Trouble{trouble("crash", 0, 85), crash}, replicas: 3},
		"while receivers are sick":        {troubles: []Trouble{trouble("receivers", -1, 85), crash}},
		"in time":                         {troubles: []Trouble{crash}, late: 0.9, fine: true},
		"in an early window":              {troubles: []Trouble{crash}, late: 0.1, early: 2 * time.Second, fine: true},
		"after it":                        {troubles: []Trouble{crash}, early: 2 * time.Second},
		"it may have been claimed in it":  {troubles: []Trouble{trouble("crash", 1, 98.5)}, early: time.Second, fine: true},
		"it is moved":                     {troubles: []Trouble{crash}, spread: time.Second, fine: true},
		"late though it is moved":         {troubles: []Trouble{crash}, late: 2.1, spread: time.Second},
		"all have crashed":                {troubles: []Trouble{trouble("crash", 0, 85), crash}, fine: true},
		"it may have been claimed":        {troubles: []Trouble{trouble("crash", 1, 99.5)}, fine: true},
		"claimed by a fast clock":         {troubles: []Trouble{trouble("crash", 1, 98.7)}, sent: []Delivery{fast}, late: 1.6, fine: true},
		"not by one so fast":              {troubles: []Trouble{trouble("crash", 1, 98.4)}, sent: []Delivery{fast}, late: 1.6},
		"in time by slow clocks":          {troubles: []Trouble{crash}, sent: []Delivery{fast}, late: 1.4, fine: true},
		"a stall may not have begun":      {troubles: []Trouble{trouble("stall", 1, 96)}, fine: true},
		"another fault":                   {troubles: []Trouble{trouble("slow", 0, 60), crash}, fine: true},
		"another fault, long ago":         {troubles: []Trouble{trouble("slow", 0, 15), crash}},
		"a fault of all":                  {troubles: []Trouble{trouble("crash", -1, 90)}, fine: true},
		"no fault":                        {fine: true},
		"a fault after it":                {troubles: []Trouble{trouble("crash", 1, 102)}, fine: true},
		"another fault after it":          {troubles: []Trouble{crash, trouble("slow", 0, 102)}},
		"its tenant has settings":         {troubles: []Trouble{crash}, ops: []Op{op(Settings, 40, func(o *Op) { o.Key = "" })}, fine: true},
		"another tenant has":              {troubles: []Trouble{crash}, ops: []Op{op(Settings, 40, func(o *Op) { o.Key, o.Tenant = "", "t" })}},
		"settings come later":             {troubles: []Trouble{crash}, ops: []Op{op(Settings, 140, func(o *Op) { o.Key = "" })}},
		"it was changed just before":      {troubles: []Trouble{crash}, ops: []Op{op(Resume, 98, nil)}, fine: true},
		"it was changed before":           {troubles: []Trouble{crash}, ops: []Op{op(Resume, 96, nil)}},
		"it was read":                     {troubles: []Trouble{crash}, ops: []Op{op(Get, 98, nil)}},
		"its receiver failed":             {troubles: []Trouble{crash}, sent: []Delivery{failed, sent(70, 71)}, fine: true},
		"its receiver failed long before": {troubles: []Trouble{crash}, sent: []Delivery{longAgo}},
		"its receiver was slow":           {troubles: []Trouble{crash}, sent: []Delivery{slow}, fine: true},
		"it failed for another job":       {troubles: []Trouble{crash}, sent: []Delivery{elsewhere("r")}, to: "r", fine: true},
		"another receiver failed":         {troubles: []Trouble{crash}, sent: []Delivery{elsewhere("s")}, to: "r"},
		"one without a name failed":       {troubles: []Trouble{crash}, sent: []Delivery{elsewhere("")}},
		"it was well":                     {troubles: []Trouble{crash}, sent: []Delivery{sent(70, 70)}},
		"replicas are busy":               {troubles: []Trouble{crash}, sent: busy, fine: true},
		"they have some to do":            {troubles: []Trouble{crash}, sent: busy[:4]},
		"it was tried before":             {troubles: []Trouble{crash}, sent: []Delivery{sent(100, 100)}, fine: true},
		"it may be a trigger's":           {troubles: []Trouble{crash}, ops: []Op{op(Trigger, 96, func(o *Op) { o.Status = 0 })}, fine: true},
	} {
		late := 1.2
		if c.late != 0 {
			late = c.late
		}
		put := put
		put.Schedule.Spread = c.spread
		last := sent(100, 100+late)
		last.To = c.to
		h := history(append([]Op{put}, c.ops...), append(slices.Clone(c.sent), last)...)
		h.Troubles, h.TakesOver, h.Counted, h.Replicas = c.troubles, time.Second, 5*time.Second, max(2, c.replicas)
		h.Early = c.early
		if got := slices.Contains(broken(h), rule); got == c.fine {
			t.Errorf("%s: it is broken: %v, by %v", name, got, Check(h))
		}
		if h.TakesOver = 0; slices.Contains(broken(h), rule) {
			t.Errorf("%s: it is broken, though nothing is known of turns", name)
		}
	}
	h := history([]Op{put}, sent(100, 101.2))
	h.Troubles, h.TakesOver, h.Replicas, h.Begun = []Trouble{crash}, time.Second, 2, at(85)
	if slices.Contains(broken(h), rule) {
		t.Error("it is broken at the beginning")
	}
}
