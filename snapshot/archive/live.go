package archive

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"keyframe/snapshot"
)

// LiveFile is the name of the file beside a job's archives that says which of
// them the live state descends from. Its format is in snapshot/FORMAT.md.
const LiveFile = "live-branch"

// The first line of a live file, and how large one may be: it names two
// checkpoints and a job.
const (
	liveMagic   = "KEYFRAME-LIVE "
	liveVersion = 1
	mostLive    = 64 << 10
)

// Live says what a restore, rescale or undo left live. The ids alone don't: an
// undo checkpoint is newer than what was put in place, and holds what somebody
// wanted to be rid of.
type Live struct {
	Job string `json:"job"`
	// Base is the checkpoint that was put in place, Cut its fingerprint.
	Base snapshot.ID `json:"base"`
	Cut  string      `json:"cut"`
	// Newest is the highest id that there was then, in the store or the folder:
	// those above it were taken since, from what is live; those up to it that
	// Base doesn't descend from were given up.
	Newest snapshot.ID `json:"newest"`
	// Flip and Epoch tell one change from the next: the newest checkpoint of
	// the store, and the epoch that began.
	Flip  snapshot.ID `json:"flip"`
	Epoch uint64      `json:"epoch"`
	// WrittenAt is by the coordinator's clock, in UTC.
	WrittenAt time.Time `json:"writtenAt"`
}

// Same reports whether two say the same of the same change.
func (l Live) Same(o Live) bool {
	return l.Job == o.Job && l.Base == o.Base && l.Cut == o.Cut && l.Flip == o.Flip && l.Epoch == o.Epoch
}

// SaveLive puts a live file into a folder, in the place of one that is there.
// The name is the commit point: the file is written under another one, synced
// and renamed, so that a kill at any moment leaves the old one or the new one.
func SaveLive(disk Disk, folder string, l Live) (err error) {
	body, err := json.Marshal(l)
	if err != nil {
		return fmt.Errorf("encode what is live of job %q: %w", l.Job, err)
	}
	text := fmt.Appendf(nil, "%s%d\n%s\n", liveMagic, liveVersion, body)
	sum := sha256.Sum256(text)
	text = fmt.Appendf(text, "%x\n", sum)
	var end [8]byte
	rand.Read(end[:]) // never fails (it ends the process instead)
	path := filepath.Join(folder, LiveFile)
	tmp := path + tmpMark + hex.EncodeToString(end[:])
	f, err := disk.Create(tmp)
	if err != nil {
		return fmt.Errorf("create %s: %w", tmp, err)
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = disk.Replace(tmp, path)
	}
	if err != nil {
		// What can't be removed now is removed as every unfinished file is.
		_ = disk.Remove(tmp)
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := disk.SyncDir(folder); err != nil {
		return fmt.Errorf("%s is written, and may be the old one after a loss of power: sync its directory: %w", path, err)
	}
	return nil
}

// ReadLive reads a folder's live file. Errors: fs.ErrNotExist where there is
// none, snapshot.ErrCorrupt, snapshot.ErrNewerFormat.
func ReadLive(folder string) (Live, error) {
	path := filepath.Join(folder, LiveFile)
	info, err := os.Stat(path)
	if err != nil {
		return Live{}, err
	}
	if info.Size() > mostLive || !info.Mode().IsRegular() {
		return Live{}, fmt.Errorf("%s: %d bytes, or no plain file: %w", path, info.Size(), snapshot.ErrCorrupt)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return Live{}, err
	}
	l, err := ParseLive(text)
	if err != nil {
		return Live{}, fmt.Errorf("%s: %w", path, err)
	}
	return l, nil
}

// ParseLive reads the text of a live file. Errors are those of ReadLive.
func ParseLive(text []byte) (Live, error) {
	var l Live
	head, rest, ok := bytes.Cut(text, []byte("\n"))
	version, isLive := strings.CutPrefix(string(head), liveMagic)
	var end int
	if ok && isLive {
		end = len(text) - 2*sha256.Size - 1
	}
	if end <= len(head) || text[len(text)-1] != '\n' {
		return l, fmt.Errorf("no live file: %w", snapshot.ErrCorrupt)
	}
	if sum := sha256.Sum256(text[:end]); hex.EncodeToString(sum[:]) != string(text[end:len(text)-1]) {
		return l, fmt.Errorf("the checksum is another: %w", snapshot.ErrCorrupt)
	}
	if version != fmt.Sprint(liveVersion) {
		return l, fmt.Errorf("it has version %q, and this program reads %d: %w", version, liveVersion, snapshot.ErrNewerFormat)
	}
	body := rest[:end-len(head)-1]
	if err := json.Unmarshal(body, &l); err != nil {
		return Live{}, fmt.Errorf("%w: %w", snapshot.ErrCorrupt, err)
	}
	if l.Base == 0 || l.Newest < l.Base || l.Job == "" {
		return Live{}, fmt.Errorf("it names checkpoint %d of %d of job %q: %w", l.Base, l.Newest, l.Job, snapshot.ErrCorrupt)
	}
	return l, nil
}

// NoLive reports whether an error of ReadLive says that there is none.
func NoLive(err error) bool { return errors.Is(err, fs.ErrNotExist) }
