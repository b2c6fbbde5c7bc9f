package handlers

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/carillon-scheduler/carillon/access/limits"
	"github.com/carillon-scheduler/carillon/job"
)

// itemReader reads the items of a batch, each as the bytes that were sent. The bytes are valid until the next call.
//
// An [*http.MaxBytesError] is the error of one item; the next call continues after it. io.EOF is the end. Any other
// error is the end too, and describes the fault of the rest.
type itemReader interface {
	next() ([]byte, error)
}

// slowed reads items no faster than a flow allows; nil means no limit. An item that is too large counts as the maximum
// size.
func slowed(ctx context.Context, items itemReader, flow *limits.Flow, most int64) itemReader {
	if flow == nil {
		return items
	}
	return &slowReader{ctx, items, flow, int(most)}
}

type slowReader struct {
	ctx   context.Context //nolint:containedctx // of the batch that is read
	items itemReader
	flow  *limits.Flow
	most  int
}

func (r *slowReader) next() ([]byte, error) {
	item, err := r.items.next()
	size := len(item)
	if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge {
		size = r.most
	}
	if ended := r.flow.Wait(r.ctx, size); ended != nil {
		return nil, ended
	}
	return item, err
}

// lineReader reads NDJSON: one item per line. Lines are independent of one another; blank lines are skipped.
type lineReader struct {
	body  *bufio.Reader
	limit int64
	line  []byte
}

func (r *lineReader) next() ([]byte, error) {
	for {
		line, err := r.readLine()
		if len(bytes.TrimSpace(line)) > 0 || err != nil {
			return line, err
		}
	}
}

// readLine reads one line, and keeps no more of it in memory than the limit.
func (r *lineReader) readLine() ([]byte, error) {
	r.line = r.line[:0]
	tooLarge := false
	for {
		part, err := r.body.ReadSlice('\n')
		if tooLarge = tooLarge || int64(len(r.line)+len(bytes.TrimRight(part, "\r\n"))) > r.limit; !tooLarge {
			r.line = append(r.line, part...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil && !errors.Is(err, io.EOF):
			return nil, readError(err)
		case tooLarge:
			return nil, &http.MaxBytesError{Limit: r.limit}
		case err != nil && len(r.line) == 0:
			return nil, io.EOF
		default:
			return r.line, nil
		}
	}
}

// arrayReader reads the elements of one JSON array. It looks only for their ends, by strings and brackets, so it can
// skip an element that is too large or malformed. The fault of an element is found when it is decoded.
type arrayReader struct {
	body  *bufio.Reader
	limit int64
	item  []byte
	count int
	done  bool
}

// newArrayReader reads up to the start of the array. Without an array, the error is a [*job.Malformed].
func newArrayReader(body io.Reader, limit int64) (*arrayReader, error) {
	r := &arrayReader{body: bufio.NewReaderSize(body, readBuffer), limit: limit}
	first, err := r.skipSpace()
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, readError(err)
	}
	if err != nil || first != '[' {
		return nil, &job.Malformed{
			Reason: "the body must be a JSON array of jobs; for a job per line send application/x-ndjson",
		}
	}
	return r, nil
}

func (r *arrayReader) next() ([]byte, error) {
	if r.done {
		return nil, r.atEnd()
	}
	first, err := r.skipSpace()
	if err != nil {
		return nil, r.brokenOff(err)
	}
	if first == ']' && r.count == 0 {
		r.done = true
		return nil, r.atEnd()
	}
	_ = r.body.UnreadByte() // just read
	r.count++
	return r.element()
}

// element reads up to the comma or bracket that ends an element.
func (r *arrayReader) element() ([]byte, error) {
	r.item = r.item[:0]
	size, depth, inString, escaped := int64(0), 0, false, false
	for {
		b, err := r.body.ReadByte()
		if err != nil {
			return nil, r.brokenOff(err)
		}
		switch {
		case escaped:
			escaped = false
		case inString:
			escaped, inString = b == '\\', b != '"'
		case b == '"':
			inString = true
		case b == '{' || b == '[':
			depth++
		case depth > 0 && (b == '}' || b == ']'):
			depth--
		case depth == 0 && (b == ',' || b == ']'):
			r.done = b == ']'
			if size > r.limit {
				return nil, &http.MaxBytesError{Limit: r.limit}
			}
			return r.item, nil
		}
		if size++; size <= r.limit {
			r.item = append(r.item, b)
		}
	}
}

// atEnd checks that nothing follows the array.
func (r *arrayReader) atEnd() error {
	switch _, err := r.skipSpace(); {
	case errors.Is(err, io.EOF):
		return io.EOF
	case err != nil:
		return readError(err)
	default:
		return &job.Malformed{Reason: "there is more after the array's end"}
	}
}

func (r *arrayReader) brokenOff(err error) error {
	if errors.Is(err, io.EOF) {
		return &job.Malformed{
			Reason: fmt.Sprintf("the array is not closed: the body ends in or after its element %d", max(r.count-1, 0)),
		}
	}
	return readError(err)
}

// skipSpace reads the next byte that is not JSON white space.
func (r *arrayReader) skipSpace() (byte, error) {
	for {
		switch b, err := r.body.ReadByte(); {
		case err != nil:
			return 0, err
		case b != ' ' && b != '\t' && b != '\n' && b != '\r':
			return b, nil
		}
	}
}

// readBuffer is the size of a read of a batch, in bytes.
const readBuffer = 64 << 10

// patience is the time for which a batch's client may send nothing, or read nothing of the answer, before the
// connection is closed.
const patience = time.Minute

// batchBody reads a request's body for as long as the client keeps sending. [batchBody.stop] may be called
// concurrently.
type batchBody struct {
	body    io.Reader
	control *http.ResponseController

	mu    sync.Mutex
	ended error // the error of all further reads; nil while reading continues
}

func (b *batchBody) Read(p []byte) (int, error) {
	if err := b.extend(); err != nil {
		return 0, err
	}
	n, err := b.body.Read(p)
	if errors.Is(err, io.EOF) {
		b.end(io.EOF, time.Time{}) // the server reads from now on, without a deadline, to notice a disconnect
	}
	return n, err
}

// stop ends the present read and all later ones.
func (b *batchBody) stop() { b.end(io.ErrClosedPipe, time.Unix(1, 0)) }

func (b *batchBody) extend() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended == nil {
		_ = b.control.SetReadDeadline(time.Now().Add(patience)) // deadlines go by the machine's clock
	}
	return b.ended
}

func (b *batchBody) end(answer error, deadline time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended == nil {
		b.ended = answer
		_ = b.control.SetReadDeadline(deadline)
	}
}
