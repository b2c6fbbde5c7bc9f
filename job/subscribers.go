package job

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// Subscribers are the receivers of a sequence's job steps: each step has one occurrence for each of them. The zero
// value is a sequence without subscribers, whose job steps fire once.
type Subscribers struct {
	raw   jsontext.Value // as submitted
	count int            // if they are numbered
	names []string       // if they are listed
}

// maxSubscriberBytes bounds the name of one subscriber, since it travels in a header.
const maxSubscriberBytes = 1024

// Len returns the number of occurrences of a job step: one if there are no subscribers.
func (s *Subscribers) Len() int {
	if s.raw == nil {
		return 1
	}
	return max(s.count, len(s.names))
}

// Name returns the i-th subscriber's name in deliveries, i from 0: its number from 1, its id, or its object as compact
// JSON. It is empty if there are no subscribers.
func (s *Subscribers) Name(i int) string {
	switch {
	case s.raw == nil:
		return ""
	case s.names == nil:
		return strconv.Itoa(i + 1)
	default:
		return s.names[i]
	}
}

// Raw returns the subscribers as submitted; nil if there were none.
func (s *Subscribers) Raw() jsontext.Value { return s.raw }

var errSubscribers = errors.New("must be a whole number of at least 1, or a list of ids or objects")

// parseSubscribers reads a count or a list. The error is an [*Invalid] with pointers into the value.
func parseSubscribers(raw jsontext.Value) (s Subscribers, err error) {
	if raw == nil {
		return s, nil
	}
	s.raw = raw
	switch raw.Kind() {
	case '0':
		s.count, err = strconv.Atoi(string(raw)) // a number out of range becomes the nearest within it
		if err != nil && !errors.Is(err, strconv.ErrRange) || s.count < 1 {
			return s, InvalidField("", errSubscribers.Error())
		}
		return s, nil
	case '[':
		return s, s.parseList()
	default:
		return s, InvalidField("", errSubscribers.Error())
	}
}

// parseList reads a list. Names must be unique: they are part of the delivery ids.
func (s *Subscribers) parseList() error {
	var invalid Invalid
	s.names = []string{}
	seen := make(map[string]int)
	d := jsontext.NewDecoder(bytes.NewReader(s.raw))
	if _, err := d.ReadToken(); err != nil {
		return err
	}
	for i := 0; d.PeekKind() != ']'; i++ {
		value, err := d.ReadValue()
		if err != nil {
			return err
		}
		name, problem := subscriberName(value)
		first, twice := seen[name]
		switch {
		case problem != "":
			invalid.Add(Pointer(i), problem)
		case twice:
			invalid.Add(Pointer(i), fmt.Sprintf("is the same as /subscribers/%d; each subscriber may be listed once", first))
		default:
			seen[name] = i
		}
		s.names = append(s.names, name)
	}
	if len(s.names) == 0 {
		invalid.Add("", "must not be empty")
	}
	return invalid.Err()
}

func subscriberName(value jsontext.Value) (name, problem string) {
	switch value.Kind() {
	case '"':
		text, err := jsontext.AppendUnquote(nil, value)
		if err != nil {
			return "", err.Error()
		}
		name = string(text)
	case '0', '{':
		name = string(mustEncode(value)) // as a store keeps it, so the name stays the same when it is read back
	default:
		return "", "must be a text, a number or an object"
	}
	switch {
	case name == "" || len(name) > maxSubscriberBytes:
		return "", fmt.Sprintf("must be 1 to %d bytes", maxSubscriberBytes)
	case !utf8.ValidString(name) || strings.IndexFunc(name, unicode.IsControl) >= 0:
		return "", "must have no control characters"
	}
	return name, ""
}
