package service

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kvconn/kvconn/internal/testkit/enginetest"
	"github.com/kvconn/kvconn/internal/testkit/wait"
	"github.com/kvconn/kvconn/router/inflight"
	"github.com/kvconn/kvconn/router/registry"
	"github.com/kvconn/kvconn/router/route"
)

func TestADecisionSaysWhereAndHow(t *testing.T) {
	ranks := ranksOf("http://h:1", 1)
	ranks = append(ranks, registry.Rank{ID: 1, Model: "m", Endpoint: "http://h:2", DPMode: registry.Hybrid, DPRank: 5, DPStartRank: 4},
		registry.Rank{ID: 2, Model: "m", Endpoint: "http://h:3", DPRank: 6})
	r := start(t, unchecked(ranks...))
	for id, want := range []string{"0", "1", ""} {
		a := r.route(m{"model": "m", "token_ids": prompt(1, 100), "pin": m{"rank": id, "strict": true}, "conversation_id": "c"})
		if int(a.Rank) != id || a.Headers[registry.RankHeader] != want || a.Headers["X-Session-ID"] != "c" || a.Reason != "pin" || a.Endpoint != ranks[id].Endpoint || a.PromptTokens != 100 {
			t.Errorf("%+v", a)
		}
	}
	a := r.route(m{"token_ids": prompt(1, 100), "explain": true})
	if len(a.Scores) != 3 || a.Scores[2].Prefix.GPU != 96 || a.UseTokens != 96 || a.Reason != "score" {
		t.Errorf("%+v", a)
	}
	if a = r.route(m{"token_ids": prompt(1, 100), "pin": m{"rank": 9}}); a.PinMissed != "pin_unknown" {
		t.Errorf("%+v", a)
	}
	if a = r.route(m{"token_ids": prompt(1, 100), "exclude": []int{0, 1}}); a.Rank != 2 {
		t.Errorf("%+v", a)
	}
}

// Whoever forwards by himself says the same as whoever uses the proxy.
func TestADecisionSeesConversationsAsTheProxyDoes(t *testing.T) {
	e := enginetest.New(t, "m")
	for _, c := range []struct {
		policy string
		body   m
		want   string
	}{
		{"conversation", m{"token_ids": []int{1}, "session_id": "s"}, "new_conversation"},
		{"first-turn/cost", m{"messages": []m{{"role": "user", "content": "x"}}}, "round_robin"},
		{"first-turn/cost", m{"messages": []m{{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}}}, "score"},
		{"first-turn/cost", m{"messages": []m{{"role": "user", "content": "x"}}, "first_turn": false}, "score"},
		{"serve-kv-aware", m{"messages": []m{{"role": "user", "content": "x"}}}, "content"},
	} {
		r := start(t, func(o *Options) {
			o.Ranks, o.HealthInterval = ranksOf(e.URL, 3), -1
			o.Policy.Name = c.policy
		})
		a := r.route(c.body)
		if c.policy == "serve-kv-aware" {
			a = r.route(c.body) // the second one follows the first
		}
		if string(a.Reason) != c.want {
			t.Errorf("%s: %v: %+v, want %s", c.policy, c.body, a, c.want)
		}
		if id, _ := c.body["session_id"].(string); a.Headers["X-Session-ID"] != id {
			t.Errorf("%v: headers %v", c.body, a.Headers)
		}
	}
}

func TestReportsAreOfRequestsThatAreThere(t *testing.T) {
	r := start(t, unchecked(ranksOf("http://h:1", 1)...))
	a := r.route(m{"token_ids": prompt(1, 100)})
	load := func() inflight.Rank {
		var list RankList
		r.do("GET", "/v1/ranks", nil, &list)
		return list.Ranks[0].Load
	}
	if l := load(); l.QueuedTokens != 100 || l.ActiveRequests != 1 {
		t.Errorf("%+v", l)
	}
	for _, step := range []struct {
		path   string
		status int
		queued int64
		active int
	}{{"prefill_done", 204, 0, 1}, {"finished", 204, 0, 0}, {"finished", 404, 0, 0}, {"prefill_done", 404, 0, 0}} {
		status, _ := r.do("POST", "/v1/requests/"+a.Request+"/"+step.path, nil, nil)
		if l := load(); status != step.status || l.QueuedTokens != step.queued || l.ActiveRequests != step.active {
			t.Errorf("%s: %d, %+v", step.path, status, l)
		}
	}
	if got := r.refused("POST", "/v1/requests/zz/finished", nil); got != "404 unknown_request" {
		t.Error(got)
	}
}

