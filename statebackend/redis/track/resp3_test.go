package track

import (
	"bytes"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// heardNames is a sink that writes down what it is told.
type heardNames struct {
	names []string
	all   []string
}

func (h *heardNames) invalid(name []byte)      { h.names = append(h.names, string(name)) }
func (h *heardNames) invalidAll(reason string) { h.all = append(h.all, reason) }

// readAllResp3 reads answers until the text ends.
func readAllResp3(r io.Reader) (answers []answer, h *heardNames, err error) {
	h = &heardNames{}
	in := newResp3(r, h)
	for {
		a, err := in.next()
		if err != nil {
			return answers, h, err
		}
		answers = append(answers, a)
	}
}

func respBulk(s string) string { return fmt.Sprintf("$%d\r\n%s\r\n", len(s), s) }

// keyInvalidation is the push as the server writes it.
func keyInvalidation(names ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, ">2\r\n%s*%d\r\n", respBulk("invalidate"), len(names))
	for _, n := range names {
		b.WriteString(respBulk(n))
	}
	return b.String()
}

func TestRESP3Answers(t *testing.T) {
	for text, want := range map[string]answer{
		"+PONG\r\n":                  {kind: '+', text: "PONG"},
		"-ERR no\r\n":                {kind: '-', fail: "ERR no"},
		"!7\r\nBUSY is\r\n":          {kind: '!', fail: "BUSY is"},
		"!0\r\n\r\n":                 {kind: '!', fail: "ERR without a text"},
		":-17\r\n":                   {kind: ':', text: "-17"},
		",1.5\r\n":                   {kind: ',', text: "1.5"},
		"#t\r\n":                     {kind: '#', text: "t"},
		"(123456789012345678901\r\n": {kind: '(', text: "123456789012345678901"},
		respBulk("a\r\nb"):           {kind: '$', text: "a\r\nb"},
		"$-1\r\n":                    {kind: '$'},
		"*-1\r\n":                    {kind: '*'},
		"=8\r\ntxt:a: b\r\n":         {kind: '=', text: "txt:a: b"},
		"%2\r\n+a\r\n*2\r\n:1\r\n:2\r\n+b\r\n_\r\n":   {kind: '%'},
		"~1\r\n" + respBulk("x"):                      {kind: '~'},
		"*2\r\n|1\r\n+k\r\n+v\r\n:5\r\n$-1\r\n":       {kind: '*'},
		"|1\r\n+ttl\r\n:3\r\n+OK\r\n":                 {kind: '+', text: "OK"},
		"*1\r\n>1\r\n+odd\r\n":                        {kind: '*'},
		respBulk(strings.Repeat("long", resp3Buffer)): {kind: '$', text: strings.Repeat("long", resp3Buffer)},
	} {
		answers, h, err := readAllResp3(strings.NewReader(text + "+next\r\n"))
		require.ErrorIs(t, err, io.ErrUnexpectedEOF, "%.40q", text)
		require.Equal(t, []answer{want, {kind: '+', text: "next"}}, answers, "%.40q", text)
		require.Empty(t, h.names)
		require.Empty(t, h.all)
	}
}

func TestRESP3PushesComeBetweenAnswers(t *testing.T) {
	long := strings.Repeat("n", maxName)
	text := keyInvalidation("j:1", "", "j:\r\n\x00\xff") + "+PONG\r\n" +
		">3\r\n" + respBulk("message") + respBulk("channel") + respBulk("body") + // not ours
		">2\r\n" + respBulk("pong") + "*1\r\n:1\r\n" +
		keyInvalidation() + keyInvalidation(long, "j:2") + ":7\r\n" +
		strings.Replace(keyInvalidation("j:3"), "*1", "~1", 1) + "_\r\n"
	for name, r := range map[string]io.Reader{
		"whole": strings.NewReader(text), "byte by byte": iotest.OneByteReader(strings.NewReader(text)),
	} {
		answers, h, err := readAllResp3(r)
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		require.Equal(t, []answer{{kind: '+', text: "PONG"}, {kind: ':', text: "7"}, {kind: '_'}}, answers, name)
		require.Equal(t, []string{"j:1", "", "j:\r\n\x00\xff", long, "j:2", "j:3"}, h.names, name)
		require.Empty(t, h.all)
	}
}

func TestRESP3NullMeansEverything(t *testing.T) {
	for _, null := range []string{"_", "*-1", "$-1"} {
		_, h, err := readAllResp3(strings.NewReader(">2\r\n" + respBulk("invalidate") + null + "\r\n" + keyInvalidation("j:1")))
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		require.Len(t, h.all, 1, null)
		require.Contains(t, h.all[0], "FLUSHALL")
		require.Equal(t, []string{"j:1"}, h.names)
	}
}

