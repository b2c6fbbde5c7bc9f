// Package service wires one replica of Carillon together: its store and its senders of callbacks, the dispatcher and
// the API, metrics and traces. It contains no logic of its own.
package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/carillon-scheduler/carillon/access"
	"github.com/carillon-scheduler/carillon/access/limits"
	"github.com/carillon-scheduler/carillon/audit"
	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/cmd/internal/cli"
	"github.com/carillon-scheduler/carillon/cmd/internal/listen"
	"github.com/carillon-scheduler/carillon/dispatcher"
	"github.com/carillon-scheduler/carillon/events"
	"github.com/carillon-scheduler/carillon/handlers"
	"github.com/carillon-scheduler/carillon/intake"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/secrets"
	"github.com/carillon-scheduler/carillon/status"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/bounded"
	"github.com/carillon-scheduler/carillon/store/clock"
	"github.com/carillon-scheduler/carillon/store/groupcommit"
	"github.com/carillon-scheduler/carillon/store/instrumented"
	"github.com/carillon-scheduler/carillon/store/replicas"
	"github.com/carillon-scheduler/carillon/store/tenants"
	"github.com/carillon-scheduler/carillon/ui"
)

// Service is one replica.
type Service struct {
	dispatcher   *dispatcher.Dispatcher
	secrets      *secrets.Secrets
	server       *http.Server
	intake       []intake.Source
	connections  *listen.Connections
	certificates *listen.Certificates // nil without TLS
	// observed is the listener of observer, which serves metrics, health and profiles; nil if the API serves them.
	observed net.Listener
	observer *http.Server
	log      *slog.Logger
	shutdown time.Duration
	closers  closers
}

// New opens a store and senders, and makes a service of them. An error that a retry can't fix is a [cli.UsageError].
func New(ctx context.Context, o Options, log *slog.Logger) (*Service, error) {
	parts, err := Open(ctx, o, log)
	if err != nil {
		return nil, err
	}
	return parts.Assemble(ctx)
}

// Parts are the parts of a service.
type Parts struct {
	// Store and Senders are open. They may be replaced before the service is assembled. The original ones are still closed
	// when the service ends.
	Store   store.Store
	Senders []callbacks.Sender

	options Options
	config  dispatcher.Config

	keyring      *secrets.Keyring
	certificates *listen.Certificates           // nil without TLS
	warnings     func(context.Context) []string // of the store
	traces       *tracing
	log          *slog.Logger
	closers      closers
}

// Open checks the options, and opens the store and the senders that they name.
func Open(ctx context.Context, o Options, log *slog.Logger) (*Parts, error) {
	// Check the options first, so that a mistake in them shows before anything is opened.
	p := &Parts{options: o, config: o.Dispatcher(log), log: log}
	if err := p.config.Validate(); err != nil {
		return nil, cli.Usagef("--%w", err) // the error begins with the option's name
	}
	if err := o.check(); err != nil {
		return nil, cli.Usage(err)
	}
	if o.plainKeys() {
		log.Warn("API keys come in plain text, which whoever reads the network can use: give --tls-cert and --tls-key, " +
			"or let nobody but a proxy with TLS reach --listen")
	}
	keyring, err := secrets.ReadKeyring(o.EncryptionKeyFiles)
	if err != nil {
		return nil, cli.Usagef("--encryption-key-file: %w", err)
	}
	p.keyring = keyring
	if p.options.Listen.TLS.CertFile != "" {
		var err error
		if p.certificates, err = listen.LoadCertificates(p.options.Listen.TLS, log); err != nil {
			return nil, cli.Usage(err)
		}
	}
	p.traces = newTracing(ctx, min(o.ShutdownTimeout, tracesPatience), log)
	if p.traces != nil {
		p.closers.add(p.traces) // first, and so closed last: all spans have ended then
	}
	if err := p.openSenders(); err != nil {
		return nil, errors.Join(err, p.closers.Close())
	}
	var opened store.Store
	err = awaitStore(ctx, o.StoreWait, log, func() (err error) {
		opened, err = OpenStore(ctx, o.Store)
		return err
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("--store: %w", err), p.closers.Close())
	}
	p.Store = opened
	p.closers.add(opened)
	p.warnings = warningsOf(opened)
	for _, w := range p.warnings(ctx) {
		log.Warn("the store works, but its configuration has a fault", "warning", w)
	}
	return p, nil
}

