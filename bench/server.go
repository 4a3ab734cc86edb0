package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
)

// server is a private redis-server on loopback, without persistence.
type server struct {
	port   int
	dir    string
	client *redis.Client
	cmd    *exec.Cmd
	done   chan error
}

// startServer runs a server with its folder in dir and waits until it answers.
func startServer(ctx context.Context, dir string) (*server, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("find a free port: %w", err)
	}
	s := &server{port: l.Addr().(*net.TCPAddr).Port, done: make(chan error, 1)}
	if err := l.Close(); err != nil {
		return nil, fmt.Errorf("find a free port: %w", err)
	}
	if s.dir, err = os.MkdirTemp(dir, "redis-"); err != nil {
		return nil, fmt.Errorf("folder of redis-server: %w", err)
	}
	s.cmd = exec.Command("redis-server", "--port", strconv.Itoa(s.port), "--bind", "127.0.0.1", "--dir", s.dir,
		"--save", "", "--appendonly", "no", "--repl-diskless-sync-delay", "0", "--enable-debug-command", "yes",
		"--logfile", filepath.Join(s.dir, "redis.log"))
	// The server ends with the bench, however that ends.
	s.cmd.SysProcAttr = dieWithParent()
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start redis-server: %w", err)
	}
	go func() { s.done <- s.cmd.Wait() }()
	logging.Disable() // attempts until the server is there are no news
	s.client = redis.NewClient(&redis.Options{Addr: s.addr(), MaxRetries: -1, ReadTimeout: -1, DisableIdentity: true})
	if err := s.await(ctx); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	return s, nil
}

func (s *server) await(ctx context.Context) error {
	deadline := time.After(20 * time.Second)
	for {
		info, err := s.client.InfoMap(ctx, "server").Result()
		if err == nil && info["Server"]["process_id"] == strconv.Itoa(s.cmd.Process.Pid) {
			return nil
		}
		select {
		case cause := <-s.done:
			s.done <- cause
			log, readErr := os.ReadFile(filepath.Join(s.dir, "redis.log"))
			return fmt.Errorf("redis-server ended at once (%w): %s", errors.Join(cause, readErr), log)
		case <-deadline:
			return fmt.Errorf("redis-server does not answer on port %d: %w", s.port, err)
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (s *server) addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }
func (s *server) url() string  { return "redis://" + s.addr() + "/0" }

// stop ends the server and frees its folder.
func (s *server) stop() error {
	err := s.client.Close()
	_ = s.cmd.Process.Kill() // it may have ended by itself
	<-s.done
	return errors.Join(err, os.RemoveAll(s.dir))
}

// cli runs redis-cli on the server, with a file as its input when that isn't "".
func (s *server) cli(ctx context.Context, input string, args ...string) error {
	cmd := exec.CommandContext(ctx, "redis-cli", append([]string{"-p", strconv.Itoa(s.port)}, args...)...)
	if input != "" {
		f, err := os.Open(input)
		if err != nil {
			return fmt.Errorf("redis-cli: %w", err)
		}
		defer func() { _ = f.Close() }() // it was only read
		cmd.Stdin = f
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("redis-cli %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

// empty drops all data, and waits until its memory is free.
func (s *server) empty(ctx context.Context) error {
	if err := s.client.FlushAll(ctx).Err(); err != nil {
		return fmt.Errorf("empty the server: %w", err)
	}
	return nil
}

// digest tells the server's data without the coordinator's own keys, which it
// removes.
func (s *server) digest(ctx context.Context) (string, error) {
	if err := s.client.Del(ctx, job.Record(), job.Assignment(), job.Lease()).Err(); err != nil {
		return "", fmt.Errorf("remove the coordinator's keys: %w", err)
	}
	d, err := s.client.Do(ctx, "debug", "digest").Text()
	if err != nil {
		return "", fmt.Errorf("digest of the server's data: %w", err)
	}
	return d, nil
}