func TestBadInputIsAnsweredWithACode(t *testing.T) {
	full := registry.Rank{ID: 3, Model: "full", Endpoint: "http://h:1", MaxTokens: 10}
	ranks := append(ranksOf("http://127.0.0.1:1", 2), full)
	ranks[0].BlockSize = 16
	r := start(t, func(o *Options) {
		unchecked(ranks...)(o)
		o.MaxBodyBytes = 1 << 16
		o.Route = route.Options{MaxPromptTokens: 1000}
	})
	long := strings.Repeat("1,", 1000) + "1"
	for want, c := range map[string][]any{
		"404 model_not_found": {"POST", "/v1/route", m{"model": "x", "token_ids": []int{1}}},
		"404 pin_unknown":     {"POST", "/v1/route", m{"model": "m", "token_ids": []int{1}, "pin": m{"rank": 77, "strict": true}}},
		"503 all_full":        {"POST", "/v1/route", m{"model": "full", "token_ids": prompt(1, 11)}},
		"503 pin_full":        {"POST", "/v1/route", m{"model": "full", "token_ids": prompt(1, 11), "pin": m{"rank": 3, "strict": true}}},
		"503 no_ranks":        {"POST", "/v1/route", m{"model": "m", "token_ids": []int{1}, "exclude": []int{0, 1}}},
		"413 body_too_large":  {"POST", "/v1/route", strings.Repeat(" ", 1<<17)},
		"409 rank_exists":     {"POST", "/v1/ranks", m{"id": 0, "model": "m", "endpoint": "http://h"}},
		"409 mismatch":        {"POST", "/v1/ranks", m{"id": 9, "model": "m", "endpoint": "http://h", "block_size": 32}},
		"400 invalid_rank":    {"PATCH", "/v1/ranks/0", m{"max_active": -1}},
		"404 unknown_rank":    {"GET", "/v1/ranks/99", nil},
	} {
		if got := r.refused(c[0].(string), c[1].(string), c[2]); got != want {
			t.Errorf("%v: %s, want %s", c, got, want)
		}
	}
	for _, body := range []any{"", "{", "[]", "null", "{} {}", m{"model": "m"}, m{"token_ids": "x"}, `{"token_ids":[1,-1]}`,
		m{"prompt": 5}, m{"token_ids": []int{1}, "conversation_id": strings.Repeat("c", 300)}, m{"token_ids": []int{1}, "session_id": "a\nb"},
		m{"token_ids": []int{1}, "pin": m{"rank": -1}}, m{"token_ids": []int{1}, "model": 5},
		m{"token_ids": []int{1}, "first_turn": "yes"}} {
		if got := r.refused("POST", "/v1/route", body); got != "400 invalid_request" {
			t.Errorf("%.50v: %s", body, got)
		}
	}
	for _, c := range [][2]any{{"POST", "{"}, {"POST", m{"id": 1}}, {"PATCH", m{"id": 5}}, {"POST", m{"id": 8, "model": "m", "endpoint": "http://h", "nods": "x"}}} {
		path := "/v1/ranks"
		if c[0] == "PATCH" {
			path = "/v1/ranks/0"
		}
		if got := r.refused(c[0].(string), path, c[1]); got != "400 invalid_rank" {
			t.Errorf("%v: %s", c, got)
		}
	}
	for path, body := range map[string]any{"POST /v1/route": `{"token_ids":[` + long + `]}`, "POST /v1/prefix": `{"prompt":[` + long + `]}`, "GET /v1/prefix?token_ids=" + long: nil,
		"POST /v1/completions": `{"prompt":[` + long + `]}`} {
		method, path, _ := strings.Cut(path, " ")
		if got := r.refused(method, path, body); got != "400 prompt_too_long" {
			t.Errorf("%s %.20s: %s", method, path, got)
		}
	}
	if got := r.refused("GET", "/v1/prefix?token_ids=1,x", nil); got != "400 invalid_request" {
		t.Error(got)
	}
	if got := r.refused("POST", "/v1/prefix", m{"model": "m", "prompt": "text"}); got != "502 not_tokenized" {
		t.Error(got)
	}
}

