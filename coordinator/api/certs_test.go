package api

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
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/config"
	"keyframe/coordinator/fault"
)

// authority signs the certificates of a test.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string
}

var serial int64

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir()}
	a.file, _, a.cert, a.key = a.issue("ca", &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	return a
}

// issue makes a certificate, signed by the authority, or by itself when that
// has none yet.
func (a *authority) issue(name string, c *x509.Certificate) (certFile, keyFile string, cert *x509.Certificate, key *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(a.t, err)
	serial++
	c.SerialNumber, c.NotBefore = big.NewInt(serial), time.Now().Add(-time.Hour)
	if c.NotAfter.IsZero() {
		c.NotAfter = time.Now().Add(time.Hour)
	}
	if c.Subject.CommonName == "" {
		c.Subject = pkix.Name{CommonName: name}
	}
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	require.NoError(a.t, err)
	cert, err = x509.ParseCertificate(der)
	require.NoError(a.t, err)
	raw, err := x509.MarshalECPrivateKey(key)
	require.NoError(a.t, err)
	certFile, keyFile = filepath.Join(a.dir, name+".pem"), filepath.Join(a.dir, name+".key")
	a.write(certFile, "CERTIFICATE", der)
	a.write(keyFile, "EC PRIVATE KEY", raw)
	return certFile, keyFile, cert, key
}

func (a *authority) write(path, kind string, der []byte) {
	a.t.Helper()
	require.NoError(a.t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
}

// server is a certificate for 127.0.0.1.
func (a *authority) server(name string) (certFile, keyFile string) {
	a.t.Helper()
	certFile, keyFile, _, _ = a.issue(name, &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	return certFile, keyFile
}

// client is a certificate for a caller.
func (a *authority) client(name string, change ...func(*x509.Certificate)) ClientTLS {
	a.t.Helper()
	c := &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	for _, f := range change {
		f(c)
	}
	cert, key, _, _ := a.issue(name, c)
	return ClientTLS{CertFile: cert, KeyFile: key, CAFile: a.file}
}

// serveTLS serves a service with TLS on a port of its own.
func (s *service) serveTLS(files ServerTLS) (addr string) {
	s.t.Helper()
	conf, err := files.Config()
	require.NoError(s.t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(s.t, err)
	served := make(chan error, 1)
	go func() { served <- s.srv.Config.Serve(tls.NewListener(Limit(l, MaxConnections), conf)) }()
	s.t.Cleanup(func() {
		require.NoError(s.t, l.Close())
		require.Error(s.t, <-served)
	})
	return "https://" + l.Addr().String()
}

// try asks for the version, and for what an operator may do.
func try(t *testing.T, addr, token string, files ClientTLS) error {
	t.Helper()
	c, err := NewClient(addr, token)
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.UseTLS(files))
	if err := c.Call(t.Context(), "GET", "/version", nil, nil); err != nil {
		return err
	}
	err = c.Call(t.Context(), "POST", "/jobs/nobody/pause", nil, nil)
	if fault.CodeOf(err) == fault.NoJob {
		return nil // it was let in
	}
	return err
}

func TestCertificatesAreNamesAndRoles(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	cert, key := ca.server("server")
	s := newService(t, withKeys, func(o *Options) {
		o.ClientCerts = []config.ClientCert{{CommonName: "alice", Role: operator}, {SAN: "spiffe://keyframe/vera", Role: viewer}}
	})
	addr := s.serveTLS(ServerTLS{CertFile: cert, KeyFile: key, ClientCAFile: ca.file})
	spiffe, err := url.Parse("spiffe://keyframe/vera")
	require.NoError(t, err)
	alice := ca.client("alice")
	vera := ca.client("v", func(c *x509.Certificate) { c.URIs = []*url.URL{spiffe} })
	require.NoError(t, try(t, addr, "", alice))
	require.ErrorContains(t, try(t, addr, "", vera), `certificate "spiffe://keyframe/vera" has viewer`)
	require.ErrorContains(t, try(t, addr, "", ca.client("mallory")), `the certificate of "mallory" has no role here`)
	require.ErrorContains(t, try(t, addr, testKeys[0].Secret, alice), `token "vera" has viewer`, "a token counts before a certificate")
	require.ErrorContains(t, try(t, addr, "wrong-token-of-nobody", alice), "missing or wrong")
	require.NoError(t, try(t, addr, testKeys[1].Secret, ClientTLS{CAFile: ca.file}), "beside certificates tokens do")
	require.ErrorContains(t, try(t, addr, "", ClientTLS{CAFile: ca.file}), "missing or wrong")

	foreign := other.client("alice")
	foreign.CAFile = ca.file
	require.Equal(t, fault.NoDaemon, fault.CodeOf(try(t, addr, "", foreign)), "another authority's alice")
	expired := ca.client("alice", func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) })
	require.Equal(t, fault.NoDaemon, fault.CodeOf(try(t, addr, "", expired)))
	wrongUse := ca.client("alice", func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} })
	require.Equal(t, fault.NoDaemon, fault.CodeOf(try(t, addr, "", wrongUse)))
	untrusted := alice
	untrusted.CAFile = other.file
	err = try(t, addr, "", untrusted)
	require.Equal(t, fault.NoDaemon, fault.CodeOf(err))
	require.Contains(t, fault.As(err).Hint, "--ca-file")
}

