package model

import (
	"fmt"
	"slices"
)

// Kind is the kind of a call.
type Kind uint8

// The kinds of calls. Claims differ by the outcome of their firings.
const (
	NoCall Kind = iota
	ClaimAck
	ClaimOne
	ClaimRetry
	ClaimBury
	ClaimMiss
	Expand
	Sweep
	Put     // of A and B
	PutDrop // of B only
	Cancel
	CancelIf // only the first version
	Amend
	Pause
	Resume
	Trigger
	Redrive
	kinds
)

var kindNames = [kinds]string{
	NoCall: "", ClaimAck: "claim", ClaimOne: "claim-one", ClaimRetry: "claim-retry", ClaimBury: "claim-bury",
	ClaimMiss: "claim-miss", Expand: "expand", Sweep: "sweep", Put: "put", PutDrop: "put-drop", Cancel: "cancel",
	CancelIf: "cancel-if", Amend: "amend", Pause: "pause", Resume: "resume", Trigger: "trigger", Redrive: "redrive",
}

func (k Kind) String() string { return kindNames[k] }

// Kinds are all kinds.
func Kinds() (all []Kind) {
	for k := ClaimAck; k < kinds; k++ {
		all = append(all, k)
	}
	return all
}

func (k Kind) claims() bool  { return k >= ClaimAck && k <= ClaimMiss }
func (k Kind) puts() bool    { return k == Put || k == PutDrop }
func (k Kind) cancels() bool { return k == Cancel || k == CancelIf }

// Scenario is the beginning of a search.
type Scenario struct {
	// Recurring makes the job a recurring one, with its tick B still to be expanded.
	Recurring bool
	// Paused makes the job paused, with its occurrence put back by a claim.
	Paused bool
	// Delivered makes the occurrence of A delivered.
	Delivered bool
	// Absent removes the job.
	Absent bool
	// Dead adds a dead letter.
	Dead bool
	// Calls are the calls, at most five. At most two are puts, and at most two triggers.
	Calls []Kind
}

func (s Scenario) String() string {
	text := fmt.Sprintf("%v", s.Calls)
	for _, of := range []struct {
		has  bool
		name string
	}{
		{s.Recurring, "a recurring job"}, {s.Paused, "a paused job"}, {s.Delivered, "A was delivered"},
		{s.Absent, "no job"}, {s.Dead, "a dead letter"},
	} {
		if of.has {
			text += ", " + of.name
		}
	}
	return text
}

// world returns the first state.
func (s Scenario) world() *World {
	w := &World{}
	r := &w.truth
	r.defined, r.callback = 1, 1
	if !s.Absent {
		w.job = jobDoc{there: true, revision: first, version: firstVersion, created: first, callback: 1, planned: 1}
		w.slot[slot1A] = occurrence{there: true, revision: first}
		r.instants[first], r.lineage[first], r.ever[first] = instantA, first, instantA
		if s.Recurring {
			w.job.recurs, w.job.cursor, w.job.expand = true, 1, expandNow
			r.instants[first], r.ever[first] = instantA|instantB, instantA|instantB
		}
		if s.Delivered {
			w.slot[slot1A] = occurrence{}
			r.fires[first][0], r.acked = 1, 1
		}
		if s.Paused {
			w.job.paused, w.job.expand = true, expandNever
			w.slot[slot1A].later = w.slot[slot1A].there
			r.paused = true
		}
	}
	if s.Dead {
		w.slot[slotDead] = occurrence{there: true, dead: true, callback: 1}
	}
	put, trigger := revision(2), revision(slotT)
	for i, k := range s.Calls {
		c := &w.call[i]
		c.kind = k
		switch k {
		case Put:
			c.revision, c.instants = put, instantA|instantB
			put++
		case PutDrop:
			c.revision, c.instants = put, instantB
			put++
		case Pause:
			c.next = k.start()
		case Trigger:
			c.revision = trigger
			trigger++
		default:
		}
	}
	for i := len(s.Calls); i < most; i++ {
		w.call[i].next = ended
	}
	return w
}

// valid reports whether the scenario's calls fit into a world.
func (s Scenario) valid() bool {
	puts, triggers := 0, 0
	for _, k := range s.Calls {
		if k.puts() {
			puts++
		}
		if k == Trigger {
			triggers++
		}
	}
	if s.Dead {
		triggers++
	}
	return puts <= 2 && triggers <= 2 && len(s.Calls) <= most && (!s.Absent || !s.Recurring && !s.Paused)
}

// Slot is the name of an occurrence.
type Slot int

func (s Slot) String() string {
	switch {
	case int(s) == slotT, int(s) == slotDead:
		return fmt.Sprintf("occurrence %d, which stands on its own,", int(s))
	default:
		return fmt.Sprintf("%c of revision %d", 'A'+instantOf(int(s)), revisionOf(int(s)))
	}
}

func (s set) String() string {
	text := ""
	for ; s != 0; s = s.without(s.first()) {
		if text != "" {
			text += " and "
		}
		text += Slot(s.first()).String()
	}
	if text == "" {
		return "nothing"
	}
	return text
}

func (j *jobDoc) String() string {
	switch {
	case !j.there:
		return "none"
	case j.stub:
		return "a stub"
	}
	text := fmt.Sprintf("revision %d, version %d", j.revision, j.version)
	if j.paused {
		text += ", paused"
	}
	if j.recurs {
		text += fmt.Sprintf(", cursor %d", j.cursor)
	}
	if j.inherits != 0 {
		text += fmt.Sprintf(", inherits from %d", j.inherits)
	}
	return text
}

// Scenarios returns all scenarios of a number of calls, over each kind of job to begin with.
func Scenarios(calls int) (all []Scenario) {
	begins := []Scenario{
		{}, {Recurring: true}, {Paused: true}, {Recurring: true, Paused: true}, {Absent: true}, {Dead: true},
	}
	var grow func(chosen []Kind, from Kind)
	grow = func(chosen []Kind, from Kind) {
		if len(chosen) < calls {
			for k := from; k < kinds; k++ {
				grow(append(slices.Clone(chosen), k), k)
			}
			return
		}
		for _, s := range begins {
			if s.Calls = chosen; s.valid() {
				all = append(all, s)
			}
		}
	}
	grow(nil, ClaimAck)
	return all
}
