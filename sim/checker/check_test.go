package checker

import (
	"slices"
	"strings"
	"testing"
	"time"
)

var begun = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func at(seconds float64) time.Time { return begun.Add(time.Duration(seconds * float64(time.Second))) }

// history returns a history of ten minutes with some operations and deliveries. In the end, each key has the job of the
// last put.
func history(ops []Op, sent ...Delivery) *History {
	jobs := map[string]Job{}
	for i := range ops {
		o := &ops[i]
		o.ID = i
		switch o.Kind {
		case Put:
			jobs[o.Key] = Job{N: o.N}
		case Cancel:
			delete(jobs, o.Key)
		default:
		}
	}
	return &History{
		Final: Final{Jobs: jobs}, Ops: ops, Deliveries: sent, Begun: begun, Calm: at(500), Due: begun, Ended: at(600),
		Lease: 20 * time.Second, CallbackTimeout: 8 * time.Second, Within: 30 * time.Second, Link: 4 * time.Second, Slots: 16,
	}
}

// broken returns the rules that a history breaks, each once.
func broken(h *History) (rules []string) {
	for _, v := range Check(h) {
		if !slices.Contains(rules, v.Rule) {
			rules = append(rules, v.Rule)
		}
	}
	slices.Sort(rules)
	return rules
}

// TestDuplicates: an instant that was taken may be sent again if its job was over meanwhile, and the instant was still
// to come for the next job's replica.
func TestDuplicates(t *testing.T) {
	crontab := func(n int, from float64) Op {
		return Op{
			Kind: Put, Key: "k", N: n, Invoked: at(from), Returned: at(from + 0.1), Status: 200, InFlight: 1,
			Schedule: Schedule{Every: 2 * time.Second, End: at(15)},
		}
	}
	list := func(from float64, instants ...float64) Op {
		o := Op{Kind: Put, Key: "k", N: 2, Invoked: at(from), Returned: at(from + 0.1), Status: 200, InFlight: 1}
		for _, s := range instants {
			o.Schedule.Instants = append(o.Schedule.Instants, at(s))
		}
		return o
	}
	behind := func(o Op, by time.Duration) Op { o.Behind = by; return o }
	ahead := func(o Op, by time.Duration) Op { o.Ahead = by; return o }
	// The instant 14 s is fired at 12 s by a clock that is 2 s ahead, and again at 15 s.
	sent := func(n int, from, ended float64) Delivery {
		return Delivery{
			ID: "i", Key: "k", N: n, Instant: at(14), Begun: at(from), Ended: at(ended), Local: at(max(from, 14)), Attempt: 1,
			Took: true, Told: true,
		}
	}
	for name, one := range map[string]struct {
		ops    []Op
		ended  float64 // of the first delivery
		broken []string
	}{
		"replaced by a job without the instant, at a clock behind": {
			ops: []Op{crontab(1, 1), list(12.4, 34), behind(crontab(3, 14.9), time.Second)}, ended: 12.2,
		},
		"the same, while it was under way": {
			ops: []Op{crontab(1, 1), list(12.4, 34), behind(crontab(3, 14.9), time.Second)}, ended: 15.6,
		},
		"the clock is not behind enough": {
			ops: []Op{crontab(1, 1), list(12.4, 34), behind(crontab(3, 14.9), time.Second/2)}, ended: 12.2,
			broken: []string{"no duplicate without a cause"},
		},
		"the job between has the instant": {
			ops: []Op{crontab(1, 1), list(12.4, 14, 34), behind(crontab(3, 14.9), time.Second)}, ended: 12.2,
			broken: []string{"no duplicate without a cause"},
		},
		"it has passed by the clock ahead of the job between": {
			ops: []Op{crontab(1, 1), ahead(crontab(2, 12.4), 2*time.Second), behind(crontab(3, 14.9), time.Second)}, ended: 12.2,
		},
		"that clock is not ahead enough": {
			ops: []Op{crontab(1, 1), ahead(crontab(2, 12.4), time.Second), behind(crontab(3, 14.9), time.Second)}, ended: 12.2,
			broken: []string{"no duplicate without a cause"},
		},
		"the job between was there before": {
			ops: []Op{list(0.5, 34), crontab(1, 1), behind(crontab(3, 14.9), time.Second)}, ended: 12.2,
			broken: []string{"no duplicate without a cause"},
		},
		"nothing between": {
			ops: []Op{crontab(1, 1), behind(crontab(3, 14.9), time.Second)}, ended: 15.6,
			broken: []string{"no duplicate without a cause", "one claimer"},
		},
	} {
		first, second := sent(1, 12, one.ended), sent(3, 15, 15.05)
		if got := broken(history(one.ops, first, second)); !slices.Equal(got, one.broken) {
			t.Errorf("%s: broken are %q, want %q", name, got, one.broken)
		}
	}
}

