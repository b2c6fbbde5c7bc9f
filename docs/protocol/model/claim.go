package model

// The steps of a claim, and of the settlement of its occurrences.
const (
	claimFind step = iota
	claimStamp
	claimRead
	claimOccurrencesAgain
	claimJobsAgain
	claimPutBack
	claimReturnHeirs
	claimPass
	claimPassJobs
	claimPassWrite
	claimLookForResume
	claimFindHeirs
	claimRewrite
	claimRewriteHeld
	claimClear
	claimForwardBegins
	claimBringForward
	claimFire
	settleRead
	settleWrite
	settleCopy
	settleAgain
	settleCount
	settleKeep
)

// The reads of a claim's round trip of two commands that have been answered.
const (
	readOccurrences = 1 << iota
	readJobs
)

// claim is Store.Claim, the firing of its occurrences, and Store.Settle.
func (t *turn) claim() {
	w, c := t.w, t.c
	switch c.next {
	case claimFind:
		t.claimFirst()
	case claimStamp:
		t.stampEach()
	case claimRead:
		t.claimReads()
	case claimOccurrencesAgain:
		t.sends("occurrences.find")
		still := false
		for s := c.orphans; s != 0; s = s.without(s.first()) {
			if t.mine(s.first()) {
				t.see(s.first())
				still = true
			}
		}
		if !still {
			t.judge()
			return
		}
		t.goes(claimJobsAgain)
	case claimJobsAgain:
		t.sends("jobs.find")
		c.job = w.job
		t.judge()
	case claimPutBack:
		t.putBack()
	case claimReturnHeirs:
		t.sends("occurrences.update", Token)
		if slot, ok := t.each(&c.orphans); ok && t.mine(slot) {
			t.say("%s turned out to be carried over: it is given back", Slot(slot))
			w.slot[slot].free()
		}
		t.after(c.orphans, t.afterPutBack())
	case claimPass: // other due occurrences of paused jobs
		t.sends("occurrences.look")
		if c.these = w.matching((*occurrence).due); c.these == 0 {
			t.goes(claimLookForResume)
			return
		}
		for s := c.these; s != 0; s = s.without(s.first()) {
			c.slot[s.first()] = seen{revision: w.slot[s.first()].revision, token: w.slot[s.first()].token}
		}
		t.goes(claimPassJobs)
	case claimPassJobs:
		t.sends("jobs.find")
		c.job = w.job
		t.goesIf(c.job.exists() && c.job.paused, claimPassWrite, claimLookForResume)
	case claimPassWrite:
		t.sends("occurrences.update", Due, Token)
		slot, _ := t.each(&c.these)
		if o := &w.slot[slot]; o.due() && o.token == c.slot[slot].token && c.slot[slot].revision == c.job.revision {
			t.say("puts back %s, without a claim", Slot(slot))
			o.free()
			o.later = true
			c.back |= one(slot)
		}
		t.after(c.these, claimLookForResume)
	case claimLookForResume:
		t.sends("jobs.find")
		c.job, c.these = w.job, 0
		if c.job.paused || !c.job.exists() || !t.holds(ResumesCaught) {
			c.back = 0
			t.goes(claimFire)
			return
		}
		c.done = c.back // inheritsFirst needs back
		t.inheritsFirst(claimFindHeirs, claimForwardBegins)
		if c.next == claimForwardBegins {
			c.back, c.done = c.done, 0
			t.goes(claimBringForward)
		}
	case claimFindHeirs, claimRewrite, claimRewriteHeld, claimClear:
		t.rewriteHeirs(c.job.inherits, c.job.revision, claimFindHeirs, claimForwardBegins)
		if c.next == claimForwardBegins {
			c.back, c.done = c.done, 0
			t.goes(claimBringForward)
		}
	case claimBringForward:
		t.sends("occurrences.update", Revision, Token)
		if slot, ok := t.each(&c.back); ok {
			o := &w.slot[slot]
			if o.there && o.token == 0 && o.later && o.revision == c.job.revision {
				t.say("%s is brought forward, since the job was resumed meanwhile", Slot(slot))
				o.later = false
			}
		}
		t.after(c.back, claimFire)
	case claimFire:
		t.fireEach()
	default:
		t.settle()
	}
}

