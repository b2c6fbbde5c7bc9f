package history

var testCodec = newCodec()

// EncodeSegment encodes entries, in the order in which DecodeSegment answers them.
func EncodeSegment(entries []Entry, gap Gap) []byte {
	return testCodec.encodeSegment(sorted(entries), margin{gap: gap})
}

func sorted(entries []Entry) (rows []*Entry) {
	for i := range entries {
		rows = append(rows, &entries[i])
	}
	sortByJob(rows)
	return rows
}

// Sorted returns entries in the order of segments.
func Sorted(entries []Entry) (all []Entry) {
	for _, e := range sorted(entries) {
		all = append(all, *e)
	}
	return all
}

// RecordAll records copies of entries.
func (w *Writer) RecordAll(entries ...Entry) {
	all := make([]*Entry, len(entries))
	for i := range entries {
		e := entries[i]
		all[i] = &e
	}
	w.Record(all...)
}

// DecodeSegment is the inverse of EncodeSegment.
func DecodeSegment(body []byte) ([]Entry, Gap, error) {
	s, err := testCodec.decodeSegment(body, nil)
	return s.entries, s.gap, err
}

// DecodeRun only shows whether it can be decoded.
func DecodeRun(body []byte) error {
	_, err := testCodec.decodeRun("", body)
	return err
}

// PerSegment is the number of entries in a segment.
const PerSegment = perSegment

// Waiting returns the number of entries that wait to be written.
func (w *Writer) Waiting() int {
	w.lock.Lock()
	defer w.lock.Unlock()
	return len(w.waiting)
}

// NewBoundedWriter is NewWriter with another bound of the entries of one job in an hour.
func NewBoundedWriter(cfg Config, most int) *Writer {
	w := NewWriter(cfg)
	w.kept.most = most
	return w
}

// DeadTime is the time without a write after which a replica is taken for dead.
const DeadTime = deadTime
