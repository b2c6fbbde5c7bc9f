package checker

import (
	"slices"
	"testing"
	"time"
)

// spreadPut is a put with a spread of 4 s and the instants 100 s and 120 s.
func spreadPut() Op {
	put := told(Put, 10, 201)
	put.N, put.Attempts = 1, 3
	put.Schedule = Schedule{Instants: []time.Time{at(100), at(120)}, Spread: 4 * time.Second}
	return put
}

// with returns an operation that is changed.
func with(o Op, change func(*Op)) Op {
	o.Schedule.Instants = slices.Clone(o.Schedule.Instants)
	change(&o)
	return o
}

// telling returns an answer that tells due times: pairs of an instant and its due time.
func telling(o Op, pairs ...float64) Op {
	for i := 0; i < len(pairs); i += 2 {
		o.Moved = append(o.Moved, Moved{at(pairs[i]), at(pairs[i+1])})
	}
	return o
}

// previewed returns a preview of a put's job.
func previewed(put Op, pairs ...float64) Op {
	return telling(with(put, func(o *Op) { o.Kind, o.Invoked, o.Returned, o.Status = Preview, at(11), at(11.1), 200 }),
		pairs...)
}

// shownAt returns a reading of a put's job.
func shownAt(put Op, from float64, pairs ...float64) Op {
	o := told(Get, from, 200)
	o.Shown = Job{N: put.N, State: "active"}
	return telling(o, pairs...)
}

// TestMoved: answers move an instant by less than the spread, never back, and always by the same time.
func TestMoved(t *testing.T) {
	const rule = "a moved time is one"
	put := spreadPut()
	plain := with(put, func(o *Op) { o.Schedule.Spread = 0 })
	steps := with(put, func(o *Op) { o.Schedule.Steps = true })
	shorter := with(put, func(o *Op) { o.N, o.Schedule.Spread = 2, 3*time.Second })
	before := func(o Op) Op { return with(o, func(o *Op) { o.Invoked, o.Returned = at(5), at(5.1) }) }
	resume := func(from float64, status int) Op { return told(Resume, from, status) }
	for name, one := range map[string]struct {
		ops    []Op
		early  time.Duration
		broken bool
	}{
		"by less than the spread":        {ops: []Op{put, previewed(put, 100, 103.999)}},
		"not at all":                     {ops: []Op{put, previewed(put, 100, 100)}},
		"by the spread":                  {ops: []Op{put, previewed(put, 100, 104)}, broken: true},
		"back":                           {ops: []Op{put, previewed(put, 100, 99.999)}, broken: true},
		"in all answers alike":           {ops: []Op{put, previewed(put, 100, 101), shownAt(put, 12, 100, 101)}},
		"otherwise in another answer":    {ops: []Op{put, previewed(put, 100, 101), shownAt(put, 12, 100, 102)}, broken: true},
		"another instant, otherwise":     {ops: []Op{put, previewed(put, 100, 101, 120, 122)}},
		"another spread, otherwise":      {ops: []Op{put, previewed(put, 100, 101), previewed(shorter, 100, 102)}},
		"all steps alike":                {ops: []Op{steps, previewed(steps, 100, 101, 120, 121)}},
		"a step, otherwise":              {ops: []Op{steps, previewed(steps, 100, 101, 120, 122)}, broken: true},
		"steps and a list, otherwise":    {ops: []Op{put, previewed(put, 100, 101), previewed(steps, 100, 102)}},
		"without a spread":               {ops: []Op{plain, shownAt(plain, 12, 100, 100)}},
		"moved without a spread":         {ops: []Op{plain, shownAt(plain, 12, 100, 100.001)}, broken: true},
		"it may have been claimed":       {ops: []Op{plain, shownAt(plain, 94, 100, 107)}},
		"it can't have been claimed":     {ops: []Op{plain, shownAt(plain, 93.8, 100, 107)}, broken: true},
		"it may, in the early window":    {ops: []Op{plain, shownAt(plain, 91.9, 100, 107)}, early: 2 * time.Second},
		"it can't, before that":          {ops: []Op{plain, shownAt(plain, 91.8, 100, 107)}, early: 2 * time.Second, broken: true},
		"it may be of a former job":      {ops: []Op{before(plain), shorter, shownAt(shorter, 12, 100, 103.5)}},
		"the former job was refused":     {ops: []Op{with(before(plain), func(o *Op) { o.Status = 422 }), shorter, shownAt(shorter, 12, 100, 103.5)}, broken: true},
		"that job had not the instant":   {ops: []Op{with(before(plain), func(o *Op) { o.Schedule.Instants = nil }), shorter, shownAt(shorter, 12, 100, 103.5)}, broken: true},
		"that job came later":            {ops: []Op{shorter, shownAt(shorter, 12, 100, 103.5), with(plain, func(o *Op) { o.Invoked, o.Returned = at(20), at(20.1) })}, broken: true},
		"that job had the same spread":   {ops: []Op{before(shorter), shorter, shownAt(shorter, 12, 100, 103.5)}, broken: true},
		"no job has the instant":         {ops: []Op{shorter, shownAt(shorter, 12, 101, 107)}},
		"a resume made it due":           {ops: []Op{put, previewed(put, 100, 101), resume(12, 200), shownAt(put, 13, 100, 100)}},
		"the resume came later":          {ops: []Op{put, previewed(put, 100, 101), shownAt(put, 13, 100, 100), resume(14, 200)}, broken: true},
		"the resume was refused":         {ops: []Op{put, previewed(put, 100, 101), resume(12, 404), shownAt(put, 13, 100, 100)}, broken: true},
		"a preview, whenever it came in": {ops: []Op{put, previewed(put, 10.5, 15)}, broken: true},
	} {
		h := history(one.ops)
		h.Early = one.early
		if got := slices.Contains(broken(h), rule); got != one.broken {
			t.Errorf("%s: it is broken: %v, by %v", name, got, Check(h))
		}
	}
}

