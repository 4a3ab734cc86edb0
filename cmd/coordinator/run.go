package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/urfave/cli/v2"

	"keyframe/coordinator"
	"keyframe/coordinator/alarm"
	"keyframe/coordinator/api"
	"keyframe/coordinator/config"
	"keyframe/coordinator/fault"
	"keyframe/coordinator/metrics"
	"keyframe/snapshot"
	"keyframe/snapshot/bolt"
	"keyframe/statebackend"
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
	return hclog.New(&hclog.LoggerOptions{Name: "coordinator", Level: hclog.LevelFromString(l.Level), Output: cleanLog{a.err}, JSONFormat: l.JSON,
		TimeFn: func() time.Time { return time.Now().UTC() }})
}

// serve runs the daemon until ctx ends, then stops it gracefully.
func (a *app) serve(ctx context.Context, file config.File) error {
	log := a.logger(file.Log)
	keys, err := file.API.Keys()
	if err != nil {
		return err
	}
	backend, err := openRedis(ctx, file)
	if err != nil {
		return err
	}
	defer func() { _ = backend.Close() }() // nothing is under way any more
	drills, closeDrills, err := openDrills(ctx, file.Drill)
	if err != nil {
		return err
	}
	defer closeDrills()
	// Before the store, which would be made: who can't listen writes nothing.
	listener, err := listen(file.API, log)
	if err != nil {
		return err
	}
	db, salvaged, err := openWhole(ctx, log, file.Store)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	d := &daemon{app: a, log: log, file: file, keys: keys, db: db, backend: backend, drills: drills, salvaged: salvaged}
	err = d.run(ctx, listener)
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
	return openServer(ctx, "redis", file.Redis, password)
}

// openServer opens the state store of a part of the configuration, whether or
// not it can be reached now.
func openServer(ctx context.Context, part string, r config.Redis, password string) (*redis.Backend, error) {
	b, err := redis.Open(ctx, redis.Config{
		URL: r.URL, Password: password, CAFile: r.CAFile, CertFile: r.CertFile, KeyFile: r.KeyFile, Lazy: true, Tracking: string(r.Tracking),
	})
	if err != nil {
		return nil, fault.Wrap(err, fault.Config, "", "%s", part)
	}
	return b, nil
}

// openDrills opens the server in which checkpoints are restored on trial; nil
// when that is the state's own.
func openDrills(ctx context.Context, d config.Drill) (target statebackend.Backend, closeIt func(), err error) {
	if d.Beside() {
		return nil, func() {}, nil
	}
	password, err := d.Password()
	if err != nil {
		return nil, nil, err
	}
	b, err := openServer(ctx, "drill.redis", d.Redis, password)
	if err != nil {
		return nil, nil, err
	}
	return b, func() { _ = b.Close() }, nil // nothing is under way any more
}

func openStore(ctx context.Context, path string) (*bolt.DB, error) {
	db, err := bolt.Open(ctx, path, bolt.Options{})
	code := fault.Store
	switch {
	case err == nil:
		return db, nil
	case errors.Is(err, bolt.ErrHeld):
		code = fault.Busy
	case errors.Is(err, snapshot.ErrCorrupt):
		code = fault.Corrupt
	}
	return nil, fault.Wrap(err, code, "", "open the checkpoint store")
}

// daemon is one run of the service with its parts.
type daemon struct {
	app     *app
	log     hclog.Logger
	file    config.File
	keys    []config.Key
	db      *bolt.DB
	backend *redis.Backend
	drills  statebackend.Backend // nil for backend
	// salvaged are damaged stores that were replaced.
	salvaged []coordinator.Salvage
}

func (d *daemon) run(ctx context.Context, listener net.Listener) error {
	for _, warning := range d.file.Warnings() {
		d.log.Warn(warning)
	}
	if len(d.keys)+len(d.file.API.ClientCerts) > 0 {
		d.log.Info("API requests need a token or certificate", "listen", d.file.API.Listen, "tokens", len(d.keys), "certificates", len(d.file.API.ClientCerts))
	}
	auditor, err := openAudit(d.file.AuditPath(), d.db.Journal(), d.log)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	defer closeAudit(auditor, d.log)
	events, m := &api.EventLog{}, metrics.New(time.Now)
	told := coordinator.Listeners{logEvents(d.log), events, m, auditor}
	hooks, endHooks := d.startHooks(told)
	defer endHooks()
	c := coordinator.New(d.options(coordinator.Listeners{told, hooks}))
	m.Watch(c.Jobs, c.StoreStats)
	m.WatchCopies(c.Copies)
	ring := api.NewKeyring(d.keys)
	defer d.watchTokens(ring)()
	var beat *alarm.Heartbeat // before the first request is served
	server := api.NewServer(api.Options{Coordinator: c, Events: events, Alarms: func() api.Alarms { return api.Alarms{Hooks: hooks.Hooks(), Heartbeat: beat.Status()} }, Metrics: m.Handler(), Version: versionText(),
		Keys: d.keys, Keyring: ring, ClientCerts: d.file.API.ClientCerts, Audit: auditor, Spool: filepath.Dir(d.file.Store.Path), MaxImport: int64(d.file.API.MaxImport)})
	server.ErrorLog = d.log.Named("api").StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug})
	if err := c.Start(ctx); err != nil {
		return errors.Join(coordinator.Explain(err), listener.Close())
	}
	if len(c.Jobs()) > 0 {
		// Ahead of the first checkpoint, which would wait for it.
		if err := d.backend.StartTracking(); err != nil {
			d.log.Warn(err.Error())
		}
	}
	beat = d.startHeartbeat(c, hooks, m, told)
	defer beat.Close()
	err = d.serve(ctx, listener, server)
	d.stop(c, server)
	return err
}

