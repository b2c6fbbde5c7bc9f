package listen_test

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/carillon-scheduler/carillon/cmd/internal/listen"
	"github.com/carillon-scheduler/carillon/cmd/internal/listen/listentest"
)

// patience bounds every wait. Nothing is expected to take nearly as long.
const patience = 2 * time.Minute

// secured is a server with TLS of files that a test replaces.
type secured struct {
	*testing.T
	files        listen.TLS
	certificates *listen.Certificates
	log          *lockedBuffer
	address      string
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// secure starts a server that answers each request with "ok".
func secure(t *testing.T, files listen.TLS) *secured {
	t.Helper()
	s := &secured{T: t, files: files, log: &lockedBuffer{}}
	var err error
	if s.certificates, err = listen.LoadCertificates(files, slog.New(slog.NewTextHandler(s.log, nil))); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{
		TLSConfig: s.certificates.Config(), ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "ok by %s", r.Proto) }),
	}
	go func() { _ = server.ServeTLS(listener, "", "") }()
	t.Cleanup(func() { _ = server.Close() })
	s.address = listener.Addr().String()
	return s
}

// ask makes a request on a new connection. It answers the body, and the serial number of the server's certificate.
func (s *secured) ask(config *tls.Config) (body, serial string, err error) {
	config = config.Clone()
	config.ServerName = "carillon.test"
	client := http.Client{Timeout: patience, Transport: &http.Transport{
		TLSClientConfig: config, DisableKeepAlives: true, ForceAttemptHTTP2: true,
	}}
	answer, err := client.Get("https://" + s.address)
	if err != nil {
		return "", "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return string(text), answer.TLS.PeerCertificates[0].SerialNumber.String(), err
}

// until waits until something is so: the files are looked at once a second at most.
func (s *secured) until(what string, so func() bool) {
	s.Helper()
	for end := time.Now().Add(patience); !so(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			s.Fatalf("waited too long until %s; the log is %s", what, s.log)
		}
	}
}

func TestTLS(t *testing.T) {
	ca := listentest.NewAuthority(t)
	s := secure(t, ca.Issue(t, t.TempDir(), listentest.Certificate{}))
	if body, _, err := s.ask(&tls.Config{RootCAs: ca.Pool()}); err != nil || body != "ok by HTTP/2.0" {
		t.Errorf("%q, %v", body, err)
	}
	if body, _, err := s.ask(&tls.Config{RootCAs: ca.Pool(), MaxVersion: tls.VersionTLS12}); err != nil || body != "ok by HTTP/2.0" {
		t.Errorf("by TLS 1.2: %q, %v", body, err)
	}
	if _, _, err := s.ask(&tls.Config{RootCAs: ca.Pool(), MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}); err == nil {
		t.Error("TLS 1.1 is spoken")
	}
	if _, _, err := s.ask(&tls.Config{RootCAs: ca.Pool(), MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{tls.TLS_RSA_WITH_AES_128_CBC_SHA}}); err == nil {
		t.Error("a suite without forward secrecy is spoken")
	}
	if answer, err := http.Get("http://" + s.address); err == nil {
		answer.Body.Close()
		if answer.StatusCode != http.StatusBadRequest {
			t.Errorf("a plain request is answered %s", answer.Status)
		}
	}
}

// Files that change are used without a restart; those that can't be used change nothing.
func TestReplacedFiles(t *testing.T) {
	t.Parallel()
	dir, ca := t.TempDir(), listentest.NewAuthority(t)
	files := ca.Issue(t, dir, listentest.Certificate{})
	s := secure(t, files)
	registry := prometheus.NewRegistry()
	s.certificates.Register(registry)
	serial := func() string {
		t.Helper()
		_, serial, err := s.ask(&tls.Config{RootCAs: ca.Pool()})
		if err != nil {
			t.Fatal(err)
		}
		return serial
	}
	failures := func() float64 {
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() == "carillon_tls_reload_failures_total" {
				return f.GetMetric()[0].GetCounter().GetValue()
			}
		}
		return -1
	}
	first := serial()
	key, err := os.ReadFile(files.KeyFile)
	if err != nil {
		t.Fatal(err)
	}

	ca.Issue(t, dir, listentest.Certificate{}) // into the same files
	s.until("the second certificate is in use", func() bool { return serial() != first })
	second := serial()
	if w := s.certificates.Warnings(time.Now()); len(w) > 0 || failures() != 0 {
		t.Errorf("all is well, but: %q, %v failures", w, failures())
	}

	right, err := os.ReadFile(files.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	for name, broken := range map[string][]byte{"another key": key, "no key": []byte("nonsense"), "nothing": nil} {
		before := failures()
		if err := os.WriteFile(files.KeyFile, broken, 0o600); err != nil {
			t.Fatal(err)
		}
		s.until(name+" is noticed", func() bool {
			return serial() == second && failures() > before && len(s.certificates.Warnings(time.Now())) == 1
		})
		if err := os.WriteFile(files.KeyFile, right, 0o600); err != nil {
			t.Fatal(err)
		}
		s.until("the right key is back", func() bool { return serial() == second && len(s.certificates.Warnings(time.Now())) == 0 })
	}
	if err := os.Remove(files.CertFile); err != nil {
		t.Fatal(err)
	}
	s.until("it is missed", func() bool { return serial() == second && len(s.certificates.Warnings(time.Now())) == 1 })
	ca.Issue(t, dir, listentest.Certificate{})
	s.until("the third certificate is in use", func() bool { return serial() != second })
	if log := s.log.String(); !strings.Contains(log, "can't be used") || strings.Contains(log, "PRIVATE KEY") || strings.Contains(log, "nonsense") {
		t.Errorf("the log is %s", log)
	}
}