// A name that is longer than what is kept is passed over without being held.
func TestRESP3TooLongANameMeansEverything(t *testing.T) {
	const size = 200 << 20
	text := io.MultiReader(
		strings.NewReader(fmt.Sprintf(">2\r\n%s*3\r\n%s$%d\r\n", respBulk("invalidate"), respBulk("j:1"), size)),
		io.LimitReader(zeroBytes{}, size), strings.NewReader("\r\n"+respBulk("j:2")+"+PONG\r\n"))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	answers, h, err := readAllResp3(text)
	runtime.ReadMemStats(&after)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.Equal(t, []answer{{kind: '+', text: "PONG"}}, answers)
	require.Equal(t, []string{"j:1", "j:2"}, h.names)
	require.Len(t, h.all, 1)
	require.Contains(t, h.all[0], fmt.Sprint(size))
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(4<<20))
}

type zeroBytes struct{}

func (zeroBytes) Read(b []byte) (int, error) { clear(b); return len(b), nil }

func TestRESP3Refuses(t *testing.T) {
	for _, text := range []string{
		"\r\n", "\n", "+\n", "?x\r\n", "hello\r\n", "$\r\n", "$x\r\n", "$-2\r\n", "$+1\r\na\r\n", "$?\r\n",
		"$3\r\nabcd\r\n", "$99999999999999\r\n", fmt.Sprintf("$%d\r\n", maxAnswer+1), "$9999999999999\r\n",
		"*-2\r\n", "*x\r\n", "%-3\r\n", "|x\r\n", "*1\r\n$3\r\nabcd\r\n", "*1\r\n?\r\n",
		">\r\n", ">0\r\n", ">-1\r\n", ">2\r\n:1\r\n+x\r\n",
		">2\r\n" + respBulk("invalidate") + "+j:1\r\n", ">2\r\n" + respBulk("invalidate") + "*1\r\n+j:1\r\n",
		">2\r\n" + respBulk("invalidate") + "*x\r\n", ">2\r\n" + respBulk("invalidate") + "*1\r\n$-1\r\n",
		">2\r\n" + respBulk("invalidate") + "*1\r\n$2\r\nj:1\r\n",
		">2\r\n" + respBulk(strings.Repeat("x", resp3Buffer+1)), "+" + strings.Repeat("x", resp3Buffer) + "\r\n",
		strings.Repeat("*1\r\n", maxDepth+2) + "+deep\r\n", strings.Repeat("|1\r\n", maxDepth+2),
		fmt.Sprintf(">2\r\n%s*1\r\n$%d\r\n%sxx", respBulk("invalidate"), resp3Buffer, strings.Repeat("x", resp3Buffer)),
	} {
		_, _, err := readAllResp3(strings.NewReader(text + strings.Repeat("+OK\r\n", 10)))
		require.ErrorIs(t, err, errResp3, "%.60q", text)
	}
}

// Wherever the stream is cut, the reader says so, and has told all names that
// were whole before that.
func TestRESP3CutAnywhere(t *testing.T) {
	text := keyInvalidation("j:1", "j:2") + "%1\r\n" + respBulk("k") + "*1\r\n:1\r\n" + keyInvalidation("j:3") + respBulk("text") + "-ERR x\r\n"
	_, whole, _ := readAllResp3(strings.NewReader(text))
	for cut := range len(text) {
		_, h, err := readAllResp3(strings.NewReader(text[:cut]))
		require.ErrorIs(t, err, io.ErrUnexpectedEOF, "%q", text[:cut])
		require.ErrorContains(t, err, "closed the connection")
		require.True(t, slices.Equal(whole.names[:len(h.names)], h.names))
		require.LessOrEqual(t, strings.Count(text[:cut], "j:")-1, len(h.names))
	}
}

// What a server may write, in any order, is read back as it was meant.
func TestRESP3ReadsWhatIsWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var stream bytes.Buffer
		var names, texts []string
		for range rapid.IntRange(0, 30).Draw(t, "messages") {
			if rapid.Bool().Draw(t, "push") {
				some := rapid.SliceOfN(rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 40), func(b []byte) string { return string(b) }), 0, 200).Draw(t, "names")
				stream.WriteString(keyInvalidation(some...))
				names = append(names, some...)
				continue
			}
			text := rapid.String().Draw(t, "text")
			stream.WriteString(respBulk(text))
			texts = append(texts, text)
		}
		answers, h, err := readAllResp3(iotest.HalfReader(&stream))
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		require.Equal(t, names, h.names)
		require.Len(t, answers, len(texts))
		for i, a := range answers {
			require.Equal(t, texts[i], a.text)
		}
	})
}

func FuzzRESP3(f *testing.F) {
	f.Add([]byte(keyInvalidation("j:1") + "+PONG\r\n"))
	f.Add([]byte(">2\r\n$10\r\ninvalidate\r\n_\r\n%1\r\n+a\r\n*1\r\n|1\r\n+k\r\n+v\r\n:1\r\n"))
	f.Add([]byte("=8\r\ntxt:abcd\r\n!3\r\nERR\r\n$-1\r\n*-1\r\n"))
	f.Fuzz(func(t *testing.T, stream []byte) {
		whole, first, err := readAllResp3(bytes.NewReader(stream))
		require.Error(t, err)
		pieces, second, _ := readAllResp3(iotest.OneByteReader(bytes.NewReader(stream)))
		require.Equal(t, whole, pieces, "how the bytes arrive makes no difference")
		require.Equal(t, first, second)
	})
}