// TestNeverEarly: nothing fires before its instant, or the time to which that is moved, as far as an answer tells it,
// but for the early window, by the clock of the replica.
func TestNeverEarly(t *testing.T) {
	const rule = "never early"
	put := spreadPut()
	plain := with(put, func(o *Op) { o.Schedule.Spread = 0 })
	second := with(plain, func(o *Op) { o.N, o.Invoked, o.Returned = 2, at(12), at(12.1) })
	amended := told(Amend, 12, 200)
	amended.N = 2
	trigger := told(Trigger, 99.9, 202)
	trigger.DeliveryID = at(100).String()
	fired := func(n int, local float64) Delivery {
		d := attemptAt(100, 1, true)
		d.N, d.Begun, d.Ended, d.Local = n, at(local), at(local+0.1), at(local)
		return d
	}
	elsewhere := func(local, begun float64) Delivery {
		d := fired(1, local)
		d.Begun, d.Ended = at(begun), at(begun+0.1)
		return d
	}
	known := previewed(put, 100, 103)
	moved := []Op{put, known}
	stays := []Op{put, second, shownAt(second, 13, 100, 103)}
	and := func(ops []Op, more ...Op) []Op { return slices.Concat(ops, more) }
	for name, one := range map[string]struct {
		ops    []Op
		sent   Delivery
		early  time.Duration
		step   bool
		broken bool
	}{
		"at its instant":                     {ops: []Op{plain}, sent: fired(1, 100)},
		"before it":                          {ops: []Op{plain}, sent: fired(1, 99.999), broken: true},
		"before it, after the clock was set": {ops: []Op{plain}, sent: fired(1, 99), step: true},
		"in the early window":                {ops: []Op{plain}, sent: fired(1, 98), early: 2 * time.Second},
		"before that":                        {ops: []Op{plain}, sent: fired(1, 97.999), early: 2 * time.Second, broken: true},
		"where it is moved to":               {ops: moved, sent: fired(1, 103)},
		"before that time":                   {ops: moved, sent: fired(1, 102.999), broken: true},
		"before it by the replica's clock":   {ops: moved, sent: elsewhere(102.9, 104), broken: true},
		"before it by the true time":         {ops: moved, sent: elsewhere(103, 102)},
		"in the window before it":            {ops: moved, sent: fired(1, 101), early: 2 * time.Second},
		"before the window":                  {ops: moved, sent: fired(1, 100.999), early: 2 * time.Second, broken: true},
		"nobody knows where":                 {ops: []Op{put}, sent: fired(1, 100)},
		"though nobody knows where":          {ops: []Op{put}, sent: fired(1, 99.999), broken: true},
		"nothing moves what is triggered":    {ops: and(moved, trigger), sent: fired(1, 100)},
		"by the payload's job":               {ops: and(moved, second), sent: fired(2, 100)},
		"by the job of the payload":          {ops: and(moved, second), sent: fired(1, 100), broken: true},
		"amended":                            {ops: and(moved, amended), sent: fired(2, 102.9), broken: true},
		"amended, of one of two jobs":        {ops: and(moved, second, with(amended, func(o *Op) { o.N = 3 })), sent: fired(3, 100)},
		"it stays, as it was read":           {ops: stays, sent: fired(2, 103)},
		"sooner than it was read":            {ops: stays, sent: fired(2, 102.9), broken: true},
		"sooner, in the early window":        {ops: stays, sent: fired(2, 102.9), early: time.Second},
		"sooner, and it was resumed since":   {ops: and(stays, told(Resume, 14, 200)), sent: fired(2, 101)},
		"sooner, and it was previewed since": {ops: and(stays, telling(with(second, func(o *Op) { o.Kind, o.Invoked, o.Returned = Preview, at(14), at(14.1) }))), sent: fired(2, 101), broken: true},
		"sooner, and it was put since":       {ops: and(stays, with(second, func(o *Op) { o.N, o.Invoked, o.Returned = 3, at(14), at(14.1) })), sent: fired(2, 101)},
		"sooner, and it was resumed before":  {ops: and(stays, told(Resume, 12.5, 200)), sent: fired(2, 101), broken: true},
		"sooner, after the clock was set":    {ops: stays, sent: fired(2, 101), step: true},
		"sooner than it was triggered":       {ops: and(stays, trigger), sent: fired(2, 101)},
		"it may have been claimed when read": {ops: []Op{put, second, shownAt(second, 94, 100, 103)}, sent: fired(2, 101)},
		"it was read later":                  {ops: []Op{put, second, shownAt(second, 13, 100, 103)}, sent: elsewhere(101, 13)},
		"another instant was read":           {ops: []Op{put, second, shownAt(second, 13, 120, 123)}, sent: fired(2, 101)},
	} {
		h := history(one.ops, one.sent)
		h.Early = one.early
		if one.step {
			h.Troubles = []Trouble{{What: "step", Replica: 1, From: at(80), To: at(98)}}
		}
		if got := slices.Contains(broken(h), rule); got != one.broken {
			t.Errorf("%s: it is broken: %v, by %v", name, got, Check(h))
		}
	}
}

