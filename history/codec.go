package history

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/oklog/ulid/v2"

	"github.com/carillon-scheduler/carillon/job"
)

// A stored body is the number of its format, followed by columns that are compressed together. A column has one field
// of all rows that have it, mostly as varints, since similar values compress well together. A name has only its
// difference from the one before.
const format = 1

// The columns of a segment.
const (
	columnHead   = iota // the gap, the number of rows, the first time
	columnText          // a table of texts, to which others refer by number
	columnShared        // the number of bytes that a key shares with the one before
	columnLength        // the number of its other bytes
	columnKey           // these bytes
	columnTenant
	columnKind
	columnAt
	columnFlags
	columnInstant
	columnPosition
	columnSubscriber
	columnAttempt
	columnClaimed
	columnTook
	columnDestination
	columnStatus
	columnError
	columnNext
	columnReplica
	columnTrace
	columnBy
	columnRequest
	columnFrom
	columnFields
	columns
)

// The flags of a row. Those of most rows are zero.
const (
	flagNoOccurrence = 1 << iota // the entry is about no occurrence
	flagTrace
	flagOwnRequest // the request's id is no ULID
)

const tookUnit = 100 * time.Microsecond

// mostBytes bounds the size of a body that is decompressed.
const mostBytes = 16 << 20

// codec encodes and decodes bodies. Decoding is safe for concurrent use; encoding is not.
type codec struct {
	compressor   *zstd.Encoder
	decompressor *zstd.Decoder
	scratch      *scratch
}

// scratch is memory that encoding reuses.
type scratch struct {
	columns [columns][]byte
	plain   []byte
}

func newCodec() codec {
	return codec{
		must(zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1),
			zstd.WithWindowSize(256<<10), zstd.WithLowerEncoderMem(true), zstd.WithEncoderCRC(false))),
		must(zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxMemory(mostBytes))),
		&scratch{},
	}
}

// must is for constructors that fail only if their options are wrong.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// appendSize appends a number; a negative one as zero.
func appendSize(b []byte, n int) []byte {
	return binary.AppendUvarint(b, uint64(max(0, n))) //nolint:gosec // it is not negative
}

// pack compresses columns to a body.
func (z codec) pack(parts [][]byte) []byte {
	plain := z.scratch.plain[:0]
	for _, p := range parts {
		plain = appendSize(plain, len(p))
		plain = append(plain, p...)
	}
	z.scratch.plain = plain
	return z.compressor.EncodeAll(plain, []byte{format})
}

var errCorrupt = errors.New("the stored history can't be understood")

// unpack is the inverse of pack, for n columns.
func (z codec) unpack(body []byte, n int) ([]column, error) {
	if len(body) == 0 || body[0] != format {
		return nil, fmt.Errorf("%w: it is of another format", errCorrupt)
	}
	plain, err := z.decompressor.DecodeAll(body[1:], nil)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errCorrupt, err)
	}
	all := column{rest: plain}
	parts := make([]column, n)
	for i := range parts {
		parts[i].rest = all.bytes(int(min(all.uint(), mostBytes))) //nolint:gosec // it is bounded
	}
	if all.broken {
		return nil, errCorrupt
	}
	return parts, nil
}

// column reads successive values. After its end, it is broken and returns zeros.
type column struct {
	rest   []byte
	broken bool
}

func (c *column) uint() uint64 {
	v, n := binary.Uvarint(c.rest)
	if n <= 0 {
		c.broken, c.rest = true, nil
		return 0
	}
	c.rest = c.rest[n:]
	return v
}

func (c *column) int() int64 {
	v := c.uint()
	return int64(v>>1) ^ -int64(v&1) //nolint:gosec // zigzag
}

func (c *column) bytes(n int) []byte {
	if n > len(c.rest) {
		c.broken, c.rest = true, nil
		return nil
	}
	b := c.rest[:n]
	c.rest = c.rest[n:]
	return b
}

// number reads a small number, such as an attempt's.
func (c *column) number() int { return int(min(c.uint(), 1<<31-1)) } //nolint:gosec // it is bounded

func (c *column) byte() byte {
	b := c.bytes(1)
	if len(b) == 0 {
		return 0
	}
	return b[0]
}

// latest bounds the times that are read, so that a corrupt one does not overflow.
const latest = 1 << 48 // milliseconds

func timeOf(ms int64) time.Time { return time.UnixMilli(max(-latest, min(ms, latest))).UTC() }

// texts is the table of a segment's texts during encoding. The empty text has the number 0.
type texts struct {
	numbers map[string]int
	column  []byte
}

