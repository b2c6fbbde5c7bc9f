package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"time"
)

// carillonSubject is Carillon. Its worker is a replica with all defaults; its jobs are submitted over HTTP.
type carillonSubject struct {
	place    *place
	program  string
	listen   string
	receiver string
}

func newCarillon(ctx context.Context, o *options, store string) (*carillonSubject, error) {
	c := &comparison{options: *o}
	p, err := c.openPlace(ctx, store)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0") // a free port
	if err != nil {
		return nil, err
	}
	return &carillonSubject{place: p, program: o.service, listen: l.Addr().String()}, l.Close()
}

func (c *carillonSubject) prepare(ctx context.Context, force bool) error {
	return c.place.take(ctx, force)
}

func (c *carillonSubject) remove(ctx context.Context) error {
	return errors.Join(c.place.take(ctx, true), c.place.close())
}

func (c *carillonSubject) worker(receiver string) *exec.Cmd {
	c.receiver = receiver
	cmd := exec.Command(c.program, "serve", "--store="+c.place.url, "--listen="+c.listen, "--log-level=error")
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME")}
	return cmd
}

// insert waits until the replica answers, and submits a job for each payload, in one batch.
func (c *carillonSubject) insert(ctx context.Context, w *work) error {
	var lines bytes.Buffer
	for i := range w.count {
		fmt.Fprintf(&lines, `{"key":"%d","schedules":[%q],"callback":{"type":"http","data":{"url":%q,"payload":%s}}}`+"\n",
			i, w.instant(i).UTC().Format(time.RFC3339Nano), c.receiver, w.data(i))
	}
	return await(ctx, time.Minute, func() bool {
		body, status, err := c.call(ctx, http.MethodPost, "/v1/jobs/batch", lines.Bytes())
		return err == nil && status == http.StatusOK && bytes.Count(body, []byte(`"status":201`)) == w.count
	})
}

func (c *carillonSubject) cancel(ctx context.Context, _ *work, i int) (string, error) {
	body, status, err := c.call(ctx, http.MethodDelete, fmt.Sprintf("/v1/jobs/%d", i), nil)
	if err != nil || status != http.StatusOK {
		return "", errors.Join(err, fmt.Errorf("DELETE answers %d: %s", status, body))
	}
	var answer struct {
		Cancelled int `json:"cancelled"`
		InFlight  int `json:"inFlight"`
	}
	err = json.Unmarshal(body, &answer)
	return fmt.Sprintf("cancelled %d, in flight %d", answer.Cancelled, answer.InFlight), err
}

// next runs the command "carillon next".
func (c *carillonSubject) next(ctx context.Context, from, to time.Time) (instants []time.Time, err error) {
	out, err := exec.CommandContext(ctx, c.program, "next", nightly, "--timezone="+nightlyZone,
		"--start-at="+from.Format(time.RFC3339), "--count=5").Output()
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(out)) {
		if t, err := time.Parse(time.RFC3339, strings.Fields(line)[0]); err == nil && t.Before(to) {
			instants = append(instants, t)
		}
	}
	return instants, nil
}

// call calls the API.
func (c *carillonSubject) call(ctx context.Context, method, path string, body []byte) ([]byte, int, error) {
	r, err := http.NewRequestWithContext(ctx, method, "http://"+c.listen+path, bytes.NewReader(body))
	if err != nil {
		return nil, 0, err
	}
	r.Header.Set("Content-Type", "application/x-ndjson")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, 0, err
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	return b, answer.StatusCode, err
}
