package model

// The steps of a cancellation.
const (
	cancelRead step = iota
	cancelFindHeirs
	cancelRewrite
	cancelRewriteHeld
	cancelClear
	cancelJob
	cancelOwnRead
	cancelUnstage
	cancelPending
	cancelCount
	cancelFree
	cancelAll
	cancelOwnFree
	cancelOwnAll
	cancelAnswer
)

// cancel is Store.Cancel of one job. It keeps the job's standalone occurrences and their redrives in won, and those
// counted as cancelled in done.
func (t *turn) cancel() {
	w, c := t.w, t.c
	switch c.next {
	case cancelRead:
		t.sends("jobs.find")
		c.job = w.job
		t.say("reads the job: %s", &c.job)
		// It leaves dead letters alone.
		c.before.alone = w.truth.accepted & w.matching(func(o *occurrence) bool { return !o.dead })
		t.inheritsFirst(cancelFindHeirs, t.afterCancelRead())
	case cancelFindHeirs, cancelRewrite, cancelRewriteHeld, cancelClear:
		t.rewriteHeirs(c.job.inherits, c.job.revision, cancelFindHeirs, t.afterCancelRead())
	case cancelJob:
		t.deleteJob()
	case cancelOwnRead:
		t.readOwn()
	case cancelUnstage:
		t.sends("occurrences.delete", Revision)
		if slot, ok := t.each(&c.back); ok && w.slot[slot].revision == staged {
			t.say("deletes %s, which is staged", Slot(slot))
			w.slot[slot] = occurrence{}
		}
		t.after(c.back, cancelOwnRead)
	case cancelPending:
		t.sends("occurrences.aggregate")
		if w.ofRevision(c.job.revision) == 0 {
			t.goes(t.afterRevision())
			return
		}
		t.goes(cancelCount)
	case cancelCount:
		t.sends("occurrences.aggregate")
		c.orphans = w.ofRevision(c.job.revision)
		c.these = c.orphans
		if c.these != 0 {
			t.goes(cancelFree)
		} else {
			t.goes(t.afterRevision())
		}
	case cancelFree:
		t.sends("occurrences.delete", Revision, Free)
		if slot, ok := t.each(&c.these); ok {
			if o := &w.slot[slot]; o.there && !o.dead && !o.held && o.revision == c.job.revision {
				t.say("cancels %s", Slot(slot))
				*o = occurrence{}
				c.orphans = c.orphans.without(slot)
			}
		}
		if c.these == 0 {
			c.m = c.orphans.count()
			c.these, c.back = w.ofRevision(c.job.revision), c.orphans
			if c.these != 0 {
				t.goes(cancelAll)
			} else {
				t.goes(t.afterRevision())
			}
		}
	case cancelAll:
		t.sends("occurrences.delete", Revision)
		if slot, ok := t.each(&c.these); ok {
			if o := &w.slot[slot]; o.there && !o.dead && o.revision == c.job.revision {
				t.say("deletes %s, which is held", Slot(slot))
				*o = occurrence{}
			}
		}
		if c.these == 0 {
			t.goes(t.afterRevision())
		}
	case cancelOwnFree, cancelOwnAll:
		t.cancelOwn()
	default:
		t.answerCancel()
	}
}

func (t *turn) afterCancelRead() step {
	if t.c.kind == CancelIf && (!t.c.job.exists() || t.c.job.version != firstVersion) {
		return ended // 404 or 412
	}
	if !t.c.job.there || !t.holds(JobDeletedFirst) && t.c.job.exists() {
		return cancelOwnRead
	}
	return cancelJob
}

// deleteJob deletes the job document, or the stub, that was read.
func (t *turn) deleteJob() {
	w, c := t.w, t.c
	t.sends("jobs.delete", Version) // a stub's is empty
	j := &w.job
	switch {
	case c.job.stub:
		if j.there && j.stub {
			t.say("deletes the stub")
			*j = jobDoc{}
		}
	case j.exists() && (j.version == c.job.version || !t.holds(CancelGuarded)):
		if c.kind == CancelIf && j.version != firstVersion {
			t.violates(CancelledAnother)
		}
		t.say("deletes the job")
		*j = jobDoc{}
		w.truth.deleted, w.truth.paused = true, false
	default:
		t.goes(cancelRead)
		return
	}
	if !t.holds(JobDeletedFirst) && c.job.exists() {
		t.goes(cancelAnswer)
		return
	}
	t.goes(cancelOwnRead)
}

