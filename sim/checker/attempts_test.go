package checker

import (
	"slices"
	"testing"
	"time"
)

// TestAttempts: the numbers of attempts grow one by one, up to the most of the job. Without a fault, only an attempt that
// did not count has its number used again.
func TestAttempts(t *testing.T) {
	put := told(Put, 1, 201)
	put.N, put.Attempts, put.Schedule.Instants = 1, 2, []time.Time{at(30)}
	redrive := told(Redrive, 35, 200)
	redrive.Redriven = 1
	cancel, again := told(Cancel, 32, 200), told(Put, 33, 201)
	again.N, again.Attempts, again.Schedule = 2, 2, put.Schedule
	amend := told(Amend, 10, 200)
	amend.N, amend.Attempts = 3, 3
	refused, same := amend, amend
	refused.Status, refused.Unchanged, same.Attempts = 412, true, 0
	sent := func(from float64, number int) Delivery {
		d := attemptAt(30, number, false)
		d.Begun, d.Ended, d.Local = at(from), at(from+0.1), at(from)
		return d
	}
	told := func(number int, outcome string) []Recorded {
		return []Recorded{{Key: "k", DeliveryID: at(30).String(), Attempt: number, Outcome: outcome, At: at(30)}}
	}
	slow := sent(34, 1) // by a clock that is nearly 4 s behind
	slow.Local = at(30.003)
	both := append(told(1, "buried"), told(1, "retried")...)
	both[1].At = slow.Local
	later := told(1, "delivered")
	later[0].At = at(40)
	crash := []Trouble{{What: "crash", Replica: 0, From: at(31), To: at(51)}}
	its := []Trouble{{What: "crash", Replica: 1, From: at(30.05), To: at(50)}}
	receivers := []Trouble{{What: "receivers", Replica: -1, From: at(20), To: at(99)}}
	clock := []Trouble{{What: "step", Replica: 1, From: at(20), To: at(99)}}
	for name, one := range map[string]struct {
		ops      []Op
		sent     []Delivery
		recorded []Recorded
		troubles []Trouble
		broken   bool
	}{
		"one after the other":          {sent: []Delivery{sent(30, 1), sent(40, 2)}},
		"twice the same":               {sent: []Delivery{sent(30, 1), sent(40, 1)}, broken: true},
		"it did not count":             {sent: []Delivery{sent(30, 1), sent(40, 1)}, recorded: told(1, "released")},
		"it counted":                   {sent: []Delivery{sent(30, 1), sent(40, 1)}, recorded: told(1, "retried"), broken: true},
		"its replica died unheard":     {sent: []Delivery{sent(30, 1), sent(40, 1)}, troubles: its},
		"and the next is told":         {sent: []Delivery{sent(30, 1), sent(40, 1)}, recorded: later, troubles: its},
		"its replica died, but told":   {sent: []Delivery{sent(30, 1), sent(40, 1)}, recorded: told(1, "retried"), troubles: its, broken: true},
		"another replica died":         {sent: []Delivery{sent(30, 1), sent(40, 1)}, troubles: crash, broken: true},
		"it goes back":                 {sent: []Delivery{sent(30, 1), sent(40, 2), sent(50, 1)}, broken: true},
		"it was redriven":              {ops: []Op{put, redrive}, sent: []Delivery{sent(30, 1), sent(34, 2), sent(40, 1)}},
		"the redriven one goes on":     {ops: []Op{put, redrive}, sent: []Delivery{sent(30, 1), sent(40, 2)}, recorded: told(1, "buried"), broken: true},
		"the redriven one begins":      {ops: []Op{put, redrive}, sent: []Delivery{sent(30, 1), sent(40, 1)}, recorded: told(1, "buried")},
		"it fires without a redrive":   {sent: []Delivery{sent(30, 1), sent(40, 2)}, recorded: told(1, "buried"), broken: true},
		"it may not have been buried":  {sent: []Delivery{sent(30, 1), sent(40, 2)}, recorded: told(1, "buried"), troubles: its},
		"its job was submitted anew":   {ops: []Op{put, cancel, again}, sent: []Delivery{sent(30, 1), sent(40, 1)}},
		"anew, and by a slow clock":    {ops: []Op{put, cancel, again}, sent: []Delivery{sent(30, 1), slow, sent(40, 2)}, recorded: both},
		"it was only submitted again":  {ops: []Op{put, again}, sent: []Delivery{sent(30, 1), sent(40, 1)}, broken: true},
		"one is left out":              {sent: []Delivery{sent(40, 2)}, broken: true},
		"a replica died with it":       {sent: []Delivery{sent(40, 2)}, troubles: crash},
		"receivers are no cause":       {sent: []Delivery{sent(40, 2)}, troubles: receivers, broken: true},
		"a clock is no cause":          {sent: []Delivery{sent(40, 2)}, troubles: clock, broken: true},
		"one more than there may be":   {sent: []Delivery{sent(30, 1), sent(34, 2), sent(40, 3)}, broken: true},
		"an amendment allows one more": {ops: []Op{put, amend}, sent: []Delivery{sent(30, 1), sent(34, 2), sent(40, 3)}},
		"but it was refused":           {ops: []Op{put, refused}, sent: []Delivery{sent(30, 1), sent(34, 2), sent(40, 3)}, broken: true},
		"or changes the payload only":  {ops: []Op{put, same}, sent: []Delivery{sent(30, 1), sent(34, 2), sent(40, 3)}, broken: true},
		"a replica died with another":  {sent: []Delivery{sent(30, 1), sent(34, 2), sent(40, 3)}, troubles: crash},
		"more than claims are granted": {sent: []Delivery{sent(40, 6)}, troubles: crash, broken: true},
	} {
		if one.ops == nil {
			one.ops = []Op{put}
		}
		h := history(one.ops, one.sent...)
		h.Settles, h.Troubles, h.Final.Recorded = time.Second, one.troubles, one.recorded
		if got := slices.Contains(broken(h), "attempts are counted"); got != one.broken {
			t.Errorf("%s: it is broken: %v, by %v", name, got, Check(h))
		}
	}
}
