package handlers

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// A batch is stored in chunks. A chunk has the items that arrive while the previous chunk is stored, up to this number
// and this weight. The weight bounds its memory.
const (
	chunkItems  = 1000
	chunkWeight = 4 << 20

	instantWeight = 300 // the approximate size of an occurrence in memory, in bytes
)

// maxFailedChunks is the number of consecutive chunks that may fail because the store is down. Then the batch ends.
const maxFailedChunks = 3

// postBatch puts a stream of jobs and streams a result for each, in order, while it reads further jobs. It holds only a
// few chunks in memory, for a stream of any length. One goroutine reads items, checks them and gathers them into
// chunks, while this one stores the previous chunk and writes the results.
func (a *api) postBatch(c *gin.Context) error {
	if _, err := readQuery(c.Request); err != nil {
		return err
	}
	if err := refuseConditions(c.Request); err != nil {
		return err
	}
	media, err := mediaType(c.Request, "application/json", "application/x-ndjson", "application/jsonl")
	if err != nil {
		return err
	}
	control := http.NewResponseController(c.Writer)
	_ = control.EnableFullDuplex() // needed for HTTP/1.1; where it is not supported, results come after the items
	body := &batchBody{body: c.Request.Body, control: control}
	results := &resultWriter{c: c, control: control, lines: media != "application/json"}
	var items itemReader = &lineReader{body: bufio.NewReaderSize(body, readBuffer), limit: a.MaxBody}
	if !results.lines {
		if items, err = newArrayReader(body, a.MaxBody); err != nil {
			return err
		}
	}
	if !a.runBatch(c, items, results, body) {
		panic(http.ErrAbortHandler) // break the connection, so that the client sees that results are missing
	}
	return nil
}

// runBatch stores items and writes their results, and reports whether the results are complete. When it returns, no
// goroutine reads the body.
func (a *api) runBatch(c *gin.Context, items itemReader, results *resultWriter, body *batchBody) bool {
	ctx, cancel := context.WithCancel(c.Request.Context())
	request := c.Request
	arrived := func() time.Time { return arrival(request) }
	common, chunks := itemCommon{who(c), traceOf(c.Request), InsideOf(ctx), arrived}, make(chan chunk, 1)
	var running sync.WaitGroup
	flow := a.Limiter.Flow(common.by.key(), common.by.tenant)
	running.Go(func() { a.readItems(ctx, common, slowed(ctx, items, flow, a.MaxBody), chunks) })
	defer func() {
		cancel()
		body.stop()
		running.Wait()
		results.release()
	}()
	failed, ended := 0, time.Time{}
	before := make(earlier)
	for {
		select {
		case chunk, ok := <-chunks:
			if ctx.Err() != nil {
				return false
			}
			if !ok {
				return results.end() == nil
			}
			if err := a.readmit(ctx); err != nil {
				p := a.report(c.Request, err)
				a.auditItem(c, "", p.Status, "")
				results.add(failure(chunk.items[0].index, "", p))
				return results.end() == nil
			}
			// For items that arrived while the previous chunk was stored, the time limit begins at that chunk's end. They still
			// do not undo changes that were made since their arrival.
			over := latest(chunk.arrived, ended).Add(store.Within)
			if failed++; !a.putChunk(ctx, c, chunk.arrived, over, chunk.items, before, results) {
				failed = 0
			}
			if InsideOf(ctx) == nil { // else all had arrived before the request was made
				ended = time.Now()
			}
			if failed == maxFailedChunks {
				last := chunk.items[len(chunk.items)-1]
				results.add(givenUp(last.index + 1))
			}
			if err := results.send(); err != nil {
				return false // the client accepts no more
			}
			if failed == maxFailedChunks {
				return results.end() == nil
			}
		case <-ctx.Done():
			return false
		}
	}
}

// givenUp returns the last result of a batch that ends because the store is down.
func givenUp(index int) result {
	p, _ := problemOf(store.ErrUnavailable)
	p.Detail = "the store does not answer, so nothing was read from this index on; send the rest later"
	return failure(index, "", p)
}

// item is one item of a batch: a submission, or the error in its place.
type item struct {
	*submission
	index   int
	key     string // empty if it could not be read
	weight  int
	arrived func() time.Time // when the last part read of the request arrived
	err     error
}

// itemCommon are the properties that all items of a batch share.
type itemCommon struct {
	by      *caller
	trace   job.Trace
	from    *Inside          // nil for a client's own batch
	arrived func() time.Time // see item
}

// chunk is a group of items that are stored together.
type chunk struct {
	items   []item
	weight  int
	arrived time.Time // when the first item arrived
}

func (c *chunk) full() bool { return len(c.items) >= chunkItems || c.weight >= chunkWeight }

