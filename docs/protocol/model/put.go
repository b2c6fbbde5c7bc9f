package model

// The steps of a submission.
const (
	putRead step = iota
	putReadPending
	putReadAgain
	putFindOthers
	putRewriteOthers
	putRewriteHeldOthers
	putClearOthers
	putInsert
	putStub
	putNameHeirs
	putFlip
	putFindHeirs
	putRewrite
	putRewriteHeld
	putClear
	putCountCarried
	putCount
	putDelete
	putReadAfter
	putTidy
	putAnswer
)

// put is a submission over HTTP, and its Store.Put. The first job's instant A is near, and the client wants no instant
// to fire twice: the put carries over the pending occurrences, and leaves out the settled ones. If the job has changed
// since it was read, the model's submission ends; the service's starts again.
func (t *turn) put() {
	w, c := t.w, t.c
	switch c.next {
	case putRead:
		t.sends("jobs.find")
		c.job = w.job
		t.say("reads the job: %s", &c.job)
		if !c.job.exists() {
			c.these = t.ownSlots(c.instants)
			t.inserts()
			return
		}
		t.goes(putReadPending)
	case putReadPending:
		t.readPending()
	case putReadAgain:
		t.sends("jobs.find")
		if !t.unchanged() {
			t.goes(ended) // nothing was written yet
			return
		}
		c.job = w.job
		t.inheritsFirst(putFindOthers, t.insertStep())
	case putFindOthers, putRewriteOthers, putRewriteHeldOthers, putClearOthers:
		t.rewriteHeirs(c.job.inherits, c.job.revision, putFindOthers, t.insertStep())
	case putInsert:
		t.sends("occurrences.insert")
		slot, _ := t.each(&c.these)
		t.say("inserts %s", Slot(slot))
		if o := &w.slot[slot]; !o.there {
			*o = occurrence{there: true, revision: c.revision}
		}
		if c.these == 0 {
			t.goes(t.afterInsert())
		}
	case putStub:
		t.sends("jobs.insert")
		if !w.job.there {
			w.job = jobDoc{there: true, stub: true}
		}
		t.goes(putFlip)
	case putNameHeirs:
		t.sends("occurrences.update", Revision)
		if slot, ok := t.each(&c.won); ok {
			if o := &w.slot[slot]; o.there && !o.dead && o.revision == c.job.revision {
				t.say("names %s an heir", Slot(slot))
				o.heirs |= one(c.revision)
				c.named = true
				c.m++
			}
		}
		t.after(c.won, putFlip)
	case putFlip:
		t.flip()
	case putFindHeirs, putRewrite, putRewriteHeld, putClear:
		t.rewriteHeirs(c.job.revision, c.revision, putFindHeirs, putCountCarried)
	case putCountCarried:
		t.sends("occurrences.find")
		c.m = (c.carried & w.carriedOver() & w.held()).count()
		t.goes(putCount)
	case putCount:
		t.sends("occurrences.aggregate")
		if !t.carries() {
			c.m = 0
		}
		c.these = w.ofRevision(c.job.revision)
		c.m += (c.these & w.held() &^ c.carried).count()
		if !t.holds(OnlyTheReplaced) {
			c.these = w.carriedOver() &^ w.ofRevision(c.revision)
		}
		t.goes(putDelete)
	case putDelete:
		t.deleteReplaced()
		if c.these == 0 {
			t.goes(t.afterDelete())
		}
	case putReadAfter:
		t.sends("jobs.find")
		if !c.job.exists() && !w.job.exists() && !c.over {
			t.goes(putStub) // a cancellation has removed the stub
			return
		}
		c.these = w.ofRevision(c.revision)
		t.goesIf(c.these != 0, putTidy, ended)
	case putTidy:
		t.sends("occurrences.delete", Revision)
		if slot, ok := t.each(&c.these); ok && w.slot[slot].revision == c.revision {
			w.slot[slot] = occurrence{}
		}
		t.after(c.these, ended)
	default:
		t.answerPut()
	}
}