// claimFirst finds due occurrences. A claim of one occurrence finds and stamps it by one command.
func (t *turn) claimFirst() {
	w, c := t.w, t.c
	c.these = w.matching((*occurrence).due)
	c.m = t.old()
	if c.kind == ClaimOne {
		t.sends("occurrences.findAndModify", Due)
		if c.these == 0 { // a query at the same time may have found some that are not due now
			c.these = w.matching(func(o *occurrence) bool { return !o.dead && o.revision != staged })
			t.goesIf(c.these != 0, claimStamp, ended)
			return
		}
		slot := c.these.first()
		c.these = 0
		t.stamp(slot)
		t.see(slot)
		c.won, c.n = one(slot), readOccurrences
		t.say("claims %s", Slot(slot))
		t.goes(claimRead)
		return
	}
	t.sends("occurrences.look")
	t.say("finds %v due", c.these)
	if c.these == 0 {
		t.goes(ended)
		return
	}
	if !t.holds(JobsAfterStamp) {
		c.job = w.job
	}
	t.goes(claimStamp)
}

func (t *turn) stampEach() {
	t.sends("occurrences.update", Due)
	slot, _ := t.each(&t.c.these)
	o := &t.w.slot[slot]
	if o.due() || !t.holds(StampGuarded) && o.there && !o.dead && o.revision != staged {
		t.say("stamps %s", Slot(slot))
		t.stamp(slot)
	}
	t.c.back |= one(slot) // the slots that it asked for
	if t.c.these == 0 {
		t.c.these, t.c.back = t.c.back, 0
		t.goes(claimRead)
	}
}

// stamp claims one occurrence.
func (t *turn) stamp(slot int) {
	o := &t.w.slot[slot]
	o.token, o.held, o.later = t.token(), true, false
	r := &t.w.truth
	t.c.before = before{ended: r.ended, alone: r.alone, cancelled: r.cancelled, paused: r.paused, callback: r.callback}
}

// see copies the fields of an occurrence that decide a claim.
func (t *turn) see(slot int) {
	o := &t.w.slot[slot]
	t.c.slot[slot] = seen{revision: o.revision, heirs: o.heirs, callback: o.callback}
}

// claimReads reads the occurrences and the jobs, in any order.
func (t *turn) claimReads() {
	w, c := t.w, t.c
	if t.choice == 0 && c.n&readOccurrences == 0 {
		t.sends("occurrences.find")
		for s := c.these; s != 0; s = s.without(s.first()) {
			slot := s.first()
			if t.mine(slot) || !t.holds(ReadBackByToken) && w.slot[slot].there {
				c.won |= one(slot)
				t.see(slot)
			}
		}
		t.say("has claimed %v", c.won)
		c.these = 0
		c.n |= readOccurrences
	} else {
		t.sends("jobs.find")
		if t.holds(JobsAfterStamp) || c.kind == ClaimOne {
			c.job = w.job
		}
		t.say("reads the job: %s", &c.job)
		c.n |= readJobs
	}
	if c.n != readOccurrences|readJobs {
		return
	}
	c.n = 0
	if c.won == 0 {
		t.goes(ended)
		return
	}
	for s := c.won; s != 0; s = s.without(s.first()) {
		if t.orphan(s.first()) {
			c.orphans |= one(s.first())
		}
	}
	if c.orphans != 0 {
		t.goes(claimOccurrencesAgain)
		return
	}
	t.judge()
}

// of reports whether an occurrence, as the claim saw it, belongs to the job that was read.
func (s *seen) of(j *jobDoc) bool {
	return j.exists() && (s.revision == j.revision || s.heirs.has(int(j.revision)))
}

func (t *turn) orphan(slot int) bool {
	s := &t.c.slot[slot]
	return s.revision != alone && !s.of(&t.c.job)
}

// judge decides which of the claimed occurrences fire.
func (t *turn) judge() {
	c := t.c
	c.orphans, c.back = 0, 0
	for s := c.won; s != 0; s = s.without(s.first()) {
		slot := s.first()
		switch {
		case c.slot[slot].revision == alone:
		case t.orphan(slot):
			c.orphans |= one(slot)
			c.back |= one(slot)
		case c.job.paused, t.unexpanded(slot):
			c.back |= one(slot)
		}
	}
	c.won &^= c.back
	for i := range c.slot {
		if !c.won.has(i) && !c.orphans.has(i) {
			c.slot[i] = seen{}
		}
	}
	if c.these = c.back; c.back == 0 {
		c.m = 0
		t.goes(claimFire)
		return
	}
	t.say("puts back %v", c.back)
	t.goes(claimPutBack)
}

// unexpanded reports whether a claimed occurrence lies beyond the cursor of the job that was read.
func (t *turn) unexpanded(slot int) bool {
	return t.holds(CursorCommits) && t.c.job.recurs && instantOf(slot) >= int(t.c.job.cursor)
}