func TestACertificateMayBeWantedBesideAToken(t *testing.T) {
	ca := newAuthority(t)
	cert, key := ca.server("server")
	s := newService(t, withKeys)
	addr := s.serveTLS(ServerTLS{CertFile: cert, KeyFile: key, ClientCAFile: ca.file, RequireCert: true})
	require.NoError(t, try(t, addr, testKeys[2].Secret, ca.client("anybody")))
	require.ErrorContains(t, try(t, addr, "", ca.client("anybody")), "missing or wrong", "it is no principal by itself")
	err := try(t, addr, testKeys[2].Secret, ClientTLS{CAFile: ca.file})
	require.Equal(t, fault.NoDaemon, fault.CodeOf(err))
	require.Contains(t, fault.As(err).Hint, "--cert-file")
}

func TestTLSBefore12IsRefused(t *testing.T) {
	ca := newAuthority(t)
	cert, key := ca.server("server")
	s := newService(t)
	addr := s.serveTLS(ServerTLS{CertFile: cert, KeyFile: key})
	pool, err := authorities(ca.file)
	require.NoError(t, err)
	for version, ok := range map[uint16]bool{tls.VersionTLS10: false, tls.VersionTLS11: false, tls.VersionTLS12: true, tls.VersionTLS13: true} {
		conn, err := tls.Dial("tcp", addr[len("https://"):], &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS10, MaxVersion: version})
		require.Equal(t, ok, err == nil, "%x: %v", version, err)
		if err == nil {
			require.NoError(t, conn.Close())
		}
	}
	for _, wrong := range []ServerTLS{{}, {CertFile: cert}, {CertFile: cert, KeyFile: cert}, {CertFile: cert, KeyFile: key, ClientCAFile: key}, {CertFile: cert, KeyFile: key, ClientCAFile: "/nowhere"}} {
		_, err := wrong.Config()
		require.Equal(t, fault.Config, fault.CodeOf(err))
	}
}

// TestARenewedCertificateNeedsNoRestart changes the files under a running
// server: for another certificate, for rubbish, and for another authority.
func TestARenewedCertificateNeedsNoRestart(t *testing.T) {
	old, renewed := newAuthority(t), newAuthority(t)
	cert, key := old.server("server")
	failed := make(chan error, 16)
	s := newService(t, func(o *Options) { o.ClientCerts = []config.ClientCert{{CommonName: "alice", Role: operator}} })
	clients := filepath.Join(t.TempDir(), "clients.pem")
	replace(t, clients, old.file)
	addr := s.serveTLS(ServerTLS{CertFile: cert, KeyFile: key, ClientCAFile: clients, Failed: func(err error) { failed <- err }})
	alice := old.client("alice")
	require.NoError(t, try(t, addr, "", alice))

	require.NoError(t, os.WriteFile(cert, []byte("rubbish"), 0o600))
	require.NoError(t, try(t, addr, "", alice), "the one before stays")
	require.NoError(t, try(t, addr, "", alice))
	require.ErrorContains(t, <-failed, "stay in use")
	require.Empty(t, failed, "it is told once")

	newCert, newKey := renewed.server("server")
	replace(t, key, newKey)
	replace(t, cert, newCert)
	require.Equal(t, fault.NoDaemon, fault.CodeOf(try(t, addr, "", alice)), "it is another server now")
	alice.CAFile = renewed.file
	require.NoError(t, try(t, addr, "", alice), "whose clients are the same")

	replace(t, clients, renewed.file)
	require.Equal(t, fault.NoDaemon, fault.CodeOf(try(t, addr, "", alice)), "its authority counts no more")
	require.NoError(t, try(t, addr, "", renewed.client("alice")))
}

// replace puts a copy of a file in the place of another, as renewals do.
func replace(t *testing.T, path, from string) {
	t.Helper()
	b, err := os.ReadFile(from)
	require.NoError(t, err)
	next := path + ".next"
	require.NoError(t, os.WriteFile(next, append(b, '\n'), 0o600))
	require.NoError(t, os.Rename(next, path))
}

func TestFilesOfTheClientThatAreWrong(t *testing.T) {
	ca := newAuthority(t)
	alice := ca.client("alice")
	for name, files := range map[string]ClientTLS{
		"no key": {CertFile: alice.CertFile}, "no certificate": {KeyFile: alice.KeyFile}, "no such CA": {CAFile: "/nowhere"}, "a key as CA": {CAFile: alice.KeyFile},
	} {
		c, err := NewClient("https://127.0.0.1:1", "")
		require.NoError(t, err)
		require.Equal(t, fault.Usage, fault.CodeOf(c.UseTLS(files)), name)
	}
	c, err := NewClient("127.0.0.1:1", "")
	require.NoError(t, err)
	require.ErrorContains(t, c.UseTLS(alice), "https://")
	require.NoError(t, c.UseTLS(ClientTLS{}))
}
