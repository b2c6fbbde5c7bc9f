package handlers_test

import (
	"bytes"
	"encoding/json"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/handlers"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/sqlite"
	"github.com/carillon-scheduler/carillon/store/transfer"
)

// setting is one field of a submission, set alone.
type setting struct {
	pointer []string // of the field in a submission, and in the job as it is answered
	value   any
	option  []string // the field of job.Options, by its Go names; nil if it is none
	request string   // a job that sets nothing else of the kind
	headers []string
	hidden  bool // it is not answered as it is submitted
}

// TestEveryFieldIsKept submits each field of a job alone, and finds it wherever a job is shown, fired, moved or
// changed. The fields are found by reflection, so a new field is either kept or fails here.
func TestEveryFieldIsKept(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector sees the same in other tests")
	}
	t.Parallel()
	for _, s := range slices.Concat(draftSettings(t), optionSettings(t), otherSettings(t)) {
		t.Run(strings.Join(append(s.pointer, s.option...), "."), func(t *testing.T) { s.test(t) })
	}
}

// draftSettings returns the fields of [job.Draft] that are no options.
func draftSettings(t *testing.T) (all []setting) {
	every := "@every 1m"
	samples := map[string]setting{
		"key":         {value: "a", request: body("a", time.Hour)},
		"type":        {value: "sequence", request: sequence("a", []any{fire()}, "type", "sequence"), hidden: true},
		"schedules":   {value: []any{at(time.Hour)}, request: body("a", time.Hour)},
		"delay":       {value: "1h30m", request: with(body("a"), "schedules", nil, "delay", "90m")},
		"crontab":     {value: every, request: recurring("a", every)},
		"steps":       {value: []any{fire()}, request: sequence("a", []any{fire()})},
		"subscribers": {value: []any{"x"}, request: sequence("a", []any{fire()}, "subscribers", []any{"x"})},
		"timezone":    {value: "Europe/Paris", request: recurring("a", every, "timezone", "Europe/Paris")},
		"startAt":     {value: at(time.Second), request: recurring("a", every, "startAt", at(time.Second))},
		"endAt":       {value: at(time.Hour), request: recurring("a", every, "endAt", at(time.Hour))},
		"past":        {value: "skip", request: with(body("a", time.Hour), "past", "skip"), hidden: true},
		"callback":    {value: map[string]any{"type": "http", "data": 1.0}, request: body("a", time.Hour)},
	}
	for field := range reflect.TypeFor[job.Draft]().Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		s, known := samples[name]
		switch {
		case known:
			s.pointer = []string{name}
			all = append(all, s)
			delete(samples, name)
		case !field.Anonymous:
			t.Errorf("there is no sample of job.Draft's %s: add one", field.Name)
		}
	}
	if len(samples) > 0 {
		t.Errorf("job.Draft has no longer %q", slices.Sorted(maps.Keys(samples)))
	}
	return all
}

// optionSettings returns the fields of [job.OptionsDraft], and of the structs in it. Their values follow from the rules
// in their tags.
func optionSettings(t *testing.T) (all []setting) {
	var add func(of reflect.Type, pointer, option []string)
	add = func(of reflect.Type, pointer, option []string) {
		for field := range of.Fields() {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			s := setting{pointer: append(slices.Clone(pointer), name), option: append(slices.Clone(option), field.Name)}
			if rule := field.Tag.Get("validate"); rule != "" {
				s.value = sampleOf(t, field.Name, rule)
				s.request = recurring("a", "@every 1m", s.pointer[0], s.object(s.value)[s.pointer[0]])
				all = append(all, s)
			} else {
				add(field.Type.Elem(), s.pointer, s.option)
			}
		}
	}
	add(reflect.TypeFor[job.OptionsDraft](), nil, nil)
	return all
}

