package daemon

import (
	"encoding/json"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kvconn/kvconn/connector/server"
	"github.com/kvconn/kvconn/internal/daemon/admin"
	"github.com/kvconn/kvconn/internal/daemon/contents"
	"github.com/kvconn/kvconn/internal/daemon/explain"
	"github.com/kvconn/kvconn/internal/daemon/health"
	"github.com/kvconn/kvconn/internal/daemon/residencystream"
	"github.com/kvconn/kvconn/internal/daemon/warm"
	"github.com/kvconn/kvconn/internal/daemon/web"
	"github.com/kvconn/kvconn/internal/observe"
	"github.com/kvconn/kvconn/internal/testkit/openapitest"
	"github.com/kvconn/kvconn/leader"
	"github.com/kvconn/kvconn/store/archive"
	"github.com/kvconn/kvconn/store/disk"
	"github.com/kvconn/kvconn/store/host"
	"github.com/kvconn/kvconn/store/object/upload"
	"github.com/kvconn/kvconn/store/residency"
	"github.com/kvconn/kvconn/store/residency/publish"
	"github.com/kvconn/kvconn/worker"
)

func TestOpenAPIDescribesEveryRouteAndNoOther(t *testing.T) {
	described := openapitest.Parse(t, web.OpenAPI)
	r := start(t, nil)
	var routes []string
	for _, route := range (&daemon{times: observe.NewTimes()}).routes() {
		method, path, _ := strings.Cut(strings.TrimSuffix(route.Pattern, "{$}"), " ")
		routes = append(routes, path)
		op, ok := described.Paths[path][strings.ToLower(method)]
		if !ok || op.OperationID == "" {
			t.Errorf("%s is not described", route.Pattern)
			continue
		}
		code, contentType := r.head(method, strings.NewReplacer("{name}", "page.css", "{digest}", strings.Repeat("0", 64)).Replace(path))
		response := op.Responses[strconv.Itoa(code)]
		if _, ok := response.Content[contentType]; !ok || response.Description == "" {
			t.Errorf("%s answers %d with %s, described is %v", path, code, contentType, op.Responses)
		}
	}
	for path := range described.Paths {
		if !slices.Contains(routes, path) {
			t.Errorf("%s is described and not there", path)
		}
	}
}

// head asks for a path and returns status code and content type, without waiting for the
// end of the answer: one of them has none.
func (r *running) head(method, path string) (code int, contentType string) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), method, "http://"+r.HTTP+path, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	_ = resp.Body.Close()
	contentType, _, _ = strings.Cut(resp.Header.Get("Content-Type"), ";")
	return resp.StatusCode, contentType
}

