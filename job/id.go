package job

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/oklog/ulid/v2"
)

// ID identifies an occurrence or a delivery. It is a ULID (https://github.com/ulid/spec) whose time part is the
// instant and whose other 80 bits are a hash, so ids sort by instant, which keeps every index local, and the same
// occurrence always gets the same id, so inserting it twice does nothing.
type ID = ulid.ULID

// ParseID reads an id's 26-character text form.
func ParseID(s string) (ID, error) {
	id, err := ulid.ParseStrict(s)
	if err != nil {
		return ID{}, fmt.Errorf("id %q: %w", s, err)
	}
	return id, nil
}

// OccurrenceID is the id of a revision's occurrence at an instant. Position and subscriber tell occurrences at one
// instant apart.
func OccurrenceID(n Name, r Revision, at time.Time, position int, subscriber string) ID {
	return hashID(at, n.Tenant, n.Key, string(r), position, subscriber)
}

// DeliveryID identifies an occurrence to receivers: the same for every attempt, and for the same instant of the same
// job when it is submitted again.
func DeliveryID(n Name, at time.Time, position int, subscriber string) ID {
	return hashID(at, n.Tenant, n.Key, "", position, subscriber)
}

func hashID(at time.Time, tenant, key, revision string, position int, subscriber string) ID {
	var scratch [512]byte
	b := scratch[:0]
	for _, field := range []string{tenant, key, revision} {
		b = binary.AppendUvarint(b, uint64(len(field))) // so that no two lists of fields read the same
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

// InstantOf is the instant in an occurrence's id; zero for no id.
func InstantOf(id ID) time.Time {
	if id == (ID{}) {
		return time.Time{}
	}
	return ulid.Time(id.Time()).UTC()
}

// Revision is the unique stamp of a job's schedule, or of a whole job, see [Job.Version]: a ULID of the time it was
// taken and 80 random bits. Occurrences of different schedules are told apart by equality only. The order of versions
// is that in which they were taken, as far as the clocks agree.
type Revision string

// NewRevision takes a fresh revision.
func NewRevision(now time.Time) Revision {
	return Revision(ulid.MustNew(uint64(now.UnixMilli()), rand.Reader).String())
}

// LastRevision is the last of all revisions that can be taken at a time.
func LastRevision(at time.Time) Revision {
	id := ulid.ULID{}
	_ = id.SetTime(uint64(max(0, at.UnixMilli()))) // fails only past the year 10889
	for i := 6; i < len(id); i++ {
		id[i] = 0xff
	}
	return Revision(id.String())
}

// Age is how long before now the revision was taken; negative if that clock was ahead, zero if it is none of ours.
func (r Revision) Age(now time.Time) time.Duration {
	id, err := ulid.ParseStrict(string(r))
	if err != nil {
		return 0
	}
	return now.Sub(ulid.Time(id.Time()))
}

// NewToken makes a fencing token that no other claim has: 128 random bits as text.
func NewToken() string { return rand.Text() }
