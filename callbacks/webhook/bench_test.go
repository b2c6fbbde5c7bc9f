//go:build unix

package webhook_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/callbacks/webhook"
)

// receiverVariable makes the test's program a receiver.
const receiverVariable = "CARILLON_TEST_RECEIVER"

func TestMain(m *testing.M) {
	if os.Getenv(receiverVariable) != "" {
		receive()
		return
	}
	os.Exit(m.Run())
}

// receive serves until the standard input ends. It prints its address first, and answers /cpu with its processor time.
func receive() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/cpu" {
			_, _ = fmt.Fprint(w, int64(processorTime()))
			return
		}
		_, _ = io.Copy(io.Discard, req.Body)
		w.WriteHeader(http.StatusNoContent)
	}))
	fmt.Println(server.URL)
	_, _ = io.Copy(io.Discard, os.Stdin)
	server.Close()
}

// startReceiver starts a receiver in a process of its own.
func startReceiver(b *testing.B) (url string) {
	b.Helper()
	program, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	process := exec.Command(program)
	process.Env = append(os.Environ(), receiverVariable+"=1")
	in, err := process.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := process.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := process.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = in.Close()
		_ = process.Wait()
	})
	url, err = bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	return strings.TrimSpace(url)
}

// BenchmarkSend compares the sender with a bare client, without and with the headers that every delivery has. The
// figures are the CPU times of the client and of the receiver, which is a process of its own. Their ratio is the figure
// that other work on the machine disturbs least.
func BenchmarkSend(b *testing.B) {
	target := startReceiver(b)
	payload := `{"n":12345,"text":"` + strings.Repeat("your turn ", 18) + `"}`
	headers := http.Header{
		"User-Agent": {"carillon"}, "Content-Type": {"application/json"}, "Webhook-Id": {"01MAM5KZZTXMC7X6N0EVPE21WA"},
		"Webhook-Timestamp": {"1798124400"}, "Carillon-Key": {"gr%C3%BC%C3%9Fe%20100%25"},
		"Carillon-Timestamp": {"2026-12-24T14:00:00.250Z"}, "Carillon-Attempt": {"3"},
	}
	for _, atOnce := range []int{64, 256, 1024} {
		b.Run(fmt.Sprintf("bare/%d", atOnce), func(b *testing.B) {
			measure(b, target, atOnce, bare(target, payload, nil))
		})
		b.Run(fmt.Sprintf("bare, headers/%d", atOnce), func(b *testing.B) {
			measure(b, target, atOnce, bare(target, payload, headers))
		})
		b.Run(fmt.Sprintf("sender/%d", atOnce), func(b *testing.B) {
			sender := webhook.New(webhook.Options{})
			defer func() { _ = sender.Close() }()
			d := delivery(dataOf(target, payload))
			measure(b, target, atOnce, func(ctx context.Context) error { return sender.Send(ctx, d) })
		})
		b.Run(fmt.Sprintf("sender, signed/%d", atOnce), func(b *testing.B) {
			sender := webhook.New(webhook.Options{})
			defer func() { _ = sender.Close() }()
			d := signedBy(b.Context(), b, delivery(dataOf(target, payload)))
			measure(b, target, atOnce, func(ctx context.Context) error { return sender.Send(ctx, d) })
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

// measure sends atOnce callbacks at a time, after the connections are open.
func measure(b *testing.B, target string, atOnce int, send func(ctx context.Context) error) {
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
	own, receivers := processorTime(), receiverTime(b, target)
	run(b.N)
	own, receivers = processorTime()-own, receiverTime(b, target)-receivers
	b.ReportMetric(float64(own)/1e3/float64(b.N), "cpu-µs/op")
	b.ReportMetric(float64(receivers)/1e3/float64(b.N), "receiver-µs/op")
	b.ReportMetric(float64(own)/float64(receivers), "ratio")
}

// receiverTime returns the processor time of the receiver.
func receiverTime(b *testing.B, target string) time.Duration {
	b.Helper()
	resp, err := http.Get(target + "/cpu")
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	var n int64
	if _, err := fmt.Fscan(resp.Body, &n); err != nil {
		b.Fatal(err)
	}
	return time.Duration(n)
}

func processorTime() time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		panic(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
