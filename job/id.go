package job

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/oklog/ulid/v2"
)

// ID identifies an occurrence or a delivery. It is a ULID (https://github.com/ulid/spec): its time part is the instant,
// its other 80 bits are a hash. So ids sort by instant, which keeps every index local. The same occurrence always gets
// the same id, so inserting it twice does nothing.
type ID = ulid.ULID

// ParseID reads an id's 26-character text form.
func ParseID(s string) (ID, error) {
	id, err := ulid.ParseStrict(s)
	if err != nil {
		return ID{}, fmt.Errorf("id %q: %w", s, err)
	}
	return id, nil
}

// OccurrenceID returns the id of a revision's occurrence at an instant. Position and subscriber distinguish the
// occurrences of one instant.
func OccurrenceID(n Name, r Revision, at time.Time, position int, subscriber string) ID {
	return hashID(at, n.Tenant, n.Key, string(r), position, subscriber)
}

// DeliveryID returns the id by which receivers know an occurrence. It is the same for every attempt, and for the same
// instant of the same job when the job is submitted again.
func DeliveryID(n Name, at time.Time, position int, subscriber string) ID {
	return hashID(at, n.Tenant, n.Key, "", position, subscriber)
}

func hashID(at time.Time, tenant, key, revision string, position int, subscriber string) ID {
	var scratch [512]byte
	b := scratch[:0]
	for _, field := range []string{tenant, key, revision} {
		b = binary.AppendUvarint(b, uint64(len(field))) // so that different lists of fields have different bytes
		b = append(b, field...)
	}
	b = binary.BigEndian.AppendUint64(b, uint64(at.UnixMilli()))
	b = binary.AppendVarint(b, int64(position))
	b = append(b, subscriber...)
	sum := sha256.Sum256(b)

	var id ID
	_ = id.SetTime(uint64(at.UnixMilli())) // fails only past the year 10889; instants end in 9999
	_ = id.SetEntropy(sum[:10])            // fails only for other than 10 bytes
	return id
}

// InstantOf returns the instant in an occurrence's id; the zero time for the zero id.
func InstantOf(id ID) time.Time {
	if id == (ID{}) {
		return time.Time{}
	}
	return ulid.Time(id.Time()).UTC()
}

// LastID returns the greatest id that an occurrence of an instant can have. The ids of the next millisecond follow it.
func LastID(at time.Time) ID { return ulid.MustParse(string(LastRevision(at))) }

// Revision is the unique stamp of a job's schedule, or of a whole job, see [Job.Version]. It is a ULID of the time at
// which it was made, with 80 random bits. Revisions of schedules are compared for equality only. Versions are ordered
// by the time at which they were made, as far as the clocks agree.
type Revision string

// NewRevision makes a revision.
func NewRevision(now time.Time) Revision {
	return Revision(ulid.MustNew(uint64(now.UnixMilli()), rand.Reader).String())
}

// LastRevision returns the greatest revision that can be made at a time.
func LastRevision(at time.Time) Revision {
	id := ulid.ULID{}
	_ = id.SetTime(uint64(max(0, at.UnixMilli()))) // fails only past the year 10889
	for i := 6; i < len(id); i++ {
		id[i] = 0xff
	}
	return Revision(id.String())
}

// Time returns the time at which the revision was made; zero if the text is no revision.
func (r Revision) Time() time.Time {
	id, err := ulid.ParseStrict(string(r))
	if err != nil {
		return time.Time{}
	}
	return ulid.Time(id.Time()).UTC()
}

// Age returns the time since the revision was made; negative if that clock was ahead, zero if the text is no revision.
func (r Revision) Age(now time.Time) time.Duration {
	id, err := ulid.ParseStrict(string(r))
	if err != nil {
		return 0
	}
	return now.Sub(ulid.Time(id.Time()))
}

// NewToken makes a unique fencing token: 128 random bits as text.
func NewToken() string { return rand.Text() }