// TestLateAfterMoved: an instant is late only after the time to which it is moved, or may be moved by any job that it
// had.
func TestLateAfterMoved(t *testing.T) {
	put := spreadPut()
	known, unknown := []Op{put, previewed(put, 100, 101)}, []Op{put}
	plain := with(put, func(o *Op) { o.N, o.Invoked, o.Returned, o.Schedule.Spread = 2, at(12), at(12.1), 0 })
	crontab := with(put, func(o *Op) {
		o.CatchUp, o.Schedule = "none", Schedule{Every: 20 * time.Second, End: at(130), Spread: 4 * time.Second}
	})
	latest := with(crontab, func(o *Op) { o.CatchUp = "latest" })
	often := with(latest, func(o *Op) { o.Schedule.Every = 10 * time.Second })
	fired := func(n int, begun float64) Delivery {
		d := attemptAt(100, 1, true)
		d.N, d.Begun, d.Ended, d.Local = n, at(begun), at(begun+0.1), at(begun)
		return d
	}
	const late, prompt = "no lateness without a cause", "few deliveries are prompt"
	const tooLate, newest = "too late is dropped", "only the latest is caught up"
	for name, one := range map[string]struct {
		rule   string
		ops    []Op
		sent   Delivery
		early  time.Duration
		broken bool
	}{
		"in time":                               {rule: late, ops: known, sent: fired(1, 106)},
		"late":                                  {rule: late, ops: known, sent: fired(1, 106.1), broken: true},
		"in time wherever":                      {rule: late, ops: unknown, sent: fired(1, 108.9)},
		"late wherever":                         {rule: late, ops: unknown, sent: fired(1, 109.1), broken: true},
		"in time by a former job":               {rule: late, ops: []Op{put, plain}, sent: fired(2, 108.9)},
		"late by a former job":                  {rule: late, ops: []Op{put, plain}, sent: fired(2, 109.1), broken: true},
		"late, before another job had it":       {rule: late, ops: []Op{plain, with(put, func(o *Op) { o.N, o.Invoked, o.Returned = 3, at(115), at(115.1) })}, sent: fired(2, 105.1), broken: true},
		"late, and it was previewed":            {rule: late, ops: []Op{put, with(known[1], func(o *Op) { o.Invoked, o.Returned = at(95), at(95.1) })}, sent: fired(1, 106.1), broken: true},
		"not prompt, and it was previewed":      {rule: prompt, ops: []Op{put, with(known[1], func(o *Op) { o.Invoked, o.Returned = at(95), at(95.1) })}, sent: fired(1, 101.6), broken: true},
		"a preview needs no job":                {rule: "one order of changes", ops: []Op{with(known[1], func(o *Op) { o.Invoked, o.Returned = at(5), at(5.1) }), told(Get, 6, 404), put}, sent: fired(1, 101)},
		"prompt":                                {rule: prompt, ops: known, sent: fired(1, 101.5)},
		"not prompt":                            {rule: prompt, ops: known, sent: fired(1, 101.6), broken: true},
		"prompt wherever":                       {rule: prompt, ops: unknown, sent: fired(1, 104.4)},
		"not prompt wherever":                   {rule: prompt, ops: unknown, sent: fired(1, 104.6), broken: true},
		"prompt in the early window":            {rule: prompt, ops: known, sent: fired(1, 98.5), early: 3 * time.Second},
		"it does not use the early window":      {rule: prompt, ops: known, sent: fired(1, 98.6), early: 3 * time.Second, broken: true},
		"claimed in time":                       {rule: tooLate, ops: []Op{crontab}, sent: fired(1, 132.9)},
		"claimed too late":                      {rule: tooLate, ops: []Op{crontab}, sent: fired(1, 133.1), broken: true},
		"claimed too late, as is known":         {rule: tooLate, ops: []Op{crontab, previewed(crontab, 100, 101)}, sent: fired(1, 130.1), broken: true},
		"the newer tick may still be moved":     {rule: newest, ops: []Op{latest}, sent: fired(1, 132.9)},
		"the newer tick had passed":             {rule: newest, ops: []Op{latest}, sent: fired(1, 133.1), broken: true},
		"it was moved, and late by a lease":     {rule: newest, ops: []Op{often, previewed(often, 100, 103)}, sent: fired(1, 131.9)},
		"it was moved, and late by more":        {rule: newest, ops: []Op{often, previewed(often, 100, 103)}, sent: fired(1, 132.1), broken: true},
		"the next tick is moved beyond the end": {rule: newest, ops: []Op{with(latest, func(o *Op) { o.Schedule.Spread = 15 * time.Second }), previewed(with(latest, func(o *Op) { o.Schedule.Spread = 15 * time.Second }), 100, 100)}, sent: fired(1, 143.9)},
		"its end had passed":                    {rule: newest, ops: []Op{with(latest, func(o *Op) { o.Schedule.Spread = 15 * time.Second }), previewed(with(latest, func(o *Op) { o.Schedule.Spread = 15 * time.Second }), 100, 100)}, sent: fired(1, 144.1), broken: true},
	} {
		h := history(one.ops, one.sent)
		h.Early, h.Prompt = one.early, 500*time.Millisecond
		if got := slices.Contains(broken(h), one.rule); got != one.broken {
			t.Errorf("%s: it is broken: %v, by %v", name, got, Check(h))
		}
	}
}

