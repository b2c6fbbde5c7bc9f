package checker

import (
	"fmt"
	"net/http"
	"slices"
	"time"
)

// remembered is the longest time for which a replica that does not reach the store goes by its last reading of a key.
const remembered = 5 * time.Minute

// aboutKey reports whether an operation changes the key of its caller.
func (o *Op) aboutKey() bool { return o.Kind == Revoke || o.Kind == Rotate }

// byKey reports whether an operation was asked for by a caller's key.
func (o *Op) byKey() bool { return o.Caller != "" && !o.aboutKey() }

// admitted reports whether the answer shows that the caller's key was accepted.
func (o *Op) admitted() bool {
	return o.Status != 0 && o.Status < 500 && o.Status != http.StatusUnauthorized && o.Status != http.StatusTooManyRequests
}

// earliest and last bound the time of an operation by its replica's clock.
func (o *Op) earliest() time.Time { return later(o.Invoked, o.Arrived).Add(-o.Behind) }
func (o *Op) last() time.Time     { return o.Returned.Add(o.Ahead) }

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// keys: a key is accepted while it is valid, and not for longer.
func (h *History) keys() (found []Violation) {
	for i := range h.Ops {
		o := &h.Ops[i]
		if !o.byKey() {
			continue
		}
		report := func(rule, text string) {
			found = append(found, Violation{
				Rule: rule, Key: o.Key, At: o.Returned,
				Text: fmt.Sprintf("a %s at replica %d by %q with secret %d was answered with %d: %s",
					o.Kind, o.Replica, o.Caller, o.Secret, o.Status, text),
			})
		}
		switch {
		case o.admitted():
			if h.expired(o) {
				report("an expired key is refused", "the key had expired by the replica's clock")
			}
			if h.revoked(o) {
				report("a revoked key is refused", "the replica must know that the key was revoked")
			}
			if h.replaced(o) {
				report("a former secret is refused", "the replica must know that a rotation had ended the secret")
			}
		case o.Status == http.StatusUnauthorized && h.valid(o):
			report("a valid key is accepted", "the key was valid")
		case o.Kind == Preview && o.Status == http.StatusServiceUnavailable && h.valid(o) && (h.reaches(o) || h.remembers(o)):
			report("a valid key is accepted", "the key was valid, and the replica must know it")
		}
	}
	return found
}

// reaches reports whether the replica of an operation reaches the store, and has done so for some time.
func (h *History) reaches(o *Op) bool {
	return !h.troubled(o.Replica, o.Invoked.Add(-healthy), o.Returned)
}

// knows reports whether the replica of an operation must know of a change of the caller's key: at once if it has made
// it, some time later if it reaches the store, and in the end in any case, since it forgets the key as it was before.
func (h *History) knows(o, change *Op) bool {
	since := o.Invoked.Sub(change.Returned)
	return since > 0 && o.Replica == change.Replica && change.succeeded() ||
		since > settled && h.reaches(o) || since > remembered
}

// clockSet reports whether the clock of an operation's replica was set while the operation was under way, or shortly
// before: a secret that was refused by the clock of that moment may stay so for a while.
func (h *History) clockSet(o *Op) bool {
	from := o.Invoked.Add(-settled)
	return slices.ContainsFunc(h.Troubles, func(t Trouble) bool {
		during := func(at time.Time) bool { return !at.Before(from) && !at.After(o.Returned) }
		return (t.What == "step" || t.What == "drift") && t.concerns(o.Replica) && (during(t.From) || during(t.To))
	})
}

// expired reports whether the caller's key had certainly expired by the clock of the replica that was asked.
func (h *History) expired(o *Op) bool {
	expires := h.Permissions[o.Caller].Expires
	return !expires.IsZero() && !o.earliest().Before(expires) && !h.clockSet(o)
}

// revoked reports whether the replica of an operation must know that the caller's key was revoked. The answer that
// there is no such key says so too.
func (h *History) revoked(o *Op) bool {
	return slices.ContainsFunc(h.Ops, func(r Op) bool {
		ended := r.succeeded() || r.Status == http.StatusNotFound
		return r.Kind == Revoke && r.Caller == o.Caller && ended && h.knows(o, &r)
	})
}

