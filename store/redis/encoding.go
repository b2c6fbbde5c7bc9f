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

// shardKeys returns the keys of a shard, in the order of prelude.lua, without those of its lanes, see [set]. The number
// in braces decides the keys' slot in a cluster
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

// shardOf returns the shard of a job's documents.
func (s *Store) shardOf(n job.Name) int {
	h := fnv.New64a()
	_, _ = h.Write([]byte(jobField(n)))           // it has no error
	return int(h.Sum64() % uint64(len(s.shards))) //nolint:gosec // it is less than the number of shards
}

// separator ends the tenant in a job's name, and the name in keys derived from it. No tenant or key contains a control
// character, so it is unambiguous, and names of one tenant sort by the bytes of their keys.
const separator = "\x00"

// jobField returns the name of a job as the scripts and the keys of its shard have it.
func jobField(n job.Name) string { return n.Tenant + separator + n.Key }

func parseJobField(s string) job.Name {
	tenant, key, _ := strings.Cut(s, separator)
	return job.Name{Tenant: tenant, Key: key}
}

// keyRange returns bounds of the names that a filter selects, in Redis' notation: "[" includes the bound, "(" excludes
// it. The bounds also fit the index of standalone occurrences, whose entries have a name, a separator and an id: a
// range after a name begins behind all entries of that name. No name has a byte 0xff.
func keyRange(f store.JobFilter, after string) (from, to string) {
	prefix := jobField(job.Name{Tenant: f.Tenant, Key: f.Prefix})
	from, to = "["+prefix, "("+prefix+"\xff"
	if f.Key != "" {
		prefix = jobField(job.Name{Tenant: f.Tenant, Key: f.Key})
		from, to = "["+prefix, "("+prefix+"\x02" // includes the entries of its occurrences
	}
	if last := jobField(job.Name{Tenant: f.Tenant, Key: after}); after != "" && last >= prefix {
		from = "(" + last + "\x01"
	}
	return from, to
}

// millis returns a time as Unix milliseconds, and zero for none: no job uses the first moment of 1970.
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

// encodeTarget encodes a callback and options: the type, the options and the data, which come last since only they can
// contain a separator.
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
		return t, nil // all have their defaults
	}
	t.Options, err = job.DecodeOptions([]byte(options))
	return t, err
}

// encodeOccurrence encodes the constant fields of an occurrence, see prelude.lua.
func encodeOccurrence(o *job.Occurrence) string {
	b := make([]byte, 0, 128)
	b = append(append(b, o.Revision...), ' ')
	b = append(append(append(append(b, o.Name.Tenant...), separator...), o.Name.Key...), separator...)
	b = append(b, o.Priority.Code()...)
	b = append(strconv.AppendInt(b, o.Timestamp.UnixMilli(), 10), ' ')
	return string(appendPlace(b, o))
}

// appendPlace appends an occurrence's position, step and subscriber.
func appendPlace(b []byte, o *job.Occurrence) []byte {
	b = append(strconv.AppendInt(b, int64(o.Position), 10), ' ')
	if o.Part == nil {
		return append(b, "- "...)
	}
	b = append(strconv.AppendInt(b, int64(o.Part.Step), 10), ' ')
	return append(b, o.Part.Subscriber...)
}

// encodeHeir encodes the future fields of a carried-over occurrence as a mark has them, see prelude.lua.
func encodeHeir(as *job.Occurrence) string {
	return string(appendPlace([]byte(as.Priority.Code()), as))
}

// priorities has the codes of all priorities.
const priorities = "hnl"

// decodeOccurrence decodes an occurrence's id and line. With an error it returns the fields that it could decode.
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

// lineOwner returns the name of the job in an occurrence's line, as the scripts have it. It is empty if the occurrence
// is standalone or the line is damaged.
func lineOwner(line string) string {
	revision, rest, _ := strings.Cut(line, " ")
	tenant, key, _ := strings.Cut(rest, separator)
	end := strings.Index(key, separator)
	if revision == "" || end < 0 {
		return ""
	}
	return rest[:len(tenant)+len(separator)+end]
}

// setAttempts decodes the number of an occurrence's claims, and the last claim.
func setAttempts(o *job.Occurrence, attempts string) {
	fields := strings.Split(attempts, " ")
	if len(fields) != 3 {
		return // never
	}
	l := list{fields[0], fields[1], fields[2]}
	o.Attempt, o.ScheduledAt, o.Token = l.number(0), l.millis(1), l.text(2)
}

// encodeCounts encodes a job's counts, see prelude.lua.
func encodeCounts(j *job.Job) string {
	return fmt.Sprintf("%d:%d:%d:%s", j.Missed, j.Planned, j.Failed, j.Trouble.Encode())
}

// decodeCounts decodes a job's counts. A store of an earlier version has only the first one.
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

// decodeState decodes a job's state, see prelude.lua, and the id of its next occurrence, or nothing.
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