func TestRanksComeAndGo(t *testing.T) {
	r := start(t, func(o *Options) { o.HealthInterval = time.Hour }) // a new rank is checked at once
	if got := r.refused("POST", "/v1/route", m{"token_ids": []int{1}}); got != "404 model_not_found" {
		t.Error(got)
	}
	e := enginetest.New(t, "m")
	var a route.RankInfo
	if status, text := r.do("POST", "/v1/ranks", m{"id": 7, "model": "m", "endpoint": e.URL}, &a); status != 201 || a.BlockTokens != 16 || a.BlockSize != 0 {
		t.Fatal(text)
	}
	r.ready(1)
	if a := r.route(m{"token_ids": prompt(1, 32)}); a.Rank != 7 {
		t.Errorf("%+v", a)
	}
	var p PrefixAnswer
	if r.do("POST", "/v1/prefix", m{"token_ids": prompt(1, 32)}, &p); len(p.Ranks) != 1 || p.Ranks[0].Match.GPU != 32 {
		t.Errorf("%+v", p)
	}
	if status, text := r.do("PATCH", "/v1/ranks/7", m{"draining": true}, &a); status != 200 || a.Ready || a.Why != "draining" {
		t.Errorf("%d %s", status, text)
	}
	if got := r.refused("POST", "/v1/route", m{"token_ids": []int{1}, "pin": m{"rank": 7, "strict": true}}); got != "503 pin_not_ready" {
		t.Error(got)
	}
	var gone Removal
	if status, _ := r.do("DELETE", "/v1/ranks/7", nil, &gone); status != 200 || gone.InFlight != 1 {
		t.Errorf("%d %+v", status, gone)
	}
	if got := r.refused("DELETE", "/v1/ranks/7", nil); got != "404 unknown_rank" {
		t.Error(got)
	}
}

func TestAnEngineThatDiesIsTakenOutAndComesBack(t *testing.T) {
	e, other := enginetest.New(t, "m"), enginetest.New(t, "m")
	r := start(t, func(o *Options) {
		o.HealthInterval = 10 * time.Millisecond
		o.Ranks = append(ranksOf(e.URL, 2), registry.Rank{ID: 5, Model: "m", Endpoint: other.URL})
	})
	r.ready(3)
	e.Set(enginetest.Refuse)
	r.ready(1)
	if got := r.refused("POST", "/v1/route", m{"token_ids": []int{1}, "pin": m{"rank": 0, "strict": true}}); got != "503 pin_not_ready" {
		t.Error(got)
	}
	if a := r.route(m{"token_ids": []int{1}, "pin": m{"rank": 1}}); a.Rank != 5 || a.PinMissed != "pin_not_ready" {
		t.Errorf("%+v", a)
	}
	var a route.RankInfo
	if r.do("GET", "/v1/ranks/0", nil, &a); a.Ready || !strings.Contains(a.Why, "503") {
		t.Errorf("%+v", a)
	}
	e.Set(enginetest.Serve)
	r.ready(3)
}