// Assemble wires the parts to a dispatcher and an API. The service owns the parts from now on: they are closed with it,
// or if it can't be made.
func (p *Parts) Assemble(ctx context.Context) (*Service, error) {
	s := &Service{
		log: p.log, shutdown: p.options.ShutdownTimeout, closers: p.closers, certificates: p.certificates,
		connections: listen.NewConnections(p.options.Listen.Connections),
	}
	registry := newRegistry()
	s.connections.Register(registry)
	s.certificates.Register(registry)
	theirs := &clock.Clock{}
	jobs := theirs.Watch(instrumented.New(p.Store, registry))
	_, _ = jobs.Now(ctx) // so that the clock is known before the first request; the dispatcher repeats this
	cfg := p.config
	cfg.Store, cfg.Tenants = jobs, tenants.New(jobs)
	cfg.Registerer, cfg.Traces = registry, p.traces.spans()
	records := bounded.Records(jobs)
	var err error
	if s.secrets, err = openSecrets(ctx, records, p.keyring, p.options.StoreWait, p.log); err != nil {
		return nil, errors.Join(err, s.closers.Close())
	}
	showSecrets(registry, s.secrets)
	cfg.Secrets = s.secrets
	told := events.New(events.Config{
		Store: jobs, Tenants: cfg.Tenants, Logger: p.log, Registerer: registry,
		Wake:      func(lane job.Lane, at time.Time) { s.dispatcher.Wake(lane, at) },
		DownSince: func(destination string) (time.Time, bool) { return s.dispatcher.DownSince(destination) },
	})
	s.closers.add(told) // closed when all loops have ended, before the store, as history is
	own := limits.NewOwn(records, p.log)
	if err := own.Load(ctx); err != nil { // the first use retries it
		p.log.Warn("tenants' limits can't be read yet", "error", err)
	}
	s.closers.add(own) // closed after history, which uses it
	recorded, err := p.options.History.open(jobs, own, p.options.Lease, registry, p.log)
	if err != nil {
		return nil, errors.Join(err, s.closers.Close())
	}
	for _, r := range recorded {
		s.closers.add(r) // closed when all loops have ended, before the store
	}
	began := time.Now()
	if cfg.Status, err = status.NewWatch(p.options.Objectives, time.Now, registry); err != nil {
		return nil, errors.Join(err, s.closers.Close())
	}
	tell := func() status.Heartbeat {
		return status.Heartbeat{
			Version: moduleVersion(), Since: began, Ready: s.dispatcher.Ready() == nil, Rate: s.dispatcher.Rate(),
			Counts: cfg.Status.Counts(),
		}
	}
	cfg.Tells = tell
	cfg.History = append(recorders{told}, recorded...)
	cfg.Callbacks = callbacks.NewRegistry(append(slices.Clone(p.Senders), told.Watcher())...)
	if s.dispatcher, err = dispatcher.New(cfg); err != nil {
		return nil, errors.Join(err, s.closers.Close())
	}
	showReady(registry, s.dispatcher)
	trail, err := audit.Open(p.options.Audit, p.log, registry)
	if err != nil {
		return nil, errors.Join(cli.Usagef("--audit: %w", err), s.closers.Close())
	}
	s.closers.add(trail)
	limited := p.options.Limits.config(own, p.options.History.Policy, jobs, registry)
	limited.Near = told.QuotaNear
	limiter := limits.New(limited)
	s.closers.add(limiter)
	keys := access.NewKeys(records)
	s.closers.add(keys)
	auth, err := p.options.authenticator(keys, p.log)
	if err != nil {
		return nil, errors.Join(err, s.closers.Close())
	}
	var doors []*intake.Door
	day := status.Day{Own: cfg.Status, Others: func(ctx context.Context, since, now time.Time) ([]status.Hour, error) {
		return hoursOfOthers(ctx, jobs, s.dispatcher.Replica(), since, now)
	}}
	api := handlers.Config{
		Store:        bounded.Jobs(groupcommit.New(jobs, writers(p.options.Store))),
		Inspector:    jobs,
		Records:      records,
		Callbacks:    callbacks.NewRegistry(p.Senders...), // the types that clients may submit
		Secrets:      s.secrets,
		PrioritiesOf: s.dispatcher.Priorities,
		Destinations: func() []handlers.DestinationState { return destinationStates(s.dispatcher) },
		Rate:         s.dispatcher.Rate,
		Replica: handlers.Replica{
			ID: s.dispatcher.Replica(), Tell: tell,
			List: func(ctx context.Context, now time.Time) ([]replicas.Replica, error) {
				return replicas.List(ctx, jobs, now)
			},
			Hours: day.Hours,
		},
		Crowded: p.options.Crowded,
		Forecast: handlers.Forecast{
			Definitions: jobs, Every: p.options.ForecastMetrics, Policy: cfg.Policy, Destinations: cfg.DestinationPolicy(),
		},
		Wake:         s.dispatcher.Wake,
		WakeExpander: s.dispatcher.WakeExpander,
		Ready:        func(ctx context.Context) error { return ready(ctx, s.dispatcher, jobs, p.log) },
		Warnings: func(ctx context.Context) []string {
			return slices.Concat(p.warnings(ctx), s.certificates.Warnings(time.Now()), notConsumed(doors))
		},
		Replicas:   func(ctx context.Context, now time.Time) (int, error) { return replicas.Count(ctx, jobs, now) },
		Limiter:    limiter,
		OwnLimits:  own,
		Limits:     p.options.limits(),
		Expansion:  cfg.Expansion(),
		MaxBody:    int64(p.options.MaxBody),
		Retain:     p.options.Retain,
		Early:      cfg.Early,
		Clock:      theirs,
		Version:    moduleVersion(),
		Logger:     p.log,
		Traces:     p.traces.spans(),
		Audit:      trail,
		Auth:       auth,
		LocalOnly:  !p.options.InsecureNoAuthBeyondLoopback,
		Keys:       keys,
		Metrics:    metricsHandler(registry, p.log),
		Registerer: registry,
	}
	if err := s.observe(ctx, p.options.Listen.Observe, &api); err != nil {
		return nil, errors.Join(err, s.closers.Close())
	}
	api.Events = told
	if recorded != nil {
		api.History = recorded
		api.HistoryPolicy = p.options.History.Policy
	}
	served := handlers.New(api)
	doors, err = p.openIntake(s, served, registry)
	if err != nil {
		return nil, errors.Join(err, s.closers.Close())
	}
	if p.options.UI == uiOn {
		served = ui.Handler(served)
	}
	s.server = newServer(s.connections.Handler(served), p.log)
	s.server.MaxHeaderBytes = p.options.Listen.HeaderBytes
	s.server.ConnContext = func(ctx context.Context, there net.Conn) context.Context {
		return handlers.KeepConn(s.connections.Keep(ctx, there), there)
	}
	if s.certificates != nil {
		s.server.TLSConfig = s.certificates.Config()
	}
	return s, nil
}