func (t *texts) number(text string) int {
	if text == "" {
		return 0
	}
	n, known := t.numbers[text]
	if !known {
		if t.numbers == nil {
			t.numbers = make(map[string]int)
		}
		n = len(t.numbers) + 1
		t.numbers[text] = n
		t.column = appendSize(t.column, len(text))
		t.column = append(t.column, text...)
	}
	return n
}

// table is the table of texts during decoding.
type table []string

func readTable(c column) (t table, err error) {
	t = append(t, "")
	for len(c.rest) > 0 {
		t = append(t, string(c.bytes(c.number())))
	}
	if c.broken {
		return nil, errCorrupt
	}
	return t, nil
}

func (t table) text(c *column) string {
	n := c.uint()
	if n >= uint64(len(t)) {
		c.broken = true
		return ""
	}
	return t[n]
}

// segment is a group of entries that are stored together.
type segment struct {
	entries []Entry
	rows    int // the number of stored entries, with those that a filter leaves out
	margin
}

// margin describes entries that may be missing from a segment.
type margin struct {
	gap Gap
	// reach matters in the last recent record of a run. If the replica dies, entries may be missing from the time of that
	// record less the reach on. It is a whole number of milliseconds.
	reach time.Duration
}

// encodeSegment encodes rows. Rows that [sortByJob] has sorted make the shortest body.
func (z codec) encodeSegment(rows []*Entry, m margin) []byte {
	c := &z.scratch.columns
	for i := range c {
		c[i] = c[i][:0]
	}
	var t texts
	var base int64
	for i, e := range rows {
		if at := e.At.UnixMilli(); i == 0 || at < base {
			base = at
		}
	}
	head := appendSize(c[columnHead], len(rows))
	head = binary.AppendVarint(head, base)
	if m != (margin{}) {
		head = appendGap(head, m.gap)
		head = appendSize(head, int(m.reach.Milliseconds()))
	}
	c[columnHead] = head
	size := func(column, n int) { c[column] = appendSize(c[column], n) }
	signed := func(column int, v int64) { c[column] = binary.AppendVarint(c[column], v) }
	before := ""
	for _, e := range rows {
		at := e.At.UnixMilli()
		same := shared(before, e.Name.Key)
		before = e.Name.Key
		size(columnShared, same)
		size(columnLength, len(e.Name.Key)-same)
		c[columnKey] = append(c[columnKey], e.Name.Key[same:]...)
		size(columnTenant, t.number(e.Name.Tenant))
		c[columnKind] = append(c[columnKind], byte(e.Kind))
		signed(columnAt, at-base)
		flags := byte(0)
		if e.Instant.IsZero() {
			flags |= flagNoOccurrence
		} else {
			signed(columnInstant, at-e.Instant.UnixMilli())
			signed(columnPosition, int64(e.Position))
			size(columnSubscriber, t.number(e.Subscriber))
		}
		if e.Kind.Attempt() {
			if e.Trace != [16]byte{} {
				flags |= flagTrace
				c[columnTrace] = append(c[columnTrace], e.Trace[:]...)
			}
			size(columnAttempt, e.Attempt)
			signed(columnClaimed, at-e.Claimed.UnixMilli())
			size(columnTook, int(e.Took/tookUnit))
			size(columnDestination, t.number(e.Destination))
			size(columnStatus, e.Status)
			size(columnError, t.number(CutError(e.Error)))
			next := int64(0)
			if !e.Next.IsZero() {
				next = max(1, e.Next.UnixMilli()-at+1)
			}
			signed(columnNext, next)
			size(columnReplica, t.number(e.Replica))
		} else {
			size(columnBy, t.number(e.By))
			if id, err := ulid.ParseStrict(e.Request); err == nil && id.String() == e.Request {
				size(columnRequest, t.number(string(id[:])))
			} else {
				flags |= flagOwnRequest
				size(columnRequest, t.number(e.Request))
			}
			size(columnFrom, t.number(string(e.From)))
			size(columnFields, t.number(strings.Join(e.Fields, " ")))
		}
		c[columnFlags] = append(c[columnFlags], flags)
	}
	c[columnText] = t.column
	return z.pack(c[:])
}

// appendGap appends a gap. No gap is encoded as one that ends before it begins.
func appendGap(b []byte, g Gap) []byte {
	from, until := int64(1), int64(0)
	if !g.none() {
		from, until = g.From.UnixMilli(), g.Until.UnixMilli()
	}
	return binary.AppendVarint(binary.AppendVarint(b, from), until)
}

