package checker

import (
	"slices"
	"testing"
	"time"
)

// TestPastInstants: instants that have passed when a job is put fire, are skipped and counted, or have the put refused,
// as it asks. By default, they fire if there was no job, and are skipped if there was one.
func TestPastInstants(t *testing.T) {
	const rule = "past instants are as asked"
	put := func(n int, from float64, status int, past string, instants ...float64) Op {
		o := told(Put, from, status)
		o.N, o.Past, o.Unchanged = n, past, status == 422
		for _, s := range instants {
			o.Schedule.Instants = append(o.Schedule.Instants, at(s))
		}
		return o
	}
	skipping := func(n int, o Op) Op { o.Skipped = n; return o }
	clock := func(ahead, behind float64, o Op) Op {
		o.Ahead, o.Behind = at(ahead).Sub(begun), at(behind).Sub(begun)
		return o
	}
	to := func(receiver string, o Op) Op { o.To = receiver; return o }
	patch := func(o Op) Op { o.Kind = Replace; return o }
	create := func(o Op) Op { o.Kind = Create; return o }
	crontab := put(1, 20, 201, "")
	crontab.Schedule.Every, crontab.Schedule.End = 5*time.Second, at(40)
	sent := func(n int, instant, from float64) Delivery {
		d := attemptAt(instant, 1, true)
		d.N, d.Begun, d.Local, d.Ended = n, at(from), at(from), at(from+0.1)
		return d
	}
	within := func(seconds float64, o Op) Op { o.Deadline = at(seconds).Sub(begun); return o }
	failed := sent(1, 10, 20.2)
	failed.Took, failed.Told = false, false
	early := sent(1, 60, 58) // by a clock ahead
	early.Local = at(60)
	held := sent(1, 10, 10)
	held.Ended = at(12)
	first := put(1, 1, 201, "", 550)
	const lost, twice, refused = "nothing lost", "no duplicate without a cause", "only what is allowed is called"
	const claimer = "one claimer"
	for name, c := range map[string]struct {
		ops     []Op
		sent    []Delivery
		dead    bool   // instant 10
		outcome string // of the first delivery, by history
		broken  []string
	}{
		"a new job fires them":           {ops: []Op{put(1, 20, 201, "", 10)}, sent: []Delivery{sent(1, 10, 20.2)}},
		"they are lost":                  {ops: []Op{put(1, 20, 201, "", 10)}, broken: []string{lost}},
		"lost, by a patch":               {ops: []Op{first, patch(put(2, 20, 200, "fire", 10))}, broken: []string{lost}},
		"they are counted as skipped":    {ops: []Op{skipping(1, put(1, 20, 201, "", 10))}, sent: []Delivery{sent(1, 10, 20.2)}, broken: []string{rule}},
		"it is a dead letter":            {ops: []Op{put(1, 20, 201, "", 10)}, dead: true},
		"it has only failed":             {ops: []Op{put(1, 20, 201, "", 10)}, sent: []Delivery{failed}, broken: []string{lost}},
		"its letter may be deleted":      {ops: []Op{put(1, 20, 201, "", 10), told(Discard, 40, 0)}, sent: []Delivery{failed}},
		"it is to be tried again":        {ops: []Op{put(1, 20, 201, "", 10), told(Discard, 40, 0)}, sent: []Delivery{failed}, outcome: "retried", broken: []string{lost}},
		"its letter is deleted":          {ops: []Op{put(1, 20, 201, "", 10), told(Discard, 40, 0)}, sent: []Delivery{failed}, outcome: "buried"},
		"it is too late for it":          {ops: []Op{within(5, put(1, 20, 201, "", 10))}},
		"a patch that may keep it":       {ops: []Op{put(1, 1, 201, "", 10), patch(put(2, 20, 200, "fire", 10))}, sent: []Delivery{sent(1, 10, 10)}},
		"an instant to come is not lost": {ops: []Op{put(1, 20, 201, "", 550)}},
		"nor has a crontab past ticks":   {ops: []Op{crontab}, sent: []Delivery{sent(1, 25, 25), sent(1, 30, 30), sent(1, 35, 35), sent(1, 40, 40)}},

		"a replacement skips them":            {ops: []Op{first, skipping(1, put(2, 20, 200, "", 10))}},
		"a patch skips them":                  {ops: []Op{first, skipping(1, patch(put(2, 20, 200, "", 10)))}},
		"it fires one":                        {ops: []Op{first, skipping(1, put(2, 20, 200, "", 10))}, sent: []Delivery{sent(2, 10, 20.2)}, broken: []string{rule}},
		"it fires one that was pending":       {ops: []Op{put(1, 1, 201, "", 10), put(2, 20, 200, "", 10)}, sent: []Delivery{sent(2, 10, 20.2)}},
		"it counts none":                      {ops: []Op{first, put(2, 20, 200, "", 10)}, broken: []string{rule}},
		"it counts more":                      {ops: []Op{first, skipping(2, put(2, 20, 200, "", 10, 30))}, sent: []Delivery{sent(2, 30, 30)}, broken: []string{rule}},
		"its clock is ahead":                  {ops: []Op{first, skipping(2, clock(10, 0, put(2, 20, 200, "", 10, 30)))}},
		"its clock is behind":                 {ops: []Op{first, clock(0, 11, put(2, 20, 200, "", 10))}, sent: []Delivery{sent(2, 10, 20.2)}},
		"its clock is behind, but not so far": {ops: []Op{first, clock(0, 9, put(2, 20, 200, "", 10))}, broken: []string{rule}},
		"a patch that may keep the instants":  {ops: []Op{put(1, 1, 201, "", 10), patch(put(2, 20, 200, "", 10))}, sent: []Delivery{sent(1, 10, 10)}},
		"a new job is to skip them":           {ops: []Op{skipping(1, put(1, 20, 201, "skip", 10))}},
		"it skips none":                       {ops: []Op{put(1, 20, 201, "skip", 10)}, broken: []string{rule}},

		"fired once more":                     {ops: []Op{put(1, 1, 201, "", 10), put(2, 20, 200, "fire", 10)}, sent: []Delivery{sent(1, 10, 10), sent(2, 10, 20.2)}},
		"while it is under way":               {ops: []Op{put(1, 1, 201, "", 10), put(2, 10.2, 200, "fire", 10)}, sent: []Delivery{held, sent(2, 10, 11)}, broken: []string{claimer}},
		"under way, of a job before the last": {ops: []Op{put(1, 1, 201, "", 10), put(2, 10.1, 200, "", 550), put(3, 10.2, 200, "fire", 10)}, sent: []Delivery{held, sent(3, 10, 11)}},
		"the job between has the instant":     {ops: []Op{put(1, 1, 201, "", 10), put(2, 10.1, 200, "skip", 10), put(3, 10.2, 200, "fire", 10)}, sent: []Delivery{held, sent(3, 10, 11)}, broken: []string{claimer}},
		"there was none between":              {ops: []Op{put(4, 0.5, 201, "", 550), put(1, 1, 200, "", 10), put(3, 10.2, 200, "fire", 10)}, sent: []Delivery{held, sent(3, 10, 11)}, broken: []string{claimer}},
		"the job without it comes later":      {ops: []Op{put(1, 1, 201, "", 10), put(3, 10.2, 200, "fire", 10), put(2, 12, 200, "", 550)}, sent: []Delivery{held, sent(3, 10, 11)}, broken: []string{claimer}},
		"under way, and not asked for":        {ops: []Op{put(1, 1, 201, "", 10), put(2, 10.1, 200, "", 550), put(3, 10.2, 200, "skip", 10)}, sent: []Delivery{held, sent(3, 10, 11)}, broken: []string{twice, claimer}},
		"not once more":                       {ops: []Op{put(1, 1, 201, "", 10), put(2, 20, 200, "fire", 10)}, sent: []Delivery{sent(1, 10, 10)}, broken: []string{lost}},
		"it may have been under way":          {ops: []Op{put(1, 1, 201, "", 10), put(2, 14, 200, "fire", 10)}, sent: []Delivery{sent(1, 10, 10)}},
		"once more, unasked":                  {ops: []Op{put(1, 1, 201, "", 10), put(2, 20, 200, "skip", 10)}, sent: []Delivery{sent(1, 10, 10), sent(2, 10, 20.2)}, broken: []string{twice}},
		"once more, before":                   {ops: []Op{put(1, 1, 201, "", 10), put(2, 20, 200, "fire", 10)}, sent: []Delivery{sent(1, 10, 10), sent(1, 10, 15), sent(2, 10, 20.2)}, broken: []string{twice}},
		"a third time":                        {ops: []Op{put(1, 1, 201, "", 10), put(2, 20, 200, "fire", 10)}, sent: []Delivery{sent(1, 10, 10), sent(2, 10, 20.2), sent(2, 10, 25)}, broken: []string{twice}},
		"it had not passed":                   {ops: []Op{put(1, 1, 201, "", 60), put(2, 20, 200, "fire", 60)}, sent: []Delivery{sent(1, 60, 60), sent(2, 60, 60.2)}, broken: []string{twice}},
		"nor by a clock behind":               {ops: []Op{put(1, 1, 201, "", 60), put(2, 59, 200, "fire", 60)}, sent: []Delivery{early, sent(2, 60, 60.2)}, broken: []string{twice}},
		"by a clock ahead":                    {ops: []Op{put(1, 1, 201, "", 60), clock(2, 0, put(2, 59, 200, "fire", 60))}, sent: []Delivery{early, sent(2, 60, 60.2)}},
		"after a cancellation":                {ops: []Op{put(1, 1, 201, "", 10), told(Cancel, 60, 200), put(2, 70, 201, "", 10)}, sent: []Delivery{sent(1, 10, 10), sent(2, 10, 70.2)}},
		"after one long before":               {ops: []Op{told(Cancel, 1, 200), put(1, 30, 201, "", 60), put(2, 90, 0, "", 60)}, sent: []Delivery{sent(1, 60, 60), sent(2, 60, 90.2)}, broken: []string{twice}},
		"without a cancellation":              {ops: []Op{put(1, 1, 201, "", 10), put(2, 70, 201, "", 10)}, sent: []Delivery{sent(1, 10, 10), sent(2, 10, 70.2)}, broken: []string{twice}},
		"a finished job counts as none":       {ops: []Op{put(1, 1, 201, "", 10), create(put(2, 70, 201, "", 10))}, sent: []Delivery{sent(1, 10, 10), sent(2, 10, 70.2)}},

		"rejected":                       {ops: []Op{put(1, 20, 422, "reject", 10)}},
		"not rejected":                   {ops: []Op{put(1, 20, 201, "reject", 10)}, broken: []string{rule}},
		"not rejected by a clock behind": {ops: []Op{clock(0, 11, put(1, 20, 201, "reject", 10))}, sent: []Delivery{sent(1, 10, 20.2)}},
		"rejected at a receiver":         {ops: []Op{to("theirs", put(1, 20, 422, "reject", 10))}},
		"rejected though it is ahead":    {ops: []Op{to("theirs", put(1, 20, 422, "reject", 550))}, broken: []string{refused}},
		"ahead, by a clock ahead":        {ops: []Op{to("theirs", clock(10, 0, put(1, 20, 422, "reject", 30)))}},
		"rejected unasked":               {ops: []Op{to("theirs", put(1, 20, 422, "fire", 10))}, broken: []string{refused}},
	} {
		h := history(c.ops, c.sent...)
		h.Rules, h.Due = map[string]Rule{"theirs": {Tenants: []string{""}}}, at(300)
		if c.dead {
			h.Final.Dead = map[string][]Dead{"k": {{Instant: at(10)}}}
		}
		if c.outcome != "" {
			d := c.sent[0]
			h.Final.Recorded = []Recorded{{Key: "k", DeliveryID: d.ID, Attempt: d.Attempt, Outcome: c.outcome, At: d.Begun}}
		}
		got := slices.DeleteFunc(broken(h), func(r string) bool { return !slices.Contains([]string{rule, lost, twice, refused, claimer}, r) })
		if !slices.Equal(got, c.broken) {
			t.Errorf("%s: broken are %q, want %q: %v", name, got, c.broken, Check(h))
		}
	}
}

// TestAttemptsOfThePast: an instant that fires once more, as it has passed, begins with the first attempt.
func TestAttemptsOfThePast(t *testing.T) {
	put := told(Put, 1, 201)
	put.N, put.Attempts, put.Schedule.Instants = 1, 2, []time.Time{at(40)}
	again := put
	again.Invoked, again.Returned, again.Status, again.N = at(60), at(60.1), 200, 2
	second := attemptAt(40, 1, true)
	second.N, second.Begun, second.Local, second.Ended = 2, at(60.2), at(60.2), at(60.3)
	for past, want := range map[string]bool{"fire": false, "skip": true} {
		again.Past = past
		h := history([]Op{put, again}, attemptAt(40, 1, false), attemptAt(40, 2, false), second)
		if got := slices.Contains(broken(h), "attempts are counted"); got != want {
			t.Errorf("%s: it is broken: %v, by %v", past, got, Check(h))
		}
	}
}
