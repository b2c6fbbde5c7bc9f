//go:build services

package rabbitmq_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// relay stands between a sender and the broker, to be a bad network.
type relay struct {
	URL string

	up, down gate // to and from the broker

	mu    sync.Mutex
	conns []net.Conn
}

// gate is shut by its write lock.
type gate struct{ sync.RWMutex }

// newRelay listens with TLS if it is given a configuration.
func newRelay(t *testing.T, config *tls.Config) *relay {
	t.Helper()
	target, err := url.Parse(brokerURL(t))
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	through, broker := *target, target.Host
	through.Host = listener.Addr().String()
	if config != nil {
		through.Scheme = "amqps"
		listener = tls.NewListener(listener, config)
	}
	r := &relay{URL: through.String()}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("tcp", broker)
			if err != nil {
				_ = from.Close()
				continue
			}
			r.mu.Lock()
			r.conns = append(r.conns, from, to)
			r.mu.Unlock()
			all.Go(func() { r.up.pass(to, from) })
			all.Go(func() { r.down.pass(from, to) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		r.cut()
		all.Wait()
	})
	return r
}

// pass hands on while the gate is open.
func (g *gate) pass(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	buffer := make([]byte, 4<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			g.RLock()
			_, failed := to.Write(buffer[:n])
			g.RUnlock()
			if failed != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// cut breaks all connections that there are.
func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.conns {
		_ = c.Close()
	}
	r.conns = nil
}

// authority makes a certificate for 127.0.0.1 that signs itself, and a file with it.
func authority(t *testing.T) (config *tls.Config, file string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}, file
}
