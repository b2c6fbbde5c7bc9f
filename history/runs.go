package history

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sort"
	"time"
)

// runID makes the id of a run. Ids sort by the start of the run.
func runID(begun time.Time) string {
	return fmt.Sprintf("%012x-%08x", begun.UnixMilli(), rand.Uint32())
}

// partKey returns the key of a run's recent record or segment by its number.
func partKey(run string, number int) string { return fmt.Sprintf("%s-%04x", run, number) }

// runOf returns the run's id in a key that partKey made.
func runOf(key string) string { return key[:max(0, len(key)-5)] }

// run describes a complete run.
type run struct {
	id           string
	first, until time.Time // the times of the first and the last entry
	gap          Gap
	cuts         []cutOff
	groups       []group
}

// group has the segments of one class and one retention. A run has one group of each class per retention, in the order
// of the classes. Segments are numbered in the order of the groups.
type group struct {
	class class
	// at has the least name of each segment, as [sortKey] has it, cut after the first byte that differs from the name
	// before. The first is empty.
	at []string
}

// cutOff names a job with too many entries, and the time of the entries that were left out.
type cutOff struct {
	name  string // as [sortKey] has it
	class class
	gap   Gap
}

// The parts of a run's record.
const (
	runHead   = iota // the times of the entries, the gap, and the cut-offs
	runCounts        // the number of segments in each group
	runShared        // of each name, the bytes shared with the one before
	runLength
	runNames
	runParts
)

func (z codec) encodeRun(r *run) []byte {
	var p [runParts][]byte
	p[runHead] = binary.AppendVarint(nil, r.first.UnixMilli())
	p[runHead] = binary.AppendVarint(p[runHead], r.until.UnixMilli())
	p[runHead] = appendGap(p[runHead], r.gap)
	for _, c := range r.cuts {
		p[runHead] = append(appendSize(p[runHead], len(c.name)), c.name...)
		p[runHead] = appendGap(append(p[runHead], byte(c.class)), c.gap)
	}
	for _, g := range r.groups {
		p[runCounts] = appendSize(p[runCounts], len(g.at))
		before := ""
		for _, name := range g.at {
			same := shared(before, name)
			before = name
			p[runShared] = appendSize(p[runShared], same)
			p[runLength] = appendSize(p[runLength], len(name)-same)
			p[runNames] = append(p[runNames], name[same:]...)
		}
	}
	return z.pack(p[:])
}

func (z codec) decodeRun(id string, body []byte) (run, error) {
	r := run{id: id}
	p, err := z.unpack(body, runParts)
	if err != nil {
		return r, err
	}
	head := &p[runHead]
	r.first, r.until = timeOf(head.int()), timeOf(head.int())
	if len(head.rest) > 0 {
		r.gap = head.gap()
	}
	for len(head.rest) > 0 {
		r.cuts = append(r.cuts, cutOff{string(head.bytes(head.number())), class(head.byte()), head.gap()})
	}
	for i := 0; len(p[runCounts].rest) > 0; i++ {
		n := p[runCounts].number()
		if n > len(p[runLength].rest) {
			return r, errCorrupt
		}
		g := group{class(i % int(classes)), make([]string, n)}
		var name []byte
		for i := range g.at {
			same, more := p[runShared].number(), p[runLength].number()
			if same > len(name) {
				return r, errCorrupt
			}
			name = append(name[:same], p[runNames].bytes(more)...)
			g.at[i] = string(name)
		}
		r.groups = append(r.groups, g)
	}
	for i := range p {
		if p[i].broken {
			return r, errCorrupt
		}
	}
	return r, nil
}

// holding returns the keys of the segments of some classes that may hold jobs whose [sortKey] is within bounds.
func (r *run) holding(of [classes]bool, from, to string) (keys []string) {
	before := 0
	for _, g := range r.groups {
		if of[g.class] {
			// The last segment that begins before from: a job may be in several segments.
			first := max(0, sort.SearchStrings(g.at, from)-1)
			for i := first; i < len(g.at) && g.at[i] <= to; i++ {
				keys = append(keys, partKey(r.id, before+i))
			}
		}
		before += len(g.at)
	}
	return keys
}

// separator returns the shortest text that sorts after the name before, and not after name.
func separator(before, name string) string { return name[:min(len(name), shared(before, name)+1)] }
