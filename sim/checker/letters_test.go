package checker

import (
	"slices"
	"testing"
	"time"
)

// lettersOf returns an operation on dead letters that counts so many.
func lettersOf(kind Kind, from float64, n int) Op {
	o := told(kind, from, 200)
	if kind == Redrive {
		o.Redriven = n
	} else {
		o.Deleted = n
	}
	return o
}

// moved returns an attempt that begins at another time.
func moved(d Delivery, from float64) Delivery {
	d.Begun, d.Ended, d.Local = at(from), at(from+0.1), at(from)
	return d
}

// TestLetters: what is deleted is gone, and nobody misses it; and answers count the letters that there were.
func TestLetters(t *testing.T) {
	put := told(Put, 1, 201)
	put.N, put.Attempts, put.Schedule.Instants = 1, 2, []time.Time{at(20)}
	cancel, replaced := told(Cancel, 20.05, 200), told(Put, 20.05, 200)
	replaced.N, replaced.Attempts, replaced.Schedule.Instants = 2, 2, []time.Time{at(400)}
	trigger := told(Trigger, 10, 202)
	trigger.DeliveryID = at(20).String()
	elsewhere := trigger
	elsewhere.DeliveryID = "t"
	other := put
	other.Key, other.N, other.To = "k", 2, "elsewhere"
	failed, taken := attemptAt(20, 1, false), attemptAt(20, 1, true)
	again := moved(failed, 51)
	buried := []Recorded{{Key: "k", DeliveryID: failed.ID, Attempt: 1, Outcome: "buried", At: at(20)}}
	twice := append(slices.Clone(buried), Recorded{Key: "k", DeliveryID: failed.ID, Attempt: 1, Outcome: "buried", At: at(51)})
	retried := []Recorded{{Key: "k", DeliveryID: failed.ID, Attempt: 1, Outcome: "retried", At: at(20)}}
	dead := []Dead{{DeliveryID: failed.ID, Instant: at(20), Attempt: 1}}
	stall := []Trouble{{What: "stall", Replica: 1, From: at(20.05), To: at(49)}}
	short := []Trouble{{What: "stall", Replica: 1, From: at(20.05), To: at(39)}}
	late := lettersOf(Discard, 597, 0) // its effect may come until the end
	late.Status, late.Returned = 0, at(597)
	rules := map[string]Rule{"elsewhere": {Later: true}}
	const lost, counted, gone, numbers = "nothing lost", "dead letters are counted", "a deleted letter is gone", "attempts are counted"
	const dropped, order = "nothing is dropped without a cause", "one order of changes"
	strict := other
	strict.Deadline, strict.Schedule.Instants = 10*time.Second, []time.Time{at(25)}
	for name, one := range map[string]struct {
		ops      []Op // besides the put
		sent     []Delivery
		told     []Recorded
		dead     []Dead
		troubles []Trouble
		broken   []string
	}{
		"it is there":                     {sent: []Delivery{failed}, told: buried, dead: dead},
		"it is not":                       {sent: []Delivery{failed}, told: buried, broken: []string{lost}},
		"it was deleted":                  {ops: []Op{lettersOf(Discard, 50, 1)}, sent: []Delivery{failed}, told: buried},
		"after its job":                   {ops: []Op{told(Cancel, 30, 200), lettersOf(Discard, 50, 1)}, sent: []Delivery{failed}, told: buried},
		"nobody answers that":             {ops: []Op{told(Discard, 50, 0)}, sent: []Delivery{failed}, told: buried},
		"the deletion was refused":        {ops: []Op{told(Discard, 50, 403)}, sent: []Delivery{failed}, told: buried, broken: []string{lost}},
		"it found none":                   {ops: []Op{lettersOf(Discard, 50, 0)}, sent: []Delivery{failed}, told: buried, broken: []string{counted, lost}},
		"it came before":                  {ops: []Op{lettersOf(Discard, 15, 0)}, sent: []Delivery{failed}, told: buried, broken: []string{lost}},
		"an instant that did not fail":    {ops: []Op{lettersOf(Discard, 50, 1)}, broken: []string{counted, lost}},
		"it counts two":                   {ops: []Op{lettersOf(Discard, 50, 2)}, sent: []Delivery{failed}, told: buried, broken: []string{counted}},
		"nothing had failed":              {ops: []Op{lettersOf(Discard, 50, 1)}, sent: []Delivery{taken}, broken: []string{counted}},
		"it may have failed":              {ops: []Op{lettersOf(Discard, 50, 1)}, sent: []Delivery{taken}, troubles: stall},
		"history does not know it":        {ops: []Op{lettersOf(Discard, 50, 0)}, sent: []Delivery{failed}, dead: dead, broken: []string{gone}},
		"it was retried":                  {ops: []Op{lettersOf(Discard, 50, 0)}, sent: []Delivery{failed, moved(attemptAt(20, 2, true), 52)}, told: retried},
		"its end may not be written":      {ops: []Op{lettersOf(Discard, 50, 0)}, sent: []Delivery{failed}, told: buried, dead: dead, troubles: stall},
		"it fails just then":              {ops: []Op{lettersOf(Discard, 24, 0)}, sent: []Delivery{failed}, told: buried, dead: dead},
		"another deletion is under way":   {ops: []Op{told(Discard, 49.9, 0), lettersOf(Discard, 50, 0)}, sent: []Delivery{failed}, told: buried},
		"it fails after another deletion": {ops: []Op{lettersOf(Discard, 15, 0), lettersOf(Discard, 50, 1)}, sent: []Delivery{failed}, told: buried},
		"it was deleted twice":            {ops: []Op{lettersOf(Discard, 40, 1), lettersOf(Discard, 50, 1)}, sent: []Delivery{failed}, told: buried, broken: []string{counted}},
		"a redrive is under way":          {ops: []Op{told(Redrive, 49.9, 0), lettersOf(Discard, 50, 0)}, sent: []Delivery{failed, moved(taken, 51)}, told: buried},
		"it was cancelled in flight":      {ops: []Op{cancel, lettersOf(Discard, 50, 0)}, sent: []Delivery{failed}, told: buried},
		"or replaced":                     {ops: []Op{replaced, lettersOf(Discard, 50, 0)}, sent: []Delivery{failed}, told: buried},
		"the job was cancelled later":     {ops: []Op{told(Cancel, 30, 200), lettersOf(Discard, 50, 0)}, sent: []Delivery{failed}, told: buried, broken: []string{counted}},
		"it is shown all the same":        {ops: []Op{lettersOf(Discard, 50, 1)}, sent: []Delivery{failed}, told: buried, dead: dead, broken: []string{gone}},
		"though nobody answered":          {ops: []Op{told(Discard, 50, 0)}, sent: []Delivery{failed}, told: buried, dead: dead},
		"nor does one that is taken leave it": {
			ops:  []Op{lettersOf(Discard, 40, 1), told(Redrive, 50, 0)},
			sent: []Delivery{failed, moved(taken, 51)}, told: buried, dead: dead, broken: []string{numbers, gone},
		},
		"it fails after it":                {ops: []Op{lettersOf(Discard, 15, 1)}, sent: []Delivery{failed}, told: buried, broken: []string{counted, lost}},
		"two attempts leave one":           {ops: []Op{lettersOf(Discard, 50, 2)}, sent: []Delivery{failed, attemptAt(20, 2, false)}, broken: []string{counted}},
		"its end may not have been told":   {ops: []Op{lettersOf(Discard, 50, 0)}, sent: []Delivery{failed}, told: buried, troubles: short, broken: []string{lost}},
		"nobody replaced it":               {ops: []Op{told(Create, 20.05, 412), lettersOf(Discard, 50, 0)}, sent: []Delivery{failed}, told: buried, broken: []string{counted, lost}},
		"one without an attempt is there":  {ops: []Op{other, lettersOf(Discard, 40, 1), lettersOf(Redrive, 50, 1)}, sent: []Delivery{failed, moved(taken, 51)}, told: buried},
		"it was deleted before it is lost": {ops: []Op{other, lettersOf(Discard, 40, 1), lettersOf(Redrive, 50, 1)}, sent: []Delivery{failed}, told: buried, broken: []string{lost}},
		"another one was deleted":          {ops: []Op{elsewhere, lettersOf(Discard, 50, 1)}, sent: []Delivery{failed}, told: buried, broken: []string{lost}},
		"it is another one":                {ops: []Op{lettersOf(Discard, 50, 1)}, sent: []Delivery{failed}, told: buried, dead: []Dead{{DeliveryID: "other", Instant: at(20)}}},
		"it was redriven":                  {ops: []Op{lettersOf(Redrive, 50, 1)}, sent: []Delivery{failed, moved(taken, 51)}, told: buried},
		"a redrive leaves it":              {ops: []Op{lettersOf(Redrive, 50, 0)}, sent: []Delivery{failed}, told: buried, dead: dead, broken: []string{counted}},
		"a deleted one is redriven":        {ops: []Op{lettersOf(Discard, 40, 1), lettersOf(Redrive, 50, 1)}, sent: []Delivery{failed, moved(taken, 51)}, told: buried, broken: []string{numbers, counted, lost}},
		"it fires":                         {ops: []Op{lettersOf(Discard, 40, 1), told(Redrive, 50, 0)}, sent: []Delivery{failed, moved(taken, 51)}, told: buried, broken: []string{numbers}},
		"it may be redriven before":        {ops: []Op{told(Redrive, 39.9, 0), lettersOf(Discard, 40, 0)}, sent: []Delivery{failed, moved(taken, 51)}, told: buried},
		"it fails again, and is deleted":   {ops: []Op{lettersOf(Redrive, 50, 1), lettersOf(Discard, 60, 1)}, sent: []Delivery{failed, again}, told: twice},
		"it is deleted without failing":    {ops: []Op{lettersOf(Redrive, 50, 1), lettersOf(Discard, 60, 1)}, sent: []Delivery{failed}, told: buried, broken: []string{counted, lost}},
		"a triggered one is deleted":       {ops: []Op{trigger, lettersOf(Discard, 50, 1)}, sent: []Delivery{failed}, told: buried},
		"it may be deleted until the end":  {ops: []Op{late}, sent: []Delivery{failed}, told: buried, dead: dead},
		"nor within a deadline":            {ops: []Op{strict, lettersOf(Discard, 50, 1)}},
		"and none was deleted":             {ops: []Op{strict}, broken: []string{lost, dropped}},
		"a receiver may not be called":     {ops: []Op{other, lettersOf(Discard, 50, 2)}},
	} {
		h := history(slices.Concat([]Op{put}, one.ops), one.sent...)
		h.Troubles, h.Settles, h.Due, h.Rules = one.troubles, time.Second, at(300), rules
		h.Final.Recorded, h.Final.Dead = one.told, map[string][]Dead{"k": one.dead}
		got := slices.DeleteFunc(broken(h), func(rule string) bool {
			return !slices.Contains([]string{lost, counted, gone, numbers, dropped, order}, rule)
		})
		if slices.Sort(one.broken); !slices.Equal(got, one.broken) {
			t.Errorf("%s: broken are %q, want %q: %v", name, got, one.broken, Check(h))
		}
	}
}

