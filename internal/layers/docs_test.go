package layers

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// root is the repository, seen from this package.
const root = "../.."

var (
	readmes = []string{"README.md", "README.zh.md"}
	allDocs = append([]string{"ARCHITECTURE.md"}, readmes...)
)

func readDoc(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, name))
	require.NoError(t, err)
	return string(b)
}

// block is one fenced block of a document.
type block struct{ language, text string }

// blocksOf gives the fenced blocks of a document and the prose without them.
func blocksOf(t testing.TB, doc string) (blocks []block, prose string) {
	t.Helper()
	var out strings.Builder
	var cur *block
	for line := range strings.Lines(doc) {
		language, fence := strings.CutPrefix(line, "```")
		switch {
		case fence && cur == nil:
			cur = &block{language: strings.TrimSpace(language)}
		case fence:
			require.Empty(t, strings.TrimSpace(language), "a block that isn't closed before %q", line)
			blocks = append(blocks, *cur)
			cur = nil
		case cur != nil:
			cur.text += line
		default:
			out.WriteString(line)
		}
	}
	require.Nil(t, cur, "the last block isn't closed")
	return blocks, out.String()
}

// ofLanguage gives the texts of the blocks in one language.
func ofLanguage(t testing.TB, doc, language string) []string {
	t.Helper()
	blocks, _ := blocksOf(t, doc)
	var texts []string
	for _, b := range blocks {
		if b.language == language {
			texts = append(texts, b.text)
		}
	}
	require.NotEmpty(t, texts)
	return texts
}

// builtOnce is the program, built once for all tests of this package.
var builtOnce = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "keyframe-docs-")
	if err != nil {
		return "", err
	}
	builtIn = dir
	return dir, exec.Command("go", "build", "-o", filepath.Join(dir, "coordinator"), "keyframe/cmd/coordinator").Run()
})

var builtIn string // "" when no test needed the program

func TestMain(m *testing.M) {
	code := m.Run()
	if builtIn != "" {
		_ = os.RemoveAll(builtIn) // a temporary folder, which the system clears too
	}
	os.Exit(code)
}

// program is the folder that holds the coordinator.
func program(t testing.TB) string {
	t.Helper()
	dir, err := builtOnce()
	require.NoError(t, err)
	return dir
}

// run runs a command with the program in the path.
func run(t testing.TB, dir string, words ...string) (out string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(program(t), words[0]), words[1:]...)
	cmd.Dir = dir
	// An address at which nothing listens.
	cmd.Env = append(os.Environ(), "COORDINATOR_ADDR=http://127.0.0.1:1")
	var all bytes.Buffer
	cmd.Stdout, cmd.Stderr = &all, &all
	if err := cmd.Run(); err != nil {
		require.IsType(t, &exec.ExitError{}, err, "%v", words)
	}
	return all.String(), cmd.ProcessState.ExitCode()
}

// commandLines gives the coordinator's command lines in shell blocks, as words.
func commandLines(t testing.TB, doc string) (all [][]string) {
	t.Helper()
	for _, text := range ofLanguage(t, doc, "sh") {
		for line := range strings.Lines(text) {
			line = strings.Replace(strings.TrimSpace(line), "go run ./cmd/coordinator", "coordinator", 1)
			if strings.HasPrefix(line, "coordinator ") {
				all = append(all, words(line))
			}
		}
	}
	require.NotEmpty(t, all)
	return all
}

var (
	wordOf   = regexp.MustCompile(`"([^"]*)"|'([^']*)'|(\S+)`)
	inlineOf = regexp.MustCompile("`(coordinator [^`]+)`")
	linkOf   = regexp.MustCompile(`\]\(([^)#]+)\)`)
)

// words cuts a command line as a shell does, as far as the documents need it.
func words(line string) (all []string) {
	for _, m := range wordOf.FindAllStringSubmatch(line, -1) {
		all = append(all, strings.ReplaceAll(m[1]+m[2]+m[3], "$PWD", "/srv"))
	}
	return all
}

