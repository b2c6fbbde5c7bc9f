package checker

import (
	"slices"
	"testing"
	"time"
)

// TestLimited: a replica that knows of a tenant's limit has no more of its deliveries under way. Others may wait for
// them.
func TestLimited(t *testing.T) {
	one := func(key string, begun, ended float64) Delivery {
		return Delivery{
			ID: key, Key: key, Tenant: "t", N: int(key[0]), Instant: at(100), Attempt: 1, Replica: 1,
			Begun: at(begun), Local: at(begun), Ended: at(ended), Took: true, Told: true,
		}
	}
	of := func(d Delivery, change func(*Delivery)) Delivery { change(&d); return d }
	limit := func(from float64, most, status int) Op {
		return Op{Kind: Settings, Tenant: "t", Most: most, Invoked: at(from), Returned: at(from + 0.1), Status: status}
	}
	paused := limit(95, 1, 200)
	paused.Paused = true
	other := limit(20, 1, 200)
	other.Tenant = "other"
	two := []Delivery{one("a", 100, 102), one("b", 101, 103)}
	for name, c := range map[string]struct {
		ops      []Op // one limit of 1 at 20 if nil
		sent     []Delivery
		troubles []Trouble
		broken   bool
	}{
		"one after the other":       {sent: []Delivery{one("a", 100, 102), one("b", 102, 103)}},
		"two at a time":             {sent: two, broken: true},
		"begun at once":             {sent: []Delivery{one("a", 100, 102), one("b", 100, 103)}, broken: true},
		"two of two":                {ops: []Op{limit(20, 2, 200)}, sent: two},
		"three of two":              {ops: []Op{limit(20, 2, 200)}, sent: append(two, one("c", 101.5, 102)), broken: true},
		"by two replicas":           {sent: []Delivery{two[0], of(two[1], func(d *Delivery) { d.Replica = 2 })}},
		"of two tenants":            {sent: []Delivery{of(two[0], func(d *Delivery) { d.Tenant = "other" }), two[1]}},
		"another tenant is limited": {ops: []Op{other}, sent: two},
		"the limit was refused":     {ops: []Op{limit(20, 1, 403)}, sent: two},
		"nothing is limited":        {ops: []Op{limit(20, 0, 200)}, sent: two},
		"limited just before":       {ops: []Op{limit(90, 1, 200)}, sent: two},
		"limited some time before":  {ops: []Op{limit(80, 1, 200)}, sent: two, broken: true},
		"limited less before":       {ops: []Op{limit(20, 1, 200), limit(95, 2, 200)}, sent: two},
		"limited less, in vain":     {ops: []Op{limit(20, 1, 200), limit(95, 2, 403)}, sent: two, broken: true},
		"limited less at once":      {ops: []Op{limit(20, 1, 200), limit(20, 2, 200)}, sent: two},
		"limited less later":        {ops: []Op{limit(20, 1, 200), limit(102, 2, 200)}, sent: two, broken: true},
		"after a fault":             {sent: two, troubles: []Trouble{{What: "kill", Replica: 1, From: at(50), To: at(60)}}},
		"after another's fault":     {sent: two, troubles: []Trouble{{What: "kill", Replica: 2, From: at(50), To: at(60)}}, broken: true},
		"after a fault of all":      {sent: two, troubles: []Trouble{{What: "down", Replica: -1, From: at(50), To: at(60)}}},
		"long after a fault":        {ops: []Op{limit(82, 1, 200)}, sent: two, troubles: []Trouble{{What: "kill", Replica: 1, From: at(10), To: at(20)}}, broken: true},
		"before a fault":            {sent: two, troubles: []Trouble{{What: "kill", Replica: 1, From: at(102), To: at(110)}}, broken: true},
		"while receivers are sick":  {sent: two, troubles: []Trouble{{What: "receivers", Replica: -1, From: at(90), To: at(110)}}, broken: true},
		"the first never ended":     {sent: []Delivery{of(two[0], func(d *Delivery) { d.Ended = at(1e6) }), two[1]}},
		"limited as much, paused":   {ops: []Op{limit(20, 1, 200), paused}, sent: two, broken: true},
	} {
		if c.ops == nil {
			c.ops = []Op{limit(20, 1, 200)}
		}
		h := history(c.ops, c.sent...)
		h.Troubles = c.troubles
		if got := slices.Contains(broken(h), "a tenant keeps its limit"); got != c.broken {
			t.Errorf("%s: broken %v", name, got)
		}
	}
}

// TestLateByALimit: an instant may be late while its tenant has as many deliveries under way as an operator allows.
func TestLateByALimit(t *testing.T) {
	one := func(key string, begun, ended float64) Delivery {
		return Delivery{
			ID: key, Key: key, Tenant: "t", N: int(key[0]), Instant: at(100), Attempt: 1,
			Begun: at(begun), Local: at(begun), Ended: at(ended), Took: true, Told: true,
		}
	}
	put := Op{
		Kind: Put, Key: "a", Tenant: "t", N: 'a', Invoked: at(10), Returned: at(10.1), Status: 201,
		Schedule: Schedule{Instants: []time.Time{at(100)}},
	}
	limit := func(tenant string, most int, from float64) Op {
		return Op{Kind: Settings, Tenant: tenant, Most: most, Invoked: at(from), Returned: at(from + 0.1), Status: 200}
	}
	refused := limit("t", 1, 20)
	refused.Status = 403
	late := one("a", 107, 107.1)
	before := one("b", 100, 107)
	elsewhere := before
	elsewhere.Tenant = "other"
	for name, c := range map[string]struct {
		ops    []Op // besides the put
		sent   []Delivery
		broken bool
	}{
		"without a limit":           {sent: []Delivery{before, late}, broken: true},
		"at its limit":              {ops: []Op{limit("t", 1, 20)}, sent: []Delivery{before, late}},
		"below its limit":           {ops: []Op{limit("t", 2, 20)}, sent: []Delivery{before, late}, broken: true},
		"another tenant is limited": {ops: []Op{limit("other", 1, 20)}, sent: []Delivery{before, late}, broken: true},
		"its limit was refused":     {ops: []Op{refused}, sent: []Delivery{before, late}, broken: true},
		"settings without a limit":  {ops: []Op{limit("t", 0, 20)}, sent: []Delivery{before, late}, broken: true},
		"its limit was lifted":      {ops: []Op{limit("t", 1, 20), limit("t", 0, 30)}, sent: []Delivery{before, late}, broken: true},
		"not at its limit any more": {ops: []Op{limit("t", 1, 20)}, sent: []Delivery{one("b", 100, 101.9), late}, broken: true},
		"another tenant's delivery": {ops: []Op{limit("t", 1, 20)}, sent: []Delivery{elsewhere, late}, broken: true},
		"limited afterwards":        {ops: []Op{limit("t", 1, 120)}, sent: []Delivery{before, late}, broken: true},
	} {
		h := history(append([]Op{put}, c.ops...), c.sent...)
		if got := slices.Contains(broken(h), "no lateness without a cause"); got != c.broken {
			t.Errorf("%s: broken %v", name, got)
		}
	}
}