// readItems reads and checks items until the end, or until ctx ends, and gathers them into chunks.
func (a *api) readItems(ctx context.Context, common itemCommon, items itemReader, chunks chan chunk) {
	defer close(chunks)
	if common.from != nil {
		a.readInside(ctx, common, items, chunks)
		return
	}
	for index := 0; ; index++ {
		raw, err := items.next()
		if errors.Is(err, io.EOF) {
			return
		}
		it := item{index: index, weight: len(raw), arrived: common.arrived, err: err}
		_, tooLarge := errors.AsType[*http.MaxBytesError](err)
		if err == nil {
			a.checkItem(ctx, common, raw, &it)
		}
		if !gather(ctx, chunks, it) || err != nil && !tooLarge {
			return
		}
	}
}

// readInside is readItems for a batch from inside. Its items are there already, so it makes full chunks. It ends early
// if a rate slows it down and later items could not be stored in time; they get no result.
func (a *api) readInside(ctx context.Context, common itemCommon, items itemReader, chunks chan<- chunk) {
	var next chunk
	for index := 0; time.Since(common.from.Asked) < store.Within/3; index++ {
		raw, err := items.next()
		_, tooLarge := errors.AsType[*http.MaxBytesError](err)
		if err != nil && !tooLarge {
			break // the end, or that of ctx
		}
		it := item{index: index, weight: len(raw), arrived: common.arrived, err: err}
		if err == nil {
			a.checkItem(ctx, common, raw, &it)
		}
		if next.add(it); next.full() {
			if !send(ctx, chunks, next) {
				return
			}
			next = chunk{}
		}
	}
	if len(next.items) > 0 {
		send(ctx, chunks, next)
	}
}

// add adds an item to a chunk.
func (c *chunk) add(it item) {
	if len(c.items) == 0 {
		c.arrived = it.arrived()
	}
	c.items, c.weight = append(c.items, it), c.weight+it.weight
}

// send sends a chunk. It returns false if ctx ends.
func send(ctx context.Context, chunks chan<- chunk, c chunk) bool {
	select {
	case chunks <- c:
		return true
	case <-ctx.Done():
		return false
	}
}

// gather adds an item to the chunk that waits in the channel, which has room for one chunk. The waiting chunk grows up
// to its bounds; then gather blocks until it is received. It returns false if ctx ends. No other goroutine may send to
// the channel.
func gather(ctx context.Context, chunks chan chunk, it item) bool {
	var last chunk
	select {
	case last = <-chunks:
	default: // it was received
	}
	if last.full() {
		chunks <- last // there is room: no other goroutine sends
		last = chunk{}
	}
	last.add(it)
	return send(ctx, chunks, last)
}

// checkItem decodes and checks one item.
func (a *api) checkItem(ctx context.Context, common itemCommon, raw []byte, it *item) {
	it.submission, it.err = guarded(func() (*submission, error) {
		draft, err := job.DecodeItem(raw)
		if job.ValidKey(draft.Key) {
			it.key = draft.Key
		}
		if err != nil {
			return nil, err
		}
		condition, err := itemCondition(&draft)
		if err != nil {
			return nil, err
		}
		s, err := a.check(ctx, common.by, draft.Draft)
		if err != nil {
			return nil, err
		}
		s.condition = condition
		s.origin, s.job.Options.Trace = common.from.item(it.index), common.trace
		if s.origin.Trace != "" {
			s.job.Options.Trace = s.origin.Trace
		}
		it.weight += instantWeight * s.job.Schedule.Weight()
		return s, nil
	})
}

// itemCondition reads the condition of an item, which is that of a submission by the headers of the same names.
func itemCondition(it *job.Item) (store.Condition, error) {
	switch match, none := it.IfMatch, it.IfNoneMatch; {
	case match != nil && none != nil:
		return store.Condition{}, job.InvalidField("/ifNoneMatch", "must not be given beside ifMatch")
	case none != nil && *none != "*":
		return store.Condition{}, job.InvalidField("/ifNoneMatch", `must be "*": there must be no job of the key`)
	case none != nil:
		return store.Condition{Absent: true}, nil
	case match == nil:
		return store.Condition{}, nil
	case *match == "*":
		return store.Condition{Present: true}, nil
	case *match == "" || strings.IndexFunc(*match, notInVersion) >= 0:
		return store.Condition{}, job.InvalidField("/ifMatch", `must be a version, as answers about the job have it, or "*"`)
	default:
		return store.Condition{Versions: []job.Revision{job.Revision(*match)}}, nil
	}
}

// notInVersion reports whether a character is in no version.
func notInVersion(r rune) bool { return r == '"' || notInTag(r) }

