// Package layers holds the product's import directions by a test.
package layers

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// allowed says which packages of the module each package may import, beside
// the ones that these import. ARCHITECTURE.md has the same table.
var allowed = map[string][]string{
	"keygroups":                {},
	"snapshot":                 {"keygroups"},
	"snapshot/bolt":            {"internal/crashpoint", "snapshot"},
	"snapshot/storetest":       {"snapshot"},
	"snapshot/archive":         {"internal/crashpoint", "keygroups", "snapshot"},
	"rescale":                  {"keygroups", "snapshot"},
	"statebackend":             {"keygroups", "snapshot"},
	"statebackend/redis/resp":  {},
	"statebackend/redis/track": {"statebackend/redis/resp"},
	"statebackend/redis":       {"internal/crashpoint", "keygroups", "snapshot", "statebackend", "statebackend/redis/resp", "statebackend/redis/track"},
	"statebackend/memory":      {"keygroups", "snapshot", "statebackend"},
	"statebackend/backendtest": {
		"keygroups", "snapshot", "statebackend"},
	"coordinator/fault":    {},
	"coordinator/schedule": {},
	"coordinator/config":   {"coordinator/fault", "coordinator/schedule", "keygroups", "rescale", "snapshot", "statebackend"},
	"coordinator/copies":   {"internal/crashpoint", "snapshot", "snapshot/archive"},
	"coordinator/cut":      {"internal/crashpoint", "coordinator/fault", "coordinator/config", "keygroups", "snapshot", "statebackend"},
	"coordinator/restore":  {"internal/crashpoint", "coordinator/fault", "coordinator/config", "keygroups", "snapshot", "statebackend"},
	"coordinator/audit":    {"coordinator/fault"},
	"coordinator/doctor":   {"keygroups", "snapshot", "statebackend"},
	"coordinator/drill":    {"internal/crashpoint", "coordinator/fault", "coordinator/config", "coordinator/restore", "snapshot", "statebackend"},
	"coordinator/rescaler": {"internal/crashpoint", "coordinator/fault", "coordinator/config", "coordinator/cut", "coordinator/restore", "keygroups", "rescale", "snapshot", "statebackend"},
	"coordinator": {"internal/crashpoint", "coordinator/fault", "coordinator/schedule", "coordinator/config", "coordinator/copies", "coordinator/cut", "coordinator/doctor",
		"snapshot/archive", "coordinator/drill", "coordinator/restore", "coordinator/rescaler", "keygroups", "rescale", "snapshot", "statebackend"},
	"coordinator/alarm":   {"coordinator", "coordinator/config"},
	"coordinator/metrics": {"coordinator", "coordinator/alarm", "coordinator/config", "coordinator/fault", "snapshot"},
	"coordinator/api": {"coordinator", "coordinator/alarm", "coordinator/audit", "coordinator/config", "coordinator/doctor", "coordinator/fault", "coordinator/restore",
		"coordinator/rescaler", "keygroups", "rescale", "snapshot", "snapshot/archive"},
	"examples/flights": {"keygroups", "snapshot", "statebackend"},
	"cmd/coordinator":  {"*"},
	"bench": {"coordinator/fault", "coordinator/config", "coordinator/cut", "coordinator/restore", "keygroups", "rescale", "snapshot", "snapshot/bolt",
		"statebackend", "statebackend/memory", "statebackend/redis", "statebackend/redis/track"},
	"internal/crashpoint": {},
	"internal/layers":     {},
	// Test helpers may use what they help to test.
	"internal/redistest":     {},
	"internal/torture":       {},
	"internal/torture/crash": {},
	// The checker shares no code with what it checks.
	"internal/torture/witness": {},
	"internal/torture/monkey":  {"internal/redistest", "internal/torture/witness"},
}

// owners are the third-party libraries that one package each may import.
var owners = map[string][]string{
	"github.com/redis/go-redis/v9":       {"statebackend/redis", "internal/redistest", "bench", "internal/torture/witness", "internal/torture/monkey"},
	"go.etcd.io/bbolt":                   {"snapshot/bolt", "internal/torture/witness"},
	"github.com/robfig/cron/v3":          {"coordinator/schedule"},
	"github.com/urfave/cli/v2":           {"cmd/coordinator"},
	"github.com/danielgtaylor/huma/v2":   {"coordinator/api"},
	"github.com/goccy/go-yaml":           {"coordinator/config"},
	"github.com/klauspost/compress/zstd": {"snapshot", "internal/torture/witness"},
	// Of tests only: those of statebackend/redis check histories of leases.
	"github.com/anishathalye/porcupine": {},
}

type pkg struct {
	ImportPath string
	Imports    []string
}

func listPackages(t *testing.T) []pkg {
	t.Helper()
	out, err := exec.Command("go", "list", "-json=ImportPath,Imports", "keyframe/...").Output()
	require.NoError(t, err)
	var all []pkg
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		err := dec.Decode(&p)
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err)
		all = append(all, p)
	}
}

func TestImportsGoInOneDirection(t *testing.T) {
	all := listPackages(t)
	require.NotEmpty(t, all)
	for _, p := range all {
		name := strings.TrimPrefix(p.ImportPath, "keyframe/")
		may, known := allowed[name]
		if !known {
			t.Errorf("package %s is not in the table: add it here and in ARCHITECTURE.md", name)
			continue
		}
		for _, imp := range p.Imports {
			in, ours := strings.CutPrefix(imp, "keyframe/")
			if ours && !contains(may, in) {
				t.Errorf("%s imports %s, which the table does not allow", name, in)
			}
		}
	}
}

func TestEachLibraryHasOneOwner(t *testing.T) {
	for _, p := range listPackages(t) {
		name := strings.TrimPrefix(p.ImportPath, "keyframe/")
		for _, imp := range p.Imports {
			for lib, by := range owners {
				if (imp == lib || strings.HasPrefix(imp, lib+"/")) && !contains(by, name) {
					t.Errorf("%s imports %s, which belongs to %v", name, imp, by)
				}
			}
		}
	}
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s || x == "*" {
			return true
		}
	}
	return false
}