// readOwn reads the standalone occurrences, and finds the staged ones.
func (t *turn) readOwn() {
	w, c := t.w, t.c
	t.sends("occurrences.find")
	if !t.holds(OwnReadFirst) && c.n == 0 && c.job.exists() {
		c.n = 1
		t.goes(cancelPending)
		return
	}
	c.back = w.matching(func(o *occurrence) bool { return o.revision == staged })
	if c.back != 0 && t.holds(UnstagedByCancel) {
		t.goes(cancelUnstage)
		return
	}
	c.won = w.matching(func(o *occurrence) bool { return !o.dead && o.revision == alone })
	for s := c.won; s != 0; s = s.without(s.first()) {
		c.slot[s.first()].heirs = set(w.slot[s.first()].redrives)
	}
	c.back = 0
	if c.job.exists() && t.holds(OwnReadFirst) {
		t.goes(cancelPending)
		return
	}
	c.these = c.won
	t.goesIf(c.these != 0, cancelOwnFree, t.lastOfCancel())
}

// afterRevision is the step after the occurrences of the job's revision.
func (t *turn) afterRevision() step {
	c := t.c
	c.orphans = c.back // counted as in flight
	if !t.holds(OwnReadFirst) {
		return cancelOwnRead
	}
	if c.these = c.won; c.these != 0 {
		return cancelOwnFree
	}
	return t.lastOfCancel()
}

func (t *turn) lastOfCancel() step {
	if !t.holds(JobDeletedFirst) && t.c.job.exists() {
		return cancelJob
	}
	return cancelAnswer
}

// cancelOwn deletes the standalone occurrences: first those that are not held.
func (t *turn) cancelOwn() {
	w, c := t.w, t.c
	t.sends("occurrences.delete", Pending, Redrives)
	if c.next == cancelOwnFree {
		t.also(Free)
	}
	slot, _ := t.each(&c.these)
	o := &w.slot[slot]
	same := o.redrives == uint8(c.slot[slot].heirs)
	still := o.there && !o.dead && o.revision == alone && (same || !t.holds(OwnByRedrives))
	if still && (!o.held || c.next == cancelOwnAll) {
		t.say("deletes %s, which stands on its own", Slot(slot))
		if !same {
			t.violates(DeletedLater)
		}
		if c.orphans.has(slot) {
			t.violates(CountedTwice)
		}
		*o = occurrence{}
		w.truth.settled[w.lineage(slot)] |= one(instantOf(slot))
		if c.next == cancelOwnFree {
			c.won = c.won.without(slot)
		}
	}
	if c.these != 0 {
		return
	}
	if c.next == cancelOwnFree {
		c.m += c.won.count()
		if c.these = c.won; c.these != 0 {
			t.goes(cancelOwnAll)
			return
		}
	}
	t.goes(t.lastOfCancel())
}

func (t *turn) answerCancel() {
	c, r := t.c, &t.w.truth
	t.say("is answered: %d in flight", c.m)
	if c.job.exists() {
		r.ended |= one(c.job.revision)
		r.cancelled |= one(c.job.created)
	}
	r.alone |= c.before.alone
	r.inFlight += c.m
	t.goes(ended)
}

// The steps of the other changes.
const (
	changeRead step = iota
	changeFindHeirs
	changeRewrite
	changeRewriteHeld
	changeClear
	changeWrite
	changeForwardBegins
	changeForward
	changeAhead
	changeLookAgain
	changeFindAgain
	changeRewriteAgain
	changeRewriteHeldAgain
	changeClearAgain
	changeRefused
	changeAnswer
)

