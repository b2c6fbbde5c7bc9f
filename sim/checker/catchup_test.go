package checker

import (
	"slices"
	"testing"
	"time"
)

// crontab returns a put of a job with ticks every ten seconds from 110 s to 150 s.
func crontab(catchUp string) Op {
	put := told(Put, 100, 201)
	put.N, put.Attempts, put.CatchUp = 1, 2, catchUp
	put.Schedule = Schedule{Every: 10 * time.Second, End: at(155)}
	return put
}

// TestOnlyLatest: a tick that was claimed more than a lease late fires only if no newer one had passed by then. The
// clock is that of its replica, and the claim may have been a callback's time before the sending.
func TestOnlyLatest(t *testing.T) {
	const rule = "only the latest is caught up"
	late := func(tick, by float64) Delivery {
		d := attemptAt(tick, 1, true)
		d.Begun, d.Ended, d.Local = at(tick+by), at(tick+by+0.1), at(tick+by)
		return d
	}
	local := func(d Delivery, ahead time.Duration) Delivery { d.Local = d.Local.Add(ahead); return d }
	second := late(110, 40)
	second.Attempt = 2
	failed := attemptAt(110, 1, false)
	for name, one := range map[string]struct {
		catchUp  string
		sent     []Delivery
		troubles []Trouble
		more     []Op
		broken   bool
	}{
		"it was the newest":             {sent: []Delivery{late(150, 60)}},
		"a newer one had passed":        {sent: []Delivery{late(110, 30)}, broken: true},
		"it was late by a lease only":   {sent: []Delivery{late(110, 28)}},
		"by a fast clock it was later":  {sent: []Delivery{local(late(110, 28), 2*time.Second)}, broken: true},
		"by a slow clock it was sooner": {sent: []Delivery{local(late(110, 30), -2*time.Second)}},
		"that clock was set":            {sent: []Delivery{late(110, 30)}, troubles: []Trouble{{What: "step", Replica: 1, From: at(130), To: at(135)}}},
		"it stood still before sending": {sent: []Delivery{late(110, 30)}, troubles: []Trouble{{What: "stall", Replica: 1, From: at(130), To: at(139.9)}}},
		"it was attempted before":       {sent: []Delivery{failed, second}},
		"the claim before sent nothing": {sent: []Delivery{second}},
		"its job catches up all":        {catchUp: "all", sent: []Delivery{late(110, 40)}},
		"it was redriven":               {sent: []Delivery{failed, late(110, 40)}, more: []Op{redriveAt(130)}},
	} {
		if one.catchUp == "" {
			one.catchUp = "latest"
		}
		h := history(append([]Op{crontab(one.catchUp)}, one.more...), one.sent...)
		h.Troubles = one.troubles
		if got := slices.Contains(broken(h), rule); got != one.broken {
			t.Errorf("%s: it is broken: %v, by %v", name, got, Check(h))
		}
	}
}

func redriveAt(from float64) Op {
	o := told(Redrive, from, 200)
	o.Redriven = 1
	return o
}

