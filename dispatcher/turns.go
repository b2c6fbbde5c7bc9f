package dispatcher

import (
	"hash/fnv"
	"slices"
	"strconv"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Many replicas take turns, so that their claims do not meet: time is cut into turns, and each turn belongs to one
// replica.
// It claims what falls due in its turn, and first what was left before. Who claims is a preference only, which no
// guarantee depends on: replicas that disagree claim twice, or a little later.
const (
	// turnsFrom is the number of replicas from which on they take turns. Fewer claim all at every instant: their empty
	// claims cost little, and nothing is late when one of them stops or dies.
	turnsFrom = 4
	// turnFor is the duration of a turn. In a busy lane, a turn begins with a claim that may find nothing.
	turnFor = time.Second
	// latePatience is the time after which an occurrence is taken from the replica whose turn it is.
	latePatience = 100 * time.Millisecond
	// absentFor is the time for which this replica stands in for one that was late. All others have then noticed if that
	// one has died, since it no longer beats.
	absentFor = beatFor
	// busyFor is the time for which a busy replica claims in all turns. It is busy while its part of the callbacks under
	// way, if they were all its own, would take one of busyPart of its slots.
	busyFor  = 5 * time.Second
	busyPart = 4
	// wokenPolls is the number of poll intervals after which all replicas know what one of them has stored.
	wokenPolls = 3
)

// turns decides when this replica claims. It is for one goroutine.
type turns struct {
	self   string
	tick   time.Duration
	live   []string             // the replicas that have turns, in order; this one alone if they are few
	absent map[string]time.Time // replicas that were late; this one claims in their turns too, up to these times

	ahead map[int64]int64        // by turn: the first one from it on in which this replica claims, as far as asked for
	all   time.Time              // up to this, it claims in all turns
	lanes map[job.Lane]time.Time // of some lanes, it claims in all turns up to this
}

func newTurns(self string, tick time.Duration) turns {
	return turns{
		self: self, tick: tick, live: []string{self}, absent: make(map[string]time.Time),
		ahead: make(map[int64]int64), lanes: make(map[job.Lane]time.Time),
	}
}

// turnOf returns the number of the turn of a time, and beginOf the time at which a turn begins.
func turnOf(at time.Time) int64      { return at.UnixMilli() / turnFor.Milliseconds() }
func beginOf(turn int64) time.Time   { return time.UnixMilli(turn * turnFor.Milliseconds()) }
func later(a, b time.Time) time.Time { return latestOf(a.Round(0), b.Round(0)) }

// ownerOf returns the replica to which a turn belongs, by rendezvous hashing: if one replica comes or goes, only its
// own turns change. A replica's rank depends on nothing but itself and the turn. So while some know of a replica that
// came or is about to go, and others do not, each turn belongs to at least one of those that claim: to that of the
// highest rank, in its own view. For that, one that goes has to claim until nobody has it in view. Every second turn
// reverses the ranks of the turn before. So nobody has more than two turns in a row, and each soon learns what one is
// like.
func ownerOf(turn int64, replicas []string) (owner string) {
	var highest uint64
	for _, r := range replicas {
		h := fnv.New64a()
		_, _ = h.Write(strconv.AppendInt([]byte(r), turn/2, 10))
		x := h.Sum64() // and mixed as in splitmix64, since FNV mixes its last bytes little
		x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
		x = (x ^ x>>27) * 0x94d049bb133111eb
		if x ^= x >> 31; turn%2 == 1 {
			x = ^x
		}
		if owner == "" || x > highest {
			owner, highest = r, x
		}
	}
	return owner
}

// meet notes the replicas that beat and may claim, and forgets what is over. One for which this replica stands in keeps
// its turns here, also when it no longer beats: others may not have noticed yet.
func (t *turns) meet(beating []string, now time.Time) {
	live := append([]string{t.self}, beating...)
	for r, until := range t.absent {
		if now.After(until) {
			delete(t.absent, r)
			clear(t.ahead)
		} else {
			live = append(live, r)
		}
	}
	for lane, until := range t.lanes {
		if now.After(until) {
			delete(t.lanes, lane)
		}
	}
	slices.Sort(live)
	if live = slices.Compact(live); len(live) < turnsFrom {
		live = []string{t.self}
	}
	if !slices.Equal(live, t.live) || len(t.ahead) > 1000 {
		clear(t.ahead)
		t.live = live
	}
}

// at returns the time at which this replica is to claim an occurrence that falls due at a time: then, if the turn is
// its own; else at the beginning of its next turn, since nobody tells it that the occurrence was claimed, and which is
// next. Everyone claims what falls due at a whole minute: often that is much at once.
func (t *turns) at(lane job.Lane, due, now time.Time) time.Time {
	switch {
	case due.IsZero(), len(t.live) == 1, due.Equal(due.Truncate(time.Minute)):
		return due
	case due.Before(t.all), due.Before(t.lanes[lane]):
		return due
	}
	turn := turnOf(later(due, now)) // what was left belongs to the present turn
	own := t.own(turn)
	if own == turn {
		return due
	}
	return beginOf(own)
}

// own returns the first turn at or after a turn in which this replica claims: one of its own, or of one for which it
// stands in.
func (t *turns) own(turn int64) int64 {
	own, known := t.ahead[turn]
	if !known {
		for own = turn; !t.claims(own); {
			own++
		}
		t.ahead[turn] = own
	}
	return own
}

func (t *turns) claims(turn int64) bool {
	owner := ownerOf(turn, t.live)
	_, absent := t.absent[owner]
	return absent || owner == t.self
}

// taken reports whether replicas take turns now, as far as this one knows.
func (t *turns) taken(now time.Time) bool { return len(t.live) > 1 && !now.Before(t.all) }

// pollIn returns the pause before a poll that is due now. The polls of replicas that take turns are spread evenly, so
// that they soon find what a dead replica has left, also if all have started at once.
func (t *turns) pollIn(now time.Time) time.Duration {
	if len(t.live) == 1 {
		return 0
	}
	place := t.tick * time.Duration(slices.Index(t.live, t.self)) / time.Duration(len(t.live))
	wait := (place - time.Duration(now.UnixNano())%t.tick + t.tick) % t.tick
	if wait > t.tick*9/10 { // its time has just passed
		return 0
	}
	return wait
}

// woken notes that this replica has stored occurrences of a lane of which the earliest falls due at a time. If that is
// soon, the other replicas may not know of it in time.
func (t *turns) woken(lane job.Lane, due, now time.Time) {
	if soon := now.Add(wokenPolls * t.tick); due.Before(soon) {
		t.lanes[lane] = soon
	}
}

// found returns when to claim in lanes that were found at a time; may reports whether a tenant's occurrences may be
// claimed. If something was left for too long, this replica claims for the rest of the turn too, and stands in for the
// replica whose turn it was for a while: so at most one turn of a replica that died is late.
func (t *turns) found(lanes []store.LaneDue, now time.Time, may func(tenant string) bool) []store.LaneDue {
	turn := turnOf(now)
	left := slices.IndexFunc(lanes, func(l store.LaneDue) bool {
		return now.Sub(l.DueAt) > latePatience && may(l.Lane.Tenant)
	})
	if left >= 0 && now.After(t.all) && t.own(turn) != turn {
		t.all = beginOf(turn + 1)
		missed := turnOf(lanes[left].DueAt)
		if owner := ownerOf(missed, t.live); owner != t.self && missed >= turn-1 { // else nobody knows whose turn it was
			t.absent[owner] = now.Add(absentFor)
			clear(t.ahead)
		}
	}
	found := slices.Clone(lanes)
	for i, l := range found {
		found[i].DueAt = t.at(l.Lane, l.DueAt, now)
	}
	return found
}

// used notes how many of this replica's slots are in use. If these are many, one replica alone may soon have too few.
func (t *turns) used(n, slots int, now time.Time) {
	if now.Before(t.all) {
		n *= len(t.live)
	}
	if n*busyPart >= slots && len(t.live) > 1 {
		t.all = later(t.all, now.Add(busyFor))
	}
}
