package checker

import (
	"slices"
	"time"
)

// noticed is the time within which other replicas notice that one has died, and answers tell so.
const noticed = 40 * time.Second

// attempt is an attempt at an occurrence, as history names it.
type attempt struct {
	id     string
	number int
}

// historyTold: each attempt of the service's history was seen by the receiver, with the outcome that history tells, and
// each attempt that the receiver saw is in history, unless its replica ended before it had written the entry, and
// history tells that entries of that time may be missing. An occurrence whose receiver must not be called is buried
// unsent.
func (k *keyed) historyTold() {
	seen, told := map[attempt][]*Delivery{}, map[attempt]bool{}
	for _, d := range k.sent {
		a := attempt{d.ID, d.Attempt}
		seen[a] = append(seen[a], d)
	}
	for _, r := range k.Final.Recorded {
		if r.Key != k.key {
			continue
		}
		a := attempt{r.DeliveryID, r.Attempt}
		told[a] = true
		switch {
		case r.Outcome == "unknown":
			k.causeOfUnknown(r, seen[a])
		case r.Outcome == "buried" && k.mayBeUnsent() && len(seen[a]) <= k.released(a, seen[a])+k.ofOthers(r, seen[a]):
		case len(seen[a]) == 0:
			k.report("history is true", k.Ended,
				"history tells of attempt %d at %s, which no receiver saw", r.Attempt, r.DeliveryID)
		case !slices.ContainsFunc(seen[a], func(d *Delivery) bool { return k.agrees(d, r.Outcome) }):
			d := seen[a][0]
			k.report("history is true", d.Begun, "history tells that attempt %d at instant %s was %s: taken %v, told %v",
				d.Attempt, k.clock(d.Instant), r.Outcome, d.Took, d.Told)
		}
	}
	if k.Final.Missing == nil || len(k.Final.Unread) > 0 {
		return
	}
	missing := k.Final.Missing[k.key]
	for _, d := range k.sent {
		named := d.Begun.After(missing.From.Add(-wrong)) && d.Begun.Before(missing.Until.Add(wrong)) ||
			k.written(d).Add(noticed).After(k.Ended)
		if !told[attempt{d.ID, d.Attempt}] && k.written(d).Before(k.Ended) && (!named || !k.mayLack(d)) {
			k.report("history is whole", d.Begun, "history lacks attempt %d at instant %s", d.Attempt, k.clock(d.Instant))
		}
	}
}

// released returns how many attempts of a number may not have counted, by history or as their entries may be lost. The
// next one has the same number.
func (k *keyed) released(a attempt, seen []*Delivery) (n int) {
	for _, d := range seen {
		if k.mayLack(d) {
			n++
		}
	}
	for _, r := range k.Final.Recorded {
		if r.Key == k.key && (attempt{r.DeliveryID, r.Attempt}) == a && r.Outcome == "released" {
			n++
		}
	}
	return n
}

// ofOthers returns how many attempts of an entry's number history has of jobs before or after, with the same instant.
func (k *keyed) ofOthers(r Recorded, seen []*Delivery) (n int) {
	for _, e := range k.Final.Recorded {
		same := e.Key == r.Key && attempt{e.DeliveryID, e.Attempt} == attempt{r.DeliveryID, r.Attempt}
		if same && !e.At.Equal(r.At) && e.Outcome != "released" && len(seen) > 0 &&
			k.madeAnew(seen[0].Instant, earlier(e.At, r.At).Add(-wrong), later(e.At, r.At).Add(wrong)) {
			n++
		}
	}
	return n
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// agrees reports whether an outcome in history may be that of an attempt.
func (k *keyed) agrees(d *Delivery, outcome string) bool {
	told := d.Told && !k.tooLateFor(d)
	switch outcome {
	case "delivered":
		return d.Took && (d.Told || k.tooLateFor(d))
	case "buried":
		return !told && (d.Refused || d.Attempt >= k.fewestAttempts() || k.hasDeadline())
	default:
		return !told && !d.Refused
	}
}

// tooLateFor reports whether a replica may have stood still until it was too late for an attempt's answer.
func (k *keyed) tooLateFor(d *Delivery) bool {
	return slices.ContainsFunc(k.Troubles, func(t Trouble) bool {
		return t.What == "stall" && t.concerns(d.Replica) && t.To.After(d.Begun) &&
			t.From.Before(d.Begun.Add(k.CallbackTimeout))
	})
}

// fewestAttempts returns the most attempts of that job of the key which allows the fewest.
func (k *keyed) fewestAttempts() int {
	fewest := 0
	for _, o := range k.policies() {
		if fewest == 0 || o.Attempts < fewest {
			fewest = o.Attempts
		}
	}
	return fewest
}

// hasDeadline reports whether a job of the key has a deadline, so that an attempt may be the last.
func (k *keyed) hasDeadline() bool {
	for _, o := range k.ops {
		if o.Deadline > 0 && o.maybe() {
			return true
		}
	}
	return false
}

// causeOfUnknown: an attempt whose outcome history does not know was made by a replica that may not have written it, or
// was claimed by one that may not have sent it.
func (k *keyed) causeOfUnknown(r Recorded, seen []*Delivery) {
	from := r.At.Add(-2 * k.Lease)
	for _, d := range seen {
		if k.unwritten(d) || k.mayLack(d) {
			return
		}
		if d.Begun.Before(r.At) && d.Ended.After(from) {
			from = d.Ended
		}
	}
	if !k.mayClaimInVain(from, r.At) {
		k.report("history is true", r.At, "history does not know the outcome of attempt %d at %s, and no fault kept it "+
			"from that", r.Attempt, r.DeliveryID)
	}
}
