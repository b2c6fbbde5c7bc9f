package job

import "strings"

// The texts by which the LastError of a parked occurrence gives the reason that its destination does not take it now.
// The first three are the ends of such an error.
const (
	WaitsForTurn = "it waits for its turn"
	SlotReserved = "a slot is reserved for it"
	NoTurns      = "the backlog is too long for turns"
	// FailedInARow stands between a number of failures and the pause of an open circuit.
	FailedInARow = " times in a row; it is tried again every "
)

// Parking is the reason why an occurrence is parked.
type Parking int

// The reasons.
const (
	NotParked Parking = iota // the occurrence is not parked, or its error is of another kind
	AtLimit                  // its destination is at a limit or a rate
	Down                     // the circuit of its destination, or of a part of it, is open
)

// ParkingOf returns the reason in an occurrence's LastError.
func ParkingOf(lastError string) Parking {
	for _, end := range []string{WaitsForTurn, SlotReserved, NoTurns} {
		if strings.HasSuffix(lastError, end) {
			return AtLimit
		}
	}
	if strings.Contains(lastError, FailedInARow) {
		return Down
	}
	return NotParked
}
