package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"time"

	"keyframe/statebackend/redis"
)

// redisCLI runs redis-cli on the server that a configuration names. The
// password goes by the environment: arguments can be read by everybody on the
// machine.
type redisCLI struct {
	program  string
	args     []string
	password string
}

// newRedisCLI says why there is none when redis-cli isn't installed. The
// configuration is one that redis.Open has accepted.
func newRedisCLI(c redis.Config) (*redisCLI, error) {
	program, err := exec.LookPath("redis-cli")
	if err != nil {
		return nil, errors.New("redis-cli is not installed")
	}
	u, err := url.Parse(c.URL)
	if err != nil {
		return nil, errors.New("the URL can't be parsed") // its text may hold a password
	}
	cli := &redisCLI{program: program, password: c.Password}
	if cli.password == "" {
		cli.password, _ = u.User.Password()
	}
	cli.args = cliArgs(u, c)
	return cli, nil
}

// cliArgs say where the server is and how to reach it.
func cliArgs(u *url.URL, c redis.Config) (args []string) {
	db := strings.Trim(u.Path, "/")
	if u.Scheme == "unix" {
		db = u.Query().Get("db")
		args = []string{"-s", u.Path}
	} else {
		args = []string{"-h", u.Hostname(), "-p", cmp.Or(u.Port(), "6379")}
	}
	if db != "" {
		args = append(args, "-n", db)
	}
	if user := u.User.Username(); user != "" {
		args = append(args, "--user", user)
	}
	if u.Scheme != "rediss" {
		return args
	}
	args = append(args, "--tls")
	if net.ParseIP(u.Hostname()) == nil {
		args = append(args, "--sni", u.Hostname())
	}
	for _, f := range [][2]string{{"--cacert", c.CAFile}, {"--cert", c.CertFile}, {"--key", c.KeyFile}} {
		if f[1] != "" {
			args = append(args, f[0], f[1])
		}
	}
	return args
}

// dump has it write an RDB of the whole server to a file that doesn't exist.
// head is how long it took until the file began: for the server's decision to
// begin, and its fork.
func (c *redisCLI) dump(ctx context.Context, path string) (took, head time.Duration, err error) {
	cmd := exec.CommandContext(ctx, c.program, append(append([]string{}, c.args...), "--no-auth-warning", "--rdb", path)...)
	cmd.Env = os.Environ()
	if c.password != "" {
		cmd.Env = append(cmd.Env, "REDISCLI_AUTH="+c.password)
	}
	var said logBuffer
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = &said, &said, dieWithParent()
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return 0, 0, fmt.Errorf("redis-cli: %w", err)
	}
	done, appeared := make(chan struct{}), make(chan time.Duration, 1)
	go func() { appeared <- appears(path, began, done) }()
	err = cmd.Wait()
	took = time.Since(began)
	close(done)
	head = <-appeared
	if err != nil {
		return 0, 0, fmt.Errorf("redis-cli --rdb: %w: %s", err, c.lastLine(said.String()))
	}
	return took, min(head, took), nil
}

// lastLine is what redis-cli said last, without a password.
func (c *redisCLI) lastLine(said string) string {
	lines := strings.Split(strings.TrimSpace(said), "\n")
	last := lines[len(lines)-1]
	if c.password != "" {
		last = strings.ReplaceAll(last, c.password, "…")
	}
	return last
}

// appears says when a file began to be there, or done was closed.
func appears(path string, began time.Time, done <-chan struct{}) time.Duration {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := os.Stat(path); err == nil {
			return time.Since(began)
		}
		select {
		case <-done:
			return time.Since(began)
		case <-tick.C:
		}
	}
}
