package job_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/carillon-scheduler/carillon/job"
)

// TestEachOptionAlone sets each field of the options alone, and each field of a nested struct. The options are encoded
// and decoded, make a definition differ, and apply to an occurrence that stands on its own, except for the options that
// such an occurrence ignores.
func TestEachOptionAlone(t *testing.T) {
	dropped := []string{"Deadline", "Spread", "After", "CatchUp", "ExpectBy", "Recurrence", "Payloads"}
	eachAlone(t, reflect.TypeFor[job.Options](), nil, func(path []string, o job.Options) {
		name := strings.Join(path, ".")
		if got, err := job.DecodeOptions(o.Encode()); err != nil || !reflect.DeepEqual(got, o) {
			t.Errorf("%s: %+v is read back as %+v, %v", name, o, got, err)
		}
		if got, want := o.Same(job.Options{}), name == "Trace"; got != want {
			t.Errorf("%s: it is the same as none: %t", name, got)
		}
		want := o
		if slices.Contains(dropped, path[0]) {
			want = job.Options{}
		}
		if got := o.Alone(nil); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: what fires on its own has %+v, want %+v", name, got, want)
		}
	})
	if got := (job.Options{}).Encode(); got != nil {
		t.Errorf("no options are encoded as %s", got)
	}
}

func TestWhatFiresOnItsOwnHasItsOwnPayload(t *testing.T) {
	o := job.Options{Payloads: map[int]jsontext.Value{1: []byte(`"a"`), 2: []byte(`"b"`)}}
	for step, want := range []map[int]jsontext.Value{nil, {1: []byte(`"a"`)}} {
		if got := o.Alone(&job.Part{Step: step}).Payloads; !reflect.DeepEqual(got, want) {
			t.Errorf("step %d has %v, want %v", step, got, want)
		}
	}
	if len(o.Payloads) != 2 {
		t.Errorf("the job's payloads have changed: %v", o.Payloads)
	}
}

// eachAlone calls a function once for each field, with options in which only that field is not zero.
func eachAlone(t *testing.T, of reflect.Type, path []string, do func(path []string, o job.Options)) {
	for field := range of.Fields() {
		path := append(slices.Clone(path), field.Name)
		if field.Type.Kind() == reflect.Struct {
			eachAlone(t, field.Type, path, do)
			continue
		}
		var o job.Options
		v := reflect.ValueOf(&o).Elem()
		for _, name := range path {
			v = v.FieldByName(name)
		}
		switch v.Kind() {
		case reflect.String:
			v.SetString("x")
		case reflect.Bool:
			v.SetBool(true)
		case reflect.Int, reflect.Int64:
			v.SetInt(7_000_000)
		case reflect.Float64:
			v.SetFloat(1.5)
		case reflect.Pointer:
			v.Set(reflect.New(v.Type().Elem()))
		case reflect.Map:
			v.Set(reflect.ValueOf(map[int]jsontext.Value{3: []byte(`"x"`)}))
		default:
			t.Errorf("%s: this test can't set a %s: have it do so", strings.Join(path, "."), v.Type())
			continue
		}
		do(path, o)
	}
}
