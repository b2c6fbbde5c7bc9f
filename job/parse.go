package job

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/go-playground/validator/v10"
)

// Parse reads a JSON document into a struct and checks it: by its [Checker], or else by its validate tags. Every
// document from a client, including callback data, is read by it: unknown and repeated fields are refused by name,
// names are case-sensitive, and a [jsontext.Value] field keeps its bytes. The error is a [*Malformed] or an [*Invalid].
func Parse[T any](data []byte) (T, error) {
	v, err := decode[T](data)
	if err != nil {
		return v, err
	}
	invalid := check(v)
	return v, invalid.Err()
}

// ParseTrusted reads a document that [Parse] has accepted before. It leaves out the checks, which take about as long as
// reading. Its error may quote the document.
func ParseTrusted[T any](data []byte) (v T, err error) {
	err = json.Unmarshal(data, &v, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	return v, err
}

// A document is read again for each field at fault. So of a large document only the first one is named, and of others
// the first few.
const (
	mostMended    = 20
	largestMended = 64 << 10
)

// decode reads a document. It notes and leaves out fields that are unknown or of the wrong type, so that one answer
// names all of them, together with the errors of the other fields.
func decode[T any](data []byte) (T, error) {
	var invalid Invalid
	rest := data
	for {
		var v T
		err := json.Unmarshal(rest, &v, json.RejectUnknownMembers(true))
		if err == nil && len(invalid.Fields) == 0 {
			return v, nil
		}
		if err == nil {
			others := check(v)
			invalid.merge(&others)
			return v, &invalid
		}
		if syntactic, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
			if errors.Is(err, jsontext.ErrDuplicateName) {
				return v, InvalidField(string(syntactic.JSONPointer), "is given twice; give it once")
			}
			if len(bytes.TrimSpace(data)) == 0 {
				return v, &Malformed{Reason: "the body is empty; it must be a JSON object"}
			}
			return v, &Malformed{Reason: fmt.Sprintf("not valid JSON at byte %d: %v", syntactic.ByteOffset, syntactic.Err)}
		}
		semantic, ok := errors.AsType[*json.SemanticError](err)
		if !ok {
			return v, &Malformed{Reason: err.Error()}
		}
		invalid.Add(string(semantic.JSONPointer), typeMessage(semantic))
		var mended []byte
		if len(data) <= largestMended {
			mended = without(rest, semantic.JSONPointer, errors.Is(err, json.ErrUnknownName))
		}
		if mended == nil || len(invalid.Fields) == mostMended {
			return v, &invalid
		}
		rest = mended
	}
}

// merge adds the errors of fields that have none yet, except that the key is missing: it may come later.
func (e *Invalid) merge(other *Invalid) {
	noted := map[string]bool{"/key": true}
	for _, f := range e.Fields {
		noted[f.Pointer] = true
	}
	for _, f := range other.Fields {
		if !noted[f.Pointer] {
			e.Add(f.Pointer, f.Message)
		}
	}
}

// without copies a document except for the value at a pointer. A member is left out, or its value becomes null; an
// element of an array becomes null, so that the others keep their places. The result is nil if the pointer points to
// nothing, or to the whole document.
func without(data []byte, at jsontext.Pointer, leaveOut bool) []byte {
	var out bytes.Buffer
	from, to := jsontext.NewDecoder(bytes.NewReader(data)), jsontext.NewEncoder(&out)
	found := false
	for {
		token, err := from.ReadToken()
		if err != nil {
			break
		}
		if found || from.StackPointer() != at {
			if to.WriteToken(token) != nil {
				return nil
			}
			continue
		}
		found = true
		parent, length := from.StackIndex(from.StackDepth())
		switch opened := token.Kind() == jsontext.KindBeginObject || token.Kind() == jsontext.KindBeginArray; {
		case parent == jsontext.KindBeginObject && length%2 == 1: // the member's name
			if !leaveOut && to.WriteToken(token) != nil || from.SkipValue() != nil {
				return nil
			}
		case opened:
			for depth := from.StackDepth(); from.StackDepth() >= depth; {
				if _, err := from.ReadToken(); err != nil {
					return nil
				}
			}
		}
		if !leaveOut && to.WriteToken(jsontext.Null) != nil {
			return nil
		}
	}
	if !found || at == "" {
		return nil
	}
	return out.Bytes()
}

// typeMessage names the right type for a value that could not be decoded.
func typeMessage(e *json.SemanticError) string {
	switch {
	case errors.Is(e.Err, json.ErrUnknownName):
		return "is not a known field; the fields here are " + strings.Join(fieldNames(e.GoType), ", ")
	case e.GoType == nil:
		return "has the wrong type"
	case e.GoType == reflect.TypeFor[Duration](): // its own message names the right form
		if e.Err != nil && e.JSONKind == '"' {
			return e.Err.Error()
		}
		return "must be a duration in a string, such as \"30s\""
	}
	switch e.GoType.Kind() {
	case reflect.String:
		return "must be a string"
	case reflect.Bool:
		return "must be true or false"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "must be a whole number"
	case reflect.Float32, reflect.Float64:
		return "must be a number"
	case reflect.Slice, reflect.Array:
		return "must be an array"
	default:
		return "must be an object"
	}
}

