package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/urfave/cli/v2"

	"keyframe/coordinator"
	"keyframe/coordinator/api"
	"keyframe/coordinator/config"
	"keyframe/coordinator/fault"
	"keyframe/coordinator/metrics"
	"keyframe/snapshot/bolt"
	"keyframe/statebackend/redis"
)

// Deadlines of a graceful stop: operations may finish for stopTime, then they
// are aborted cleanly; answers under way get serveTime.
const (
	stopTime  = 20 * time.Second
	serveTime = 3 * time.Second
)

func (a *app) runCommand() *cli.Command {
	return &cli.Command{Name: "run", Usage: "run the coordinator (the daemon)", Action: a.daemon, Flags: []cli.Flag{
		&cli.StringFlag{Name: "config", Aliases: []string{"c"}, Usage: "configuration file; the defaults without it"}}}
}

func (a *app) daemon(ctx *cli.Context) error {
	if _, err := positional(ctx); err != nil {
		return err
	}
	file := config.Defaults()
	if path := ctx.String("config"); path != "" {
		var err error
		if file, err = config.Load(path); err != nil {
			return err
		}
	}
	return a.serve(ctx.Context, file)
}

// logger writes to stderr as the configuration says.
func (a *app) logger(l config.Log) hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{Name: "coordinator", Level: hclog.LevelFromString(l.Level), Output: a.err, JSONFormat: l.JSON})
}

// serve runs the daemon until ctx ends, then stops it gracefully.
func (a *app) serve(ctx context.Context, file config.File) error {
	log := a.logger(file.Log)
	token, err := file.APIToken()
	if err != nil {
		return err
	}
	backend, err := openRedis(ctx, file)
	if err != nil {
		return err
	}
	defer func() { _ = backend.Close() }() // nothing is under way any more
	db, err := openStore(ctx, file.Store.Path)
	if err != nil {
		return err
	}
	d := &daemon{app: a, log: log, file: file, token: token, db: db, backend: backend}
	err = d.run(ctx)
	if closeErr := db.Close(); closeErr != nil && err == nil {
		err = fault.Wrap(closeErr, fault.Store, "run `coordinator store verify` after the next start", "close the store %s", file.Store.Path)
	}
	return err
}

func openRedis(ctx context.Context, file config.File) (*redis.Backend, error) {
	password, err := file.RedisPassword()
	if err != nil {
		return nil, err
	}
	b, err := redis.Open(ctx, redis.Config{
		URL: file.Redis.URL, Password: password, CAFile: file.Redis.CAFile,
		CertFile: file.Redis.CertFile, KeyFile: file.Redis.KeyFile, Lazy: true,
	})
	if err != nil {
		return nil, fault.Wrap(err, fault.Config, "", "redis")
	}
	return b, nil
}

func openStore(ctx context.Context, path string) (*bolt.DB, error) {
	db, err := bolt.Open(ctx, path, bolt.Options{})
	if err != nil {
		return nil, fault.Wrap(err, fault.Store, "", "open the checkpoint store")
	}
	return db, nil
}

// daemon is one run of the service with its parts.
type daemon struct {
	app     *app
	log     hclog.Logger
	file    config.File
	token   string
	db      *bolt.DB
	backend *redis.Backend
}