func TestOpenAPIHasTheFieldsThatAreAnswered(t *testing.T) {
	schemas := openapitest.Parse(t, web.OpenAPI).Components.Schemas
	for _, c := range []struct {
		name string
		of   reflect.Type
		// whole: every field must be described; else those described must exist.
		whole bool
	}{
		{"Health", reflect.TypeFor[health.State](), true}, {"HealthReason", reflect.TypeFor[health.Reason](), true},
		{"Refusal", reflect.TypeFor[residencystream.Refusal](), true},
		{"Readiness", reflect.TypeFor[Readiness](), true}, {"Status", reflect.TypeFor[Status](), true},
		{"EngineStatus", reflect.TypeFor[EngineStatus](), true}, {"RankStatus", reflect.TypeFor[RankStatus](), true},
		{"NamespaceList", reflect.TypeFor[admin.List](), true}, {"Namespace", reflect.TypeFor[admin.Namespace](), true},
		{"ExplainRequest", reflect.TypeFor[explain.Request](), true}, {"Explanation", reflect.TypeFor[explain.Answer](), true},
		{"ExplainedNamespace", reflect.TypeFor[explain.Namespace](), true}, {"ManifestDifference", reflect.TypeFor[explain.Difference](), true},
		{"ExplainedTier", reflect.TypeFor[explain.Tier](), true},
		{"Removal", reflect.TypeFor[admin.Removal](), true}, {"TenantRemoval", reflect.TypeFor[admin.TenantRemoval](), true},
		{"TenantList", reflect.TypeFor[admin.TenantList](), true}, {"Tenant", reflect.TypeFor[admin.Tenant](), true},
		{"PinRequest", reflect.TypeFor[admin.PinRequest](), true}, {"PinList", reflect.TypeFor[admin.PinList](), true}, {"Pin", reflect.TypeFor[admin.Pin](), true},
		{"ImportReport", reflect.TypeFor[archive.Imported](), true},
		{"WarmRequest", reflect.TypeFor[warm.Request](), true}, {"WarmProgress", reflect.TypeFor[warm.Progress](), true},
		{"PromptRequest", reflect.TypeFor[admin.PromptRequest](), true}, {"PromptRemoval", reflect.TypeFor[admin.PromptRemoval](), true},
		{"PromptNamespace", reflect.TypeFor[admin.PromptNamespace](), true},
		{"TierStatus", reflect.TypeFor[TierStatus](), true}, {"StoredModel", reflect.TypeFor[contents.Model](), true}, {"Queues", reflect.TypeFor[Queues](), true},
		{"Totals", reflect.TypeFor[Totals](), true}, {"ServerStats", reflect.TypeFor[server.Stats](), true},
		{"PublishStatus", reflect.TypeFor[publish.Stats](), true},
		{"RequestStats", reflect.TypeFor[leader.Stats](), false}, {"TransferStats", reflect.TypeFor[worker.Stats](), false},
		{"HostStats", reflect.TypeFor[host.Stats](), false},
		{"StoreStats", reflect.TypeFor[disk.Stats](), false},
		{"ObjectStatus", reflect.TypeFor[ObjectStatus](), false}, {"UploadStatus", reflect.TypeFor[upload.Stats](), false},
	} {
		s, ok := schemas[c.name]
		if !ok {
			t.Errorf("%s is not described", c.name)
			continue
		}
		there := openapitest.Fields(c.of)
		for _, name := range there {
			if _, ok := s.Properties[name]; !ok && c.whole {
				t.Errorf("%s.%s is not described", c.name, name)
			}
		}
		for name := range s.Properties {
			if !slices.Contains(there, name) {
				t.Errorf("%s.%s is described and not there", c.name, name)
			}
		}
		for _, name := range s.Required {
			if !slices.Contains(there, name) {
				t.Errorf("%s requires %s, which is not there", c.name, name)
			}
		}
	}
}

// A reader that names a tier, or resumes, has to know all that this takes.
func TestOpenAPIDescribesHowAStreamIsResumed(t *testing.T) {
	var described []string
	want := []string{"tier"}
	for _, p := range openapitest.Parse(t, web.OpenAPI).Paths["/v1/residency"]["get"].Parameters {
		described = append(described, p.Name)
	}
	for name := range (residency.Position{}).Query() {
		want = append(want, name)
	}
	slices.Sort(described)
	slices.Sort(want)
	if !slices.Equal(described, want) {
		t.Errorf("parameters %v are described, want %v", described, want)
	}
}

func TestOpenAPINamesEveryFaultCode(t *testing.T) {
	code, err := json.Marshal(openapitest.Parse(t, web.OpenAPI).Components.Schemas["HealthReason"].Properties["code"])
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range health.Codes() {
		if !strings.Contains(string(code), `"`+want+`"`) {
			t.Errorf("code %s is not described: %s", want, code)
		}
	}
}

// Every reference within the description leads somewhere.
func TestOpenAPIReferencesExist(t *testing.T) {
	schemas := openapitest.Parse(t, web.OpenAPI).Components.Schemas
	for rest := web.OpenAPI; ; {
		_, after, ok := strings.Cut(rest, `"#/components/schemas/`)
		if !ok {
			return
		}
		name, tail, _ := strings.Cut(after, `"`)
		if _, ok := schemas[name]; !ok {
			t.Errorf("schema %q is referred to and not there", name)
		}
		rest = tail
	}
}