// understood tells what is wrong with a command line, "" for nothing. Commands
// that ask a coordinator are run against an address without one: they get as
// far as that when their flags and arguments are right. For the others --help
// does, which is looked at after the flags are parsed.
func understood(t *testing.T, words []string) string {
	t.Helper()
	dir, want := t.TempDir(), 6
	switch words[1] {
	case "run", "demo", "discover", "config", "bench", "version", "--help":
		if words[1] == "config" {
			words = words[:3] // the file may be one that isn't here
		}
		words, want = append(slices.Clone(words), "--help"), 0
	}
	job := "name: billing\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "job.yaml"), []byte(job), 0o600))
	out, code := run(t, dir, words...)
	// Commands that read a file look for it first.
	if code == want || strings.Contains(out, "stat flights.kfa: no such file") {
		return ""
	}
	return out
}

func TestCommandsOfTheDocumentsExist(t *testing.T) {
	for _, name := range allDocs {
		_, prose := blocksOf(t, readDoc(t, name))
		for _, m := range inlineOf.FindAllStringSubmatch(prose, -1) {
			require.Empty(t, understood(t, words(m[1])), "%s: %s", name, m[1])
		}
	}
	for _, name := range readmes {
		for _, line := range commandLines(t, readDoc(t, name)) {
			require.Empty(t, understood(t, line), "%s: %v", name, line)
		}
	}
}

// TestWrongCommandsAreNoticed keeps the test above from passing everything.
func TestWrongCommandsAreNoticed(t *testing.T) {
	for _, line := range []string{
		"coordinator discover --nosuch", "coordinator restore flights --parallelism 3", "coordinator restore",
		"coordinator nosuch", "coordinator checkpoint nosuch", "coordinator config nosuch", "coordinator rescale flights",
	} {
		require.NotEmpty(t, understood(t, words(line)), line)
	}
}

// TestTheReadmesSayTheSame holds the translation to the original: the same
// commands, the same configuration, about the same length.
func TestTheReadmesSayTheSame(t *testing.T) {
	english, chinese := readDoc(t, readmes[0]), readDoc(t, readmes[1])
	require.Equal(t, commandLines(t, english), commandLines(t, chinese))
	for _, language := range []string{"sh", "text"} {
		require.Equal(t, ofLanguage(t, english, language), ofLanguage(t, chinese, language))
	}
	heads := func(doc string) int { return strings.Count(doc, "\n## ") }
	require.Equal(t, heads(english), heads(chinese))
	rows := func(doc string) int { return strings.Count(doc, "\n|") }
	require.Equal(t, rows(english), rows(chinese))
	bullets := func(doc string) int { return strings.Count(doc, "\n- ") }
	require.Equal(t, bullets(english), bullets(chinese))
}

func TestLinksOfTheDocumentsLead(t *testing.T) {
	for _, name := range allDocs {
		_, prose := blocksOf(t, readDoc(t, name))
		for _, m := range linkOf.FindAllStringSubmatch(prose, -1) {
			require.False(t, filepath.IsAbs(m[1]), "%s: %s", name, m[1])
			if !strings.Contains(m[1], "://") {
				require.FileExists(t, filepath.Join(root, m[1]), name)
			}
		}
	}
}

func TestTheDocumentsAreShortAndNameNoLines(t *testing.T) {
	line := regexp.MustCompile(`\.(go|lua|md):[0-9]`)
	for name, most := range map[string]int{"README.md": 250, "README.zh.md": 250, "ARCHITECTURE.md": 400} {
		doc := readDoc(t, name)
		require.LessOrEqual(t, strings.Count(doc, "\n"), most, name)
		require.NotRegexp(t, line, doc, "%s names a line, which the next change makes wrong", name)
		for _, word := range []string{"TODO", "/tmp/", "/root/", "/home/"} {
			require.NotContains(t, doc, word, name)
		}
	}
}
