package kafka

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

// everyone is the whole of a lane's gate: who has it produces alone.
const everyone = 1 << 30

// lane is what the records of one topic that are under way have in common.
//
// The client gives up all of a batch, and of its partition, when the context of the batch's first record ends, and
// looks at no other's. So a record must not come behind one that has more time: it would be sent when its own attempt
// is long over, and may be another's or cancelled. Contexts are expected to end by their deadlines, or all at once.
type lane struct {
	gate *semaphore.Weighted // taken by each record under way

	mu       sync.Mutex
	underWay int
	latest   time.Time // the last deadline of those under way
}

// tolerance is by how much a record may come behind one that has more time. Attempts begin in no exact order; a lease
// outlives its attempt by at least twice as much.
const tolerance = 500 * time.Millisecond

var errBehind = errors.New("records under way have more time than this one, and might take it along too late")

// enter notes a record, or answers errBehind. Leave must follow if it was noted.
func (l *lane) enter(ctx context.Context) error {
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Unix(1<<40, 0) // after all others
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.underWay == 0 {
		l.latest = deadline
	}
	if deadline.Add(tolerance).Before(l.latest) {
		return errBehind
	}
	if deadline.After(l.latest) {
		l.latest = deadline
	}
	l.underWay++
	return nil
}

func (l *lane) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.underWay--
}
