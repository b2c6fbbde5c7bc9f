//go:build unix

package webhook_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/callbacks/webhook"
)

// BenchmarkSend compares the sender with a bare client, without and with the headers that every delivery has. Its
// figure is the CPU time, which other work on the machine disturbs less than the time; the receiver's part of it is in
// there with all.
func BenchmarkSend(b *testing.B) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		w.WriteHeader(http.StatusNoContent)
	}))
	defer server.Close()
	payload := `{"n":12345,"text":"` + strings.Repeat("your turn ", 18) + `"}`
	headers := http.Header{
		"User-Agent": {"carillon"}, "Content-Type": {"application/json"}, "Webhook-Id": {"01MAM5KZZTXMC7X6N0EVPE21WA"},
		"Webhook-Timestamp": {"1798124400"}, "Carillon-Key": {"gr%C3%BC%C3%9Fe%20100%25"},
		"Carillon-Timestamp": {"2026-12-24T14:00:00.250Z"}, "Carillon-Attempt": {"3"},
	}
	for _, atOnce := range []int{32, 256, 1024} {
		b.Run(fmt.Sprintf("bare/%d", atOnce), func(b *testing.B) {
			measure(b, atOnce, bare(server.URL, payload, nil))
		})
		b.Run(fmt.Sprintf("bare, headers/%d", atOnce), func(b *testing.B) {
			measure(b, atOnce, bare(server.URL, payload, headers))
		})
		b.Run(fmt.Sprintf("sender/%d", atOnce), func(b *testing.B) {
			sender := webhook.New(webhook.Options{})
			defer func() { _ = sender.Close() }()
			d := delivery(dataOf(server.URL, payload))
			measure(b, atOnce, func(ctx context.Context) error { return sender.Send(ctx, d) })
		})
		b.Run(fmt.Sprintf("sender, signed/%d", atOnce), func(b *testing.B) {
			sender := webhook.New(webhook.Options{})
			defer func() { _ = sender.Close() }()
			d := signedBy(b.Context(), b, delivery(dataOf(server.URL, payload)))
			measure(b, atOnce, func(ctx context.Context) error { return sender.Send(ctx, d) })
		})
	}
}

// bare posts as little as one can.
func bare(url, payload string, headers http.Header) func(ctx context.Context) error {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1024, DisableCompression: true}}
	return func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader([]byte(payload)))
		if err != nil {
			return err
		}
		for name, values := range headers {
			req.Header[name] = values
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		return err
	}
}

// measure sends so many at once, once the connections are there.
func measure(b *testing.B, atOnce int, send func(ctx context.Context) error) {
	ctx, cancel := context.WithTimeout(b.Context(), time.Hour) // a deadline, as every attempt has one
	defer cancel()
	run := func(count int) {
		var begun atomic.Int64
		var all sync.WaitGroup
		for range atOnce {
			all.Go(func() {
				for begun.Add(1) <= int64(count) {
					if err := send(ctx); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		all.Wait()
	}
	run(4 * atOnce)
	b.ReportAllocs()
	b.ResetTimer()
	before := processorTime(b)
	run(b.N)
	b.ReportMetric(float64(processorTime(b)-before)/1e3/float64(b.N), "cpu-µs/op")
}

func processorTime(b *testing.B) time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		b.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
