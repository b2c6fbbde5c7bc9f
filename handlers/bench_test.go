package handlers_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/access"
	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/callbacks/webhook"
	"github.com/carillon-scheduler/carillon/handlers"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/memory"
)

// BenchmarkSubmit submits 10,000 jobs of one instant, with 200 bytes of payload, to an API whose store does nothing,
// and without a network. So it measures the reading, checking and answering. It reports the processor time per job, of
// all cores, which other work on the machine changes little.
func BenchmarkSubmit(b *testing.B) {
	const discard, hook = `"type":"discard","data":{`, `"type":"http","data":{"url":"https://example.com/orders/hook",`
	for _, c := range []struct{ name, path, media, callback string }{
		{"lines", "/v1/jobs/batch", asLines, discard},
		{"array", "/v1/jobs/batch", asArray, discard},
		{"webhooks", "/v1/jobs/batch", asLines, hook},
		{"one by one", "/v1/jobs", asArray, discard},
	} {
		b.Run(c.name, func(b *testing.B) {
			const n = 10_000
			bodies := make([]string, n)
			for i := range bodies {
				bodies[i] = fmt.Sprintf(`{"key":"bench-%016x-%d","past":"fire","schedules":["%s"],"callback":{%s"payload":{"n":%d,"text":"%s"}}}}`,
					uint64(i)*0x9E3779B97F4A7C15, i, job.FormatTime(start.Add(time.Duration(i)*time.Millisecond)), c.callback, i,
					strings.Repeat("abcdefghijklmnopqrstuvwxyz ", 7))
			}
			switch {
			case c.path == "/v1/jobs":
			case c.media == asArray:
				bodies = []string{"[" + strings.Join(bodies, ",") + "]"}
			default:
				bodies = []string{strings.Join(bodies, "\n")}
			}
			api := handlers.New(handlers.Config{
				Store:     storesNothing{},
				Records:   storesNothing{},
				Callbacks: callbacks.NewRegistry(sender("discard"), webhook.New(webhook.Options{})),
				Limits:    job.Limits{Instants: 1000, Payload: 1 << 20},
				MaxBody:   1 << 20,
				Retain:    retain,
			})
			b.ReportAllocs()
			before := processorTime(b)
			for b.Loop() {
				for _, body := range bodies {
					request := httptest.NewRequestWithContext(b.Context(), http.MethodPost, c.path, strings.NewReader(body))
					request.Header.Set("Content-Type", c.media)
					answer := httptest.NewRecorder()
					answer.Body = nil
					api.ServeHTTP(answer, request)
					if answer.Code > http.StatusCreated {
						b.Fatalf("status %d", answer.Code)
					}
				}
			}
			b.ReportMetric((processorTime(b)-before).Seconds()*1e6/float64(b.N*n), "us-cpu/job")
		})
	}
}

// BenchmarkKeys puts a job, as in [BenchmarkSubmit], with a key and without authentication, over a real connection and
// without one.
func BenchmarkKeys(b *testing.B) {
	records := memory.New()
	keys := access.NewKeys(records)
	defer keys.Close()
	token, _, err := keys.Create(b.Context(), access.KeyParams{Role: access.Submitter, Scope: access.Everything()}, "anyone", time.Now())
	if err != nil {
		b.Fatal(err)
	}
	text := fmt.Sprintf(`{"past":"fire","schedules":["%s"],"callback":{"type":"discard","data":{"payload":{"n":1,"text":"%s"}}}}`,
		job.FormatTime(start), strings.Repeat("abcdefghijklmnopqrstuvwxyz ", 7))
	for _, c := range []struct {
		name string
		auth access.Authenticator
	}{{"none", nil}, {"keys", keys}} {
		api := handlers.New(handlers.Config{
			Store: storesNothing{}, Records: storesNothing{}, Callbacks: callbacks.NewRegistry(sender("discard")),
			Limits: job.Limits{Instants: 1000, Payload: 1 << 20}, MaxBody: 1 << 20, Retain: retain, Auth: c.auth,
		})
		b.Run("handler/"+c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				request := httptest.NewRequestWithContext(b.Context(), http.MethodPut, "/v1/jobs/bench", strings.NewReader(text))
				request.Header.Set("Content-Type", asArray)
				request.Header.Set("Authorization", "Bearer "+token)
				answer := httptest.NewRecorder()
				answer.Body = nil
				api.ServeHTTP(answer, request)
				if answer.Code > http.StatusCreated {
					b.Fatalf("status %d", answer.Code)
				}
			}
		})
		server := httptest.NewServer(api)
		defer server.Close()
		b.Run("http/"+c.name, func(b *testing.B) {
			b.ReportAllocs()
			before := processorTime(b)
			for b.Loop() {
				request, err := http.NewRequestWithContext(b.Context(), http.MethodPut, server.URL+"/v1/jobs/bench", strings.NewReader(text))
				if err != nil {
					b.Fatal(err)
				}
				request.Header.Set("Content-Type", asArray)
				request.Header.Set("Authorization", "Bearer "+token)
				answer, err := http.DefaultClient.Do(request)
				if err != nil {
					b.Fatal(err)
				}
				_, _ = io.Copy(io.Discard, answer.Body)
				answer.Body.Close()
				if answer.StatusCode > http.StatusCreated {
					b.Fatalf("status %d", answer.StatusCode)
				}
			}
			b.ReportMetric((processorTime(b)-before).Seconds()*1e6/float64(b.N), "us-cpu/job")
		})
	}
}

// storesNothing is a store that takes everything.
type storesNothing struct{ store.Store }

func (storesNothing) Put(_ context.Context, puts []store.Put) []store.PutResult {
	return make([]store.PutResult, len(puts))
}

func (storesNothing) WriteRecords(_ context.Context, changes []store.RecordChange) []error {
	return make([]error, len(changes))
}

// processorTime returns the processor time that this process has used.
func processorTime(b *testing.B) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
