package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/callbacks/kafka"
	"github.com/carillon-scheduler/carillon/callbacks/rabbitmq"
	"github.com/carillon-scheduler/carillon/callbacks/webhook"
	"github.com/carillon-scheduler/carillon/dispatcher"
	"github.com/carillon-scheduler/carillon/handlers"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/bounded"
	"github.com/carillon-scheduler/carillon/store/clock"
	"github.com/carillon-scheduler/carillon/store/groupcommit"
	"github.com/carillon-scheduler/carillon/store/instrumented"
	"github.com/carillon-scheduler/carillon/store/mongodb"
	"github.com/carillon-scheduler/carillon/store/postgres"
	"github.com/carillon-scheduler/carillon/store/redis"
	"github.com/carillon-scheduler/carillon/store/replicas"
	"github.com/carillon-scheduler/carillon/store/sqlite"
)

// service is one replica, wired together.
type service struct {
	dispatcher *dispatcher.Dispatcher
	server     *http.Server
	log        *slog.Logger
	shutdown   time.Duration
	closers    []io.Closer // in the order of opening
}

// probes are put between a service and what it uses. Nil ones are not.
type probes struct {
	store   func(store.Store) store.Store
	senders func([]callbacks.Sender) []callbacks.Sender
}

// newService opens the store and the senders, and wires them to the dispatcher and the API.
func newService(ctx context.Context, o serviceOptions, log *slog.Logger, p probes) (*service, error) {
	s := &service{log: log, shutdown: o.ShutdownTimeout.std()}
	// What only needs the options comes first, so that a mistake there shows before anything is opened.
	cfg := o.dispatcherConfig(log)
	if err := cfg.Validate(); err != nil {
		return nil, usageError{fmt.Errorf("--%w", err)} // it begins with the option's name
	}
	if err := o.check(); err != nil {
		return nil, usageError{err}
	}
	traces := newTracing(ctx, min(s.shutdown, tracesPatience), log)
	if traces != nil {
		s.closers = append(s.closers, traces) // first, and so closed last: by then all spans have ended
	}
	senders, err := s.openSenders(o, log)
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	jobs, err := awaitStore(ctx, o.Store, o.StoreWait.std(), log)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("--store: %w", err), s.close())
	}
	s.closers = append(s.closers, jobs)
	warnings := warningsOf(jobs)
	for _, w := range warnings(ctx) {
		log.Warn("the store works, but is not set up as it should be", "warning", w)
	}
	if p.store != nil {
		jobs = p.store(jobs)
	}
	if p.senders != nil {
		senders = p.senders(senders)
	}
	registry := newRegistry()
	theirs := &clock.Clock{}
	jobs = theirs.Watch(instrumented.New(jobs, registry))
	_, _ = jobs.Now(ctx) // so that the clock is known before the first request; the dispatcher asks again and again
	cfg.Store, cfg.Callbacks = jobs, callbacks.NewRegistry(senders...)
	cfg.Registerer, cfg.Traces = registry, traces.spans()
	if s.dispatcher, err = dispatcher.New(cfg); err != nil {
		return nil, errors.Join(err, s.close())
	}
	showReady(registry, s.dispatcher)
	s.server = &http.Server{
		Handler: handlers.New(handlers.Config{
			Store:        bounded.Jobs(groupcommit.New(jobs, writers(o.Store))),
			Inspector:    jobs,
			Records:      bounded.Records(jobs),
			Callbacks:    cfg.Callbacks,
			PrioritiesOf: s.dispatcher.Priorities,
			Destinations: func() []handlers.DestinationState { return destinationStates(s.dispatcher) },
			Rate:         s.dispatcher.Rate,
			Wake:         s.dispatcher.Wake,
			WakeExpander: s.dispatcher.WakeExpander,
			Ready:        func(ctx context.Context) error { return ready(ctx, s.dispatcher, jobs) },
			Warnings:     warnings,
			Replicas:     func(ctx context.Context, now time.Time) (int, error) { return replicas.Count(ctx, jobs, now) },
			Limits:       o.limits(),
			Expansion:    cfg.Expansion(),
			MaxBody:      int64(o.MaxBody),
			Retain:       o.Retain.std(),
			Early:        cfg.Early,
			Clock:        theirs,
			Version:      moduleVersion(),
			Logger:       log,
			Traces:       traces.spans(),
			Metrics:      metricsHandler(registry, log),
			Registerer:   registry,
		}),
		ConnContext:       handlers.KeepConn,
		ReadHeaderTimeout: 10 * time.Second,
		// A batch has as much for each of its parts, and what takes longer to answer has as much for its answer.
		ReadTimeout:  time.Minute,
		WriteTimeout: time.Minute,
		IdleTimeout:  2 * time.Minute,
		ErrorLog:     slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	return s, nil
}

