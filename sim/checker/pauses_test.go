package checker

import (
	"slices"
	"testing"
	"time"
)

// TestPauses: the next attempt comes no sooner than the receiver asked, by the clocks of the replicas, and no later than
// the bound of the job's pauses if nothing disturbs. Both hold only for an attempt that failed and is retried.
func TestPauses(t *testing.T) {
	put := told(Put, 1, 201)
	put.N, put.Attempts, put.Tenant, put.Schedule.Instants = 1, 4, "t", []time.Time{at(30)}
	put.Retry = Retry{Initial: time.Second, Max: 3 * time.Second, Factor: 2}
	with := func(o Op, change func(*Op)) Op { change(&o); return o }
	unknown := with(put, func(o *Op) { o.Retry = Retry{} })
	longer := with(put, func(o *Op) { o.N, o.Retry.Initial, o.Status = 2, 3*time.Second, 0 })
	amended := with(longer, func(o *Op) { o.Kind, o.Attempts = Amend, 4 })
	settings := Op{Kind: Settings, Tenant: "t", Most: 1, Invoked: at(20), Returned: at(20.1), Status: 200}
	asked := func(pause time.Duration) []Delivery {
		d := attemptAt(30, 1, false)
		d.Asked, d.To = pause, "r"
		return []Delivery{d}
	}
	next := func(after float64, ahead time.Duration) Delivery { // by a clock that is so far ahead
		d := attemptAt(30, 2, true)
		d.Begun, d.Ended, d.Local = at(30.1+after), at(30.2+after), at(30.1+after).Add(ahead)
		return d
	}
	third := func(after float64) []Delivery {
		d := next(1, 0)
		d.Took, d.Told = false, false
		e := next(1.1+after, 0)
		e.Attempt = 3
		return append(asked(0), d, e)
	}
	failures := func(n int, told ...int) (all []Delivery) {
		for i := range n {
			took := slices.Contains(told, i)
			all = append(all, Delivery{
				ID: "f", Key: "f", To: "r", Begun: at(10), Ended: at(10.1), Local: at(10), Replica: 1, Took: took, Told: took,
			})
		}
		return all
	}
	busy := func(n int) (all []Delivery) {
		for range n {
			all = append(all, Delivery{ID: "b", Key: "b", To: "b", Begun: at(29), Ended: at(31), Local: at(29), Attempt: 1})
		}
		return all
	}
	trouble := func(what string, from, to float64) []Trouble {
		return []Trouble{{What: what, Replica: 1, From: at(from), To: at(to)}}
	}
	const s = time.Second
	for name, one := range map[string]struct {
		ops      []Op // one put if nil
		sent     []Delivery
		troubles []Trouble
		outcome  string // of each attempt; empty is "retried"
		chaos    bool   // nothing is known of promptness
		broken   bool
	}{
		"as it was asked":               {sent: append(asked(2*s), next(2, 0))},
		"sooner":                        {sent: append(asked(2*s), next(1.8, 0)), broken: true},
		"sooner, by a fast clock":       {sent: append(asked(2*s), next(1.2, s))},
		"too soon for that clock too":   {sent: append(asked(2*s), next(0.8, s)), broken: true},
		"later, by a slow clock sooner": {sent: append(asked(2*s), next(2.5, -s)), broken: true},
		"that clock was set":            {sent: append(asked(2*s), next(1, 0)), troubles: trouble("step", 29, 40)},
		"another one was":               {sent: append(asked(2*s), next(1, 0)), troubles: []Trouble{{What: "step", From: at(29), To: at(40)}}, broken: true},
		"nobody asked":                  {sent: append(asked(0), next(0.1, 0))},
		"it did not count":              {sent: append(asked(2*s), next(1, 0)), outcome: "released"},
		"the answer was not read":       {sent: append(asked(2*s), next(1, 0)), troubles: trouble("stall", 30, 45)},
		"it was resumed":                {ops: []Op{put, told(Resume, 30.5, 200)}, sent: append(asked(2*s), next(1, 0))},
		"a reading changes nothing":     {ops: []Op{put, told(Get, 30.5, 200)}, sent: append(asked(2*s), next(1, 0)), broken: true},
		"nor a refused resumption":      {ops: []Op{put, with(told(Resume, 30.5, 404), func(o *Op) { o.Unchanged = true })}, sent: append(asked(2*s), next(1, 0)), broken: true},
		"within the bound":              {sent: append(asked(0), next(1, 0))},
		"and a poll later":              {sent: append(asked(0), next(3.5, 0))},
		"later than that":               {sent: append(asked(0), next(3.7, 0)), broken: true},
		"clocks differ":                 {sent: append(asked(0), next(4.5, -s))},
		"within the second bound":       {sent: third(4.5)},
		"later than the second bound":   {sent: third(4.7), broken: true},
		"within the pause asked for":    {sent: append(asked(2*s), next(4.5, 0))},
		"later than that too":           {sent: append(asked(2*s), next(4.7, 0)), broken: true},
		"the bound is not known":        {ops: []Op{unknown}, sent: append(asked(0), next(9, 0))},
		"another job has a longer one":  {ops: []Op{put, longer}, sent: append(asked(0), next(5.5, 0))},
		"an amendment has a longer one": {ops: []Op{put, amended}, sent: append(asked(0), next(5.5, 0))},
		"promptness is not known":       {sent: append(asked(0), next(9, 0)), chaos: true},
		"a fault came before":           {sent: append(asked(0), next(9, 0)), troubles: trouble("cut", 9, 11)},
		"it was long before":            {sent: append(asked(0), next(9, 0)), troubles: trouble("cut", 8, 9), broken: true},
		"receivers are no cause":        {sent: append(asked(0), next(9, 0)), troubles: trouble("receivers", 29, 40), broken: true},
		"the tenant has settings":       {ops: []Op{put, settings}, sent: append(asked(0), next(9, 0))},
		"another tenant has":            {ops: []Op{put, with(settings, func(o *Op) { o.Tenant = "u" })}, sent: append(asked(0), next(9, 0)), broken: true},
		"slots may be taken":            {sent: slices.Concat(busy(7), asked(0), []Delivery{next(9, 0)})},
		"a few slots are":               {sent: slices.Concat(busy(6), asked(0), []Delivery{next(9, 0)}), broken: true},
		"the receiver may be down":      {sent: slices.Concat(failures(9), asked(0), []Delivery{next(9, 0)})},
		"it has failed less often":      {sent: slices.Concat(failures(8), asked(0), []Delivery{next(9, 0)}), broken: true},
		"it has taken one meanwhile":    {sent: slices.Concat(failures(9, 4), asked(0), []Delivery{next(9, 0)}), broken: true},
	} {
		if one.ops == nil {
			one.ops = []Op{put}
		}
		for i := range one.sent {
			one.sent[i].Tenant = "t"
			if d := &one.sent[i]; d.Key == "k" {
				d.To = "r"
			}
		}
		h := history(one.ops, one.sent...)
		h.Troubles, h.Prompt = one.troubles, 600*time.Millisecond
		if one.chaos {
			h.Prompt = 0
		}
		outcome := one.outcome
		if outcome == "" {
			outcome = "retried"
		}
		for _, d := range h.Deliveries {
			h.Final.Recorded = append(h.Final.Recorded, Recorded{
				Key: "k", DeliveryID: d.ID, Attempt: d.Attempt, Outcome: outcome, At: d.Local,
			})
		}
		if got := slices.Contains(broken(h), "pauses keep their bounds"); got != one.broken {
			t.Errorf("%s: it is broken: %v, by %v", name, got, Check(h))
		}
	}
	h := history([]Op{put}, append(asked(0), next(9, 0))...)
	h.Prompt, h.Begun = 600*time.Millisecond, at(11)
	h.Final.Recorded = []Recorded{{Key: "k", DeliveryID: at(30).String(), Attempt: 1, Outcome: "retried", At: at(30)}}
	if slices.Contains(broken(h), "pauses keep their bounds") {
		t.Error("a late attempt at the beginning breaks the rule")
	}
}
