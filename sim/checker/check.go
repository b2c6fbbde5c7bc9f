package checker

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Violation is a guarantee that a history breaks.
type Violation struct {
	// Rule names the guarantee.
	Rule string
	Key  string
	Text string
	At   time.Time
}

// Late is the time within which everything due must have fired, or be accounted for, after the last fault.
const Late = 3 * time.Minute

// Verdict is the judgement of a history.
type Verdict struct {
	// Broken are the guarantees that it breaks; none if it keeps all.
	Broken []Violation
	// Undecided are the keys of which no order of the operations was found or excluded in time.
	Undecided []string
}

// Check returns the guarantees that a history breaks; none if it keeps all, as far as that is decided.
func Check(h *History) []Violation { return Judge(h).Broken }

// Judge judges a history.
func Judge(h *History) (v Verdict) {
	v.Broken = append(h.refusals(), h.keys()...)
	asked := h
	h = h.allowed()
	keys := map[string]*keyed{}
	of := func(key string) *keyed {
		if keys[key] == nil {
			keys[key] = &keyed{History: h, key: key}
		}
		return keys[key]
	}
	for i := range h.Ops {
		if o := &h.Ops[i]; o.Key != "" {
			of(o.Key).ops = append(of(o.Key).ops, o)
		}
	}
	for i := range h.Deliveries {
		of(h.Deliveries[i].Key).sent = append(of(h.Deliveries[i].Key).sent, &h.Deliveries[i])
	}
	names := make([]string, 0, len(keys))
	for key := range keys {
		names = append(names, key)
	}
	slices.Sort(names)
	for _, key := range names {
		k := keys[key]
		slices.SortStableFunc(k.ops, func(a, b *Op) int { return a.Invoked.Compare(b.Invoked) })
		slices.SortStableFunc(k.sent, func(a, b *Delivery) int { return a.Begun.Compare(b.Begun) })
		k.check()
		v.Broken = append(v.Broken, k.found...)
		if k.undecided {
			v.Undecided = append(v.Undecided, key)
		}
	}
	v.Broken = append(v.Broken, asked.prefixes(keys)...)
	v.Broken = append(v.Broken, h.operators()...)
	for _, reason := range h.Final.Unready {
		v.Broken = append(v.Broken, Violation{Rule: "ready again", Text: reason, At: h.Ended})
	}
	for _, reason := range h.Final.Unread {
		v.Broken = append(v.Broken, Violation{Rule: "readable again", Text: reason, At: h.Ended})
	}
	return v
}

// keyed is the part of a history that is about one job's key.
type keyed struct {
	*History
	key   string
	ops   []*Op       // in the order of their invocations
	sent  []*Delivery // in the order of their beginnings
	found []Violation
	// undecided is set if no order of the operations was found or excluded in time.
	undecided bool
	moves     moves
}

func (k *keyed) report(rule string, at time.Time, format string, args ...any) {
	k.found = append(k.found, Violation{Rule: rule, Key: k.key, Text: fmt.Sprintf(format, args...), At: at})
}

func (k *keyed) check() {
	k.moved()
	k.neverEarly()
	k.neverSooner()
	k.wrongClock()
	k.ids()
	k.standAlone()
	k.oneClaimer()
	k.duplicates()
	k.payloads()
	k.ended()
	k.cancelled()
	k.paused()
	k.nothingLost()
	k.pastInstants()
	k.punctual()
	k.prompt()
	k.takenOver()
	k.dropped()
	k.onlyLatest()
	k.droppedForCause()
	k.counts()
	k.attempts()
	k.pauses()
	k.letters()
	k.register()
	k.historyTold()
}

// clock shows a time as the time since the beginning.
func (k *keyed) clock(at time.Time) string { return at.Sub(k.Begun).Round(time.Millisecond).String() }

// succeeded reports whether the client knows that the operation took effect.
func (o *Op) succeeded() bool { return o.Status >= 200 && o.Status < 300 }

