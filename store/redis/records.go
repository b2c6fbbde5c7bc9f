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

// shardKeys are the keys of a shard, in the order that records.lua gives. The number in braces decides in which slot of a
// cluster they are (https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/#hash-tags).
func shardKeys(prefix string, i int) []any {
	var keys []any
	for _, name := range []string{
		"jobs", "targets", "schedules", "names", "expiry", "expansion",
		"occurrences", "attempts", "errors", keyPending: "pending", "members", "own",
		keyDead: "dead", "dead-by-tenant", "dead-by-job",
	} {
		keys = append(keys, fmt.Sprintf("%s:{%d}:%s", prefix, i, name))
	}
	return keys
}

// The keys that are also read without a script, by their places among a shard's keys.
const (
	keyExpiry    = 4
	keyExpansion = 5
	keyPending   = 9
	keyDead      = 12
)

// shardOf is the shard of a job's documents.
func (s *Store) shardOf(n job.Name) int {
	h := fnv.New64a()
	_, _ = h.Write([]byte(jobField(n))) // it has no error
	return int(h.Sum64() % uint64(len(s.shards)))
}

// separator ends the tenant in a job's name, and the name in what follows it. No tenant or key has a control character in
// it, so it is unambiguous, and names of one tenant sort by the bytes of their keys.
const separator = "\x00"

// jobField is what a job is known by in its shard: its name as the scripts understand it.
func jobField(n job.Name) string { return n.Tenant + separator + n.Key }

func parseJobField(s string) job.Name {
	tenant, key, _ := strings.Cut(s, separator)
	return job.Name{Tenant: tenant, Key: key}
}

// keyRange are bounds of the names that a filter selects, as Redis takes them: "[" includes the bound, "(" excludes it.
// What follows a name among the entries of its occurrences, after a separator, is excluded too. No name has a byte 0xff.
func keyRange(f store.JobFilter, after string) (from, to string) {
	prefix := jobField(job.Name{Tenant: f.Tenant, Key: f.Prefix})
	from, to = "["+prefix, "("+prefix+"\xff"
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

// encodeTarget writes a callback and options: the type, the options and the data, which comes last since only it can have a
// separator in it.
func encodeTarget(c job.Callback, o job.Options) string {
	return c.Type + separator + string(o.Encode()) + separator + string(c.Data)
}

func decodeTarget(text string) (t job.Target, err error) {
	parts := strings.SplitN(text, separator, 3)
	if len(parts) != 3 {
		return t, fmt.Errorf("the stored callback %.40q can't be understood", text)
	}
	t.Callback = job.Callback{Type: parts[0], Data: []byte(parts[2])}
	t.Options, err = job.DecodeOptions([]byte(parts[1]))
	return t, err
}

// encodeOccurrence writes what of an occurrence never changes, as records.lua says.
func encodeOccurrence(o *job.Occurrence) string {
	step, subscriber := "-", ""
	if o.Part != nil {
		step, subscriber = strconv.Itoa(o.Part.Step), o.Part.Subscriber
	}
	return string(o.Revision) + " " + strconv.FormatInt(o.Timestamp.UnixMilli(), 10) + " " + strconv.Itoa(o.Position) + " " + step +
		" " + jobField(o.Name) + separator + subscriber
}

// decodeOccurrence reads an occurrence's id and record. What of it could be read is answered with the error too.
func decodeOccurrence(id, record string) (o job.Occurrence, err error) {
	if o.ID, err = job.ParseID(id); err != nil {
		return o, err
	}
	fields := strings.SplitN(record, " ", 5)
	if len(fields) != 5 {
		return o, fmt.Errorf("the stored occurrence %s can't be understood: %.80q", id, record)
	}
	names := strings.SplitN(fields[4], separator, 3)
	at, err := strconv.ParseInt(fields[1], 10, 64)
	position, positionErr := strconv.Atoi(fields[2])
	if len(names) != 3 || err != nil || positionErr != nil {
		return o, fmt.Errorf("the stored occurrence %s can't be understood: %.80q", id, record)
	}
	o.Name = job.Name{Tenant: names[0], Key: names[1]}
	o.Revision, o.Timestamp, o.Position = job.Revision(fields[0]), time.UnixMilli(at).UTC(), position
	if fields[3] != "-" {
		step, err := strconv.Atoi(fields[3])
		if err != nil {
			return o, fmt.Errorf("the stored occurrence %s can't be understood: %.80q", id, record)
		}
		o.Part = &job.Part{Step: step, Subscriber: names[2]}
	}
	return o, nil
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

// decodeState reads a job's state, as records.lua says.
func decodeState(name, state string, live bool) (s store.JobStatus, err error) {
	fields := strings.SplitN(state, " ", 11)
	if len(fields) != 11 {
		return s, fmt.Errorf("the stored job %q can't be understood: %.80q", name, state)
	}
	l := make(list, len(fields))
	for i, field := range fields {
		l[i] = field
	}
	s.Name = parseJobField(name)
	s.Revision, s.Version = job.Revision(fields[0]), job.Revision(fields[1])
	s.CreatedAt, s.UpdatedAt, s.ExpiresAt = l.millis(2), l.millis(3), l.millis(4)
	s.PausedAt, s.Cursor, s.ExpandAt = l.millis(5), l.millis(6), l.millis(7)
	s.Missed, s.Callback.Type, s.Live = l.number(9), fields[10], live
	return s, nil
}
