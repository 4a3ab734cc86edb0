package config

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// check finds what is wrong with where the state is. No value that may hold a
// password gets into a problem.
func (r Redis) check(l *list, at string) {
	u, ok := r.parsed()
	if ok {
		r.checkURL(l, at, u)
	} else { // what is wrong with it can't be said without showing it
		l.add(at+".url", "", "it is no URL: write redis://host:port/db, and %%XX for special characters in a password")
	}
	if _, has := u.User.Password(); has && (r.PasswordFile != "" || r.PasswordEnv != "") {
		l.add(at+".url", r.SafeURL(), "the password is in the URL and in passwordFile or passwordEnv: keep one")
	}
	checkSecret(l, at, "password", secret{at + ".password", r.PasswordFile, r.PasswordEnv})
	if r.CAFile+r.CertFile+r.KeyFile != "" && ok && u.Scheme != "rediss" {
		l.add(at+".url", r.SafeURL(), "caFile, certFile and keyFile are for TLS: write rediss://, or remove them")
	}
	oneOf(l, at+".tracking", cmp.Or(r.Tracking, TrackAuto), TrackAuto, TrackFields, TrackKeys, TrackOff)
	checkCA(l, at+".caFile", r.CAFile)
	checkPair(l, at, r.CertFile, r.KeyFile)
}

// checkURL knows the forms that the Redis store takes.
func (r Redis) checkURL(l *list, at string, u *url.URL) {
	safe := r.SafeURL()
	bad := func(format string, args ...any) { l.add(at+".url", safe, format, args...) }
	switch u.Scheme {
	case "redis", "rediss":
		r.checkTCP(bad, u)
	case "unix":
		if u.Path == "" || u.Host != "" {
			bad("it names no socket: write unix:///path/redis.sock?db=0 (three slashes)")
		} else if q := u.Query(); len(q) > 1 || len(q) == 1 && !q.Has("db") {
			bad("it has options: only ?db=N is known")
		} else if db := q.Get("db"); db != "" && !isDB(db) {
			bad("database %q is no number: write ?db=0", db)
		}
	default:
		bad("scheme %q is not known: write redis://, rediss:// (TLS) or unix://", u.Scheme)
	}
	if _, has := u.User.Password(); u.User.Username() != "" && !has && r.PasswordFile == "" && r.PasswordEnv == "" {
		bad("a user without a password: set %s.passwordFile or %s.passwordEnv", at, at)
	}
}

func (r Redis) checkTCP(bad func(string, ...any), u *url.URL) {
	db, port := strings.Trim(u.Path, "/"), u.Port()
	switch {
	case u.Hostname() == "":
		bad("it names no host: write %s://127.0.0.1:6379/0", u.Scheme)
	case strings.Contains(u.Host, ","):
		bad("it names several hosts: name one")
	case port != "" && !isPort(port):
		bad("port %q is not within 1 to 65535", port)
	case u.RawQuery != "" || u.Fragment != "":
		bad("it has options behind ? or #: remove them")
	case db != "" && !isDB(db):
		bad("database %q is no number: end the URL in a number, such as /0", db)
	}
}

func isDB(s string) bool {
	n, err := strconv.Atoi(s)
	return err == nil && n >= 0
}

func isPort(s string) bool {
	n, err := strconv.ParseUint(s, 10, 16)
	return err == nil && n > 0
}

// check finds what is wrong with where the API listens.
func (a API) check(l *list) {
	open := a.checkListen(l)
	if open && len(a.all())+len(a.ClientCerts) == 0 {
		l.add("api.listen", text(a.Listen),
			"others than this machine could reach it: set api.tokenFile or api.tokenEnv, or listen on 127.0.0.1")
	}
	a.checkTokens(l)
	a.checkCerts(l)
	a.checkImport(l)
	checkPair(l, "api", a.CertFile, a.KeyFile)
}

// checkListen reports whether the address can be reached from elsewhere.
func (a API) checkListen(l *list) (open bool) {
	const field, want = "api.listen", "write 127.0.0.1:7070, or unix:/path/keyframe.sock"
	if path, ok := strings.CutPrefix(a.Listen, "unix:"); ok {
		if path == "" {
			l.add(field, text(a.Listen), "it names no socket: %s", want)
		}
		return false
	}
	host, port, err := net.SplitHostPort(a.Listen)
	if err != nil {
		l.add(field, text(a.Listen), "it is no address with a port: %s", want)
		return false
	}
	if port != "0" && !isPort(port) {
		l.add(field, text(a.Listen), "port %q is not within 0 to 65535: %s", port, want)
	}
	return !loopback(host)
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func checkPair(l *list, at, cert, key string) {
	switch {
	case cert == "" && key == "":
	case cert == "":
		l.add(at+".certFile", text(cert), "keyFile is given without it: give both or none")
	case key == "":
		l.add(at+".keyFile", text(key), "certFile is given without it: give both or none")
	default:
		if _, err := tls.LoadX509KeyPair(cert, key); err != nil {
			l.add(at+".certFile", text(cert), "with keyFile %q it makes no certificate: %v", key, err)
		}
	}
}

func checkCA(l *list, field, path string) {
	if path == "" {
		return
	}
	pem, err := readLimited(path)
	if err != nil {
		l.add(field, text(path), "can't be read: %v", err)
	} else if !x509.NewCertPool().AppendCertsFromPEM(pem) {
		l.add(field, text(path), "holds no PEM certificate: give the file of the authority that signed the server's")
	}
}

// parsed is the URL in parts; false when it is none whose parts are certain. A
// password that isn't escaped may then be in any of them.
func (r Redis) parsed() (*url.URL, bool) {
	u, err := url.Parse(r.URL)
	if err != nil || u.Opaque != "" || strings.Contains(u.Path+u.RawQuery+u.Fragment, "@") {
		return &url.URL{}, false
	}
	return u, true
}

// SafeURL is the URL without user, password and options: for logs and people.
func (r Redis) SafeURL() string {
	u, ok := r.parsed()
	if !ok {
		return "(no URL)"
	}
	safe := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}
	if db := u.Query().Get("db"); u.Scheme == "unix" && isDB(db) {
		safe.RawQuery = "db=" + db
	}
	return safe.String()
}

// Beside reports whether drills are made beside the state.
func (d Drill) Beside() bool { return d == Drill{} }

// Warnings are what is allowed and yet unwise, for the log at start and for
// `config check`: one line each.
func (f File) Warnings() []string {
	var all []string
	secrets := []secret{
		{"redis.password", f.Redis.PasswordFile, f.Redis.PasswordEnv},
		{"drill.redis.password", f.Drill.Redis.PasswordFile, f.Drill.Redis.PasswordEnv},
	}
	for _, t := range f.API.all() {
		secrets = append(secrets, t.secret)
	}
	secrets = append(secrets, f.Alarms.secrets()...)
	for _, s := range secrets {
		if w := s.warning(); w != "" {
			all = append(all, w)
		}
	}
	host, _, err := net.SplitHostPort(f.API.Listen)
	if err == nil && !loopback(host) && f.API.CertFile == "" {
		all = append(all, "api.listen "+text(f.API.Listen)+": tokens cross the network in the clear: set api.certFile and api.keyFile, or put a TLS proxy before it")
	}
	return slices.Clip(all)
}
