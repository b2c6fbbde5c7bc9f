package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"
)

const clientRole = "client"

// client is the part that submits jobs or browses the web page.
type client struct {
	http    *http.Client
	token   string   // for each request; empty if the API requires none
	browser *browser // nil unless the client browses
}

// Submission describes the jobs to submit and how to submit them.
type Submission struct {
	URL  string `json:"url"` // of the service
	Work Work   `json:"work"`
	// Batch is the number of jobs in a batch; zero submits each job by itself.
	Batch int `json:"batch"`
	// Connections is the number of concurrent requests.
	Connections int `json:"connections"`
	// Rate is the number of jobs to submit in a second; zero is as many as possible.
	Rate float64 `json:"rate"`
}

// Submitted is the result of a submission.
type Submitted struct {
	Accepted int           `json:"accepted"`
	Took     time.Duration `json:"took"`
	// Latencies are the latencies of the requests, in microseconds.
	Latencies []int64 `json:"latencies"`
}

func (c *client) do(ctx context.Context, do string, with json.RawMessage) (any, error) {
	switch do {
	case "begin":
		c.http = &http.Client{Transport: &http.Transport{MaxIdleConns: 4096, MaxIdleConnsPerHost: 4096,
			DisableCompression: true}}
		return nil, json.Unmarshal(with, &c.token)
	case "submit":
		var s Submission
		if err := json.Unmarshal(with, &s); err != nil {
			return nil, err
		}
		return c.submit(ctx, &s)
	default:
		return c.browseCalls(ctx, do, with)
	}
}

func (c *client) close() error {
	if c.http != nil {
		c.http.CloseIdleConnections()
	}
	return nil
}

// submit submits all jobs, and stops at the first that is not accepted.
func (c *client) submit(ctx context.Context, s *Submission) (Submitted, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	size := max(s.Batch, 1)
	var next atomic.Int64
	next.Store(int64(s.Work.From))
	end := s.Work.From + s.Work.Count
	var lock sync.Mutex
	var done Submitted
	start := time.Now()
	var all sync.WaitGroup
	for range s.Connections {
		all.Go(func() {
			var body []byte
			for ctx.Err() == nil {
				from := int(next.Add(int64(size))) - size
				to := min(from+size, end)
				if from >= to {
					return
				}
				if s.Rate > 0 {
					due := start.Add(time.Duration(float64(from-s.Work.From) / s.Rate * float64(time.Second)))
					select {
					case <-time.After(time.Until(due)):
					case <-ctx.Done():
						return
					}
				}
				body = body[:0]
				for i := from; i < to; i++ {
					body = append(s.Work.appendJob(body, i), '\n')
				}
				sent := time.Now()
				if err := c.post(ctx, s, body, to-from); err != nil {
					cancel(err)
					return
				}
				took := time.Since(sent).Microseconds()
				lock.Lock()
				done.Accepted += to - from
				done.Latencies = append(done.Latencies, took)
				lock.Unlock()
			}
		})
	}
	all.Wait()
	done.Took = time.Since(start)
	return done, context.Cause(ctx)
}

// post sends one request and reads its whole answer.
func (c *client) post(ctx context.Context, s *Submission, body []byte, jobs int) error {
	path, kind := "/v1/jobs", "application/json"
	if s.Batch > 0 {
		path, kind = "/v1/jobs/batch", "application/x-ndjson"
	}
	target, err := url.JoinPath(s.URL, path)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, target, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", kind)
	if c.token != "" {
		request.Header.Set("Authorization", "Bearer "+c.token)
	}
	if s.Work.Tenant != "" {
		request.Header.Set("Carillon-Tenant", s.Work.Tenant)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if s.Batch == 0 {
		if response.StatusCode != http.StatusCreated && response.StatusCode != http.StatusOK {
			answer, _ := io.ReadAll(io.LimitReader(response.Body, 2000)) // a part of it is enough
			return fmt.Errorf("a job was answered %s: %s", response.Status, answer)
		}
		_, err = io.Copy(io.Discard, response.Body)
		return err
	}
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if n := bytes.Count(answer, []byte(`"status":201`)); n != jobs {
		return errors.New("a batch was not accepted: " + string(answer[:min(len(answer), 500)]))
	}
	return nil
}
