package layers

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// How long files and functions may be, in lines. A test may have a long table.
const (
	fileMost     = 400
	functionMost = 40
	testMost     = 90
)

func TestFilesAndFunctionsAreShort(t *testing.T) {
	root, files := filepath.Join("..", ".."), 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || d.Name() == ".git"):
			return filepath.SkipDir
		case strings.HasSuffix(path, ".go"):
			files++
			return shortEnough(t, path)
		}
		return nil
	})
	require.NoError(t, err)
	require.Greater(t, files, 300)
}

func shortEnough(t *testing.T, path string) error {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	line := func(p token.Pos) int { return set.Position(p).Line }
	if n := line(file.End()); n > fileMost {
		t.Errorf("%s has %d lines: %d at most", path, n, fileMost)
	}
	most := functionMost
	if strings.HasSuffix(path, "_test.go") {
		most = testMost
	}
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok {
			if n := line(f.End()) - line(f.Pos()) + 1; n > most {
				t.Errorf("%s: %s has %d lines: %d at most", path, f.Name.Name, n, most)
			}
		}
	}
	return nil
}
