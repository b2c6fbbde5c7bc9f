package job

import (
	"fmt"
	"strings"
)

// Priority is the precedence of a job's occurrences while more is due than can be fired.
type Priority string

// The priorities. A job without a priority has its tenant's.
const (
	PriorityDefault Priority = ""
	PriorityHigh    Priority = "high"
	PriorityNormal  Priority = "normal"
	PriorityLow     Priority = "low"
)

// Valid reports whether it is one of them.
func (p Priority) Valid() bool {
	switch p {
	case PriorityDefault, PriorityHigh, PriorityNormal, PriorityLow:
		return true
	}
	return false
}

// Code returns the priority as stores keep it: its first letter, or nothing.
func (p Priority) Code() string { return string(p[:min(1, len(p))]) }

// PriorityOf is the inverse of Code. An unknown text is the default.
func PriorityOf(code string) Priority {
	switch code {
	case "h":
		return PriorityHigh
	case "n":
		return PriorityNormal
	case "l":
		return PriorityLow
	}
	return PriorityDefault
}

// Lane is a tenant and a priority: the unit in which occurrences wait to be claimed. Each lane has its own order, so no
// occurrence waits behind another lane's backlog.
type Lane struct {
	Tenant   string
	Priority Priority
}

// DefaultLane is the lane of jobs that name neither a tenant nor a priority.
var DefaultLane = Lane{Tenant: DefaultTenant}

// laneMark separates a lane's tenant from its priority. A tenant's name can't contain it.
const laneMark = "!"

// String returns the lane as it is stored: the tenant, followed by the priority's code if there is a priority. It is
// never empty.
func (l Lane) String() string {
	if l.Priority == PriorityDefault {
		return l.Tenant
	}
	return l.Tenant + laneMark + l.Priority.Code()
}

// ParseLane is the inverse of String.
func ParseLane(text string) (Lane, error) {
	tenant, code, _ := strings.Cut(text, laneMark)
	l := Lane{Tenant: tenant, Priority: PriorityOf(code)}
	if tenant == "" || l.String() != text {
		return Lane{}, fmt.Errorf("%q is no lane", text)
	}
	return l, nil
}

// CompareLanes orders lanes by the bytes of their texts.
func CompareLanes(a, b Lane) int { return strings.Compare(a.String(), b.String()) }

// Lane returns the lane in which the occurrence waits.
func (o *Occurrence) Lane() Lane { return Lane{o.Name.Tenant, o.Priority} }