// rotations returns the rotations of a caller's key that may have come after the one that gave a secret; certain ones
// were answered, and came after it.
func (h *History) rotations(caller string, secret int) (all, certain []*Op) {
	var given *Op
	for i := range h.Ops {
		if o := &h.Ops[i]; o.Kind == Rotate && o.Caller == caller && o.succeeded() && o.Secret == secret {
			given = o
		}
	}
	for i := range h.Ops {
		o := &h.Ops[i]
		if o.Kind != Rotate || o.Caller != caller || o == given || !o.maybe() ||
			given != nil && h.latest(o).Before(given.Invoked) {
			continue
		}
		all = append(all, o)
		if o.succeeded() && (given == nil || o.Invoked.After(given.Returned)) {
			certain = append(certain, o)
		}
	}
	return all, certain
}

// replaced reports whether the replica of an operation must know that the secret had ended: by a rotation whose overlap
// was over by the replica's clock, or by two rotations.
func (h *History) replaced(o *Op) bool {
	_, certain := h.rotations(o.Caller, o.Secret)
	known := slices.DeleteFunc(certain, func(r *Op) bool { return !h.knows(o, r) })
	return len(known) > 1 || slices.ContainsFunc(known, func(r *Op) bool {
		return !o.earliest().Before(r.last().Add(r.Overlap)) && !h.clockSet(o) && !h.clockSet(r)
	})
}

// valid reports whether the key of an operation's caller was certainly valid, with the secret that it showed: not
// revoked, not expired by the replica's clock, and with the latest secret, or with the one before in the overlap.
func (h *History) valid(o *Op) bool {
	expires := h.Permissions[o.Caller].Expires
	if !expires.IsZero() && (!o.last().Before(expires) || h.clockSet(o)) {
		return false
	}
	if slices.ContainsFunc(h.Ops, func(r Op) bool {
		return r.Kind == Revoke && r.Caller == o.Caller && r.maybe() && r.Invoked.Before(o.Returned)
	}) {
		return false
	}
	all, _ := h.rotations(o.Caller, o.Secret)
	after := slices.DeleteFunc(all, func(r *Op) bool { return !r.Invoked.Before(o.Returned) })
	return len(after) == 0 || len(after) == 1 && !h.clockSet(o) && !h.clockSet(after[0]) &&
		o.last().Before(after[0].Invoked.Add(after[0].Overlap-after[0].Behind))
}

// remembers reports whether the replica of an operation must go by its memory of the caller's key: it has accepted the
// secret while it reached the store, lately enough, did not end since, and did not change the key itself.
func (h *History) remembers(o *Op) bool {
	return slices.ContainsFunc(h.Ops, func(p Op) bool {
		return p.byKey() && p.Caller == o.Caller && p.Secret == o.Secret && p.Replica == o.Replica && p.admitted() &&
			p.Returned.Before(o.Invoked) && o.Returned.Before(p.Invoked.Add(remembered-settled)) && h.reaches(&p) &&
			!h.restarted(o.Replica, p.Invoked, o.Returned) && !h.changedAt(&p, o)
	})
}

// restarted reports whether a replica may have ended in a time.
func (h *History) restarted(replica int, from, to time.Time) bool {
	return slices.ContainsFunc(h.Troubles, func(t Trouble) bool {
		return (t.What == "crash" || t.What == "stop") && t.Replica == replica && t.From.Before(to) && t.To.After(from)
	})
}

// changedAt reports whether the replica of two operations may have changed their caller's key between them.
func (h *History) changedAt(p, o *Op) bool {
	return slices.ContainsFunc(h.Ops, func(c Op) bool {
		return c.aboutKey() && c.Caller == o.Caller && c.Replica == o.Replica && c.maybe() &&
			c.Invoked.Before(o.Returned) && !h.latest(&c).Before(p.Invoked)
	})
}
