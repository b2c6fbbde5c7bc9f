package redis

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// place is the position of an export, which goes through the parts, and through the shards of each part. After is the
// last entry read from the part's index; it is empty at the beginning.
type place struct {
	shard int
	part  int
	after string
}

// The parts of an export of one shard. Each is in the order of an index whose entries nothing changes. An occurrence
// that is buried meanwhile may be exported twice, under its revision and as a dead letter, but is never left out.
const (
	partJobs    = iota // by name
	partMembers        // the occurrences of jobs, by revision and id
	partOwned          // standalone occurrences and dead letters, by name and id
	parts
)

func (p place) String() string {
	return fmt.Sprintf("%d:%d:%s", p.shard, p.part, url.PathEscape(p.after))
}

func (s *Store) parsePlace(text store.Place) (p place, err error) {
	if text == "" {
		return p, nil
	}
	shard, rest, _ := strings.Cut(string(text), ":")
	part, after, cut := strings.Cut(rest, ":")
	var shardErr, partErr, afterErr error
	p.shard, shardErr = strconv.Atoi(shard)
	p.part, partErr = strconv.Atoi(part)
	p.after, afterErr = url.PathUnescape(after)
	if !cut || shardErr != nil || partErr != nil || afterErr != nil ||
		p.shard < 0 || p.shard >= len(s.shards) || p.part < 0 || p.part > parts {
		return place{}, fmt.Errorf("%q is no place in an export of this store", text)
	}
	return p, nil
}

// largestPage bounds how much one script exports or imports, in bytes of callback data, options and schedules. The
// document that reaches the bound is the page's last.
const largestPage = 2 << 20

// Export implements [store.Transfer]. A page is the answer of one script; empty answers are skipped.
func (s *Store) Export(ctx context.Context, after store.Place, limit int) (
	documents []store.Document, next store.Place, err error) {
	p, err := s.parsePlace(after)
	if err != nil {
		return nil, "", err
	}
	for len(documents) == 0 && p.part < parts {
		if documents, p.after, err = s.exportPage(ctx, p, min(limit, chunk)); err != nil {
			return nil, "", err
		}
		if p.after == "" { // the part has ended
			if p.shard++; p.shard == len(s.shards) {
				p.part, p.shard = p.part+1, 0
			}
		}
	}
	return documents, store.Place(p.String()), nil
}

// exportPage exports the answer of one script. Last is the last index entry that it read; empty if there are no more.
func (s *Store) exportPage(
	ctx context.Context, p place, limit int,
) (documents []store.Document, last string, err error) {
	if p.part == partJobs {
		return s.exportJobs(ctx, p, limit)
	}
	c := call{exportMembersScript, p.shard, []any{p.after, limit}}
	if p.part == partOwned {
		c = call{exportOwnedScript, p.shard, []any{p.after, limit, largestPage}}
	}
	answer, err := s.run(ctx, []call{c})[0].list()
	if err != nil {
		return nil, "", err
	}
	for i := 1; i < len(answer); i++ {
		o, err := readExported(answer.list(i))
		if err != nil {
			return nil, "", fmt.Errorf("occurrence %s of job %s: %w", o.ID, o.Name, err)
		}
		documents = append(documents, store.Document{Occurrence: &o})
	}
	return documents, answer.text(0), nil
}

func (s *Store) exportJobs(
	ctx context.Context, p place, limit int,
) (documents []store.Document, last string, err error) {
	answer, err := s.run(ctx, []call{{exportJobsScript, p.shard, []any{p.after, limit, largestPage}}})[0].list()
	if err != nil {
		return nil, "", err
	}
	for i := range answer {
		row := answer.list(i)
		status, err := decodeState(row.text(0), row.text(1), "")
		if err != nil {
			return nil, "", err
		}
		j := status.Job
		target, err := decodeTarget(row.text(2))
		if err == nil {
			j.Callback, j.Options = target.Callback, target.Options
			j.Schedule, err = job.DecodeSchedule([]byte(row.text(3)))
		}
		if err != nil {
			return nil, "", fmt.Errorf("job %s: %w", j.Name, err)
		}
		documents, last = append(documents, store.Document{Job: &j}), row.text(0)
	}
	return documents, last, nil
}

// readExported decodes an occurrence in the answer of exportmembers.lua or exportowned.lua.
func readExported(row list) (o job.Occurrence, err error) {
	if o, err = decodeOccurrence(row.text(0), row.text(1)); err != nil {
		return o, err
	}
	setAttempts(&o, row.text(2))
	o.LastError = row.text(3)
	if row.text(4) != "" {
		o.DueAt = row.score(4)
	} else {
		o.FailedAt = row.score(5)
	}
	if o.Revision == "" {
		var own job.Target
		own, err = decodeTarget(row.text(6))
		o.Own = &own
	}
	return o, err
}
