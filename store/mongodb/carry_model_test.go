package mongodb

import "testing"

// This is a model of the protocol by which an occurrence is carried over: one job, one occurrence that all puts carry
// over, two puts, a claim and a cancellation. The test tries every interleaving of their steps, and a crash of all of
// them at each point. The occurrence that a claim finds after that must fire exactly once, unless the job was
// cancelled.

// world is the content of the store.
type world struct {
	job   modelJob
	o     modelOccurrence
	fired int
	procs [4]proc
}

// modelJob is the job document. It does not exist if its revision is 0. Each change gives it another version.
type modelJob struct{ revision, version, inherits int }

// modelOccurrence is the occurrence document. heirs has one bit for each revision, and the holder is a claim, if any.
type modelOccurrence struct {
	there           bool
	revision, heirs int
	held            bool
}

func (o modelOccurrence) isOf(revision int) bool {
	return revision != 0 && (o.revision == revision || o.heirs&(1<<revision) != 0)
}

// proc is a call under way: its next step, and the values that it has read.
type proc struct {
	kind, next int
	revision   int // of a put
	job        modelJob
	o          modelOccurrence
}

// The kinds of procs, and the step at which each has ended.
const (
	putting = iota + 1
	claiming
	cancelling
	ended = 99
)

// rules are the rules that make the protocol correct. The model shows that the protocol fails without any one of them.
type rules struct {
	again       bool // a claim rereads an apparent orphan
	guard       bool // it drops an orphan only if it is unchanged since it was read
	others      bool // a reader of a job that inherits first rewrites the heirs
	heirsBefore bool // heirs are rewritten before the old revision's other occurrences are deleted
}

// inherit rewrites an heir under its job's revision, by the job as it was read.
func (w *world) inherit(from, to int) {
	if w.o.there && w.o.revision == from && w.o.isOf(to) {
		w.o.revision, w.o.heirs = to, 0
	}
}

// step makes the next step of a proc.
func (r rules) step(w world, i int) world {
	p := &w.procs[i]
	do := map[int]func(r rules, w *world, p *proc) (next int){
		putting: rules.put, claiming: rules.claim, cancelling: rules.cancel,
	}[p.kind]
	p.next = do(r, &w, p)
	return w
}

// read reads the job, and returns the step that rewrites its heirs if that is to be done.
func (r rules) read(w *world, p *proc, then int) int {
	if p.job = w.job; p.job.revision == 0 {
		return ended
	}
	if p.job.inherits != 0 && r.others {
		return 10
	}
	return then
}

func (r rules) put(w *world, p *proc) int {
	switch p.next {
	case 0:
		return r.read(w, p, 1)
	case 10:
		w.inherit(p.job.inherits, p.job.revision)
		return 1
	case 1: // name the heir
		if w.o.there && w.o.revision == p.job.revision {
			w.o.heirs |= 1 << p.revision
		}
		return 2
	case 2: // flip
		if w.job.version != p.job.version {
			return 0
		}
		w.job = modelJob{revision: p.revision, version: w.job.version + 1, inherits: p.job.revision}
		return 3
	case 3, 4:
		if (p.next == 3) == r.heirsBefore {
			w.inherit(p.job.revision, p.revision)
		} else if w.o.revision == p.job.revision {
			w.o.there = false
		}
		return p.next + 1
	default: // remove the note
		if w.job.revision == p.revision {
			w.job.inherits = 0
		}
		return ended
	}
}

func (r rules) claim(w *world, p *proc) int {
	holds := w.o.there && w.o.held
	switch p.next {
	case 0: // stamp, and read the stamped occurrence
		if !w.o.there || w.o.held {
			return ended
		}
		w.o.held = true
		p.o = w.o
		return 1
	case 1, 3: // read the job
		switch p.job = w.job; {
		case p.o.isOf(p.job.revision):
			return 5
		case p.next == 1 && r.again:
			return 2
		default:
			return 4
		}
	case 2: // read the occurrence again
		p.o = w.o
		return 3
	case 4: // drop the orphan
		if holds && (!r.guard || w.o.revision == p.o.revision && !w.o.isOf(p.job.revision)) {
			w.o.there = false
		}
		w.o.held = false
		return ended
	default: // fire and settle
		if holds {
			w.o.there = false
			w.fired++
		}
		return ended
	}
}

func (r rules) cancel(w *world, p *proc) int {
	switch p.next {
	case 0:
		return r.read(w, p, 1)
	case 10:
		w.inherit(p.job.inherits, p.job.revision)
		return 1
	case 1:
		if w.job.version != p.job.version {
			return 0
		}
		w.job = modelJob{version: w.job.version + 1}
		return 2
	default:
		if w.o.revision == p.job.revision {
			w.o.there = false
		}
		return ended
	}
}

// right reports whether the world is correct if nothing continues, the leases end, and other callers claim the rest.
func (r rules) right(w world) bool {
	listed := w.job.revision == 0 || w.fired > 0 || w.o.there && w.o.isOf(w.job.revision)
	cancelled := w.job.revision == 0
	w.o.held = false
	for again := (proc{kind: claiming}); again.next != ended; {
		again.next = r.claim(&w, &again)
	}
	return listed && w.fired <= 1 && (cancelled || w.fired == 1)
}

// wrong counts the reachable worlds, and the incorrect ones among them.
func (r rules) wrong() (wrong, all int) {
	start := world{job: modelJob{revision: 1, version: 1}, o: modelOccurrence{there: true, revision: 1}}
	start.procs = [4]proc{{kind: putting, revision: 2}, {kind: putting, revision: 3}, {kind: claiming}, {kind: cancelling}}
	seen := map[world]bool{start: true}
	for next := []world{start}; len(next) > 0; {
		w := next[len(next)-1]
		next = next[:len(next)-1]
		if !r.right(w) {
			wrong++
		}
		for i := range w.procs {
			if w.procs[i].next == ended {
				continue
			}
			if n := r.step(w, i); !seen[n] {
				seen[n] = true
				next = append(next, n)
			}
		}
	}
	return wrong, len(seen)
}

func TestCarryModel(t *testing.T) {
	all := rules{again: true, guard: true, others: true, heirsBefore: true}
	wrong, of := all.wrong()
	t.Logf("%d states", of)
	if wrong > 0 {
		t.Errorf("%d of %d states are wrong", wrong, of)
	}
	for name, without := range map[string]func(*rules){
		"the guard, nor reading again": func(r *rules) { r.guard, r.again = false, false },
		"the guard":                    func(r *rules) { r.guard = false },
		"others making heirs":          func(r *rules) { r.others = false },
		"heirs being made first":       func(r *rules) { r.heirsBefore = false },
	} {
		r := all
		without(&r)
		if wrong, _ := r.wrong(); wrong == 0 {
			t.Errorf("without %s all is well too: the model shows nothing", name)
		}
	}
}
