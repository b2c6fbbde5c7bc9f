package bench

import (
	"fmt"
	"math"
	"time"
)

// Effort is an estimate of the effort of a mode.
type Effort struct {
	// Waiting is the time spent waiting for instants and observing.
	Waiting time.Duration
	// Occurrences is the number of occurrences that are stored, fired and deleted, one after the other.
	Occurrences int
}

// pace is the number of occurrences per second that are stored, fired and deleted on two cores, including the bare
// clients' work.
const pace = 5000

// Time returns the approximate duration.
func (e Effort) Time() time.Duration {
	return e.Waiting + time.Duration(float64(e.Occurrences)/pace*float64(time.Second))
}

func (e Effort) String() string {
	said := fmt.Sprintf("this takes about %s", roughly(e.Time()))
	if e.Occurrences > 0 {
		said += fmt.Sprintf(", if the store manages to store, fire and delete %d occurrences in a second, of %d in all",
			pace, e.Occurrences)
	}
	return said
}

// roughly formats a duration in whole seconds, or in whole minutes from two minutes on.
func roughly(d time.Duration) string {
	if d < 2*time.Minute {
		return fmt.Sprintf("%d s", int(math.Ceil(d.Seconds())))
	}
	return fmt.Sprintf("%d min", int(math.Ceil(d.Minutes())))
}

// ahead is the time from the start of a submission to the first instant of timed work, besides an allowance for each
// job.
const ahead = 4 * time.Second

// Effort implements [Mode].
func (d Drain) Effort(rounds int) Effort { return Effort{Occurrences: rounds * d.Count} }

// Effort implements [Mode]. Each round drains twice: without viewers and with them.
func (m Browse) Effort(rounds int) Effort { return Effort{Occurrences: 2 * rounds * m.Count} }

// Effort implements [Mode]. Half of the work on the occurrences is done while the bench waits for them.
func (s Steady) Effort(rounds int) Effort {
	return Effort{times(rounds, ahead+s.Duration+min(s.Duration, longestBare)), rounds * countOf(s.Rate, s.Duration) / 2}
}

// Effort implements [Mode]. Each round drains a backlog, and then fires as many occurrences that fall due in a second.
func (s Burst) Effort(rounds int) Effort {
	return Effort{times(rounds, ahead+time.Second), rounds * (s.Count + s.Count/2)}
}

// Effort implements [Mode].
func (s Mixed) Effort(rounds int) Effort {
	return Effort{times(rounds, mixedAhead+s.Duration), rounds * countOf(s.Rate, s.Duration) / 2}
}

// Effort implements [Mode], for the chosen parts.
func (f Fairness) Effort(rounds int) (e Effort) {
	for _, part := range f.Only {
		switch part {
		case "backlog":
			e.Occurrences += rounds * f.Count
		case "shares":
			for i := range f.Tenants {
				e.Occurrences += f.share(i)
			}
		case "priorities":
			e.Occurrences += rounds * 3 * f.Count / 4
		case "destinations":
			e.Waiting += times(rounds, 2*(ahead+f.Duration))
		}
	}
	return e
}

// Effort implements [Mode]. All jobs are stored in batches twice, by the bare client and by Carillon, and a fourth of
// them also one by one.
func (s Submit) Effort(rounds int) Effort { return Effort{Occurrences: 2 * rounds * s.Count} }

// Effort implements [Mode]. Each size has that many rounds.
func (s Pending) Effort(rounds int) Effort {
	all := rounds * len(s.Sizes)
	return Effort{times(all, 5*time.Second+settling+2*s.Duration),
		all*countOf(s.Rate, s.Duration)/2 + s.Sizes[len(s.Sizes)-1]/2}
}

// Effort implements [Mode].
func (s Idle) Effort(rounds int) Effort {
	return Effort{settling + times(rounds, s.Duration), s.Pending / 2}
}

// Effort implements [Mode]. Each round runs twice: with few tenants and with many.
func (s Tenants) Effort(rounds int) Effort {
	return Effort{times(2*rounds, 12*time.Second+2*s.Duration), rounds * (s.Count/2 + 2*countOf(s.Rate, s.Duration))}
}

// Effort implements [Mode].
func (s Feed) Effort(int) Effort { return Effort{Waiting: s.Duration} }

func times(n int, d time.Duration) time.Duration { return time.Duration(n) * d }

// countOf returns the number of occurrences that fall due at a rate within a duration.
func countOf(rate float64, d time.Duration) int { return int(rate * d.Seconds()) }