// TestOutlived: an instant that was taken is sent again at any time if a trouble with the store kept its outcome from
// being written until the lease had ended: another replica may have claimed it then, and given it back.
func TestOutlived(t *testing.T) {
	put := told(Put, 1, 201)
	put.N, put.Schedule.Instants = 1, []time.Time{at(30)}
	fast := put
	fast.Ahead = time.Second
	trouble := func(what string, replica int, from, to float64) Trouble {
		return Trouble{What: what, Replica: replica, From: at(from), To: at(to)}
	}
	again := func(from float64) Delivery {
		d := attemptAt(30, 2, true)
		d.Replica, d.Begun, d.Ended, d.Local = 0, at(from), at(from+0.1), at(from)
		return d
	}
	for name, one := range map[string]struct {
		put      Op
		troubles []Trouble
		ended    float64 // of the first attempt, if it is not over at once
		again    float64
		early    time.Duration
		broken   bool
	}{
		"the lease has ended but for the window": {troubles: []Trouble{trouble("read-only", -1, 30.05, 47)}, again: 90, early: 2 * time.Second},
		"claims come early":                      {troubles: []Trouble{trouble("read-only", -1, 30.05, 49)}, again: 50.5, early: 2 * time.Second},
		"the lease has ended":                    {troubles: []Trouble{trouble("read-only", -1, 30.05, 49)}, again: 90},
		"it has not":                             {troubles: []Trouble{trouble("read-only", -1, 30.05, 47)}, again: 90, broken: true},
		"it has by a fast clock":                 {put: fast, troubles: []Trouble{trouble("read-only", -1, 30.05, 47.5)}, again: 90},
		"by no clock":                            {put: fast, troubles: []Trouble{trouble("read-only", -1, 30.05, 46.5)}, again: 90, broken: true},
		"no claim came between":                  {troubles: []Trouble{trouble("read-only", -1, 30.05, 49)}, again: 50.5, broken: true},
		"nor by a fast clock":                    {put: fast, troubles: []Trouble{trouble("read-only", -1, 30.05, 47.5)}, again: 52.5, broken: true},
		"the claim comes before the outcome":     {troubles: []Trouble{trouble("lossy", 1, 30.05, 48.5)}, again: 50.2},
		"the receiver took its time":             {ended: 37.9, troubles: []Trouble{trouble("slow", 1, 25, 29)}, again: 90, broken: true},
		"a call takes its whole time":            {troubles: []Trouble{trouble("lossy", 1, 30.05, 47.5)}, again: 90},
		"it ends before the lease":               {troubles: []Trouble{trouble("lossy", 1, 30.05, 46.5)}, again: 90, broken: true},
		"another replica's trouble":              {troubles: []Trouble{trouble("lossy", 0, 30.05, 49)}, again: 90, broken: true},
		"one comes after the other":              {troubles: []Trouble{trouble("read-only", -1, 36, 49), trouble("lossy", 1, 30.05, 35)}, again: 90},
		"the outcome was written":                {troubles: []Trouble{trouble("read-only", -1, 36, 49)}, again: 90, broken: true},
		"it was written between both":            {troubles: []Trouble{trouble("cut", 1, 30.05, 32), trouble("read-only", -1, 36, 49)}, again: 90, broken: true},
		"it was claimed in a trouble":            {troubles: []Trouble{trouble("slow", 1, 25, 41.5)}, again: 90},
		"it was claimed before it":               {troubles: []Trouble{trouble("slow", 1, 30.05, 41.5)}, again: 90, broken: true},
		"receivers are no cause":                 {troubles: []Trouble{trouble("receivers", -1, 25, 60)}, again: 90, broken: true},
		"there was no trouble":                   {again: 90, broken: true},
	} {
		if one.put.N == 0 {
			one.put = put
		}
		first := attemptAt(30, 1, true)
		if one.ended > 0 {
			first.Ended = at(one.ended)
		}
		h := history([]Op{one.put}, first, again(one.again))
		h.Settles, h.Troubles, h.Early = time.Second, one.troubles, one.early
		if got := slices.Contains(broken(h), "no duplicate without a cause"); got != one.broken {
			t.Errorf("%s: it is broken: %v, by %v", name, got, Check(h))
		}
	}
}

