package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/carillon-scheduler/carillon/job"
)

// Feed submits a realistic mixture of jobs for a while, so that dashboards have something to show: lists of instants,
// crontabs and sequences. Some are replaced or cancelled, and some deliveries fail.
type Feed struct {
	// URL is the API of a service. If it is empty, Feed starts a replica and reports the address of its metrics.
	URL string
	// Rate is the number of jobs submitted in a second. Each fires a few times within the next minutes.
	Rate     float64
	Duration time.Duration
}

// Run implements [Mode].
func (s Feed) Run(ctx context.Context, b *Bench) error {
	var receiver string
	r, err := b.startPart(ctx, receiverRole, ReceiverOptions{Track: true, Refuse: 0.01}, &receiver)
	if err != nil {
		return err
	}
	if s.URL == "" {
		if _, s.URL, err = b.startReplica(ctx, ReplicaOptions{Sparse: true}); err != nil {
			return err
		}
	}
	f := feeder{api: s.URL, receiver: receiver, prefix: b.work(0, 0).Prefix}
	b.progress("feeding %s until it is told to stop, or for %s; metrics are at %s/metrics", s.URL, s.Duration, s.URL)
	ctx, cancel := context.WithTimeout(ctx, s.Duration)
	defer cancel()
	start, told := time.Now(), time.Now()
	for n := 0; ; n++ {
		err := sleep(ctx, time.Until(start.Add(time.Duration(float64(n)/s.Rate*float64(time.Second)))))
		if err == nil {
			err = f.submit(ctx, n)
		}
		if ctx.Err() != nil {
			break
		}
		if err != nil { // for example, a replica restarts: Feed continues
			b.progress("%v", err)
		}
		if time.Since(told) > 10*time.Second {
			told = time.Now()
			b.progress("%d jobs submitted", f.submitted)
		}
	}
	var got Received
	cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	err = errors.Join(f.cancelAll(cleanup), r.call(cleanup, "received", nil, &got))
	b.figure("submitted", "jobs", []float64{float64(f.submitted)}, nil, nil)
	b.figure("delivered", "occurrences", []float64{float64(got.Deliveries)}, nil, nil)
	return err
}

// feeder submits jobs.
type feeder struct {
	api, receiver, prefix string
	submitted             int
}

// submit submits the n-th job, or replaces or cancels an earlier one.
func (f *feeder) submit(ctx context.Context, n int) error {
	kind := rand.IntN(20)
	key := f.prefix + strconv.Itoa(n)
	if n > 0 && kind < 2 { // one in ten
		key = f.prefix + strconv.Itoa(rand.IntN(n))
	}
	if kind == 1 {
		return f.request(ctx, http.MethodDelete, "/v1/jobs/"+key, nil)
	}
	f.submitted++
	return f.request(ctx, http.MethodPut, "/v1/jobs/"+key, []byte(f.job(kind)))
}

// job returns the body of a job: most are lists, some are sequences, a few are crontabs.
func (f *feeder) job(kind int) string {
	in := func(most time.Duration) string {
		return job.FormatTime(time.Now().Add(time.Second + rand.N(most)))
	}
	callback := fmt.Sprintf(`"callback":{"type":"http","data":{"url":%q,"payload":{"fed":true}}}`, f.receiver)
	switch {
	case kind < 3:
		return fmt.Sprintf(`{"crontab":"@every %ds","endAt":%q,%s}`, 1+rand.IntN(10), in(5*time.Minute), callback)
	case kind < 7:
		return fmt.Sprintf(`{"steps":[{"type":"wait_certain_period","delay_period":%d,"delay_unit":"seconds"},
			{"type":"job","metadata":"one"},
			{"type":"wait_certain_period","delay_period":%d,"delay_unit":"seconds"},{"type":"job","metadata":"two"}],
			"subscribers":["ada","grace","edsger"],%s}`, 1+rand.IntN(30), 1+rand.IntN(60), callback)
	default:
		return fmt.Sprintf(`{"schedules":[%q,%q,%q],%s}`, in(10*time.Second), in(time.Minute), in(3*time.Minute), callback)
	}
}

func (f *feeder) request(ctx context.Context, method, path string, body []byte) error {
	request, err := http.NewRequestWithContext(ctx, method, f.api+path, bytes.NewReader(body))
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
	if err == nil && response.StatusCode >= 300 && response.StatusCode != http.StatusNotFound {
		err = fmt.Errorf("%s %s was answered %s: %s", method, path, response.Status, answer[:min(len(answer), 500)])
	}
	return err
}

// cancelAll cancels all submitted jobs through the API, since the service may use another store.
func (f *feeder) cancelAll(ctx context.Context) error {
	return f.request(ctx, http.MethodDelete, "/v1/jobs?prefix="+url.QueryEscape(f.prefix), nil)
}