func (t *turn) goesIf(condition bool, yes, no step) {
	if condition {
		t.goes(yes)
	} else {
		t.goes(no)
	}
}

// ownSlots returns the slots of instants under the put's revision.
func (t *turn) ownSlots(instants set) (s set) {
	for i := range 2 {
		if instants.has(i) {
			s |= one(slotOf(t.c.revision, i))
		}
	}
	return s
}

// ofRevision returns the occurrences of a revision; dead letters have none.
func (w *World) ofRevision(r revision) set {
	return w.matching(func(o *occurrence) bool { return !o.dead && r != alone && o.revision == r })
}

// carriedOver returns the occurrences of jobs. Those among them that a put has carried over may have been carried over
// further since.
func (w *World) carriedOver() set {
	return w.matching(func(o *occurrence) bool { return !o.dead && o.revision != alone && o.revision != staged })
}

// readPending reads the job's pending occurrences, and plans the put: these are inserted, won are carried over.
func (t *turn) readPending() {
	w, c := t.w, t.c
	t.sends("occurrences.find")
	pending := w.matching(func(o *occurrence) bool {
		return !o.dead && o.revision != staged && o.isOf(c.job.revision)
	})
	had := w.truth.instants[c.job.revision]
	if c.job.recurs {
		had = one(int(c.job.cursor)) - 1
	}
	fresh := c.instants &^ had
	for s := pending; s != 0; s = s.without(s.first()) {
		if i := instantOf(s.first()); c.instants.has(i) && had.has(i) {
			c.won |= one(s.first())
		}
	}
	c.carried = c.won
	c.these = t.ownSlots(fresh)
	t.say("carries over %v, inserts %v", c.won, c.these)
	t.goes(putReadAgain)
}

// unchanged reports whether the job is the one that the put has read, and may replace.
func (t *turn) unchanged() bool {
	j, read := &t.w.job, &t.c.job
	if !j.exists() || !read.exists() {
		return !j.exists() && !read.exists()
	}
	return j.version == read.version && (j.cursor == read.cursor && j.recurs == read.recurs || !t.holds(PutNamesCursor))
}

// held returns the occurrences that are held.
func (w *World) held() set { return w.matching(func(o *occurrence) bool { return o.held }) }

// inheritsFirst goes to the steps that complete the heirs of the job that was read, if it may have any. There are four:
// find them, rewrite those that are not held, rewrite the others, and clear the job's note.
func (t *turn) inheritsFirst(find, then step) {
	t.goesIf(t.c.job.inherits != 0 && t.holds(HeirsByAll), find, then)
}

// rewriteHeirs gives the heirs among a revision's occurrences another revision, one after the other.
func (t *turn) rewriteHeirs(from, to revision, find, then step) {
	w, c := t.w, t.c
	heir := func(o *occurrence) bool { return !o.dead && o.revision == from && o.heirs.has(int(to)) }
	switch c.next {
	case find:
		t.sends("occurrences.find")
		c.back, c.heirs = w.matching(heir), 0
		t.goesIf(c.back != 0, find+1, find+3)
	case find + 1, find + 2:
		t.sends("occurrences.update", Revision, Heir)
		if c.next == find+1 {
			t.also(Free)
		}
		slot, _ := t.each(&c.back)
		o := &w.slot[slot]
		if c.next == find+1 && (o.held || !o.there || !heir(o)) {
			c.heirs |= one(slot)
		} else if o.there && heir(o) {
			t.say("rewrites %s under revision %d", Slot(slot), to)
			o.revision, o.heirs = to, 0
		}
		if c.back == 0 && c.heirs != 0 {
			c.back, c.heirs = c.heirs, 0
			t.goes(find + 2)
			return
		}
		t.after(c.back, find+3)
	default:
		t.sends("jobs.update", Revision, Inherits)
		if w.job.exists() && w.job.revision == to && w.job.inherits == from {
			w.job.inherits = 0
		}
		t.goes(then)
	}
}

// insertStep is the step that follows the reading.
func (t *turn) insertStep() step {
	if t.c.these != 0 && t.holds(InsertFirst) {
		return putInsert
	}
	return t.afterInsert()
}