// change is a patch, a pause or a resume.
func (t *turn) change() {
	w, c, r := t.w, t.c, &t.w.truth
	switch c.next {
	case changeRead:
		t.sends("jobs.find")
		c.job = w.job
		t.say("reads the job: %s", &c.job)
		if !c.job.exists() {
			t.goes(ended)
			return
		}
		if c.kind == Resume {
			r.paused = false
		}
		if c.kind == Amend {
			t.goes(changeWrite)
			return
		}
		t.inheritsFirst(changeFindHeirs, t.afterChangeRead())
	case changeFindHeirs, changeRewrite, changeRewriteHeld, changeClear:
		t.rewriteHeirs(c.job.inherits, c.job.revision, changeFindHeirs, t.afterChangeRead())
	case changeWrite:
		t.changeJob()
	case changeForward:
		t.sends("occurrences.update", Revision, Token)
		if slot, ok := t.each(&c.these); ok {
			if o := &w.slot[slot]; o.there && o.later && o.token == 0 && o.revision == c.job.revision {
				t.say("brings %s forward", Slot(slot))
				o.later = false
			}
		}
		t.after(c.these, changeAhead)
	case changeAhead: // occurrences that were put back before their instants; the model has none
		t.sends("occurrences.find")
		t.goesIf(t.holds(ResumeLooksAgain), changeLookAgain, changeAnswer)
	case changeLookAgain:
		t.sends("jobs.find")
		if w.job.exists() && !w.job.paused && w.job.revision != c.job.revision {
			t.say("finds that the job was replaced meanwhile")
			c.job = w.job
			t.inheritsFirst(changeFindAgain, changeForwardBegins)
			return
		}
		t.goes(changeAnswer)
	case changeFindAgain, changeRewriteAgain, changeRewriteHeldAgain, changeClearAgain:
		t.rewriteHeirs(c.job.inherits, c.job.revision, changeFindAgain, changeForwardBegins)
	case changeForwardBegins:
		t.forward()
	case changeRefused: // 404 or 412, unless the version is that of this patch
		t.sends("jobs.find")
		c.job = w.job
		t.inheritsFirst(changeFindHeirs, t.afterChangeRead())
	default:
		t.say("is answered")
		if c.kind == Amend {
			r.callback = max(r.callback, c.m)
		}
		if c.kind == Pause {
			r.paused = w.job.exists() && w.job.paused && w.job.version == t.version() && !w.resuming()
		}
		t.goes(ended)
	}
}

func (t *turn) afterChangeRead() step {
	switch c := t.c; {
	case c.kind == Amend, c.kind == Pause && c.job.paused:
		return ended
	case c.kind == Resume && !c.job.paused:
		return changeForwardBegins
	default:
		return changeWrite
	}
}

// resuming reports whether a resume is under way.
func (w *World) resuming() bool {
	for i := range w.call {
		if c := &w.call[i]; c.kind == Resume && c.next != ended && c.next != changeRead {
			return true
		}
	}
	return false
}

// changeJob writes the job document.
func (t *turn) changeJob() {
	w, c, r := t.w, t.c, &t.w.truth
	t.sends("jobs.update", Version)
	if c.kind == Pause { // it has read nothing
		t.sends("jobs.update", Exists, Unpaused)
	}
	j := &w.job
	same := j.version == c.job.version
	switch c.kind {
	case Amend:
		if !j.exists() || !same && t.holds(AmendGuarded) {
			t.goes(changeRefused)
			return
		}
		if j.callback != c.job.callback {
			t.violates(LostUpdate)
		}
		r.defined++
		j.callback, j.version, c.m = r.defined, t.version(), r.defined
		t.say("gives the job definition %d", j.callback)
		t.goes(changeAnswer)
	case Pause:
		if !j.exists() || j.paused {
			t.goes(changeRead)
			return
		}
		j.paused, j.version = true, t.version()
		j.expand, j.expandToken = expandNever, 0
		t.say("pauses the job")
		t.goes(changeAnswer)
	default:
		if !j.exists() || !same {
			t.goes(changeRead)
			return
		}
		j.paused, j.version = false, t.version()
		if j.recurs {
			if j.expand = expandNow; j.expanding != 0 && t.holds(ResumeWaits) {
				j.expand = expandLater
			}
		}
		t.say("resumes the job")
		t.goes(changeForwardBegins)
	}
}