// TestQuotas: no job is made beyond a quota that the replica knows, by the jobs that count there for certain.
func TestQuotas(t *testing.T) {
	put := func(key string, replica int, from float64) Op {
		return Op{
			Kind: Put, Key: key, Tenant: "t", N: len(key), Replica: replica, Invoked: at(from), Returned: at(from + 0.1), Status: 201,
			Schedule: Schedule{Instants: []time.Time{at(550)}},
		}
	}
	quota := Op{Kind: Quota, Tenant: "t", Jobs: 1, Invoked: at(100), Returned: at(100.1), Status: 200}
	for name, one := range map[string]struct {
		ops    []Op
		broken bool
	}{
		"known, and full at this replica":      {[]Op{quota, put("a", 1, 110), put("bb", 1, 111)}, true},
		"full by another replica":              {[]Op{quota, put("a", 1, 110), put("bb", 2, 122)}, true},
		"full by another replica, just now":    {[]Op{quota, put("a", 1, 110), put("bb", 2, 120)}, false},
		"full before it was set":               {[]Op{put("a", 1, 10), quota, put("bb", 2, 107)}, true},
		"not known yet":                        {[]Op{put("a", 1, 10), quota, put("bb", 2, 105)}, false},
		"the other may have been cancelled":    {[]Op{quota, put("a", 1, 110), {Kind: Cancel, Key: "a", Tenant: "t", Invoked: at(115), Returned: at(115.1)}, put("bb", 2, 130)}, false},
		"it may be cancelled by its prefix":    {[]Op{quota, put("a", 1, 110), {Kind: Cancel, Key: "bb", Prefix: "b", Several: true, Tenant: "t", Invoked: at(70), Returned: at(115)}, put("bb", 2, 130)}, false},
		"there is room for one job":            {[]Op{quota, put("bb", 2, 130)}, false},
		"a fault keeps the replica from store": {[]Op{quota, put("a", 1, 110), put("bb", 1, 111)}, false},
	} {
		h := history(one.ops)
		if name == "a fault keeps the replica from store" {
			h.Troubles = []Trouble{{What: "cut", Replica: 1, From: at(105), To: at(112)}}
		}
		if got := slices.Contains(broken(h), "quotas"); got != one.broken {
			t.Errorf("%s: it is broken: %v", name, got)
		}
	}
}

// TestUncounted: an instant that is neither delivered nor counted as missed is lost, but where its job drops instants
// that are too late, and a fault may have come between the two writes of that.
func TestUncounted(t *testing.T) {
	put := func(deadline time.Duration) Op {
		return Op{
			Kind: Put, Key: "k", Tenant: "t", N: 1, Invoked: at(1), Returned: at(1.1), Status: 201, Deadline: deadline,
			Schedule: Schedule{Instants: []time.Time{at(30)}},
		}
	}
	crontab := func(catchUp string) Op {
		o := put(0)
		o.CatchUp, o.Schedule = catchUp, Schedule{Every: 30 * time.Second, End: at(35)}
		return o
	}
	pause := func(paused bool, from float64) Op {
		return Op{Kind: Settings, Tenant: "t", Paused: paused, Invoked: at(from), Returned: at(from + 0.1), Status: 200}
	}
	failed := Delivery{ID: "i", Key: "k", N: 1, Instant: at(30), Begun: at(30), Ended: at(31), Local: at(30), Attempt: 1}
	stall := func(from, to float64) Trouble { return Trouble{What: "stall", Replica: 1, From: at(from), To: at(to)} }
	for name, one := range map[string]struct {
		ops      []Op
		sent     []Delivery
		trouble  Trouble
		together bool
		lost     bool
	}{
		"a replica stands still when it is too late":  {ops: []Op{put(5 * time.Second)}, trouble: stall(34, 50)},
		"after an attempt":                            {ops: []Op{put(5 * time.Second)}, sent: []Delivery{failed}, trouble: stall(34, 50)},
		"the store counts it in the same write":       {ops: []Op{put(5 * time.Second)}, trouble: stall(34, 50), together: true, lost: true},
		"it has no deadline":                          {ops: []Op{put(0)}, trouble: stall(34, 50), lost: true},
		"no fault of a replica":                       {ops: []Op{put(5 * time.Second)}, trouble: Trouble{What: "receivers", Replica: -1, From: at(34), To: at(50)}, lost: true},
		"the fault is over before":                    {ops: []Op{put(5 * time.Second)}, trouble: stall(10, 28), lost: true},
		"the fault comes long after":                  {ops: []Op{put(5 * time.Second)}, trouble: stall(70, 80), lost: true},
		"it comes after a pause":                      {ops: []Op{put(5 * time.Second), pause(true, 20), pause(false, 60)}, trouble: stall(70, 80)},
		"it comes long after a pause":                 {ops: []Op{put(5 * time.Second), pause(true, 20), pause(false, 60)}, trouble: stall(90, 99), lost: true},
		"a late tick":                                 {ops: []Op{crontab("latest")}, trouble: stall(60, 65)},
		"a tick that is not late":                     {ops: []Op{crontab("latest")}, trouble: stall(31, 40), lost: true},
		"a tick that was attempted":                   {ops: []Op{crontab("none")}, sent: []Delivery{failed}, trouble: stall(60, 65), lost: true},
		"a late tick of a job that catches up on all": {ops: []Op{crontab("all")}, trouble: stall(60, 65), lost: true},
	} {
		h := history(one.ops, one.sent...)
		h.Due, h.Troubles, h.CountsApart = h.Calm, []Trouble{one.trouble}, !one.together
		if got := slices.Contains(broken(h), "nothing lost"); got != one.lost {
			t.Errorf("%s: it is lost: %v", name, got)
		}
	}
}

