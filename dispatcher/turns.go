package dispatcher

import (
	"hash/fnv"
	"slices"
	"strconv"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Many replicas take turns, so that their claims do not compete. Time is divided into turns, and each turn belongs to
// one replica, its owner. The owner claims the occurrences that fall due in its turn, beginning with those left over
// from earlier turns. Turns are a preference; no guarantee depends on them. Replicas that disagree about an owner both
// claim, or claim a little later.
const (
	// turnsFrom is the least number of replicas that take turns. Fewer replicas all claim at every instant: their empty
	// claims cost little, and nothing is late when one of them stops or dies.
	turnsFrom = 4
	// turnFor is the duration of a turn. In a busy lane, a turn begins with a claim that may find nothing.
	turnFor = time.Second
	// latePatience is the lateness from which on other replicas claim an occurrence in the owner's place.
	latePatience = 100 * time.Millisecond
	// absentFor is the time for which this replica stands in for a late one. It is as long as a heartbeat lasts: after it,
	// all replicas know whether the late one has died.
	absentFor = beatFor
	// busyFor is the time for which a busy replica claims in all turns. A replica is busy when the callbacks of all
	// replicas would take 1/busyPart of its slots. It estimates their number from its own.
	busyFor  = 5 * time.Second
	busyPart = 4
	// wokenPolls is the number of poll intervals after which all replicas have seen a newly stored occurrence.
	wokenPolls = 3
)

// turns decides when this replica claims. It is not safe for concurrent use.
type turns struct {
	self   string
	tick   time.Duration
	live   []string             // the replicas that take turns, sorted; only this one if they are few
	absent map[string]time.Time // late replicas, and the time until which this one stands in for each

	ahead map[int64]int64        // a cache of own
	all   time.Time              // until then, this replica claims in all turns
	lanes map[job.Lane]time.Time // by lane: until then, it claims in all turns
}

func newTurns(self string, tick time.Duration) turns {
	return turns{
		self: self, tick: tick, live: []string{self}, absent: make(map[string]time.Time),
		ahead: make(map[int64]int64), lanes: make(map[job.Lane]time.Time),
	}
}

// turnOf returns the number of the turn that a time is in, beginOf the start of a turn, and later the later of two
// times.
func turnOf(at time.Time) int64      { return at.UnixMilli() / turnFor.Milliseconds() }
func beginOf(turn int64) time.Time   { return time.UnixMilli(turn * turnFor.Milliseconds()) }
func later(a, b time.Time) time.Time { return latestOf(a.Round(0), b.Round(0)) }

// ownerOf returns the owner of a turn, by rendezvous hashing: when a replica starts or stops, only its own turns
// change. A replica's rank depends only on its id and the turn. So each turn has an owner that claims, even while
// replicas disagree about the replicas that are live: the one of the highest rank owns the turn in its own view. A
// replica that stops must therefore claim until no other replica counts it as live. An odd turn reverses the ranks of
// the turn before it. So no replica has more than two turns in a row, and each has a turn soon.
func ownerOf(turn int64, replicas []string) (owner string) {
	var highest uint64
	for _, r := range replicas {
		h := fnv.New64a()
		_, _ = h.Write(strconv.AppendInt([]byte(r), turn/2, 10))
		x := h.Sum64() // mixed further as in splitmix64, since FNV mixes its last bytes little
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

// meet notes the replicas that send heartbeats and may claim, and drops absences and lanes whose time is over. A
// replica for which this one stands in keeps its turns even without heartbeats, since others may still count it as
// live.
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

// at returns the time at which this replica claims in a lane whose next occurrence is due at a given time. In a turn of
// its own, that is the due time. Otherwise it is the start of its next turn, since this replica is not notified when
// others claim. All replicas claim at a whole minute, when many occurrences often fall due at once.
func (t *turns) at(lane job.Lane, due, now time.Time) time.Time {
	switch {
	case due.IsZero(), len(t.live) == 1, due.Equal(due.Truncate(time.Minute)):
		return due
	case due.Before(t.all), due.Before(t.lanes[lane]):
		return due
	}
	turn := turnOf(later(due, now)) // overdue occurrences belong to the present turn
	own := t.own(turn)
	if own == turn {
		return due
	}
	return beginOf(own)
}

// own returns the first turn, from a given one on, in which this replica claims: its own, or that of a replica for
// which it stands in.
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

// taken reports whether this replica leaves turns to others now.
func (t *turns) taken(now time.Time) bool { return len(t.live) > 1 && !now.Before(t.all) }

// pollIn returns the pause before a poll that is due now. The polls of replicas that take turns are spread evenly over
// the poll interval, even if all started at once. So one of them soon finds the occurrences of a replica that died.
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

// woken notes that this replica has stored occurrences of a lane, and the due time of the earliest. If that is soon,
// the other replicas may not see them in time, and this one claims in all turns of the lane.
func (t *turns) woken(lane job.Lane, due, now time.Time) {
	if soon := now.Add(wokenPolls * t.tick); due.Before(soon) {
		t.lanes[lane] = soon
	}
}

// found returns the lanes with the times at which this replica claims in them. The function may reports whether a
// tenant's occurrences may be claimed. If an occurrence is late beyond latePatience, this replica claims for the rest
// of the turn, and stands in for the owner of the occurrence's turn for absentFor. So at most one turn of a replica
// that died is late.
func (t *turns) found(lanes []store.LaneDue, now time.Time, may func(tenant string) bool) []store.LaneDue {
	turn := turnOf(now)
	left := slices.IndexFunc(lanes, func(l store.LaneDue) bool {
		return now.Sub(l.DueAt) > latePatience && may(l.Lane.Tenant)
	})
	if left >= 0 && now.After(t.all) && t.own(turn) != turn {
		t.all = beginOf(turn + 1)
		missed := turnOf(lanes[left].DueAt)
		if owner := ownerOf(missed, t.live); owner != t.self && missed >= turn-1 { // the owner of an older turn is unknown
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

// used notes the number of this replica's slots in use. If it is busy, one replica alone may soon have too few slots.
func (t *turns) used(n, slots int, now time.Time) {
	if now.Before(t.all) {
		n *= len(t.live)
	}
	if n*busyPart >= slots && len(t.live) > 1 {
		t.all = later(t.all, now.Add(busyFor))
	}
}
