package history

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sort"
	"time"
)

// runID names a run. Ids sort by the time at which runs began.
func runID(begun time.Time) string {
	return fmt.Sprintf("%012x-%08x", begun.UnixMilli(), rand.Uint32())
}

// partKey is the key of a run's recent record or segment of a number.
func partKey(run string, number int) string { return fmt.Sprintf("%s-%04x", run, number) }

// runOf is the run of such a key.
func runOf(key string) string { return key[:max(0, len(key)-5)] }

// run describes a complete run.
type run struct {
	id           string
	first, until time.Time // of the entries, both among them
	gap          Gap
	cuts         []cutOff
	groups       []group
}

// group are the segments of one class whose entries are kept equally long. A run has a group of each class for each
// such time, in this order, and their segments are numbered in the order of the groups.
type group struct {
	class class
	// at are the names at which the segments begin, as [sortKey] has them, cut to where they differ from the ones before.
	// The first is empty.
	at []string
}

// cutOff is what was left out of a run since one job had too much in it.
type cutOff struct {
	name  string // as [sortKey] has it
	class class
	gap   Gap
}

// parts of a run's record.
const (
	runHead   = iota // the times of the entries, the gap, and what was cut off
	runCounts        // how many segments there are in each group
	runShared        // of the names
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

// holding are the keys of the segments of some classes that may hold jobs whose [sortKey] is from one up to another.
func (r *run) holding(of [classes]bool, from, to string) (keys []string) {
	before := 0
	for _, g := range r.groups {
		if of[g.class] {
			// The last that begins before the first wanted: one job may be in several.
			first := max(0, sort.SearchStrings(g.at, from)-1)
			for i := first; i < len(g.at) && g.at[i] <= to; i++ {
				keys = append(keys, partKey(r.id, before+i))
			}
		}
		before += len(g.at)
	}
	return keys
}

// separator is the shortest text that sorts after one name and not after another, which is the later one.
func separator(before, name string) string { return name[:min(len(name), shared(before, name)+1)] }
