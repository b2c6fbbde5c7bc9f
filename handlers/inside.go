package handlers

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"time"

	"github.com/carillon-scheduler/carillon/access"
	"github.com/carillon-scheduler/carillon/job"
)

// Inside is the origin of a request that another part of this process makes for a client without a key, such as the
// owner of a queue. Apart from that, the request is like any other.
type Inside struct {
	// Principal makes the request. Its scope and role bound it.
	Principal access.Principal
	// Asked is the time of the request. A change that another replica has accepted since then is not overridden.
	Asked time.Time
	// Items are the origins of a batch's items, in order; for any other request, its only origin. Missing ones are zero.
	Items []InsideItem
}

// InsideItem is the origin of one submission, which a broker may deliver more than once.
type InsideItem struct {
	// Repeated reports that the submission may have been stored before. Then it leaves a job of the same definition as
	// it is, provided that the job was stored after the submission was published.
	Repeated bool
	// Published is the time at which the client published the submission; zero if unknown.
	Published time.Time
	// Identity distinguishes the submission from others of the same time; empty if unknown.
	Identity string
	// Trace is the trace context of the submission.
	Trace job.Trace
}

// insideKey is the key of a request's [Inside] in its context.
type insideKey struct{}

// FromInside returns the context of a request from inside this process.
func FromInside(ctx context.Context, from *Inside) context.Context {
	return context.WithValue(ctx, insideKey{}, from)
}

// InsideOf returns the origin of a request from inside this process; nil for any other.
func InsideOf(ctx context.Context) *Inside {
	from, _ := ctx.Value(insideKey{}).(*Inside)
	return from
}

// item returns the origin of the submission with an index; zero if the request does not come from inside.
func (i *Inside) item(index int) (origin InsideItem) {
	if i != nil && index < len(i.Items) {
		origin = i.Items[index]
	}
	return origin
}

// mostAhead bounds how far the clock of a client may be ahead for its times to count. A trigger of such a client waits
// until its instant, as nothing fires before that.
const mostAhead = 5 * time.Second

// trigger returns the instant and the position of a triggered occurrence. They are the same whenever a submission is
// delivered again, provided that it has an identity and a time. So the occurrence has the same id: the store takes it
// once, and a receiver can drop it if it has fired before.
func (i *InsideItem) trigger(now time.Time) (at time.Time, position int) {
	at = i.Published.Truncate(time.Millisecond).UTC()
	if i.Identity == "" || at.Unix() < 0 || at.After(now.Add(mostAhead)) { // ids have no times before 1970
		return now, 1 + rand.IntN(math.MaxInt32) // so that ids differ if the job is triggered twice in one instant
	}
	sum := sha256.Sum256([]byte(i.Identity))
	return at, 1 + int(binary.BigEndian.Uint32(sum[:])%math.MaxInt32)
}

// stored reports whether a job's present definition may be the result of a submission.
func (i *InsideItem) stored(present *job.Job, submitted *job.Job) bool {
	return i.Repeated && (i.Published.IsZero() || !present.UpdatedAt.Before(i.Published)) &&
		submitted.SameTimes(present) && same(present, submitted)
}
