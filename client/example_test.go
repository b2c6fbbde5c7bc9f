package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"time"

	"github.com/carillon-scheduler/carillon/client"
)

// service stands for a running service in the examples. It has one job.
func service() *httptest.Server {
	answers := map[string]string{
		"PUT /v1/jobs/renewal-1234": `{"key": "renewal-1234", "revision": "01KBX2Q7ZJ7Q1H8Z5V0T9W3M4N",
			"version": "01KBX2Q7ZJ7Q1H8Z5V0T9W3M4N", "state": "scheduled", "occurrences": 1, "skipped": 0,
			"nextInstant": "2026-12-24T14:00:00.000Z"}`,
		"GET /v1/jobs": `{"items": [{"key": "renewal-1234", "revision": "01KBX2Q7ZJ7Q1H8Z5V0T9W3M4N",
			"version": "01KBX2Q7ZJ7Q1H8Z5V0T9W3M4N", "state": "scheduled", "callbackType": "http",
			"createdAt": "2026-12-20T08:00:00.000Z", "updatedAt": "2026-12-20T08:00:00.000Z"}]}`,
		"POST /v1/jobs/batch": `{"index":0,"key":"a","status":201,"state":"scheduled","occurrences":1,"skipped":0}
			{"index":1,"key":"b","status":422,"title":"Unprocessable Entity","detail":"see errors","errors":[{"pointer":"/crontab","message":"must have 5 or 6 fields"}]}`,
	}
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		answer, ok := answers[r.Method+" "+r.URL.Path]
		if !ok {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusNotFound)
			answer = `{"type": "about:blank", "title": "Not Found", "status": 404, "detail": "there is no job with this key"}`
		}
		_, _ = io.WriteString(w, answer)
	}))
}

// A job is put, and put again as often as needed until it is known to be there.
func Example() {
	server := service()
	defer server.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	c, err := client.New(client.Config{URL: server.URL, Key: "carillon_4iC0dQxYb7Zr_…"})
	if err != nil {
		panic(err)
	}
	accepted, err := c.Put(ctx, client.Job{
		Key:       "renewal-1234",
		Schedules: []time.Time{time.Date(2026, 12, 24, 15, 0, 0, 0, time.FixedZone("CET", 3600))},
		Callback: client.HTTP(client.HTTPData{
			URL: "https://example.com/hook", Payload: map[string]any{"user": 1234},
		}),
	})
	if err != nil {
		panic(err)
	}
	fmt.Println(accepted.State, accepted.NextInstant)

	for job, err := range c.Jobs(ctx, client.JobFilter{Prefix: "renewal-"}) {
		if err != nil {
			panic(err)
		}
		fmt.Println(job.Key, job.CallbackType)
	}

	if _, err = c.Job(ctx, "renewal-9"); errors.Is(err, client.ErrNotFound) {
		fmt.Println(err)
	}
	// Output:
	// scheduled 2026-12-24 14:00:00 +0000 UTC
	// renewal-1234 http
	// 404 Not Found: there is no job with this key
}

// A batch takes any number of jobs from an iterator.
func ExampleClient_Batch() {
	server := service()
	defer server.Close()
	c, err := client.New(client.Config{URL: server.URL})
	if err != nil {
		panic(err)
	}
	jobs := slices.Values([]client.Job{
		{Key: "a", Crontab: "@daily", Callback: client.HTTP(client.HTTPData{URL: "https://example.com/hook"})},
		{Key: "b", Crontab: "daily", Callback: client.HTTP(client.HTTPData{URL: "https://example.com/hook"})},
	})
	for result, err := range c.Batch(context.Background(), jobs) {
		switch {
		case err != nil:
			panic(err)
		case result.Err != nil:
			fmt.Println(result.Key, result.Err)
		default:
			fmt.Println(result.Key, result.State)
		}
	}
	// Output:
	// a scheduled
	// b 422 Unprocessable Entity: /crontab must have 5 or 6 fields
}
