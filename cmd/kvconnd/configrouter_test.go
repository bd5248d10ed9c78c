package main

import (
	"strings"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/config"
)

func TestConfigRouterNamesTheSourceOfEveryValue(t *testing.T) {
	file := routerFileOf(t, "policy: kv-aware\npredict_ttl: 3s\nmax_tries: 5\nranks: [{model: m, endpoint: \"http://a:1\"}]\ndiscovery: [{file: /r}]\n")
	t.Setenv("KVCONN_ROUTER_PREDICT_TTL", "2s")
	t.Setenv("KVCONN_ROUTER_TOKEN", "hunter2")
	got := settingsOf(t, "config", "router", "--config", file, "--max-tries", "7", "--json")
	for key, want := range map[string]string{
		"policy": "kv-aware | file " + file, "predict_ttl": "2s | environment KVCONN_ROUTER_PREDICT_TTL", "max_tries": "7 | flag --max-tries",
		"request_ttl": "5m0s | default", "token": "******** | environment KVCONN_ROUTER_TOKEN",
		"ranks[0]": `{"endpoint":"http://a:1","id":0,"model":"m"} | file ` + file, "discovery[0]": `{"file":"/r"} | file ` + file,
	} {
		if got[key] != want {
			t.Errorf("%s: %q, want %q", key, got[key], want)
		}
	}
}

func TestConfigPrintsAndRefusesWhatARouterRefuses(t *testing.T) {
	for want, args := range map[string][]string{
		"memory, in this":        {"config", "router", "--index-bytes", "900TiB"},
		"set a token":            {"config", "router", "--http", "0.0.0.0:1"},
		`policy "best"`:          {"config", "router", "--policy", "best"},
		"model is empty":         {"config", "router", "--config", routerFileOf(t, "ranks: [{id: 1}]")},
		"discovery[0]: want one": {"config", "router", "--config", routerFileOf(t, "discovery: [{}]")},
		"discovery[1]: rank is":  {"config", "router", "--config", routerFileOf(t, "discovery: [{file: f}]"), "--discover", `{"dns": "d"}`},
		"router: configuration":  {"config", "show", "--dir", "/d", "--router", "/nowhere"},
		`router: policy "worst"`: {"config", "show", "--dir", "/d", "--router", routerFileOf(t, "policy: worst")},
	} {
		if status, out, errs := kvconnd(args...); status == 0 || !strings.Contains(out, "SOURCE") || !strings.Contains(errs, want) {
			t.Errorf("%v: status %d, %q; want %q\n%s", args, status, errs, want, out)
		}
	}
}

// A key without a value is as good as none, as it is for variables.
func TestAnEmptyPolicyIsTheDefault(t *testing.T) {
	for _, args := range [][]string{{"--policy="}, {"--config", routerFileOf(t, "policy: ''")}} {
		if status, out, errs := kvconnd(append([]string{"config", "router"}, args...)...); status != 0 {
			t.Errorf("%v: status %d, %s\n%s", args, status, errs, out)
		}
	}
}

// The endpoint of published events is reached by configuration alone.
func TestPublishSettingsReachTheDaemon(t *testing.T) {
	s := config.Serve{}
	if publishOptions(&s) != nil {
		t.Error("events are published unasked")
	}
	s = config.Serve{PublishEvents: "ipc:///e", PublishReplay: "ipc:///r", PublishTopic: "kv", PublishHashForm: "int64", PublishModel: "m"}
	o := publishOptions(&s)
	o.EnsureDefaults()
	if err := o.Validate(); err != nil || o.Endpoint != "ipc:///e" || o.ReplayEndpoint != "ipc:///r" || o.Topic != "kv" || o.Hashes != "int64" {
		t.Errorf("%+v, %v", o, err)
	}
	if !o.Accept(connector.NamespaceDigest{}, &connector.Manifest{Model: "m"}) || o.Accept(connector.NamespaceDigest{}, &connector.Manifest{Model: "n"}) {
		t.Error("not the model that was named")
	}
}
