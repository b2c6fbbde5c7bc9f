package forecast

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"
)

// Crowd knows roughly how many occurrences are due in each second of the next two days. It is safe for concurrent use.
// A nil Crowd knows nothing.
type Crowd struct {
	plans *Reader
	most  int

	lock       sync.Mutex
	from       int64   // Unix seconds, of the first of planned
	planned    []int32 // by second, as of the last plan
	submitted  map[int64]int
	meanwhile  map[int64]int // submitted while a plan is read
	until      time.Time     // then the plan is read again
	refreshing bool
}

// Crowded is a second with many occurrences.
type Crowded struct {
	At time.Time
	// Occurrences is roughly the number of them.
	Occurrences int
}

// Bounds of a crowd: the seconds of a plan; the age at which it is read again, as a time and as a multiple of the
// duration of a reading; the seconds with submissions since; and the examined occurrences of one submission.
const (
	crowdSeconds  = 2 * 24 * 60 * 60
	crowdAge      = time.Minute
	mostSubmitted = 100_000
	mostLookedAt  = 1000
	mostTold      = 10
)

// NewCrowd returns a crowd that reports seconds with more than most occurrences; nil if most is zero.
func NewCrowd(plans *Reader, most int) *Crowd {
	if most == 0 {
		return nil
	}
	return &Crowd{plans: plans, most: most, submitted: make(map[int64]int)}
}

// Submitted notes due times of a job that was stored at now, and returns the crowded ones among the first thousand of
// them, at most ten. It never waits for the store: jobs from other replicas count once the plan was read again, in the
// background.
func (c *Crowd) Submitted(now time.Time, due []time.Time) []Crowded {
	return c.look(now, due, true)
}

// Look returns the crowded ones among due times that are not to be noted.
func (c *Crowd) Look(now time.Time, due []time.Time) []Crowded { return c.look(now, due, false) }

func (c *Crowd) look(now time.Time, due []time.Time, submitted bool) (crowded []Crowded) {
	if c == nil || len(due) == 0 {
		return nil
	}
	c.lock.Lock()
	defer c.lock.Unlock()
	defer c.refresh(now) // after the noting: stored jobs are in the plan
	seconds := make(map[int64]int)
	for _, at := range due[:min(len(due), mostLookedAt)] {
		seconds[at.Unix()]++
	}
	for second, n := range seconds {
		if submitted {
			c.submitted = note(c.submitted, second, n)
			if c.meanwhile != nil {
				c.meanwhile = note(c.meanwhile, second, n)
			}
		}
		if n := c.at(second); n > c.most {
			crowded = append(crowded, Crowded{time.Unix(second, 0).UTC(), n})
		}
	}
	slices.SortFunc(crowded, func(a, b Crowded) int { return a.At.Compare(b.At) })
	return crowded[:min(len(crowded), mostTold)]
}

// note counts submitted occurrences of a second.
func note(in map[int64]int, second int64, n int) map[int64]int {
	if len(in) >= mostSubmitted {
		in = make(map[int64]int)
	}
	in[second] += n
	return in
}

// at returns the number of occurrences of a second.
func (c *Crowd) at(second int64) int {
	n := c.submitted[second]
	if i := second - c.from; i >= 0 && i < int64(len(c.planned)) {
		n += int(c.planned[i])
	}
	return n
}

// refresh has the plan read again in the background, if it is old.
func (c *Crowd) refresh(now time.Time) {
	if c.refreshing || now.Before(c.until) {
		return
	}
	c.refreshing, c.meanwhile = true, make(map[int64]int)
	go func() {
		start := time.Now()
		var planned []int32
		var from int64
		err := contained(func() (err error) {
			planned, from, err = c.count(now)
			return err
		})
		c.lock.Lock()
		defer c.lock.Unlock()
		if err == nil {
			c.planned, c.from, c.submitted = planned, from, c.meanwhile
		}
		took := time.Since(start)
		c.refreshing, c.meanwhile, c.until = false, nil, now.Add(took+max(crowdAge, planRest*took))
	}()
}

// count counts the occurrences of each second from now on.
func (c *Crowd) count(now time.Time) (planned []int32, from int64, err error) {
	plan, err := c.plans.Plan(context.Background(), now)
	if err != nil {
		return nil, 0, err
	}
	begin := plan.At.Truncate(time.Second).Add(time.Second)
	planned = make([]int32, crowdSeconds)
	plan.tally(begin, time.Second, crowdSeconds, func(f *Flow) bool { return !f.Paused },
		func(period int, _ int32, n int) { planned[period] += int32(min(n, math.MaxInt32/2)) }) //nolint:gosec // it is less
	return planned, begin.Unix(), nil
}
