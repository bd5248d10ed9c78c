package daemon

import (
	"encoding/json"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/kvconn/kvconn/connector/server"
	"github.com/kvconn/kvconn/leader"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/host"
	"github.com/kvconn/kvconn/worker"
)

// description is as much of OpenAPI as the tests look at.
type description struct {
	OpenAPI string `yaml:"openapi"`
	Paths   map[string]map[string]struct {
		OperationID string `yaml:"operationId"`
		Responses   map[string]struct {
			Description string         `yaml:"description"`
			Content     map[string]any `yaml:"content"`
		} `yaml:"responses"`
	} `yaml:"paths"`
	Components struct {
		Schemas map[string]schema `yaml:"schemas"`
	} `yaml:"components"`
}

type schema struct {
	Required   []string       `yaml:"required"`
	Properties map[string]any `yaml:"properties"`
}

func describe(t *testing.T) *description {
	t.Helper()
	d := new(description)
	if err := yaml.Unmarshal([]byte(openAPI), d); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(d.OpenAPI, "3.1") {
		t.Errorf("OpenAPI %q", d.OpenAPI)
	}
	return d
}

func TestOpenAPIDescribesEveryRouteAndNoOther(t *testing.T) {
	described := describe(t)
	r := start(t, nil)
	var routes []string
	for _, route := range new(daemon).routes(t.Context()) {
		method, path, _ := strings.Cut(route.pattern, " ")
		routes = append(routes, path)
		op, ok := described.Paths[path][strings.ToLower(method)]
		if !ok || op.OperationID == "" {
			t.Errorf("%s is not described", route.pattern)
			continue
		}
		code, contentType := r.head(path)
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
func (r *running) head(path string) (code int, contentType string) {
	r.t.Helper()
	resp, err := http.Get("http://" + r.HTTP + path)
	if err != nil {
		r.t.Fatal(err)
	}
	_ = resp.Body.Close()
	contentType, _, _ = strings.Cut(resp.Header.Get("Content-Type"), ";")
	return resp.StatusCode, contentType
}

// fields lists the JSON names of a struct.
func fields(v reflect.Type) []string {
	var out []string
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Field(i).Tag.Get("json"), ",")
		out = append(out, name)
	}
	return out
}

func TestOpenAPIHasTheFieldsThatAreAnswered(t *testing.T) {
	schemas := describe(t).Components.Schemas
	for _, c := range []struct {
		name string
		of   reflect.Type
		// whole: every field must be described; else those described must exist.
		whole bool
	}{
		{"Health", reflect.TypeFor[Health](), true}, {"HealthReason", reflect.TypeFor[HealthReason](), true},
		{"Readiness", reflect.TypeFor[Readiness](), true}, {"Status", reflect.TypeFor[Status](), true},
		{"EngineStatus", reflect.TypeFor[EngineStatus](), true}, {"RankStatus", reflect.TypeFor[RankStatus](), true},
		{"TierStatus", reflect.TypeFor[TierStatus](), true}, {"Queues", reflect.TypeFor[Queues](), true},
		{"Totals", reflect.TypeFor[Totals](), true}, {"ServerStats", reflect.TypeFor[server.Stats](), true},
		{"PublishStatus", reflect.TypeFor[PublishStatus](), true},
		{"RequestStats", reflect.TypeFor[leader.Stats](), false}, {"TransferStats", reflect.TypeFor[worker.Stats](), false},
		{"HostStats", reflect.TypeFor[host.Stats](), false},
		{"StoreStats", reflect.TypeFor[store.Stats](), false},
	} {
		s, ok := schemas[c.name]
		if !ok {
			t.Errorf("%s is not described", c.name)
			continue
		}
		there := fields(c.of)
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

func TestOpenAPINamesEveryFaultCode(t *testing.T) {
	code, err := json.Marshal(describe(t).Components.Schemas["HealthReason"].Properties["code"])
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range healthCodes() {
		if !strings.Contains(string(code), `"`+want+`"`) {
			t.Errorf("code %s is not described: %s", want, code)
		}
	}
}

// Every reference within the description leads somewhere.
func TestOpenAPIReferencesExist(t *testing.T) {
	schemas := describe(t).Components.Schemas
	for rest := openAPI; ; {
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
