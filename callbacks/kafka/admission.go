package kafka

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

// alone is the number of permits that a topic has. A record that is produced alone takes all of them.
const alone = 1 << 30

// admission bounds the records of one topic that are under way.
//
// When the context of a batch's first record ends, the client fails all records of the batch and of its partition. It
// checks the context of no other record. So a record must not join records with later deadlines: it could be sent after
// its own attempt has ended, when another replica may hold the occurrence or its job may be cancelled. The contexts
// must end at their deadlines, or all together.
type admission struct {
	permits *semaphore.Weighted // each record under way takes one

	mu       sync.Mutex
	underWay int
	latest   time.Time // the latest deadline of the records under way
}

func newAdmission() *admission { return &admission{permits: semaphore.NewWeighted(alone)} }

// tolerance is the difference up to which a record may join one with a later deadline. Attempts begin in no exact
// order. A lease outlives its attempt by at least twice the tolerance.
const tolerance = 500 * time.Millisecond

var errBehind = errors.New("records under way have more time than this one, and might take it along too late")

// enter admits a record, or returns errBehind. The caller must call leave for an admitted record.
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
