package model

// settle is Store.Settle for the fired occurrences, and for those that were not fired since the lease had ended.
func (t *turn) settle() {
	w, c := t.w, t.c
	switch c.next {
	case settleRead:
		c.n, c.back = 0, c.these // the occurrences to release
		c.these = 0
		if c.kind != ClaimBury && c.kind != ClaimMiss {
			t.goes(settleWrite)
			t.settle()
			return
		}
		t.sends("occurrences.find")
		c.took, c.vain = 0, false
		for s := c.done &^ c.back; s != 0; s = s.without(s.first()) {
			slot := s.first()
			w.truth.stalled = w.truth.stalled || c.over && t.mine(slot)
			switch {
			case c.slot[slot].revision == alone:
			case t.mine(slot):
				c.won |= one(slot) // to be counted
				c.slot[slot].revision, c.slot[slot].heirs = w.slot[slot].revision, w.slot[slot].heirs
			case t.holds(SettleGuarded):
				c.done = c.done.without(slot)
			}
		}
		t.goes(settleWrite)
		if c.done == 0 {
			t.goes(ended)
		}
	case settleWrite:
		t.sends(t.settlement(), Token)
		slot, _ := t.each(&c.done)
		t.settleOne(slot, c.back.has(slot))
		if c.done == 0 {
			t.afterWrite()
		}
	case settleAgain:
		t.sends("occurrences.find")
		t.counted()
		t.goes(settleCount)
		if c.won == 0 {
			t.settleLeft()
		}
	case settleCopy: // only without its rule
		t.sends("occurrences.insert")
		slot, _ := t.each(&c.these)
		w.truth.settled[w.lineage(slot)] |= one(instantOf(slot))
		w.slot[slot] = occurrence{there: true, dead: true, callback: c.job.callback}
		if c.these == 0 {
			t.afterWrite()
		}
	case settleKeep: // the job's expiry, which the model does not have
		t.sends("jobs.update")
		t.goes(ended)
	default:
		t.sends("jobs.update", Revision)
		if j := &w.job; j.exists() {
			n := t.ofJob(j).count()
			if c.kind == ClaimBury {
				j.failed += n
			} else {
				j.missed += n
			}
		}
		t.settleLeft()
	}
}

// settleLeft settles those occurrences once more that were carried over since they were read.
func (t *turn) settleLeft() {
	c := t.c
	t.goes(ended)
	if c.won = 0; c.done != 0 {
		t.goes(settleRead)
	}
}

// settlement is the command that settles this claim's occurrences.
func (t *turn) settlement() string {
	if k := t.c.kind; k == ClaimRetry || k == ClaimBury || t.c.back != 0 {
		return "occurrences.update"
	}
	return "occurrences.delete"
}

// counted leaves the occurrences that this settlement has ended, as far as can be known, among those to be counted, and
// those that it still holds among those to be settled.
// A missed one that is gone was deleted by it if it has deleted as many as are gone.
func (t *turn) counted() {
	c, gone := t.c, set(0)
	for s := c.won; s != 0; s = s.without(s.first()) {
		slot := s.first()
		switch o := &t.w.slot[slot]; {
		case c.kind == ClaimMiss && !o.there:
			gone |= one(slot)
		case t.mine(slot) && t.holds(SettleGuarded):
			c.won, c.done = c.won.without(slot), c.done|one(slot)
		case c.kind == ClaimBury && c.took.has(slot) && o.dead:
		default:
			c.won = c.won.without(slot)
		}
	}
	if gone.count() > c.took.count() {
		c.won = 0
	}
}

// afterWrite continues once the occurrences are written.
func (t *turn) afterWrite() {
	c := t.c
	switch c.back = 0; {
	case c.these != 0:
		t.goes(settleCopy)
	case c.vain && c.won != 0 && t.holds(CountsWhatChanged):
		t.goes(settleAgain)
	case c.won != 0:
		t.goes(settleCount)
	case c.kind == ClaimRetry:
		t.goes(settleKeep)
	default:
		t.goes(ended)
	}
}

// ofJob returns the occurrences to be counted that belonged to a job when they were read, or that it has as heirs.
func (t *turn) ofJob(j *jobDoc) (all set) {
	for s := t.c.won; s != 0; s = s.without(s.first()) {
		if o := &t.c.slot[s.first()]; o.revision == j.revision || o.heirs.has(int(j.revision)) {
			all |= one(s.first())
		}
	}
	return all
}

// asRead reports whether an occurrence to be counted belongs to the revision that was read, and has heirs as it had
// then.
func (t *turn) asRead(slot int) bool {
	o, read := &t.w.slot[slot], &t.c.slot[slot]
	return !t.c.won.has(slot) || o.revision == read.revision && (o.heirs != 0) == (read.heirs != 0)
}

// settleOne ends the claim of one occurrence.
func (t *turn) settleOne(slot int, release bool) {
	w, c := t.w, t.c
	o := &w.slot[slot]
	if (!t.mine(slot) || !t.asRead(slot)) && (t.holds(SettleGuarded) || !o.there) {
		t.say("settles %s in vain: it has another token or is gone", Slot(slot))
		c.vain = c.won != 0
		return
	}
	if release || c.kind == ClaimRetry {
		t.say("gives %s back", Slot(slot))
		o.free()
		return
	}
	c.took |= one(slot) & c.won
	switch c.kind {
	case ClaimBury:
		t.say("buries %s", Slot(slot))
		if !t.holds(BuryInPlace) {
			*o = occurrence{}
			c.these |= one(slot)
			return
		}
		w.truth.settled[w.lineage(slot)] |= one(instantOf(slot))
		*o = occurrence{there: true, dead: true, redrives: o.redrives, callback: c.job.callback}
	case ClaimMiss:
		t.say("deletes %s, which came too late", Slot(slot))
		w.truth.settled[w.lineage(slot)] |= one(instantOf(slot))
		*o = occurrence{}
	default:
		t.say("deletes %s, which was delivered", Slot(slot))
		if c.slot[slot].revision != alone {
			w.truth.acked++
		}
		*o = occurrence{}
	}
}
