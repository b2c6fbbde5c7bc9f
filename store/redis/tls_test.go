//go:build services

package redis_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/redis"
)

// TestTLS: rediss:// uses TLS, and rejects an unknown certificate.
func TestTLS(t *testing.T) {
	certificate, key := selfSigned(t)
	address := freeAddress(t)
	_, port, _ := strings.Cut(address, ":")
	plain := newServer(t, "--tls-port", port, "--tls-cert-file", certificate, "--tls-key-file", key, "--tls-ca-cert-file", certificate,
		"--tls-auth-clients", "no")
	s := open(t, "rediss://"+address+"?skip_verify=true")
	mustPut(t, s, put("k", 1))
	if c := claim(t, s, epoch, 10); len(c.Occurrences) != 1 {
		t.Errorf("claimed %d", len(c.Occurrences))
	}

	s, err := redis.Open(t.Context(), "rediss://"+address)
	if err == nil {
		_ = s.Close()
	}
	if err == nil || errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("an unknown certificate is answered with %v", err)
	}
	s, err = redis.Open(t.Context(), "redis://"+address)
	if err == nil {
		_ = s.Close()
	}
	if !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), "rediss://") {
		t.Errorf("without TLS, open answers %v", err)
	}
	s, err = redis.Open(t.Context(), strings.Replace(plain.url, "redis://", "rediss://", 1)+"?dial_timeout=300ms&read_timeout=300ms")
	if err == nil {
		_ = s.Close()
	}
	if !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), "begins with redis://") {
		t.Errorf("with TLS where there is none, open answers %v", err)
	}
}

// selfSigned makes a certificate for this machine and its key, as files.
func selfSigned(t *testing.T) (certificate, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	signed, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certificate, key = filepath.Join(dir, "certificate.pem"), filepath.Join(dir, "key.pem")
	for file, block := range map[string]*pem.Block{
		certificate: {Type: "CERTIFICATE", Bytes: signed}, key: {Type: "PRIVATE KEY", Bytes: encoded},
	} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certificate, key
}