func (d *daemon) run(ctx context.Context) error {
	for _, warning := range d.file.Warnings() {
		d.log.Warn(warning)
	}
	if d.token != "" {
		d.log.Info("API requests need the token", "listen", d.file.API.Listen)
	}
	events, m := &api.EventLog{}, metrics.New(time.Now)
	c := coordinator.New(coordinator.Options{
		Store: d.db, Journal: d.db.Journal(), Backend: d.backend, Jobs: d.file.Jobs,
		Listener: coordinator.Listeners{logEvents(d.log), events, m},
	})
	m.Watch(c.Jobs, c.StoreStats)
	listener, err := d.listen()
	if err != nil {
		return err
	}
	server := api.NewServer(api.Options{Coordinator: c, Events: events, Metrics: m.Handler(), Version: versionText(), Token: d.token})
	if err := c.Start(ctx); err != nil {
		return errors.Join(err, listener.Close())
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	d.log.Info("started", "version", versionText(), "api", d.file.API.Listen, "state", d.backend.Server(), "store", d.file.Store.Path, "jobs", len(d.file.Jobs))
	if d.app.ready != nil {
		d.app.ready(listener.Addr().String())
	}
	var serveErr error
	select {
	case <-ctx.Done():
	case serveErr = <-served:
		serveErr = fault.Wrap(serveErr, fault.Failed, "", "serve the API on %s", d.file.API.Listen)
	}
	return errors.Join(serveErr, d.stop(c, server))
}

// listen opens the API's address: TCP, with TLS where there is a certificate,
// or a unix socket that only its owner can open.
func (d *daemon) listen() (net.Listener, error) {
	at := d.file.API.Listen
	wrap := func(err error) error {
		return fault.Wrap(err, fault.Config, "is another coordinator running? choose another api.listen, or stop it", "listen on %s", at)
	}
	if path, ok := strings.CutPrefix(at, "unix:"); ok {
		if err := removeDeadSocket(path); err != nil {
			return nil, wrap(err)
		}
		l, err := net.Listen("unix", path)
		if err != nil {
			return nil, wrap(err)
		}
		if err := os.Chmod(path, 0o600); err != nil {
			return nil, wrap(errors.Join(err, l.Close()))
		}
		return l, nil
	}
	l, err := net.Listen("tcp", at)
	if err != nil {
		return nil, wrap(err)
	}
	if d.file.API.CertFile == "" {
		return l, nil
	}
	cert, err := tls.LoadX509KeyPair(d.file.API.CertFile, d.file.API.KeyFile)
	if err != nil {
		return nil, fault.Wrap(errors.Join(err, l.Close()), fault.Config, "check api.certFile and api.keyFile", "load the API's certificate")
	}
	return tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}), nil
}

// removeDeadSocket removes the socket of a coordinator that was killed; one
// that answers is left alone.
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
	if conn, err := net.DialTimeout("unix", path, time.Second); err == nil {
		return errors.Join(fmt.Errorf("another coordinator serves %s", path), conn.Close())
	}
	return os.Remove(path)
}

// stop ends the actors first, so that callers who wait for their operation
// still get the answer.
func (d *daemon) stop(c *coordinator.Coordinator, server *http.Server) error {
	d.log.Info("stopping", "deadline", stopTime.String())
	ctx, cancel := context.WithTimeoutCause(context.Background(), stopTime, fmt.Errorf("they had %s to finish", stopTime))
	defer cancel()
	err := c.Stop(ctx)
	if err != nil {
		err = fault.Wrap(err, fault.Failed, "", "stop")
	}
	late, cancelLate := context.WithTimeout(context.Background(), serveTime)
	defer cancelLate()
	if shutErr := server.Shutdown(late); shutErr != nil {
		// Somebody still holds a connection; there is nothing to lose.
		_ = server.Close()
	}
	for _, j := range c.Jobs() {
		if j.Last != nil {
			d.log.Info("last good checkpoint", "job", j.Name, "checkpoint", j.Last.ID, "started", j.Last.StartedAt.UTC().Format(time.RFC3339))
		} else {
			d.log.Warn("no good checkpoint", "job", j.Name)
		}
	}
	d.log.Info("stopped", "clean", err == nil)
	return err
}

// logEvents writes each event as one line.
func logEvents(log hclog.Logger) coordinator.Listener {
	return coordinator.ListenerFunc(func(e coordinator.Event) {
		args := []any{"event", string(e.Kind), "job", e.Job}
		if e.ID != 0 {
			args = append(args, "checkpoint", uint64(e.ID))
		}
		if e.Operation != "" {
			args = append(args, "operation", e.Operation)
		}
		switch {
		case e.Kind.Failed():
			log.Error(e.Message, args...)
		case e.Kind == coordinator.EventTickSkipped:
			log.Warn(e.Message, args...)
		default:
			log.Info(e.Message, args...)
		}
	})
}
