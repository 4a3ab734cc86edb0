package snapshot

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"keyframe/keygroups"
)

func TestAManifestComesBackAsItWas(t *testing.T) {
	for _, keys := range [][]RecordedKey{nil, oddKeys()} {
		m := encode(t, 300, keys).m
		data, err := EncodeManifest(m)
		require.NoError(t, err)
		got, err := DecodeManifest(data)
		require.NoError(t, err)
		require.Equal(t, m, got)
		again, err := EncodeManifest(got)
		require.NoError(t, err)
		require.Equal(t, data, again, "the same manifest has the same bytes")
	}
}

func TestManifestTimesBecomeUTCAndTheArgumentStays(t *testing.T) {
	m := encode(t, 300, oddKeys()).m
	m.CutAt = m.CutAt.In(time.FixedZone("east", 3600))
	before := *m
	data, err := EncodeManifest(m)
	require.NoError(t, err)
	require.Equal(t, before, *m)
	require.Equal(t, "fl\xffights", m.Identity.Job)
	got, err := DecodeManifest(data)
	require.NoError(t, err)
	require.True(t, m.CutAt.Equal(got.CutAt))
	require.Equal(t, time.UTC, got.CutAt.Location())
}

// fill sets every string that it can reach to bytes that JSON can't carry,
// each another, so that one forgotten or swapped field shows.
func fill(v reflect.Value, n *int) {
	switch v.Kind() {
	case reflect.String:
		*n++
		v.SetString("\xff" + strings.Repeat("x", *n))
	case reflect.Struct:
		if v.Type() == timeType {
			return
		}
		for i := range v.NumField() {
			fill(v.Field(i), n)
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			fill(v.Index(i), n)
		}
	}
}

func TestEveryStringFieldOfAManifestIsEscaped(t *testing.T) {
	var m Manifest
	n := 0
	fill(reflect.ValueOf(&m).Elem(), &n)
	require.Greater(t, n, 30)
	escaped := mapStrings(m, escapeString)
	require.Equal(t, "base64:/3g=", escaped.Checkpoint.Job)
	back := mapStrings(escaped, func(s string) string {
		require.True(t, strings.HasPrefix(s, escapePrefix), s)
		out, err := unescapeString(s)
		require.NoError(t, err)
		return out
	})
	require.Equal(t, m, back)
	escaped.Chunks[0].Raw = 99
	require.NotEqual(t, m.Chunks[0], escaped.Chunks[0], "the copy is deep")
}

func TestStringEscape(t *testing.T) {
	for in, out := range map[string]string{
		"":             "",
		"plain":        "plain",
		"naïve \u2028": "naïve \u2028",
		"\xff":         "base64:/w==",
		"base64:":      "base64:YmFzZTY0Og==",
		"base64:/w==":  "base64:YmFzZTY0Oi93PT0=",
		"a\xc3":        "base64:YcM=",
		"base6":        "base6",
	} {
		require.Equal(t, out, escapeString(in))
		back, err := unescapeString(out)
		require.NoError(t, err)
		require.Equal(t, in, back)
	}
	for _, bad := range []string{"base64:", "base64:/w=", "base64:/x==", "base64:YQ==", "base64:/w==\n", "base64:?"} {
		_, err := unescapeString(bad)
		require.Error(t, err, bad)
	}
}

// reseal gives a manifest a right length and checksum after a change.
func reseal(data []byte) []byte {
	data = append([]byte(nil), data...)
	binary.LittleEndian.PutUint32(data[8:], uint32(len(data)-manifestBody))
	sum := manifestChecksum(data)
	copy(data[manifestSum:], sum[:])
	return data
}

