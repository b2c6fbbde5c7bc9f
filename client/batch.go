package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"strings"
)

// BatchError ends the results of a batch that broke. The items before Next have their results. The outcome of the items
// from Next on is unknown: send those again that are repeatable, see [Client.Put].
type BatchError struct {
	Next int
	Err  error
}

// Error implements error.
func (e *BatchError) Error() string {
	return fmt.Sprintf("the batch broke before the result of item %d: %v", e.Next, e.Err)
}

// Unwrap returns the reason.
func (e *BatchError) Unwrap() error { return e.Err }

// errStopped ends the items of a batch whose results are not read to the end.
var errStopped = errors.New("the results are not read any more")

// Batch creates or replaces the jobs, any number of them, and returns a result for each, in their order. Items are sent
// while results are read, and neither are kept in memory. An item that is refused has its error in the result. An error
// beside a result ends the batch: a [*BatchError], or an [*Error] if the batch was refused as a whole.
//
// Each range over the results sends the batch again. A batch that broke is not sent again by itself.
func (c *Client) Batch(ctx context.Context, jobs iter.Seq[Job]) iter.Seq2[BatchResult, error] {
	return c.BatchIf(ctx, func(yield func(Job, Condition) bool) {
		for job := range jobs {
			if !yield(job, Condition{}) {
				return
			}
		}
	})
}

// BatchIf is [Client.Batch] with a condition for each job; the zero Condition is none. An item whose condition is not
// met has [ErrPreconditionFailed] in its result. Items with conditions may be sent again after a batch that broke.
func (c *Client) BatchIf(ctx context.Context, jobs iter.Seq2[Job, Condition]) iter.Seq2[BatchResult, error] {
	return func(yield func(BatchResult, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		items, w := io.Pipe()
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			_ = w.CloseWithError(writeLines(w, jobs))
		}()
		defer func() { // the iterator of the caller ends before the one of the results does
			_ = items.CloseWithError(errStopped)
			<-sent
		}()
		c.results(ctx, items, yield)
	}
}

// batchItem is a job with its condition.
type batchItem struct {
	Job
	IfMatch     string `json:"ifMatch,omitempty"`
	IfNoneMatch string `json:"ifNoneMatch,omitempty"`
}

// writeLines writes each job on a line.
func writeLines(w io.Writer, jobs iter.Seq2[Job, Condition]) error {
	buffered := bufio.NewWriterSize(w, 32<<10)
	for job, condition := range jobs {
		item := batchItem{Job: job}
		switch condition.header {
		case "If-Match":
			item.IfMatch = strings.Trim(condition.value, `"`)
		case "If-None-Match":
			item.IfNoneMatch = condition.value
		}
		line, err := encode(item)
		if err != nil {
			return err
		}
		if _, err := buffered.Write(append(line, '\n')); err != nil {
			return err
		}
	}
	return buffered.Flush()
}

// results sends the items, and yields the results.
func (c *Client) results(ctx context.Context, items io.Reader, yield func(BatchResult, error) bool) {
	h := http.Header{}
	h.Set("Content-Type", "application/x-ndjson")
	h.Set("Accept-Encoding", "identity") // results come one by one
	res, err := c.send(ctx, request{method: "POST", path: path("jobs", "batch"), header: h, about: true}, items)
	if err != nil {
		yield(BatchResult{}, &BatchError{0, err})
		return
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(res.Body, 1<<20))
		yield(BatchResult{}, problem(res, body))
		return
	}
	next, lines := 0, bufio.NewReader(res.Body)
	for {
		line, err := lines.ReadBytes('\n')
		if line = bytes.TrimSpace(line); len(line) > 0 {
			r, bad := batchResult(line)
			if bad != nil {
				yield(BatchResult{}, &BatchError{next, bad})
				return
			}
			next = r.Index + 1
			if !yield(r, nil) {
				return
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return
		case err != nil:
			yield(BatchResult{}, &BatchError{next, err})
			return
		}
	}
}

// batchResult reads one line.
func batchResult(line []byte) (r BatchResult, err error) {
	var refused Error
	if err := json.Unmarshal(line, &refused); err != nil {
		return r, err
	}
	if err := json.Unmarshal(line, &r); err != nil {
		return r, err
	}
	r.Created = refused.Status == http.StatusCreated
	if refused.Status >= 400 {
		r.Err = &refused
	}
	return r, nil
}
