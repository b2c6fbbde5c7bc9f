package transfer

import (
	"errors"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// line is one line of an export. Exactly one of its fields is set.
type line struct {
	Export     *header         `json:"export,omitzero"`
	Tenant     *tenantLine     `json:"tenant,omitzero"`
	Job        *jobLine        `json:"job,omitzero"`
	Occurrence *occurrenceLine `json:"occurrence,omitzero"`
	CheckIn    *checkInLine    `json:"checkIn,omitzero"`
	Place      *placeLine      `json:"place,omitzero"`
	End        *Counts         `json:"end,omitzero"`
}

// header is the first line.
type header struct {
	Format int    `json:"format"`
	At     moment `json:"at"`
	Source string `json:"source,omitzero"`
	// Tenants are those that the export is of; none for all.
	Tenants []string `json:"tenants,omitzero"`
}

// placeLine is a place from which an interrupted export is resumed, with the counts up to it.
type placeLine struct {
	After store.Place `json:"after"`
	Counts
}

// encode returns a line with its end.
func encode(l line) ([]byte, error) {
	b, err := json.Marshal(l)
	if err != nil {
		return nil, err
	}
	return append(b, '\n'), nil
}

// decode parses a line. An unknown field is an error, since it would be lost.
func decode(b []byte) (line, error) {
	var l line
	if err := json.Unmarshal(b, &l, json.RejectUnknownMembers(true)); err != nil {
		return line{}, err
	}
	set := 0
	for _, is := range []bool{
		l.Export != nil, l.Tenant != nil, l.Job != nil, l.Occurrence != nil, l.CheckIn != nil, l.Place != nil, l.End != nil,
	} {
		if is {
			set++
		}
	}
	if set != 1 {
		return line{}, errors.New("it must have exactly one of export, tenant, job, occurrence, checkIn, place and end")
	}
	return l, nil
}

// decodeHeader parses the first line. It ignores unknown fields, so that it can read the format of a newer version.
func decodeHeader(b []byte) (*header, error) {
	var first struct {
		Export *struct {
			Format int `json:"format"`
		} `json:"export"`
	}
	if err := json.Unmarshal(b, &first); err != nil || first.Export == nil {
		return nil, errors.New("it is no export: its first line does not say so")
	}
	if first.Export.Format > format {
		return nil, fmt.Errorf("%w: its format is %d, this one reads up to %d; upgrade carillon",
			ErrFormat, first.Export.Format, format)
	}
	if first.Export.Format < 1 {
		return nil, fmt.Errorf("there is no format %d", first.Export.Format)
	}
	l, err := decode(b)
	return l.Export, err
}

// newLine returns the line of a record.
func newLine(r store.Document) line {
	if r.Job != nil {
		return line{Job: newJobLine(r.Job)}
	}
	return line{Occurrence: newOccurrenceLine(r.Occurrence)}
}

// record returns the record of a job's or an occurrence's line.
func (l *line) record() (r store.Document, err error) {
	if l.Job != nil {
		r.Job, err = l.Job.job()
	} else {
		r.Occurrence, err = l.Occurrence.occurrence()
	}
	return r, err
}

// moment is a time, written as RFC 3339 with milliseconds.
type moment time.Time

// latest is the last time that RFC 3339 can express. A job of that year may expire later because of its retention; the
// difference does not matter.
var latest = time.Date(9999, 12, 31, 23, 59, 59, int(999*time.Millisecond), time.UTC)

func (m moment) MarshalText() ([]byte, error) {
	t := time.Time(m)
	if t.After(latest) {
		t = latest
	}
	return []byte(job.FormatTime(t)), nil
}

func (m *moment) UnmarshalText(b []byte) error {
	t, err := job.ParseInstant(string(b))
	*m = moment(t)
	return err
}

func (m moment) IsZero() bool { return time.Time(m).IsZero() }

// object checks that a value, if there is one, is an object.
func object(field string, v jsontext.Value) error {
	if v != nil && v.Kind() != jsontext.KindBeginObject {
		return fmt.Errorf("%s must be an object", field)
	}
	return nil
}
