package layers

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// names is what the tree declares, each under the last part of its folder's
// name: Name, Type.Method, Type.Field for code, the functions of tests apart.
type names struct {
	code  map[string]bool
	tests map[string]bool
	texts map[string]bool // string literals, among them names of subtests
}

// folderName is what documents call a package: the commands' one is cmd, since
// coordinator is another.
func folderName(path string) string {
	dir := filepath.ToSlash(filepath.Dir(path))
	if strings.HasSuffix(dir, "cmd/coordinator") {
		return "cmd"
	}
	return filepath.Base(dir)
}

func namesOf(t *testing.T) names {
	t.Helper()
	n := names{map[string]bool{}, map[string]bool{}, map[string]bool{}}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		n.addFile(path, file)
		return nil
	})
	require.NoError(t, err)
	require.NotEmpty(t, n.code)
	require.NotEmpty(t, n.tests)
	return n
}

func (n names) addFile(path string, file *ast.File) {
	at, into := folderName(path)+".", n.code
	if strings.HasSuffix(path, "_test.go") {
		into = n.tests
	}
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			name := d.Name.Name
			if d.Recv != nil {
				name = receiver(d.Recv.List[0].Type) + "." + name
			}
			into[at+name] = true
		case *ast.GenDecl:
			for _, s := range d.Specs {
				addSpec(into, at, s)
			}
		}
	}
	ast.Inspect(file, func(x ast.Node) bool {
		if lit, ok := x.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			n.texts[strings.Trim(lit.Value, "\"`")] = true
		}
		return true
	})
}

func addSpec(into map[string]bool, at string, s ast.Spec) {
	switch s := s.(type) {
	case *ast.ValueSpec:
		for _, name := range s.Names {
			into[at+name.Name] = true
		}
	case *ast.TypeSpec:
		into[at+s.Name.Name] = true
		if i, ok := s.Type.(*ast.InterfaceType); ok {
			for _, m := range i.Methods.List {
				for _, name := range m.Names {
					into[at+s.Name.Name+"."+name.Name] = true
				}
			}
		}
	}
}

func receiver(x ast.Expr) string {
	switch x := x.(type) {
	case *ast.StarExpr:
		return receiver(x.X)
	case *ast.IndexExpr:
		return receiver(x.X)
	case *ast.IndexListExpr:
		return receiver(x.X)
	case *ast.Ident:
		return x.Name
	}
	return ""
}

var (
	codeOf = regexp.MustCompile("`([a-z]+(?:\\.[A-Za-z]\\w*)+)(/[A-Za-z_,]+)?`")
	testOf = regexp.MustCompile(`^[a-z]+\.(Test|Fuzz|Example)`)
	bare   = regexp.MustCompile("`(Test|Fuzz|Example)[A-Z]")
	fileOf = regexp.MustCompile(`\.(yaml|md|txt|go|mod|db|service|url|lua)$`)
)

// TestNamesInTheArchitectureExist holds every test and every piece of code
// that ARCHITECTURE.md and the list of what was found name to the tree.
func TestNamesInTheArchitectureExist(t *testing.T) {
	n, doc := namesOf(t), readDoc(t, "ARCHITECTURE.md")+readDoc(t, "internal/torture/FOUND.md")
	require.NotRegexp(t, bare, doc, "a test is named with its folder")
	tests, code := 0, 0
	for _, m := range codeOf.FindAllStringSubmatch(doc, -1) {
		name, sub := m[1], strings.TrimPrefix(m[2], "/")
		switch {
		case fileOf.MatchString(name):
		case testOf.MatchString(name):
			tests++
			if !n.tests[name] {
				t.Errorf("no test %s", name)
			}
			if sub != "" && !n.texts[sub] && !n.texts[strings.ReplaceAll(sub, "_", " ")] {
				t.Errorf("no part %q of %s", sub, name)
			}
		default:
			code++
			if !n.code[name] {
				t.Errorf("no %s in the code", name)
			}
		}
	}
	require.Greater(t, tests, 60)
	require.Greater(t, code, 40)
}

// TestEveryInvariantHasItsTests counts the tests that the list of invariants
// cites.
func TestEveryInvariantHasItsTests(t *testing.T) {
	_, rest, ok := strings.Cut(readDoc(t, "ARCHITECTURE.md"), "\n## Invariants")
	require.True(t, ok)
	section, _, _ := strings.Cut(rest, "\n## ")
	items := regexp.MustCompile(`(?m)^- \*\*(I\d+)\*\*(.*)$`).FindAllStringSubmatch(section, -1)
	require.Len(t, items, 10)
	for i, item := range items {
		require.Equal(t, "I"+[]string{"1", "2", "3", "4", "5", "6", "7", "8", "9", "10"}[i], item[1])
		cited := 0
		for _, m := range codeOf.FindAllStringSubmatch(item[2], -1) {
			if testOf.MatchString(m[1]) {
				cited++
			}
		}
		require.GreaterOrEqual(t, cited, 2, item[1])
	}
}

var quoted = regexp.MustCompile("`([^`]+)`")

// TestImportTableIsTheDocuments compares ARCHITECTURE.md's table with the one
// that is enforced.
func TestImportTableIsTheDocuments(t *testing.T) {
	_, rest, ok := strings.Cut(readDoc(t, "ARCHITECTURE.md"), "\n## Packages and imports")
	require.True(t, ok)
	section, _, _ := strings.Cut(rest, "\n## ")
	table := map[string][]string{}
	for line := range strings.Lines(section) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) != 5 || !strings.HasPrefix(cells[1], " `") {
			continue
		}
		name, may := strings.Trim(cells[1], " `"), []string{}
		for _, m := range quoted.FindAllStringSubmatch(cells[3], -1) {
			may = append(may, m[1])
		}
		switch strings.TrimSpace(cells[3]) {
		case "nothing":
		case "anything":
			may = []string{"*"}
		default:
			require.NotEmpty(t, may, name)
		}
		require.NotContains(t, table, name)
		table[name] = may
	}
	require.Len(t, table, len(allowed))
	for name, may := range allowed {
		require.Contains(t, table, name)
		require.ElementsMatch(t, may, table[name], name)
	}
}
