package service

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"

	"github.com/carillon-scheduler/carillon/cmd/internal/listen"
	"github.com/carillon-scheduler/carillon/handlers"
)

// observe makes the server of metrics, health and profiles, if it has an address of its own, and removes the metrics
// from the API.
func (s *Service) observe(ctx context.Context, at listen.Address, api *handlers.Config) error {
	s.observer = newServer(http.NotFoundHandler(), s.log)
	if at == "" {
		return nil
	}
	var err error
	if s.observed, err = at.Open(ctx, "metrics-listen"); err != nil {
		return err
	}
	s.closers.add(closedOnce{s.observed})
	mux := http.NewServeMux()
	mux.Handle("/", handlers.Observe(*api))
	mux.Handle("/debug/pprof/", profiles())
	s.observer.Handler = mux
	if at.Loopback() {
		s.observer.Handler = handlers.Local(mux)
	}
	api.Metrics = nil
	return nil
}

// profiles serves Go's profiles, to clients on this machine only: it requires no key, and each profile costs processor
// time.
func profiles() http.Handler {
	mux := http.NewServeMux()
	// All profiles except the command line, which may contain secrets.
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return handlers.Local(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from, err := netip.ParseAddrPort(r.RemoteAddr)
		if err != nil || !from.Addr().Unmap().IsLoopback() {
			http.Error(w, "profiles are for clients on this machine; from elsewhere, use kubectl port-forward or ssh -L",
				http.StatusForbidden)
			return
		}
		mux.ServeHTTP(w, r)
	}))
}

// observers is the maximum number of connections to the server that observe makes.
const observers = 256

// serveObserver runs the server that observe made until it is closed. Without one, it does nothing.
func (s *Service) serveObserver() error {
	if s.observed == nil {
		return nil
	}
	s.log.Info("serving metrics", "address", s.observed.Addr().String())
	return unlessClosed(s.observer.Serve(listen.NewConnections(observers).Limit(s.observed)))
}

// closedOnce closes a listener that may be closed already.
type closedOnce struct{ io.Closer }

func (c closedOnce) Close() error {
	if err := c.Closer.Close(); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}
