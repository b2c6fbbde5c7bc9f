// Package record notes the events of a run: the answers to clients, the deliveries that receivers saw, and the faults.
// The simulation and the chaos on real stores both use it, so package checker judges both alike. Like the checker, it
// knows the service by its API only.
package record

import (
	"fmt"
	"sync"
	"time"

	"github.com/carillon-scheduler/carillon/sim/checker"
)

// Record is the record of a run under way. Its methods are safe for concurrent use.
type Record struct {
	lock    sync.Mutex
	history checker.History
	lines   []Line
}

// Line is a line about the world, by its time since the beginning.
type Line struct {
	At   time.Duration
	Text string
}

// New makes a record that begins now. The history has the options of the service.
func New(h checker.History) *Record {
	h.Begun = time.Now()
	return &Record{history: h}
}

// Begin has the record begin at a time.
func (r *Record) Begin(at time.Time) {
	r.lock.Lock()
	defer r.lock.Unlock()
	r.history.Begun = at
}

// Begun returns the time of the beginning.
func (r *Record) Begun() time.Time {
	r.lock.Lock()
	defer r.lock.Unlock()
	return r.history.Begun
}

// History returns the recorded history, with the lines about the world. Nothing may be recorded after it.
func (r *Record) History() (checker.History, []Line) {
	r.lock.Lock()
	defer r.lock.Unlock()
	return r.history, r.lines
}

// Note adds a line about the world.
func (r *Record) Note(format string, args ...any) {
	r.lock.Lock()
	defer r.lock.Unlock()
	r.lines = append(r.lines, Line{time.Since(r.history.Begun), fmt.Sprintf(format, args...)})
}

// Op adds operations that have ended, and numbers them.
func (r *Record) Op(ops ...checker.Op) {
	r.lock.Lock()
	defer r.lock.Unlock()
	for _, o := range ops {
		o.ID = len(r.history.Ops)
		r.history.Ops = append(r.history.Ops, o)
	}
}

// Trouble adds a fault of the world.
func (r *Record) Trouble(what string, replica int, from, to time.Time) {
	r.lock.Lock()
	defer r.lock.Unlock()
	r.history.Troubles = append(r.history.Troubles, checker.Trouble{What: what, Replica: replica, From: from, To: to})
}

// Calm notes that there are no more faults from now on.
func (r *Record) Calm() {
	r.lock.Lock()
	defer r.lock.Unlock()
	r.history.Calm = time.Now()
}

// End adds the final state, and the time up to which all instants must be accounted for in it.
func (r *Record) End(final checker.Final, due time.Time) {
	r.lock.Lock()
	defer r.lock.Unlock()
	r.history.Final, r.history.Due, r.history.Ended = final, due, time.Now()
}

// Delivery is an attempt that a receiver sees.
type Delivery struct {
	record *Record
	index  int
}

// Delivery notes that an attempt begins.
func (r *Record) Delivery(d checker.Delivery) Delivery {
	r.lock.Lock()
	defer r.lock.Unlock()
	d.Ended = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)
	r.history.Deliveries = append(r.history.Deliveries, d)
	return Delivery{r, len(r.history.Deliveries) - 1}
}

// End notes that an attempt has ended at a time, whether the receiver took it, and whether the replica was told that.
func (d Delivery) End(at time.Time, took, told bool) {
	d.record.lock.Lock()
	defer d.record.lock.Unlock()
	seen := &d.record.history.Deliveries[d.index]
	seen.Ended, seen.Took, seen.Told = at, took, told
}

// Refuse notes that the receiver refuses an attempt for good.
func (d Delivery) Refuse() {
	d.record.lock.Lock()
	defer d.record.lock.Unlock()
	d.record.history.Deliveries[d.index].Refused = true
}

// Ask notes that the receiver asks for a pause before the next attempt.
func (d Delivery) Ask(pause time.Duration) {
	d.record.lock.Lock()
	defer d.record.lock.Unlock()
	d.record.history.Deliveries[d.index].Asked = pause
}

// Idle returns the time since the last attempt began, or since the beginning.
func (r *Record) Idle() time.Duration {
	r.lock.Lock()
	defer r.lock.Unlock()
	if n := len(r.history.Deliveries); n > 0 {
		return time.Since(r.history.Deliveries[n-1].Begun)
	}
	return time.Since(r.history.Begun)
}