func TestManifestsThatAreRefused(t *testing.T) {
	good, err := EncodeManifest(encode(t, 300, oddKeys()).m)
	require.NoError(t, err)
	change := func(old, new string) []byte {
		require.Contains(t, string(good), old)
		return reseal([]byte(strings.Replace(string(good), old, new, 1)))
	}
	newer := reseal(append([]byte("KFMF\x03\x00\x00\x00"), good[8:]...))
	for name, c := range map[string]struct {
		data []byte
		is   error
		text string
	}{
		"empty":          {nil, ErrCorrupt, "0 bytes"},
		"other magic":    {append([]byte("KFCK"), good[4:]...), ErrCorrupt, `"KFCK"`},
		"newer":          {newer, ErrNewerFormat, "format 3, this program reads up to 2"},
		"newer, damaged": {append([]byte("KFMF\x03"), good[5:]...), ErrCorrupt, "SHA-256"},
		"format 0":       {reseal(append([]byte("KFMF\x00"), good[5:]...)), ErrCorrupt, "bytes 4 to 7"},
		"reserved":       {reseal(append([]byte("KFMF\x02\x01"), good[6:]...)), ErrCorrupt, "bytes 4 to 7"},
		"longer":         {append(append([]byte(nil), good...), ' '), ErrCorrupt, "its head says"},
		"more follows":   {reseal(append(append([]byte(nil), good...), " {}"...)), ErrCorrupt, "more follows"},
		"unknown field":  {change(`{"format":2,`, `{"format":2,"later":0,`), ErrCorrupt, "later"},
		"wrong type":     {change(`"epoch":9`, `"epoch":"9"`), ErrCorrupt, "epoch"},
		"other format":   {change(`"format":2`, `"format":1`), ErrCorrupt, "format 1 inside one of format 2"},
		"bad escape":     {change(`"base64:`, `"base64:*`), ErrCorrupt, "escaped string"},
		"illegal state":  {change(`"state":"completed"`, `"state":"failed"`), ErrCorrupt, "want \"completed\""},
		"no object":      {reseal(good[:manifestBody]), ErrCorrupt, "EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := DecodeManifest(c.data)
			require.ErrorIs(t, err, c.is)
			require.ErrorContains(t, err, c.text)
		})
	}
}

func TestAnyFlippedByteOrTruncationOfAManifestIsNoticed(t *testing.T) {
	good, err := EncodeManifest(encode(t, 5000, oddKeys()[:6]).m)
	require.NoError(t, err)
	for i := range good {
		_, err := DecodeManifest(good[:i])
		require.ErrorIs(t, err, ErrCorrupt, "first %d bytes", i)
		bad := append([]byte(nil), good...)
		for _, bit := range []byte{1, 0x80, 0xff} {
			bad[i] = good[i] ^ bit
			_, err = DecodeManifest(bad)
			require.ErrorIs(t, err, ErrCorrupt, "byte %d ^ %02x", i, bit)
		}
	}
}

