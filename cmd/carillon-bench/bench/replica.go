package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/cmd/internal/service"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// ReplicaOptions are the options of a replica.
type ReplicaOptions struct {
	Store        string   `json:"store"`
	RabbitmqURL  string   `json:"rabbitmqUrl"`
	KafkaBrokers []string `json:"kafkaBrokers"`
	Concurrency  int      `json:"concurrency"`
	// Settings are further options of the service by name.
	Settings map[string]string `json:"settings"`
	// Idle makes it accept submissions and fire nothing.
	Idle bool `json:"idle"`
	// Profile is the file for a CPU profile; empty for none.
	Profile string `json:"profile"`
	// Sparse makes it keep no samples.
	Sparse bool `json:"sparse"`
	// Firings makes it keep the time of each firing, by the prefix of the job's key.
	Firings bool `json:"firings"`
}

// Stats counts a replica's operations since it began, or since the last reset.
type Stats struct {
	Fired  int `json:"fired"` // attempts, of which Failed did not succeed
	Failed int `json:"failed"`
	Acked  int `json:"acked"` // settled as delivered
	// Begun is the time of its first claim and Ended that of its last settlement; Unix nanoseconds.
	Begun int64 `json:"begun"`
	Ended int64 `json:"ended"`
	// Put counts the jobs that were put, PutBegun is the time of the first call and PutEnded that of the last one's end;
	// Unix nanoseconds.
	Put      int   `json:"put"`
	PutBegun int64 `json:"putBegun"`
	PutEnded int64 `json:"putEnded"`
	// Claims counts the claims that found an occurrence, and Empty the others.
	Claims int `json:"claims"`
	Empty  int `json:"empty"`
	// Calls counts calls to the store.
	Calls int `json:"calls"`
	// CPU is the process's time of all cores since the replica began. Memory and Peak are its bytes of memory.
	CPU    time.Duration `json:"cpu"`
	Memory int64         `json:"memory"`
	Peak   int64         `json:"peak"`
}

// Samples are single observations, in microseconds.
type Samples struct {
	Deviations []int64 `json:"deviations"` // of first attempts, from the instant to the moment of sending
	Claims     []int64 `json:"claims"`     // durations of claims that were not empty
	Claimed    []int64 `json:"claimed"`    // numbers of occurrences in these claims
	Peeks      []int64 `json:"peeks"`      // durations of calls of DueLanes
	Settles    []int64 `json:"settles"`
	Last       int64   `json:"last"` // the beginning of the last attempt, in Unix nanoseconds
}

// Firings are first attempts at the occurrences of one work, in microseconds.
type Firings struct {
	At         []int64 `json:"at"` // Unix time
	Deviations []int64 `json:"deviations"`
}

const replicaRole = "replica"

// replica is the part that runs a replica.
type replica struct {
	stderr  io.Writer
	stop    func() error // of the service; nil if it has not begun
	probe   *probe
	profile *os.File
}

func (r *replica) do(ctx context.Context, do string, with json.RawMessage) (any, error) {
	switch do {
	case "begin":
		var o ReplicaOptions
		if err := json.Unmarshal(with, &o); err != nil {
			return nil, err
		}
		r.probe = &probe{sparse: o.Sparse}
		if o.Firings {
			r.probe.firings = make(map[string]Firings)
		}
		if err := r.startProfile(o.Profile); err != nil {
			return nil, err
		}
		url, err := r.start(ctx, o)
		if err != nil {
			return nil, err
		}
		r.probe.begun, _, _ = usage()
		return url, nil
	case "stats":
		return r.probe.read(), nil
	case "samples":
		return r.probe.samplesSoFar(), nil
	case "firings":
		return r.probe.firingsSoFar(), nil
	case "reset":
		r.probe.reset()
		return nil, nil
	default:
		return nil, fmt.Errorf("can't %q", do)
	}
}

