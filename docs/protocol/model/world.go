// Package model is the protocol by which clients and replicas share a store. It has the steps of store/mongodb: each
// step is one command, and a command that writes several documents writes them one after the other. [Search] tries
// every interleaving of the steps of a few calls, and examines each state that they reach.
//
// The world has one job. It begins with the instant A; the job that a put submits has A and B, or B only. A recurring
// job has the tick A in the store, and the tick B still to be expanded. Besides, there are standalone occurrences:
// those of triggers, and dead letters. Times have no values: a lease ends, or the time of a request is over, at any
// moment.
package model

import "math/bits"

// The occurrences that may exist. Each has an id of its own, since ids contain the revision.
const (
	slot1A   = iota // of the first job
	slot1B          // the tick that an expansion inserts
	slot2A          // of the first put
	slot2B          //
	slot3A          // of the second put
	slot3B          //
	slotT           // of a trigger
	slotDead        // a dead letter, if the world begins with one; otherwise of a second trigger
	slots
)

// set is a set of slots, or of instants, revisions or calls: one bit each.
type set uint8

func one[T ~int | ~uint8](i T) set { return 1 << i }

func (s set) has(i int) bool    { return s&one(i) != 0 }
func (s set) first() int        { return bits.TrailingZeros8(uint8(s)) }
func (s set) count() uint8      { return uint8(bits.OnesCount8(uint8(s))) } //nolint:gosec // 8 at most
func (s set) without(i int) set { return s &^ one(i) }

// The instants of a job.
const (
	instantA set = 1 << iota
	instantB
)

// instantOf returns the instant of a slot: 0 for A, 1 for B, and 2 and 3 for standalone occurrences.
func instantOf(slot int) int {
	if slot >= slotT {
		return slot - slotT + 2
	}
	return slot % 2
}

// revision is the revision of a schedule. The first job has 1, the puts 2 and 3.
type revision = uint8

const (
	alone  revision = 0 // of an occurrence that stands on its own
	first  revision = 1
	staged revision = 7 // of an inserted occurrence that does not take effect yet
)

// firstVersion is the version of the first job, before any change.
const firstVersion = 1

// revisionOf returns the revision under which a slot was inserted.
func revisionOf(slot int) revision {
	if slot >= slotT {
		return alone
	}
	return revision(slot/2) + first //nolint:gosec // there are eight slots
}

// slotOf returns the slot of an instant, 0 or 1, under a revision.
func slotOf(r revision, instant int) int { return int(r-first)*2 + instant }

// jobDoc is the job document.
type jobDoc struct {
	there, stub bool
	paused      bool
	recurs      bool // the schedule continues: it has a cursor
	revision    revision
	version     uint8
	created     revision // the first revision of the job, which stands for the time of its creation
	callback    uint8    // counts the definitions that the job has had
	cursor      uint8    // the number of instants up to it: 1 for A, 2 for B
	expand      uint8    // whether an expansion is due: never, now, or when the lease of the present one has ended
	expandToken uint8
	expanding   uint8    // the call whose expansion may still insert, plus 1
	inherits    revision // carried-over occurrences of this revision may still have to be rewritten
	planned     uint8
	failed      uint8
	missed      uint8
}

// Values of jobDoc.expand.
const (
	expandNever = iota
	expandNow
	expandLater
)

func (j *jobDoc) exists() bool { return j.there && !j.stub }

// occurrence is an occurrence document.
type occurrence struct {
	there    bool
	dead     bool // a dead letter
	held     bool // it has a token, and its lease has not ended
	later    bool // it was put back, and is not due for now
	revision revision
	token    uint8 // the call that claimed it, plus 1
	heirs    set   // the revisions that it may be carried over to
	redrives uint8
	callback uint8 // of an occurrence that stands on its own
}

func (o *occurrence) due() bool {
	return o.there && !o.dead && !o.held && !o.later && o.revision != staged
}

// isOf reports whether it belongs to a revision, or is an heir of it.
func (o *occurrence) isOf(r revision) bool {
	return r != 0 && o.revision != alone && (o.revision == r || o.heirs.has(int(r)))
}

// seen is a copy of the fields that decide a claim.
type seen struct {
	revision revision
	heirs    set
	callback uint8
	token    uint8
}

// call is one call under way: of a client, or of a replica.
type call struct {
	kind Kind
	next step
	over bool // the time of a request is over, or the lease of a claim has ended

	// The call's reads and notes.
	job              jobDoc
	these, won, done set  // of slots
	back, orphans    set  // of slots
	took             set  // of slots, of a settlement
	vain             bool // a settlement has not ended all
	carried, heirs   set  // of slots, of a put
	named            bool // a put has named heirs
	m, n             uint8
	revision         revision // of a put
	instants         set      // of a put
	slot             [slots]seen
	before           before // of a claim
}

// before has the changes that were answered before a claim stamped its occurrences.
type before struct {
	ended     set   // revisions that were replaced or cancelled
	alone     set   // slots that were cancelled
	cancelled set   // lineages that were cancelled
	paused    bool  // the job was paused
	callback  uint8 // the job's definition
}

// truth is the history of a world, for the judgement. No step reads it.
type truth struct {
	instants   [4]set      // of the revisions
	lineage    [4]revision // by revision: the first one of its job
	fires      [4][4]uint8 // by lineage and instant: how often it fired
	excused    [4][4]uint8 // how often it may have fired again
	ended      set         // revisions whose replacement or cancellation was answered
	alone      set         // slots whose cancellation was answered
	cancelled  set         // lineages whose cancellation was answered
	triggered  [2]revision // the lineage of the job that a trigger's occurrence belongs to
	inFlight   uint8       // how many occurrences the answers have counted as in flight
	afterwards uint8       // how many have fired after the answers
	paused     bool        // a pause was answered, and no resume has begun
	callback   uint8       // the last definition whose put or patch was answered
	accepted   set         // slots of triggers that were accepted, and dead letters that were redriven
	refused    set         // slots of triggers that were answered 404 or 503
	deleted    bool        // the job was deleted by a client
	stalled    bool        // a lease ended while its claim counted its settlements
	replaced   bool        // there was a put
	settled    [4]set      // by lineage: instants that were missed, buried or discarded
	ever       [4]set      // by lineage: instants of any of its revisions
	defined    uint8       // how many definitions there have been, of puts and patches
	acked      uint8       // how many occurrences were delivered and settled
	problem    Problem     // the first violation
}

// most is the largest number of calls at once.
const most = 5

// World is one state: the store, the calls under way, and the history.
type World struct {
	job   jobDoc
	slot  [slots]occurrence
	call  [most]call
	truth truth
}

// triggerOf returns the lineage of the job for which a slot was triggered, with a bit that no lineage has if there is
// none.
func (r *truth) triggerOf(slot int) revision {
	if slot < slotT || r.triggered[slot-slotT] == 0 {
		return 7
	}
	return r.triggered[slot-slotT]
}
