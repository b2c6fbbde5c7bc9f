package checker

import (
	"slices"
	"testing"
	"time"
)

// told returns an operation that is answered 0.1 s after it is invoked.
func told(kind Kind, from float64, status int) Op {
	return Op{Kind: kind, Key: "k", Invoked: at(from), Returned: at(from + 0.1), Status: status}
}

// TestStandAlone: an instant that fires beside the schedule was triggered, and each acknowledged trigger or redrive has
// an effect that is not lost.
func TestStandAlone(t *testing.T) {
	put := told(Put, 1, 201)
	put.N, put.Attempts, put.Schedule.Instants = 1, 1, []time.Time{at(20)}
	far := put
	far.Schedule.Instants = []time.Time{at(550)}
	trigger := told(Trigger, 30, 202)
	trigger.DeliveryID = "t"
	unknown := told(Trigger, 30, 0)
	redrive := told(Redrive, 50, 200)
	redrive.Redriven = 1
	cancel := func(from float64, n int) Op {
		o := told(Cancel, from, 200)
		o.Cancelled = n
		return o
	}
	fired := attemptAt(30.01, 1, true)
	fired.ID = "t"
	failed := fired
	failed.Took, failed.Told = false, false
	again := attemptAt(20, 1, true)
	again.Begun, again.Ended, again.Local = at(51), at(51.1), at(51)
	preview := told(Preview, 1, 200)
	preview.Schedule.Instants = []time.Time{at(30.01)}
	for name, one := range map[string]struct {
		ops    []Op
		sent   []Delivery
		dead   []Dead
		stall  bool // when the instant was sent
		broken []string
	}{
		"it was triggered":                {ops: []Op{far, trigger}, sent: []Delivery{fired}},
		"by another trigger":              {ops: []Op{far, trigger}, sent: []Delivery{fired, attemptAt(35, 1, true)}, broken: []string{"nothing fires unasked"}},
		"by one without an answer":        {ops: []Op{far, unknown}, sent: []Delivery{fired}},
		"by one long before":              {ops: []Op{far, unknown}, sent: []Delivery{attemptAt(99, 1, true)}, broken: []string{"nothing fires unasked"}},
		"by none":                         {ops: []Op{far}, sent: []Delivery{fired}, broken: []string{"nothing fires unasked"}},
		"only a preview has it":           {ops: []Op{far, preview}, sent: []Delivery{fired}, broken: []string{"nothing fires unasked"}},
		"the trigger is lost":             {ops: []Op{far, trigger}, broken: []string{"nothing lost"}},
		"it failed":                       {ops: []Op{far, trigger}, sent: []Delivery{failed}, broken: []string{"nothing lost"}},
		"it is a dead letter":             {ops: []Op{far, trigger}, sent: []Delivery{failed}, dead: []Dead{{DeliveryID: "t", Instant: failed.Instant}}},
		"it was cancelled":                {ops: []Op{far, trigger, cancel(30.05, 1)}},
		"the cancellation found nothing":  {ops: []Op{far, trigger, cancel(30.05, 0)}, broken: []string{"nothing lost"}},
		"it was cancelled before":         {ops: []Op{far, cancel(29, 1), trigger}, broken: []string{"nothing lost"}},
		"it was redriven":                 {ops: []Op{put, redrive}, sent: []Delivery{attemptAt(20, 1, false), again}},
		"its answer came too late":        {ops: []Op{put, redrive}, sent: []Delivery{attemptAt(20, 1, true), again}, stall: true},
		"the redriven one is lost":        {ops: []Op{put, redrive}, sent: []Delivery{attemptAt(20, 1, false)}, broken: []string{"nothing lost"}},
		"the redriven one failed again":   {ops: []Op{put, redrive}, sent: []Delivery{attemptAt(20, 1, false)}, dead: []Dead{{DeliveryID: at(20).String(), Instant: at(20)}}},
		"the redriven one was cancelled":  {ops: []Op{put, redrive, cancel(50.2, 1)}, sent: []Delivery{attemptAt(20, 1, false)}},
		"it fires after its cancellation": {ops: []Op{put, cancel(19, 0)}, sent: []Delivery{attemptAt(20, 1, true), attemptAt(20, 2, true)}, broken: []string{"an end is an end"}},
		"a redrive made what had failed":  {ops: []Op{put, cancel(45, 0), redrive}, sent: []Delivery{attemptAt(20, 1, false), again}},
		"it had not failed":               {ops: []Op{put, cancel(45, 0), redrive}, sent: []Delivery{again}, broken: []string{"an end is an end", "nothing lost"}},
		"nothing was redriven":            {ops: []Op{put, cancel(45, 0), told(Redrive, 50, 200)}, sent: []Delivery{attemptAt(20, 1, false), again}, broken: []string{"an end is an end"}},
		"it may have been redriven":       {ops: []Op{put, cancel(45, 0), told(Redrive, 50, 0)}, sent: []Delivery{attemptAt(20, 1, false), again}},
	} {
		h := history(one.ops, one.sent...)
		h.Final.Dead, h.Due = map[string][]Dead{"k": one.dead}, at(300)
		if one.stall {
			h.Troubles = []Trouble{{What: "stall", Replica: 1, From: at(20), To: at(35)}}
		}
		got := slices.DeleteFunc(broken(h), func(rule string) bool {
			return !slices.Contains([]string{"nothing fires unasked", "nothing lost", "an end is an end"}, rule)
		})
		if !slices.Equal(got, one.broken) {
			t.Errorf("%s: broken are %q, want %q: %v", name, got, one.broken, Check(h))
		}
	}
}

