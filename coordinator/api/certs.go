package api

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"keyframe/coordinator/fault"
)

// ServerTLS is what the API's listener needs for TLS.
type ServerTLS struct {
	CertFile, KeyFile string
	// ClientCAFile, when set, asks callers for a certificate that one of its
	// authorities signed; RequireCert refuses who brings none.
	ClientCAFile string
	RequireCert  bool
	// Failed is told once of each change of the files that can't be used; the
	// ones before stay in use. May be nil.
	Failed func(error)
}

// Config reads the files, and reads them anew at the first handshake after they
// have changed: a renewed certificate needs no restart. TLS is 1.2 at least.
// The error is a *fault.Error of code config.
func (s ServerTLS) Config() (*tls.Config, error) {
	k := &keeper{from: s}
	if err := k.renew(k.stamps()); err != nil {
		return nil, fault.Wrap(err, fault.Config, "check api.certFile, api.keyFile and api.clientCAFile", "load the API's certificate")
	}
	base := k.current.Clone()
	base.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return k.now(), nil }
	return base, nil
}

// keeper holds the newest configuration that could be made of the files.
type keeper struct {
	from ServerTLS

	mu      sync.Mutex
	seen    [3]stamp // of the files when they were read last, well or not
	current *tls.Config
}

// stamp tells one version of a file from another.
type stamp struct {
	time time.Time
	size int64
	gone bool
}

func (k *keeper) stamps() (all [3]stamp) {
	for i, path := range []string{k.from.CertFile, k.from.KeyFile, k.from.ClientCAFile} {
		if path == "" {
			continue
		}
		info, err := os.Stat(path) // through links: orchestrators swap those
		if err != nil {
			all[i].gone = true
			continue
		}
		all[i] = stamp{time: info.ModTime(), size: info.Size()}
	}
	return all
}

// now is the configuration for a handshake.
func (k *keeper) now() *tls.Config {
	k.mu.Lock()
	defer k.mu.Unlock()
	if stamps := k.stamps(); stamps != k.seen {
		if err := k.renew(stamps); err != nil && k.from.Failed != nil {
			k.from.Failed(fmt.Errorf("the API's certificate files have changed and can't be used, the ones before stay in use: %w", err))
		}
	}
	return k.current
}

func (k *keeper) renew(stamps [3]stamp) error {
	k.seen = stamps
	cert, err := tls.LoadX509KeyPair(k.from.CertFile, k.from.KeyFile)
	if err != nil {
		return err
	}
	c := &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}
	if k.from.ClientCAFile != "" {
		pool, err := authorities(k.from.ClientCAFile)
		if err != nil {
			return err
		}
		c.ClientCAs, c.ClientAuth = pool, tls.VerifyClientCertIfGiven
		if k.from.RequireCert {
			c.ClientAuth = tls.RequireAndVerifyClientCert
		}
		// A resumed session would be as good as the authority was when it began.
		c.SessionTicketsDisabled = true
	}
	k.current = c
	return nil
}

func authorities(path string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s holds no PEM certificate", path)
	}
	return pool, nil
}

// ClientTLS is what a client needs beside an address with https://.
type ClientTLS struct {
	CertFile, KeyFile string // its own certificate; "" for none
	CAFile            string // authority of the coordinator's; "" is the system's
}

// UseTLS makes the client show a certificate and trust an authority. It is
// called before the first request. The error is a *fault.Error of code usage.
func (c *Client) UseTLS(files ClientTLS) error {
	if files == (ClientTLS{}) {
		return nil
	}
	bad := func(err error) error {
		return fault.Wrap(err, fault.Usage, "check --cert-file, --key-file and --ca-file", "certificates for the coordinator at %s", c.addr)
	}
	if c.base.Scheme != "https" {
		return bad(errors.New("the address doesn't begin with https://"))
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	if files.CertFile != "" || files.KeyFile != "" {
		cert, err := tls.LoadX509KeyPair(files.CertFile, files.KeyFile)
		if err != nil {
			return bad(err)
		}
		conf.Certificates = []tls.Certificate{cert}
	}
	if files.CAFile != "" {
		pool, err := authorities(files.CAFile)
		if err != nil {
			return bad(err)
		}
		conf.RootCAs = pool
	}
	c.transport.TLSClientConfig = conf
	return nil
}