// options are what the coordinator is made with.
func (d *daemon) options(told coordinator.Listener) coordinator.Options {
	store := d.file.Store
	return coordinator.Options{
		Store: d.db, Journal: d.db.Journal(), Backend: d.backend, Jobs: d.file.Jobs, Listener: told,
		Upkeep: d.db, CompactAbove: store.CompactAbove, Copies: store.CopyPaths(), DrillTarget: d.drills,
		StoreErr: d.db.Err, Salvaged: d.salvaged,
		CopyCheck: coordinator.CopyCheck{Every: time.Duration(store.CheckCopies.Every), Rate: int64(store.CheckCopies.Rate)},
		Lease:     coordinator.Lease{TTL: time.Duration(d.file.Lease.TTL), Owner: d.owner()},
	}
}

// serve serves the API until ctx ends, or it can't be served any more.
func (d *daemon) serve(ctx context.Context, listener net.Listener, server *http.Server) error {
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	d.log.Info("started", "version", versionText(), "api", d.file.API.Listen, "state", d.backend.Server(), "store", d.file.Store.Path, "jobs", len(d.file.Jobs))
	if d.app.ready != nil {
		d.app.ready(listener.Addr().String())
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-served:
		return fault.Wrap(err, fault.Failed, "", "serve the API on %s", d.file.API.Listen)
	}
}

// owner is what other coordinators are told of this one. Without a host name
// or a working directory it is told less, and after a kill it waits for its own
// lease.
func (d *daemon) owner() statebackend.Owner {
	o := statebackend.Owner{PID: os.Getpid(), Address: d.file.API.Listen}
	if host, err := os.Hostname(); err == nil {
		o.Host = host
	}
	if path, err := filepath.Abs(d.file.Store.Path); err == nil {
		o.Store = path
	}
	return o
}

// stop ends the actors first, so that callers who wait for their operation
// still get the answer. Operations may finish until the deadline, or until a
// second signal comes; then they are aborted cleanly, which is no failure.
func (d *daemon) stop(c *coordinator.Coordinator, server *http.Server) {
	d.log.Info("stopping", "deadline", d.app.stopTime.String())
	hurry, release := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer release()
	ctx, cancel := context.WithTimeoutCause(hurry, d.app.stopTime, fmt.Errorf("they had %s to finish", d.app.stopTime))
	defer cancel()
	err := c.Stop(ctx)
	if err != nil {
		d.log.Warn(err.Error())
	}
	late, cancelLate := context.WithTimeout(context.Background(), serveTime)
	defer cancelLate()
	if shutErr := server.Shutdown(late); shutErr != nil {
		// Somebody still holds a connection; there is nothing to lose.
		_ = server.Close()
	}
	for _, j := range c.Jobs() {
		if j.Good != nil {
			d.log.Info("last good checkpoint", "job", j.Name, "checkpoint", j.Good.ID, "started", j.Good.StartedAt.UTC().Format(time.RFC3339))
		} else {
			d.log.Warn("no good checkpoint", "job", j.Name)
		}
	}
	d.log.Info("stopped", "aborted", err != nil)
}

// logEvents writes each event as one line.
func logEvents(log hclog.Logger) coordinator.Listener {
	return coordinator.ListenerFunc(func(e coordinator.Event) {
		args := []any{"event", string(e.Kind)}
		if e.Job != "" {
			args = append(args, "job", e.Job)
		}
		if e.ID != 0 {
			args = append(args, "checkpoint", uint64(e.ID))
		}
		if e.Operation != "" {
			args = append(args, "operation", e.Operation)
		}
		log.Log(levelOf(e), e.Message, args...)
	})
}

func levelOf(e coordinator.Event) hclog.Level {
	switch {
	case e.Kind.Failed():
		return hclog.Error
	case e.Kind == coordinator.EventTickSkipped, e.Kind == coordinator.EventCopiesFound:
		return hclog.Warn
	case e.Kind == coordinator.EventHealthChanged && e.Health != coordinator.HealthOK && e.Health != coordinator.HealthWaiting && e.Health != coordinator.HealthStandby:
		return hclog.Warn
	}
	return hclog.Info
}
