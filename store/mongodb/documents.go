package mongodb

import (
	"slices"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// jobDocument is a document of the collection jobs. Callback data, options and schedule are kept as bytes, because BSON
// would not preserve the submitted form.
type jobDocument struct {
	ID        string           `bson:"_id"`
	Tenant    string           `bson:"tenant"`
	Key       string           `bson:"key"`
	Revision  string           `bson:"revision"`
	Version   string           `bson:"version"`
	CreatedAt time.Time        `bson:"createdAt"`
	UpdatedAt time.Time        `bson:"updatedAt"`
	ExpiresAt time.Time        `bson:"expiresAt"`
	PausedAt  time.Time        `bson:"pausedAt,omitempty"`
	Callback  callbackDocument `bson:"callback"`
	Options   []byte           `bson:"options,omitempty"`
	Schedule  []byte           `bson:"schedule,omitempty"`
	Missed    int              `bson:"missed,omitempty"`
	Planned   int              `bson:"planned,omitempty"` // absent: unknown
	Failed    int              `bson:"failed,omitempty"`
	Trouble   string           `bson:"trouble,omitempty"`
	// These belong to a recurring schedule that has not ended. ExpandAt is absent while the job is paused, and
	// ExpandToken is present only while the job is claimed for expansion. ExpandingUntil is the end of that claim's
	// lease. A pause ends the claim but keeps ExpandingUntil, since the former holder may still be inserting.
	Cursor         time.Time `bson:"cursor,omitempty"`
	ExpandAt       time.Time `bson:"expandAt,omitempty"`
	ExpandToken    string    `bson:"expandToken,omitempty"`
	ExpandingUntil time.Time `bson:"expandingUntil,omitempty"`
	// Inherits is the replaced revision while some of its heirs may still have to be rewritten under this one.
	// CarriedFrom are the revisions from which occurrences were carried over.
	Inherits    string   `bson:"inherits,omitempty"`
	CarriedFrom []string `bson:"carriedFrom,omitempty"`
}

type callbackDocument struct {
	Type string `bson:"type"`
	Data []byte `bson:"data"`
}

// occurrenceDocument is a document of the collection occurrences: a pending occurrence or a dead letter.
type occurrenceDocument struct {
	ID          string    `bson:"_id"` // as text, which is readable and sorts as the bytes do
	Tenant      string    `bson:"tenant"`
	Key         string    `bson:"key"`
	Revision    string    `bson:"revision"` // empty: standalone
	Position    int       `bson:"position,omitempty"`
	Step        *int      `bson:"step,omitempty"` // absent without a sequence
	Subscriber  string    `bson:"subscriber,omitempty"`
	Timestamp   time.Time `bson:"timestamp"`
	Priority    string    `bson:"priority,omitempty"` // its code; a dead letter keeps it for a redrive to its lane
	Lane        string    `bson:"lane"`               // of its tenant and priority; empty: dead letters
	DueAt       time.Time `bson:"dueAt,omitempty"`    // absent from dead letters
	ScheduledAt time.Time `bson:"scheduledAt,omitempty"`
	Token       string    `bson:"token,omitempty"`
	Attempt     int       `bson:"attempt"`
	LastError   string    `bson:"lastError,omitempty"`
	FailedAt    time.Time `bson:"failedAt,omitempty"`
	// Redrives counts the redrives, so that a cancel can distinguish a dead letter that was redriven meanwhile from the
	// occurrence that it read.
	Redrives int `bson:"redrives,omitempty"`
	// Heirs has, by revision, the form that the occurrence takes if that revision replaces its job's.
	Heirs map[string]heirDocument `bson:"heirs,omitempty"`
	// Staged is the server's time of the insertion of a staged occurrence, which takes effect only through a later
	// bounded write.
	Staged time.Time `bson:"staged,omitempty"`
	// The callback and options of a standalone occurrence.
	Callback *callbackDocument `bson:"callback,omitempty"`
	Options  []byte            `bson:"options,omitempty"`
}

// separator ends the tenant in a job's _id. No tenant or key contains a control character, so the _id is unambiguous,
// and the _ids of one tenant sort by the bytes of their keys.
const separator = "\x00"

// jobID returns the _id of a job.
func jobID(n job.Name) string { return n.Tenant + separator + n.Key }

// beyond returns the least string above all strings with the prefix, for use as an upper bound; it is empty if there is
// none. It increments the last code point, so that the bound is valid UTF-8, in which code points sort like their
// bytes.
func beyond(prefix string) string {
	runes := []rune(strings.TrimRight(prefix, "\U0010ffff")) // the greatest code point can't be incremented
	if len(runes) == 0 {
		return ""
	}
	last := &runes[len(runes)-1]
	if *last++; *last == 0xd800 { // surrogates are not valid code points
		*last = 0xe000
	}
	return string(runes)
}

// jobID returns the _id of the occurrence's job.
func (d *occurrenceDocument) jobID() string { return jobID(job.Name{Tenant: d.Tenant, Key: d.Key}) }

// occurrenceIDs returns the _ids of occurrences.
func occurrenceIDs(occurrences []occurrenceDocument) []string {
	ids := make([]string, len(occurrences))
	for i := range occurrences {
		ids[i] = occurrences[i].ID
	}
	return ids
}

// jobIDs returns the _ids of the occurrences' jobs, each once.
func jobIDs(occurrences []occurrenceDocument) (ids []string) {
	for i := range occurrences {
		if d := &occurrences[i]; d.Revision != "" {
			ids = append(ids, d.jobID())
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// newJobDocument returns the document of a job as it is put, not paused.
func newJobDocument(j *job.Job) jobDocument {
	return jobDocument{
		ID:        jobID(j.Name),
		Tenant:    j.Tenant,
		Key:       j.Key,
		Revision:  string(j.Revision),
		Version:   string(j.Version),
		CreatedAt: j.CreatedAt,
		UpdatedAt: j.UpdatedAt,
		ExpiresAt: j.ExpiresAt,
		Callback:  newCallbackDocument(j.Callback),
		Options:   j.Options.Encode(),
		Schedule:  j.Schedule.Encode(),
		Missed:    j.Missed,
		Planned:   j.Planned,
		Failed:    j.Failed,
		Trouble:   j.Trouble.Encode(),
		Cursor:    j.Cursor,
		ExpandAt:  j.ExpandAt,
	}
}

func newCallbackDocument(c job.Callback) callbackDocument {
	return callbackDocument{Type: c.Type, Data: c.Data}
}

func newOccurrenceDocument(o *job.Occurrence) occurrenceDocument {
	d := occurrenceDocument{
		ID:        o.ID.String(),
		Tenant:    o.Name.Tenant,
		Key:       o.Name.Key,
		Revision:  string(o.Revision),
		Position:  o.Position,
		Timestamp: o.Timestamp,
		Priority:  o.Priority.Code(),
		Lane:      o.Lane().String(),
		DueAt:     o.DueAt,
	}
	if o.Part != nil {
		d.Step, d.Subscriber = &o.Part.Step, o.Part.Subscriber
	}
	if o.Own != nil {
		callback := newCallbackDocument(o.Own.Callback)
		d.Callback, d.Options = &callback, o.Own.Options.Encode()
	}
	return d
}

// status decodes a job, with its schedule only if that was read.
func (d *jobDocument) status() (s store.JobStatus, err error) {
	s.Name = job.Name{Tenant: d.Tenant, Key: d.Key}
	s.Revision, s.Version = job.Revision(d.Revision), job.Revision(d.Version)
	s.CreatedAt, s.UpdatedAt, s.ExpiresAt, s.PausedAt = d.CreatedAt, d.UpdatedAt, d.ExpiresAt, d.PausedAt
	s.Cursor, s.ExpandAt, s.Missed = d.Cursor, d.ExpandAt, d.Missed
	s.Planned, s.Failed = d.Planned, d.Failed
	if s.Trouble, err = job.DecodeTrouble(d.Trouble); err != nil {
		return s, err
	}
	target, err := newTarget(d.Callback, d.Options)
	if err != nil {
		return s, err
	}
	s.Callback, s.Options = target.Callback, target.Options
	if len(d.Schedule) > 0 {
		s.Schedule, err = job.DecodeSchedule(d.Schedule)
	}
	return s, err
}

func newTarget(c callbackDocument, options []byte) (t job.Target, err error) {
	t.Callback = job.Callback{Type: c.Type, Data: c.Data}
	t.Options, err = job.DecodeOptions(options)
	return t, err
}

func (d *occurrenceDocument) occurrence() (o job.Occurrence, err error) {
	o = job.Occurrence{
		Name:        job.Name{Tenant: d.Tenant, Key: d.Key},
		Priority:    job.PriorityOf(d.Priority),
		Revision:    job.Revision(d.Revision),
		Position:    d.Position,
		Timestamp:   d.Timestamp,
		DueAt:       d.DueAt,
		ScheduledAt: d.ScheduledAt,
		Token:       d.Token,
		Attempt:     d.Attempt,
		LastError:   d.LastError,
		FailedAt:    d.FailedAt,
	}
	if d.Step != nil {
		o.Part = &job.Part{Step: *d.Step, Subscriber: d.Subscriber}
	}
	if o.ID, err = job.ParseID(d.ID); err != nil {
		return o, err
	}
	if d.Callback != nil {
		var own job.Target
		own, err = newTarget(*d.Callback, d.Options)
		o.Own = &own
	}
	return o, err
}
