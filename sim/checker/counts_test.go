package checker

import (
	"slices"
	"testing"
	"time"
)

// attemptAt returns an attempt at the instant of a job, which the receiver takes or not.
func attemptAt(instant float64, number int, took bool) Delivery {
	from := instant + float64(number-1)
	return Delivery{
		Replica: 1, ID: at(instant).String(), Key: "k", N: 1, Instant: at(instant), Attempt: number,
		Begun: at(from), Ended: at(from + 0.1), Local: at(from), Took: took, Told: took,
	}
}

// TestCounts: a finished job has counted each of its occurrences, by the end that it had. Only a failure, or a missed
// instant, may stay uncounted, where the store counts it by a write of its own and a fault came before that.
func TestCounts(t *testing.T) {
	put := Op{
		Kind: Put, Key: "k", N: 1, Invoked: at(1), Returned: at(1.1), Status: 201, Attempts: 2,
		Schedule: Schedule{Instants: []time.Time{at(20), at(40), at(60)}},
	}
	settled := put
	settled.Settled, settled.Invoked, settled.Returned = 1, at(2), at(2.1)
	crontab := put
	crontab.Schedule = Schedule{Every: 20 * time.Second, End: at(70)}
	before, replacing := crontab, crontab
	replacing.Invoked, replacing.Returned, replacing.Status = at(30), at(30.1), 200
	first, patch := put, put
	first.N, first.Invoked, first.Returned = 2, at(0.5), at(0.6)
	patch.Kind, patch.Status = Replace, 200
	other := first
	other.Schedule.Instants = first.Schedule.Instants[:2]
	cancel := Op{Kind: Cancel, Key: "k", Invoked: at(0.1), Returned: at(0.2), Status: 200}
	redrive := Op{Kind: Redrive, Key: "k", Invoked: at(90), Returned: at(90.1), Status: 200, Redriven: 1}
	late := cancel
	late.Invoked, late.Returned = at(0.9), at(1.05)
	all := []Delivery{attemptAt(20, 1, true), attemptAt(40, 1, true), attemptAt(60, 1, true)}
	retried := []Delivery{attemptAt(20, 1, false), attemptAt(20, 12, true), attemptAt(40, 1, true), attemptAt(60, 1, true)}
	failed := []Delivery{attemptAt(20, 1, true), attemptAt(40, 1, true), attemptAt(60, 1, false), attemptAt(60, 2, false)}
	again := slices.Concat(all, []Delivery{attemptAt(20, 15, true)})
	dead := []Dead{{DeliveryID: at(60).String(), Instant: at(60), Attempt: 2}}
	stall := []Trouble{{What: "stall", Replica: 1, From: at(61), To: at(70)}}
	earlier := []Trouble{{What: "stall", Replica: 1, From: at(1), To: at(10)}}
	elsewhere := []Trouble{{What: "stall", Replica: 0, From: at(61), To: at(70)}}
	for name, one := range map[string]struct {
		ops                       []Op
		sent                      []Delivery
		dead                      []Dead
		troubles                  []Trouble
		together                  bool
		delivered, failed, missed int
		state                     string
		broken                    bool
	}{
		"all are delivered":              {sent: all, delivered: 3},
		"one more":                       {sent: all, delivered: 4, broken: true},
		"one is not counted":             {sent: all, delivered: 2, broken: true},
		"one counts as failed":           {sent: all, delivered: 2, failed: 1, broken: true},
		"one counts as missed":           {sent: all, delivered: 2, missed: 1, broken: true},
		"a patch of another schedule":    {ops: []Op{other, patch}, sent: all, delivered: 4, broken: true},
		"a patch of the same schedule":   {ops: []Op{first, patch}, sent: all, delivered: 4},
		"the job goes on":                {sent: all, delivered: 2, state: "scheduled"},
		"one has failed":                 {sent: failed, dead: dead, delivered: 2, failed: 1},
		"it counts as delivered":         {sent: failed, dead: dead, delivered: 3, broken: true},
		"the same, after a stall":        {sent: failed, dead: dead, delivered: 3, troubles: stall},
		"which was over before":          {sent: failed, dead: dead, delivered: 3, troubles: earlier, broken: true},
		"or at another replica":          {sent: failed, dead: dead, delivered: 3, troubles: elsewhere, broken: true},
		"the store counts it at once":    {sent: failed, dead: dead, delivered: 3, troubles: stall, together: true, broken: true},
		"it is counted twice":            {sent: failed, dead: dead, delivered: 1, failed: 2, troubles: stall, broken: true},
		"it counts as failed and missed": {sent: failed, dead: dead, delivered: 2, failed: 1, missed: 1, broken: true},
		"one may be redriven":            {ops: []Op{put, redrive}, sent: all, delivered: 2, failed: 1},
		"none was redriven":              {ops: []Op{put, {Kind: Redrive, Key: "k", Status: 200}}, sent: all, delivered: 2, failed: 1, broken: true},
		"a crontab":                      {ops: []Op{crontab}, sent: all, delivered: 3},
		"a crontab counts a tick twice":  {ops: []Op{crontab}, sent: all, delivered: 5, broken: true},
		"a crontab's tick is left out":   {ops: []Op{crontab}, sent: all, delivered: 2, broken: true},
		"a tick of the job before":       {ops: []Op{before, replacing}, sent: retried, delivered: 3},
		"or it failed for good":          {ops: []Op{before, replacing}, sent: retried, delivered: 2},
		"but it was not twice":           {ops: []Op{before, replacing}, sent: retried, delivered: 4, broken: true},
		"ticks delivered before":         {ops: []Op{before, replacing}, sent: all, delivered: 3, broken: true},
		"one was sent again after it":    {ops: []Op{before, replacing}, sent: again, delivered: 3},
		"one was settled before":         {ops: []Op{put, settled}, sent: all, delivered: 2},
		"and it counts again":            {ops: []Op{put, settled}, sent: all, delivered: 3, broken: true},
		"a job before it was cancelled":  {ops: []Op{cancel, put}, sent: all, delivered: 2, broken: true},
		"it may have been cancelled":     {ops: []Op{late, put}, sent: all, delivered: 2},
	} {
		if one.ops == nil {
			one.ops = []Op{put}
		}
		if one.state == "" {
			one.state = "finished"
		}
		h := history(one.ops, one.sent...)
		h.Settles, h.CountsApart, h.Troubles = time.Second, !one.together, one.troubles
		h.Final.Dead = map[string][]Dead{"k": one.dead}
		h.Final.Jobs = map[string]Job{"k": {
			N: 1, State: one.state, Counted: true, Delivered: one.delivered, Failed: one.failed, Missed: one.missed,
		}}
		if got := slices.Contains(broken(h), "counts add up"); got != one.broken {
			t.Errorf("%s: it is broken: %v, by %v", name, got, Check(h))
		}
	}
}

