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
	// segments are the number of those of each class; at are the names at which they begin, as [sortKey] has them, cut to
	// where they differ from the ones before. The first is empty. The numbers of one class go on from those of the class
	// before.
	at [classes][]string
}

// parts of a run's record.
const (
	runHead   = iota // the times of the entries, and of the gap
	runCounts        // how many segments there are of each class
	runShared        // of the names
	runLength
	runNames
	runParts
)

func (z codec) encodeRun(r *run) []byte {
	var p [runParts][]byte
	p[runHead] = binary.AppendVarint(nil, r.first.UnixMilli())
	p[runHead] = binary.AppendVarint(p[runHead], r.until.UnixMilli())
	if !r.gap.none() {
		p[runHead] = binary.AppendVarint(p[runHead], r.gap.From.UnixMilli())
		p[runHead] = binary.AppendVarint(p[runHead], r.gap.Until.UnixMilli())
	}
	for _, at := range r.at {
		p[runCounts] = appendSize(p[runCounts], len(at))
		before := ""
		for _, name := range at {
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
	r.first, r.until = timeOf(p[runHead].int()), timeOf(p[runHead].int())
	if len(p[runHead].rest) > 0 {
		r.gap = Gap{timeOf(p[runHead].int()), timeOf(p[runHead].int())}
	}
	for c := range r.at {
		n := p[runCounts].number()
		if n > len(p[runLength].rest) {
			return r, errCorrupt
		}
		r.at[c] = make([]string, n)
		var name []byte
		for i := range r.at[c] {
			same, more := p[runShared].number(), p[runLength].number()
			if same > len(name) {
				return r, errCorrupt
			}
			name = append(name[:same], p[runNames].bytes(more)...)
			r.at[c][i] = string(name)
		}
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
	for c, at := range r.at {
		if of[c] {
			// The last that begins before the first wanted: one job may be in several.
			first := max(0, sort.SearchStrings(at, from)-1)
			for i := first; i < len(at) && at[i] <= to; i++ {
				keys = append(keys, partKey(r.id, before+i))
			}
		}
		before += len(at)
	}
	return keys
}

// separator is the shortest text that sorts after one name and not after another, which is the later one.
func separator(before, name string) string { return name[:min(len(name), shared(before, name)+1)] }
