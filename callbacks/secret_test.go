package callbacks_test

import (
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/job"
)

// FuzzText: an accepted text is a string or refers to a secret of a valid name. It stays the same when it is read again
// without the checks, as at each attempt. A refusal has a pointer within the field.
func FuzzText(f *testing.F) {
	for _, seed := range []string{
		`"a"`, `""`, `null`, `1`, `true`, `[]`, `{}`, `{"secret":"a"}`, `{"secret":"a","prefix":"Bearer "}`, `{"prefix":"a"}`,
		`{"secret":"a","secret":"b"}`, `{"secret":{"secret":"a"}}`, `{"secret":"a","x":1}`, `{"secret":"a b"}`, `{"secret":"a"`,
		`{"secret":"a","prefix":"\r\n"}`, `"\ud800"`, `{"\u0073ecret":"a"}`,
	} {
		f.Add([]byte(seed))
	}
	type document struct {
		Header callbacks.Text `json:"header"`
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		body := append(append([]byte(`{"header":`), value...), '}')
		d, err := callbacks.Parse[document](body)
		var invalid job.Invalid
		d.Header.Check("/header", &invalid)
		if err != nil || invalid.Err() != nil {
			for _, field := range invalid.Fields {
				if !strings.HasPrefix(field.Pointer, "/header") {
					t.Fatalf("%s: %v", body, field)
				}
			}
			return
		}
		again, err := job.ParseTrusted[document](body)
		if err != nil || again != d {
			t.Fatalf("%s is %+v, and then %+v, %v", body, d, again, err)
		}
		var raw struct {
			Header jsontext.Value `json:"header"`
		}
		if err := json.Unmarshal(body, &raw); err != nil {
			t.Fatal(err)
		}
		switch raw.Header.Kind() {
		case jsontext.KindBeginObject:
			if !d.Header.Refers() || d.Header.Literal() != "" || !job.ValidSecretName(d.Header.Secret) {
				t.Fatalf("%s is %+v", body, d.Header)
			}
		case jsontext.KindString, jsontext.KindNull, jsontext.KindInvalid: // the last one is a field that was left out
			if d.Header.Refers() {
				t.Fatalf("%s refers to a secret", body)
			}
		default:
			t.Fatalf("%s is taken", body)
		}
	})
}