// forward begins to bring the occurrences of a resumed job forward.
func (t *turn) forward() {
	t.c.these = t.w.matching(func(o *occurrence) bool {
		return o.later && o.token == 0 && o.revision == t.c.job.revision && !o.dead
	})
	t.goes(changeForward)
}

// The steps of a trigger.
const (
	triggerRead step = iota
	triggerStage
	triggerReadAgain
	triggerUnveil
	triggerCount
	triggerUnstage
)

// trigger is Store.Trigger. Its call may make the occurrence slotT, or slotDead.
func (t *turn) trigger() {
	w, c, r := t.w, t.c, &t.w.truth
	slot := int(c.revision)
	o := &w.slot[slot]
	switch c.next {
	case triggerRead:
		t.sends("jobs.find")
		if c.job = w.job; !c.job.exists() {
			t.goes(ended)
			return
		}
		t.goes(triggerStage)
	case triggerStage:
		t.sends("occurrences.insert")
		t.say("stages %s", Slot(slot))
		*o = occurrence{there: true, revision: staged, callback: c.job.callback}
		t.goesIf(t.holds(TriggerReadsAgain), triggerReadAgain, triggerUnveil)
	case triggerReadAgain:
		t.sends("jobs.find")
		created := w.job.created == c.job.created || !t.holds(TriggerByCreation)
		t.goesIf(w.job.exists() && created, triggerUnveil, triggerUnstage)
	case triggerUnveil:
		t.sends("occurrences.update", Revision, InTime)
		if o.there && o.revision == staged && (!c.over || !t.holds(FlipBounded)) {
			if c.over {
				t.violates(LateEffect)
			}
			o.revision = alone
			t.say("unveils %s: it is accepted", Slot(slot))
			r.accepted |= one(slot)
			r.triggered[slot-slotT] = c.job.created
			t.goes(ended)
			return
		}
		t.goes(triggerCount)
	case triggerCount:
		t.sends("occurrences.aggregate")
		t.goes(triggerUnstage)
	default:
		t.sends("occurrences.delete", Revision)
		if o.revision == staged {
			*o = occurrence{}
		}
		r.refused |= one(slot)
		t.goes(ended)
	}
}

// The steps of a redrive.
const (
	redriveFind step = iota
	redriveWrite
)

// redrive is Store.SettleDead: it makes dead letters due again.
func (t *turn) redrive() {
	w, c, r := t.w, t.c, &t.w.truth
	if c.next == redriveFind {
		t.sends("occurrences.find")
		if c.these = w.matching(func(o *occurrence) bool { return o.dead }); c.these == 0 {
			t.goes(ended)
			return
		}
		t.goes(redriveWrite)
		return
	}
	t.sends("occurrences.update", Dead)
	slot, _ := t.each(&c.these)
	if o := &w.slot[slot]; o.there && o.dead {
		t.say("redrives %s", Slot(slot))
		o.dead = false
		o.redrives++
		r.accepted |= one(slot)
		r.alone = r.alone.without(slot)
		for i := range w.call { // a cancellation under way may have come before this
			if c := &w.call[i]; c.kind == Cancel || c.kind == CancelIf {
				c.before.alone = c.before.alone.without(slot)
			}
		}
		if slot >= slotT {
			r.triggered[slot-slotT] = 0
		}
		r.settled[w.lineage(slot)] &^= one(instantOf(slot))
	}
	t.after(c.these, ended)
}

// The steps of an expansion.
const (
	expandFind step = iota
	expandStamp
	expandRead
	expandCheck
	expandStage
	expandUnveil
	expandCount
	expandCheckAgain
	expandLook
	expandAdvance
)

