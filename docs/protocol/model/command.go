package model

import "strings"

// Command is a command that a call sends: the collection and the name, such as "jobs.update", and a write's guards.
type Command struct {
	Name   string
	Guards Guard
}

// Guard is a set of conditions, by which a write leaves out documents that others have changed. A condition that only
// selects documents is none: that of an id, and one that no other step can make false.
type Guard uint16

// The guards. Those by a field hold if the field is as the call has read it, or has made it itself.
const (
	Version Guard = 1 << iota
	Revision
	Cursor
	Token
	Redrives
	Inherits
	Heir     // it is still to be carried over
	Exists   // it is a job, not a stub
	Unpaused // the job is not paused
	Pending  // the occurrence is not a dead letter
	Dead     // it is one
	Free     // no replica holds it
	Due      // it is due, as when it was found
	InTime   // the request's time is not over
)

var guardNames = [...]string{
	"version", "revision", "cursor", "token", "redrives", "inherits", "heir", "exists", "unpaused", "pending", "dead",
	"free", "due", "in time",
}

func (g Guard) String() string {
	var names []string
	for i, name := range guardNames {
		if g&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}

func (c Command) String() string {
	if c.Guards == 0 {
		return c.Name
	}
	return c.Name + " if " + c.Guards.String()
}
