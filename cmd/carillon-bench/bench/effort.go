package bench

import (
	"fmt"
	"math"
	"time"
)

// Effort is what a mode takes, as far as that can be told beforehand.
type Effort struct {
	// Waiting is how long it waits, for instants to come and for what it watches.
	Waiting time.Duration
	// Occurrences is how many are stored, fired and deleted, one after the other.
	Occurrences int
}

// pace is how many occurrences in a second are stored, fired and deleted, with what is measured beside, on two cores.
const pace = 5000

// Time is about how long it takes.
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

// roughly writes a time in whole seconds, or in whole minutes if there are many.
func roughly(d time.Duration) string {
	if d < 2*time.Minute {
		return fmt.Sprintf("%d s", int(math.Ceil(d.Seconds())))
	}
	return fmt.Sprintf("%d min", int(math.Ceil(d.Minutes())))
}

// ahead is how long timed work is submitted before its first instant, whatever it takes to submit it.
const ahead = 4 * time.Second

// Effort is that of so many rounds.
func (d Drain) Effort(rounds int) Effort { return Effort{Occurrences: rounds * d.Count} }

// Effort is that of so many rounds, each without viewers and with them.
func (m Browse) Effort(rounds int) Effort { return Effort{Occurrences: 2 * rounds * m.Count} }

// Effort is that of so many rounds. Half of what there is to do with its occurrences is done while it waits for them.
func (s Steady) Effort(rounds int) Effort {
	return Effort{times(rounds, ahead+s.Duration+min(s.Duration, longestBare)), rounds * countOf(s.Rate, s.Duration) / 2}
}

// Effort is that of so many rounds: what is drained first, and as many that fall due within a second.
func (s Burst) Effort(rounds int) Effort {
	return Effort{times(rounds, ahead+time.Second), rounds * (s.Count + s.Count/2)}
}

// Effort is that of so many rounds.
func (s Mixed) Effort(rounds int) Effort {
	return Effort{times(rounds, mixedAhead+s.Duration), rounds * countOf(s.Rate, s.Duration) / 2}
}

// Effort is that of so many rounds, and of the parts that are measured.
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

// Effort is that of so many rounds. All jobs are stored in batches twice, bare and by Carillon, and a fourth of them so
// one by one.
func (s Submit) Effort(rounds int) Effort { return Effort{Occurrences: 2 * rounds * s.Count} }

// Effort is that of so many rounds with each number that waits.
func (s Pending) Effort(rounds int) Effort {
	all := rounds * len(s.Sizes)
	return Effort{times(all, 5*time.Second+s.Duration), all*countOf(s.Rate, s.Duration)/2 + s.Sizes[len(s.Sizes)-1]/2}
}

// Effort is that of so many rounds.
func (s Idle) Effort(rounds int) Effort {
	return Effort{settling + times(rounds, s.Duration), s.Pending / 2}
}

// Effort is that of so many rounds, each with few tenants and with many.
func (s Tenants) Effort(rounds int) Effort {
	return Effort{times(2*rounds, 12*time.Second+2*s.Duration), rounds * (s.Count/2 + 2*countOf(s.Rate, s.Duration))}
}

// Effort is known.
func (s Feed) Effort(int) Effort { return Effort{Waiting: s.Duration} }

func times(n int, d time.Duration) time.Duration { return time.Duration(n) * d }

// countOf is how many fall due at a rate.
func countOf(rate float64, d time.Duration) int { return int(rate * d.Seconds()) }
