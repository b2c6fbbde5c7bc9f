package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"
)

// Condition is a condition of a change. It makes requests safe to send again that otherwise are not.
type Condition struct{ header, value string }

// IfVersion makes the change only if the job's version is this one, as an answer has it; else the error is
// [ErrPreconditionFailed].
func IfVersion(version string) Condition { return Condition{"If-Match", `"` + version + `"`} }

// IfExists makes the change only if there is a job of the key.
func IfExists() Condition { return Condition{"If-Match", "*"} }

// IfNone makes the change only if there is no job of the key.
func IfNone() Condition { return Condition{"If-None-Match", "*"} }

func headers(conditions []Condition) http.Header {
	h := http.Header{}
	for _, c := range conditions {
		h.Set(c.header, c.value)
	}
	return h
}

// repeatable reports whether submitting the job twice has the effect of submitting it once.
func (j *Job) repeatable() bool {
	return j.Delay == 0 && (len(j.Steps) == 0 || !j.StartAt.IsZero()) && j.Past != PastFire
}

// Put creates the job, or replaces it.
//
// It is sent again after a lost answer if it is repeatable, or with a condition. A job with a Delay, a sequence without
// StartAt and one with [PastFire] are not repeatable: each submission starts them again. If an instant passes between
// two attempts and Past is empty, a replacement may skip it: see Accepted.Skipped.
func (c *Client) Put(ctx context.Context, job Job, conditions ...Condition) (Accepted, error) {
	r := request{method: "PUT", path: path("jobs", job.Key), header: headers(conditions), body: job, about: true}
	if !job.repeatable() && len(conditions) == 0 {
		r.effect = once
	}
	return c.submit(ctx, r)
}

// Patch applies a JSON merge patch (RFC 7396) to the job. The patch is a value that marshals to it, or a
// [json.RawMessage]. It is sent again after a lost answer only with a condition.
func (c *Client) Patch(ctx context.Context, key string, patch any, conditions ...Condition) (Accepted, error) {
	h := headers(conditions)
	h.Set("Content-Type", "application/merge-patch+json")
	r := request{method: "PATCH", path: path("jobs", key), header: h, body: patch, about: true}
	if len(conditions) == 0 {
		r.effect = once
	}
	return c.submit(ctx, r)
}

func (c *Client) submit(ctx context.Context, r request) (Accepted, error) {
	var out Accepted
	a, err := c.do(ctx, r, &out)
	out.Created = a.status == http.StatusCreated
	return out, err
}

// Job reads a job with the first page of its pending occurrences.
func (c *Client) Job(ctx context.Context, key string) (JobView, error) {
	var out JobView
	a, err := c.do(ctx, request{method: "GET", path: path("jobs", key), about: true}, &out)
	if err == nil {
		out.ETag = a.header.Get("Etag")
	}
	return out, err
}

// JobIfChanged reads a job unless its ETag is the given one. It reports whether the job was read.
func (c *Client) JobIfChanged(ctx context.Context, key, etag string) (JobView, bool, error) {
	var out JobView
	h := http.Header{}
	h.Set("If-None-Match", etag)
	a, err := c.do(ctx, request{method: "GET", path: path("jobs", key), header: h, about: true}, &out)
	if err == nil {
		out.ETag = a.header.Get("Etag")
	}
	return out, err == nil && a.status != http.StatusNotModified, err
}

// Occurrences lists all pending occurrences of a job, by instant.
func (c *Client) Occurrences(ctx context.Context, key string) iter.Seq2[Occurrence, error] {
	return pages[Occurrence](ctx, c, request{method: "GET", path: path("jobs", key), about: true}, "occurrences")
}

// JobFilter narrows a list of jobs.
type JobFilter struct {
	// Prefix is the beginning of the jobs' keys, and State their state; empty for any.
	Prefix, State string
	// Kind is the kind of the jobs' schedules: instants (which a delay is too), crontab or sequence; empty for any.
	Kind string
}

// Jobs lists jobs by their keys. A job that exists throughout is listed once.
func (c *Client) Jobs(ctx context.Context, filter JobFilter) iter.Seq2[JobSummary, error] {
	q := query("prefix", filter.Prefix, "state", filter.State, "kind", filter.Kind)
	return pages[JobSummary](ctx, c, request{method: "GET", path: path("jobs"), query: q, about: true}, "items")
}

// Cancel cancels a job. If an earlier attempt may have done so, a job that is not there is no error. With [IfVersion],
// nothing is cancelled that was changed since that version was read.
func (c *Client) Cancel(ctx context.Context, key string, conditions ...Condition) (Cancelled, error) {
	var out Cancelled
	r := request{method: "DELETE", path: path("jobs", key), header: headers(conditions), about: true}
	a, err := c.do(ctx, r, &out)
	out.CountsLost = a.lost
	return out, gone(a, err)
}