// openSenders makes the senders of all callback types that are configured.
func (s *service) openSenders(o serviceOptions, log *slog.Logger) ([]callbacks.Sender, error) {
	hooks := webhook.New(webhook.Options{IdleConns: max(o.Concurrency, 64), UserAgent: userAgent(moduleVersion())})
	s.closers = append(s.closers, hooks)
	senders := []callbacks.Sender{hooks}
	if o.RabbitmqURL != "" {
		queues, err := rabbitmq.New(rabbitmq.Options{
			URL: o.RabbitmqURL, CAFile: o.RabbitmqCAFile, CertFile: o.RabbitmqCertFile, KeyFile: o.RabbitmqKeyFile, Logger: log,
		})
		if err != nil {
			return nil, usageError{fmt.Errorf("--rabbitmq-url: %w", err)}
		}
		s.closers = append(s.closers, queues)
		senders = append(senders, queues)
	}
	if len(o.KafkaBrokers) > 0 {
		topics, err := kafka.New(o.kafka(log))
		if err != nil {
			return nil, usageError{fmt.Errorf("--kafka-brokers: %w", err)}
		}
		s.closers = append(s.closers, topics)
		senders = append(senders, topics)
	}
	return senders, nil
}

// awaitStore opens a store, and tries again for as long as wait while it can't be reached. The last attempt may begin
// at the end of that time.
func awaitStore(ctx context.Context, rawURL string, wait time.Duration, log *slog.Logger) (store.Store, error) {
	const pause, tell = time.Second, 5 * time.Second
	end := time.Now().Add(wait)
	var told time.Time
	for {
		s, err := openStore(ctx, rawURL)
		left := time.Until(end)
		switch {
		case err == nil || !errors.Is(err, store.ErrUnavailable):
			return s, err
		case ctx.Err() != nil:
			return nil, err
		case wait == 0:
			return nil, fmt.Errorf("%w (is it there, and can it be reached from here? --store-wait=1m would keep trying for a minute)", err)
		case left <= 0:
			return nil, fmt.Errorf("%w (is it there, and can it be reached from here? it was tried for --store-wait=%s)", err, wait)
		case time.Since(told) >= tell:
			log.Warn("the store can't be reached, and is tried again", "for", left.Round(time.Second), "error", err)
			told = time.Now()
		}
		select {
		case <-ctx.Done():
		case <-time.After(min(pause, left)):
		}
	}
}

// openStore opens the store that a URL's scheme names. All that trying again can't mend is a usageError.
func openStore(ctx context.Context, rawURL string) (store.Store, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	scheme, _, _ := strings.Cut(rawURL, ":")
	switch scheme {
	case "sqlite":
		return opened(sqlite.Open(ctx, rawURL))
	case "postgres", "postgresql":
		return opened(postgres.Open(ctx, rawURL))
	case "mongodb", "mongodb+srv":
		return opened(mongodb.Open(ctx, rawURL))
	case "redis", "rediss":
		return opened(redis.Open(ctx, rawURL))
	default: // the rest of it may be a password
		return nil, usageError{fmt.Errorf("%q is no kind of store; give sqlite:FILE, postgres://HOST/DATABASE, mongodb://HOST/DATABASE "+
			"or redis://HOST", scheme)}
	}
}

// openExisting does as openStore, but makes no new file.
func openExisting(ctx context.Context, rawURL string) (store.Store, error) {
	if strings.HasPrefix(rawURL, "sqlite:") {
		return opened(sqlite.OpenExisting(ctx, rawURL))
	}
	return openStore(ctx, rawURL)
}

