package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"
)

// Browse measures how much viewers of the web page slow down a drain: it drains the same backlog without and with them,
// in turns.
type Browse struct {
	// Count is the number of occurrences of each drain.
	Count int
	// Viewers is the number of people with the page open.
	Viewers int
}

// Run implements [Mode].
func (m Browse) Run(ctx context.Context, b *Bench) (err error) {
	// The viewers' process runs from the beginning, so that no drain pays for its start.
	looking, err := b.startPart(ctx, clientRole, b.security.token, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, looking.stop()) }()
	drains := []struct {
		text        string
		how         Drain
		rates, cost []float64
	}{
		{text: "nobody looks", how: Drain{Count: m.Count, Replicas: 1}},
		{
			text: fmt.Sprintf("%d look", m.Viewers),
			how: Drain{Count: m.Count, Replicas: 1, look: func(ctx context.Context, at string) (func() (Browsed, error), error) {
				return looking.browse(ctx, Browsing{URL: at, Viewers: m.Viewers})
			}},
		},
	}
	var requests, refused, p50, p99, forecasts []float64
	for round := range b.Rounds {
		for i := range drains {
			d := &drains[(i+round)%len(drains)] // the order alternates, so a drift of the machine affects both
			done, err := d.how.drainOnce(ctx, b, len(drains)*round+i)
			if err != nil {
				return err
			}
			b.progress("round %d: %s, %.0f/s, %.1f µs of the replica's processor time each",
				round+1, d.text, done.rate, done.cost)
			d.rates, d.cost = append(d.rates, done.rate), append(d.cost, done.cost)
			if d.how.look == nil {
				continue
			}
			took := done.browsed.Latencies
			slices.Sort(took)
			requests, refused = append(requests, float64(len(took))), append(refused, float64(done.browsed.Refused))
			p50 = append(p50, float64(quantile(took, 0.5))/1000)
			p99 = append(p99, float64(quantile(took, 0.99))/1000)
			forecasts = append(forecasts, done.browsed.Forecast.Seconds())
		}
	}
	without, with := drains[0], drains[1]
	b.figure("drained while people look", "1/s", with.rates, without.rates, ratioOf(0.98))
	b.figure("  the replica's processor time", "µs each", with.cost, without.cost, nil)
	b.figure("  requests meanwhile", "", requests, nil, nil)
	b.figure("  answered 503", "", refused, nil, nil)
	b.figure("  their latency p50", "ms", p50, nil, nil)
	b.figure("  their latency p99", "ms", p99, nil, nil)
	b.figure("a forecast afterwards", "s", forecasts, nil, nil)
	b.note("raw: the same drain while nobody looks. Each of the %d viewers has the overview open, the screen that asks "+
		"most, and asks what it asks, as often, but for the forecast. The page asks for that after 100 times as long as the "+
		"last one took (but each half an hour at least), so it takes about 1 %% of one core.", m.Viewers)
	return nil
}

// overview lists the requests of the page's overview and their intervals, without the forecast (ui/src/overview.tsx).
var overview = []struct {
	path  string
	every time.Duration
}{
	{"/v1/backlog", 5 * time.Second},
	{"/v1/status", 5 * time.Second},
	{"/readyz", 5 * time.Second},
	{"/v1/history?outcome=failed&limit=10", 15 * time.Second},
}

const forecastPath = "/v1/forecast"

// Browsing are the parameters of browsing.
type Browsing struct {
	URL     string `json:"url"` // of the service
	Viewers int    `json:"viewers"`
}

// Browsed is the result of browsing.
type Browsed struct {
	// Latencies are the latencies of the requests, in microseconds.
	Latencies []int64 `json:"latencies"`
	// Refused is the number of requests answered with 503.
	Refused int `json:"refused"`
	// Forecast is the time that a forecast took afterwards.
	Forecast time.Duration `json:"forecast"`
}

// browser makes the viewers' requests until it is stopped.
type browser struct {
	address string
	stop    context.CancelFunc
	all     sync.WaitGroup
	lock    sync.Mutex // of the fields below
	done    Browsed
	fault   error
}

// browse starts the viewers. Each opens the page at a different time.
func (c *client) browse(b Browsing) {
	ctx, stop := context.WithCancel(context.Background())
	c.browser = &browser{address: b.URL, stop: stop}
	for i := range b.Viewers {
		opened := time.Duration(i) * overview[0].every / time.Duration(b.Viewers)
		for _, part := range overview {
			c.browser.all.Go(func() {
				for wait := opened; ; wait = part.every {
					select {
					case <-ctx.Done():
						return
					case <-time.After(wait):
					}
					began := time.Now()
					status, err := c.look(ctx, b.URL, part.path)
					if ctx.Err() != nil {
						return
					}
					c.browser.note(time.Since(began), status, err)
				}
			})
		}
	}
}

func (b *browser) note(took time.Duration, status int, err error) {
	b.lock.Lock()
	defer b.lock.Unlock()
	b.done.Latencies = append(b.done.Latencies, took.Microseconds())
	if status == http.StatusServiceUnavailable {
		b.done.Refused++
	}
	b.fault = errors.Join(b.fault, err)
}

// endBrowsing stops the viewers, waits for a forecast, and returns the result.
func (c *client) endBrowsing(ctx context.Context) (Browsed, error) {
	b := c.browser
	b.stop()
	b.all.Wait()
	began, fault := time.Now(), b.fault
	for {
		status, err := c.look(ctx, b.address, forecastPath)
		if status != http.StatusServiceUnavailable { // 503: the service is still reading the definitions
			b.done.Forecast = time.Since(began)
			return b.done, errors.Join(fault, err)
		}
		select {
		case <-ctx.Done():
			return b.done, ctx.Err()
		case <-time.After(time.Second):
		}
	}
}

// look makes one request of the page and reads the answer. A status other than 200 and 503 is an error.
func (c *client) look(ctx context.Context, base, path string) (status int, err error) {
	at, err := url.Parse(base)
	if err != nil {
		return 0, err
	}
	if at, err = at.Parse(path); err != nil {
		return 0, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return 0, err
	}
	if c.token != "" {
		request.Header.Set("Authorization", "Bearer "+c.token)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return 0, err
	}
	defer func() { _ = response.Body.Close() }()
	if _, err = io.Copy(io.Discard, response.Body); err != nil {
		return 0, err
	}
	if status = response.StatusCode; status != http.StatusOK && status != http.StatusServiceUnavailable {
		err = fmt.Errorf("%s was answered %s", path, response.Status)
	}
	return status, err
}

// browse starts viewers of a replica. The function that it returns stops them.
func (p *part) browse(ctx context.Context, b Browsing) (end func() (Browsed, error), err error) {
	if err := p.call(ctx, "browse", b, nil); err != nil {
		return nil, err
	}
	return func() (done Browsed, err error) {
		err = p.call(ctx, "browsed", nil, &done)
		return done, err
	}, nil
}

// browseCalls handles the client's calls that start and end browsing.
func (c *client) browseCalls(ctx context.Context, do string, with json.RawMessage) (any, error) {
	switch {
	case do == "browse":
		var b Browsing
		if err := json.Unmarshal(with, &b); err != nil {
			return nil, err
		}
		c.browse(b)
		return nil, nil
	case do == "browsed" && c.browser != nil:
		return c.endBrowsing(ctx)
	default:
		return nil, fmt.Errorf("can't %q", do)
	}
}
