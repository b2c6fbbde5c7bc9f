package checker

import (
	"cmp"
	"slices"
	"time"
)

// soon is the time within which an outcome and its entry in history are written without a fault.
const soon = 5 * time.Second

// concerns reports whether a trouble concerned a replica.
func (t Trouble) concerns(replica int) bool { return t.Replica == -1 || t.Replica == replica }

// storeOrReplica reports whether a trouble keeps a replica from the store, or from its work.
func (t Trouble) storeOrReplica() bool {
	switch t.What {
	case "receivers", "step", "drift", "stop":
		return false
	default:
		return true
	}
}

// written returns the time at which a replica has written an attempt's outcome: soon after its end, unless it stands
// still, or has trouble with the store, again and again.
func (k *keyed) written(d *Delivery) time.Time {
	more := cmp.Or(2*k.Settles, k.Lease)
	return k.writtenBy(d, func(t Trouble) time.Time { return t.To.Add(more) })
}

// writtenBy is written, where over returns the time at which a trouble has no effect any more.
func (k *keyed) writtenBy(d *Delivery, over func(Trouble) time.Time) time.Time {
	until := d.Ended.Add(soon)
	for range k.Troubles {
		for _, t := range k.Troubles {
			if t.concerns(d.Replica) && t.storeOrReplica() && t.From.Before(until) &&
				over(t).After(d.Ended) && over(t).After(until) {
				until = over(t)
			}
		}
	}
	return until
}

// recovered returns the time at which a replica has written all outcomes after a trouble with the store.
func (k *keyed) recovered(t Trouble) time.Time {
	if t.What == "lossy" { // a call may fail after its whole time
		return t.To.Add(2 * k.Settles)
	}
	return t.To.Add(k.Settles)
}

// outlived reports whether troubles may have kept a replica from writing a delivery's outcome until the claim's lease
// had ended. Then another replica may have claimed the occurrence before, and given it back unfired, since the receiver
// was busy. No outcome of the first claim holds after that, however soon it is written, and the next attempt comes at
// any time.
func (k *keyed) outlived(d *Delivery) bool {
	until := k.writtenBy(d, k.recovered)
	leased := k.Lease - k.Early - k.spread() // at least
	return k.Settles > 0 && until.After(d.Ended.Add(soon)) && until.After(k.claimedBefore(d).Add(leased))
}

// claimedBefore returns the earliest time at which a delivery may have been claimed: shortly before its beginning,
// unless its replica had trouble between the two.
func (k *keyed) claimedBefore(d *Delivery) time.Time {
	earliest := d.Begun.Add(-k.CallbackTimeout)
	if slices.ContainsFunc(k.Troubles, func(t Trouble) bool {
		return t.concerns(d.Replica) && t.storeOrReplica() && t.From.Before(d.Begun) &&
			t.To.After(earliest)
	}) {
		return earliest
	}
	return d.Begun.Add(-time.Second)
}

// muchLater reports whether an attempt comes so long after another one that there may have been a claim between them
// that sent nothing. One that comes as soon as the lease has ended is of the first claim since.
func (k *keyed) muchLater(d, e *Delivery) bool {
	const poll = 2 * time.Second
	return e.Begun.After(d.Begun.Add(k.Lease - k.Early + k.spread() + poll))
}

// unwritten reports whether a replica may not have written an attempt's outcome soon.
func (k *keyed) unwritten(d *Delivery) bool { return k.written(d).After(d.Ended.Add(soon)) }

// mayLack reports whether history may lack an attempt: its replica ended before it had written the entry.
func (k *keyed) mayLack(d *Delivery) bool {
	until := k.written(d)
	return slices.ContainsFunc(k.Troubles, func(t Trouble) bool {
		return t.Replica == d.Replica && (t.What == "crash" || t.What == "kill" || t.What == "stop" && k.unwritten(d)) &&
			!t.To.Before(d.Begun) && t.From.Before(until)
	})
}