// maybe reports whether the operation may have taken effect.
func (o *Op) maybe() bool {
	return o.succeeded() || !o.Unchanged && (o.Status == 0 || o.Status >= 500)
}

// puts reports whether an operation gives a job a schedule.
func (o *Op) puts() bool { return o.Kind == Put || o.Kind == Create || o.Kind == Replace }

// mayRedrive reports whether an operation may have redriven a dead letter.
func (o *Op) mayRedrive() bool {
	return o.Kind == Redrive && o.maybe() && (o.Redriven > 0 || !o.succeeded())
}

// latest returns the time after which the operation can't take effect any more.
func (h *History) latest(o *Op) time.Time {
	if o.Status != 0 {
		return o.Returned
	}
	until := o.Invoked.Add(h.Link + h.Within)
	if last := o.Returned.Add(h.Within); o.Several && last.After(until) { // none begins once the client has gone
		return last
	}
	return until
}

// triggered returns the ids of deliveries that were triggered.
func (k *keyed) triggered() map[string]bool {
	ids := map[string]bool{}
	for _, o := range k.ops {
		if o.Kind == Trigger && o.DeliveryID != "" {
			ids[o.DeliveryID] = true
		}
	}
	return ids
}

// defining returns the puts or amendments with a payload: an operation, and its repetitions by the client.
func (k *keyed) defining(n int) (all []*Op) {
	for _, o := range k.ops {
		if o.N == n && (o.puts() || o.Kind == Amend) {
			all = append(all, o)
		}
	}
	return all
}

// scheduled reports whether some put of the key has an instant.
func (k *keyed) scheduled(at time.Time) bool {
	return slices.ContainsFunc(k.ops, func(o *Op) bool { return o.puts() && o.Schedule.Has(at) })
}

// neverEarly: no delivery begins before its instant, or the time to which its job's spread moves that, less the early
// window, by the clock of the replica that sends it, unless that clock was set since the claim.
func (k *keyed) neverEarly() {
	for _, d := range k.sent {
		due := d.Instant
		if !k.loose(d) { // else nothing moves it
			due = k.soonest(d)
		}
		if d.Local.Before(due.Add(-k.Early)) && !k.stepped(d) {
			k.report("never early", d.Begun, "instant %s, due at %s, was fired at %s by the replica's clock",
				k.clock(d.Instant), k.clock(due), k.clock(d.Local))
		}
	}
}

// ids: all attempts at an instant have one delivery id, and no other instant has it.
func (k *keyed) ids() {
	triggered := k.triggered()
	instants, ids := map[string]time.Time{}, map[time.Time]string{}
	for _, d := range k.sent {
		if at, known := instants[d.ID]; known && !at.Equal(d.Instant) {
			k.report("stable id", d.Begun, "id %s is that of two instants, %s and %s", d.ID, k.clock(at), k.clock(d.Instant))
		}
		instants[d.ID] = d.Instant
		if triggered[d.ID] || !k.scheduled(d.Instant) {
			continue
		}
		if id, known := ids[d.Instant]; known && id != d.ID && !k.mayBeTriggered(d.Instant, time.Minute, true) {
			k.report("stable id", d.Begun, "instant %s has two ids, %s and %s", k.clock(d.Instant), id, d.ID)
		}
		ids[d.Instant] = d.ID
	}
}

// mayBeTriggered reports whether a trigger may have made an occurrence at an instant, by a clock that is wrong by no
// more than some time; told is set if it may also be one with an answer, which tells the delivery's id.
func (k *keyed) mayBeTriggered(at time.Time, wrong time.Duration, told bool) bool {
	return slices.ContainsFunc(k.ops, func(o *Op) bool {
		return o.Kind == Trigger && o.maybe() && (told || o.DeliveryID == "") &&
			!at.Before(o.Invoked.Add(-wrong)) && !at.After(k.latest(o).Add(wrong))
	})
}