// Kubernetes replaces mounted secrets by moving a symbolic link.
func TestFilesBehindLinks(t *testing.T) {
	t.Parallel()
	dir, ca := t.TempDir(), listentest.NewAuthority(t)
	for _, sub := range []string{"1", "2"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o700); err != nil {
			t.Fatal(err)
		}
		ca.Issue(t, filepath.Join(dir, sub), listentest.Certificate{})
	}
	link := filepath.Join(dir, "now")
	if err := os.Symlink("1", link); err != nil {
		t.Fatal(err)
	}
	s := secure(t, listen.TLS{CertFile: filepath.Join(link, "tls.crt"), KeyFile: filepath.Join(link, "tls.key")})
	_, first, err := s.ask(&tls.Config{RootCAs: ca.Pool()})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("2", link+"2"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(link+"2", link); err != nil {
		t.Fatal(err)
	}
	s.until("the other is in use", func() bool {
		_, serial, err := s.ask(&tls.Config{RootCAs: ca.Pool()})
		return err == nil && serial != first
	})
}

func TestClientCertificates(t *testing.T) {
	t.Parallel()
	dir, ca, other := t.TempDir(), listentest.NewAuthority(t), listentest.NewAuthority(t)
	files := ca.Issue(t, dir, listentest.Certificate{})
	files.ClientCAFile = filepath.Join(dir, "clients.crt")
	ca.Write(t, files.ClientCAFile)
	own, foreign := ca.Client(t), other.Client(t)
	for _, c := range []struct {
		whether string
		client  []tls.Certificate
		want    bool
	}{
		{"required", nil, false}, {"required", own, true}, {"required", foreign, false},
		{"optional", nil, true}, {"optional", own, true}, {"optional", foreign, false},
	} {
		files.ClientCerts = c.whether
		s := secure(t, files)
		config := &tls.Config{RootCAs: ca.Pool()}
		if c.client != nil { // sent even without a request of the server
			config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &c.client[0], nil }
		}
		if _, _, err := s.ask(config); (err == nil) != c.want {
			t.Errorf("%s, with %d certificates: %v", c.whether, len(c.client), err)
		}
	}

	files.ClientCerts = "required"
	s := secure(t, files)
	config := &tls.Config{RootCAs: ca.Pool(), Certificates: own, ClientSessionCache: tls.NewLRUClientSessionCache(1)}
	if _, _, err := s.ask(config); err != nil {
		t.Fatal(err)
	}
	other.Write(t, files.ClientCAFile)
	s.until("the authority is no longer trusted", func() bool { _, _, err := s.ask(config); return err != nil })
}

func TestExpiry(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		ends time.Time
		want string
	}{{now.Add(60 * 24 * time.Hour), ""}, {now.Add(13 * 24 * time.Hour), "expires on "}, {now.Add(-time.Hour), "has expired on "}} {
		s := secure(t, listentest.NewAuthority(t).Issue(t, t.TempDir(), listentest.Certificate{Ends: c.ends}))
		warnings := strings.Join(s.certificates.Warnings(now), "\n")
		if (warnings == "") != (c.want == "") || !strings.Contains(warnings, c.want) {
			t.Errorf("%s: %q, want %q", c.ends, warnings, c.want)
		}
		registry := prometheus.NewRegistry()
		s.certificates.Register(registry)
		want := fmt.Sprintf("carillon_tls_certificate_expiry_timestamp_seconds %v\n", float64(c.ends.Unix()))
		if err := testutil.GatherAndCompare(registry, strings.NewReader("# HELP carillon_tls_certificate_expiry_timestamp_seconds Expiry of the API's certificate, in Unix time; 0 without TLS.\n"+
			"# TYPE carillon_tls_certificate_expiry_timestamp_seconds gauge\n"+want), "carillon_tls_certificate_expiry_timestamp_seconds"); err != nil {
			t.Error(err)
		}
	}
}

// TestKeyForOthers: a key that all users of the machine can read is used, with a warning, at the start and when it
// changes.
func TestKeyForOthers(t *testing.T) {
	for mode, warns := range map[os.FileMode]bool{0o600: false, 0o400: false, 0o440: false, 0o640: false, 0o644: true, 0o660: true, 0o604: true} {
		files := listentest.NewAuthority(t).Issue(t, t.TempDir(), listentest.Certificate{})
		if err := os.Chmod(files.KeyFile, mode); err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		if _, err := listen.LoadCertificates(files, slog.New(slog.NewTextHandler(&log, nil))); err != nil {
			t.Fatal(err)
		}
		if text := log.String(); strings.Contains(text, "others can read or change the key of --tls-key") != warns {
			t.Errorf("%04o: the log is %q", mode, text)
		}
	}
}

func TestUnusableFiles(t *testing.T) {
	dir, ca := t.TempDir(), listentest.NewAuthority(t)
	good := ca.Issue(t, dir, listentest.Certificate{})
	text := filepath.Join(dir, "text")
	if err := os.WriteFile(text, []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, o := range map[string]listen.TLS{
		"--tls-cert":                         {CertFile: text, KeyFile: good.KeyFile},
		"--tls-key":                          {CertFile: good.CertFile, KeyFile: good.CertFile},
		"--tls-client-ca: open":              {CertFile: good.CertFile, KeyFile: good.KeyFile, ClientCAFile: filepath.Join(dir, "none")},
		"--tls-client-ca: the file has no P": {CertFile: good.CertFile, KeyFile: good.KeyFile, ClientCAFile: text},
	} {
		if _, err := listen.LoadCertificates(o, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
