package model

import "fmt"

// turn is one step of one call.
type turn struct {
	w       *World
	c       *call
	i       int
	off     Rule
	choice  int     // selects one of several possible next steps of the call
	command Command // the command that the step sends, if any
	tell    func(format string, values ...any)
}

// step is the next step of a call.
type step = uint8

// ended is the step of a call that has been answered, or has given up.
const ended step = 255

// holds reports whether a rule is obeyed.
func (t *turn) holds(r Rule) bool { return t.off != r }

// sends notes the step's command, and the guards that a write obeys. All documents that one command writes are written
// by steps of the same command.
func (t *turn) sends(name string, guards ...Guard) {
	t.command = Command{Name: name}
	for _, g := range guards {
		t.also(g)
	}
}

// also notes one more guard of the step's command.
func (t *turn) also(g Guard) { t.command.Guards |= g }

func (t *turn) say(format string, values ...any) {
	if t.tell != nil {
		t.tell(format, values...)
	}
}

// violates notes that a promise is broken.
func (t *turn) violates(p Problem) {
	if t.w.truth.problem == None {
		t.w.truth.problem = p
	}
}

// each takes the first slot of a set, for a command that writes them one after the other. It returns false when the set
// is empty.
func (t *turn) each(s *set) (slot int, ok bool) {
	if *s == 0 {
		return 0, false
	}
	slot = s.first()
	*s = s.without(slot)
	return slot, true
}

// goes sets the next step. If the call has ended, it forgets the call's reads.
func (t *turn) goes(next step) {
	t.c.next = next
	if next == ended {
		*t.c = call{kind: t.c.kind, next: ended, revision: t.c.revision}
	}
}

// after sets the next step once a set is empty.
func (t *turn) after(s set, next step) {
	if s == 0 {
		t.goes(next)
	}
}

// matching returns the slots whose documents match.
func (w *World) matching(matches func(o *occurrence) bool) (s set) {
	for i := range w.slot {
		if o := &w.slot[i]; o.there && matches(o) {
			s |= one(i)
		}
	}
	return s
}

// token is the token of a call.
func (t *turn) token() uint8 { return uint8(t.i) + 1 } //nolint:gosec // there are five calls at most

// mine reports whether an occurrence carries this claim's token.
func (t *turn) mine(slot int) bool {
	return t.w.slot[slot].there && t.w.slot[slot].token == t.token()
}

// free takes the token off an occurrence.
func (o *occurrence) free() { o.token, o.held = 0, false }

// lineage returns the lineage of a slot; 0 for an occurrence that was standalone from the start.
func (w *World) lineage(slot int) revision {
	if slot >= slotT {
		return 0
	}
	return w.truth.lineage[revisionOf(slot)]
}

// Problem is a broken promise.
type Problem uint8

// The problems.
const (
	None Problem = iota
	Lost
	Doubled
	AfterCancel
	CountedShort
	CountedTwice
	WhilePaused
	LeftBehind
	LateEffect
	OldCallback
	TriggerLost
	TriggerRefused
	DeletedLater
	SweptLive
	Stopped
	WrongCounts
	LostUpdate
	CancelledAnother
)

var problemTexts = [...]string{
	None:           "nothing is wrong",
	Lost:           "an occurrence of the job is lost: it neither fired nor waits, and nothing cancelled it",
	Doubled:        "an occurrence is delivered twice, and no lease ended between delivery and settlement",
	AfterCancel:    "an occurrence fires although it was cancelled or replaced, and it was claimed after the answer",
	CountedShort:   "more occurrences fire after a cancellation or replacement than its answer counted as in flight",
	CountedTwice:   "a cancellation counts one occurrence twice",
	WhilePaused:    "an occurrence fires while its job is paused, and it was claimed after the pause was answered",
	LeftBehind:     "an occurrence of a resumed job is not due at its instant, although all calls have ended",
	LateEffect:     "a request takes effect after it was answered that it had failed",
	OldCallback:    "an occurrence fires by an older definition than one that was answered before it was claimed",
	TriggerLost:    "an accepted trigger or redriven dead letter neither fired nor waits, and nothing cancelled it",
	TriggerRefused: "a trigger that was refused fires",
	DeletedLater:   "a cancellation deletes a dead letter that was redriven after it had counted",
	SweptLive:      "a sweep deletes a job that has pending occurrences",
	Stopped:        "a recurring job is not expanded any more",
	WrongCounts:    "the job's counts do not add up",
	LostUpdate:     "a patch is lost: a later write undid it without having read it",

	CancelledAnother: "a cancellation of one version deletes another",
}

func (p Problem) String() string { return problemTexts[p] }

func (o *occurrence) String() string {
	switch {
	case !o.there:
		return "absent"
	case o.dead:
		return "dead"
	case o.revision == staged:
		return "staged"
	}
	s := fmt.Sprintf("revision %d", o.revision)
	if o.revision == alone {
		s = "alone"
	}
	if o.heirs != 0 {
		s += fmt.Sprintf(", heir %03b", o.heirs)
	}
	if o.token != 0 {
		s += fmt.Sprintf(", token %d", o.token)
	}
	if o.held {
		s += " held"
	}
	if o.later {
		s += ", put back"
	}
	return s
}
