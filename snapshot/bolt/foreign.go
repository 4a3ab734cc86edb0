package bolt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"unicode/utf8"

	"keyframe/snapshot"
)

// otherKinds are the first bytes of files that a wrong path may well lead to.
// A store begins with the number of its first page, eight zero bytes.
var otherKinds = []struct{ begins, what string }{
	{"SQLite format 3\x00", "an SQLite database"},
	{"REDIS0", "a dump of Redis"},
	{"KFAR", "an exported checkpoint, which `coordinator checkpoint import` takes"},
	{"\x7fELF", "a program"},
	{"PK\x03\x04", "a zip archive"},
	{"\x1f\x8b\x08", "a gzip file"},
	{"\x28\xb5\x2f\xfd", "a zstd file"},
	{"BZh", "a bzip2 file"},
	{"\xfd7zXZ\x00", "an xz file"},
	{"%PDF-", "a PDF document"},
	{"\x89PNG\r\n", "a picture"},
}

// otherKind names what a file plainly is by its first bytes, "" when they tell
// nothing.
func otherKind(r io.ReaderAt, size int64) string {
	b := make([]byte, min(size, 16))
	if _, err := r.ReadAt(b, 0); err != nil && !errors.Is(err, io.EOF) {
		return "" // reading on says why
	}
	for _, k := range otherKinds {
		if bytes.HasPrefix(b, []byte(k.begins)) {
			return k.what
		}
	}
	return ""
}

// textWindow is how much of a file's beginning and end is looked at.
const textWindow = 64 << 10

// isText reports whether a file's beginning and end are text, and nothing else.
func isText(r io.ReaderAt, size int64) bool {
	n := min(size, textWindow)
	for _, at := range []int64{0, size - n} {
		b := make([]byte, n)
		if _, err := r.ReadAt(b, at); err != nil && !errors.Is(err, io.EOF) {
			return false
		}
		// A window may cut a character in two.
		for i := 0; at > 0 && i < utf8.UTFMax && len(b) > 0 && !utf8.RuneStart(b[0]); i++ {
			b = b[1:]
		}
		for i := 0; at+int64(len(b)) < size && i < utf8.UTFMax && !utf8.Valid(b); i++ {
			b = b[:len(b)-1]
		}
		control := func(c rune) bool {
			return c < ' ' && c != '\n' && c != '\r' && c != '\t' && c != '\f' && c != 0x1b || c == 0x7f
		}
		if !utf8.Valid(b) || bytes.ContainsFunc(b, control) {
			return false
		}
	}
	return true
}

// foreign reports whether the file's buckets were seen, and are none of ours.
func (s *scan) foreign() bool {
	ours := []string{string(bucketMeta), string(bucketJobs), string(bucketChunks), string(bucketIndex), string(bucketJournal)}
	return len(s.top) > 0 && !slices.ContainsFunc(s.top, func(name string) bool { return slices.Contains(ours, name) })
}

// lookForOthers gives an error when what is left of a file that was cut short
// shows buckets of another program.
func lookForOthers(ctx context.Context, r io.ReaderAt, m pageMeta, size int64) error {
	m.high = uint64(size / m.pageSize)
	s := &scan{ctx: ctx, r: r, meta: m, used: newBitmap(m.high), free: newBitmap(m.high), meta0: map[string][]byte{}}
	if err := s.pages(m.root, 0, nil, nil, ""); err != nil && !errors.Is(err, errEnough) {
		return err
	}
	if s.foreign() {
		return s.ofOthers()
	}
	return nil
}

// beginAnew makes an empty store beside a damaged file of which nothing is left,
// instead of the salvage that found nothing: with its report and the name of
// the new file. A file that is plainly another program's is no damage.
func beginAnew(ctx context.Context, damaged *os.File, real string, report SalvageReport, nothing error) (SalvageReport, string, error) {
	info, err := damaged.Stat()
	if err != nil {
		return report, "", err
	}
	if err := examine(ctx, damaged, info.Size()); err != nil && !errors.Is(err, snapshot.ErrCorrupt) {
		return report, "", fmt.Errorf("%w: %w", nothing, err)
	}
	tmp := fmt.Sprintf("%s%ssalvage-%d", real, newSuffix, os.Getpid())
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return report, "", err
	}
	if err := fill(f); err != nil {
		_ = os.Remove(tmp) // of no interest beside the first error
		return report, "", err
	}
	report.Nothing, report.Checkpoints = true, []Salvaged{}
	return report, tmp, nil
}
