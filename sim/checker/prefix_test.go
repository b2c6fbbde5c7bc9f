package checker

import (
	"slices"
	"testing"
	"time"
)

// TestPrefix: a cancellation by prefix ends each job that was there, unless somebody made or changed it meanwhile, and
// its counts are those of all keys together.
func TestPrefix(t *testing.T) {
	put := func(key string, n int, from float64, instants ...float64) Op {
		o := Op{Kind: Put, Key: key, N: n, Invoked: at(from), Returned: at(from + 0.1), Status: 201, Attempts: 2}
		for _, s := range instants {
			o.Schedule.Instants = append(o.Schedule.Instants, at(s))
		}
		return o
	}
	change := func(kind Kind, from float64) Op {
		o := told(kind, from, 200)
		o.Key, o.N = "ab", 9
		return o
	}
	// all returns the parts of a cancellation of a, ab and ac, from 30 s to 31 s.
	all := func(jobs, cancelled, inFlight int) (parts []Op) {
		for i, key := range []string{"a", "ab", "ac"} {
			parts = append(parts, Op{
				Kind: Cancel, Key: key, Prefix: "a", Part: i, Several: true, Invoked: at(30), Returned: at(31), Status: 200,
				Found: jobs, Cancelled: cancelled, InFlight: inFlight,
			})
		}
		return parts
	}
	answered := func(status int, by string, parts []Op) []Op {
		for i := range parts {
			parts[i].Status, parts[i].Caller = status, by
		}
		return parts
	}
	sent := func(key string, n int, instant, from, ended float64) Delivery {
		return Delivery{
			ID: key + at(instant).String(), Key: key, N: n, Instant: at(instant), Attempt: 1,
			Begun: at(from), Ended: at(ended), Local: at(from), Took: true, Told: true,
		}
	}
	two := []Op{put("a", 1, 1, 100, 200), put("ab", 2, 2, 100)}
	crontab := put("a", 1, 1)
	crontab.Schedule = Schedule{Every: time.Minute, End: at(300)}
	lost := put("ac", 3, 3, 100)
	lost.Status = 0
	due := []Op{put("a", 1, 1, 29, 200), put("ab", 2, 2, 29)}
	flying := []Delivery{sent("a", 1, 29, 29, 32), sent("ab", 2, 29, 29, 32)}
	after := []Delivery{sent("a", 1, 29, 31.5, 32), sent("ab", 2, 29, 31.5, 32)}
	refused := told(Cancel, 29, 409)
	refused.Key = "ab"
	earlier := told(Cancel, 29, 200)
	earlier.Key, earlier.Cancelled = "ab", 1
	inFlight := func(from float64) Op {
		o := told(Cancel, from, 200)
		o.Key, o.InFlight = "ab", 1
		return o
	}
	ofAC := func(kind Kind, status int) Op {
		o := told(kind, 20, status)
		o.Key = "ac"
		return o
	}
	first, again, denied := earlier, earlier, lost
	first.Invoked, first.Returned = at(0.5), at(0.6)
	again.Invoked, again.Returned, denied.Status = at(40), at(40.1), 409
	vain := change(Pause, 30.5)
	vain.Status = 409
	cut := []Trouble{{What: "cut", Replica: -1, From: at(20), To: at(29)}}
	set := []Trouble{{What: "step", Replica: -1, From: at(20), To: at(29)}}
	const order, ends, counts = "one order of changes", "an end is an end", "counts of a cancellation"
	for name, one := range map[string]struct {
		ops      []Op
		sent     []Delivery
		jobs     []string // that are left; each of its last put
		troubles []Trouble
		own      bool // the store has the clock of the replicas
		broken   []string
	}{
		"all are ended":                         {ops: slices.Concat(two, all(2, 3, 0))},
		"one is left":                           {ops: slices.Concat(two, all(2, 3, 0)), jobs: []string{"ab"}, broken: []string{order}},
		"one fires later":                       {ops: slices.Concat(two, all(2, 3, 0)), sent: []Delivery{sent("ab", 2, 100, 100, 100.1)}, broken: []string{ends}},
		"one was made meanwhile":                {ops: slices.Concat(two[:1], []Op{put("ab", 2, 30.5, 100)}, all(1, 2, 0)), sent: []Delivery{sent("ab", 2, 100, 100, 100.1)}, jobs: []string{"ab"}},
		"or was cancelled then":                 {ops: slices.Concat(two[:1], []Op{put("ab", 2, 30.5, 100)}, all(2, 3, 0))},
		"one was replaced meanwhile":            {ops: slices.Concat(two, []Op{put("ab", 3, 30.5, 100)}, all(1, 2, 0)), jobs: []string{"ab"}},
		"or patched":                            {ops: slices.Concat(two, []Op{change(Amend, 30.5)}, all(1, 2, 0)), jobs: []string{"ab"}},
		"or paused":                             {ops: slices.Concat(two, []Op{change(Pause, 30.5)}, all(1, 2, 0)), jobs: []string{"ab"}},
		"or resumed":                            {ops: slices.Concat(two, []Op{change(Resume, 30.5)}, all(1, 2, 0)), sent: []Delivery{sent("ab", 2, 100, 100, 100.1)}, jobs: []string{"ab"}},
		"but not later":                         {ops: slices.Concat(two, []Op{change(Pause, 40)}, all(1, 2, 0)), jobs: []string{"ab"}, broken: []string{order, counts}},
		"or in vain":                            {ops: slices.Concat(two, []Op{vain}, all(1, 2, 0)), jobs: []string{"ab"}, broken: []string{order, counts}},
		"it was only read":                      {ops: slices.Concat(two, []Op{change(Trigger, 30.5)}, all(1, 2, 0)), jobs: []string{"ab"}, broken: []string{order, counts}},
		"it was replaced before":                {ops: slices.Concat(two, []Op{put("ab", 3, 29.5, 100)}, all(2, 3, 0)), jobs: []string{"ab"}, broken: []string{order}},
		"the store's clock was set":             {ops: slices.Concat(two[:1], []Op{put("ab", 2, 29.5, 100)}, all(1, 2, 0)), jobs: []string{"ab"}, troubles: set, own: true},
		"those of replicas were":                {ops: slices.Concat(two[:1], []Op{put("ab", 2, 29.5, 100)}, all(1, 2, 0)), jobs: []string{"ab"}, troubles: set, broken: []string{order, counts}},
		"the store's was not":                   {ops: slices.Concat(two[:1], []Op{put("ab", 2, 29.5, 100)}, all(1, 2, 0)), jobs: []string{"ab"}, own: true, broken: []string{order, counts}},
		"the store was away":                    {ops: slices.Concat(two[:1], []Op{put("ab", 2, 29.5, 100)}, all(1, 2, 0)), jobs: []string{"ab"}, troubles: cut, own: true, broken: []string{order, counts}},
		"nobody answers":                        {ops: slices.Concat(two, answered(0, "", all(0, 0, 0))), jobs: []string{"ab"}},
		"a job too few":                         {ops: slices.Concat(two, all(1, 3, 0)), broken: []string{counts}},
		"a job too many":                        {ops: slices.Concat(two, all(3, 3, 0)), broken: []string{counts}},
		"which may have been there":             {ops: slices.Concat(two, []Op{lost}, all(3, 4, 0))},
		"or not":                                {ops: slices.Concat(two, []Op{lost}, all(2, 3, 0))},
		"one was cancelled before":              {ops: slices.Concat(two, []Op{earlier}, all(1, 2, 0))},
		"or long before":                        {ops: slices.Concat([]Op{first}, two, all(1, 3, 0)), broken: []string{counts}},
		"or after it":                           {ops: slices.Concat(two, all(1, 3, 0), []Op{again}), broken: []string{counts}},
		"another job's put was refused":         {ops: slices.Concat(two, []Op{denied}, all(2, 3, 0))},
		"and it counts":                         {ops: slices.Concat(two, []Op{denied}, all(3, 3, 0)), broken: []string{counts}},
		"another job is put later":              {ops: slices.Concat(two, []Op{put("ac", 3, 40, 100)}, all(2, 3, 0)), jobs: []string{"ac"}},
		"and that counts":                       {ops: slices.Concat(two, []Op{put("ac", 3, 40, 100)}, all(3, 3, 0)), jobs: []string{"ac"}, broken: []string{counts}},
		"that was refused":                      {ops: slices.Concat(two, []Op{refused}, all(1, 3, 0)), broken: []string{counts}},
		"one occurrence too few":                {ops: slices.Concat(two, all(2, 2, 0)), broken: []string{counts}},
		"one was in flight":                     {ops: slices.Concat(two, all(2, 2, 1))},
		"one too many":                          {ops: slices.Concat(two, all(2, 4, 0)), broken: []string{counts}},
		"it may have been triggered":            {ops: slices.Concat(two, []Op{ofAC(Trigger, 202)}, all(2, 4, 0))},
		"or redriven":                           {ops: slices.Concat(two, []Op{ofAC(Redrive, 0)}, all(2, 4, 0))},
		"that was refused too":                  {ops: slices.Concat(two, []Op{ofAC(Trigger, 404)}, all(2, 4, 0)), broken: []string{counts}},
		"it was put later":                      {ops: slices.Concat(two, []Op{put("ac", 3, 40, 100)}, all(2, 4, 0)), jobs: []string{"ac"}, broken: []string{counts}},
		"the last instants, at the end":         {ops: slices.Concat(due, all(2, 1, 2)), sent: flying},
		"one in flight counts as cancelled":     {ops: slices.Concat(due, all(2, 2, 1)), sent: flying, broken: []string{counts}},
		"a crontab":                             {ops: slices.Concat([]Op{crontab, two[1]}, all(2, 9, 0))},
		"what fires was in flight":              {ops: slices.Concat(due, all(2, 1, 2)), sent: after},
		"one of two was not":                    {ops: slices.Concat(due, all(2, 1, 1)), sent: after, broken: []string{ends}},
		"the other was in flight for another":   {ops: slices.Concat(due, []Op{inFlight(30.5)}, all(2, 1, 1)), sent: after},
		"or for one before":                     {ops: slices.Concat(due, []Op{inFlight(29.5)}, all(1, 1, 1)), sent: after},
		"the other was spared":                  {ops: slices.Concat(due, []Op{change(Amend, 30.5)}, all(1, 1, 1)), sent: after, jobs: []string{"ab"}},
		"by a key for none of them":             {ops: slices.Concat(two, answered(200, "other", all(0, 0, 0))), jobs: []string{"a", "ab"}},
		"which cancels one":                     {ops: slices.Concat(two, answered(200, "other", all(1, 2, 0))), jobs: []string{"ab"}, broken: []string{order, counts}},
		"by a key for one of them":              {ops: slices.Concat(two, answered(200, "ab", all(1, 1, 0))), jobs: []string{"a"}},
		"which cancels all":                     {ops: slices.Concat(two, answered(200, "ab", all(2, 3, 0))), broken: []string{order, counts}},
		"it is told that there are none for it": {ops: slices.Concat(two, answered(404, "ab", all(0, 0, 0))), jobs: []string{"a", "ab"}, broken: []string{permissionsHold, order}},
		"a viewer cancels none":                 {ops: slices.Concat(two, answered(403, "viewer", all(0, 0, 0))), jobs: []string{"a", "ab"}},
	} {
		h := history(one.ops, one.sent...)
		h.Troubles, h.Permissions = one.troubles, map[string]Permissions{
			"other": {Role: "submitter", Tenants: []string{"*"}, Prefix: "b"}, "ab": {Role: "submitter", Tenants: []string{"*"}, Prefix: "ab"},
			"viewer": callersOf["viewer"],
		}
		if !one.own {
			h.ClockBound = 5 * time.Second
		}
		h.Final.Jobs = map[string]Job{}
		for _, o := range one.ops {
			if slices.Contains(one.jobs, o.Key) && (o.Kind == Put || o.Kind == Amend) {
				h.Final.Jobs[o.Key] = Job{N: o.N}
			}
		}
		got := slices.DeleteFunc(broken(h), func(rule string) bool {
			return !slices.Contains([]string{order, ends, counts, permissionsHold}, rule)
		})
		if slices.Sort(one.broken); !slices.Equal(got, one.broken) {
			t.Errorf("%s: broken are %q, want %q: %v", name, got, one.broken, Check(h))
		}
	}
}