// TestOvertaken: a request that was delayed on its replica changes nothing that was changed meanwhile, whatever it is
// answered. After a cancellation there is nothing to compare with.
func TestOvertaken(t *testing.T) {
	put := func(n int, from, to float64, status int) Op {
		return Op{Kind: Put, Key: "k", N: n, Invoked: at(from), Arrived: at(from), Returned: at(to), Status: status}
	}
	amend := func(o Op) Op { o.Kind = Amend; return o }
	recurring := func(o Op) Op { o.Schedule.Every = time.Second; return o }
	cancel := Op{Kind: Cancel, Key: "k", Invoked: at(118), Arrived: at(118), Returned: at(118.1), Status: 200}
	for name, one := range map[string]struct {
		ops    []Op
		final  int
		broken bool
	}{
		"it changes nothing":                 {[]Op{put(1, 106, 130, 503), put(2, 116, 116.1, 200)}, 2, false},
		"it undoes a later change":           {[]Op{put(1, 106, 130, 503), put(2, 116, 116.1, 200)}, 1, true},
		"the same, and it is told so":        {[]Op{put(1, 106, 130, 200), put(2, 116, 116.1, 200)}, 1, true},
		"it came at about the same time":     {[]Op{put(1, 115, 130, 200), put(2, 116, 116.1, 200)}, 1, false},
		"the later change was taken back":    {[]Op{put(1, 106, 130, 201), put(2, 116, 116.1, 201), cancel}, 1, false},
		"it was sent after the later change": {[]Op{put(1, 117, 130, 200), put(2, 116, 116.1, 200)}, 1, false},
		"the later put changed nothing": {[]Op{
			recurring(put(2, 100, 100.1, 201)), put(1, 106, 130, 200), recurring(put(2, 116, 116.1, 200)),
		}, 1, false},
		"the later patch changed nothing": {[]Op{
			put(3, 100, 100.1, 201), amend(put(2, 103, 103.1, 200)), put(1, 106, 130, 200), amend(put(2, 116, 116.1, 200)),
		}, 1, false},
		"it patched another definition": {[]Op{
			put(3, 100, 100.1, 201), put(1, 106, 130, 200), amend(put(2, 116, 116.1, 200)),
		}, 1, true},
		"it made what had been there": {[]Op{
			recurring(put(2, 100, 100.1, 201)), put(3, 103, 103.1, 200), put(1, 106, 130, 200),
			recurring(put(2, 116, 116.1, 200)),
		}, 1, true},
		"it put the same instants": {[]Op{put(2, 100, 100.1, 201), put(1, 106, 130, 200), put(2, 116, 116.1, 200)}, 1, true},
	} {
		h := history(one.ops)
		h.Final.Jobs["k"] = Job{N: one.final}
		if got := slices.Contains(broken(h), "one order of changes"); got != one.broken {
			t.Errorf("%s: it is broken: %v", name, got)
		}
	}
}