// oneClaimer: no two attempts at one occurrence are under way at a time. A job that was cancelled or replaced, and
// submitted again, has another occurrence with the same id, and so has another dead letter of the same instant.
func (k *keyed) oneClaimer() {
	for i, d := range k.sent {
		for _, e := range k.sent[i+1:] {
			from := d.Begun.Add(-k.Lease)
			anew := (d.N != e.N || k.putBetween(e.N, from, e.Begun)) &&
				(k.cancelledBetween(from, e.Begun) || k.anew(d, e, k.replacedBefore) || k.anew(d, e, k.firedBeside))
			if e.ID == d.ID && e.Begun.Before(d.Ended) && !anew && !k.twins(d, e) {
				k.report("one claimer", e.Begun, "replica %d sent instant %s while replica %d was sending it, since %s",
					e.Replica, k.clock(e.Instant), d.Replica, k.clock(d.Begun))
			}
		}
	}
}

// putBetween reports whether a payload may have been submitted, or submitted again, in a time.
func (k *keyed) putBetween(n int, from, to time.Time) bool {
	return slices.ContainsFunc(k.defining(n), func(o *Op) bool {
		return o.Kind != Amend && o.maybe() && o.Invoked.Before(to) && k.latest(o).After(from)
	})
}

// cancelledBetween reports whether the job may have been cancelled in a time.
func (k *keyed) cancelledBetween(from, to time.Time) bool {
	return slices.ContainsFunc(k.ops, func(o *Op) bool {
		return o.Kind == Cancel && o.maybe() && o.Invoked.Before(to) && k.latest(o).After(from)
	})
}

// duplicates: after a replica was told that a receiver took a delivery, it is sent again only if the replica died,
// stalled or lost the store before it could record that.
func (k *keyed) duplicates() {
	for i, d := range k.sent {
		if !d.Took || !d.Told {
			continue
		}
		for _, e := range k.sent[i+1:] {
			if e.ID != d.ID || k.unrecorded(d, e) || k.twins(d, e) {
				continue
			}
			if k.redrivenSince(d, e.Begun) || k.anew(d, e, k.cancelledBefore) || k.anew(d, e, k.replacedBefore) ||
				k.anew(d, e, k.firedAgain) {
				continue
			}
			k.report("no duplicate without a cause", e.Begun, "instant %s was taken at %s and sent again",
				k.clock(d.Instant), k.clock(d.Ended))
			break
		}
	}
}

// redrivenSince reports whether the dead letter that a delivery may have left may have been redriven before a time.
func (k *keyed) redrivenSince(d *Delivery, before time.Time) bool {
	return slices.ContainsFunc(k.ops, func(o *Op) bool {
		return o.Kind == Redrive && o.maybe() && o.Invoked.Before(before) && k.latest(o).After(d.Begun) &&
			!k.endedBy(d, o, Discard)
	})
}

// anew reports whether, between two deliveries of an instant, a job with the instant may have been submitted for which
// the first one's job was over.
func (k *keyed) anew(d, e *Delivery, over func(d *Delivery, put *Op) bool) bool {
	return slices.ContainsFunc(k.ops, func(o *Op) bool {
		return o.puts() && o.maybe() && o.Schedule.Has(d.Instant) && o.Invoked.Before(e.Begun) &&
			over(d, o)
	})
}

// cancelledBefore reports whether a delivery's job may have been cancelled before a put, and the put came while the
// instant was still ahead, or nearly so: a cancellation forgets which instants have fired.
func (k *keyed) cancelledBefore(d *Delivery, put *Op) bool {
	return k.latest(put).After(d.Instant.Add(-k.Lease)) && put.Invoked.Before(d.Instant.Add(k.Lease)) &&
		slices.ContainsFunc(k.ops, func(c *Op) bool {
			return c.Kind == Cancel && c.maybe() && c.Invoked.Before(k.latest(put))
		})
}

