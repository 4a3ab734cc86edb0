package config

import (
	"crypto/subtle"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Role is what a caller of the API may do. Each holds the ones before it.
type Role string

// The roles.
const (
	RoleViewer   Role = "viewer"   // read everything but the audit log
	RoleOperator Role = "operator" // take and check checkpoints; nothing that changes the state
	RoleAdmin    Role = "admin"    // everything
)

// Roles are all roles, the least first.
var Roles = []Role{RoleViewer, RoleOperator, RoleAdmin}

// Holds reports whether a caller with this role may do what needs the other. A
// role that is not known holds none and is held by none.
func (r Role) Holds(need Role) bool {
	has, want := slices.Index(Roles, r), slices.Index(Roles, need)
	return has >= 0 && want >= 0 && has >= want
}

// Token is one token of the API, which stands in a file or in an environment
// variable.
type Token struct {
	Name string `yaml:"name"`
	Role Role   `yaml:"role"`
	File string `yaml:"file"`
	Env  string `yaml:"env"`
}

// ClientCert gives a role to who comes with a certificate that clientCAFile's
// authority signed: by its common name, or by one of its alternative names (DNS
// name, mail address, IP address or URI).
type ClientCert struct {
	CommonName string `yaml:"commonName"`
	SAN        string `yaml:"san"`
	Role       Role   `yaml:"role"`
}

// Name is what the certificate's owner is called in the audit log.
func (c ClientCert) Name() string { return c.CommonName + c.SAN }

// Audit says where the audit log is.
type Audit struct {
	Path string `yaml:"path"` // "" is the store's path with .audit behind it
}

// AuditPath is where the audit log is.
func (f File) AuditPath() string {
	if f.Audit.Path != "" {
		return f.Audit.Path
	}
	return f.Store.Path + ".audit"
}

// DefaultToken is the name of the token of tokenFile and tokenEnv, which is an
// admin's.
const DefaultToken = "default"

// MinToken is the least length of a token in bytes.
const MinToken = 16

// Key is a token with its secret. It is never printed: see Format.
type Key struct {
	Name   string
	Role   Role
	Secret string
}

var _ fmt.Formatter = Key{}

// Format leaves the secret out, whatever the verb.
func (k Key) Format(f fmt.State, _ rune) { _, _ = fmt.Fprintf(f, "token %q (%s)", k.Name, k.Role) }

// Keys reads the secrets of all tokens, that of tokenFile and tokenEnv first.
// None is no error: then the API asks for no token. The error is a *fault.Error
// of code config.
func (a API) Keys() ([]Key, error) {
	var keys []Key
	for _, t := range a.all() {
		v, err := t.secret.value()
		if err != nil {
			return nil, err
		}
		keys = append(keys, Key{Name: t.Name, Role: t.Role, Secret: v})
	}
	return keys, nil
}

// tokenAt is a token with the field that it stands in.
type tokenAt struct {
	Token
	secret
	at, file, env string // fields, for problems
}

func (a API) all() []tokenAt {
	var all []tokenAt
	if a.TokenFile != "" || a.TokenEnv != "" {
		all = append(all, tokenAt{Token: Token{Name: DefaultToken, Role: RoleAdmin}, secret: secret{"api.token", a.TokenFile, a.TokenEnv},
			at: "api", file: "api.tokenFile", env: "api.tokenEnv"})
	}
	for i, t := range a.Tokens {
		at := "api.tokens[" + strconv.Itoa(i) + "]"
		all = append(all, tokenAt{Token: t, secret: secret{at + ".", t.File, t.Env}, at: at, file: at + ".file", env: at + ".env"})
	}
	return all
}

// checkTokens finds what is wrong with the tokens. What they hold gets into no
// problem, and neither does how much two of them have in common.
func (a API) checkTokens(l *list) {
	names := map[string]string{} // name → field
	var before []tokenAt
	for _, t := range a.all() {
		if t.at == "api" {
			checkSecret(l, "api", "token", t.secret)
		} else {
			t.check(l, names)
		}
		names[t.Name] = t.at
		t.checkSecret(l, before)
		before = append(before, t)
	}
}

// place is the field that says where the token is, and what it says.
func (t tokenAt) place() (field, value string) {
	if t.secret.file != "" {
		return t.file, text(t.secret.file)
	}
	return t.env, text(t.secret.env)
}

// checkSecret looks at a token that can be read.
func (t tokenAt) checkSecret(l *list, before []tokenAt) {
	v, err := t.secret.read()
	if err != nil || v == "" || t.secret.file != "" && t.secret.env != "" {
		return // told already
	}
	field, value := t.place()
	if len(v) < MinToken {
		l.add(field, value, "the token is shorter than %d characters: make one with `openssl rand -hex 32`", MinToken)
	} else if strings.ContainsFunc(v, func(r rune) bool { return r <= ' ' || r > '~' }) {
		l.add(field, value, "the token has spaces, control characters or others that no HTTP header carries: make one with `openssl rand -hex 32`")
	}
	for _, b := range before {
		if other, err := b.secret.read(); err == nil && subtle.ConstantTimeCompare([]byte(other), []byte(v)) == 1 {
			where, _ := b.place()
			l.add(field, value, "it holds the same token as %s: nobody could tell who uses it; give each its own", where)
		}
	}
}

func (t tokenAt) check(l *list, seen map[string]string) {
	if strings.TrimSpace(t.Name) == "" {
		l.add(t.at+".name", text(t.Name), "give the token a name: the audit log tells by it who did what")
	} else if other, ok := seen[t.Name]; ok {
		l.add(t.at+".name", text(t.Name), "%s has the same name: give each token its own", other)
	}
	oneOf(l, t.at+".role", t.Role, Roles...)
	switch {
	case t.File == "" && t.Env == "":
		l.add(t.at+".file", text(t.File), "say where the token is: file or env")
	case t.File != "" && t.Env != "":
		l.add(t.at+".file", text(t.File), "env %q is set too: keep one", t.Env)
	default:
		if _, err := t.secret.read(); err != nil {
			field, value := t.place()
			l.add(field, value, "%v", err)
		}
	}
}

// checkCerts finds what is wrong with client certificates.
func (a API) checkCerts(l *list) {
	const ca = "api.clientCAFile"
	if a.ClientCAFile != "" {
		checkCA(l, ca, a.ClientCAFile)
		switch {
		case strings.HasPrefix(a.Listen, "unix:"):
			l.add(ca, text(a.ClientCAFile), "api.listen is a socket, where there are no certificates: remove it")
		case a.CertFile == "":
			l.add(ca, text(a.ClientCAFile), "client certificates need TLS: set api.certFile and api.keyFile")
		}
		if len(a.ClientCerts)+len(a.all()) == 0 {
			l.add(ca, text(a.ClientCAFile), "nobody could do anything: say who may do what in api.clientCerts or api.tokens")
		}
	}
	seen := map[string]int{}
	for i, c := range a.ClientCerts {
		at := "api.clientCerts[" + strconv.Itoa(i) + "]"
		if a.ClientCAFile == "" {
			l.add(at, "", "set api.clientCAFile: the authority whose certificates count")
		}
		if (c.CommonName == "") == (c.SAN == "") {
			l.add(at, "", "give commonName or san, and not both")
		}
		oneOf(l, at+".role", c.Role, Roles...)
		kind := "cn " + c.CommonName
		if c.SAN != "" {
			kind = "san " + c.SAN
		}
		if other, ok := seen[kind]; ok {
			l.add(at, text(c.Name()), "api.clientCerts[%d] is for the same name: remove one", other)
		}
		seen[kind] = i
	}
}