func TestValidateNamesEveryIllegalState(t *testing.T) {
	digest := strings.Repeat("ab", sha256.Size)
	for field, c := range map[string]func(m *Manifest){
		"format":          func(m *Manifest) { m.Format = 0 },
		"format: 3":       func(m *Manifest) { m.Format = 3 },
		"id":              func(m *Manifest) { m.Checkpoint.ID = 0 },
		"job":             func(m *Manifest) { m.Checkpoint.Job = "" },
		"kind":            func(m *Manifest) { m.Checkpoint.Kind = "point" },
		"trigger":         func(m *Manifest) { m.Checkpoint.Trigger = "" },
		"grade":           func(m *Manifest) { m.Checkpoint.Grade = GradeAuto },
		"grade: \"\"":     func(m *Manifest) { m.Checkpoint.Grade = "" },
		"state":           func(m *Manifest) { m.Checkpoint.State = StateInProgress },
		"failure":         func(m *Manifest) { m.Checkpoint.Failure = &Failure{} },
		"startedAt":       func(m *Manifest) { m.Checkpoint.StartedAt = time.Time{} },
		"completedAt":     func(m *Manifest) { m.Checkpoint.CompletedAt = nil },
		"durationMs":      func(m *Manifest) { m.Checkpoint.DurationMs = -1 },
		"stallMs":         func(m *Manifest) { m.Checkpoint.StallMs = -0.5 },
		"parent":          func(m *Manifest) { m.Checkpoint.Parent = 42 },
		"attempt":         func(m *Manifest) { m.Attempt = 43 },
		"cutAt":           func(m *Manifest) { m.CutAt = time.Time{} },
		"identity.server": func(m *Manifest) { m.Identity.Server = "redis://u:hunter2@h:1/0" },
		"identity.prefix": func(m *Manifest) { m.Identity.Prefix = "" },
		"identity.job":    func(m *Manifest) { m.Identity.Job = "" },
		"keyGroups.hash":  func(m *Manifest) { m.KeyGroups.Hash = "md5" },
		"keyGroups.keyType": func(m *Manifest) {
			m.KeyGroups.KeyType = ""
		},
		"keyGroups.ranges":         func(m *Manifest) { m.KeyGroups.Ranges = "" },
		"keyGroups.maxParallelism": func(m *Manifest) { m.KeyGroups.MaxParallelism = 40000 },
		"maxParallelism":           func(m *Manifest) { m.Checkpoint.MaxParallelism = 64 },
		"parallelism":              func(m *Manifest) { m.Checkpoint.Parallelism = 129 },
		"parallelism: 0":           func(m *Manifest) { m.Checkpoint.Parallelism = 0 },
		"ranges":                   func(m *Manifest) { m.Ranges = m.Ranges[:2] },
		"ranges: end":              func(m *Manifest) { m.Ranges[2].End = 126 },
		"ranges[1]":                func(m *Manifest) { m.Ranges[1].Start = 42 },
		"ranges[0]":                func(m *Manifest) { m.Ranges[0] = keygroups.Range{Subtask: 1, End: 42} },
		"operatorStates[1]":        func(m *Manifest) { m.OperatorStates[1] = m.OperatorStates[0] },
		"operatorStates[1]: mode":  func(m *Manifest) { m.OperatorStates[1].Mode = "each" },
		"operatorStates[1]: a":     func(m *Manifest) { m.OperatorStates[1].Handed = &Handed{Digest: digest} },
		"operatorStates[0]":        func(m *Manifest) { m.OperatorStates[0].Handed.Length = -1 },
		"operatorStates[0]: hande": func(m *Manifest) { m.OperatorStates[0].Handed.Digest = digest[2:] },
		"states[1]":                func(m *Manifest) { m.States = append(m.States, m.States[0]) },
		"states":                   func(m *Manifest) { m.States[0].Keys = m.Checkpoint.Keys + 1 },
		"groups[0]":                func(m *Manifest) { m.Groups[0].Group = 128 },
		"groups[1]":                func(m *Manifest) { m.Groups = append(m.Groups, m.Groups[0]) },
		"groups":                   func(m *Manifest) { m.Groups[0].Elements = 1 << 63 },
		"sources[1]": func(m *Manifest) {
			m.Checkpoint.Sources = append(m.Checkpoint.Sources, m.Checkpoint.Sources[0])
		},
		"sources[0]":      func(m *Manifest) { m.Checkpoint.Sources[0].Partition = -1 },
		"sources[0]: ent": func(m *Manifest) { m.Checkpoint.Sources[0].Read = -2 },
		"sources[0]: las": func(m *Manifest) { m.Checkpoint.Sources[0].LastID = "$" },
		"chunks[0]":       func(m *Manifest) { m.Chunks[0].Section = 0 },
		"chunks[0]: 0":    func(m *Manifest) { m.Chunks[0].Raw = 0 },
		"chunks[0]: 41":   func(m *Manifest) { m.Chunks[0].Raw = MaxChunk + 1 },
		"chunks[0]: 52":   func(m *Manifest) { m.Chunks[0].Stored = chunkOverhead },
		"chunks[1]":       func(m *Manifest) { m.Chunks[1].ID = m.Chunks[0].ID },
		"chunks[1]: keye": func(m *Manifest) { m.Chunks[0].Section = SectionOperator },
		"fullBytes":       func(m *Manifest) { m.Checkpoint.FullBytes++ },
		"storedBytes":     func(m *Manifest) { m.Checkpoint.StoredBytes = m.Checkpoint.FullBytes + 1 },
		"keys":            func(m *Manifest) { m.Checkpoint.Keys, m.Checkpoint.Missing = 0, 0 },
		"elements":        func(m *Manifest) { m.Checkpoint.Keys = 0 },
	} {
		t.Run(field, func(t *testing.T) {
			m := encode(t, 300, oddKeys()).m
			require.NoError(t, m.Validate())
			c(m)
			_, err := EncodeManifest(m)
			require.ErrorContains(t, err, field)
			require.NotContains(t, err.Error(), "hunter2")
			problems, err := Verify(context.Background(), &MemChunks{}, m)
			require.NoError(t, err)
			require.Contains(t, lines(problems), field)
		})
	}
}

func lines(problems []Problem) string {
	var b strings.Builder
	for _, p := range problems {
		b.WriteString(p.String() + "\n")
	}
	return b.String()
}

func TestValidateWithoutRangesAndSums(t *testing.T) {
	m := encode(t, 300, oddKeys()).m
	m.Ranges, m.States, m.Groups, m.OperatorStates, m.Checkpoint.Sources = nil, nil, nil, nil, nil
	require.NoError(t, m.Validate())
	m.States = []StateStats{{Operator: "a", Keys: 1 << 63}, {Operator: "b", Keys: 1 << 63}}
	require.ErrorContains(t, m.Validate(), "states")
}
