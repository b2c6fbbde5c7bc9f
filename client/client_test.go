package client_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/client"
)

func TestConfig(t *testing.T) {
	for _, u := range []string{"", "localhost:8080", "ftp://host", "http://", "http://host?x=1", "http://host#x", "http://ho st"} {
		if _, err := client.New(client.Config{URL: u}); err == nil || !strings.Contains(err.Error(), "URL") {
			t.Errorf("%q: %v", u, err)
		}
	}
}

func TestDuration(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"36h0m0s": 36 * time.Hour, "1w2d3h": 219 * time.Hour, "1.5d": 36 * time.Hour, "500ms": 500 * time.Millisecond,
	} {
		var d client.Duration
		if err := json.Unmarshal([]byte(`"`+text+`"`), &d); err != nil || d != client.Duration(want) {
			t.Errorf("%s is read as %s: %v", text, d, err)
		}
	}
	for _, text := range []string{"x", "dd", "1h2x", "5"} {
		if err := new(client.Duration).UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%s is read", text)
		}
	}
}

// TestRequest: a prefix of the path stays, keys are encoded, and the tenant is named only where it may be.
func TestRequest(t *testing.T) {
	var got []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = append(got, strings.Join([]string{r.Method, r.URL.EscapedPath(), r.Header.Get("Carillon-Tenant"),
			r.Header.Get("Authorization")}, " "))
		w.WriteHeader(http.StatusBadGateway) // not a problem document
		_, _ = w.Write([]byte("<html>"))
	}))
	defer server.Close()
	c, err := client.New(client.Config{URL: server.URL + "/carillon/", Key: "k", Attempts: 1})
	if err != nil {
		t.Fatal(err)
	}
	c = c.For("acme")
	_, err = c.Job(t.Context(), "a/b %+")
	if e, ok := errors.AsType[*client.Error](err); !ok || e.Status != 502 || e.Title != "Bad Gateway" || !client.OutcomeUnknown(err) {
		t.Errorf("error %v", err)
	}
	_, _ = c.Backlog(t.Context(), 0)
	want := "GET /carillon/v1/jobs/a%2Fb%20%25+ acme Bearer k\nGET /carillon/v1/backlog  Bearer k"
	if all := strings.Join(got, "\n"); all != want {
		t.Errorf("requests\n%s, want\n%s", all, want)
	}
}
