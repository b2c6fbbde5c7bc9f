package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/callbacks/rabbitmq"
	"github.com/carillon-scheduler/carillon/callbacks/webhook"
	"github.com/carillon-scheduler/carillon/dispatcher"
	"github.com/carillon-scheduler/carillon/handlers"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/mongodb"
	"github.com/carillon-scheduler/carillon/store/postgres"
	"github.com/carillon-scheduler/carillon/store/redis"
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

// newService opens the store and the senders, and wires them to the dispatcher and the API.
func newService(ctx context.Context, o serviceOptions, log *slog.Logger) (*service, error) {
	s := &service{log: log, shutdown: o.ShutdownTimeout.std()}
	// What only needs the options comes first, so that a mistake there shows before anything is opened.
	cfg := o.dispatcherConfig(log)
	if err := cfg.Validate(); err != nil {
		return nil, usageError{fmt.Errorf("--%w", err)} // it begins with the option's name
	}
	if err := o.check(); err != nil {
		return nil, usageError{err}
	}
	senders, err := s.openSenders(o, log)
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	jobs, err := openStore(ctx, o.Store)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("--store: %w", err), s.close())
	}
	s.closers = append(s.closers, jobs)
	cfg.Store, cfg.Callbacks = jobs, callbacks.NewRegistry(senders...)
	if s.dispatcher, err = dispatcher.New(cfg); err != nil {
		return nil, errors.Join(err, s.close())
	}
	s.server = &http.Server{
		Handler: handlers.New(handlers.Config{
			Store:        jobs,
			Callbacks:    cfg.Callbacks,
			Wake:         s.dispatcher.Wake,
			WakeExpander: s.dispatcher.WakeExpander,
			Ready:        func(ctx context.Context) error { return ready(ctx, s.dispatcher, jobs) },
			Limits:       o.limits(),
			Expansion:    cfg.Expansion(),
			MaxBody:      int64(o.MaxBody),
			Retain:       o.Retain.std(),
			Logger:       log,
		}),
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
	hooks := webhook.New(webhook.Options{IdleConns: max(o.Concurrency, 64)})
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
	return senders, nil
}

// openStore opens the store that a URL's scheme names.
func openStore(ctx context.Context, rawURL string) (store.Store, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	scheme, _, _ := strings.Cut(rawURL, ":")
	switch scheme {
	case "sqlite":
		return opened(sqlite.Open(ctx, rawURL))
	case "mongodb", "mongodb+srv":
		return opened(mongodb.Open(ctx, rawURL))
	case "postgres", "postgresql":
		return opened(postgres.Open(ctx, rawURL))
	case "redis", "rediss":
		return opened(redis.Open(ctx, rawURL))
	default:
		return nil, usageError{fmt.Errorf("%q is no store; give sqlite:FILE, postgres://HOST/DATABASE, mongodb://HOST/DATABASE or redis://HOST", redact(rawURL))}
	}
}

// opened tells a store that can't be reached from a URL that is wrong.
func opened[S store.Store](s S, err error) (store.Store, error) {
	switch {
	case err == nil:
		return s, nil
	case errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrFormat):
		return nil, err
	default:
		return nil, usageError{err}
	}
}

// redact takes the password out of a URL.
func redact(rawURL string) string {
	u, err := url.Parse(rawURL)
	if err != nil {
		return "(unreadable)"
	}
	return u.Redacted()
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
		err := s.dispatcher.Run(failed)
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