// TestCountsOfDeleted: a finished job counts a failure whose dead letter was deleted.
func TestCountsOfDeleted(t *testing.T) {
	put := told(Put, 1, 201)
	put.N, put.Attempts, put.Schedule.Instants = 1, 1, []time.Time{at(20), at(40)}
	sent := []Delivery{attemptAt(20, 1, true), attemptAt(40, 1, false)}
	buried := []Recorded{{Key: "k", DeliveryID: at(40).String(), Attempt: 1, Outcome: "buried", At: at(40)}}
	stall := []Trouble{{What: "stall", Replica: 1, From: at(40.05), To: at(59)}}
	const counts, last = "counts add up", "the last outcome is told"
	down := []Trouble{{What: "down", Replica: -1, From: at(40.05), To: at(59)}}
	for name, one := range map[string]struct {
		last                      Delivery // zero for one that fails, and whose dead letter is deleted
		told                      []Recorded
		troubles                  []Trouble
		again                     bool // it is retried, and taken
		refused                   bool // the deletion
		delivered, failed, missed int
		outcome                   string
		broken                    []string
	}{
		"it failed":                      {told: buried, delivered: 1, failed: 1, outcome: "failed"},
		"it counts as delivered":         {told: buried, delivered: 2, outcome: "failed", broken: []string{counts}},
		"it counts as missed":            {told: buried, delivered: 1, missed: 1, outcome: "failed", broken: []string{counts}},
		"it is not counted":              {told: buried, delivered: 1, outcome: "failed", broken: []string{counts}},
		"it is told as missed":           {told: buried, delivered: 1, failed: 1, outcome: "missed", broken: []string{last}},
		"it may not have been counted":   {told: buried, troubles: stall, delivered: 2, outcome: "delivered"},
		"history does not know it":       {delivered: 2, outcome: "delivered"},
		"nor whether it failed":          {delivered: 1, failed: 1, outcome: "failed"},
		"it was taken":                   {last: attemptAt(40, 1, true), troubles: down, delivered: 2, outcome: "delivered"},
		"what was taken is no failure":   {last: attemptAt(40, 1, true), troubles: down, delivered: 1, failed: 1, outcome: "failed", broken: []string{counts}},
		"it was retried":                 {again: true, delivered: 2, outcome: "delivered"},
		"that is no failure":             {again: true, delivered: 1, failed: 1, outcome: "delivered", broken: []string{counts}},
		"nor is it told as one":          {again: true, delivered: 2, outcome: "failed", broken: []string{last}},
		"nothing was deleted":            {told: buried, refused: true, delivered: 1, missed: 1, outcome: "missed"},
		"but it had an end, and no more": {delivered: 2, failed: 1, outcome: "failed", broken: []string{counts}},
	} {
		discard, sent := lettersOf(Discard, 70, 1), slices.Clone(sent)
		if one.last.ID != "" {
			discard, sent[1] = told(Discard, 70, 0), one.last
		}
		if one.again {
			discard, sent = told(Discard, 70, 0), append(sent, attemptAt(40, 2, true))
		}
		if one.refused {
			discard.Status = 403
		}
		h := history([]Op{put, discard}, sent...)
		h.Settles, h.CountsApart, h.Troubles, h.Final.Recorded = time.Second, true, one.troubles, one.told
		h.Final.Jobs = map[string]Job{"k": {
			N: 1, State: "finished", Counted: true, Delivered: one.delivered, Failed: one.failed, Missed: one.missed,
			Last: Outcome{Outcome: one.outcome, Instant: at(40)},
		}}
		got := slices.DeleteFunc(broken(h), func(rule string) bool { return rule != counts && rule != last })
		if !slices.Equal(got, one.broken) {
			t.Errorf("%s: broken are %q, want %q: %v", name, got, one.broken, Check(h))
		}
	}
}
