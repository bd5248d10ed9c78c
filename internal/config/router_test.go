package config

import (
	"strings"
	"testing"
	"time"

	"github.com/kvconn/kvconn/internal/nearest"
)

func goodRouter() Router {
	return Router{
		HTTP: "127.0.0.1:0", PredictTTL: 1, ApproximateTTL: 1, RequestTTL: 1, IndexBytes: 1 << 20, MaxPromptTokens: 1, MaxBodyBytes: 1,
		TokenizeTimeout: time.Second, FirstByteTimeout: time.Second, StreamTimeout: time.Second, DrainTimeout: time.Second, MaxTries: 1, HealthPath: "/",
	}
}

func TestRouterSettingsThatCannotWorkAreNamed(t *testing.T) {
	good := goodRouter()
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Router){
		"predict_ttl":       func(s *Router) { s.PredictTTL = 0 },
		"request_ttl":       func(s *Router) { s.RequestTTL = -1 },
		"index_bytes":       func(s *Router) { s.IndexBytes = 1 },
		"max_prompt_tokens": func(s *Router) { s.MaxPromptTokens = 0 },
		"max_body_bytes":    func(s *Router) { s.MaxBodyBytes = 0 },
		"tokenize_timeout":  func(s *Router) { s.TokenizeTimeout = 0 },
		"max_tries":         func(s *Router) { s.MaxTries = 0 },
		"health_path":       func(s *Router) { s.HealthPath = "health" },
		"health_interval":   func(s *Router) { s.HealthInterval = -1 },
		"token ":            func(s *Router) { s.Token = " secret" },
		"node_token":        func(s *Router) { s.NodeToken = "secret\n" },
		"no address":        func(s *Router) { s.HTTP = "x" },
		"otlp_endpoint is":  func(s *Router) { s.OTLPHeaders = "a=secret" },
		"set a token":       func(s *Router) { s.HTTP = "0.0.0.0:80" },
	} {
		s := goodRouter()
		change(&s)
		if err := s.Validate(); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("Validate = %v, want %q in it", err, want)
		}
	}
	good.HTTP, good.Token = "0.0.0.0:80", "secret"
	if err := good.Validate(); err != nil {
		t.Errorf("with a token: %v", err)
	}
}

func TestRouterFileHasSettingsAndRanks(t *testing.T) {
	values, lists, err := ReadFile[Router](write(t, `
http: 127.0.0.1:0
predict_ttl: 3s
ranks:
  - {model: m, endpoint: "http://a:1", events: {endpoint: "tcp://a:5557"}}
  - {id: 7, model: m, endpoint: "http://b:1"}
discovery:
  - {file: /etc/kvconn/ranks.yaml, interval: 2s}
  - {dns: engines, rank: {model: m, endpoint: "http://{address}:1"}}
`))
	ranks := lists.Ranks
	if err != nil || values["predict_ttl"] != "3s" || len(values) != 2 || len(ranks) != 2 {
		t.Fatalf("%v %s %v", values, ranks, err)
	}
	if string(ranks[0]) != `{"endpoint":"http://a:1","events":{"endpoint":"tcp://a:5557"},"id":0,"model":"m"}` || !strings.Contains(string(ranks[1]), `"id":7`) {
		t.Errorf("%s", ranks)
	}
	if len(lists.Discovery) != 2 || string(lists.Discovery[0]) != `{"file":"/etc/kvconn/ranks.yaml","interval":"2s"}` {
		t.Errorf("%s", lists.Discovery)
	}
}

func TestRouterFileErrorsSayWhatToDo(t *testing.T) {
	for text, want := range map[string]string{
		"policie: x":               `did you mean "policy"?`,
		"rank: x":                  `did you mean "ranks"?`,
		"ranks: x":                 "ranks wants a list",
		"ranks: [x]":               "wants fields",
		"discovery: {}":            "discovery wants a list",
		"discovery: [x]":           "discovery[0] wants fields",
		"policy: [a]":              "single value",
		"policy:":                  "no value",
		"http: a\n---\nhttp: b":    "more than one document",
		"just words":               "line 1: want settings",
		strings.Repeat(" ", 2<<20): "more than",
	} {
		if _, _, err := ReadFile[Router](write(t, text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: %v, want %q in it", text, err, want)
		}
	}
	if _, _, err := ReadFile[Router]("/nowhere"); err == nil {
		t.Error("a missing file is no error")
	}
}

func TestRouterSecretsAreMasked(t *testing.T) {
	s := goodRouter()
	s.Token, s.EngineKey = "hunter2", "hunter3"
	for _, x := range Settings(s, func(string) Source { return Source{} }) {
		if strings.Contains(x.Value, "hunter") {
			t.Errorf("%s shows %s", x.Key, x.Value)
		}
	}
}

func FuzzParseRouter(f *testing.F) {
	f.Add([]byte("http: x\nranks: [{id: 1}]\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		values, _, err := parse[Router](b)
		if err != nil {
			return
		}
		for key := range values {
			if nearest.Of(key, keysOf[Router]()) != key {
				t.Errorf("unknown key %q was accepted", key)
			}
		}
	})
}

func TestTheIndexIsAPartOfTheMemory(t *testing.T) {
	for _, c := range []struct {
		set    Bytes
		memory int64
		want   Bytes
	}{{0, 64 << 30, 2 << 30}, {0, 1 << 30, 256 << 20}, {0, 1 << 20, 1 << 20}, {0, 1<<63 - 1, 2 << 30}, {5 << 20, 1 << 30, 5 << 20}} {
		s := Router{IndexBytes: c.set}
		if s.EnsureDefaults(c.memory); s.IndexBytes != c.want {
			t.Errorf("%s of %s: %s, want %s", c.set, Bytes(c.memory), s.IndexBytes, c.want)
		}
	}
}
