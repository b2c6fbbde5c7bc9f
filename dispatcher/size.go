package dispatcher

import "time"

// size bounds the number of occurrences, or of jobs to expand, that one claim asks for. A claim that comes too late is
// given back, or lost until its lease ends, and is due again. If each claim asked for as many as possible, a slow store
// would never get one done.
type size struct{ most, largest int }

func newSize(largest int) size { return size{largest, largest} }

// adapt notes the end of a claim that asked for so many, and took some of its time. After a late one, the next one asks
// for half. A claim in good time doubles that while more is due, and any other claim in time adds one.
func (s *size) adapt(asked int, took, limit time.Duration, failure error, more bool) {
	good := took < limit/2
	switch {
	case failure != nil && good: // for another reason than its size
	case failure != nil:
		s.most = max(1, asked/2)
	case more && good:
		s.most = min(2*s.most, s.largest)
	case more:
		s.most = min(s.most+1, s.largest)
	}
}
