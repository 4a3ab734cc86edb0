// Package redistest starts private Redis servers for tests, on free ports and
// in folders of their own, and ends them with the test.
package redistest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Server is one private redis-server process. Save and AOF are off unless a
// setting says otherwise.
type Server struct {
	Addr string // host:port
	Dir  string

	tb       testing.TB
	settings []string
	password string
	tls      *Certificates

	mu   sync.Mutex
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
}

// Option changes how a server is started.
type Option func(*Server)

// Setting adds a line of redis.conf, such as "maxmemory 64mb".
func Setting(line string) Option {
	return func(s *Server) { s.settings = append(s.settings, line) }
}

// Password sets requirepass for the default user.
func Password(p string) Option {
	return func(s *Server) {
		s.password = p
		s.settings = append(s.settings, "requirepass "+p)
	}
}

// TLS makes the server speak TLS only, with certificates made for the test.
func TLS() Option {
	return func(s *Server) { s.tls = NewCertificates(s.tb) }
}

// Start runs a server and waits until it answers. It fails the test when
// redis-server isn't installed.
func Start(tb testing.TB, opts ...Option) *Server {
	tb.Helper()
	s := &Server{tb: tb, Dir: tb.TempDir()}
	for _, o := range opts {
		o(s)
	}
	s.launch()
	tb.Cleanup(s.Kill)
	return s
}

func (s *Server) launch() {
	s.tb.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		s.tb.Fatal("redis-server is not installed: run scripts/setup (make test does)")
	}
	for try := 0; ; try++ {
		fresh := s.Addr == ""
		if fresh {
			s.Addr = freeAddr(s.tb)
		}
		err := s.run()
		if err == nil {
			return
		}
		if !fresh || try >= 5 {
			s.tb.Fatalf("start redis-server on %s: %v", s.Addr, err)
		}
		s.Addr = "" // somebody took the port between the look and the start
	}
}

func (s *Server) run() error {
	host, port, err := net.SplitHostPort(s.Addr)
	if err != nil {
		return fmt.Errorf("address: %w", err)
	}
	conf := []string{
		"bind " + host, "dir " + s.Dir, "daemonize no", "protected-mode no",
		`save ""`, "appendonly no", "enable-debug-command yes",
		"repl-diskless-sync-delay 0", "loglevel notice", "logfile " + filepath.Join(s.Dir, "redis.log"),
	}
	if s.tls != nil {
		conf = append(conf, "port 0", "tls-port "+port, "tls-cert-file "+s.tls.CertFile,
			"tls-key-file "+s.tls.KeyFile, "tls-ca-cert-file "+s.tls.CAFile, "tls-auth-clients no")
	} else {
		conf = append(conf, "port "+port)
	}
	conf = append(conf, s.settings...)
	file := filepath.Join(s.Dir, "redis.conf")
	if err := os.WriteFile(file, []byte(strings.Join(conf, "\n")+"\n"), 0o600); err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	cmd := exec.Command("redis-server", file)
	// The server ends with the test process, however that ends.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start: %w", err)
	}
	done := make(chan struct{})
	go func() {
		_ = cmd.Wait() // how it ended doesn't matter: tests kill it
		close(done)
	}()
	s.mu.Lock()
	s.cmd, s.done = cmd, done
	s.mu.Unlock()
	return s.awaitPing(done)
}

// awaitPing waits until this very process answers.
func (s *Server) awaitPing(done chan struct{}) error {
	c := s.client()
	defer func() { _ = c.Close() }() // nothing was written
	deadline := time.After(20 * time.Second)
	for {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		pid, err := c.InfoMap(ctx, "server").Result()
		cancel()
		if err == nil && pid["Server"]["process_id"] == fmt.Sprint(s.Pid()) {
			return nil
		}
		select {
		case <-done:
			log, readErr := os.ReadFile(filepath.Join(s.Dir, "redis.log"))
			return fmt.Errorf("ended at once: %s", errors.Join(errors.New(string(log)), readErr))
		case <-deadline:
			return fmt.Errorf("does not answer: %w", err)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// Pid is the process id, 0 when it isn't running.
func (s *Server) Pid() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return 0
	}
	return s.cmd.Process.Pid
}

// Kill ends the process at once (SIGKILL) and waits. Safe to call twice.
func (s *Server) Kill() {
	s.mu.Lock()
	cmd, done := s.cmd, s.done
	s.cmd = nil
	s.mu.Unlock()
	if cmd == nil {
		return
	}
	_ = cmd.Process.Kill() // it may have ended by itself
	<-done
}

// Signal sends a signal to the process (SIGSTOP, SIGCONT…).
func (s *Server) Signal(sig syscall.Signal) {
	s.tb.Helper()
	if err := syscall.Kill(s.Pid(), sig); err != nil {
		s.tb.Fatalf("signal %v: %v", sig, err)
	}
}

// RestartEmpty kills the server and starts it on the same address with no data.
func (s *Server) RestartEmpty() {
	s.tb.Helper()
	s.Kill()
	for _, pattern := range []string{"*.rdb", "*.aof", "appendonlydir"} {
		found, err := filepath.Glob(filepath.Join(s.Dir, pattern))
		if err != nil {
			s.tb.Fatal(err)
		}
		for _, f := range found {
			if err := os.RemoveAll(f); err != nil {
				s.tb.Fatal(err)
			}
		}
	}
	s.launch()
}

// Restart kills the server and starts it on the same address with what it had
// saved (SAVE, AOF) before.
func (s *Server) Restart() {
	s.tb.Helper()
	s.Kill()
	s.launch()
}

// URL is the address in the form that the configuration takes, with the
// password where there is one.
func (s *Server) URL() string {
	scheme, auth := "redis", ""
	if s.tls != nil {
		scheme = "rediss"
	}
	if s.password != "" {
		auth = ":" + s.password + "@"
	}
	return scheme + "://" + auth + s.Addr + "/0"
}

// CAFile is the authority that signed the server's certificate ("" without TLS).
func (s *Server) CAFile() string {
	if s.tls == nil {
		return ""
	}
	return s.tls.CAFile
}

func (s *Server) client() *redis.Client {
	o := &redis.Options{Addr: s.Addr, Password: s.password, MaxRetries: -1, DisableIdentity: true}
	if s.tls != nil {
		o.TLSConfig = s.tls.Config()
	}
	return redis.NewClient(o)
}

// Client is a go-redis client of the server, closed with the test.
func (s *Server) Client() *redis.Client {
	c := s.client()
	s.tb.Cleanup(func() { _ = c.Close() }) // the server may be gone already
	return c
}

// Do runs one command and fails the test on an error.
func (s *Server) Do(args ...any) any {
	s.tb.Helper()
	c := s.client()
	defer func() { _ = c.Close() }() // the reply was read
	v, err := c.Do(context.Background(), args...).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		s.tb.Fatalf("redis %v: %v", args, err)
	}
	return v
}

// FreeAddr is a loopback address on which nothing listens just now.
func FreeAddr(tb testing.TB) string { return freeAddr(tb) }

func freeAddr(tb testing.TB) string {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	addr := l.Addr().String()
	if err := l.Close(); err != nil {
		tb.Fatal(err)
	}
	return addr
}
