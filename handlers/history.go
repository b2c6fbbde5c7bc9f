package handlers

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"math"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/go-json-experiment/json"

	"github.com/carillon-scheduler/carillon/history"
	"github.com/carillon-scheduler/carillon/job"
)

// entry is an entry of history in the form of the answer. An attempt has an outcome, and a change of a job a change.
type entry struct {
	At      string `json:"at"`
	Key     string `json:"key"`
	Outcome string `json:"outcome,omitzero"`
	Change  string `json:"change,omitzero"`

	DeliveryID string `json:"deliveryId,omitzero"`
	Timestamp  string `json:"timestamp,omitzero"`

	Attempt     int          `json:"attempt,omitzero"`
	ClaimedAt   string       `json:"claimedAt,omitzero"`
	Duration    job.Duration `json:"duration,omitzero"`
	Destination string       `json:"destination,omitzero"`
	Status      int          `json:"status,omitzero"`
	Error       string       `json:"error,omitzero"`
	NextAttempt string       `json:"nextAttempt,omitzero"`
	Replica     string       `json:"replica,omitzero"`
	TraceID     string       `json:"traceId,omitzero"`

	By        string       `json:"by,omitzero"`
	RequestID string       `json:"requestId,omitzero"`
	Replaced  job.Revision `json:"replaced,omitzero"`
	Fields    []string     `json:"fields,omitempty"`
}

func entryView(e *history.Entry) entry {
	v := entry{
		At: job.FormatTime(e.At), Key: e.Name.Key,
		Attempt: e.Attempt, ClaimedAt: instantText(e.Claimed), Duration: job.Duration(e.Took), Destination: e.Destination,
		Status: e.Status, Error: e.Error, NextAttempt: instantText(e.Next), Replica: e.Replica,
		By: e.By, RequestID: e.Request, Replaced: e.From, Fields: e.Fields,
	}
	if e.Kind.Attempt() {
		v.Outcome = e.Kind.String()
	} else {
		v.Change = e.Kind.String()
	}
	if !e.Instant.IsZero() {
		v.DeliveryID, v.Timestamp = e.DeliveryID().String(), job.FormatTime(e.Instant)
	}
	if e.Trace != [16]byte{} {
		v.TraceID = hex.EncodeToString(e.Trace[:])
	}
	return v
}

// missing reports in an answer that some of the requested entries may be missing.
type missing struct {
	Incomplete   bool   `json:"incomplete,omitzero"`
	MissingFrom  string `json:"missingFrom,omitzero"`
	MissingUntil string `json:"missingUntil,omitzero"`
}

func missingIn(r *history.Reading) missing {
	if r.Gap == nil {
		return missing{}
	}
	return missing{true, job.FormatTime(r.Gap.From), job.FormatTime(r.Gap.Until)}
}

// entryPage is a page of history.
type entryPage struct {
	Items []entry `json:"items"`
	missing
	NextCursor string `json:"nextCursor,omitzero"`
}

// getJobHistory answers with the history of a job, which may be deleted.
func (a *api) getJobHistory(c *gin.Context) error {
	key, err := keyInPath(c)
	if err != nil {
		return err
	}
	query, err := readQuery(c.Request, "outcome", "since", "until", "limit", "cursor")
	if err != nil {
		return err
	}
	return a.tellHistory(c, query, history.Filter{Tenant: who(c).tenant, Key: key})
}

// listHistory answers with the history of all jobs of a tenant, or of some of them.
func (a *api) listHistory(c *gin.Context) error {
	query, err := readQuery(c.Request, "prefix", "destination", "outcome", "since", "until", "limit", "cursor")
	if err != nil {
		return err
	}
	filter := history.Filter{Tenant: who(c).tenant, Destination: query.Get("destination")}
	if filter.Prefix, err = keyParameter(query, "prefix"); err != nil {
		return err
	}
	return a.tellHistory(c, query, filter)
}

// mostLooked bounds the entries that are decoded for one page: those of some minutes of a busy service.
const mostLooked = 500_000

// tellHistory answers with a page of the selected entries, or with all of them as lines if the client accepts these.
func (a *api) tellHistory(c *gin.Context, query url.Values, filter history.Filter) error {
	limit, err := a.historyParameters(query, &filter)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Request.Context(), storeTime)
	defer cancel()
	lines := acceptsLines(c.Request)
	if !lines {
		filter.Looks = mostLooked
	}
	reading, err := a.readHistory(ctx, filter)
	if err != nil {
		return err
	}
	if lines {
		return a.streamHistory(c, reading)
	}
	page := entryPage{Items: []entry{}, missing: missingIn(reading)}
	var last history.Place
	for e, err := range reading.All(ctx) {
		if err != nil {
			return err
		}
		if len(page.Items) == limit {
			page.NextCursor = placeCursor(last)
			break
		}
		page.Items, last = append(page.Items, entryView(&e)), e.Place()
	}
	if reading.Next != nil {
		page.NextCursor = placeCursor(*reading.Next)
	}
	return writeJSON(c, http.StatusOK, page)
}

