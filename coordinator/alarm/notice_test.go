package alarm

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator"
	"keyframe/coordinator/config"
)

// kinds are all events of the closed list, as its source has them.
func kinds(t *testing.T) []coordinator.EventKind {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "../event.go", nil, 0)
	require.NoError(t, err)
	var all []coordinator.EventKind
	ast.Inspect(f, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if ok && len(v.Values) == 1 && strings.HasPrefix(v.Names[0].Name, "Event") {
			text, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
			require.NoError(t, err)
			all = append(all, coordinator.EventKind(text))
		}
		return true
	})
	require.Greater(t, len(all), 40)
	return all
}

// Bad news that no group had would reach nobody; also kinds that are added
// later have one.
func TestAllBadNewsIsInAGroup(t *testing.T) {
	usual := config.Hook{}.WithDefaults(0)
	for _, k := range kinds(t) {
		e := coordinator.Event{Kind: k, Job: "flights"}
		switch {
		case strings.HasPrefix(string(k), "hook_") || strings.HasPrefix(string(k), "heartbeat_"):
			require.Empty(t, Group(k), k)
			require.False(t, wants(config.Hook{Events: config.AlarmGroups}, e), "%s would bring forth the next", k)
			continue
		case k.Failed():
			require.NotEmpty(t, Group(k), k)
			require.True(t, wants(usual, e), k)
		}
		require.True(t, wants(config.Hook{Events: []config.AlarmGroup{config.AlarmAll}}, e), k)
		require.Equal(t, Group(k) != "" && Group(k) != config.AlarmHealth, wants(usual, e), k)
		require.Contains(t, append([]config.AlarmGroup{""}, config.AlarmGroups...), Group(k), k)
	}
	for k, want := range map[coordinator.EventKind]config.AlarmGroup{
		coordinator.EventStateLost: config.AlarmStateLoss, coordinator.EventRecovered: config.AlarmRecovery, coordinator.EventRecoveryFailed: config.AlarmRecovery,
		coordinator.EventDrillFailed: config.AlarmDrill, coordinator.EventDrillPassed: "", coordinator.EventCheckpointFailed: config.AlarmFailure,
		coordinator.EventCheckpointCompleted: "", coordinator.EventCheckpointOverdue: config.AlarmOverdue, coordinator.EventCheckpointOverdueEnded: config.AlarmOverdue,
		coordinator.EventHealthChanged: config.AlarmHealth, coordinator.EventCopyFailed: config.AlarmFailure,
	} {
		require.Equal(t, want, Group(k), k)
	}
}