// replacedBefore reports whether the instant of a delivery may be due again after a put, since the job was replaced
// before by one without the instant. A recurring job is without it if the instant has passed by its replica's faster
// clock. By the slower clock of the put's replica, the instant must still be ahead: the replacement forgets that it has
// fired.
func (k *keyed) replacedBefore(d *Delivery, put *Op) bool {
	return put.Invoked.Add(-put.Behind).Before(d.Instant) && !k.latest(put).Before(d.Begun) &&
		slices.ContainsFunc(k.ops, func(o *Op) bool {
			begins := k.latest(o).Add(o.Ahead) // by its replica's clock, at the latest
			lacks := !o.Schedule.Has(d.Instant) || o.Schedule.Every > 0 && begins.After(d.Instant)
			return o != put && o.puts() && o.maybe() && lacks &&
				o.Invoked.Before(k.latest(put)) && k.latest(o).After(d.Begun.Add(-k.CallbackTimeout))
		})
}

// unrecorded reports whether a fault may have kept a replica from recording a delivery before the next attempt at it:
// the end of the replica, a time in which it stood still, or a trouble with the store that lasted until shortly before
// that attempt, or until the claim's lease had ended. After a shorter one, the replica must have written the outcome. A
// replica that ends in good order writes all outcomes, if the store is well.
func (k *keyed) unrecorded(d, e *Delivery) bool {
	stopped := slices.ContainsFunc(k.Troubles, func(t Trouble) bool {
		return t.What == "stop" && t.Replica == d.Replica && t.From.Before(e.Begun) && t.To.After(d.Begun)
	})
	return k.outlived(d) && k.muchLater(d, e) || slices.ContainsFunc(k.Troubles, func(t Trouble) bool {
		if !t.concerns(d.Replica) || !t.From.Before(e.Begun) || !t.To.After(d.Ended.Add(-k.Lease)) {
			return false
		}
		if k.Settles == 0 {
			return true
		}
		switch t.What {
		case "receivers", "stop":
			return false
		case "crash":
			return t.From.After(d.Begun)
		case "stall":
			return t.To.After(d.Begun)
		case "step", "drift":
			return true
		default:
			return stopped || k.recovered(t).After(e.Begun)
		}
	})
}

// payloads: each delivered payload was submitted, by an operation that was not refused, for that instant.
func (k *keyed) payloads() {
	for _, d := range k.sent {
		all := k.defining(d.N)
		switch {
		case len(all) == 0 || all[0].Invoked.After(d.Begun):
			k.report("no mixture", d.Begun, "payload %d was delivered before it was submitted", d.N)
		case !slices.ContainsFunc(all, (*Op).maybe):
			k.report("no mixture", d.Begun, "payload %d was delivered, though the client was told that nothing was changed (%d)",
				d.N, all[0].Status)
		case k.loose(d):
		case all[0].Kind != Amend && !slices.ContainsFunc(all, func(o *Op) bool { return o.Schedule.Has(d.Instant) }):
			k.report("no mixture", d.Begun, "payload %d was delivered for instant %s, which its job does not have",
				d.N, k.clock(d.Instant))
		}
	}
}

// ended: once a cancellation, a replacement or an amendment is answered, nothing of the former definition fires, except
// the occurrences that were held then, and each of them once.
func (k *keyed) ended() {
	for _, o := range k.ops {
		if o.Kind != Cancel && o.Kind != Put && o.Kind != Replace && o.Kind != Amend || !o.succeeded() || k.spares(o) {
			continue
		}
		fired, count := map[string]int{}, 0
		for _, d := range k.formerAfter(o) {
			if fired[d.ID]++; fired[d.ID] == 1 && !k.endedBefore(d.N, o) {
				count++
			}
			switch {
			case k.soonest(d).After(o.Returned.Add(k.reach())):
				k.report("an end is an end", d.Begun, "payload %d was fired for instant %s, which was still ahead when the %s "+
					"was answered at %s", d.N, k.clock(d.Instant), o.Kind, k.clock(o.Returned))
			case d.Begun.After(o.Returned.Add(k.heldFor(d))):
				k.report("an end is an end", d.Begun, "payload %d was fired for instant %s, longer than a claim lasts after "+
					"the %s was answered at %s", d.N, k.clock(d.Instant), o.Kind, k.clock(o.Returned))
			case fired[d.ID] == 2:
				k.report("an end is an end", d.Begun, "payload %d was retried for instant %s after the %s was answered at %s",
					d.N, k.clock(d.Instant), o.Kind, k.clock(o.Returned))
			}
		}
		if o.Kind != Amend && count > o.InFlight && !k.endedBeside(o) && !k.mayKeep(o) {
			k.report("an end is an end", o.Returned, "%d former occurrences fired after the %s was answered, which named %d",
				count, o.Kind, o.InFlight)
		}
	}
}