// TestReplace: a replacement by a patch takes effect only if there is a job, ends the former definition, and may change
// nothing if the job is as it says.
func TestReplace(t *testing.T) {
	put := func(n int, from, to float64, status int) Op {
		return Op{
			Kind: Put, Key: "k", N: n, Invoked: at(from), Arrived: at(from), Returned: at(to), Status: status,
			Schedule: Schedule{Instants: []time.Time{at(200)}},
		}
	}
	replace := func(n int, from, to float64, status int) Op {
		o := put(n, from, to, status)
		o.Kind = Replace
		return o
	}
	fired := func(n int) Delivery {
		return Delivery{
			ID: "d", Key: "k", N: n, Instant: at(200), Attempt: 1, Begun: at(200), Local: at(200), Ended: at(200.1), Took: true,
		}
	}
	cancel := Op{Kind: Cancel, Key: "k", Invoked: at(115), Returned: at(115.1), Status: 200, Cancelled: 1}
	const order, end = "one order of changes", "an end is an end"
	for name, one := range map[string]struct {
		ops   []Op
		sent  int // the payload of the delivery; 0 for none
		final int // that of the job; 0 for none
		rule  string
	}{
		"a job":                       {[]Op{put(1, 100, 100.1, 201), replace(2, 110, 110.1, 200)}, 2, 2, ""},
		"no job":                      {[]Op{replace(2, 110, 110.1, 404)}, 0, 0, ""},
		"no job, and it was made":     {[]Op{replace(2, 110, 110.1, 200)}, 2, 2, order},
		"no job, and it is there":     {[]Op{replace(2, 110, 140, 0)}, 0, 2, order},
		"no job was told of a job":    {[]Op{put(1, 100, 100.1, 201), replace(2, 110, 110.1, 404)}, 1, 1, order},
		"a job that is cancelled":     {[]Op{put(1, 100, 100.1, 201), replace(2, 110, 120, 200), cancel}, 0, 0, ""},
		"a job that was cancelled":    {[]Op{put(1, 100, 100.1, 201), cancel, replace(2, 116, 120, 200)}, 2, 2, order},
		"it is not told, and took":    {[]Op{put(1, 100, 100.1, 201), replace(2, 110, 140, 0)}, 2, 2, ""},
		"it is not told, and did not": {[]Op{put(1, 100, 100.1, 201), replace(2, 110, 140, 0)}, 1, 1, ""},
		"it did not replace":          {[]Op{put(1, 100, 100.1, 201), replace(2, 110, 110.1, 200)}, 2, 1, order},
		"the former fires":            {[]Op{put(1, 100, 100.1, 201), replace(2, 110, 110.1, 200)}, 1, 2, end},
		"it undoes a later change":    {[]Op{put(1, 100, 100.1, 201), replace(2, 106, 130, 503), put(3, 116, 116.1, 200)}, 2, 2, order},
		"it has been replaced already": {[]Op{
			put(1, 100, 100.1, 201), replace(2, 103, 103.1, 200), put(3, 106, 130, 200), replace(2, 116, 116.1, 200),
		}, 3, 3, ""},
	} {
		var sent []Delivery
		if one.sent > 0 {
			sent = append(sent, fired(one.sent))
		}
		h := history(one.ops, sent...)
		if delete(h.Final.Jobs, "k"); one.final > 0 {
			h.Final.Jobs["k"] = Job{N: one.final}
		}
		if got := strings.Join(broken(h), ", "); got != one.rule {
			t.Errorf("%s: %q is broken, want %q", name, got, one.rule)
		}
	}
}