// TestDroppedForCause: an instant is dropped only if something kept replicas from it, and the last tick of a crontab
// that catches up the latest is never dropped.
func TestDroppedForCause(t *testing.T) {
	const rule = "nothing is dropped without a cause"
	pause, resume := told(Pause, 105, 200), func(from float64) Op { return told(Resume, from, 200) }
	settings := Op{Kind: Settings, Paused: true, Invoked: at(105), Returned: at(105.1), Status: 200}
	end := func(from float64) Op {
		return Op{Kind: Settings, Invoked: at(from), Returned: at(from + 0.1), Status: 200}
	}
	elsewhere := pause
	elsewhere.Key = "other"
	trouble := func(from, to float64) []Trouble {
		return []Trouble{{What: "down", Replica: -1, From: at(from), To: at(to)}}
	}
	failed := attemptAt(110, 1, false)
	failed.ID, failed.Instant = "triggered", at(109)
	list := crontab("")
	list.Schedule, list.Deadline = Schedule{Instants: []time.Time{at(110), at(120)}}, 6*time.Second
	short := list
	short.Deadline = 4 * time.Second
	again := crontab("latest")
	again.N, again.Invoked, again.Returned, again.Status = 2, at(200), at(200.1), 200
	fast := crontab("none")
	fast.Ahead = 2 * time.Second
	busy := make([]Delivery, 16)
	for i := range busy {
		busy[i] = Delivery{Key: "busy", ID: "busy", Begun: at(111), Ended: at(112)}
	}
	for name, one := range map[string]struct {
		put      Op
		more     []Op
		dropped  []float64 // all others are taken
		sent     []Delivery
		troubles []Trouble
		dead     bool // the dropped ones are dead letters
		broken   bool
	}{
		"nothing is dropped":             {put: crontab("latest")},
		"one is":                         {put: crontab("latest"), dropped: []float64{110}, broken: true},
		"one of none":                    {put: crontab("none"), dropped: []float64{110}, broken: true},
		"one is dead":                    {put: crontab("latest"), dropped: []float64{110}, dead: true},
		"of a job that is replaced":      {put: crontab("latest"), more: []Op{again}, dropped: []float64{110}},
		"in an outage":                   {put: crontab("latest"), dropped: []float64{110}, troubles: trouble(105, 140)},
		"an outage was shortly before":   {put: crontab("none"), dropped: []float64{110}, troubles: trouble(50, 60)},
		"one was long before":            {put: crontab("none"), dropped: []float64{110}, troubles: trouble(40, 49), broken: true},
		"one came after":                 {put: crontab("none"), dropped: []float64{110}, troubles: trouble(131, 140), broken: true},
		"the last of the latest":         {put: crontab("latest"), dropped: []float64{150}, troubles: trouble(105, 200), broken: true},
		"the last of none":               {put: crontab("none"), dropped: []float64{150}, troubles: trouble(105, 200)},
		"during a pause":                 {put: crontab("latest"), more: []Op{pause, resume(134)}, dropped: []float64{110, 120}},
		"the newest of a pause":          {put: crontab("latest"), more: []Op{pause, resume(134)}, dropped: []float64{110, 120, 130}, broken: true},
		"which may not be the newest":    {put: crontab("latest"), more: []Op{pause, resume(136)}, dropped: []float64{110, 120, 130}},
		"the newest of a pause, of none": {put: crontab("none"), more: []Op{pause, resume(134)}, dropped: []float64{110, 120, 130}},
		"resumed just before":            {put: crontab("none"), more: []Op{pause, resume(118.5)}, dropped: []float64{120}, broken: true},
		"by a clock that may be ahead":   {put: fast, more: []Op{pause, resume(118.5)}, dropped: []float64{120}},
		"by one that can't be so much":   {put: fast, more: []Op{pause, resume(116)}, dropped: []float64{120}, broken: true},
		"paused twice within a lease":    {put: crontab("none"), more: []Op{pause, resume(107), told(Pause, 108, 200), resume(109)}, dropped: []float64{120}},
		"another job was paused":         {put: crontab("none"), more: []Op{elsewhere}, dropped: []float64{110}, broken: true},
		"an operator paused the tenant":  {put: crontab("none"), more: []Op{settings, end(114)}, dropped: []float64{110}},
		"and had let it go on before":    {put: crontab("none"), more: []Op{settings, end(113)}, dropped: []float64{120}, broken: true},
		"beyond the deadline of its job": {put: list, dropped: []float64{110}, broken: true},
		"beyond it, after an outage":     {put: list, dropped: []float64{110}, troubles: trouble(105, 117)},
		"beyond a very short one":        {put: short, dropped: []float64{110}},
		"while receivers fail":           {put: crontab("none"), dropped: []float64{110}, sent: []Delivery{failed}},
		"while others have all slots":    {put: crontab("none"), dropped: []float64{110}, sent: busy},
		"while others have one slot":     {put: crontab("none"), dropped: []float64{110}, sent: busy[:1], broken: true},
	} {
		instants := one.put.Schedule.Between(at(101), at(200))
		sent := slices.Clone(one.sent)
		for _, i := range instants {
			if !slices.ContainsFunc(one.dropped, func(s float64) bool { return at(s).Equal(i) }) {
				sent = append(sent, attemptAt(i.Sub(begun).Seconds(), 1, true))
			}
		}
		h := history(append([]Op{one.put}, one.more...), sent...)
		h.Due, h.Troubles, h.Final.Dead = at(500), one.troubles, map[string][]Dead{}
		for _, s := range one.dropped {
			if one.dead {
				h.Final.Dead["k"] = append(h.Final.Dead["k"], Dead{Instant: at(s)})
			}
		}
		if got := slices.Contains(broken(h), rule); got != one.broken {
			t.Errorf("%s: it is broken: %v, by %v", name, got, Check(h))
		}
	}
	put := crontab("none")
	put.Schedule.End = at(115)
	h := history([]Op{put})
	h.Due, h.Begun = at(500), at(95)
	if slices.Contains(broken(h), rule) {
		t.Error("a tick that is dropped at the beginning breaks the rule")
	}
}