// gone makes "not found" a success if an attempt before may have deleted the thing.
func gone(a answer, err error) error {
	if a.lost && errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

// CancelPrefix cancels all jobs whose keys begin with the prefix, which must not be empty.
func (c *Client) CancelPrefix(ctx context.Context, prefix string) (Cancelled, error) {
	var out Cancelled
	q := url.Values{"prefix": {prefix}}
	a, err := c.do(ctx, request{method: "DELETE", path: path("jobs"), query: q, about: true}, &out)
	out.CountsLost = a.lost
	return out, err
}

// Pause stops a job from firing by its schedule.
func (c *Client) Pause(ctx context.Context, key string) (Controlled, error) {
	return call[Controlled](ctx, c, request{method: "POST", path: path("jobs", key, "pause"), about: true})
}

// Resume undoes a pause.
func (c *Client) Resume(ctx context.Context, key string) (Controlled, error) {
	return call[Controlled](ctx, c, request{method: "POST", path: path("jobs", key, "resume"), about: true})
}

// Trigger adds an occurrence that is due at once. It is not sent again after a lost answer: each request adds one.
func (c *Client) Trigger(ctx context.Context, key string) (Triggered, error) {
	return call[Triggered](ctx, c, request{method: "POST", path: path("jobs", key, "trigger"), about: true, effect: once})
}

// CheckIn checks in for an instant of a job with an ExpectBy: the expected work is done. The zero time stands for the
// latest instant that has passed; it is not sent again after a lost answer, since another instant may have passed.
func (c *Client) CheckIn(ctx context.Context, key string, at time.Time) (CheckedIn, error) {
	r := request{method: "POST", path: path("jobs", key, "check-in"), about: true}
	if at.IsZero() {
		r.effect = once
	} else {
		r.body = struct {
			At time.Time `json:"at"`
		}{at}
	}
	return call[CheckedIn](ctx, c, r)
}

// Preview lists the next instants of a job, at most count of them; 0 means 10.
func (c *Client) Preview(ctx context.Context, key string, count int) (Preview, error) {
	return call[Preview](ctx, c, request{
		method: "GET", path: path("jobs", key, "preview"), query: query("count", number(count)), about: true,
	})
}

// PreviewJob lists the instants that a job would have if it were submitted now. Nothing is stored. A job that would be
// refused is refused.
func (c *Client) PreviewJob(ctx context.Context, job Job, count int) (Preview, error) {
	return call[Preview](ctx, c, request{
		method: "POST", path: path("preview"), query: query("count", number(count)), body: job, about: true,
	})
}

// Explain returns why an instant of a job fired or did not, or why it waits; also of a deleted job. At is an instant as
// RFC 3339 text, "next" or "last"; empty means "next".
func (c *Client) Explain(ctx context.Context, key, at string) (Explanation, error) {
	return call[Explanation](ctx, c, request{
		method: "GET", path: path("jobs", key, "explain"), query: query("at", at), about: true,
	})
}

// HistoryFilter narrows a history.
type HistoryFilter struct {
	// Outcome is "failed", "delivered", "retried", "released", "buried" or "missed"; empty for all entries.
	Outcome string
	// Since and Until bound the entries' times; zero for no bound.
	Since, Until time.Time
	// Prefix is the beginning of the jobs' keys, and Destination where attempts went. Both are for
	// [Client.History] alone.
	Prefix, Destination string
}

func (f HistoryFilter) query() url.Values {
	return query("outcome", f.Outcome, "since", instant(f.Since), "until", instant(f.Until), "prefix", f.Prefix,
		"destination", f.Destination)
}

// JobHistory lists attempts and changes of a job, the newest first; also of one that is gone.
func (c *Client) JobHistory(ctx context.Context, key string, filter HistoryFilter) iter.Seq2[HistoryEntry, error] {
	return pages[HistoryEntry](ctx, c, request{
		method: "GET", path: path("jobs", key, "history"), query: filter.query(), about: true,
	}, "items")
}

// History lists attempts and changes of the tenant's jobs, the newest first.
func (c *Client) History(ctx context.Context, filter HistoryFilter) iter.Seq2[HistoryEntry, error] {
	return pages[HistoryEntry](ctx, c, request{method: "GET", path: path("history"), query: filter.query(), about: true},
		"items")
}

// call makes a request whose answer is a T.
func call[T any](ctx context.Context, c *Client, r request) (T, error) {
	var out T
	_, err := c.do(ctx, r, &out)
	return out, err
}

// pages lists the items of all pages, in the given member of each. After an error there are no more. A history's gap is
// an item before those of its page.
func pages[T any](ctx context.Context, c *Client, r request, member string) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var none T
		q := url.Values{}
		for name, values := range r.query {
			q[name] = values
		}
		q.Set("limit", "1000")
		for {
			r.query = q
			var page map[string]json.RawMessage
			if _, err := c.do(ctx, r, &page); err != nil {
				yield(none, err)
				return
			}
			var items []T
			if err := json.Unmarshal(page[member], &items); err != nil {
				yield(none, fmt.Errorf("client: a page of %s can't be read: %w", r.path, err))
				return
			}
			if page["incomplete"] != nil {
				gap := none
				delete(page, member)
				b, _ := json.Marshal(page)
				if err := json.Unmarshal(b, &gap); err == nil && !yield(gap, nil) {
					return
				}
			}
			for _, item := range items {
				if !yield(item, nil) {
					return
				}
			}
			var cursor string
			_ = json.Unmarshal(page["nextCursor"], &cursor)
			if cursor == "" {
				return
			}
			q.Set("cursor", cursor)
		}
	}
}

// query makes parameters of names and values, without those whose value is empty.
func query(pairs ...string) url.Values {
	q := url.Values{}
	for pair := range slices.Chunk(pairs, 2) {
		if pair[1] != "" {
			q.Set(pair[0], pair[1])
		}
	}
	return q
}

func number(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

func instant(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}