// TestMatch: a change of a version takes effect only if the job may have that version, and may be refused otherwise.
func TestMatch(t *testing.T) {
	change := func(kind Kind, n, match int, status int) Op {
		o := Op{Kind: kind, Key: "k", N: n, Match: match, Invoked: at(110), Returned: at(110.1), Status: status, Cancelled: 1}
		if status == 0 {
			o.Returned = at(140)
		}
		return o
	}
	before := []Op{
		{Kind: Put, Key: "k", N: 1, Invoked: at(100), Returned: at(100.1), Status: 201},
		{Kind: Amend, Key: "k", N: 2, Invoked: at(105), Returned: at(105.1), Status: 200},
	}
	for name, one := range map[string]struct {
		change Op
		final  int // the payload of the job; 0 for none
		broken bool
	}{
		"a put of the present version":             {change(Put, 3, 2, 200), 3, false},
		"a put of a former version":                {change(Put, 3, 1, 200), 3, true},
		"a put of a former version is refused":     {change(Put, 3, 1, 412), 2, false},
		"a put that is refused has no effect":      {change(Put, 3, 1, 412), 3, true},
		"a put that is refused for another change": {change(Put, 3, 2, 412), 2, false},
		"a put without a condition is refused":     {change(Put, 3, 0, 412), 2, true},
		"a patch without a condition is refused":   {change(Amend, 3, 0, 412), 2, true},
		"an unknown put of the present version":    {change(Put, 3, 2, 0), 3, false},
		"an unknown put of a former version":       {change(Put, 3, 1, 0), 2, false},
		"an unknown put of a former version, made": {change(Put, 3, 1, 0), 3, true},
		"a patch of the present version":           {change(Amend, 3, 2, 200), 3, false},
		"a patch of a former version":              {change(Amend, 3, 1, 200), 3, true},
		"a patch of a former version is refused":   {change(Amend, 3, 1, 412), 2, false},
		"a replacement of the present version":     {change(Replace, 3, 2, 200), 3, false},
		"a replacement of a former version":        {change(Replace, 3, 1, 200), 3, true},
		"a cancellation of the present version":    {change(Cancel, 0, 2, 200), 0, false},
		"a cancellation of a former version":       {change(Cancel, 0, 1, 200), 0, true},
		"a cancellation that is refused":           {change(Cancel, 0, 1, 412), 2, false},
		"a cancellation that is refused, and made": {change(Cancel, 0, 1, 412), 0, true},
		"a cancellation of a job that is there":    {change(Cancel, 0, 2, 404), 2, true},
	} {
		h := history(append(slices.Clone(before), one.change))
		if delete(h.Final.Jobs, "k"); one.final > 0 {
			h.Final.Jobs["k"] = Job{N: one.final}
		}
		if got := slices.Contains(broken(h), "one order of changes"); got != one.broken {
			t.Errorf("%s: it is broken: %v", name, got)
		}
	}
}

// TestKept: a replacement by a patch of the same schedule keeps what is held. Any other change names it.
func TestKept(t *testing.T) {
	put := func(kind Kind, n int, from float64, last float64) Op {
		return Op{
			Kind: kind, Key: "k", N: n, Invoked: at(from), Returned: at(from + 0.1), Status: 200,
			Schedule: Schedule{Instants: []time.Time{at(110), at(last)}},
		}
	}
	for name, one := range map[string]struct {
		kind   Kind
		last   float64
		named  int
		broken bool
	}{
		"a patch of the same schedule":    {Replace, 200, 0, false},
		"a patch of another one":          {Replace, 201, 0, true},
		"a patch of another one names it": {Replace, 201, 1, false},
		"a put of the same schedule":      {Put, 200, 0, true},
	} {
		change := put(one.kind, 2, 110.1, one.last)
		change.InFlight = one.named
		h := history([]Op{put(Put, 1, 100, 200), change}, Delivery{
			ID: "d", Key: "k", N: 1, Instant: at(110), Attempt: 1, Begun: at(110.3), Local: at(110.3), Ended: at(110.4), Took: true,
		})
		if got := slices.Contains(broken(h), "an end is an end"); got != one.broken {
			t.Errorf("%s: it is broken: %v", name, got)
		}
	}
}

// TestLostBeside: the instants of the last definition fire, though another one was submitted at the same time. If it is
// not known which was the last, nothing is judged.
func TestLostBeside(t *testing.T) {
	put := func(n int, from, to float64) Op {
		o := Op{Kind: Put, Key: "k", N: n, Invoked: at(from), Returned: at(to), Status: 200}
		if n == 2 {
			o.Schedule.Instants = []time.Time{at(100)}
		}
		return o
	}
	for name, one := range map[string]struct {
		final         Job
		again, broken bool
		deadline      time.Duration
	}{
		"it is the last":              {final: Job{N: 2}, broken: true},
		"it may be sent again":        {final: Job{N: 2}, again: true},
		"it is paused":                {final: Job{N: 2, State: "paused"}},
		"the other one replaced it":   {final: Job{N: 1}},
		"it was counted as missed":    {final: Job{N: 2, Missed: 1}, deadline: time.Minute},
		"its job may miss none":       {final: Job{N: 2, Missed: 1}, broken: true},
		"an amendment is shown later": {final: Job{N: 3}},
	} {
		ops := []Op{put(1, 10, 12), put(2, 11, 13)}
		ops[1].Deadline = one.deadline
		if one.again {
			ops = append(ops, put(2, 11.5, 14))
		}
		h := history(ops)
		h.Final.Jobs["k"], h.Due = one.final, at(200)
		if got := slices.Contains(broken(h), "nothing lost"); got != one.broken {
			t.Errorf("%s: it is broken: %v", name, got)
		}
	}
}