// TestDroppedAfterMoved: an instant is dropped only if something kept replicas from it after the time to which it is
// moved; and of ticks, a newer one has passed only when its spread is over.
func TestDroppedAfterMoved(t *testing.T) {
	const rule = "nothing is dropped without a cause"
	list := with(spreadPut(), func(o *Op) { o.Deadline = 8 * time.Second; o.Schedule.Instants = o.Schedule.Instants[:1] })
	latest := with(list, func(o *Op) {
		o.Deadline, o.CatchUp = 0, "latest"
		o.Schedule = Schedule{Every: 50 * time.Second, End: at(155), Spread: 4 * time.Second}
	})
	for name, one := range map[string]struct {
		ops      []Op
		troubled []float64
		broken   bool
	}{
		"moved by so much that the rest is short": {ops: []Op{list}},
		"moved by little":                         {ops: []Op{list, previewed(list, 100, 101)}, broken: true},
		"moved by little, in a trouble":           {ops: []Op{list, previewed(list, 100, 101)}, troubled: []float64{80, 108.5}},
		"nothing kept the newer tick":             {ops: []Op{latest}, troubled: []float64{50, 88}, broken: true},
		"until the newer tick, but not its end":   {ops: []Op{latest}, troubled: []float64{50, 88.9}, broken: true},
		"until the end of the newer tick":         {ops: []Op{latest}, troubled: []float64{50, 89.1}},
	} {
		var taken []Delivery
		if one.ops[0].CatchUp != "" {
			taken = append(taken, attemptAt(50, 1, true), attemptAt(150, 1, true))
		}
		h := history(one.ops, taken...)
		h.Due, h.Troubles = at(500), nil
		if one.troubled != nil {
			h.Troubles = []Trouble{{What: "down", Replica: -1, From: at(one.troubled[0]), To: at(one.troubled[1])}}
		}
		if got := slices.Contains(broken(h), rule); got != one.broken {
			t.Errorf("%s: it is broken: %v, by %v", name, got, Check(h))
		}
	}
}

