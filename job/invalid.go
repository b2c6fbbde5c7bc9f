package job

import (
	"strconv"
	"strings"
)

// FieldError is the error of one field, with a correct form.
type FieldError struct {
	// Pointer is an RFC 6901 JSON Pointer into the submitted document; empty for the document itself.
	Pointer string `json:"pointer"`
	Message string `json:"message"`
}

// Invalid is a well-formed submission that can't be accepted. It names every field at fault that was found.
type Invalid struct {
	Fields []FieldError
}

// InvalidField returns an [*Invalid] with one field.
func InvalidField(pointer, message string) *Invalid {
	return &Invalid{Fields: []FieldError{{Pointer: pointer, Message: message}}}
}

func (e *Invalid) Error() string {
	parts := make([]string, len(e.Fields))
	for i, f := range e.Fields {
		parts[i] = strings.TrimPrefix(f.Pointer+": "+f.Message, ": ")
	}
	return strings.Join(parts, "; ")
}

// mostFields is the largest number of fields that an error names, since people read it.
const mostFields = 100

// Add notes a field, unless there are mostFields already.
func (e *Invalid) Add(pointer, message string) {
	if len(e.Fields) < mostFields {
		e.Fields = append(e.Fields, FieldError{Pointer: pointer, Message: message})
	}
}

// Err returns e, or nil if no field was noted.
func (e *Invalid) Err() error {
	if len(e.Fields) == 0 {
		return nil
	}
	return e
}

// Under returns e with its pointers moved below a prefix, for a document that is part of another.
func (e *Invalid) Under(prefix string) *Invalid {
	moved := &Invalid{Fields: make([]FieldError, len(e.Fields))}
	for i, f := range e.Fields {
		moved.Fields[i] = FieldError{Pointer: prefix + f.Pointer, Message: f.Message}
	}
	return moved
}

// Malformed is a body that is not JSON of the right form, so no field can be named.
type Malformed struct {
	Reason string
}

func (e *Malformed) Error() string { return e.Reason }

// Pointer builds an RFC 6901 JSON Pointer from member names and indexes.
func Pointer(parts ...any) string {
	var b strings.Builder
	for _, p := range parts {
		b.WriteByte('/')
		switch p := p.(type) {
		case int:
			b.WriteString(strconv.Itoa(p))
		case string:
			b.WriteString(strings.NewReplacer("~", "~0", "/", "~1").Replace(p))
		}
	}
	return b.String()
}