// start starts a service with the default options, apart from the given ones, and returns the URL of its API. The probe
// observes its store and its senders.
func (r *replica) start(ctx context.Context, o ReplicaOptions) (url string, err error) {
	settings := map[string]string{
		"store": o.Store, "concurrency": strconv.Itoa(o.Concurrency), "rabbitmq-url": o.RabbitmqURL,
	}
	maps.Copy(settings, o.Settings)
	if len(o.KafkaBrokers) > 0 {
		settings["kafka-brokers"] = strings.Join(o.KafkaBrokers, ",")
	}
	options, err := service.Configure(settings)
	if err != nil {
		return "", err
	}
	log := slog.New(slog.NewTextHandler(r.stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	parts, err := service.Open(ctx, options, log)
	if err != nil {
		return "", err
	}
	parts.Store = &probedStore{parts.Store, r.probe}
	senders := []callbacks.Sender{&probedSender{discard{}, r.probe}}
	for _, s := range parts.Senders {
		senders = append(senders, &probedSender{s, r.probe})
	}
	parts.Senders = senders
	s, err := parts.Assemble(ctx)
	if err != nil {
		return "", err
	}
	run := s.Run
	if o.Idle {
		run = s.Serve
	}
	url, r.stop, err = s.Start(ctx, run)
	return url, err
}

func (r *replica) startProfile(path string) (err error) {
	if path == "" {
		return nil
	}
	if r.profile, err = os.Create(path); err != nil {
		return err
	}
	return pprof.StartCPUProfile(r.profile)
}

func (r *replica) close() error {
	var err error
	if r.stop != nil {
		err = r.stop()
	}
	if r.profile != nil {
		pprof.StopCPUProfile()
		err = errors.Join(err, r.profile.Close())
	}
	return err
}

// probe counts and times a replica's operations.
type probe struct {
	sparse  bool
	begun   time.Duration // CPU time that the start took
	lock    sync.Mutex
	stats   Stats
	samples Samples
	firings map[string]Firings // by the works' prefixes; nil if they are not recorded
}

func (p *probe) read() Stats {
	p.lock.Lock()
	defer p.lock.Unlock()
	s := p.stats
	s.CPU, s.Memory, s.Peak = usage()
	s.CPU -= p.begun
	return s
}

func (p *probe) samplesSoFar() Samples {
	p.lock.Lock()
	defer p.lock.Unlock()
	return p.samples // later samples are appended behind this slice
}

func (p *probe) firingsSoFar() map[string]Firings {
	p.lock.Lock()
	defer p.lock.Unlock()
	return maps.Clone(p.firings) // later firings are appended behind these slices
}

func (p *probe) reset() {
	p.lock.Lock()
	defer p.lock.Unlock()
	p.stats, p.samples = Stats{}, Samples{}
}

// called records a call to the store.
func (p *probe) called(note func(s *Stats, samples *Samples)) {
	p.lock.Lock()
	defer p.lock.Unlock()
	p.stats.Calls++
	if note != nil {
		note(&p.stats, &p.samples)
	}
}

// probedStore records the calls of a replica's loops to its store, and the jobs that are put.
type probedStore struct {
	store.Store
	probe *probe
}

func (s *probedStore) Claim(ctx context.Context, params store.ClaimParams) (store.Claim, error) {
	start := time.Now()
	claim, err := s.Store.Claim(ctx, params)
	took := time.Since(start)
	s.probe.called(func(stats *Stats, samples *Samples) {
		if n := len(claim.Occurrences); n > 0 {
			stats.Claims++
			if stats.Begun == 0 {
				stats.Begun = start.UnixNano()
			}
			if !s.probe.sparse {
				samples.Claims = append(samples.Claims, took.Microseconds())
				samples.Claimed = append(samples.Claimed, int64(n))
			}
		} else {
			stats.Empty++
		}
	})
	return claim, err
}

func (s *probedStore) Put(ctx context.Context, puts []store.Put) []store.PutResult {
	start := time.Now()
	results := s.Store.Put(ctx, puts)
	end := time.Now()
	s.probe.lock.Lock()
	defer s.probe.lock.Unlock()
	stats := &s.probe.stats
	if stats.PutBegun == 0 {
		stats.PutBegun = start.UnixNano()
	}
	stats.PutEnded = end.UnixNano()
	for i := range results {
		if results[i].Err == nil {
			stats.Put++
		}
	}
	return results
}

func (s *probedStore) DueLanes(ctx context.Context, params store.DueParams) (store.DuePage, error) {
	start := time.Now()
	page, err := s.Store.DueLanes(ctx, params)
	took := time.Since(start)
	s.probe.called(func(_ *Stats, samples *Samples) {
		if !s.probe.sparse {
			samples.Peeks = append(samples.Peeks, took.Microseconds())
		}
	})
	return page, err
}

func (s *probedStore) Count(ctx context.Context, now time.Time, lanes []job.Lane, limit int) ([]store.Count, error) {
	s.probe.called(nil)
	return s.Store.Count(ctx, now, lanes, limit)
}

func (s *probedStore) Records(ctx context.Context, filter store.RecordFilter) ([]store.Record, error) {
	s.probe.called(nil)
	return s.Store.Records(ctx, filter)
}

func (s *probedStore) WriteRecords(ctx context.Context, changes []store.RecordChange) []error {
	s.probe.called(nil)
	return s.Store.WriteRecords(ctx, changes)
}

func (s *probedStore) Settle(ctx context.Context, settlements []store.Settlement) error {
	start := time.Now()
	err := s.Store.Settle(ctx, settlements)
	end := time.Now()
	s.probe.called(func(stats *Stats, samples *Samples) {
		if err != nil {
			return
		}
		stats.Ended = end.UnixNano()
		for i := range settlements {
			if settlements[i].Outcome == store.Ack {
				stats.Acked++
			}
		}
		if !s.probe.sparse {
			samples.Settles = append(samples.Settles, end.Sub(start).Microseconds())
		}
	})
	return err
}

func (s *probedStore) ClaimJobs(ctx context.Context, params store.ClaimJobsParams) (store.ClaimedJobs, error) {
	s.probe.called(nil)
	return s.Store.ClaimJobs(ctx, params)
}

func (s *probedStore) Advance(ctx context.Context, advances []store.Advance) error {
	s.probe.called(nil)
	return s.Store.Advance(ctx, advances)
}

func (s *probedStore) Sweep(ctx context.Context, params store.SweepParams) (store.Swept, error) {
	s.probe.called(nil)
	return s.Store.Sweep(ctx, params)
}

func (s *probedStore) Now(ctx context.Context) (time.Time, error) {
	s.probe.called(nil)
	return s.Store.Now(ctx)
}

// probedSender records a sender's attempts.
type probedSender struct {
	callbacks.Sender
	probe *probe
}

func (s *probedSender) Send(ctx context.Context, d callbacks.Delivery) error {
	at := time.Now()
	deviation := at.Sub(d.Timestamp)
	err := s.Sender.Send(ctx, d)
	p := s.probe
	p.lock.Lock()
	defer p.lock.Unlock()
	p.stats.Fired++
	if err != nil {
		p.stats.Failed++
	}
	p.samples.Last = max(p.samples.Last, at.UnixNano())
	if d.Attempt == 1 && !p.sparse {
		p.samples.Deviations = append(p.samples.Deviations, floorMicros(deviation))
	}
	if d.Attempt == 1 && p.firings != nil {
		work := prefixOf(d.Name.Key)
		f := p.firings[work]
		p.firings[work] = Firings{append(f.At, at.UnixMicro()), append(f.Deviations, floorMicros(deviation))}
	}
	return err
}

// floorMicros rounds down, so that a nanosecond early counts as early.
func floorMicros(d time.Duration) int64 {
	us := d.Microseconds()
	if d < 0 && d%time.Microsecond != 0 {
		us--
	}
	return us
}

// Envelopes implements [callbacks.Enveloper].
func (s *probedSender) Envelopes() []job.Envelope {
	if e, ok := s.Sender.(callbacks.Enveloper); ok {
		return e.Envelopes()
	}
	return nil
}

// discard is a sender that does nothing.
type discard struct{}

func (discard) Type() string                                   { return DiscardType }
func (discard) Validate([]byte) error                          { return nil }
func (discard) Destination([]byte) string                      { return "nowhere" }
func (discard) Send(context.Context, callbacks.Delivery) error { return nil }
