package api

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"slices"

	"github.com/danielgtaylor/huma/v2"

	"keyframe/coordinator/config"
	"keyframe/coordinator/fault"
)

// The roles, as routes declare them.
const (
	viewer   = config.RoleViewer
	operator = config.RoleOperator
	admin    = config.RoleAdmin
)

// roleExtension is where the OpenAPI document says which role a request needs.
const roleExtension = "x-role"

// declare writes down which role a route needs, and whether its requests go
// into the audit log. Each route is declared, also those that don't go through
// add: a test fails for one that isn't.
func declare(op *huma.Operation, role config.Role) {
	if op.Extensions == nil {
		op.Extensions = map[string]any{}
	}
	op.Extensions[roleExtension] = string(role)
}

// needOf is the role that a route needs. One that declares none, or one that is
// not known, is an admin's unless it only reads.
func needOf(op *huma.Operation) config.Role {
	declared, _ := op.Extensions[roleExtension].(string)
	switch role := config.Role(declared); {
	case role.Holds(role):
		return role
	case op.Method == http.MethodGet:
		return viewer
	}
	return admin
}

// Principal is who makes a request.
type Principal struct {
	Name string      // of the token or certificate
	By   string      // byToken, byCertificate, byLoopback
	Role config.Role // what they may do
}

// How a principal is known.
const (
	byToken       = "token"
	byCertificate = "certificate"
	byLoopback    = "loopback" // no tokens: whoever reaches it is this machine's
	byItself      = "coordinator"
)

// caller is a request's principal with where it came from; nil when the guard
// has seen no request, such as in tests of the routes alone.
type caller struct {
	Principal
	request string // id
	source  string
	body    []byte // as it was sent
	action  string
	job     string
	params  map[string]any
}

type callerKey struct{}

func callerOf(ctx context.Context) *caller {
	c, _ := ctx.Value(callerKey{}).(*caller)
	return c
}

// requestHeader is the id of a request, on its answer and in the audit log.
const requestHeader = "Keyframe-Request"

func newCaller(w http.ResponseWriter, r *http.Request, p Principal) *caller {
	id := make([]byte, 8)
	rand.Read(id) // never fails (it ends the process instead)
	c := &caller{Principal: p, request: hex.EncodeToString(id), source: r.RemoteAddr}
	if overSocket(r) {
		c.source = "unix socket"
	}
	w.Header().Set(requestHeader, c.request)
	return c
}

// keyring tells who has a token, without saying by its time how much of it was
// right: all tokens are compared, each whole, by their hashes.
type keyring struct {
	keys   []config.Key
	hashes [][sha256.Size]byte
}

func newKeyring(keys []config.Key) keyring {
	k := keyring{keys: keys}
	for _, key := range keys {
		k.hashes = append(k.hashes, sha256.Sum256([]byte(key.Secret)))
	}
	return k
}

// owner is whose token it is; false for nobody's.
func (k keyring) owner(token string) (Principal, bool) {
	got, found := sha256.Sum256([]byte(token)), -1
	for i := range k.hashes {
		found = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(got[:], k.hashes[i][:]), i, found)
	}
	if found < 0 {
		return Principal{}, false
	}
	return Principal{Name: k.keys[found].Name, By: byToken, Role: k.keys[found].Role}, true
}

// certOwner is whose certificate it is, by the first rule that fits.
func certOwner(rules []config.ClientCert, cert *x509.Certificate) (Principal, bool) {
	for _, c := range rules {
		if c.CommonName != "" && c.CommonName == cert.Subject.CommonName || c.SAN != "" && slices.Contains(namesOf(cert), c.SAN) {
			return Principal{Name: c.Name(), By: byCertificate, Role: c.Role}, true
		}
	}
	return Principal{}, false
}

// namesOf are a certificate's alternative names.
func namesOf(cert *x509.Certificate) []string {
	all := slices.Concat(cert.DNSNames, cert.EmailAddresses)
	for _, ip := range cert.IPAddresses {
		all = append(all, ip.String())
	}
	for _, u := range cert.URIs {
		all = append(all, u.String())
	}
	return all
}