// TestReach: what is ahead by no more than a clock may be wrong, and the early window, may have fired.
func TestReach(t *testing.T) {
	list := func(n int, from float64, instants ...float64) Op {
		o := told(Put, from, 200)
		o.N, o.Attempts = n, 1
		for _, s := range instants {
			o.Schedule.Instants = append(o.Schedule.Instants, at(s))
		}
		return o
	}
	first, next := list(1, 10, 108), list(2, 101, 130)
	next.InFlight = 1
	spread := with(list(1, 10, 104), func(o *Op) { o.Schedule.Spread = 4 * time.Second })
	crontab := with(list(2, 103.5), func(o *Op) { o.Schedule = Schedule{Every: 10 * time.Second, End: at(125)} })
	fired := func(instant, begun float64, number int) Delivery {
		d := attemptAt(instant, 1, true)
		d.Attempt, d.Begun, d.Ended, d.Local = number, at(begun), at(begun+0.1), at(begun)
		return d
	}
	finished := func(n, delivered int, last float64) *Job {
		return &Job{
			N: n, State: "finished", Counted: true, Delivered: delivered, Last: Outcome{Outcome: "delivered", Instant: at(last)},
		}
	}
	patched := with(spread, func(o *Op) { o.Kind, o.N, o.Invoked, o.Returned, o.Status = Replace, 2, at(101), at(101.1), 200 })
	cut := []Trouble{{What: "cut", Replica: 1, From: at(90), To: at(93)}}
	cancelled := told(Cancel, 100, 200)
	again := list(1, 10, 108)
	again.Attempts = 3
	const end, attempts = "an end is an end", "attempts are counted"
	for name, one := range map[string]struct {
		rule     string
		ops      []Op
		sent     []Delivery
		final    *Job
		troubles []Trouble
		early    time.Duration
		broken   bool
	}{
		"it was ahead at the end":                {rule: end, ops: []Op{first, next}, sent: []Delivery{fired(108, 108, 1)}, broken: true},
		"it may have been held early":            {rule: end, ops: []Op{first, next}, sent: []Delivery{fired(108, 108, 1)}, early: 2 * time.Second},
		"its moved time was ahead":               {rule: end, ops: []Op{spread, previewed(spread, 104, 107.5), next}, sent: []Delivery{fired(104, 108, 1)}, broken: true},
		"its moved time was near":                {rule: end, ops: []Op{spread, previewed(spread, 104, 106.5), next}, sent: []Delivery{fired(104, 108, 1)}},
		"nobody knows its moved time":            {rule: end, ops: []Op{spread, next}, sent: []Delivery{fired(104, 108, 1)}},
		"a patch of the same keeps what is due":  {rule: end, ops: []Op{spread, patched}, sent: []Delivery{fired(104, 105, 1)}},
		"one with another spread replaces it":    {rule: end, ops: []Op{spread, with(patched, func(o *Op) { o.Schedule.Spread = 0 })}, sent: []Delivery{fired(104, 105, 1)}, broken: true},
		"a cancellation misses what is ahead":    {rule: "one order of changes", ops: []Op{first, cancelled}, broken: true},
		"it may have fired early":                {rule: "one order of changes", ops: []Op{first, cancelled}, early: 2 * time.Second},
		"the counts lack what was ahead":         {rule: "counts add up", ops: []Op{first, list(2, 101, 108, 130)}, final: finished(2, 1, 130), broken: true},
		"it may count for the former job":        {rule: "counts add up", ops: []Op{first, list(2, 101, 108, 130)}, final: finished(2, 1, 130), early: 2 * time.Second},
		"the counts lack a tick that was ahead":  {rule: "counts add up", ops: []Op{first, crontab}, sent: []Delivery{fired(120, 120, 1)}, final: finished(2, 1, 120), broken: true},
		"the tick may count for the former job":  {rule: "counts add up", ops: []Op{first, crontab}, sent: []Delivery{fired(120, 120, 1)}, final: finished(2, 1, 120), early: 2 * time.Second},
		"the last outcome is another one":        {rule: "the last outcome is told", ops: []Op{list(1, 101, 108)}, sent: []Delivery{fired(108, 108, 1)}, final: finished(1, 1, 107), broken: true},
		"the last instant may have fired before": {rule: "the last outcome is told", ops: []Op{list(1, 101, 108)}, sent: []Delivery{fired(108, 108, 1)}, final: finished(1, 1, 107), early: 2 * time.Second},
		"an attempt before it was due":           {rule: attempts, ops: []Op{again}, sent: []Delivery{fired(100, 100, 2)}, troubles: cut, broken: true},
		"an attempt in the early window":         {rule: attempts, ops: []Op{again}, sent: []Delivery{fired(100, 100, 2)}, troubles: cut, early: 2 * time.Second},
		"one too many before it was due":         {rule: attempts, ops: []Op{first}, sent: []Delivery{fired(100, 99, 1), fired(100, 100, 2)}, troubles: cut, broken: true},
		"one too many in the early window":       {rule: attempts, ops: []Op{first}, sent: []Delivery{fired(100, 99, 1), fired(100, 100, 2)}, troubles: cut, early: 2 * time.Second},
	} {
		h := history(one.ops, one.sent...)
		h.Early, h.Troubles = one.early, one.troubles
		if one.final != nil {
			h.Final.Jobs["k"] = *one.final
		}
		if got := slices.Contains(broken(h), one.rule); got != one.broken {
			t.Errorf("%s: it is broken: %v, by %v", name, got, Check(h))
		}
	}
}