func (t *turn) inserts() { t.goes(t.insertStep()) }

func (t *turn) afterInsert() step {
	switch c := t.c; {
	case c.done != 0: // without its rule, the insertion follows the flip
		return t.afterFlip()
	case !c.job.exists():
		return putStub
	case c.won != 0:
		return putNameHeirs
	default:
		return putFlip
	}
}

// flip makes the put's revision the job's.
func (t *turn) flip() {
	w, c, r := t.w, t.c, &t.w.truth
	t.sends("jobs.update", Version, InTime)
	if c.job.exists() {
		t.also(Cursor)
	}
	j := &w.job
	matches := t.unchanged() && j.there
	if !t.holds(FlipGuarded) {
		matches = j.there
	}
	if c.over && t.holds(FlipBounded) {
		matches = false
	}
	if !matches {
		t.say("the flip matches nothing")
		t.goes(putReadAfter)
		return
	}
	if c.over {
		t.violates(LateEffect)
	}
	read := c.job.exists() && j.exists() && j.revision == c.job.revision
	if !t.holds(FlipGuarded) && read && j.version != c.job.version {
		t.violates(LostUpdate)
	}
	inserted := t.ownSlots(c.instants)
	if c.job.exists() {
		inserted = t.ownSlots(c.instants &^ r.instants[c.job.revision])
	}
	c.n = j.revision // the one that it replaces, which is c.job's if the flip is guarded
	r.defined++
	next := jobDoc{
		there: true, paused: j.paused, revision: c.revision, version: t.version(), created: j.created, callback: r.defined,
		planned: c.m + inserted.count(),
	}
	if j.stub {
		next.created, next.paused = c.revision, false
	} else if t.carries() {
		next.inherits = j.revision
	}
	t.say("flips the job to revision %d", c.revision)
	*j = next
	r.instants[c.revision], r.lineage[c.revision], r.replaced = c.instants, next.created, true
	for i := range 2 { // an instant that it brings back may fire again
		if of := next.created; inserted.has(slotOf(c.revision, i)) && r.ever[of].has(i) && c.instants.has(i) {
			r.excused[of][i]++
		}
	}
	r.ever[next.created] |= c.instants
	c.done = one(0)
	if c.these != 0 {
		t.goes(putInsert)
		return
	}
	t.goes(t.afterFlip())
}

// carries reports whether the put has named heirs; they may have been settled since.
func (t *turn) carries() bool { return t.c.named }

// version returns the version of a change by this call. It is unique.
func (t *turn) version() uint8 { return t.token() + 1 }

func (t *turn) afterFlip() step {
	c := t.c
	switch {
	case !c.job.exists():
		return putAnswer
	case !t.holds(HeirsFirst):
		t.c.carried = 0
		return putCount
	case t.carries():
		return putFindHeirs
	default:
		return putCount
	}
}

func (t *turn) afterDelete() step {
	if !t.holds(HeirsFirst) && t.carries() && t.c.orphans == 0 {
		t.c.orphans = one(0) // once
		return putFindHeirs
	}
	return putAnswer
}

func (t *turn) deleteReplaced() {
	w, c := t.w, t.c
	t.sends("occurrences.delete", Revision)
	slot, ok := t.each(&c.these)
	if !ok {
		return
	}
	o := &w.slot[slot]
	still := o.there && !o.dead && o.revision == c.job.revision
	if !t.holds(OnlyTheReplaced) {
		still = o.there && !o.dead && o.revision != c.revision && o.revision != alone && o.revision != staged
	}
	if still {
		t.say("deletes %s of the replaced revision", Slot(slot))
		*o = occurrence{}
	}
}

// answerPut is the answer to the client. It sends nothing.
func (t *turn) answerPut() {
	c, r := t.c, &t.w.truth
	t.say("is answered: %d in flight", c.m)
	if c.job.exists() {
		r.ended |= one(c.job.revision)
		r.inFlight += c.m
	}
	t.goes(ended)
}
