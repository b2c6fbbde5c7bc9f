package redis

import (
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// shardKeys are the keys of a shard, in the order that prelude.lua gives, but for those of its lanes, see [set]. The
// number in braces decides in which slot of a cluster they are
// (https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/#hash-tags).
func shardKeys(prefix string, i int) []any {
	var keys []any
	for _, name := range []string{
		"jobs", "targets", "schedules", "names", "expiry", "expansion",
		"occurrences", "attempts", "errors", keyPending: "pending:", keyLanes: "lanes", "members", "own",
		keyDead: "dead", "dead-by-tenant", "dead-by-job", "heirs", keyHeads: "heads",
	} {
		keys = append(keys, fmt.Sprintf("%s:{%d}:%s", prefix, i, name))
	}
	return keys
}

// The keys that are also read without a script, by their places among a shard's keys.
const (
	keyExpiry    = 4
	keyExpansion = 5
	keyPending   = 9 // with the lane after it
	keyLanes     = 10
	keyDead      = 13
	keyHeads     = 17
)

// shardOf is the shard of a job's documents.
func (s *Store) shardOf(n job.Name) int {
	h := fnv.New64a()
	_, _ = h.Write([]byte(jobField(n)))           // it has no error
	return int(h.Sum64() % uint64(len(s.shards))) //nolint:gosec // it is less than the number of shards
}

// separator ends the tenant in a job's name, and the name in what follows it. No tenant or key has a control character
// in it, so it is unambiguous, and names of one tenant sort by the bytes of their keys.
const separator = "\x00"

// jobField is what a job is known by in its shard: its name as the scripts understand it.
func jobField(n job.Name) string { return n.Tenant + separator + n.Key }

func parseJobField(s string) job.Name {
	tenant, key, _ := strings.Cut(s, separator)
	return job.Name{Tenant: tenant, Key: key}
}

// keyRange are bounds of the names that a filter selects, as Redis takes them: "[" includes the bound, "(" excludes it.
// What follows a name among the entries of its occurrences, after a separator, is excluded too. No name has a byte
// 0xff.
func keyRange(f store.JobFilter, after string) (from, to string) {
	prefix := jobField(job.Name{Tenant: f.Tenant, Key: f.Prefix})
	from, to = "["+prefix, "("+prefix+"\xff"
	if f.Key != "" {
		prefix = jobField(job.Name{Tenant: f.Tenant, Key: f.Key})
		from, to = "["+prefix, "("+prefix+"\x02" // with what follows it among the entries of its occurrences
	}
	if last := jobField(job.Name{Tenant: f.Tenant, Key: after}); after != "" && last >= prefix {
		from = "(" + last + "\x01"
	}
	return from, to
}

// millis writes a time as Unix milliseconds, none as zero: no job has anything to do with the first moment of 1970.
func millis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

func fromMillis(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}

// encodeTarget writes a callback and options: the type, the options and the data, which comes last since only it can
// have a separator in it.
func encodeTarget(c job.Callback, o job.Options) string {
	return c.Type + separator + string(o.Encode()) + separator + string(c.Data)
}

func decodeTarget(text string) (t job.Target, err error) {
	kind, rest, hasKind := strings.Cut(text, separator)
	options, data, hasOptions := strings.Cut(rest, separator)
	if !hasKind || !hasOptions {
		return t, fmt.Errorf("the stored callback %.40q can't be understood", text)
	}
	t.Callback = job.Callback{Type: kind, Data: []byte(data)}
	if options == "" {
		return t, nil // they are all left at their defaults
	}
	t.Options, err = job.DecodeOptions([]byte(options))
	return t, err
}

// encodeOccurrence writes what of an occurrence never changes, as prelude.lua says.
func encodeOccurrence(o *job.Occurrence) string {
	b := make([]byte, 0, 128)
	b = append(append(b, o.Revision...), ' ')
	b = append(append(append(append(b, o.Name.Tenant...), separator...), o.Name.Key...), separator...)
	b = append(b, o.Priority.Code()...)
	b = append(strconv.AppendInt(b, o.Timestamp.UnixMilli(), 10), ' ')
	return string(appendPlace(b, o))
}

// appendPlace writes an occurrence's position, step and subscriber.
func appendPlace(b []byte, o *job.Occurrence) []byte {
	b = append(strconv.AppendInt(b, int64(o.Position), 10), ' ')
	if o.Part == nil {
		return append(b, "- "...)
	}
	b = append(strconv.AppendInt(b, int64(o.Part.Step), 10), ' ')
	return append(b, o.Part.Subscriber...)
}

// encodeHeir writes what an occurrence that is carried over is to be, as a mark has it, see prelude.lua.
func encodeHeir(as *job.Occurrence) string {
	return string(appendPlace([]byte(as.Priority.Code()), as))
}

// priorities are the codes of all of them.
const priorities = "hnl"

// decodeOccurrence reads an occurrence's id and line. What of it could be read is answered with the error too.
func decodeOccurrence(id, line string) (o job.Occurrence, err error) {
	if o.ID, err = job.ParseID(id); err != nil {
		return o, err
	}
	revision, rest, hasRevision := strings.Cut(line, " ")
	tenant, rest, hasTenant := strings.Cut(rest, separator)
	key, rest, hasKey := strings.Cut(rest, separator)
	instant, rest, hasInstant := strings.Cut(rest, " ")
	digits := strings.TrimLeft(instant, priorities)
	o.Priority = job.PriorityOf(instant[:len(instant)-len(digits)])
	position, rest, hasPosition := strings.Cut(rest, " ")
	step, subscriber, hasStep := strings.Cut(rest, " ")
	at, err := strconv.ParseInt(digits, 10, 64)
	place, placeErr := strconv.Atoi(position)
	whole := hasRevision && hasTenant && hasKey && hasInstant && hasPosition && hasStep
	if err != nil || placeErr != nil || !whole {
		return o, fmt.Errorf("the stored occurrence %s can't be understood: %.80q", id, line)
	}
	o.Name = job.Name{Tenant: tenant, Key: key}
	o.Revision, o.Timestamp, o.Position = job.Revision(revision), time.UnixMilli(at).UTC(), place
	if step != "-" {
		n, err := strconv.Atoi(step)
		if err != nil {
			return o, fmt.Errorf("the stored occurrence %s can't be understood: %.80q", id, line)
		}
		o.Part = &job.Part{Step: n, Subscriber: subscriber}
	}
	return o, nil
}

// lineOwner is the name of the job that the occurrence of a line is of, as the scripts know it; empty if it stands
// on its own, or the line is damaged.
func lineOwner(line string) string {
	revision, rest, _ := strings.Cut(line, " ")
	tenant, key, _ := strings.Cut(rest, separator)
	end := strings.Index(key, separator)
	if revision == "" || end < 0 {
		return ""
	}
	return rest[:len(tenant)+len(separator)+end]
}

// setAttempts reads how often an occurrence was claimed, and by whom.
func setAttempts(o *job.Occurrence, attempts string) {
	fields := strings.Split(attempts, " ")
	if len(fields) != 3 {
		return // never
	}
	l := list{fields[0], fields[1], fields[2]}
	o.Attempt, o.ScheduledAt, o.Token = l.number(0), l.millis(1), l.text(2)
}

// encodeCounts writes what a job counts, as prelude.lua says.
func encodeCounts(j *job.Job) string {
	return fmt.Sprintf("%d:%d:%d:%s", j.Missed, j.Planned, j.Failed, j.Trouble.Encode())
}

// decodeCounts reads what a job counts. A store of an earlier version has but the first of it.
func decodeCounts(j *job.Job, text string) (err error) {
	fields := strings.Split(text, ":")
	for i, count := range []*int{&j.Missed, &j.Planned, &j.Failed} {
		if i < len(fields) && err == nil {
			*count, err = strconv.Atoi(fields[i])
		}
	}
	if len(fields) > 3 && err == nil {
		j.Trouble, err = job.DecodeTrouble(fields[3])
	}
	return err
}

// decodeState reads a job's state, as prelude.lua says, and what is next of it: an id, or nothing.
func decodeState(name, state, next string) (s store.JobStatus, err error) {
	fields := strings.SplitN(state, " ", 11)
	if len(fields) != 11 {
		return s, fmt.Errorf("the stored job %q can't be understood: %.80q", name, state)
	}
	l := make(list, len(fields))
	for i, field := range fields {
		l[i] = field
	}
	s.Name = parseJobField(name)
	s.Revision, s.PausedAt, s.Cursor = job.Revision(fields[0]), l.millis(1), l.millis(2)
	s.Version, s.CreatedAt, s.UpdatedAt = job.Revision(fields[3]), l.millis(4), l.millis(5)
	s.ExpiresAt, s.ExpandAt = l.millis(6), l.millis(7)
	s.Callback.Type = fields[10]
	if err := decodeCounts(&s.Job, fields[9]); err != nil {
		return s, fmt.Errorf("the stored job %q can't be understood: %w", name, err)
	}
	if next != "" {
		id, err := job.ParseID(next)
		if err != nil {
			return s, err
		}
		s.Next = job.InstantOf(id)
	}
	return s, nil
}
