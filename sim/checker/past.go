package checker

import (
	"net/http"
	"slices"
	"time"
)

// mayFirePast reports whether instants that have passed may fire by a put. By default, they do if it makes a new job.
func (o *Op) mayFirePast() bool {
	replaced := o.Kind == Replace || o.Status == http.StatusOK
	return o.puts() && o.maybe() && (o.Past == "fire" || o.Past == "" && !replaced)
}

// firesPast reports whether all instants that have passed fire by a put for certain.
func (k *keyed) firesPast(o *Op) bool {
	return o.mayFirePast() && o.succeeded() && !k.mayKeep(o)
}

// skipsPast reports whether instants that have passed do not fire by a put for certain, unless they were pending.
func (o *Op) skipsPast() bool { return o.puts() && o.succeeded() && !o.mayFirePast() }

// certainlyPast and maybePast return the instants of a put that had passed, by the clock of its replica.
func (k *keyed) certainlyPast(o *Op) []time.Time {
	return o.Schedule.before(o.Invoked.Add(-o.Behind - time.Millisecond))
}

func (k *keyed) maybePast(o *Op) []time.Time {
	return o.Schedule.before(k.latest(o).Add(o.Ahead))
}

// pastInstants: the instants of a put that have passed fire, or are skipped and counted, or have the put refused, as it
// asks. By default, they fire if it makes a new job.
func (k *keyed) pastInstants() {
	const rule = "past instants are as asked"
	for _, o := range k.ops {
		if !o.puts() || len(o.Schedule.Instants) == 0 {
			continue
		}
		past := k.certainlyPast(o)
		own := slices.DeleteFunc(slices.Clone(past), func(at time.Time) bool { return k.otherHas(o, at) })
		switch most := len(k.maybePast(o)); {
		case o.Past == "reject" && o.succeeded() && len(past) > 0:
			k.report(rule, o.Returned, "the %s was answered with %d, though instant %s had passed",
				o.Kind, o.Status, k.clock(past[0]))
		case k.firesPast(o) && o.Skipped > 0:
			k.report(rule, o.Returned, "the %s skipped %d instants, though all that have passed must fire", o.Kind, o.Skipped)
		case o.skipsPast() && (o.Skipped < len(own) || o.Skipped > most):
			k.report(rule, o.Returned, "the %s skipped %d instants, of %d to %d", o.Kind, o.Skipped, len(own), most)
		}
		if !o.skipsPast() {
			continue
		}
		for _, d := range k.sent {
			if d.N == o.N && slices.ContainsFunc(own, d.Instant.Equal) {
				k.report(rule, d.Begun, "instant %s was fired, which payload %d must skip", k.clock(d.Instant), d.N)
			}
		}
	}
}

// otherHas reports whether another put, which may have come before, has an instant.
func (k *keyed) otherHas(o *Op, at time.Time) bool {
	return slices.ContainsFunc(k.ops, func(p *Op) bool {
		return p != o && p.puts() && p.maybe() && p.Invoked.Before(k.latest(o)) && p.Schedule.Has(at)
	})
}

// mayReject reports whether a put may be refused since one of its instants has passed.
func (h *History) mayReject(o *Op) bool {
	return o.Past == "reject" && len(o.Schedule.before(o.Returned.Add(o.Ahead))) > 0
}

// firedAnew reports whether a put may have made an instant of a delivery fire once more, after that had passed: the put
// asks for that, or may have found no job.
func (k *keyed) firedAnew(at, from time.Time, put *Op) bool {
	return put.mayFirePast() && put.Schedule.Has(at) && k.latest(put).Add(put.Ahead).After(at) &&
		k.latest(put).After(from) && (put.Past == "fire" || put.Kind == Create ||
		slices.ContainsFunc(k.ops, func(c *Op) bool {
			return c.Kind == Cancel && c.maybe() && c.Invoked.Before(k.latest(put)) &&
				k.latest(c).After(from.Add(-k.Lease))
		}))
}

// firedAgain reports whether a put may have made the instant of a delivery fire once more, since it had passed.
func (k *keyed) firedAgain(d *Delivery, put *Op) bool { return k.firedAnew(d.Instant, d.Begun, put) }

// firedBeside reports whether a put may have made the instant of a delivery fire once more while that was under way: a
// job without the instant came between both.
func (k *keyed) firedBeside(d *Delivery, put *Op) bool {
	return k.firedAgain(d, put) && slices.ContainsFunc(k.ops, func(o *Op) bool {
		return o != put && o.puts() && o.maybe() && !o.Schedule.Has(d.Instant) && o.Invoked.Before(k.latest(put)) &&
			k.latest(o).After(d.Begun.Add(-k.CallbackTimeout))
	})
}

// pastLost: each instant that had passed when a put was acknowledged that fires it was taken since, or recorded as
// taken, or ended as any other instant may.
func (k *keyed) pastLost(o *Op) (lost []time.Time) {
	if !k.firesPast(o) || k.maySupersede(o) {
		return nil
	}
	for _, at := range k.certainlyPast(o) {
		_, drops := k.tooLate(o, at)
		taken := slices.ContainsFunc(k.sent, func(d *Delivery) bool {
			return d.Took && d.Instant.Equal(at) && k.written(d).After(o.Invoked)
		})
		if !taken && !drops && !k.isDead(at) && !k.mayBeDeleted(at) {
			lost = append(lost, at)
		}
	}
	return lost
}