// gate decides who makes a request.
type gate struct {
	ring  *Keyring
	keyed bool // there were tokens or certificates at the start
	certs []config.ClientCert
	audit *Auditor
}

func newGate(o Options) gate {
	keys := o.Keys
	if o.Token != "" {
		keys = append([]config.Key{{Name: config.DefaultToken, Role: admin, Secret: o.Token}}, keys...)
	}
	g := gate{ring: o.Keyring, keyed: len(keys)+len(o.ClientCerts) > 0, certs: o.ClientCerts, audit: o.Audit}
	if g.ring == nil {
		g.ring = NewKeyring(keys)
	}
	return g
}

// who is the principal of a request, or nil with the answer that was given. A
// token counts before a certificate; a wrong one is no reason to look on.
func (g gate) who(w http.ResponseWriter, r *http.Request) *Principal {
	if !g.keyed {
		if !(overSocket(r) || localHost(r.Host)) || !sameOrigin(r) {
			writeProblem(w, http.StatusForbidden, fault.New(fault.Denied, "call it as 127.0.0.1, localhost or through its socket, or set api.tokenFile", "host %q or origin %q is not served without a token", r.Host, r.Header.Get("Origin")))
			return nil
		}
		return &Principal{Name: byLoopback, By: byLoopback, Role: admin}
	}
	if r.Header.Get("Authorization") != "" || r.TLS == nil || len(r.TLS.VerifiedChains) == 0 || len(g.certs) == 0 {
		if p, ok := g.ring.owner(bearer(r)); ok {
			return &p
		}
		g.audit.unknown(r)
		w.Header().Set("WWW-Authenticate", "Bearer")
		hint := "set COORDINATOR_TOKEN to the token of this coordinator"
		if len(g.certs) > 0 {
			hint += ", or give a certificate with --cert-file and --key-file"
		}
		writeProblem(w, http.StatusUnauthorized, fault.New(fault.Denied, hint, "the API token is missing or wrong"))
		return nil
	}
	cert := r.TLS.PeerCertificates[0]
	if p, ok := certOwner(g.certs, cert); ok {
		return &p
	}
	g.audit.unknown(r)
	writeProblem(w, http.StatusForbidden, fault.New(fault.Denied, "name it in api.clientCerts, or use one that is", "the certificate of %q has no role here", cert.Subject.CommonName))
	return nil
}

// guard lets a request on with its principal. Where there are no tokens, it
// keeps web pages of other hosts from reaching a loopback address through the
// operator's browser.
func (g gate) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/healthz" || r.URL.Path == "/readyz" {
			next.ServeHTTP(w, r)
			return
		}
		p := g.who(w, r)
		if p == nil {
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), callerKey{}, newCaller(w, r, *p))))
	})
}

// maxPathName is the longest name in a path in bytes: the checkpoint store
// takes no longer one, so there is no thing of that name.
const maxPathName = 8192

// authorize lets a request on to its handler if its principal may make it.
func (r routes) authorize(ctx huma.Context, next func(huma.Context)) {
	c := callerOf(ctx.Context())
	if c == nil {
		c = &caller{} // holds no role
	}
	c.describe(ctx)
	if need := needOf(ctx.Operation()); !c.Role.Holds(need) {
		f := fault.New(fault.Denied, "use a token or certificate of that role", "%s needs the role %s; %s %q has %s", c.action, need, c.By, c.Name, c.Role)
		r.Audit.denied(c, f)
		refuse(ctx, http.StatusForbidden, f)
		return
	}
	for _, p := range ctx.Operation().Parameters {
		if n := len(ctx.Param(p.Name)); p.In == "path" && n > maxPathName {
			refuse(ctx, http.StatusBadRequest, fault.New(fault.Usage, describeHint, "%s has %d bytes: names have at most %d", p.Name, n, maxPathName))
			return
		}
	}
	next(ctx)
}

// refuse answers in the place of a handler.
func refuse(ctx huma.Context, status int, f *fault.Error) {
	ctx.SetHeader("Content-Type", "application/json")
	ctx.SetStatus(status)
	// The client may be gone; there is nobody else to tell.
	_ = json.NewEncoder(ctx.BodyWriter()).Encode(Problem{Fault: *f})
}
