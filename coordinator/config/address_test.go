package config

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRedisURL(t *testing.T) {
	for _, url := range []string{"redis://h", "redis://h:1/15", "rediss://u:p@h", "redis://[::1]:6379/0", "unix:///run/r.sock", "unix:///r?db=3", "redis://h/"} {
		f := Defaults()
		f.Redis.URL = url
		require.NoError(t, f.Validate(), url)
	}
	for url, want := range map[string]string{
		"":                    `scheme "" is not known: write redis://`,
		"127.0.0.1:6379":      "it is no URL",
		"localhost:6379":      "it is no URL",
		"http://h":            `scheme "http" is not known`,
		"redis://":            "it names no host",
		"redis://:6379/0":     "it names no host",
		"redis://h/first":     `database "first" is no number`,
		"redis://h/-1":        `database "-1" is no number`,
		"redis://h/0/1":       `database "0/1" is no number`,
		"redis://h:0":         `port "0" is not within 1 to 65535`,
		"redis://h:65536":     `port "65536" is not within`,
		"redis://a:1,b:2/0":   "it names several hosts",
		"redis://a,b/0":       "it names several hosts",
		"redis://h/0?db=1":    "it has options behind ? or #",
		"redis://h/0#x":       "it has options behind ? or #",
		"redis://u@h/0":       "a user without a password",
		"unix://":             "it names no socket",
		"unix://run/r.sock":   "it names no socket",
		"unix:///r?db=x":      `database "x" is no number`,
		"unix:///r?name=x":    "only ?db=N is known",
		"redis://h h":         "it is no URL",
		"redis://u:p%@h/0":    "it is no URL",
		"redis://u:p#@h:1/":   "it is no URL",
		"redis://u:1/p@h:1/0": "it is no URL",
	} {
		f := Defaults()
		f.Redis.URL = url
		problems := problemsOf(t, f.Validate())
		require.Len(t, problems, 1, url)
		require.Contains(t, problems[0], "redis.url: ")
		require.Contains(t, problems[0], want, url)
	}
}

func TestPasswordInTwoPlaces(t *testing.T) {
	f := Defaults()
	f.Redis = Redis{URL: "redis://:one@h/0", PasswordFile: file(t, "pw", "two", 0o600)}
	require.Equal(t, []string{"redis.url: redis://h/0: the password is in the URL and in passwordFile or passwordEnv: keep one"},
		problemsOf(t, f.Validate()))
}

func TestListen(t *testing.T) {
	for _, listen := range []string{"127.0.0.1:7070", "127.9.9.9:1", "[::1]:7070", "localhost:7070", "127.0.0.1:0", "unix:/run/k.sock"} {
		f := Defaults()
		f.API.Listen = listen
		require.NoError(t, f.Validate(), listen)
	}
	for listen, want := range map[string]string{
		"":                  "it is no address with a port",
		"7070":              "it is no address with a port",
		"127.0.0.1":         "it is no address with a port",
		"unix:":             "it names no socket",
		"127.0.0.1:":        `port "" is not within 0 to 65535`,
		"127.0.0.1:70700":   `port "70700" is not within`,
		"127.0.0.1:http":    `port "http" is not within`,
		":7070":             "others than this machine could reach it: set api.tokenFile or api.tokenEnv",
		"0.0.0.0:7070":      "others than this machine could reach it",
		"[::]:7070":         "others than this machine could reach it",
		"192.0.2.7:7070":    "others than this machine could reach it",
		"example.test:7070": "others than this machine could reach it",
	} {
		f := Defaults()
		f.API.Listen = listen
		problems := problemsOf(t, f.Validate())
		require.Len(t, problems, 1, listen)
		require.Contains(t, problems[0], "api.listen: "+text(listen)+": ")
		require.Contains(t, problems[0], want, listen)
	}
	f := Defaults()
	f.API = API{Listen: "0.0.0.0:7070", MaxImport: DefaultMaxImport, TokenFile: file(t, "token", "t0ken-of-16-bytes", 0o600)}
	require.NoError(t, f.Validate(), "with a token")
}

// pair makes a certificate and its key, and gives the paths of their files.
func pair(t *testing.T) (cert, key string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(7), NotAfter: time.Unix(4e9, 0), IsCA: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &k.PublicKey, k)
	require.NoError(t, err)
	priv, err := x509.MarshalECPrivateKey(k)
	require.NoError(t, err)
	encode := func(name, kind string, b []byte) string {
		return file(t, name, string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b})), 0o600)
	}
	return encode("cert.pem", "CERTIFICATE", der), encode("key.pem", "EC PRIVATE KEY", priv)
}

func TestCertificates(t *testing.T) {
	cert, key := pair(t)
	_, otherKey := pair(t)
	good := Defaults()
	good.Redis = Redis{URL: "rediss://h:6380/0", CAFile: cert, CertFile: cert, KeyFile: key}
	good.API.CertFile, good.API.KeyFile = cert, key
	require.NoError(t, good.Validate())
	require.Empty(t, good.Warnings())
	for want, spoil := range map[string]func(*File){
		"redis.url: redis://h:6380/0: caFile, certFile and keyFile are for TLS": func(f *File) { f.Redis.URL = "redis://h:6380/0" },
		"redis.caFile: " + text(key) + ": holds no PEM certificate":             func(f *File) { f.Redis.CAFile = key },
		`redis.caFile: "/nowhere": can't be read`:                               func(f *File) { f.Redis.CAFile = "/nowhere" },
		"redis.keyFile: \"\": certFile is given without it":                     func(f *File) { f.Redis.KeyFile = "" },
		"redis.certFile: \"\": keyFile is given without it":                     func(f *File) { f.Redis.CertFile = "" },
		"it makes no certificate":                                               func(f *File) { f.Redis.KeyFile = otherKey },
		"api.keyFile: \"\": certFile is given without it":                       func(f *File) { f.API.KeyFile = "" },
		"api.certFile: " + text(key):                                            func(f *File) { f.API.CertFile = key },
	} {
		f := good
		spoil(&f)
		problems := problemsOf(t, f.Validate())
		require.Len(t, problems, 1, want)
		require.Contains(t, problems[0], want)
	}
}
