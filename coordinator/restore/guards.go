package restore

import (
	"fmt"
	"strconv"
	"strings"

	"keyframe/coordinator/config"
	"keyframe/coordinator/fault"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// Listed finds a checkpoint in a history and refuses one that can't be
// restored.
func Listed(history []snapshot.Checkpoint, job string, id snapshot.ID) (snapshot.Checkpoint, error) {
	for _, c := range history {
		if c.ID != id {
			continue
		}
		switch {
		case c.State == snapshot.StateFailed && c.Failure != nil:
			return c, fault.New(fault.Refused, "restore a completed one; `checkpoint list` shows them",
				"checkpoint %d of job %q failed (%s: %s)", id, job, c.Failure.Reason, c.Failure.Message)
		case c.State != snapshot.StateCompleted:
			return c, fault.New(fault.Refused, "restore a completed one; `checkpoint list` shows them",
				"checkpoint %d of job %q is %s", id, job, c.State)
		case c.Bad != "":
			return c, fault.New(fault.Corrupt, "restore another one; `checkpoint list` shows them",
				"checkpoint %d of job %q is damaged: %s", id, job, c.Bad)
		}
		return c, nil
	}
	return snapshot.Checkpoint{}, fault.New(fault.NoCheckpoint, "`checkpoint list` shows what there is",
		"job %q has no checkpoint %d (%s)", job, id, describeHistory(history))
}

func describeHistory(history []snapshot.Checkpoint) string {
	var first, last snapshot.ID
	n := 0
	for _, c := range history {
		if !c.Restorable() {
			continue
		}
		if n++; n == 1 {
			first = c.ID
		}
		last = c.ID
	}
	if n == 0 {
		return "it has none that can be restored"
	}
	return fmt.Sprintf("it has %d that can be restored, from %d to %d", n, first, last)
}

// checkIdentity refuses the state of another job, prefix or server.
func checkIdentity(id Identity, as bool) error {
	if as {
		return nil
	}
	var differ []string
	for _, f := range []struct{ what, have, want string }{
		{"job name", id.Checkpoint.Job, id.Job.Job},
		{"prefix", id.Checkpoint.Prefix, id.Job.Prefix},
		{"server", id.Checkpoint.Server, id.Job.Server},
	} {
		if f.have != f.want {
			differ = append(differ, f.what)
		}
	}
	if len(differ) == 0 {
		return nil
	}
	return fault.New(fault.Refused, "--as restores it as this job's state all the same",
		"the checkpoint is of another %s: it holds job %q, prefix %q, server %q; the target is job %q, prefix %q, server %q",
		strings.Join(differ, " and "), id.Checkpoint.Job, id.Checkpoint.Prefix, id.Checkpoint.Server,
		id.Job.Job, id.Job.Prefix, id.Job.Server)
}

// checkLayout refuses a checkpoint whose keys have other key groups than the
// job's, or more subtasks than it has key groups.
func checkLayout(m *snapshot.Manifest, job config.Job) error {
	const hint = "give the job the values that the checkpoint has"
	if err := m.KeyGroups.SameLayout(job.Rule()); err != nil {
		return fault.Wrap(err, fault.Refused, hint, "checkpoint %d does not fit job %q", m.Checkpoint.ID, job.Name)
	}
	if p := parallelismOf(m); p > job.MaxParallelism {
		return fault.New(fault.Refused, hint, "checkpoint %d has parallelism %d, which is above the max parallelism %d of job %q",
			m.Checkpoint.ID, p, job.MaxParallelism, job.Name)
	}
	return nil
}

// parallelismOf is the number of subtasks that the checkpoint's operator state
// is cut for; 0 when it doesn't say.
func parallelismOf(m *snapshot.Manifest) int {
	if len(m.Ranges) > 0 {
		return len(m.Ranges)
	}
	return m.Checkpoint.Parallelism
}

// checkMark refuses while another restore has the job.
func checkMark(r statebackend.Record, job string) error {
	if r.Restore == nil {
		return nil
	}
	return fault.Wrap(statebackend.ErrMarked, fault.Refused,
		"wait for it; when nothing runs any more, it was left behind: the coordinator that began it resolves it at its next start",
		"job %q: a %s of checkpoint %d (id %s) began at %s", job, r.Restore.Kind, r.Restore.Checkpoint,
		r.Restore.ID, r.Restore.StartedAt.UTC().Format("2006-01-02 15:04:05Z"))
}

// checkPayload refuses an opaque payload that the live server can't read: one
// that a newer server wrote, or any where there is no server. An older
// server's payload is read by every newer one.
func checkPayload(k snapshot.Key, live snapshot.ServerInfo) error {
	if k.Type != snapshot.TypeOpaque || k.Server == live.Version {
		return nil
	}
	wrote, ok1 := parseVersion(k.Server)
	reads, ok2 := parseVersion(live.Version)
	if ok1 && ok2 && !newer(wrote, reads) {
		return nil
	}
	have := "server version " + live.Version
	if live.Version == "" {
		have = "a store that isn't a server"
	}
	return fault.Wrap(statebackend.ErrUnsupported, fault.Refused, "restore into a server of that version or a newer one",
		"key %.200q (%s) is a payload of server version %q and the target is %s", k.Name, k.TypeName, k.Server, have)
}

type version [3]int

func parseVersion(s string) (v version, ok bool) {
	parts := strings.SplitN(s, ".", len(v))
	for i, p := range parts {
		n, err := strconv.Atoi(p)
		if err != nil {
			return v, false
		}
		v[i] = n
	}
	return v, len(parts) >= 2
}

// newer compares major and minor: payload formats don't change in a patch.
func newer(a, b version) bool {
	return a[0] > b[0] || a[0] == b[0] && a[1] > b[1]
}