func (c *column) gap() Gap {
	from, until := c.int(), c.int()
	if from > until {
		return Gap{}
	}
	return Gap{timeOf(from), timeOf(until)}
}

// shared returns the length of the common prefix of two texts, in bytes.
func shared(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// decodeSegment decodes the entries whose names a filter selects, if the segment has any of the selected kinds. A nil
// filter selects all.
func (z codec) decodeSegment(body []byte, f *Filter) (s segment, err error) {
	c, err := z.unpack(body, columns)
	if err != nil {
		return s, err
	}
	head := &c[columnHead]
	rows, base := head.uint(), head.int()
	if len(head.rest) > 0 {
		s.gap = head.gap()
		s.reach = time.Duration(head.number()) * time.Millisecond
	}
	if head.broken || rows > uint64(len(c[columnKind].rest)) || rows != uint64(len(c[columnFlags].rest)) {
		return s, errCorrupt
	}
	s.rows = int(rows) //nolint:gosec // it is bounded
	if f != nil && !slices.ContainsFunc(c[columnKind].rest, func(k byte) bool { return f.wantsKind(Kind(k)) }) {
		return s, nil
	}
	t, err := readTable(c[columnText])
	if err != nil {
		return s, err
	}
	names, some, err := decodeNames(c, s.rows, t, f)
	if err != nil || some == 0 {
		return s, err
	}
	s.entries = make([]Entry, 0, some)
	for _, name := range names {
		if e := decodeRow(c, t, base, name); name != (job.Name{}) {
			s.entries = append(s.entries, e)
		}
	}
	for i := range c {
		if c[i].broken {
			return s, errCorrupt
		}
	}
	return s, nil
}

// decodeNames reads the name of each row, and counts the selected ones. Other rows get an empty name.
func decodeNames(c []column, rows int, t table, f *Filter) (names []job.Name, some int, err error) {
	names = make([]job.Name, rows)
	var key []byte
	var last job.Name
	lastWanted := false
	for i := range names {
		same, more := c[columnShared].number(), c[columnLength].number()
		tenant := t.text(&c[columnTenant])
		if same > len(key) {
			return nil, 0, errCorrupt
		}
		if i == 0 || more > 0 || same < len(key) || tenant != last.Tenant {
			key = append(key[:same], c[columnKey].bytes(more)...)
			last = job.Name{Tenant: tenant, Key: string(key)}
			lastWanted = f == nil || f.wantsName(last)
		}
		if lastWanted {
			names[i] = last
			some++
		}
	}
	if c[columnShared].broken || c[columnLength].broken || c[columnKey].broken || c[columnTenant].broken {
		return nil, 0, errCorrupt
	}
	return names, some, nil
}

// decodeRow reads all of a row but its name.
func decodeRow(c []column, t table, base int64, name job.Name) (e Entry) {
	e.Name = name
	e.Kind = Kind(c[columnKind].byte())
	if e.Kind >= kinds {
		c[columnKind].broken = true
	}
	at := base + c[columnAt].int()
	e.At = timeOf(at)
	flags := c[columnFlags].byte()
	if flags&flagNoOccurrence == 0 {
		e.Instant = timeOf(at - c[columnInstant].int())
		e.Position = int(c[columnPosition].int())
		e.Subscriber = t.text(&c[columnSubscriber])
	}
	if e.Kind.Attempt() {
		e.Attempt = c[columnAttempt].number()
		e.Claimed = timeOf(at - c[columnClaimed].int())
		e.Took = time.Duration(c[columnTook].number()) * tookUnit
		e.Destination = t.text(&c[columnDestination])
		e.Status = c[columnStatus].number()
		e.Error = t.text(&c[columnError])
		if next := c[columnNext].int(); next > 0 {
			e.Next = timeOf(at + next - 1)
		}
		e.Replica = t.text(&c[columnReplica])
		if flags&flagTrace != 0 {
			copy(e.Trace[:], c[columnTrace].bytes(len(e.Trace)))
		}
		return e
	}
	e.By, e.Request = t.text(&c[columnBy]), t.text(&c[columnRequest])
	if flags&flagOwnRequest == 0 {
		var id ulid.ULID
		if copy(id[:], e.Request) != len(id) {
			c[columnRequest].broken = true
		}
		e.Request = id.String()
	}
	e.From = job.Revision(t.text(&c[columnFrom]))
	if fields := t.text(&c[columnFields]); fields != "" {
		e.Fields = strings.Fields(fields)
	}
	return e
}
