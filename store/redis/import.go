package redis

import (
	"context"
	"fmt"
	"strings"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Import implements [store.Transfer]. It inserts each job by a script, and then the occurrences of each shard by
// scripts of bounded size. It leaves out occurrences that don't match their job, because the job changed during the
// export.
func (s *Store) Import(ctx context.Context, documents []store.Document) (inserted int, err error) {
	var jobs []call
	var names []job.Name
	for _, r := range documents {
		if err := storable(r); err != nil {
			return 0, err
		}
		if r.Job != nil {
			jobs = append(jobs, call{importJobScript, s.shardOf(r.Job.Name), importJobArgs(r.Job)})
			names = append(names, r.Job.Name)
		}
	}
	for i, reply := range s.run(ctx, jobs) {
		switch answer, failure := reply.text(); {
		case failure != nil:
			err = failure
		case answer == "inserted":
			inserted++
		case answer == "other" && err == nil:
			err = fmt.Errorf("%w: %s", store.ErrConflict, names[i])
		}
	}
	if err != nil {
		return inserted, err
	}
	n, err := s.sum(ctx, s.importCalls(documents))
	return inserted + n, err
}

// storable refuses a document that would not read back as it was written, see prelude.lua. No store exports such a
// document, but an edited file may contain one.
func storable(r store.Document) error {
	var stamps []string
	var target *job.Target
	var name job.Name
	if j := r.Job; j != nil {
		stamps, target, name = []string{string(j.Revision), string(j.Version)}, &job.Target{Callback: j.Callback}, j.Name
	} else {
		o := r.Occurrence
		stamps, target, name = []string{string(o.Revision), o.Token}, o.Own, o.Name
	}
	for _, stamp := range stamps {
		if strings.ContainsAny(stamp, " \t\n\v\f\r\x00") {
			return fmt.Errorf("%s: a revision, version or token must have no white space: %q", name, stamp)
		}
	}
	if target != nil && strings.Contains(target.Callback.Type, separator) {
		return fmt.Errorf("%s: there is no callback type %q", name, target.Callback.Type)
	}
	return nil
}

func importJobArgs(j *job.Job) []any {
	return []any{
		jobField(j.Name), string(j.Revision), string(j.Version),
		millis(j.CreatedAt), millis(j.UpdatedAt), millis(j.ExpiresAt),
		millis(j.PausedAt), millis(j.Cursor), millis(j.ExpandAt),
		encodeCounts(j), j.Callback.Type, encodeTarget(j.Callback, j.Options), j.Schedule.Encode(),
	}
}

// importCalls returns the calls that insert the occurrences among documents.
func (s *Store) importCalls(documents []store.Document) (calls []call) {
	type page struct {
		args []any
		size int
	}
	pages := make([]page, len(s.shards))
	send := func(shard int) {
		calls = append(calls, call{importOccurrencesScript, shard, pages[shard].args})
		pages[shard] = page{}
	}
	for _, r := range documents {
		o := r.Occurrence
		if o == nil {
			continue
		}
		shard := s.shardOf(o.Name)
		p := &pages[shard]
		p.args = append(p.args, importArgs(o)...)
		if o.Own != nil {
			p.size += len(o.Own.Callback.Data)
		}
		if len(p.args) >= chunk*importedFields || p.size >= largestPage {
			send(shard)
		}
	}
	for shard := range pages {
		if len(pages[shard].args) > 0 {
			send(shard)
		}
	}
	return calls
}

// importedFields is the number of arguments that importArgs returns.
const importedFields = 7

// importArgs returns the arguments of importoccurrences.lua for an occurrence.
func importArgs(o *job.Occurrence) []any {
	var attempts, target string
	var due, failed any = "", ""
	if o.Attempt > 0 || o.Token != "" { // otherwise no attempts are stored, see write_attempts
		attempts = fmt.Sprintf("%d %d %s", o.Attempt, millis(o.ScheduledAt), o.Token)
	}
	if o.Own != nil {
		target = encodeTarget(o.Own.Callback, o.Own.Options)
	}
	if o.FailedAt.IsZero() {
		due = o.DueAt.UnixMilli()
	} else {
		failed = o.FailedAt.UnixMilli()
	}
	return []any{o.ID.String(), encodeOccurrence(o), attempts, o.LastError, due, failed, target}
}
