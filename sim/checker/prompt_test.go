package checker

import (
	"slices"
	"testing"
	"time"
)

// TestPrompt: while receivers are slow, and another tenant has a backlog, a tenant's few deliveries begin at once. A
// fault of the world, a change, clocks that differ, or the tenant's own due deliveries, may delay them.
func TestPrompt(t *testing.T) {
	const rule = "few deliveries are prompt"
	one := func(key string, instant, begun float64) Delivery {
		return Delivery{
			ID: key, Key: key, Tenant: key[:1], N: int(key[0]), Instant: at(instant), Attempt: 1,
			Begun: at(begun), Local: at(begun), Ended: at(begun + 0.02), Took: true, Told: true,
		}
	}
	put := Op{
		Kind: Put, Key: "p", Tenant: "p", N: 'p', Invoked: at(80), Returned: at(80.1), Status: 201,
		Schedule: Schedule{Instants: []time.Time{at(100)}},
	}
	change := func(f func(*Op)) []Op { o := put; f(&o); return []Op{put, o} }
	slow := one("p", 50, 50)
	slow.ID, slow.Ended = "earlier", at(53)
	failed := one("p", 50, 50)
	failed.ID, failed.Took, failed.Told = "earlier", false, false
	behind := one("other", 10, 10)
	behind.Local = at(9)
	crowd := func(key string) (all []Delivery) {
		for range 20 {
			all = append(all, one(key, 100, 100))
		}
		return all
	}
	early := crowd("p3") // in a window
	for i := range early {
		early[i].Instant = at(110)
	}
	for name, c := range map[string]struct {
		ops      []Op // besides those of the backlog; one put if nil
		begun    float64
		sent     []Delivery // before
		troubles []Trouble
		prompt   time.Duration // 0 is half a second
		broken   bool
	}{
		"at once":                        {begun: 100.4},
		"late":                           {begun: 100.6, broken: true},
		"late beside a backlog":          {begun: 100.6, sent: crowd("backlog"), broken: true},
		"late while receivers are sick":  {begun: 100.6, troubles: []Trouble{{What: "receivers", Replica: -1, From: at(90), To: at(110)}}, broken: true},
		"late in a backlog of its own":   {begun: 100.6, sent: crowd("p2")},
		"late among what fires early":    {begun: 100.6, sent: early},
		"after a fault":                  {begun: 100.6, troubles: []Trouble{{What: "cut", Replica: 1, From: at(60), To: at(61)}}},
		"long after a fault":             {begun: 100.6, troubles: []Trouble{{What: "cut", Replica: 1, From: at(30), To: at(31)}}, broken: true},
		"its receiver was slow":          {begun: 100.6, sent: []Delivery{slow}},
		"its receiver has failed":        {begun: 100.6, sent: []Delivery{failed}},
		"a clock is behind":              {begun: 101.4, sent: []Delivery{behind}},
		"later than the clock is behind": {begun: 101.6, sent: []Delivery{behind}, broken: true},
		"submitted late":                 {begun: 100.6, ops: change(func(o *Op) { o.Returned = at(100.3) })[1:]},
		"submitted late, and late":       {begun: 100.9, ops: change(func(o *Op) { o.Returned = at(100.3) })[1:], broken: true},
		"submitted twice":                {begun: 100.6, ops: change(func(o *Op) { o.Invoked = at(81) })},
		"resumed":                        {begun: 100.6, ops: change(func(o *Op) { o.Kind, o.N = Resume, 0 })},
		"its tenant has settings":        {begun: 100.6, ops: change(func(o *Op) { o.Kind, o.N, o.Key = Settings, 0, "" })},
		"nothing is known of promptness": {begun: 100.6, prompt: -1},
	} {
		if c.ops == nil {
			c.ops = []Op{put}
		}
		h := history(c.ops, append(c.sent, one("p", 100, c.begun))...)
		h.Troubles, h.Prompt = c.troubles, 500*time.Millisecond
		if c.prompt < 0 {
			h.Prompt = 0
		}
		if got := slices.Contains(broken(h), rule); got != c.broken {
			t.Errorf("%s: broken %v", name, got)
		}
	}
	h := history([]Op{put}, one("p", 100, 100.6))
	h.Prompt, h.Begun = 500*time.Millisecond, at(90)
	if slices.Contains(broken(h), rule) {
		t.Error("a late delivery at the beginning breaks a rule")
	}
}
