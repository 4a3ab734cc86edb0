package main

import (
	"context"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"keyframe/coordinator/api"
	"keyframe/coordinator/config"
)

// tokenEvery is how often the files of tokens are read again: a token that is
// withdrawn works no longer than that. A SIGHUP has them read at once.
const tokenEvery = 2 * time.Second

// watchTokens gives the keyring what the files hold, until the returned
// function is called. Where there are no tokens it does nothing, also at a
// SIGHUP, which would otherwise end the process.
func (d *daemon) watchTokens(ring *api.Keyring) (end func()) {
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		d.followTokens(ctx, ring, hangup)
	}()
	return func() {
		signal.Stop(hangup)
		cancel()
		<-ended
	}
}

func (d *daemon) followTokens(ctx context.Context, ring *api.Keyring, hangup <-chan os.Signal) {
	ticker := time.NewTicker(d.app.tokenEvery)
	defer ticker.Stop()
	keys, told := d.keys, ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-hangup:
			d.log.Info("tokens are read again")
		}
		if len(d.keys) == 0 {
			continue
		}
		now, problems := d.file.API.Reread()
		if text := strings.Join(problems, "; "); text != told {
			if told = text; text != "" {
				d.log.Error("tokens can't be used: " + text)
			}
		}
		if !slices.Equal(now, keys) {
			ring.Replace(now)
			d.log.Warn("tokens changed", "in use", len(now), "changed or withdrawn", strings.Join(withdrawn(keys, now), ", "))
			keys = now
		}
	}
}

// withdrawn are the names of tokens that don't work as they did.
func withdrawn(before, now []config.Key) (names []string) {
	for _, k := range before {
		if !slices.Contains(now, k) {
			names = append(names, k.Name)
		}
	}
	return names
}