func TestAFailedRequestTakesARankOutAtOnce(t *testing.T) {
	e, other := enginetest.New(t, "m"), enginetest.New(t, "m")
	r := start(t, func(o *Options) {
		o.HealthInterval = time.Hour
		o.HealthBackoff = time.Hour
		o.Ranks = append(ranksOf(e.URL, 1), registry.Rank{ID: 5, Model: "m", Endpoint: other.URL})
	})
	r.ready(2)
	e.CloseClientConnections()
	e.Close()
	status, text := r.do("POST", "/v1/completions", m{"model": "m", "prompt": prompt(1, 8)}, nil, "X-KVConn-Rank", "0")
	if status != http.StatusOK || !strings.Contains(text, "hello") {
		t.Errorf("%d %s", status, text)
	}
	r.ready(1)
}

// A connection that breaks may be the request's own fault, so the engine's health decides, and at once.
func TestARankThatBreaksAConnectionIsAskedForItsHealth(t *testing.T) {
	e, other := enginetest.New(t, "m"), enginetest.New(t, "m")
	r := start(t, func(o *Options) {
		o.HealthInterval, o.HealthTimeout = time.Hour, time.Minute
		o.Ranks = append(ranksOf(e.URL, 1), registry.Rank{ID: 5, Model: "m", Endpoint: other.URL})
	})
	r.ready(2)
	e.Set(enginetest.Die)
	ask := func() {
		t.Helper()
		if status, text := r.do("POST", "/v1/completions", m{"model": "m", "prompt": prompt(1, 8)}, nil, "X-KVConn-Rank", "0"); status != http.StatusOK {
			t.Errorf("%d %s", status, text)
		}
	}
	for range 5 {
		ask()
		var a route.RankInfo
		if r.do("GET", "/v1/ranks/0", nil, &a); !a.Ready {
			t.Errorf("out, though it is well: %s", a.Why)
		}
	}
	if n := len(e.Requests()); n < 5 { // on a used connection twice
		t.Errorf("%d of 5 requests were tried there first", n)
	}
	e.SetSick(true)
	ask()
	r.ready(1)
}

func TestTheBoundsOfTheProxyAreTheServices(t *testing.T) {
	for mode, c := range map[enginetest.Mode]struct {
		firstByte time.Duration
		want      int
	}{enginetest.Refuse: {time.Minute, 503}, enginetest.Hang: {50 * time.Millisecond, 502}} {
		e, other := enginetest.New(t, "m"), enginetest.New(t, "m")
		r := start(t, func(o *Options) {
			o.HealthInterval, o.MaxTries, o.FirstByteTimeout = -1, 1, c.firstByte
			o.Ranks = append(ranksOf(e.URL, 1), registry.Rank{ID: 5, Model: "m", Endpoint: other.URL})
		})
		e.Set(mode)
		if status, text := r.do("POST", "/v1/completions", m{"prompt": []int{1}}, nil, "X-KVConn-Rank", "0"); status != c.want {
			t.Errorf("mode %d: %d %s", mode, status, text)
		}
		var s Status
		if r.do("GET", "/v1/status", nil, &s); s.Proxy.Retries != 0 || s.Proxy.Failed != 1 || len(other.Requests()) != 0 {
			t.Errorf("mode %d: %+v", mode, s.Proxy)
		}
	}
}

func TestASlowTokenizerLeavesTheChoiceToLoad(t *testing.T) {
	e := enginetest.New(t, "m")
	e.SetTokenize(enginetest.Hang)
	r := start(t, func(o *Options) {
		o.Ranks, o.TokenizeTimeout = ranksOf(e.URL, 2), 50*time.Millisecond
	})
	r.ready(2)
	a := r.route(m{"model": "m", "prompt": "0123456789abcdef"})
	if !strings.Contains(a.Note, "routed by load") || a.PromptTokens != 4 || a.UseTokens != 0 {
		t.Errorf("%+v", a)
	}
	e.SetTokenize(enginetest.Serve)
	wait.For(t, "an answer in time", func() bool {
		a = r.route(m{"model": "m", "messages": []m{{"role": "user", "content": "hello"}}})
		return a.Note == ""
	})
	if a.PromptTokens != len("user:hello\n") {
		t.Errorf("%+v", a)
	}
}
