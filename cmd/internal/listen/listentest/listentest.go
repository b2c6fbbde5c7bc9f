// Package listentest issues certificates for tests.
package listentest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/cmd/internal/listen"
)

// Authority issues certificates.
type Authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// Certificate describes a certificate to issue.
type Certificate struct {
	// Ends is its end; zero means in a year.
	Ends time.Time
}

// NewAuthority makes an authority.
func NewAuthority(t *testing.T) *Authority {
	t.Helper()
	a := &Authority{key: newKey(t)}
	template := &x509.Certificate{
		SerialNumber: serial(t), Subject: pkix.Name{CommonName: "authority"}, NotAfter: time.Now().AddDate(2, 0, 0),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.certificate = a.sign(t, template, template, a.key.Public())
	return a
}

// Pool returns a pool that trusts the authority.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.certificate)
	return pool
}

// Write writes the authority's certificate into a file.
func (a *Authority) Write(t *testing.T, path string) {
	t.Helper()
	write(t, path, "CERTIFICATE", a.certificate.Raw)
}

// Issue writes a new certificate of a server at 127.0.0.1 with the name carillon.test, and its key, to tls.crt and
// tls.key in a directory.
func (a *Authority) Issue(t *testing.T, dir string, c Certificate) listen.TLS {
	t.Helper()
	if c.Ends.IsZero() {
		c.Ends = time.Now().AddDate(1, 0, 0)
	}
	issued, key := a.issue(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: "carillon.test"}, DNSNames: []string{"carillon.test"}, NotAfter: c.Ends,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	encoded, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	files := listen.TLS{CertFile: filepath.Join(dir, "tls.crt"), KeyFile: filepath.Join(dir, "tls.key")}
	write(t, files.CertFile, "CERTIFICATE", issued.Raw)
	write(t, files.KeyFile, "PRIVATE KEY", encoded)
	return files
}

// Client returns a new certificate of a client.
func (a *Authority) Client(t *testing.T) []tls.Certificate {
	t.Helper()
	issued, key := a.issue(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: "client"}, NotAfter: time.Now().AddDate(1, 0, 0),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	return []tls.Certificate{{Certificate: [][]byte{issued.Raw}, PrivateKey: key}}
}

func (a *Authority) issue(t *testing.T, template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key := newKey(t)
	template.SerialNumber = serial(t)
	template.NotBefore = template.NotAfter.AddDate(-2, 0, 0)
	return a.sign(t, template, a.certificate, key.Public()), key
}

func (a *Authority) sign(t *testing.T, template, parent *x509.Certificate, key crypto.PublicKey) *x509.Certificate {
	t.Helper()
	raw, err := x509.CreateCertificate(rand.Reader, template, parent, key, a.key)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := x509.ParseCertificate(raw)
	if err != nil {
		t.Fatal(err)
	}
	return signed
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func serial(t *testing.T) *big.Int {
	t.Helper()
	n, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func write(t *testing.T, path, kind string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: content}), 0o600); err != nil {
		t.Fatal(err)
	}
}