// expand is Store.ClaimJobs and Store.Advance: it inserts the tick B, and moves the cursor to it.
func (t *turn) expand() {
	w, c := t.w, t.c
	j := &w.job
	switch c.next {
	case expandFind:
		t.sends("jobs.find")
		t.goesIf(j.exists() && j.expand == expandNow, expandStamp, ended)
	case expandStamp:
		t.sends("jobs.update", Due)
		if !j.exists() || j.expand != expandNow {
			t.goes(ended)
			return
		}
		j.expandToken, j.expand, j.expanding = t.token(), expandLater, t.token()
		t.say("claims the job to expand it")
		t.goes(expandRead)
	case expandRead:
		t.sends("jobs.find")
		c.job = *j
		t.goesIf(j.exists() && j.expandToken == t.token(), expandCheck, ended)
	case expandCheck:
		t.sends("jobs.find")
		t.goesIf(t.stands(), expandStage, ended)
	case expandStage:
		t.sends("occurrences.insert")
		if o := &w.slot[slot1B]; !o.there {
			*o = occurrence{there: true, revision: staged}
			if !t.holds(TicksStaged) {
				o.revision = first
			}
			t.say("inserts %s", Slot(slot1B))
		}
		t.goesIf(t.holds(TicksStaged), expandUnveil, expandAdvance)
	case expandUnveil:
		t.sends("occurrences.update", Revision, InTime)
		o := &w.slot[slot1B]
		if o.there && o.revision == staged && !c.over {
			t.say("unveils %s", Slot(slot1B))
			o.revision = first
		}
		if !o.there || o.revision == staged {
			t.goes(expandCount)
			return
		}
		t.goes(expandLook)
	case expandCount:
		t.sends("occurrences.aggregate")
		t.goes(expandCheckAgain)
	case expandCheckAgain: // if the claim still stands, it fails
		t.sends("jobs.find")
		t.goesIf(t.stands(), ended, expandCheck)
	case expandLook: // for ticks that one before it has left behind; the code does so only if ticks have passed
		t.sends("occurrences.find")
		t.goes(expandAdvance)
	default:
		t.sends("jobs.update", Revision, Cursor, Token)
		if t.stands() || !t.holds(ExpansionGuarded) && j.exists() {
			t.say("moves the cursor to B")
			j.cursor, j.recurs, j.expand, j.expandToken, j.expanding = 2, false, expandNever, 0, 0
			j.planned++
		}
		t.goes(ended)
	}
}

// stands reports whether the claim of the job is still valid.
func (t *turn) stands() bool {
	j, read := &t.w.job, &t.c.job
	return j.exists() && j.revision == read.revision && j.cursor == read.cursor && j.expandToken == t.token()
}

// The steps of a sweep.
const (
	sweepFind step = iota
	sweepFindHeirs
	sweepRewrite
	sweepRewriteHeld
	sweepClear
	sweepLook
	sweepPostpone
	sweepDelete
	sweepStubs
	sweepStaged
)

// sweep is Store.Sweep: it deletes a job that has finished. The retention of the job has passed.
func (t *turn) sweep() {
	w, c := t.w, t.c
	switch c.next {
	case sweepFind:
		t.sends("jobs.find")
		if c.job = w.job; !c.job.exists() || c.job.expand != expandNever || c.job.paused && c.job.recurs {
			t.goes(sweepStubs)
			return
		}
		t.inheritsFirst(sweepFindHeirs, sweepLook)
	case sweepFindHeirs, sweepRewrite, sweepRewriteHeld, sweepClear:
		t.rewriteHeirs(c.job.inherits, c.job.revision, sweepFindHeirs, sweepLook)
	case sweepLook:
		t.sends("occurrences.aggregate")
		live := w.matching(func(o *occurrence) bool { return !o.dead && o.revision == c.job.revision })
		t.goesIf(live == 0, sweepDelete, sweepPostpone)
	case sweepPostpone:
		t.sends("jobs.update")
		t.goes(sweepStubs)
	case sweepStubs, sweepStaged: // remains of interrupted calls, an hour later
		t.sends([...]string{"jobs.delete", "occurrences.delete"}[c.next-sweepStubs])
		t.goesIf(c.next == sweepStubs, sweepStaged, ended)
	default:
		t.sends("jobs.delete", Version)
		if j := &w.job; j.exists() && (j.version == c.job.version || !t.holds(SweepGuarded)) {
			t.say("deletes the job, which has finished")
			if w.matching(func(o *occurrence) bool { return !o.dead && o.isOf(j.revision) }) != 0 || j.recurs {
				t.violates(SweptLive)
			}
			*j = jobDoc{}
		}
		t.goes(sweepStubs)
	}
}