// writers is how many calls at once store what is submitted one by one. An SQLite file has one writer at a time. On
// servers a second fills the time in which the first waits for an answer; more make the batches smaller, and gain
// nothing.
func writers(rawURL string) int {
	if strings.HasPrefix(rawURL, "sqlite:") {
		return 1
	}
	return 2
}

// opened tells a store that can't be reached from one that can't be used as it is.
func opened[S store.Store](s S, err error) (store.Store, error) {
	switch {
	case err == nil:
		return s, nil
	case errors.Is(err, store.ErrUnavailable):
		return nil, err
	default:
		return nil, usageError{err}
	}
}

// warningsOf answers what tells in what a store is set up otherwise than it should be. Not all stores can.
func warningsOf(s store.Store) func(context.Context) []string {
	w, ok := s.(interface {
		Warnings(ctx context.Context) []string
	})
	if !ok {
		return func(context.Context) []string { return nil }
	}
	return func(ctx context.Context) []string {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		return w.Warnings(ctx)
	}
}

// redact leaves of a store's URL what may be shown: neither its password nor its options, some of which are secrets.
// Not all of these URLs are such as net/url reads.
func redact(rawURL string) string {
	scheme, rest, ok := strings.Cut(rawURL, "://")
	if !ok || scheme == "sqlite" {
		return rawURL
	}
	user := ""
	if at := strings.LastIndex(rest, "@"); at >= 0 {
		name, password, _ := strings.Cut(rest[:at], ":")
		if password != "" {
			name += ":***"
		}
		user, rest = name+"@", rest[at+1:]
	}
	rest, _, _ = strings.Cut(rest, "?")
	return scheme + "://" + user + rest
}

// destinationStates are what the API tells of a replica's destinations.
func destinationStates(d *dispatcher.Dispatcher) (all []handlers.DestinationState) {
	for _, s := range d.Destinations() {
		all = append(all, handlers.DestinationState{
			Name: s.Name, InFlight: s.InFlight, Parked: s.Parked, Failures: s.Failures, OpenSince: s.Open, Duration: s.Took,
		})
	}
	return all
}

// ready answers why the replica can't do its work, or nil.
func ready(ctx context.Context, d *dispatcher.Dispatcher, s store.Store) error {
	if err := d.Ready(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if _, err := s.Now(ctx); err != nil {
		return fmt.Errorf("the store does not answer: %w", err)
	}
	return nil
}

// run serves on the listener and fires until ctx ends, then stops in good order: requests and callbacks under way are
// given the shutdown timeout.
func (s *service) run(ctx context.Context, listener net.Listener) error {
	return s.together(ctx, listener, s.dispatcher.Run)
}

// serve does as run, but fires nothing.
func (s *service) serve(ctx context.Context, listener net.Listener) error {
	return s.together(ctx, listener, func(ctx context.Context) error { <-ctx.Done(); return nil })
}

// together serves on the listener while dispatch runs. When ctx or one of them ends, so does the other.
func (s *service) together(ctx context.Context, listener net.Listener, dispatch func(context.Context) error) error {
	failed, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	s.server.BaseContext = func(net.Listener) context.Context { return context.WithoutCancel(ctx) }
	served := make(chan error, 1)
	go func() {
		err := s.server.Serve(listener)
		if errors.Is(err, http.ErrServerClosed) {
			err = nil
		}
		fail(err)
		served <- err
	}()
	dispatched := make(chan error, 1)
	go func() {
		err := dispatch(failed)
		fail(err)
		dispatched <- err
	}()

	<-failed.Done()
	s.log.Info("stopping")
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.shutdown)
	defer cancel()
	if err := s.server.Shutdown(limit); err != nil {
		s.log.Warn("closing requests under way", "error", err)
		_ = s.server.Close() // nothing more can be done for them
	}
	err := errors.Join(<-served, <-dispatched, s.close())
	s.log.Info("stopped")
	return err
}

// close closes what was opened, the last first.
func (s *service) close() error {
	var errs []error
	for i := len(s.closers) - 1; i >= 0; i-- {
		errs = append(errs, s.closers[i].Close())
	}
	s.closers = nil
	return errors.Join(errs...)
}
