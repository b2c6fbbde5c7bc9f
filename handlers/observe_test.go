package handlers_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/carillon-scheduler/carillon/handlers"
)

// The other listener shows health and metrics, and nothing else. The API shows no metrics that it is not given.
func TestObserve(t *testing.T) {
	t.Parallel()
	var ready error
	a := newAPI(t, func(c *handlers.Config) {
		c.Metrics = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "metrics") })
		c.Ready = func(context.Context) error { return ready }
		other := handlers.Observe(*c)
		for _, test := range []struct {
			method, path string
			ready        error
			status       int
			body         string
		}{
			{"GET", "/healthz", nil, 200, `{"status":"ok"}`},
			{"GET", "/healthz", errors.New("no"), 200, `{"status":"ok"}`},
			{"GET", "/readyz", nil, 200, `{"status":"ready"}`},
			{"HEAD", "/readyz", nil, 200, `{"status":"ready"}`}, // whose body a server leaves out
			{"GET", "/readyz", errors.New("no"), 503, ""},
			{"GET", "/metrics", nil, 200, "metrics"},
			{"POST", "/metrics", nil, 405, ""}, {"GET", "/v1/jobs", nil, 404, ""}, {"GET", "/", nil, 404, ""}, {"PUT", "/v1/jobs/a", nil, 404, ""},
		} {
			ready = test.ready
			w := httptest.NewRecorder()
			other.ServeHTTP(w, httptest.NewRequest(test.method, test.path, nil))
			if w.Code != test.status || test.body != "" && w.Body.String() != test.body {
				t.Errorf("%s %s: %d %s", test.method, test.path, w.Code, w.Body)
			}
		}
		ready, c.Metrics = nil, nil
	})
	a.call("GET", "/metrics", "").want(404)
	if index := decode[map[string]any](a.call("GET", "/", "").want(200)); index["metrics"] != nil || index["jobs"] == nil {
		t.Errorf("the index is %v", index)
	}
}
