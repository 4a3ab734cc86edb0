package redis

import (
	"fmt"

	"keyframe/snapshot"
	"keyframe/statebackend"
	"keyframe/statebackend/redis/resp"
)

// payloadWrite is how much of a payload goes into one write: each may wait for
// the store's timeout without progress.
const payloadWrite = 256 << 10

// gather makes ready for the elements of the open key, where they are to go as
// a payload.
func (s *staging) gather(k snapshot.Key) error {
	c := &s.cur
	s.hash.on = false
	if c.gather = !s.plain && hasPayload(k.Type); !c.gather {
		return nil
	}
	if !codes(k) {
		s.payload.begin(k.Type)
		return nil
	}
	s.hash.begin()
	// All state is staged: so its names needn't be remembered with this.
	return s.sendCoded()
}

// sendPayload stages the open key, whose elements have all been gathered: the
// payload is read again, and sent when it holds what the checkpoint says.
func (s *staging) sendPayload(end snapshot.KeyEnd) error {
	c := &s.cur
	c.gather = false
	got, err := s.readGathered()
	if err != nil {
		return s.fail(&statebackend.KeyError{Key: c.key.Name, Op: "stage", Err: fmt.Errorf("%w: %w", statebackend.ErrMismatch, err)})
	}
	if got.count != end.Count || got.digest != end.Digest {
		return s.fail(&statebackend.KeyError{Key: c.key.Name, Op: "stage", Err: fmt.Errorf(
			"%w: its payload holds %d elements with digest %016x, the checkpoint %d with %016x",
			statebackend.ErrMismatch, got.count, got.digest, end.Count, end.Digest)})
	}
	if s.hash.on {
		return s.sendHash()
	}
	c.stored = int64(got.count)
	if small := s.check.pack.payload(); small != nil {
		return s.sendRestore(small)
	}
	return s.sendRestore(s.payload.seal())
}

func (s *staging) readGathered() (summary, error) {
	if s.hash.on {
		return s.hash.read(&s.check.fields)
	}
	return s.check.read(s.payload.body(), packs(s.version))
}

// leavePayload goes on with plain commands: an element doesn't fit any more,
// or needs what a payload doesn't give. What was gathered is sent.
func (s *staging) leavePayload() error {
	c := &s.cur
	if !c.gather {
		return nil
	}
	c.gather = false
	if s.hash.on {
		return s.sendHash()
	}
	if s.payload.count == 0 {
		return nil
	}
	c.stored = int64(s.payload.count)
	return s.sendRestore(s.payload.seal())
}

// sendRestore makes the staged key of a payload. It gets no expiry: the flip
// gives it, so that nothing expires while it is staged.
func (s *staging) sendRestore(body []byte) error {
	c := &s.cur
	cmd := sentCommand{key: c.key.Name, verb: "RESTORE", ok: true, ours: true, size: int64(len(c.target) + len(body))}
	if err := s.beginRestore(cmd, c.target, uint64(len(body))); err != nil {
		return err
	}
	for len(body) > 0 {
		n := min(len(body), payloadWrite)
		if err := s.pipe.write(body[:n]); err != nil {
			return err
		}
		body = body[n:]
	}
	return s.pipe.end(cmd)
}

// beginRestore opens a RESTORE whose payload of size bytes comes next.
func (s *staging) beginRestore(cmd sentCommand, target []byte, size uint64) error {
	if err := s.pipe.begin(4, cmd.verb); err != nil {
		return err
	}
	if err := s.pipe.arg(target); err != nil {
		return err
	}
	if err := s.pipe.arg(noExpiry); err != nil {
		return err
	}
	return s.pipe.header(size)
}

var noExpiry = []byte("0")

// refusesOurs tells an answer by which the server doesn't want a payload of
// ours, whatever the key: no right, no such command, a limit, a format. The
// same key may do well with plain commands.
func refusesOurs(err *resp.Error) bool { return err.Code == "ERR" || err.Code == "NOPERM" }
