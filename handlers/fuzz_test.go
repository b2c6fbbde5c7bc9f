package handlers_test

import (
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
)

// FuzzKeyRoundTrip puts, reads, lists and cancels a job by its escaped key: whatever the key, they mean the same job.
func FuzzKeyRoundTrip(f *testing.F) {
	for _, key := range []string{
		"a", "a+b/c", "%", "%25", "%2F", ".", "..", "./..", "batch", "redrive", "a b", "?", "a?b#c", ";,&=", ":key", "*", "é", "e\u0301",
		"😀", "\ufeff", "\u202e", "\\", `"`, "<b>", "a\x00", "\xff", "", strings.Repeat("é", 127), strings.Repeat("x", 256), "//", "/", "~0~1",
	} {
		f.Add(key)
	}
	a := newAPI(f)
	f.Fuzz(func(t *testing.T, key string) {
		a := &api{TB: t, url: a.url, spec: a.spec, store: a.store, log: a.log, now: start}
		sent := with(body("", time.Hour), "key", nil)
		if key == "" {
			a.call("PUT", "/v1/jobs/", sent).want(404)
			return
		}
		if !job.ValidKey(key) {
			a.call("PUT", pathOf(key), sent).want(422)
			a.call("GET", pathOf(key), "").want(422)
			return
		}
		created := a.call("PUT", pathOf(key), sent).want(201)
		if got := decode[accepted](created).Key; got != key {
			t.Errorf("put as %q, want %q", got, key)
		}
		location := created.header.Get("Location")
		for _, path := range []string{pathOf(key), location} {
			if got := decode[definition](a.call("GET", path, "").want(200)).Key; got != key {
				t.Errorf("read at %s as %q, want %q", path, got, key)
			}
		}
		a.call("POST", "/v1/jobs", body(key, time.Hour)).want(200)
		if got := list(a, "").items; len(got) != 1 || got[0] != key+" scheduled" {
			t.Errorf("listed as %q, want %q", got, key)
		}
		a.call("DELETE", location, "").want(200)
	})
}
