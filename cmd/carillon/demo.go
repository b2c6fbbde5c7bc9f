package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/cmd/internal/cli"
	"github.com/carillon-scheduler/carillon/cmd/internal/service"
	"github.com/carillon-scheduler/carillon/job"
)

const demoHelp = "See it work: run the whole service for some seconds on a temporary file, and print its " +
	"deliveries to a local webhook. With --ui it is filled with jobs of all kinds instead, and runs until it is " +
	"interrupted, so that you can look around in the web page."

// demoCommand shows the service at work.
type demoCommand struct{ page bool }

// Flags declares the options.
func (c *demoCommand) Flags(f *flag.FlagSet) {
	f.BoolVar(&c.page, "ui", false, "Fill the service, print the address of its web page, and run until interrupted.")
}

// demoPatience is the maximum time that the demo waits for its deliveries. All instants are within the first five
// seconds.
const demoPatience = 15 * time.Second

// demoJob is one of the jobs that the demo submits: each shows one kind of schedule.
type demoJob struct {
	key, body  string
	deliveries int
}

// delivery is a request to the demo's webhook receiver.
type delivery struct {
	id, key, instant, step, subscriber, body string

	at        time.Time
	deviation time.Duration
}

// Run runs the service and a receiver, submits the jobs, prints their deliveries and sums up. It fails if one is
// missing.
func (c *demoCommand) Run(ctx context.Context, in cli.Input) (err error) {
	dir, err := os.MkdirTemp("", "carillon-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if c.page {
		return showPage(ctx, in, dir)
	}

	deliveries := make(chan delivery)
	receiver, receiverURL, err := startReceiver(ctx, deliveries)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, receiver.Close()) }()

	stop, apiURL, err := startDemoService(ctx, "sqlite:"+filepath.Join(dir, "demo.db"), in)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()

	fmt.Fprintf(in.Stdout, "carillon serves on %s, a webhook receiver on %s\n\n", apiURL, receiverURL)
	expected := 0
	for _, j := range demoJobs(receiverURL, time.Now()) {
		if err := j.submit(ctx, apiURL, in.Stdout); err != nil {
			return err
		}
		expected += j.deliveries
	}
	return watch(ctx, deliveries, expected, in.Stdout)
}

// startReceiver starts a web server that records its requests.
func startReceiver(ctx context.Context, deliveries chan<- delivery) (*http.Server, string, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, "", err
	}
	server := &http.Server{
		ReadHeaderTimeout: 10 * time.Second,
		Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			now := time.Now()
			body, _ := io.ReadAll(io.LimitReader(r.Body, 1<<20)) // a part is shown too
			h := r.Header
			d := delivery{
				id: h.Get("webhook-id"), key: h.Get("Carillon-Key"), instant: h.Get("Carillon-Timestamp"),
				step: h.Get("Carillon-Step"), subscriber: h.Get("Carillon-Subscriber"), body: string(body), at: now,
			}
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
func startDemoService(ctx context.Context, storeURL string, in cli.Input) (stop func() error, apiURL string,
	err error) {
	options, err := service.Configure(map[string]string{"store": storeURL})
	if err != nil {
		return nil, "", err
	}
	log := slog.New(slog.NewTextHandler(in.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	s, err := service.New(ctx, options, log)
	if err != nil {
		return nil, "", err
	}
	url, stop, err := s.Start(ctx, s.Run)
	return stop, url, err
}

// demoJobs returns one job of each kind, except a delay.
func demoJobs(receiverURL string, now time.Time) []demoJob {
	in := func(d time.Duration) string { return job.FormatTime(now.Add(d)) }
	instants := fmt.Sprintf(`{
  "schedules": [%q, %q, %q],
  "callback": {"type": "http", "data": {"url": %q, "payload": {"hello": "world"}}}
}`, in(1500*time.Millisecond), in(2250*time.Millisecond), in(3000*time.Millisecond), receiverURL)
	crontab := fmt.Sprintf(`{
  "crontab": "@every 1s", "startAt": %q, "endAt": %q,
  "callback": {"type": "http", "data": {"url": %q, "payload": {"backup": "now"}}}
}`, in(1750*time.Millisecond), in(4750*time.Millisecond), receiverURL)
	sequence := fmt.Sprintf(`{
  "steps": [
    {"type": "wait_certain_period", "delay_period": 2, "delay_unit": "seconds"},
    {"type": "job", "metadata": "welcome mail"},
    {"type": "wait_certain_period", "delay_period": 2, "delay_unit": "seconds"},
    {"type": "job", "metadata": "tips"}
  ],
  "subscribers": ["ada", "grace"],
  "callback": {"type": "http", "data": {"url": %q}}
}`, receiverURL)
	return []demoJob{{"instants", instants, 3}, {"crontab", crontab, 4}, {"sequence", sequence, 4}}
}

// submit submits the job like a client, and prints the request.
func (j demoJob) submit(ctx context.Context, apiURL string, w io.Writer) error {
	url := apiURL + "/v1/jobs/" + j.key
	fmt.Fprintf(w, "curl -X PUT %s -H 'Content-Type: application/json' -d '%s'\n", url, j.body)
	request, err := http.NewRequestWithContext(ctx, http.MethodPut, url, strings.NewReader(j.body))
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
		return fmt.Errorf("the job %s was not accepted: %s", j.key, response.Status)
	}
	return nil
}

// watch prints the deliveries as they arrive, and a summary.
func watch(ctx context.Context, deliveries <-chan delivery, expected int, w io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, demoPatience)
	defer cancel()
	const line = "%-12s  %-8s  %-24s  %-9s  %s%s\n"
	fmt.Fprintf(w, line, "received at", "job", "instant", "deviation", "payload", "")
	var deviations []time.Duration
	seen := map[string]bool{}
	for len(seen) < expected {
		select {
		case d := <-deliveries:
			seen[d.id] = true
			deviations = append(deviations, d.deviation)
			part := ""
			if d.step != "" {
				part = fmt.Sprintf("  step %s, for %s", d.step, d.subscriber)
			}
			fmt.Fprintf(w, line, d.at.UTC().Format("15:04:05.000"), d.key, d.instant, millis(d.deviation), d.body, part)
		case <-ctx.Done():
			return fmt.Errorf("only %d of %d deliveries came: %w", len(seen), expected, ctx.Err())
		}
	}
	slices.Sort(deviations)
	fmt.Fprintf(w, "\n%d of %d delivered; deviation median %s, largest %s\n",
		len(seen), expected, millis(deviations[len(deviations)/2]), millis(deviations[len(deviations)-1]))
	return nil
}

func millis(d time.Duration) string {
	return fmt.Sprintf("%.2f ms", float64(d)/float64(time.Millisecond))
}