// TestRefused: a quota refuses nothing for which it has room, by all that may count.
func TestRefused(t *testing.T) {
	quota := Op{Kind: Quota, Tenant: "t", Jobs: 2, Invoked: at(10), Returned: at(10.1), Status: 200}
	put := func(key string, replica int, from float64, status int) Op {
		return Op{
			Kind: Put, Key: key, Tenant: "t", N: len(key), Replica: replica, Invoked: at(from), Returned: at(from + 0.1),
			Status: status, Unchanged: status >= 400, Schedule: Schedule{Instants: []time.Time{at(550)}},
		}
	}
	byAnother := put("a", 1, 100, 403)
	byAnother.Caller = "another"
	slow := Trouble{What: "slow", Replica: -1, From: at(99), To: at(101)}
	for name, one := range map[string]struct {
		ops     []Op
		trouble Trouble
		broken  bool
	}{
		"there is nothing":              {ops: []Op{quota, put("a", 1, 100, 403)}, broken: true},
		"nor another caller's":          {ops: []Op{quota, byAnother}, broken: true},
		"one job, and room for one":     {ops: []Op{quota, put("a", 1, 100, 201), put("bb", 1, 200, 403)}, broken: true},
		"two jobs":                      {ops: []Op{quota, put("a", 1, 100, 201), put("bb", 1, 120, 201), put("ccc", 1, 200, 403)}},
		"one job counts twice":          {ops: []Op{quota, put("a", 1, 100, 201), put("bb", 1, 110, 403)}},
		"only at its own replica":       {ops: []Op{quota, put("a", 2, 100, 201), put("bb", 1, 110, 403)}, broken: true},
		"longer, if counting takes it":  {ops: []Op{quota, put("a", 1, 100, 201), put("bb", 1, 200, 403)}, trouble: slow},
		"what was refused counts not":   {ops: []Op{quota, put("a", 1, 100, 412), put("bb", 1, 110, 403)}, broken: true},
		"but while it is still decided": {ops: []Op{quota, put("a", 1, 100, 412), put("bb", 1, 100.05, 403)}},
	} {
		h := history(one.ops)
		h.Troubles = []Trouble{one.trouble}
		if got := slices.Contains(broken(h), "quotas"); got != one.broken {
			t.Errorf("%s: it is broken: %v", name, got)
		}
	}
}

// TestCancellation: a cancellation counts each instant that is ahead, unless a fast clock has fired it.
func TestCancellation(t *testing.T) {
	put := Op{Kind: Put, Key: "k", N: 1, Invoked: at(1), Returned: at(1.1), Status: 201}
	put.Schedule.Instants = []time.Time{at(30), at(60)}
	cancel := Op{Kind: Cancel, Key: "k", Invoked: at(26), Returned: at(26.1), Status: 200, Cancelled: 1}
	fired := Delivery{
		ID: "i", Key: "k", N: 1, Instant: at(30), Begun: at(25), Ended: at(25.1), Local: at(30), Attempt: 1, Took: true, Told: true,
	}
	for name, one := range map[string]struct {
		sent   []Delivery
		fast   time.Duration // the clock of the put's replica
		broken bool
	}{
		"one is not counted":                   {nil, 0, true},
		"it was fired before":                  {[]Delivery{fired}, 0, false},
		"it had passed for the put's replica":  {nil, 29 * time.Second, false},
		"it had not passed for the put's, yet": {nil, 28 * time.Second, true},
	} {
		put := put
		put.Ahead = one.fast
		h := history([]Op{put, cancel}, one.sent...)
		if got := slices.Contains(broken(h), "counts of a cancellation"); got != one.broken {
			t.Errorf("%s: it is broken: %v", name, got)
		}
	}
	patch := put
	patch.Kind, patch.N, patch.Status, patch.Invoked, patch.Returned = Replace, 2, 200, at(2), at(2.1)
	put.Ahead = 29 * time.Second // the patch may have kept its occurrences, of which one was skipped
	if got := broken(history([]Op{put, patch, cancel})); len(got) > 0 {
		t.Errorf("a patch that keeps the occurrences: %q are broken", got)
	}
	patch.Schedule.Instants = []time.Time{at(30), at(61)}
	if got := broken(history([]Op{put, patch, cancel})); !slices.Contains(got, "counts of a cancellation") {
		t.Errorf("a patch of another schedule: %q are broken", got)
	}
}

