package api

import (
	"encoding/json"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/danielgtaylor/huma/v2"
	"github.com/stretchr/testify/require"
)

// allRoutes is every route under /v1.
var allRoutes = []string{
	"DELETE /v1/jobs/{job}",
	"DELETE /v1/jobs/{job}/checkpoints/{checkpoint}",
	"DELETE /v1/operations/{id}",
	"GET /v1/alarms",
	"GET /v1/audit",
	"GET /v1/audit/verify",
	"GET /v1/events",
	"GET /v1/jobs",
	"GET /v1/jobs/{job}",
	"GET /v1/jobs/{job}/checkpoints",
	"GET /v1/jobs/{job}/checkpoints/{checkpoint}",
	"GET /v1/jobs/{job}/checkpoints/{checkpoint}/archive",
	"GET /v1/jobs/{job}/doctor",
	"GET /v1/jobs/{job}/keygroups",
	"GET /v1/operations",
	"GET /v1/operations/{id}",
	"GET /v1/store",
	"GET /v1/version",
	"POST /v1/import",
	"POST /v1/import/plan",
	"POST /v1/jobs/{job}/adopt",
	"POST /v1/jobs/{job}/checkpoints",
	"POST /v1/jobs/{job}/checkpoints/{checkpoint}/accept",
	"POST /v1/jobs/{job}/checkpoints/{checkpoint}/pin",
	"POST /v1/jobs/{job}/checkpoints/{checkpoint}/unpin",
	"POST /v1/jobs/{job}/checkpoints/{checkpoint}/verify",
	"POST /v1/jobs/{job}/drill",
	"POST /v1/jobs/{job}/pause",
	"POST /v1/jobs/{job}/rescale",
	"POST /v1/jobs/{job}/rescale/plan",
	"POST /v1/jobs/{job}/restore",
	"POST /v1/jobs/{job}/restore/plan",
	"POST /v1/jobs/{job}/resume",
	"POST /v1/jobs/{job}/undo",
	"POST /v1/jobs/{job}/unmark",
	"POST /v1/store/backup",
	"POST /v1/store/compact",
	"POST /v1/store/verify",
	"PUT /v1/jobs/{job}",
}

// document is what the tests need of an OpenAPI document.
type document struct {
	OpenAPI string `json:"openapi"`
	Info    struct{ Title, Version, Description string }
	Servers []any `json:"servers"`
	Paths   map[string]map[string]struct {
		OperationID string `json:"operationId"`
		Summary     string
		Parameters  []struct {
			Name, In string
			Required bool
		}
		RequestBody *struct{ Required bool }
		Responses   map[string]struct {
			Content map[string]struct{ Schema map[string]any }
		}
	}
	Components struct {
		Schemas map[string]struct {
			Type                 any
			Properties           map[string]map[string]any
			Required             []string
			AdditionalProperties any
		}
	}
}

func openAPI(t *testing.T, s *service) (document, string) {
	t.Helper()
	a := s.ask("GET", "/openapi.json", "")
	require.Equal(t, 200, a.status)
	var d document
	require.NoError(t, json.Unmarshal([]byte(a.body), &d))
	return d, a.body
}

func TestTheOpenAPIDocumentHasEveryRoute(t *testing.T) {
	s := newService(t)
	d, text := openAPI(t, s)
	require.Regexp(t, `^3\.1\.`, d.OpenAPI)
	require.Equal(t, "1.2.3-test", d.Info.Version)
	require.NotEmpty(t, d.Info.Description)
	var routes, ids []string
	for path, methods := range d.Paths {
		for method, op := range methods {
			routes = append(routes, strings.ToUpper(method)+" "+path)
			require.NotEmpty(t, op.Summary, path)
			require.NotContains(t, ids, op.OperationID)
			ids = append(ids, op.OperationID)
			for _, name := range regexp.MustCompile(`\{(\w+)\}`).FindAllStringSubmatch(path, -1) {
				found := slices.IndexFunc(op.Parameters, func(p struct {
					Name, In string
					Required bool
				}) bool {
					return p.Name == name[1] && p.In == "path" && p.Required
				})
				require.GreaterOrEqual(t, found, 0, "%s %s has no parameter %s", method, path, name[1])
			}
			good := 0
			for status, r := range op.Responses {
				if status < "300" {
					good++
					content := "application/json"
					if strings.HasSuffix(path, "/archive") {
						content = archiveType
					}
					require.Contains(t, r.Content, content, "%s %s", method, path)
					continue
				}
				require.Equal(t, "#/components/schemas/ErrorAnswer", r.Content["application/json"].Schema["$ref"], "%s %s %s", method, path, status)
			}
			require.Equal(t, 1, good, "%s %s", method, path)
		}
	}
	slices.Sort(routes)
	require.Equal(t, allRoutes, routes)
	require.NotRegexp(t, `https?://`, text, "it must load nothing from elsewhere")
	require.Empty(t, d.Servers)
}

func TestTheOpenAPIDocumentIsWhole(t *testing.T) {
	s := newService(t)
	d, text := openAPI(t, s)
	for _, ref := range regexp.MustCompile(`"\$ref":"([^"]+)"`).FindAllStringSubmatch(text, -1) {
		name, ok := strings.CutPrefix(ref[1], "#/components/schemas/")
		require.True(t, ok, ref[1])
		require.Contains(t, d.Components.Schemas, name)
	}
	for name, schema := range d.Components.Schemas {
		require.Regexp(t, `^[A-Za-z0-9]+$`, name)
		for _, field := range schema.Required {
			require.Contains(t, schema.Properties, field, name)
		}
	}
	for _, body := range []string{"CreateCheckpoint", "Restore", "Rescale", "ConfigJob", "Backup"} {
		require.Equal(t, false, d.Components.Schemas[body].AdditionalProperties, "%s takes no unknown fields", body)
	}
	require.Equal(t, "string", d.Components.Schemas["ConfigCheckpoint"].Properties["timeout"]["type"], "durations are texts")
	require.Equal(t, []string{"code", "message"}, d.Components.Schemas["Error"].Required)

	for _, path := range []string{"/openapi.yaml", "/openapi-3.0.json"} {
		require.Equal(t, 200, s.ask("GET", path, "").status, path)
	}
	require.Equal(t, 404, s.ask("GET", "/docs", "").status, "a page of the library would load scripts from elsewhere")
}

func TestNoHandlerIsBoundedByTheTimeForItsBody(t *testing.T) {
	api := newAPI(http.NewServeMux(), "v")
	register(api, Options{})
	n := 0
	for _, item := range api.OpenAPI().Paths {
		for _, op := range []*huma.Operation{item.Get, item.Put, item.Post, item.Delete, item.Patch} {
			if op != nil {
				n++
				require.Negative(t, op.BodyReadTimeout, op.OperationID)
				require.EqualValues(t, maxBody, op.MaxBodyBytes, op.OperationID)
			}
		}
	}
	require.Equal(t, len(allRoutes), n)
}
