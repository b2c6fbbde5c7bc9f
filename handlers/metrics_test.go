package handlers_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/carillon-scheduler/carillon/handlers"
	"github.com/carillon-scheduler/carillon/store"
)

// measuredAPI returns an API with metrics.
func measuredAPI(t *testing.T) (*api, *prometheus.Registry) {
	registry := prometheus.NewRegistry()
	return newAPI(t, func(c *handlers.Config) {
		c.Registerer = registry
		c.Metrics = promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
	}), registry
}

// measured returns the number of measured requests by method, route and status.
func measured(t *testing.T, registry *prometheus.Registry) map[string]int {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]int{}
	for _, family := range families {
		if family.GetName() != "carillon_http_request_duration_seconds" {
			continue
		}
		for _, m := range family.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			key := labels["method"] + " " + labels["route"] + " " + labels["status"]
			all[key] = int(m.GetHistogram().GetSampleCount())
		}
	}
	return all
}

// awaitMeasured waits until the wanted number of requests is measured: a client may get its answer a moment earlier.
func awaitMeasured(t *testing.T, registry *prometheus.Registry, key string, want int) {
	t.Helper()
	await(t, fmt.Sprintf("%d of %s", want, key), func() bool { return measured(t, registry)[key] == want })
}

func await(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited too long for %s", what)
		}
	}
}

func inFlight(t *testing.T, registry *prometheus.Registry) (n float64) {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == "carillon_http_requests_in_flight" {
			return family.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatal("there is no gauge of requests in flight")
	return 0
}

// Requests are measured by route. No key in them, and no other name that a client can invent, becomes a label.
func TestRequestsAreMeasured(t *testing.T) {
	t.Parallel()
	a, registry := measuredAPI(t)
	job := `{"delay": "1h", "callback": {"type": "http", "data": {"url": "http://h"}}}`
	a.call("PUT", "/v1/jobs/one", job).want(201)
	a.call("PUT", "/v1/jobs/a%2Fb", job).want(201)
	a.call("PUT", "/v1/jobs/one", job).want(200)
	a.call("GET", "/v1/jobs/nothing", "").want(404)
	a.call("GET", "/v1/jobs/one", "").want(200)
	a.call("HEAD", "/v1/jobs/one", "").want(200)
	a.call("GET", "/v1/jobs", "").want(200)
	a.call("GET", "/nowhere", "").want(404)
	a.call("GET", "/v1/elsewhere/"+strings.Repeat("x", 50), "").want(404)
	a.call("PUT", "/v1/jobs", job).want(405)
	a.call("OPTIONS", "/v1/jobs", "").want(204)
	a.call("SPELL", "/v1/jobs", "").want(405)
	a.call("CHARM", "/nowhere", "").want(404)
	a.call("POST", "/v1/jobs/batch", "["+strings.Replace(job, "{", `{"key":"c",`, 1)+"]").want(200)
	a.store.setFault(store.ErrUnavailable)
	a.call("GET", "/v1/jobs/one", "").want(503)

	want := map[string]int{
		"PUT /v1/jobs/:key 201":   2,
		"PUT /v1/jobs/:key 200":   1,
		"GET /v1/jobs/:key 404":   1,
		"GET /v1/jobs/:key 200":   2,
		"GET /v1/jobs/:key 503":   1,
		"GET /v1/jobs 200":        1,
		"POST /v1/jobs/batch 200": 1,
		"GET none 404":            2,
		"PUT none 405":            1,
		"OPTIONS none 204":        1,
		"other none 405":          1,
		"other none 404":          1,
	}
	for key, n := range want {
		awaitMeasured(t, registry, key, n)
	}
	if got := measured(t, registry); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("measured are\n%v\nwant\n%v", got, want)
	}
	if n := inFlight(t, registry); n != 0 {
		t.Errorf("%v requests are in flight when all are answered", n)
	}
}

// A batch is in flight for as long as its client sends it.
func TestBatchIsMeasured(t *testing.T) {
	t.Parallel()
	a, registry := measuredAPI(t)
	body, send := io.Pipe()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, a.url+"/v1/jobs/batch", body)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/x-ndjson")
	answered := make(chan error, 1)
	go func() {
		response, err := http.DefaultClient.Do(request)
		if err == nil {
			_, err = io.Copy(io.Discard, response.Body)
			_ = response.Body.Close()
		}
		answered <- err
	}()
	line := `{"key": "k", "delay": "1h", "callback": {"type": "http", "data": {"url": "http://h"}}}` + "\n"
	if _, err := io.WriteString(send, line); err != nil {
		t.Fatal(err)
	}
	await(t, "the batch to be in flight", func() bool { return inFlight(t, registry) == 1 })
	if n := measured(t, registry)["POST /v1/jobs/batch 200"]; n != 0 {
		t.Error("it is measured before its end")
	}
	if err := send.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-answered; err != nil {
		t.Fatal(err)
	}
	awaitMeasured(t, registry, "POST /v1/jobs/batch 200", 1)
	if n := inFlight(t, registry); n != 0 {
		t.Errorf("%v requests are in flight at the end", n)
	}
}

// A handler that panics is measured by the status that its client got.
func TestPanicIsMeasured(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	a := newAPI(t, func(c *handlers.Config) {
		c.Registerer = registry
		c.Metrics = http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("on purpose") })
	})
	a.call("GET", "/metrics", "").want(500)
	awaitMeasured(t, registry, "GET /metrics 500", 1)
	if n := inFlight(t, registry); n != 0 {
		t.Errorf("%v requests are in flight", n)
	}
}

func TestMetricsAreServed(t *testing.T) {
	t.Parallel()
	a, registry := measuredAPI(t)
	a.call("GET", "/healthz", "").want(200)
	awaitMeasured(t, registry, "GET /healthz 200", 1)
	got := a.call("GET", "/metrics", "").want(200)
	if want := `carillon_http_request_duration_seconds_count{method="GET",route="/healthz",status="200"} 1`; !strings.Contains(string(got.body), want) {
		t.Errorf("the metrics lack %s:\n%s", want, got.body)
	}
	newAPI(t).call("GET", "/metrics", "").want(404)
}
