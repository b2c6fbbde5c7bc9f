package transfer

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/carillon-scheduler/carillon/store"
)

// Found is the progress of an interrupted export.
type Found struct {
	// Counts are the records up to that place.
	Counts
	// Size is the number of bytes of the export to keep. The rest is incomplete and will be written again.
	Size int64
	// Source is the address of the exported store, as passed to [Export].
	Source string
	// Tenants are those that it is of, as passed to [Export].
	Tenants []string
	// Whole is set if the export is complete.
	Whole bool

	after store.Place
}

// Find returns the last place in an export from which it can be resumed, or nil if there is none.
func Find(r io.Reader) (*Found, error) {
	in := newLines(r)
	var found *Found
	var size int64
	for {
		b, err := in.next()
		if errors.Is(err, io.EOF) || err == nil && !bytes.HasSuffix(b, []byte("\n")) {
			return found, nil
		}
		if err != nil {
			return nil, in.fault(err)
		}
		size += int64(len(b))
		if found == nil {
			first, err := decodeHeader(b)
			if err != nil {
				return nil, in.fault(err)
			}
			found = &Found{Source: first.Source, Tenants: first.Tenants, Size: size}
			continue
		}
		if !bytes.HasPrefix(b, []byte(`{"place":`)) && !bytes.HasPrefix(b, []byte(`{"end":`)) {
			continue
		}
		l, err := decode(b)
		if err != nil {
			return nil, in.fault(err)
		}
		found.Size = size
		if l.End != nil {
			found.Counts, found.Whole = *l.End, true
		} else {
			found.Counts, found.after = l.Place.Counts, l.Place.After
		}
	}
}

// lines reads lines and counts them.
type lines struct {
	scanner *bufio.Scanner
	ended   int // lines read that have an end
	read    int // lines read
}

func newLines(r io.Reader) *lines {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 0, 1<<16), longestLine)
	s.Split(splitLine)
	return &lines{scanner: s}
}

// splitLine splits after each line's end, so that a line without an end is recognized.
func splitLine(data []byte, atEOF bool) (advance int, token []byte, err error) {
	if i := bytes.IndexByte(data, '\n'); i >= 0 {
		return i + 1, data[:i+1], nil
	}
	if atEOF && len(data) > 0 {
		return len(data), data, nil
	}
	return 0, nil, nil
}

// next returns the next line, with its end if it has one. The line is valid until the next call. The error is io.EOF
// after the last line.
func (l *lines) next() ([]byte, error) {
	if !l.scanner.Scan() {
		if err := l.scanner.Err(); err != nil {
			l.read++
			return nil, err
		}
		return nil, io.EOF
	}
	l.read++
	b := l.scanner.Bytes()
	if bytes.HasSuffix(b, []byte("\n")) {
		l.ended++
		return b, nil
	}
	return b, l.scanner.Err() // if it is set, it is the reason for the missing end
}

// fault adds the line's number to an error.
func (l *lines) fault(err error) error { return fmt.Errorf("line %d: %w", l.read, err) }