// sampleOf returns a value that a rule allows: the last or the largest.
func sampleOf(t *testing.T, field, rule string) any {
	rules := strings.Split(rule, ",")
	switch kind, of, _ := strings.Cut(rules[len(rules)-1], "="); kind {
	case "oneof", "within":
		values := strings.Fields(of)
		return values[len(values)-1]
	case "max":
		var n float64
		if err := json.Unmarshal([]byte(of), &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	t.Errorf("there is no sample for %s, by the rule %q: say here what the rule allows", field, rule)
	return nil
}

// otherSettings returns the fields of [job.Options] that are set by other parts of a submission than their own names.
func otherSettings(t *testing.T) (all []setting) {
	const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	others := map[string]setting{
		"Envelope": {pointer: []string{"callback", "envelope"}, value: "cloudevents",
			request: enveloped("kafka", "cloudevents", time.Minute)},
		"Signing": {pointer: []string{"callback", "signing"}, value: "none",
			request: with(body("a", time.Minute), "callback", map[string]any{"type": "http", "data": 1, "signing": "none"})},
		"Recurrence": {pointer: []string{"crontab"}, value: "@every 1m", request: recurring("a", "@every 1m")},
		"Payloads": {pointer: []string{"steps"}, value: []any{wait(1, "minute"), fire("x")},
			request: sequence("a", []any{wait(1, "minute"), fire("x")})},
		"Trace": {request: body("a", time.Minute), headers: []string{"Traceparent: " + trace}, hidden: true},
	}
	drafted := reflect.TypeFor[job.OptionsDraft]()
	for field := range reflect.TypeFor[job.Options]().Fields() {
		_, ok := drafted.FieldByName(field.Name)
		if ofService := []string{"After", "Event"}; ok || slices.Contains(ofService, field.Name) {
			continue
		}
		s, ok := others[field.Name]
		if !ok {
			t.Errorf("job.Options has %s, which is neither in job.OptionsDraft nor a sample here", field.Name)
		}
		s.option = []string{field.Name}
		all = append(all, s)
	}
	return all
}

// object returns an object that gives the field a value.
func (s setting) object(value any) map[string]any {
	for _, name := range slices.Backward(s.pointer) {
		value = map[string]any{name: value}
	}
	return value.(map[string]any)
}

func (s setting) test(t *testing.T) {
	a := newAPI(t, withEvents)
	a.call("PUT", "/v1/jobs/a", s.request, s.headers...).want(201)
	s.isShown(a, "put")
	s.isIn(a, "the store's job", a.optionsOf("a"))

	moved := newAPI(t, withEvents, func(c *handlers.Config) { a.moveTo(c) })
	moved.now = a.now
	s.isShown(moved, "moved")

	a.patch("a", `{"callback":{"data":2}}`, s.headers...).want(200)
	if len(s.pointer) != 1 || s.pointer[0] != "callback" {
		s.isShown(a, "patched")
	}
	s.isIn(a, "the patched job", a.optionsOf("a"))

	a.call("POST", "/v1/jobs/a/trigger", "", s.headers...).want(202)
	triggered := a.claim()[0]
	dropped := []string{"Deadline", "Spread", "CatchUp", "ExpectBy", "Recurrence", "Payloads"} // by triggered and redriven ones
	if len(s.option) > 0 && !slices.Contains(dropped, s.option[0]) {
		s.isIn(a, "the triggered occurrence", triggered.Options)
	}
	a.settle(triggered, store.Ack, "")
	if len(s.option) == 0 {
		return
	}
	a.advance(time.Minute + time.Duration(a.status().Options.Spread))
	s.isIn(a, "the claimed occurrence", a.claim()[0].Options)
	if _, optional := reflect.TypeFor[job.OptionsDraft]().FieldByName(s.option[0]); optional {
		a.patch("a", encode(s.object(nil))).want(200)
		if got, ok := s.shown(a); ok && s.same(got) {
			t.Errorf("it is shown though a patch has removed it: %v", got)
		}
		a.patch("a", encode(s.object(s.value))).want(200)
		s.isShown(a, "set by a patch")
		s.isIn(a, "the job that a patch has set it of", a.optionsOf("a"))
	}
}

// optionsOf reads a job's options from the store.
func (a *api) optionsOf(key string) job.Options {
	a.Helper()
	status, err := store.ReadJob(a.Context(), a.store, name(key))
	if err != nil {
		a.Fatal(err)
	}
	return status.Options
}

// moveTo exports the whole store, and gives another API the store of the import: one that keeps options encoded.
func (a *api) moveTo(c *handlers.Config) {
	a.Helper()
	to, err := sqlite.Open(a.Context(), "sqlite:"+filepath.Join(a.TempDir(), "carillon.db"))
	if err != nil {
		a.Fatal(err)
	}
	a.Cleanup(func() { _ = to.Close() })
	var moved bytes.Buffer
	if _, err := transfer.Export(a.Context(), a.store, &moved, transfer.ExportOptions{Now: a.clock()}); err != nil {
		a.Fatal(err)
	}
	if _, err := transfer.Import(a.Context(), to, &moved, transfer.ImportOptions{}); err != nil {
		a.Fatal(err)
	}
	c.Store, c.Inspector = to, to
}

// isShown checks that the job is answered with the setting.
func (s setting) isShown(a *api, how string) {
	a.Helper()
	if got, ok := s.shown(a); !s.hidden && (!ok || !s.same(got)) {
		a.Errorf("%s, it is shown as %v, want %v", how, got, s.value)
	}
}

// shown returns the value that the job is answered with.
func (s setting) shown(a *api) (value any, ok bool) {
	a.Helper()
	value = decode[any](a.call("GET", "/v1/jobs/a", "").want(200))
	for _, name := range s.pointer {
		if value, ok = value.(map[string]any)[name]; !ok {
			return nil, false
		}
	}
	return value, true
}

// same compares an answered value with the setting's. Durations are answered in other units than they may be given in.
func (s setting) same(got any) bool {
	text, isText := got.(string)
	wanted, _ := s.value.(string)
	if a, err := job.ParseDuration(text); isText && err == nil {
		b, err := job.ParseDuration(wanted)
		return err == nil && a == b
	}
	return encode(got) == encode(s.value)
}

// isIn checks that options have the setting.
func (s setting) isIn(a *api, where string, o job.Options) {
	a.Helper()
	if len(s.option) == 0 {
		return
	}
	value := reflect.ValueOf(o)
	for _, name := range s.option {
		value = value.FieldByName(name)
	}
	if value.IsZero() {
		a.Errorf("%s has lost it", where)
	}
	if len(s.pointer) > 0 && len(s.option) == len(s.pointer) && s.option[0] != "Recurrence" && s.option[0] != "Payloads" {
		var got any
		if err := json.Unmarshal([]byte(encode(value.Interface())), &got); err != nil {
			a.Fatal(err)
		}
		if !s.same(got) {
			a.Errorf("%s has %v, want %v", where, got, s.value)
		}
	}
}
