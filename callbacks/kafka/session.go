package kafka

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// session is a client in use. It can't forget a topic: if its sequence numbers began again under the same producer id,
// a broker might take a new record for a repetition, and acknowledge it unwritten. So to forget a topic, such as a
// deleted one, takes a new session with an id of its own.
type session struct {
	client *kgo.Client
	made   time.Time
	topics topics

	// The number of users, and whether no more may be added; guarded by the sender's mutex.
	users   int
	retired bool
}

// leastAge is the least age at which a session is replaced, so that one faulty job does not replace sessions all the
// time.
const leastAge = time.Second

func (s *Sender) newSession() (*session, error) {
	client, err := kgo.NewClient(s.clientOpts...)
	if err != nil {
		return nil, err
	}
	x := &session{client: client, made: time.Now(), topics: topics{known: make(map[string]*topic)}}
	s.sessions[x] = struct{}{}
	return x, nil
}

// enter takes the session in use; nil if the sender is closed. Leave must follow.
func (s *Sender) enter() *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.session != nil {
		s.session.users++
	}
	return s.session
}

// hold adds a use of a session. The caller must be using it already.
func (s *Sender) hold(x *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x.users++
}

// leave ends a use of the session. The last one closes it if it was replaced.
func (s *Sender) leave(x *session) {
	s.mu.Lock()
	x.users--
	_, open := s.sessions[x]
	last := open && x.retired && x.users == 0
	if last {
		delete(s.sessions, x)
		s.work.Go(x.client.Close) // it waits for the goroutine that may have called us
	}
	s.mu.Unlock()
}

// start runs a function in a goroutine that Close joins, unless the sender is closed.
func (s *Sender) start(f func()) (started bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.session != nil {
		s.work.Go(f)
	}
	return s.session != nil
}

// retire replaces a session, if it is in use and not new. Its users may continue.
func (s *Sender) retire(x *session, reason error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.session != x || time.Since(x.made) < leastAge {
		return
	}
	fresh, err := s.newSession()
	if err != nil { // can't be: the options have made one before
		s.options.Logger.Error("kafka: no new client could be made", "error", err)
		return
	}
	s.options.Logger.Debug("kafka: a new client begins", "reason", reason)
	x.retired = true
	s.session = fresh
}

// clientOptions returns the options of every session's client.
func clientOptions(o Options, d *deadlines) ([]kgo.Opt, error) {
	if err := checkAddresses(o.Brokers); err != nil {
		return nil, err
	}
	opts := []kgo.Opt{
		kgo.ClientID("carillon"),
		kgo.SeedBrokers(o.Brokers...),
		kgo.WithLogger(logger{o.Logger}),
		kgo.DisableClientMetrics(),
		kgo.RecordPartitioner(partitioner()),
		kgo.RequiredAcks(kgo.AllISRAcks()), // and idempotent, which is the default
		// Records are sent at once. Those that come while a request is under way make the next batch.
		kgo.ProducerLinger(0),
		kgo.ProducerBatchCompression(kgo.NoCompression()),
		// An attempt waits for its record until its context ends. Then another attempt may follow. The record must not arrive
		// later, even if it then arrives twice.
		kgo.AllowIdempotentProduceCancellation(),
		// Enough to survive a lost connection or a change of leaders without a duplicate. The dispatcher retries longer
		// failures.
		kgo.RecordRetries(4),
		kgo.RequestRetries(4),
		kgo.RetryTimeout(10 * time.Second),
		kgo.RetryBackoffFn(func(tries int) time.Duration {
			pause := min(firstPause<<min(max(tries-1, 0), 10), time.Second)
			return pause/2 + rand.N(pause/2)
		}),
		kgo.MetadataMinAge(100 * time.Millisecond), // as in Kafka's own client
		kgo.RequestTimeoutOverhead(5 * time.Second),
	}
	security, err := securityOptions(o)
	if err != nil {
		return nil, err
	}
	config, err := tlsConfig(o)
	return append(append(opts, security...), kgo.Dialer(dialer(d, config))), err
}

// dialLimit bounds the time to connect to a broker.
const dialLimit = 5 * time.Second

func validAddress(address string) bool {
	host, port, err := net.SplitHostPort(address)
	if err != nil { // there may be no port
		host, port, err = net.SplitHostPort(address + ":9092")
	}
	n, portErr := strconv.ParseUint(port, 10, 16)
	return err == nil && portErr == nil && n > 0 && host != ""
}

// securityOptions returns the options of SASL. No error contains the password.
func securityOptions(o Options) ([]kgo.Opt, error) {
	var opts []kgo.Opt
	switch {
	case o.Mechanism == "" && o.Username+o.Password != "":
		return nil, errors.New("kafka: a username or password is given, but no SASL mechanism; " +
			"give PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512")
	case o.Mechanism == "":
		return opts, nil
	case o.Username == "" || o.Password == "":
		return nil, fmt.Errorf("kafka: SASL %s needs a username and a password", o.Mechanism)
	}
	switch strings.ToUpper(o.Mechanism) {
	case "PLAIN":
		opts = append(opts, kgo.SASL(plain.Auth{User: o.Username, Pass: o.Password}.AsMechanism()))
	case "SCRAM-SHA-256":
		opts = append(opts, kgo.SASL(scram.Auth{User: o.Username, Pass: o.Password}.AsSha256Mechanism()))
	case "SCRAM-SHA-512":
		opts = append(opts, kgo.SASL(scram.Auth{User: o.Username, Pass: o.Password}.AsSha512Mechanism()))
	default:
		return nil, fmt.Errorf("kafka: the SASL mechanism must be PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512, not %q", o.Mechanism)
	}
	return opts, nil
}

// tlsConfig reads the files that the options name; nil for connections without TLS.
func tlsConfig(o Options) (*tls.Config, error) {
	if !o.TLS {
		if cmp.Or(o.CAFile, o.CertFile, o.KeyFile) != "" {
			return nil, errors.New("kafka: files for TLS are given, but TLS is not turned on")
		}
		return nil, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.CAFile != "" {
		pem, err := os.ReadFile(o.CAFile)
		if err != nil {
			return nil, fmt.Errorf("kafka: CA file: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("kafka: CA file %s has no PEM certificate", o.CAFile)
		}
	}
	if o.CertFile != "" || o.KeyFile != "" {
		pair, err := tls.LoadX509KeyPair(o.CertFile, o.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("kafka: client certificate: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// logger writes all lines of the client's own log at debug level: the errors contain all important facts.
type logger struct{ *slog.Logger }

func (l logger) Level() kgo.LogLevel {
	if l.Enabled(context.Background(), slog.LevelDebug) {
		return kgo.LogLevelInfo
	}
	return kgo.LogLevelNone
}

func (l logger) Log(_ kgo.LogLevel, text string, pairs ...any) {
	l.Debug("kafka client: "+text, pairs...)
}