// formerAfter returns the deliveries of the former definition after the answer to an operation.
func (k *keyed) formerAfter(o *Op) (all []*Delivery) {
	for _, d := range k.sent {
		if d.Begun.After(o.Returned) && k.former(d.N, o) && !k.loose(d) {
			all = append(all, d)
		}
	}
	return all
}

// heldFor returns the longest time from a claim to the beginning of a delivery: that of a callback, unless its replica
// stood still before it.
func (k *keyed) heldFor(d *Delivery) time.Duration {
	if k.stoodStill(d) {
		return k.Lease
	}
	return k.CallbackTimeout + time.Second
}

// stoodStill reports whether a replica stood still just before a delivery, perhaps between its last look at the clock
// and the sending.
func (k *keyed) stoodStill(d *Delivery) bool {
	return slices.ContainsFunc(k.Troubles, func(t Trouble) bool {
		return t.What == "stall" && t.concerns(d.Replica) && t.From.Before(d.Begun) && t.To.After(d.Begun.Add(-time.Second))
	})
}

// endedBefore reports whether an operation before another one may have ended a payload's definition, so that its answer
// names the occurrences in flight.
func (k *keyed) endedBefore(n int, o *Op) bool {
	return slices.ContainsFunc(k.ops, func(p *Op) bool {
		return p != o && (p.Kind == Cancel || p.puts()) && p.maybe() && k.former(n, p) &&
			k.latest(p).Before(o.Invoked)
	})
}

// endedBeside reports whether another operation at the same time may have ended the former definition, so that its
// answer names the occurrences in flight.
func (k *keyed) endedBeside(o *Op) bool {
	return slices.ContainsFunc(k.ops, func(p *Op) bool {
		return p != o && (p.Kind == Cancel || p.puts()) && p.maybe() &&
			p.Invoked.Before(o.Returned) && !k.latest(p).Before(o.Invoked)
	})
}

// mayKeep reports whether a replacement by a patch may have found a job with the same schedule. Then it keeps the
// occurrences, and its answer names none in flight.
func (k *keyed) mayKeep(o *Op) bool {
	return o.Kind == Replace && slices.ContainsFunc(k.ops, func(p *Op) bool {
		return p != o && p.puts() && p.maybe() && p.Invoked.Before(o.Returned) && p.Schedule.same(o.Schedule)
	})
}

// former reports whether a payload's operations were over for certain before another one was invoked.
func (k *keyed) former(n int, o *Op) bool {
	all := k.defining(n)
	return len(all) > 0 && !slices.ContainsFunc(all, func(p *Op) bool { return p == o || !k.latest(p).Before(o.Invoked) })
}