// TestLastOutcome: a finished job shows its latest instant, with the outcome that this had. It may show another one only
// if a failure or a miss may be uncounted, or if nobody knows whether it was taken.
func TestLastOutcome(t *testing.T) {
	put := Op{
		Kind: Put, Key: "k", N: 1, Invoked: at(1), Returned: at(1.1), Status: 201, Attempts: 2, Deadline: 10 * time.Second,
		Schedule: Schedule{Instants: []time.Time{at(40), at(20)}},
	}
	crontab := put
	crontab.Schedule, crontab.CatchUp = Schedule{Every: 20 * time.Second, End: at(59)}, "none"
	soon, ahead := put, put
	soon.Returned = at(38)
	ahead.Ahead = 40 * time.Second
	redrive := told(Redrive, 70, 200)
	redrive.Redriven = 1
	taken := []Delivery{attemptAt(20, 1, true), attemptAt(40, 1, true)}
	failed := []Delivery{attemptAt(20, 1, true), attemptAt(40, 1, false), attemptAt(40, 2, false)}
	unheard := attemptAt(40, 1, true)
	unheard.Told = false
	dead := []Dead{{DeliveryID: at(40).String(), Instant: at(40), Attempt: 2}}
	stall := []Trouble{{What: "stall", Replica: 1, From: at(41), To: at(50)}}
	outage := []Trouble{{What: "down", Replica: -1, From: at(41), To: at(55)}}
	for name, one := range map[string]struct {
		ops      []Op
		sent     []Delivery
		dead     []Dead
		troubles []Trouble
		state    string
		last     float64
		outcome  string
		broken   bool
	}{
		"it was delivered":            {sent: taken, last: 40, outcome: "delivered"},
		"the one before is shown":     {sent: taken, last: 20, outcome: "delivered", broken: true},
		"it is shown as failed":       {sent: taken, last: 40, outcome: "failed", broken: true},
		"none is shown":               {sent: taken, broken: true},
		"none, but it is not over":    {sent: taken, state: "scheduled"},
		"the last tick":               {ops: []Op{crontab}, sent: taken, last: 40, outcome: "delivered"},
		"a tick beyond the end":       {ops: []Op{crontab}, sent: taken, last: 60, outcome: "delivered", broken: true},
		"it failed":                   {sent: failed, dead: dead, last: 40, outcome: "failed"},
		"it is shown as delivered":    {sent: failed, dead: dead, last: 40, outcome: "delivered", broken: true},
		"its failure is not counted":  {sent: failed, dead: dead, troubles: stall, last: 40, outcome: "delivered"},
		"it was missed":               {sent: taken[:1], last: 40, outcome: "missed"},
		"that is not shown":           {sent: taken[:1], last: 40, outcome: "delivered", broken: true},
		"it may not be counted":       {sent: taken[:1], troubles: outage, last: 40, outcome: "delivered"},
		"it is not known to be taken": {sent: []Delivery{taken[0], unheard}, last: 40, outcome: "missed"},
		"it was at hand":              {ops: []Op{soon}, sent: taken, last: 20, outcome: "delivered"},
		"or it was by a fast clock":   {ops: []Op{ahead}, sent: taken, last: 20, outcome: "delivered"},
		"some were redriven":          {ops: []Op{put, redrive}, sent: taken, last: 40, outcome: "failed"},
	} {
		if one.ops == nil {
			one.ops = []Op{put}
		}
		if one.state == "" {
			one.state = "finished"
		}
		h := history(one.ops, one.sent...)
		h.Settles, h.CountsApart, h.Troubles = time.Second, true, one.troubles
		h.Final.Dead = map[string][]Dead{"k": one.dead}
		j := Job{N: 1, State: one.state, Counted: true, Last: Outcome{Outcome: one.outcome}}
		if one.outcome != "" {
			j.Last.Instant = at(one.last)
		}
		h.Final.Jobs = map[string]Job{"k": j}
		if got := slices.Contains(broken(h), "the last outcome is told"); got != one.broken {
			t.Errorf("%s: it is broken: %v, by %v", name, got, Check(h))
		}
	}
}