// readHistory begins a reading of the selected entries that the caller may see. Jobs beyond the caller's scope have no
// entries, like jobs that never existed.
func (a *api) readHistory(ctx context.Context, f history.Filter) (*history.Reading, error) {
	scope, ok, err := scopeIn(ctx, f.Tenant)
	if f.Key != "" {
		ok = ok && scope.HasKey(f.Key)
	} else if ok {
		f.Prefix, ok = longer(f.Prefix, scope.KeyPrefix)
	}
	if err != nil {
		return nil, err
	}
	now := a.now()
	// A tenant's policy may have become shorter since the entries were written.
	kept := a.OwnLimits.History(f.Tenant, history.Policy{Keep: math.MaxInt64}).Keep
	if since := now.Add(-kept); since.After(f.Since) {
		f.Since = since
	}
	if !ok || kept == 0 {
		return &history.Reading{}, nil
	}
	return a.past.Read(ctx, f, now)
}

// streamHistory answers with one line for each entry of a reading. If entries may be missing, the first line reports
// that.
func (a *api) streamHistory(c *gin.Context, reading *history.Reading) error {
	control := http.NewResponseController(c.Writer)
	var lines bytes.Buffer
	if gap := missingIn(reading); gap.Incomplete {
		mustEncodeTo(&lines, gap)
		lines.WriteByte('\n')
	}
	c.Header("Content-Type", linesType)
	c.Header("X-Content-Type-Options", "nosniff")
	c.Status(http.StatusOK)
	send := func() error {
		_ = control.SetWriteDeadline(time.Now().Add(patience)) // deadlines are by the machine's clock
		_, err := lines.WriteTo(c.Writer)
		return err
	}
	n := 0
	for e, err := range reading.All(c.Request.Context()) {
		if err == nil {
			view := entryView(&e)
			mustEncodeTo(&lines, &view)
			lines.WriteByte('\n')
			if n++; n%sliceSize == 0 {
				if err = send(); err == nil {
					err = a.readmit(c.Request.Context())
				}
			}
		}
		if err != nil {
			a.Logger.Warn("history could not be told to its end", "request", requestID(c.Request), "error", err)
			panic(http.ErrAbortHandler) // break the connection, so that the client does not take the lines for all
		}
	}
	_ = send() // it fails only if the client has gone
	return nil
}

const linesType = "application/x-ndjson"

// acceptsLines reports whether a client asks for lines.
func acceptsLines(r *http.Request) bool {
	for _, accept := range r.Header.Values("Accept") {
		for part := range strings.SplitSeq(accept, ",") {
			if media, _, err := mime.ParseMediaType(part); err == nil && media == linesType {
				return true
			}
		}
	}
	return false
}

// failedOutcome selects all outcomes except deliveries.
const failedOutcome = "failed"

var outcomeRule = func() string {
	names := []string{failedOutcome}
	for _, k := range history.Kinds() {
		if k.Attempt() {
			names = append(names, k.String())
		}
	}
	return "must be one of " + strings.Join(names, ", ")
}()

// historyParameters reads the parameters that both lists share.
func (a *api) historyParameters(query url.Values, f *history.Filter) (limit int, err error) {
	if query.Has("outcome") {
		for _, k := range history.Kinds() {
			asked := query.Get("outcome")
			if k.Attempt() && (asked == k.String() || asked == failedOutcome && k != history.Delivered) {
				f.Kinds = append(f.Kinds, k)
			}
		}
		if f.Kinds == nil {
			return 0, &parameterError{"outcome", outcomeRule}
		}
	}
	for name, at := range map[string]*time.Time{"since": &f.Since, "until": &f.Until} {
		if query.Has(name) {
			if *at, err = job.ParseInstant(query.Get(name)); err != nil {
				return 0, &parameterError{name, err.Error()}
			}
		}
	}
	if query.Has("cursor") {
		if f.Before, err = readPlace(query.Get("cursor")); err != nil {
			return 0, err
		}
	}
	return limitParameter(query)
}

// cursorPlace is a place in the form of a cursor. Times are Unix milliseconds; an instant of -1 means none.
type cursorPlace struct {
	At         int64        `json:"t"`
	Tenant     string       `json:"n"`
	Key        string       `json:"k"`
	Instant    int64        `json:"i"`
	Position   int          `json:"p"`
	Subscriber string       `json:"s"`
	Attempt    int          `json:"a"`
	Kind       history.Kind `json:"c"`
	Request    string       `json:"r"`
}

// placeCursor returns the cursor of a page from the place of its last entry.
func placeCursor(p history.Place) string {
	instant := int64(-1)
	if !p.Instant.IsZero() {
		instant = p.Instant.UnixMilli()
	}
	return base64.RawURLEncoding.EncodeToString(mustEncode(cursorPlace{
		p.At.UnixMilli(), p.Name.Tenant, p.Name.Key, instant, p.Position, p.Subscriber, p.Attempt, p.Kind, p.Request,
	}))
}

func readPlace(cursor string) (*history.Place, error) {
	text, err := base64.RawURLEncoding.Strict().DecodeString(cursor)
	if err != nil {
		return nil, errBadCursor
	}
	var p cursorPlace
	if err := json.Unmarshal(text, &p); err != nil || p.At <= 0 {
		return nil, errBadCursor
	}
	place := history.Place{
		At: time.UnixMilli(p.At).UTC(), Name: job.Name{Tenant: p.Tenant, Key: p.Key},
		Position: p.Position, Subscriber: p.Subscriber, Attempt: p.Attempt, Kind: p.Kind, Request: p.Request,
	}
	if p.Instant >= 0 {
		place.Instant = time.UnixMilli(p.Instant).UTC()
	}
	return &place, nil
}
