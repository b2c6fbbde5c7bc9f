package checker

import (
	"cmp"
	"slices"
	"testing"
	"time"
)

// TestHistoryTold: history tells of each attempt with the outcome that it had. An entry is missing, or its outcome
// unknown, only if a fault kept the replica from writing it; and history names the time in which entries may be missing.
func TestHistoryTold(t *testing.T) {
	put := told(Put, 1, 201)
	put.N, put.Attempts, put.Schedule.Instants = 1, 2, []time.Time{at(30)}
	taken, failed, refused := attemptAt(30, 1, true), attemptAt(30, 1, false), attemptAt(30, 1, false)
	refused.Refused = true
	lost := taken
	lost.Told = false
	last := attemptAt(30, 2, false)
	missing := Missing{From: at(20), Until: at(40)}
	crash := []Trouble{{What: "crash", Replica: 1, From: at(30.2), To: at(50.2)}}
	later := []Trouble{{What: "crash", Replica: 1, From: at(37), To: at(57)}}
	outage := []Trouble{{What: "down", Replica: -1, From: at(30), To: at(36)}}
	for name, one := range map[string]struct {
		sent     Delivery
		outcome  string
		missing  Missing
		troubles []Trouble
		broken   string
	}{
		"it was delivered":              {sent: taken, outcome: "delivered"},
		"it was delivered, not retried": {sent: taken, outcome: "retried", broken: "history is true"},
		"or its replica stood still":    {sent: taken, outcome: "retried", troubles: []Trouble{{What: "stall", Replica: 1, From: at(30), To: at(45)}}},
		"or all replicas did":           {sent: taken, outcome: "retried", troubles: []Trouble{{What: "stall", Replica: -1, From: at(30), To: at(45)}}},
		"or its answer was not read":    {sent: lost, outcome: "delivered", troubles: []Trouble{{What: "stall", Replica: -1, From: at(30), To: at(45)}}},
		"or another replica":            {sent: taken, outcome: "retried", troubles: []Trouble{{What: "stall", Replica: 0, From: at(30), To: at(45)}}, broken: "history is true"},
		"it was delivered, not buried":  {sent: taken, outcome: "buried", broken: "history is true"},
		"it failed":                     {sent: failed, outcome: "retried"},
		"it did not count":              {sent: failed, outcome: "released"},
		"it failed, as far as is known": {sent: lost, outcome: "retried"},
		"it was not delivered":          {sent: failed, outcome: "delivered", broken: "history is true"},
		"nor is it known to be":         {sent: lost, outcome: "delivered", broken: "history is true"},
		"it was the last":               {sent: last, outcome: "buried"},
		"it was not the last":           {sent: failed, outcome: "buried", broken: "history is true"},
		"it was refused":                {sent: refused, outcome: "buried"},
		"what is refused is not tried":  {sent: refused, outcome: "retried", broken: "history is true"},
		"it is not written yet":         {sent: attemptAt(597, 1, true)},
		"it is missing at the end":      {sent: attemptAt(594, 1, true), broken: "history is whole"},
		"it is missing":                 {sent: taken, broken: "history is whole"},
		"it is missing after a crash":   {sent: taken, missing: missing, troubles: crash},
		"which history does not tell":   {sent: taken, troubles: crash, broken: "history is whole"},
		"long before a crash":           {sent: taken, missing: missing, troubles: later, broken: "history is whole"},
		"an outage came between":        {sent: taken, missing: missing, troubles: append(outage, later...)},
		"an outage alone loses nothing": {sent: taken, missing: missing, troubles: outage, broken: "history is whole"},
		"it is unknown":                 {sent: taken, outcome: "unknown", broken: "history is true"},
		"it is unknown after a crash":   {sent: taken, outcome: "unknown", troubles: crash},
	} {
		h := history([]Op{put}, one.sent)
		h.Settles, h.Troubles, h.Final.Missing = time.Second, one.troubles, map[string]Missing{"k": one.missing}
		if one.outcome != "" {
			h.Final.Recorded = []Recorded{{
				Key: "k", DeliveryID: one.sent.ID, Attempt: one.sent.Attempt, Outcome: one.outcome, At: one.sent.Begun,
			}}
		}
		got := slices.DeleteFunc(broken(h), func(rule string) bool { return rule != "history is true" && rule != "history is whole" })
		if len(got) > 1 || len(got) == 1 && got[0] != one.broken || len(got) == 0 && one.broken != "" {
			t.Errorf("%s: broken are %q, want %q: %v", name, got, one.broken, Check(h))
		}
	}
}