// nothingLost: each instant of an acknowledged job that was still ahead, by the replica's clock, was taken by the
// receiver, is a dead letter or may be a deleted one, was missed by the job's own rule and counted, or may have been
// cancelled or replaced by a later operation. A job without such a rule misses nothing, whatever it counts.
func (k *keyed) nothingLost() {
	missed := map[int]int{}
	for _, o := range k.ops {
		for _, at := range k.pastLost(o) {
			k.report("nothing lost", at, "instant %s of payload %d, which had passed, was not delivered again, and is no dead "+
				"letter", k.clock(at), o.N)
		}
		from, stands := k.stands(o)
		if !stands {
			continue
		}
		for _, at := range o.Schedule.Between(from, k.Due) {
			switch {
			case k.taken(at), k.isDead(at), k.mayBeDeleted(at), k.maySupersede(o), k.passedBefore(o, at):
			default:
				if _, drops := k.tooLate(o, at); drops {
					missed[o.ID]++
					if k.Final.Jobs[k.key].Missed >= missed[o.ID] || k.uncounted(o, at) {
						continue
					}
				}
				k.report("nothing lost", at, "instant %s of payload %d, acknowledged or shown by %s, was not delivered, is no "+
					"dead letter and is not counted as missed", k.clock(at), o.N, k.clock(from))
			}
		}
	}
}

// passedBefore reports whether an instant may have passed by the clock of a replica that stored an earlier job with it.
// That job skipped it, and for the next one it counts as settled.
func (k *keyed) passedBefore(o *Op, at time.Time) bool {
	return slices.ContainsFunc(k.ops, func(p *Op) bool {
		return p.N != o.N && p.puts() && p.maybe() && p.Invoked.Before(o.Returned) &&
			p.Schedule.Has(at) && p.Ahead > 0 && !at.After(k.latest(p).Add(p.Ahead))
	})
}

// stands reports whether a put has certainly taken effect, and the time after which its instants were ahead for all:
// the client was told so, or it was not told, and a later reading shows the payload.
func (k *keyed) stands(o *Op) (from time.Time, stands bool) {
	if !o.puts() {
		return from, false
	}
	all := k.defining(o.N)
	if o.succeeded() {
		ahead := o.Ahead
		for _, p := range all { // one of the same put may have come first, and o continues its schedule
			if p.maybe() && p.Invoked.Before(o.Returned) {
				ahead = max(ahead, p.Ahead)
			}
		}
		return o.Returned.Add(ahead), true
	}
	if slices.ContainsFunc(all, (*Op).succeeded) || all[0] != o {
		return from, false
	}
	for _, p := range all {
		if until := k.latest(p).Add(p.Ahead); until.After(from) {
			from = until
		}
	}
	shown := k.Final.Jobs[k.key].N == o.N || slices.ContainsFunc(k.ops, func(g *Op) bool {
		return g.Kind == Get && g.Status == 200 && g.Shown.N == o.N
	})
	return from, shown
}

func (k *keyed) taken(at time.Time) bool {
	return slices.ContainsFunc(k.sent, func(d *Delivery) bool { return d.Took && d.Instant.Equal(at) })
}

func (k *keyed) isDead(at time.Time) bool {
	return slices.ContainsFunc(k.Final.Dead[k.key], func(d Dead) bool { return d.Instant.Equal(at) })
}

// maySupersede reports whether another operation may have ended or replaced a put's job before an instant was
// delivered, or whether the job may be paused. If the final reading shows the payload of the put, none has.
func (k *keyed) maySupersede(put *Op) bool {
	final := k.Final.Jobs[k.key]
	if final.N == put.N && len(k.defining(put.N)) == 1 && final.State != "paused" {
		return false
	}
	return final.State == "paused" || slices.ContainsFunc(k.ops, func(o *Op) bool {
		replaces := o.Kind == Cancel || o.puts()
		return o != put && replaces && o.maybe() && !k.latest(o).Before(put.Invoked) && !o.repeats(put)
	})
}

// repeats reports whether an operation is the same put as another one, sent again, for the same instants.
func (o *Op) repeats(put *Op) bool {
	return o.N == put.N && o.Kind == put.Kind && o.Schedule.same(put.Schedule)
}

// String shows a violation in one line.
func (v Violation) String() string {
	return strings.TrimSpace(fmt.Sprintf("%s: %s %s", v.Rule, cmp.Or(v.Key, "-"), v.Text))
}