// newServer makes a server with time limits for clients.
func newServer(handler http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 10 * time.Second,
		// A batch has this time for each of its parts, and a slow answer has it from its start.
		ReadTimeout:  time.Minute,
		WriteTimeout: time.Minute,
		IdleTimeout:  2 * time.Minute,
		// Bytes that clients send ahead are kept in memory: by default up to 1 MiB per connection.
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: 100, MaxReceiveBufferPerConnection: 256 << 10, MaxReceiveBufferPerStream: 128 << 10,
		},
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// openSecrets reads the secrets in a store. While the store can't be reached again, it retries for the duration wait.
func openSecrets(
	ctx context.Context, records store.Records, keys *secrets.Keyring, wait time.Duration, log *slog.Logger,
) (*secrets.Secrets, error) {
	s := secrets.New(records, keys, log)
	err := awaitStore(ctx, wait, log, func() error { return s.Load(ctx) })
	if missing, ok := errors.AsType[*secrets.MissingKeyError](err); ok {
		return nil, cli.Usage(missing)
	}
	if err != nil {
		return nil, fmt.Errorf("secrets can't be read from the store: %w", err)
	}
	return s, nil
}

// hoursOfOthers returns the hours since a time that replicas other than own have stored.
func hoursOfOthers(
	ctx context.Context, records store.Records, own string, since, now time.Time,
) (all []status.Hour, err error) {
	stored, err := replicas.Hours(ctx, records, since, now)
	for _, r := range stored {
		if h, ok := status.DecodeHour(r.From, r.Tells); ok && r.Replica != own {
			all = append(all, h)
		}
	}
	return all, err
}

