package listen

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Certificates has the API's certificate and the authorities of its clients. When their files change, they are read
// again; until that succeeds, the old ones stay in use. Its methods are safe for concurrent use. Nil means no TLS.
type Certificates struct {
	options  TLS
	log      *slog.Logger
	failures prometheus.Counter

	mu      sync.Mutex
	checked time.Time // time of the last check of the files
	files   []file    // their state then
	config  *tls.Config
	ends    time.Time // of the certificate
	err     error     // the fault of the present files; nil if they are in use
}

// The minimum time between checks of the files, and the time before a certificate's end from which there is a warning.
const (
	lookAgain = time.Second
	warnAhead = 14 * 24 * time.Hour
)

// file has the properties that show a change of a file.
type file struct {
	info os.FileInfo
	err  error
}

// LoadCertificates reads the files. Errors name the option at fault.
func LoadCertificates(o TLS, log *slog.Logger) (*Certificates, error) {
	c := &Certificates{options: o, log: log, failures: newFailures()}
	c.look(time.Now())
	if c.err != nil {
		return nil, c.err
	}
	c.warnOfKey()
	return c, nil
}

func newFailures() prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{
		Name: "carillon_tls_reload_failures_total",
		Help: "Changes of the TLS files that could not be used.",
	})
}

// Config returns the configuration of a server.
func (c *Certificates) Config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			config, _, _ := c.current()
			return config, nil
		},
	}
}

// Warnings returns present and coming faults of the certificate. Without TLS there are none.
func (c *Certificates) Warnings(now time.Time) (all []string) {
	if c == nil {
		return nil
	}
	_, ends, err := c.current()
	if err != nil {
		all = append(all, "the changed TLS files can't be used, the old ones stay in use; the log has the cause")
	}
	switch left := ends.Sub(now); {
	case left <= 0:
		all = append(all, fmt.Sprintf("the certificate of --tls-cert has expired on %s", ends.UTC().Format(time.RFC3339)))
	case left < warnAhead:
		all = append(all, fmt.Sprintf("the certificate of --tls-cert expires on %s", ends.UTC().Format(time.RFC3339)))
	}
	return all
}

// current checks the files, unless that was done a moment ago, and returns the configuration in use.
func (c *Certificates) current() (config *tls.Config, ends time.Time, err error) {
	c.mu.Lock()
	report := func() {}
	if now := time.Now(); now.Sub(c.checked) >= lookAgain {
		report = c.look(now)
	}
	config, ends, err = c.config, c.ends, c.err
	c.mu.Unlock()
	report() // outside the lock, so that no other call waits for the log
	return config, ends, err
}

// look reads the files if they have changed since the last check, or could not be used then: one of them may have been
// replaced before the other. It returns a function that logs the result.
func (c *Certificates) look(now time.Time) (report func()) {
	c.checked = now
	files := c.stat()
	changed := !same(files, c.files)
	if !changed && c.err == nil {
		return func() {}
	}
	c.files = files
	config, ends, err := c.read()
	c.err = err
	if err == nil {
		c.config, c.ends = config, ends
		return func() {
			c.log.Info("the TLS files were read again", "expires", ends)
			c.warnOfKey()
		}
	}
	if !changed {
		return func() {}
	}
	c.failures.Inc()
	return func() {
		c.log.Error("the TLS files have changed and can't be used; the old ones stay in use", "error", err)
	}
}

// warnOfKey logs that others than the owner of the key's file, and its group, can read or change it. That is no error:
// some platforms mount files so.
func (c *Certificates) warnOfKey() {
	const others = 0o027 // any access of others, and write access of the group
	info, err := os.Stat(c.options.KeyFile)
	if err != nil || info.Mode().Perm()&others == 0 || runtime.GOOS == "windows" {
		return
	}
	c.log.Warn("others can read or change the key of --tls-key: chmod it to 0600, or to 0440 for a group",
		"mode", fmt.Sprintf("%04o", info.Mode().Perm()))
}

func (c *Certificates) stat() (all []file) {
	for _, path := range []string{c.options.CertFile, c.options.KeyFile, c.options.ClientCAFile} {
		if path != "" {
			info, err := os.Stat(path)
			all = append(all, file{info, err})
		}
	}
	return all
}

// same reports whether files are unchanged.
func same(a, b []file) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].err != nil || b[i].err != nil {
			return false
		}
		if x, y := a[i].info, b[i].info; !os.SameFile(x, y) || !x.ModTime().Equal(y.ModTime()) || x.Size() != y.Size() {
			return false
		}
	}
	return true
}

// read makes a configuration of the files, and returns it with the end of its certificate's validity.
func (c *Certificates) read() (*tls.Config, time.Time, error) {
	pair, err := tls.LoadX509KeyPair(c.options.CertFile, c.options.KeyFile)
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("--tls-cert, --tls-key: %w", err)
	}
	config := &tls.Config{
		MinVersion:   tls.VersionTLS12,
		Certificates: []tls.Certificate{pair},
		NextProtos:   []string{"h2", "http/1.1"},
	}
	if path := c.options.ClientCAFile; path != "" {
		pem, err := os.ReadFile(path)
		if err != nil {
			return nil, time.Time{}, fmt.Errorf("--tls-client-ca: %w", err)
		}
		config.ClientCAs = x509.NewCertPool()
		if !config.ClientCAs.AppendCertsFromPEM(pem) {
			return nil, time.Time{}, errors.New("--tls-client-ca: the file has no PEM certificate")
		}
		config.ClientAuth = tls.RequireAndVerifyClientCert
		if c.options.ClientCerts == "optional" {
			config.ClientAuth = tls.VerifyClientCertIfGiven
		}
		config.SessionTicketsDisabled = true // each handshake uses the present authorities
	}
	return config, pair.Leaf.NotAfter, nil
}

// Register adds the metrics of the certificates; they are 0 without TLS.
func (c *Certificates) Register(r prometheus.Registerer) {
	expiry := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "carillon_tls_certificate_expiry_timestamp_seconds",
		Help: "Expiry of the API's certificate, in Unix time; 0 without TLS.",
	}, func() float64 {
		if c == nil {
			return 0
		}
		_, ends, _ := c.current()
		return float64(ends.Unix())
	})
	failures := newFailures()
	if c != nil {
		failures = c.failures
	}
	r.MustRegister(expiry, failures)
}
