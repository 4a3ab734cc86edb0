package redis

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"keyframe/statebackend"
)

// DefaultTimeout is how long a connection attempt, or a wait for the next
// byte of an answer, may take when the configuration doesn't say.
const DefaultTimeout = 10 * time.Second

// Config says where a Redis server is and how to reach it.
type Config struct {
	// URL is redis://, rediss:// (TLS) or unix://, with user, password and
	// database: redis://user:password@host:port/db, unix:///path?db=n.
	URL string
	// Password is used instead of the URL's when it isn't empty.
	Password string
	// CAFile is a PEM file of the authorities to trust instead of the
	// system's; CertFile and KeyFile are our own certificate (rediss:// only).
	CAFile   string
	CertFile string
	KeyFile  string
	// Timeout bounds each connection attempt and each wait for an answer; 0
	// is DefaultTimeout.
	Timeout time.Duration
	// Tracking is how writes are followed while a cut reads, and between cuts:
	// TrackAuto ("" too), TrackFields, TrackKeys or TrackOff.
	Tracking string
	// Lazy opens without asking the server, so that a service can start
	// beside a dead one. Mistakes in the configuration are still found.
	Lazy bool
}

// address is a parsed Config: all that dialling needs.
type address struct {
	scheme   string // redis, rediss or unix
	network  string // tcp or unix
	addr     string // host:port or the socket's path
	user     string
	password string
	db       int
	tls      *tls.Config // nil without TLS
	timeout  time.Duration
}

// server is the address without user and password.
func (a address) server() string {
	if a.network == "unix" {
		return "unix://" + a.addr + "?db=" + strconv.Itoa(a.db)
	}
	return a.scheme + "://" + a.addr + "/" + strconv.Itoa(a.db)
}

func badAddress(format string, args ...any) error {
	return fmt.Errorf("%w of Redis: "+format, append([]any{statebackend.ErrInvalidConfig}, args...)...)
}

// parse reads the configuration. Its errors never contain the URL whole: it
// may hold a password, also where it can't be parsed.
func parse(c Config) (address, error) {
	u, err := url.Parse(c.URL)
	if err != nil {
		// url.Error repeats the URL, and some causes repeat a piece of it.
		return address{}, badAddress("not a URL: want redis://user:password@host:port/db (percent-encode special characters of the password)")
	}
	if strings.Contains(u.Path+u.RawQuery+u.Fragment+u.Opaque, "@") {
		// An unencoded password was cut into other parts of the URL, which
		// the messages below would repeat.
		return address{}, badAddress("there is an @ behind the host: percent-encode special characters of the password")
	}
	a := address{scheme: u.Scheme, network: "tcp", timeout: c.Timeout}
	if a.timeout <= 0 {
		a.timeout = DefaultTimeout
	}
	a.user = u.User.Username()
	a.password, _ = u.User.Password()
	if c.Password != "" {
		a.password = c.Password
	}
	if a.user != "" && a.password == "" {
		return address{}, badAddress("user %q without a password: give one in the URL, the environment or a file", a.user)
	}
	switch u.Scheme {
	case "redis", "rediss":
		err = a.parseTCP(u)
	case "unix":
		err = a.parseUnix(u)
	default:
		return address{}, badAddress("scheme %q: want redis, rediss or unix", u.Scheme)
	}
	if err != nil {
		return address{}, err
	}
	return a, a.loadTLS(c)
}

func (a *address) parseTCP(u *url.URL) error {
	if u.RawQuery != "" || u.Fragment != "" || u.Opaque != "" {
		return badAddress("only redis://user:password@host:port/db is understood, without options after ? or #")
	}
	host, port := u.Hostname(), u.Port()
	if host == "" {
		return badAddress("it has no host: want redis://host:port/db")
	}
	if strings.Contains(u.Host, ",") {
		return badAddress("one host is supported, not a list (%s)", u.Host)
	}
	if port == "" {
		port = "6379"
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return badAddress("port %q: want 1 to 65535", port)
	}
	a.addr = net.JoinHostPort(host, port)
	return a.parseDB(strings.Trim(u.Path, "/"))
}

func (a *address) parseUnix(u *url.URL) error {
	a.network = "unix"
	a.addr = u.Path
	if a.addr == "" || u.Host != "" {
		return badAddress("want unix:///path/to/socket?db=n (three slashes)")
	}
	q := u.Query()
	for name := range q {
		if name != "db" {
			return badAddress("option %q: only db is understood", name)
		}
	}
	return a.parseDB(q.Get("db"))
}

func (a *address) parseDB(s string) error {
	if s == "" {
		return nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 {
		return badAddress("database %q: want a number from 0 on", s)
	}
	a.db = n
	return nil
}

func (a *address) loadTLS(c Config) error {
	if a.scheme != "rediss" {
		if c.CAFile != "" || c.CertFile != "" || c.KeyFile != "" {
			return badAddress("certificate files are given, but %s:// doesn't use TLS: write rediss://", a.scheme)
		}
		return nil
	}
	host, _, err := net.SplitHostPort(a.addr)
	if err != nil {
		return badAddress("%v", err)
	}
	a.tls = &tls.Config{ServerName: host, MinVersion: tls.VersionTLS12}
	if c.CAFile != "" {
		pem, err := os.ReadFile(c.CAFile)
		if err != nil {
			return fmt.Errorf("%w of Redis: certificate authorities: %w", statebackend.ErrInvalidConfig, err)
		}
		a.tls.RootCAs = x509.NewCertPool()
		if !a.tls.RootCAs.AppendCertsFromPEM(pem) {
			return badAddress("file %s holds no PEM certificate", c.CAFile)
		}
	}
	if c.CertFile == "" && c.KeyFile == "" {
		return nil
	}
	if c.CertFile == "" || c.KeyFile == "" {
		return badAddress("certificate and key file belong together: give both or none")
	}
	cert, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
	if err != nil {
		return fmt.Errorf("%w of Redis: certificate %s: %w", statebackend.ErrInvalidConfig, c.CertFile, err)
	}
	a.tls.Certificates = []tls.Certificate{cert}
	return nil
}
