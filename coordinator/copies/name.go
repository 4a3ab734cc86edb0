package copies

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"

	"keyframe/snapshot"
	"keyframe/snapshot/archive"
)

// markerFile shows that the directory is the one that copies were made in, and
// not the empty place where its disk should be mounted.
const markerFile = ".keyframe-copies"

// mostName is how much of a job's name is in its folder's: file systems take
// 255 bytes.
const mostName = 80

var copyName = regexp.MustCompile(`^(\d{10,20})-([0-9a-f]{16})` + regexp.QuoteMeta(archive.Suffix) + `$`)

// nameOf is where the copy of a checkpoint lies in a directory: a folder for
// the job (and where its state is, so that jobs of one name on two servers
// don't meet), and a name of id and cut. Nothing of a job's name can lead out
// of the folder.
func nameOf(m *snapshot.Manifest) string {
	c, id := m.Checkpoint, m.Identity
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q %q", c.Job, id.Server, id.Prefix, id.Job))
	return filepath.Join(plain(c.Job)+"-"+hex.EncodeToString(sum[:4]),
		fmt.Sprintf("%010d-%s%s", c.ID, archive.Fingerprint(m), archive.Suffix))
}

// plain is a job's name with everything but letters, digits, - and _ escaped,
// cut short where it is long.
func plain(job string) string {
	var b strings.Builder
	for i := range len(job) {
		switch c := job[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_':
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "%%%02X", c)
		}
		if b.Len() >= mostName {
			break
		}
	}
	return b.String()
}

// idOf reads the id out of a copy's file name; false for other files.
func idOf(name string) (snapshot.ID, bool) {
	m := copyName.FindStringSubmatch(name)
	if m == nil {
		return 0, false
	}
	id, err := snapshot.ParseID(strings.TrimLeft(m[1], "0"))
	return id, err == nil
}