func fieldNames(t reflect.Type) []string {
	var names []string
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == nil || t.Kind() != reflect.Struct {
		return names
	}
	for field := range t.Fields() {
		if name := jsonName(field); name != "" {
			names = append(names, name)
		} else if field.Anonymous { // its fields are the document's
			names = append(names, fieldNames(field.Type)...)
		}
	}
	return names
}

func jsonName(field reflect.StructField) string {
	name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
	return name
}

// rules holds the validator; it is safe for concurrent use.
var rules = newRules()

func newRules() *validator.Validate {
	v := validator.New(validator.WithRequiredStructEnabled())
	v.RegisterTagNameFunc(jsonName)
	for name, rule := range map[string]validator.Func{"within": within, "maxbytes": maxBytes} {
		if err := v.RegisterValidation(name, rule); err != nil {
			panic(err)
		}
	}
	return v
}

// within checks that a duration lies between two values, as in "within=1ms 30d".
func within(f validator.FieldLevel) bool {
	least, most, _ := strings.Cut(f.Param(), " ")
	low, lowErr := ParseDuration(least)
	high, highErr := ParseDuration(most)
	if err := errors.Join(lowErr, highErr); err != nil {
		panic(err)
	}
	d := f.Field().Interface().(Duration)
	return low <= d && d <= high
}

// maxBytes checks a string's length in bytes, as in "maxbytes=255".
func maxBytes(f validator.FieldLevel) bool {
	most, err := strconv.Atoi(f.Param())
	if err != nil {
		panic(err)
	}
	return f.Field().Len() <= most
}

// MaxKeyBytes is the length limit of a key, in bytes.
const MaxKeyBytes = 255

// ValidKey reports whether s may be a job's key, or a prefix of one.
func ValidKey(s string) bool {
	return s != "" && len(s) <= MaxKeyBytes && utf8.ValidString(s) && strings.IndexFunc(s, unicode.IsControl) < 0
}

// Checker is a document with rules beyond its validate tags. Check notes the fields that break them, and calls
// [CheckTags] for the tags.
type Checker interface {
	Check(invalid *Invalid)
}

// check finds the invalid fields of a document.
func check(document any) (invalid Invalid) {
	if c, ok := document.(Checker); ok {
		c.Check(&invalid)
	} else {
		CheckTags(document, &invalid)
	}
	return invalid
}

// CheckTags notes the fields of a struct that break the rules in their validate tags, with our own messages. There are
// two rules besides those of the validator: within=1ms 30d for a [Duration], and maxbytes=255 for a string.
func CheckTags(v any, invalid *Invalid) {
	err := rules.Struct(v)
	if _, ok := errors.AsType[*validator.InvalidValidationError](err); ok { // a nil pointer
		invalid.Add("", "must be an object")
	}
	failures, _ := errors.AsType[validator.ValidationErrors](err)
	for _, f := range failures {
		invalid.Add(pointerOf(f.Namespace()), message(f))
	}
}

// pointerOf turns the validator's "Draft.schedules[3]" into "/schedules/3". Map keys stand in brackets too.
func pointerOf(namespace string) string {
	_, path, _ := strings.Cut(namespace, ".")
	var parts []any
	for path != "" {
		switch end := strings.IndexAny(path, ".["); {
		case path[0] == '[':
			inside, rest, _ := strings.Cut(path[1:], "]")
			parts, path = append(parts, inside), strings.TrimPrefix(rest, ".")
		case end < 0:
			parts, path = append(parts, path), ""
		default:
			parts, path = append(parts, path[:end]), strings.TrimPrefix(path[end:], ".")
		}
	}
	return Pointer(parts...)
}

// message describes the requirement of a failed rule in our words.
func message(f validator.FieldError) string {
	switch f.Tag() {
	case "required":
		return required
	case "oneof":
		if !strings.Contains(f.Param(), " ") {
			return fmt.Sprintf("must be %q, or left out, not %q", f.Param(), fmt.Sprint(f.Value()))
		}
		return fmt.Sprintf("must be one of %s, or left out, not %q",
			strings.ReplaceAll(f.Param(), " ", ", "), fmt.Sprint(f.Value()))
	case "within":
		return "must be a duration from " + strings.Replace(f.Param(), " ", " to ", 1)
	case "maxbytes":
		return "must be at most " + f.Param() + " bytes"
	case "min":
		if f.Kind() == reflect.Slice {
			return "must not be empty"
		}
		return "must be at least " + f.Param()
	case "max":
		if f.Kind() == reflect.String {
			return "must be at most " + f.Param() + " characters"
		}
		return "must be at most " + f.Param()
	default:
		return fmt.Sprintf("does not satisfy %s %s", f.Tag(), f.Param())
	}
}
