package job_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"github.com/carillon-scheduler/carillon/job"
)

func TestTenantSettings(t *testing.T) {
	for body, want := range map[string]job.TenantSettings{
		`{}`: {},
		`{"weight":null,"priority":null,"maxInFlight":null,"paused":null}`: {},
		`{"weight":0.001}`: {Weight: 0.001},
		`{"weight":1e3,"priority":"high","maxInFlight":1000000,"paused":true}`: {Weight: 1000, Priority: job.PriorityHigh, MaxInFlight: 1_000_000, Paused: true},
		`{"weight":1,"priority":"low","maxInFlight":1,"paused":false}`:         {Weight: 1, Priority: job.PriorityLow, MaxInFlight: 1},
	} {
		got, err := job.ParseTenantSettings([]byte(body))
		if err != nil || got != want {
			t.Errorf("%s is read as %+v, %v; want %+v", body, got, err, want)
		}
		shown, err := json.Marshal(got.Draft())
		if err != nil {
			t.Fatal(err)
		}
		if want.Weight == 0 {
			want.Weight = 1
		}
		if again, err := job.ParseTenantSettings(shown); err != nil || again != want {
			t.Errorf("%s is shown as %s, which is read as %+v, %v", body, shown, again, err)
		}
	}
}

func TestTenantSettingsThatAreRefused(t *testing.T) {
	for body, want := range map[string]struct {
		pointers []string // nil if it is malformed
		message  string
	}{
		``:                                 {nil, "the body is empty"},
		`{"weight":NaN}`:                   {nil, "not valid JSON"},
		`{"weight":1`:                      {nil, "not valid JSON"},
		`null`:                             {[]string{""}, "must be an object"},
		`[]`:                               {[]string{""}, "must be an object"},
		`7`:                                {[]string{""}, "must be an object"},
		`{"weight":0}`:                     {[]string{"/weight"}, "must be at least 0.001"},
		`{"weight":-1}`:                    {[]string{"/weight"}, "must be at least 0.001"},
		`{"weight":1000.5}`:                {[]string{"/weight"}, "must be at most 1000"},
		`{"weight":1e999}`:                 {[]string{"/weight"}, "must be a number"},
		`{"weight":"NaN"}`:                 {[]string{"/weight"}, "must be a number"},
		`{"priority":"urgent"}`:            {[]string{"/priority"}, `must be one of high, normal, low, or left out, not "urgent"`},
		`{"priority":""}`:                  {[]string{"/priority"}, `must be one of high, normal, low, or left out, not ""`},
		`{"priority":1}`:                   {[]string{"/priority"}, "must be a string"},
		`{"maxInFlight":0}`:                {[]string{"/maxInFlight"}, "must be at least 1"},
		`{"maxInFlight":1000001}`:          {[]string{"/maxInFlight"}, "must be at most 1000000"},
		`{"maxInFlight":1.5}`:              {[]string{"/maxInFlight"}, "must be a whole number"},
		`{"paused":"yes"}`:                 {[]string{"/paused"}, "must be true or false"},
		`{"paused":true,"paused":true}`:    {[]string{"/paused"}, "twice"},
		`{"Weight":1}`:                     {[]string{"/Weight"}, "the fields here are weight, priority, maxInFlight, paused"},
		`{"a":1,"weight":0,"paused":1}`:    {[]string{"/a", "/paused", "/weight"}, ""},
		`{"maxInFlight":0,"priority":"x"}`: {[]string{"/priority", "/maxInFlight"}, ""},
	} {
		_, err := job.ParseTenantSettings([]byte(body))
		if err == nil || !strings.Contains(err.Error(), want.message) {
			t.Errorf("%s: %v, want %q", body, err, want.message)
			continue
		}
		var pointers []string
		if invalid, ok := errors.AsType[*job.Invalid](err); ok {
			for _, f := range invalid.Fields {
				pointers = append(pointers, f.Pointer)
			}
		}
		if !slices.Equal(pointers, want.pointers) {
			t.Errorf("%s: names %q, want %q", body, pointers, want.pointers)
		}
	}
}