// TestUncountedAfterMoved: a tick may be dropped without being counted if a fault came when that was written: a lease
// after the time to which it may be moved.
func TestUncountedAfterMoved(t *testing.T) {
	put := with(spreadPut(), func(o *Op) {
		o.CatchUp, o.Schedule = "none", Schedule{Every: 100 * time.Second, End: at(110), Spread: 4 * time.Second}
	})
	for name, one := range map[string]struct {
		ops      []Op
		from, to float64 // of a trouble
		broken   bool
	}{
		"before it can be dropped":       {ops: []Op{put}, from: 90, to: 113.9, broken: true},
		"when it may be dropped":         {ops: []Op{put}, from: 90, to: 114.1},
		"when it may be dropped, later":  {ops: []Op{put}, from: 143.9, to: 145},
		"after it was dropped":           {ops: []Op{put}, from: 144.1, to: 145, broken: true},
		"after it was dropped, as known": {ops: []Op{put, previewed(put, 100, 101)}, from: 141.1, to: 145, broken: true},
	} {
		h := history(one.ops)
		h.Due, h.CountsApart, h.Troubles = at(500), true, []Trouble{{What: "down", Replica: -1, From: at(one.from), To: at(one.to)}}
		if got := slices.Contains(broken(h), "nothing lost"); got != one.broken {
			t.Errorf("%s: it is broken: %v, by %v", name, got, Check(h))
		}
	}
}
