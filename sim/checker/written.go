package checker

import (
	"cmp"
	"slices"
	"time"
)

// soon is the time within which an outcome and its entry in history are written without a fault.
const soon = 5 * time.Second

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
	until := d.Ended.Add(soon)
	for range k.Troubles {
		for _, t := range k.Troubles {
			over := t.To.Add(more)
			if (t.Replica == d.Replica || t.Replica == -1) && t.storeOrReplica() && t.From.Before(until) &&
				over.After(d.Ended) && over.After(until) {
				until = over
			}
		}
	}
	return until
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
