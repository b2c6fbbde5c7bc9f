package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/carillon-scheduler/carillon/job"
)

// demoCommand shows the service at work.
type demoCommand struct{}

// The demo's job has instants this far apart.
const (
	demoInstants = 6
	demoFirst    = 1500 * time.Millisecond
	demoApart    = 750 * time.Millisecond
	demoPatience = 15 * time.Second
)

// delivery is what the demo's webhook receiver got.
type delivery struct {
	key, instant, attempt, body string
	at                          time.Time
	deviation                   time.Duration
}

// Run runs the service and a receiver, submits one job, prints its deliveries and sums up. It fails if one is missing.
func (c *demoCommand) Run(ctx context.Context, out output) (err error) {
	dir, err := os.MkdirTemp("", "carillon-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	deliveries := make(chan delivery, demoInstants)
	receiver, receiverURL, err := startReceiver(ctx, deliveries)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, receiver.Close()) }()

	stop, apiURL, err := startDemoService(ctx, "sqlite:"+filepath.Join(dir, "demo.db"), out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()

	fmt.Fprintf(out.stdout, "carillon serves on %s, a webhook receiver on %s\n\n", apiURL, receiverURL)
	if err := submitDemoJob(ctx, apiURL, receiverURL, out.stdout); err != nil {
		return err
	}
	return watch(ctx, deliveries, out.stdout)
}

// startReceiver starts a web server that notes what it is sent.
func startReceiver(ctx context.Context, deliveries chan<- delivery) (*http.Server, string, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, "", err
	}
	server := &http.Server{
		ReadHeaderTimeout: 10 * time.Second,
		Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			now := time.Now()
			body, _ := io.ReadAll(io.LimitReader(r.Body, 1<<20)) // what could be read is shown
			h := r.Header
			d := delivery{key: h.Get("Carillon-Key"), instant: h.Get("Carillon-Timestamp"), attempt: h.Get("Carillon-Attempt"), body: string(body), at: now}
			if instant, err := time.Parse(time.RFC3339, d.instant); err == nil {
				d.deviation = now.Sub(instant)
			}
			select {
			case deliveries <- d:
			case <-r.Context().Done():
			}
		}),
	}
	go func() { _ = server.Serve(listener) }() // ends when it is closed
	return server, "http://" + listener.Addr().String() + "/hook", nil
}

// startDemoService starts a replica with the options' defaults on a store of its own.
func startDemoService(ctx context.Context, storeURL string, out output) (stop func() error, apiURL string, err error) {
	options, err := defaultOptions()
	if err != nil {
		return nil, "", err
	}
	options.Store = storeURL
	s, err := newService(ctx, options, logOptions{LogLevel: 4}.logger(out.stderr)) // warnings
	if err != nil {
		return nil, "", err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, "", errors.Join(err, s.close())
	}
	running, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- s.run(running, listener) }()
	return func() error { cancel(); return <-done }, "http://" + listener.Addr().String(), nil
}

// submitDemoJob submits the job as a client does, and prints how.
func submitDemoJob(ctx context.Context, apiURL, receiverURL string, w io.Writer) error {
	schedules := ""
	first := time.Now().Add(demoFirst).Truncate(time.Millisecond)
	for i := range demoInstants {
		if i > 0 {
			schedules += ", "
		}
		schedules += `"` + job.FormatTime(first.Add(time.Duration(i)*demoApart)) + `"`
	}
	body := fmt.Sprintf(`{
  "schedules": [%s],
  "callback": {"type": "http", "data": {"url": %q, "payload": {"hello": "world"}}}
}`, schedules, receiverURL)
	fmt.Fprintf(w, "curl -X PUT %s/v1/jobs/demo -H 'Content-Type: application/json' -d '%s'\n", apiURL, body)

	request, err := http.NewRequestWithContext(ctx, http.MethodPut, apiURL+"/v1/jobs/demo", bytes.NewReader([]byte(body)))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "-> %s %s\n\n", response.Status, bytes.TrimSpace(answer))
	if response.StatusCode != http.StatusCreated {
		return fmt.Errorf("the demo job was not accepted: %s", response.Status)
	}
	return nil
}

// watch prints the deliveries as they come, and sums up.
func watch(ctx context.Context, deliveries <-chan delivery, w io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, demoPatience)
	defer cancel()
	fmt.Fprintf(w, "%-14s %-26s %-10s %-8s %s\n", "received at", "instant", "deviation", "attempt", "payload")
	var deviations []time.Duration
	for len(deviations) < demoInstants {
		select {
		case d := <-deliveries:
			deviations = append(deviations, d.deviation)
			fmt.Fprintf(w, "%-14s %-26s %-10s %-8s %s\n", d.at.UTC().Format("15:04:05.000"), d.instant, millis(d.deviation), d.attempt, d.body)
		case <-ctx.Done():
			return fmt.Errorf("only %d of %d deliveries came: %w", len(deviations), demoInstants, ctx.Err())
		}
	}
	slices.Sort(deviations)
	fmt.Fprintf(w, "\n%d of %d delivered; deviation median %s, largest %s\n",
		len(deviations), demoInstants, millis(deviations[len(deviations)/2]), millis(deviations[len(deviations)-1]))
	return nil
}

func millis(d time.Duration) string {
	return fmt.Sprintf("%.2f ms", float64(d)/float64(time.Millisecond))
}