// TestInFlight: an occurrence that fires after a replacement was in flight by the answer to the change that ended it.
func TestInFlight(t *testing.T) {
	put := func(n int, from float64, inFlight int) Op {
		return Op{
			Kind: Put, Key: "k", N: n, Invoked: at(from), Returned: at(from + 0.1), Status: 200, InFlight: inFlight,
			Schedule: Schedule{Instants: []time.Time{at(30)}},
		}
	}
	fired := Delivery{ID: "i", Key: "k", N: 1, Instant: at(30), Begun: at(35), Ended: at(36), Local: at(35), Attempt: 1, Took: true}
	for name, one := range map[string]struct {
		ops    []Op
		broken bool
	}{
		"it is named":               {[]Op{put(1, 1, 0), put(2, 31, 1)}, false},
		"it is not named":           {[]Op{put(1, 1, 0), put(2, 31, 0)}, true},
		"it is named by the first":  {[]Op{put(1, 1, 0), put(2, 31, 1), put(3, 33, 0)}, false},
		"it is named by the second": {[]Op{put(1, 1, 0), put(2, 31, 0), put(3, 33, 1)}, true},
	} {
		if got := slices.Contains(broken(history(one.ops, fired)), "an end is an end"); got != one.broken {
			t.Errorf("%s: it is broken: %v", name, got)
		}
	}
}

// TestUndecided: a history of which no order of the operations is found or excluded in time is told to be undecided, and
// breaks nothing.
func TestUndecided(t *testing.T) {
	var ops []Op
	for n := range 30 {
		ops = append(ops, Op{Kind: Put, Key: "k", N: n + 1, Invoked: at(1), Returned: at(2)}) // it has no answer
	}
	ops = append(ops, Op{Kind: Get, Key: "k", Invoked: at(100), Returned: at(101), Status: 200, Shown: Job{N: 99}})
	h := history(ops)
	h.Patience = time.Millisecond
	if v := Judge(h); !slices.Equal(v.Undecided, []string{"k"}) || slices.Contains(broken(h), "one order of changes") {
		t.Errorf("it is %+v", v)
	}
	h = history(ops[:1])
	if v := Judge(h); len(v.Undecided) > 0 {
		t.Errorf("one operation is %+v", v)
	}
}

// TestSkippedByAFastClock: an instant that had passed by the clock of the replica that stored the job before is settled
// for the next job, so it does not fire.
func TestSkippedByAFastClock(t *testing.T) {
	put := func(n int, from float64, ahead time.Duration, instants ...float64) Op {
		o := Op{Kind: Put, Key: "k", N: n, Invoked: at(from), Returned: at(from + 0.1), Status: 201, Ahead: ahead}
		for _, i := range instants {
			o.Schedule.Instants = append(o.Schedule.Instants, at(i))
		}
		return o
	}
	sent := Delivery{Replica: 1, ID: "i", Key: "k", N: 2, Instant: at(30), Attempt: 1, Begun: at(30), Local: at(30), Ended: at(30.1), Took: true, Told: true}
	for name, one := range map[string]struct {
		before Op
		broken []string
	}{
		"it had passed there":       {before: put(1, 12, 9*time.Second, 20)},
		"that clock is right":       {before: put(1, 12, 0, 20), broken: []string{"nothing lost"}},
		"that clock is not so fast": {before: put(1, 12, 7*time.Second, 20), broken: []string{"nothing lost"}},
		"that job has another":      {before: put(1, 12, 9*time.Second, 21), broken: []string{"nothing lost"}},
	} {
		h := history([]Op{one.before, put(2, 14, 0, 20, 30)}, sent)
		h.Due = at(500)
		if got := broken(h); !slices.Equal(got, one.broken) {
			t.Errorf("%s: broken are %q, want %q", name, got, one.broken)
		}
	}
}
