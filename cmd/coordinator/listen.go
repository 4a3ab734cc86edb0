package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"

	"keyframe/coordinator/api"
	"keyframe/coordinator/config"
	"keyframe/coordinator/fault"
)

// listen opens the API's address: TCP, with TLS where there is a certificate,
// or a unix socket that only its owner can open. Open connections are bounded.
func listen(at config.API, log hclog.Logger) (net.Listener, error) {
	if path, ok := strings.CutPrefix(at.Listen, "unix:"); ok {
		l, err := listenUnix(path)
		if err != nil {
			return nil, err
		}
		return api.Limit(l, api.MaxConnections), nil
	}
	var secure *tls.Config
	if at.CertFile != "" {
		var err error
		files := api.ServerTLS{CertFile: at.CertFile, KeyFile: at.KeyFile, ClientCAFile: at.ClientCAFile, RequireCert: len(at.ClientCerts) == 0,
			Failed: func(err error) { log.Error(err.Error()) }}
		if secure, err = files.Config(); err != nil {
			return nil, err
		}
	}
	l, err := net.Listen("tcp", at.Listen)
	if err != nil {
		return nil, cantListen(at.Listen, err)
	}
	l = api.Limit(l, api.MaxConnections)
	if secure != nil {
		l = tls.NewListener(l, secure)
	}
	return l, nil
}

// errTaken says that another coordinator serves a socket.
var errTaken = errors.New("another coordinator serves it")

// cantListen tells an address that somebody else has, which is a refusal, from
// one that is wrong.
func cantListen(at string, err error) error {
	if errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, errTaken) {
		return fault.Wrap(err, fault.Busy, "is another coordinator running? stop it, or choose another api.listen", "listen on %s", at)
	}
	return fault.Wrap(err, fault.Config, "correct api.listen", "listen on %s", at)
}

func listenUnix(path string) (net.Listener, error) {
	if err := removeDeadSocket(path); err != nil {
		return nil, cantListen("unix:"+path, err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, cantListen("unix:"+path, err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, cantListen("unix:"+path, errors.Join(err, l.Close()))
	}
	return l, nil
}

// removeDeadSocket removes the socket of a coordinator that was killed; one
// that answers is left alone, and so is what is no socket.
func removeDeadSocket(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode()&os.ModeSocket == 0 {
		return fmt.Errorf("%s exists and is no socket", filepath.Clean(path))
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	switch {
	case err == nil:
		return errors.Join(errTaken, conn.Close())
	case errors.Is(err, syscall.ECONNREFUSED): // nobody listens any more
		return os.Remove(path)
	}
	return err
}