// putBack gives one occurrence back, or deletes it if its put must be over.
func (t *turn) putBack() {
	w, c := t.w, t.c
	t.sends("occurrences.update", Token)
	slot, _ := t.each(&c.these)
	o := &w.slot[slot]
	orphan := c.orphans.has(slot)
	if orphan {
		t.also(Revision)
	}
	guarded := t.mine(slot) || !t.holds(PutBackGuarded) && o.there && !o.dead
	if orphan && guarded && t.holds(OrphansUnchanged) {
		guarded = o.revision == c.slot[slot].revision && (!c.job.exists() || !o.heirs.has(int(c.job.revision)))
	}
	switch {
	case !guarded:
	case orphan && t.isOld(c.slot[slot].revision):
		t.say("drops the orphan %s", Slot(slot))
		*o = occurrence{}
	default:
		o.free()
		o.later = !orphan && c.job.paused
	}
	if c.these == 0 {
		if c.orphans != 0 {
			t.goes(claimReturnHeirs)
		} else {
			t.goes(t.afterPutBack())
		}
	}
}

func (t *turn) afterPutBack() step {
	t.c.back &^= t.c.orphans
	if t.c.back != 0 && t.c.job.paused {
		return claimPass
	}
	t.c.back = 0
	return claimFire
}

// old returns the revisions that are old at the time of the claim: their puts can't take effect any more.
func (t *turn) old() (revisions uint8) {
	for i := range t.w.call {
		if c := &t.w.call[i]; c.kind.puts() && c.next != ended && !c.over {
			revisions |= uint8(one(c.revision))
		}
	}
	return ^revisions
}

// isOld reports whether an orphan of a revision may be dropped.
func (t *turn) isOld(r revision) bool {
	if !t.holds(OrphansWait) {
		return true
	}
	if !t.holds(AgeAtClaim) {
		return set(t.old()).has(int(r))
	}
	return set(t.c.m).has(int(r))
}

// fireEach fires one occurrence.
func (t *turn) fireEach() {
	c := t.c
	slot, ok := t.each(&c.won)
	if !ok {
		t.fireEnds()
		return
	}
	c.done |= one(slot)
	if c.over && t.holds(LeaseBeforeSend) {
		t.say("does not fire %s: its lease has ended", Slot(slot))
		c.these |= one(slot) // the slots to release
		return
	}
	if c.kind == ClaimMiss {
		return
	}
	t.say("fires %s", Slot(slot))
	t.fired(slot, c.kind == ClaimAck || c.kind == ClaimOne)
}

// fireEnds forgets everything that the settlement does not need.
func (t *turn) fireEnds() {
	c := t.c
	if c.done == 0 {
		t.goes(ended)
		return
	}
	c.before, c.job = before{}, jobDoc{revision: c.job.revision, callback: c.job.callback}
	t.goes(settleRead)
}

// fired judges a firing.
func (t *turn) fired(slot int, delivered bool) {
	w, c, r := t.w, t.c, &t.w.truth
	s := &c.slot[slot]
	of := s.revision
	if of != alone && c.job.exists() && s.heirs.has(int(c.job.revision)) {
		of = c.job.revision
	}
	switch {
	case of == alone:
		if trigger := r.triggerOf(slot); r.alone.has(slot) || r.cancelled.has(int(trigger)) {
			t.answered(c.before.alone.has(slot) || c.before.cancelled.has(int(trigger)))
		}
		if r.refused.has(slot) {
			t.violates(TriggerRefused)
		}
	case r.ended.has(int(of)):
		t.answered(c.before.ended.has(int(of)))
	}
	if of != alone && c.before.paused && r.paused {
		t.violates(WhilePaused)
	}
	if of != alone && c.job.callback < c.before.callback {
		t.violates(OldCallback)
	}
	if delivered {
		w.delivered(slot, t)
	}
}

// answered judges a firing after the answer to a cancellation or a replacement.
func (t *turn) answered(beforeClaim bool) {
	if beforeClaim {
		t.violates(AfterCancel)
	}
	t.w.truth.afterwards++
}

// delivered counts a delivery.
func (w *World) delivered(slot int, t *turn) {
	of, instant := w.lineage(slot), instantOf(slot)
	w.truth.fires[of][instant]++
	if w.truth.fires[of][instant] > 1+w.truth.excused[of][instant] {
		t.violates(Doubled)
	}
}

// excuse allows that an occurrence is delivered again.
func (w *World) excuse(slot int) { w.truth.excused[w.lineage(slot)][instantOf(slot)]++ }
