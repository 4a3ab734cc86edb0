package redistest

import (
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
)

// Certificates is a self-signed certificate for loopback, made for one test.
type Certificates struct {
	CAFile   string
	CertFile string
	KeyFile  string
	pool     *x509.CertPool
}

// NewCertificates makes a certificate that is its own authority.
func NewCertificates(tb testing.TB) *Certificates {
	tb.Helper()
	check := func(err error) {
		if err != nil {
			tb.Fatal(err)
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(err)
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "keyframe test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	check(err)
	keyDER, err := x509.MarshalECPrivateKey(key)
	check(err)
	dir := tb.TempDir()
	c := &Certificates{
		CAFile: filepath.Join(dir, "ca.pem"), CertFile: filepath.Join(dir, "ca.pem"),
		KeyFile: filepath.Join(dir, "key.pem"), pool: x509.NewCertPool(),
	}
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	check(os.WriteFile(c.CertFile, certPEM, 0o600))
	check(os.WriteFile(c.KeyFile, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER}), 0o600))
	c.pool.AppendCertsFromPEM(certPEM)
	return c
}

// Config is a client configuration that trusts the certificate.
func (c *Certificates) Config() *tls.Config {
	return &tls.Config{RootCAs: c.pool, MinVersion: tls.VersionTLS12}
}