// latest returns the later of two times.
func latest(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// earlier has the versions that earlier chunks of a batch have stored since the items of the present one arrived.
type earlier map[job.Name]job.Revision

// since forgets the versions that come before a span: no later chunk counts as submitted before that.
func (e earlier) since(newer store.Span) {
	maps.DeleteFunc(e, func(_ job.Name, version job.Revision) bool {
		return version <= newer.After || newer == (store.Span{})
	})
}

// allow lets a submission replace the job that an earlier chunk has stored.
func (e earlier) allow(s *submission) {
	if version := e[s.job.Name]; version > s.newer.After && s.newer != (store.Span{}) {
		s.newer.After = version
	}
}

// putChunk stores the submissions of a chunk, until a time, and adds a result for each of its items. Asked is the time
// of the submission. Down reports that the store was unavailable for all of them.
func (a *api) putChunk(
	ctx context.Context, c *gin.Context, asked, over time.Time, chunk []item, before earlier, results *resultWriter,
) (down bool) {
	ctx, cancel, newer := a.between(ctx, asked, over)
	defer cancel()
	before.since(newer)
	submissions := make([]*submission, 0, len(chunk))
	for i := range chunk {
		if chunk[i].err == nil {
			chunk[i].newer = newer
			before.allow(chunk[i].submission)
			submissions = append(submissions, chunk[i].submission)
		}
	}
	outcomes := a.submit(ctx, submissions)
	down = len(outcomes) > 0
	for _, it := range chunk {
		if it.err == nil {
			o := &outcomes[0]
			outcomes = outcomes[1:]
			down = down && errors.Is(o.err, store.ErrUnavailable)
			if o.err == nil {
				before[it.job.Name] = o.version
				results.add(success(it.index, o))
				a.auditItem(c, o.key, o.status(), o.version)
				continue
			}
			it.err = o.err
		}
		p := a.report(c.Request, it.err)
		results.add(failure(it.index, it.key, p))
		a.auditItem(c, it.key, p.Status, "")
	}
	return down
}

// result is the answer to one item: an accepted submission, or a problem.
type result struct {
	Index       int          `json:"index"`
	Key         string       `json:"key,omitzero"`
	Status      int          `json:"status"`
	Revision    job.Revision `json:"revision,omitzero"`
	Version     job.Revision `json:"version,omitzero"`
	State       string       `json:"state,omitzero"`
	Occurrences *int         `json:"occurrences,omitzero"`
	Skipped     *int         `json:"skipped,omitzero"`
	Settled     int          `json:"settled,omitzero"`
	Missed      int          `json:"missed,omitzero"`
	NextInstant string       `json:"nextInstant,omitzero"`
	InFlight    *int         `json:"inFlight,omitzero"`
	Crowded     []crowded    `json:"crowded,omitempty"`
	Quota       *quotaView   `json:"quota,omitzero"`
	Title       string       `json:"title,omitzero"`
	Detail      string       `json:"detail,omitzero"`
	Errors      []fieldError `json:"errors,omitempty"`
}

func success(index int, o *outcome) result {
	v := acceptedView(o)
	return result{
		Index:       index,
		Key:         v.Key,
		Status:      o.status(),
		Revision:    v.Revision,
		Version:     v.Version,
		State:       v.State,
		Occurrences: &o.occurrences,
		Skipped:     &o.skipped,
		Settled:     v.Settled,
		Missed:      v.Missed,
		NextInstant: v.NextInstant,
		InFlight:    v.InFlight,
		Crowded:     v.Crowded,
	}
}

func failure(index int, key string, p problem) result {
	return result{
		Index: index, Key: key, Status: p.Status, Title: p.Title, Detail: p.Detail, Errors: p.Errors, Quota: p.Quota,
	}
}

// resultWriter streams results, as the elements of an array or as lines.
type resultWriter struct {
	c       *gin.Context
	control *http.ResponseController
	lines   bool
	started bool
	waiting bytes.Buffer // results that are not sent yet
	current result       // a field, so that encoding a result allocates nothing
}

// add encodes a result; [resultWriter.send] sends it.
func (w *resultWriter) add(r result) {
	switch {
	case w.lines:
	case !w.started:
		w.waiting.WriteByte('[')
	default:
		w.waiting.WriteString(",\n")
	}
	w.start()
	w.current = r
	mustEncodeTo(&w.waiting, &w.current)
	if w.lines {
		w.waiting.WriteByte('\n')
	}
}

// end completes the array, and sends the remaining results.
func (w *resultWriter) end() error {
	switch {
	case w.lines:
	case !w.started:
		w.waiting.WriteString("[]\n")
	default:
		w.waiting.WriteString("]\n")
	}
	w.start()
	return w.send()
}

// start sends the header, once. The status is 200 even if items fail: their results have the errors.
func (w *resultWriter) start() {
	if w.started {
		return
	}
	w.started = true
	media := "application/json"
	if w.lines {
		media = "application/x-ndjson"
	}
	w.c.Header("Content-Type", media)
	w.c.Header("X-Content-Type-Options", "nosniff")
	w.c.Status(http.StatusOK)
	w.c.Writer.WriteHeaderNow()
}

// send sends all added results to the client at once.
func (w *resultWriter) send() error {
	_ = w.control.SetWriteDeadline(time.Now().Add(patience)) // deadlines go by the machine's clock
	if _, err := w.waiting.WriteTo(w.c.Writer); err != nil {
		return err
	}
	return w.control.Flush()
}

// release lifts the deadline, which would otherwise outlive this request on its connection.
func (w *resultWriter) release() { _ = w.control.SetWriteDeadline(time.Time{}) }
