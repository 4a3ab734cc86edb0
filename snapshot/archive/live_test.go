package archive

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"keyframe/snapshot"
)

func aLive(base snapshot.ID) Live {
	return Live{Job: "flights", Base: base, Cut: "831c5f2aa2bb2dda", Newest: base + 7, Flip: base + 3, Epoch: 4, WrittenAt: time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC)}
}

func TestALiveFileSaysWhatWasWrittenLast(t *testing.T) {
	dir := t.TempDir()
	_, err := ReadLive(dir)
	require.True(t, NoLive(err))
	for _, want := range []Live{aLive(1), aLive(9)} {
		require.NoError(t, SaveLive(OS{}, dir, want))
		got, err := ReadLive(dir)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	require.Equal(t, []string{LiveFile}, names(t, dir))
	require.True(t, Unfinished(LiveFile+tmpMark+"0123456789abcdef"), "what a kill leaves is removed with the rest")
	later := aLive(9)
	later.WrittenAt, later.Newest = later.WrittenAt.Add(time.Hour), 99
	require.True(t, later.Same(aLive(9)))
	require.False(t, later.Same(aLive(1)))
}

// A fault or a kill between any two steps leaves the old one or the new one.
func TestAFaultBetweenAnyTwoStepsLeavesAWholeLiveFile(t *testing.T) {
	for _, dead := range []bool{false, true} {
		for _, before := range []bool{false, true} {
			for n := 1; ; n++ {
				dir := t.TempDir()
				require.NoError(t, SaveLive(OS{}, dir, aLive(1)))
				d := &faulty{n: n, dead: dead, before: before, fault: syscall.ENOSPC}
				err := SaveLive(d, dir, aLive(2))
				if d.at < n {
					require.NoError(t, err)
					require.Greater(t, n, 5, "create, write, sync, close, replace, sync of the directory")
					break
				}
				require.ErrorIs(t, err, syscall.ENOSPC, "step %d", n)
				got, err := ReadLive(dir)
				require.NoError(t, err)
				require.Contains(t, []snapshot.ID{1, 2}, got.Base)
			}
		}
	}
}

func TestAnyChangedByteOfALiveFileIsNoticed(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, SaveLive(OS{}, dir, aLive(5)))
	text, err := os.ReadFile(filepath.Join(dir, LiveFile))
	require.NoError(t, err)
	rapid.Check(t, func(rt *rapid.T) {
		b := append([]byte{}, text...)
		switch i := rapid.IntRange(0, len(b)-1).Draw(rt, "at"); rapid.IntRange(0, 2).Draw(rt, "how") {
		case 0:
			b[i] ^= rapid.ByteRange(1, 255).Draw(rt, "bits")
		case 1:
			b = b[:i]
		default:
			b = append(b[:i], append([]byte{'x'}, b[i:]...)...)
		}
		_, err := ParseLive(b)
		require.ErrorIs(rt, err, snapshot.ErrCorrupt)
	})
}

func TestANewerLiveFileIsToldFromADamagedOne(t *testing.T) {
	for _, c := range []struct {
		text string
		want error
	}{
		{"KEYFRAME-LIVE 2\nwhatever it holds\n", snapshot.ErrNewerFormat},
		{"KEYFRAME-LIVE 1\n{\"job\":\"flights\",\"base\":0}\n", snapshot.ErrCorrupt},
		{"KEYFRAME-LIVE 1\n{\"job\":\"flights\",\"base\":3,\"newest\":2}\n", snapshot.ErrCorrupt},
		{"KEYFRAME-LIVE 1\nno JSON\n", snapshot.ErrCorrupt},
		{"KEYFRAME-LIVE", snapshot.ErrCorrupt},
	} {
		dir := t.TempDir()
		text := fmt.Sprintf("%s%x\n", c.text, sha256.Sum256([]byte(c.text)))
		require.NoError(t, os.WriteFile(filepath.Join(dir, LiveFile), []byte(text), 0o600))
		_, err := ReadLive(dir)
		require.ErrorIs(t, err, c.want, c.text)
		require.ErrorContains(t, err, dir)
	}
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, LiveFile), []byte(strings.Repeat("x", mostLive+1)), 0o600))
	_, err := ReadLive(dir)
	require.ErrorIs(t, err, snapshot.ErrCorrupt)
}