// destinationStates returns the states of a replica's destinations for the API.
func destinationStates(d *dispatcher.Dispatcher) (all []handlers.DestinationState) {
	for _, s := range d.Destinations() {
		all = append(all, handlers.DestinationState{
			Name: s.Name, InFlight: s.InFlight, Parked: s.Parked, Failures: s.Failures, OpenSince: s.Open, Duration: s.Took,
			PartsOpen: s.PartsOpen, PartOpenSince: s.PartOpen,
		})
	}
	return all
}

// ready returns the reason that the replica can't do its work, or nil.
func ready(ctx context.Context, d *dispatcher.Dispatcher, s store.Store, log *slog.Logger) error {
	if err := d.Ready(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if _, err := s.Now(ctx); err != nil {
		log.Warn("the store does not answer", "error", err) // the error may name hosts, and /readyz is public
		return errors.New("the store does not answer; the log has the cause")
	}
	return nil
}

// Run serves on the listener and fires until ctx ends. Then it shuts down gracefully: requests and callbacks under way
// have the shutdown timeout to end. It closes the service.
func (s *Service) Run(ctx context.Context, listener net.Listener) error {
	return s.together(ctx, listener, s.dispatcher.Run)
}

// Serve is like Run, but fires nothing.
func (s *Service) Serve(ctx context.Context, listener net.Listener) error {
	return s.together(ctx, listener, func(ctx context.Context) error { <-ctx.Done(); return nil })
}

// together serves on the listener while dispatch runs. When ctx or one of them ends, so does the other. The listener
// for health and metrics ends last.
func (s *Service) together(ctx context.Context, listener net.Listener, dispatch func(context.Context) error) error {
	failed, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	s.server.BaseContext = func(net.Listener) context.Context { return context.WithoutCancel(ctx) }
	served := make(chan error, 1)
	go func() {
		err := s.serve(listener)
		fail(err)
		served <- err
	}()
	observed := make(chan error, 1)
	go func() {
		err := s.serveObserver()
		if err != nil {
			fail(err)
		}
		observed <- err
	}()
	var refreshing sync.WaitGroup
	refreshing.Go(func() { s.secrets.Run(failed) })
	var taking sync.WaitGroup
	for _, source := range s.intake {
		taking.Go(func() { source.Run(failed) })
	}
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
		_ = s.server.Close() // their time is over
	}
	err := errors.Join(<-served, <-dispatched)
	_ = s.observer.Close()
	taking.Wait()
	refreshing.Wait()
	err = errors.Join(err, <-observed, s.Close())
	s.log.Info("stopped")
	return err
}

// serve serves the API until it is shut down.
func (s *Service) serve(listener net.Listener) error {
	listener = s.connections.Limit(listener)
	if s.certificates != nil {
		return unlessClosed(s.server.ServeTLS(listener, "", "")) // the server's configuration has the certificate
	}
	return unlessClosed(s.server.Serve(listener))
}

// unlessClosed returns the error that ended a server, except that of a shutdown.
func unlessClosed(err error) error {
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// Close closes the parts of the service, unless Run or Serve has done so.
func (s *Service) Close() error { return s.closers.Close() }

// closers are closed at the end.
type closers []io.Closer

func (c *closers) add(closer io.Closer) { *c = append(*c, closer) }

// Close closes them, the last first, once.
func (c *closers) Close() error {
	var errs []error
	for _, closer := range slices.Backward(*c) {
		errs = append(errs, closer.Close())
	}
	*c = nil
	return errors.Join(errs...)
}

// Start runs a service at a free port of this machine, by Run or by Serve. It returns the URL of its API, and a
// function that shuts it down gracefully.
func (s *Service) Start(
	ctx context.Context, run func(context.Context, net.Listener) error,
) (url string, stop func() error, err error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, errors.Join(err, s.Close())
	}
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan error, 1)
	go func() { done <- run(running, listener) }()
	scheme := "http://"
	if s.certificates != nil {
		scheme = "https://"
	}
	return scheme + listener.Addr().String(), func() error { cancel(); return <-done }, nil
}
