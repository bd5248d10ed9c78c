package service

import (
	"encoding/json"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kvconn/kvconn/internal/history"
	"github.com/kvconn/kvconn/internal/testkit/openapitest"
	"github.com/kvconn/kvconn/router/blocksize"
	"github.com/kvconn/kvconn/router/discover"
	"github.com/kvconn/kvconn/router/front"
	"github.com/kvconn/kvconn/router/inflight"
	"github.com/kvconn/kvconn/router/policy"
	"github.com/kvconn/kvconn/router/proxy"
	"github.com/kvconn/kvconn/router/registry"
	"github.com/kvconn/kvconn/router/route"
)

func TestOpenAPIDescribesEveryRouteAndNoOther(t *testing.T) {
	d := openapitest.Parse(t, openAPI)
	o := Options{HTTP: "127.0.0.1:0", Logger: quiet()}
	o.EnsureDefaults()
	s, err := newServer(&o)
	if err != nil {
		t.Fatal(err)
	}
	defer s.router.Close()
	r := start(t, unchecked(ranksOf("http://127.0.0.1:1", 1)...))
	seen := map[string]bool{}
	for _, route := range s.routes() {
		method, path, _ := strings.Cut(strings.NewReplacer("...", "", "{$}", "").Replace(route.pattern), " ")
		seen[path+" "+strings.ToLower(method)] = true
		op, ok := d.Paths[path][strings.ToLower(method)]
		if !ok || op.OperationID == "" {
			t.Errorf("%s is not described", route.pattern)
			continue
		}
		if _, ok := op.Responses["401"]; ok == route.open {
			t.Errorf("%s: whether it needs the token is described wrongly", route.pattern)
		}
		// Whatever comes of an empty request is described.
		status, _ := r.do(method, strings.NewReplacer("{id}", "0", "{name}", "page.css").Replace(path), nil, nil)
		if got, ok := op.Responses[strconv.Itoa(status)]; !ok || got.Description == "" {
			t.Errorf("%s answers %d, described is %v", route.pattern, status, op.Responses)
		}
	}
	for path, methods := range d.Paths {
		for method := range methods {
			if !seen[path+" "+method] {
				t.Errorf("%s %s is described and not there", method, path)
			}
		}
	}
}

func TestOpenAPIHasTheFieldsThatAreThere(t *testing.T) {
	schemas := openapitest.Parse(t, openAPI).Components.Schemas
	// Package front reads the fields that a request shares with a completion.
	completion := []string{
		"token_ids", "prompt", "messages", "model", "cache_salt", "conversation_id", "session_id", "conversation_params",
		"parent_conversation_id", "first_turn", "requests",
	}
	types := map[string]reflect.Type{
		"RouteRequest": reflect.TypeFor[RouteRequest](), "Pin": reflect.TypeFor[Pin](), "RouteAnswer": reflect.TypeFor[RouteAnswer](),
		"RouteResult": reflect.TypeFor[RouteResult](), "RouteResults": reflect.TypeFor[RouteResults](),
		"Score": reflect.TypeFor[policy.Score](), "Match": reflect.TypeFor[policy.Match](), "Failure": reflect.TypeFor[front.Failure](),
		"FailureText": reflect.TypeFor[front.FailureText](), "Rank": reflect.TypeFor[registry.Rank](), "Events": reflect.TypeFor[registry.Events](),
		"Speeds": reflect.TypeFor[policy.Speeds](), "RankAnswer": reflect.TypeFor[route.RankInfo](), "Load": reflect.TypeFor[inflight.Rank](),
		"RankList": reflect.TypeFor[RankList](), "Removal": reflect.TypeFor[Removal](), "PrefixAnswer": reflect.TypeFor[PrefixAnswer](),
		"RankPrefix": reflect.TypeFor[route.Prefix](), "ModelList": reflect.TypeFor[ModelList](), "Model": reflect.TypeFor[Model](),
		"Health": reflect.TypeFor[Health](), "HealthReason": reflect.TypeFor[HealthReason](), "Readiness": reflect.TypeFor[Readiness](),
		"BlockSize": reflect.TypeFor[blocksize.Status](), "RanksOfSize": reflect.TypeFor[blocksize.RanksOf](), "NamespacesOfSize": reflect.TypeFor[blocksize.NamespacesOf](),
		"Status": reflect.TypeFor[Status](), "DiscoveryStatus": reflect.TypeFor[discover.Stats](), "IndexStatus": reflect.TypeFor[IndexStatus](), "ProxyStatus": reflect.TypeFor[proxy.Stats](),
		"History": reflect.TypeFor[history.Answer](), "RecentDecision": reflect.TypeFor[RecentDecision](), "RecentDecisions": reflect.TypeFor[RecentDecisions](),
	}
	for name, s := range schemas {
		v, ok := types[name]
		if !ok {
			if name != "Completion" { // the engines'
				t.Errorf("%s is described and not there", name)
			}
			continue
		}
		there := openapitest.Fields(v)
		if name == "RouteRequest" {
			there = append(there, completion...)
		}
		for _, f := range there {
			if _, ok := s.Properties[f]; !ok {
				t.Errorf("%s.%s is not described", name, f)
			}
		}
		for f := range s.Properties {
			if !slices.Contains(there, f) {
				t.Errorf("%s.%s is described and not there", name, f)
			}
		}
		for _, f := range s.Required {
			if !slices.Contains(there, f) {
				t.Errorf("%s requires %s, which is not there", name, f)
			}
		}
	}
	for name := range types {
		if _, ok := schemas[name]; !ok {
			t.Errorf("%s is not described", name)
		}
	}
}

func TestOpenAPIReferencesExistAndCodesAreNamed(t *testing.T) {
	schemas := openapitest.Parse(t, openAPI).Components.Schemas
	for rest := openAPI; ; {
		_, after, ok := strings.Cut(rest, `"#/components/schemas/`)
		if !ok {
			break
		}
		name, tail, _ := strings.Cut(after, `"`)
		if _, ok := schemas[name]; !ok {
			t.Errorf("schema %q is referred to and not there", name)
		}
		rest = tail
	}
	code, err := json.Marshal(schemas["HealthReason"].Properties["code"])
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range healthCodes() {
		if !strings.Contains(string(code), want) {
			t.Errorf("code %s is not described: %s", want, code)
		}
	}
}

func healthCodes() []string {
	return []string{"no_ranks", "no_rank_ready", "feed_refused", "store_refused", "block_sizes_differ", "discovery_failing"}
}
