package kafka

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

// alone is the number of permits of a record that is produced by itself, which is all of a topic's.
const alone = 1 << 30

// admission limits the records of one topic that may be under way at the same time.
//
// The client gives up all of a batch, and of its partition, when the context of the batch's first record ends, and
// checks no other's. So a record must not come behind one that has more time: it would be sent when its own attempt is
// long over, and when another replica may hold it or it may be cancelled. Contexts are expected to end by their
// deadlines, or all at once.
type admission struct {
	permits *semaphore.Weighted // one is taken by each record under way

	mu       sync.Mutex
	underWay int
	latest   time.Time // the last deadline of those under way
}

func newAdmission() *admission { return &admission{permits: semaphore.NewWeighted(alone)} }

// tolerance is by how much a record may come behind one that has more time. Attempts begin in no exact order; a lease
// outlives its attempt by at least twice as much.
const tolerance = 500 * time.Millisecond

var errBehind = errors.New("records under way have more time than this one, and might take it along too late")

// enter admits a record, or returns errBehind. Leave must follow if it was admitted.
func (a *admission) enter(ctx context.Context) error {
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Unix(1<<40, 0) // after all others
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.underWay == 0 {
		a.latest = deadline
	}
	if deadline.Add(tolerance).Before(a.latest) {
		return errBehind
	}
	if deadline.After(a.latest) {
		a.latest = deadline
	}
	a.underWay++
	return nil
}

func (a *admission) leave() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.underWay--
}