// TestAmended: once a patch of the callback is answered, only occurrences that were held at that time fire with the
// former one, once, and within a callback's time, unless the replica stood still.
func TestAmended(t *testing.T) {
	put := told(Put, 1, 201)
	put.N, put.Attempts, put.Schedule.Instants = 1, 3, []time.Time{at(15), at(30)}
	amend := func(status int) []Op {
		o := told(Amend, 15.5, status)
		o.N = 2
		return []Op{put, o}
	}
	sent := func(instant, from float64, number, n int) Delivery {
		d := attemptAt(instant, number, false)
		d.Begun, d.Ended, d.Local, d.N = at(from), at(from+0.1), at(from), n
		return d
	}
	stall := []Trouble{{What: "stall", Replica: 1, From: at(15), To: at(25)}}
	for name, one := range map[string]struct {
		ops      []Op
		sent     []Delivery
		troubles []Trouble
		broken   bool
	}{
		"it was held":                    {ops: amend(200), sent: []Delivery{sent(15, 16, 1, 1)}},
		"it is retried with the new one": {ops: amend(200), sent: []Delivery{sent(15, 16, 1, 1), sent(15, 17, 2, 2)}},
		"it is retried with the former":  {ops: amend(200), sent: []Delivery{sent(15, 16, 1, 1), sent(15, 17, 2, 1)}, broken: true},
		"it was not held any more":       {ops: amend(200), sent: []Delivery{sent(15, 25, 1, 1)}, broken: true},
		"but its replica stood still":    {ops: amend(200), sent: []Delivery{sent(15, 25, 1, 1)}, troubles: stall},
		"it was still ahead":             {ops: amend(200), sent: []Delivery{sent(30, 24, 1, 1)}, broken: true},
		"the patch was refused":          {ops: amend(412), sent: []Delivery{sent(30, 30, 1, 1)}},
		"its answer was lost":            {ops: amend(0), sent: []Delivery{sent(30, 30, 1, 1)}},
	} {
		h := history(one.ops, one.sent...)
		h.Troubles = one.troubles
		if got := slices.Contains(broken(h), "an end is an end"); got != one.broken {
			t.Errorf("%s: it is broken: %v, by %v", name, got, Check(h))
		}
	}
}

// TestTwoDeadLetters: two jobs of a key that had the same instant may leave a dead letter each. Redriven, both fire at
// once with one delivery id, and count their attempts apart. One dead letter fires once. An occurrence that fails under
// one job and then under the next looks the same where a redrive has no answer: it counts its attempts on.
func TestTwoDeadLetters(t *testing.T) {
	put := func(n int, from, to float64) Op {
		return Op{
			Kind: Put, Key: "k", N: n, Invoked: at(from), Returned: at(to), Status: 201, Attempts: 2,
			Schedule: Schedule{Instants: []time.Time{at(20)}},
		}
	}
	cancel, redrive := told(Cancel, 22, 200), told(Redrive, 50, 200)
	redrive.Redriven = 2
	sent := func(n, number int, from float64, took bool) Delivery {
		d := attemptAt(20, number, took)
		d.N, d.Begun, d.Ended, d.Local = n, at(from), at(from+0.5), at(from)
		return d
	}
	buried := []Recorded{
		{Key: "k", DeliveryID: at(20).String(), Attempt: 2, Outcome: "buried", At: at(21)},
		{Key: "k", DeliveryID: at(20).String(), Attempt: 1, Outcome: "buried", At: at(31)},
	}
	failed := []Delivery{sent(1, 1, 20, false), sent(1, 2, 21, false), sent(2, 1, 31, false)}
	under := []Op{put(1, 1, 1.1), put(2, 20.6, 20.7), told(Redrive, 20.8, 0)}
	for name, one := range map[string]struct {
		ops    []Op       // nil for two jobs of which each leaves a dead letter
		sent   []Delivery // without ops, those after the failures
		broken []string
	}{
		"both at once":                       {sent: []Delivery{sent(1, 1, 51, true), sent(2, 1, 51.1, true)}},
		"one is tried again":                 {sent: []Delivery{sent(1, 1, 51, true), sent(2, 1, 51.1, false), sent(2, 2, 55, true)}},
		"one fires twice":                    {sent: []Delivery{sent(2, 1, 51, true), sent(2, 1, 51.1, true)}, broken: []string{"attempts are counted", "one claimer"}},
		"one begins with its second attempt": {sent: []Delivery{sent(2, 2, 51, true)}, broken: []string{"attempts are counted"}},
		"it goes on under the next job":      {ops: under, sent: []Delivery{sent(1, 1, 20, false), sent(2, 2, 21, false)}},
		"and leaves one out":                 {ops: under, sent: []Delivery{sent(1, 1, 20, false), sent(2, 3, 21, false)}, broken: []string{"attempts are counted"}},
	} {
		if one.ops == nil {
			one.ops = []Op{put(1, 1, 1.1), put(2, 15, 30), cancel, redrive}
			one.sent = slices.Concat(failed, one.sent)
		}
		h := history(one.ops, one.sent...)
		h.Final.Recorded = buried
		got := broken(h)
		got = slices.DeleteFunc(got, func(rule string) bool { return rule != "attempts are counted" && rule != "one claimer" })
		if !slices.Equal(got, one.broken) {
			t.Errorf("%s: broken are %q, want %q", name, got, one.broken)
		}
	}
}