// TestBuriedUnsent: an occurrence may be buried unsent if its receiver must not be called at times. Attempts before that
// had another number, unless they did not count.
func TestBuriedUnsent(t *testing.T) {
	for name, one := range map[string]struct {
		to     string
		sent   bool
		before string  // the outcome of the attempt that was sent, by history
		crash  bool    // the replica died before it could write that
		of     string  // its id, if it is another one
		again  float64 // when the job was put again
		broken bool
	}{
		"at a receiver that turns":            {to: "turns"},
		"at another receiver":                 {to: "open", broken: true},
		"after an attempt that did not count": {to: "turns", sent: true, before: "released"},
		"after one at another receiver":       {to: "open", sent: true, before: "released", broken: true},
		"after an attempt that counted":       {to: "turns", sent: true, before: "retried", broken: true},
		"after one whose entry may be lost":   {to: "turns", sent: true, crash: true},
		"after one of a job before":           {to: "turns", sent: true, before: "delivered", again: 35},
		"before one of a job after":           {to: "turns", sent: true, before: "delivered", again: 60},
		"of a job long after":                 {to: "turns", sent: true, before: "delivered", again: 80, broken: true},
		"of a job long before":                {to: "turns", sent: true, before: "delivered", again: 20, broken: true},
		"after one of another instant":        {to: "turns", sent: true, before: "delivered", of: "o", again: 35, broken: true},
		"the attempt itself, put again":       {to: "turns", sent: true, again: 35, broken: true},
		"the attempt itself":                  {to: "turns", sent: true, broken: true},
	} {
		put := told(Put, 1, 201)
		put.N, put.Attempts, put.To, put.Schedule.Instants = 1, 2, one.to, []time.Time{at(28), at(30)}
		ops := []Op{put}
		if one.again > 0 {
			put.Invoked, put.Returned, put.Past = at(one.again), at(one.again+0.1), "fire"
			ops = append(ops, put)
		}
		h := history(ops)
		h.Rules = map[string]Rule{"turns": {Later: true}}
		sent := attemptAt(30, 1, one.before == "delivered")
		if one.again > 40 { // it was buried before
			sent.Begun, sent.Ended, sent.Local = at(70), at(70.1), at(70)
		}
		buried := Recorded{Key: "k", DeliveryID: sent.ID, Attempt: 1, Outcome: "buried", At: at(40)}
		h.Final.Recorded = []Recorded{buried}
		if one.sent {
			h.Deliveries = []Delivery{sent}
		}
		if one.of != "" {
			other := sent
			other.ID, other.Instant = one.of, at(28)
			h.Deliveries = append(h.Deliveries, other)
		}
		if one.crash {
			h.Troubles = []Trouble{{What: "crash", Replica: sent.Replica, From: sent.Ended, To: sent.Ended.Add(20 * time.Second)}}
		}
		if one.before != "" {
			before := buried
			before.Outcome, before.At, before.DeliveryID = one.before, sent.Begun, cmp.Or(one.of, sent.ID)
			h.Final.Recorded = []Recorded{before, buried}
		}
		if got := slices.Contains(broken(h), "history is true"); got != one.broken {
			t.Errorf("%s: it is broken: %v, %v", name, got, Check(h))
		}
	}
}
