package service

import (
	"net/http"
	"testing"

	"github.com/kvconn/kvconn/router/policy"
	"github.com/kvconn/kvconn/router/proxy"
)

// SGLang takes an adapter's name after the model's, or in lora_path. Its events have the name alone.
func TestSGLangsAdaptersAreScopes(t *testing.T) {
	ranks := sglangRanks("http://h", 1)
	other := ranksOf("http://h", 1)[0]
	other.ID, other.Model = 9, "v"
	r := start(t, unchecked(append(ranks, other)...))
	for i, c := range []struct {
		ask     m
		adapter string
	}{
		{m{"model": "m:sql"}, "sql"},
		{m{"lora_path": "sql"}, "sql"},
		{m{"lora_path": []any{"sql", "other"}}, "sql"},
		{m{"model": "m:sql", "lora_path": "other"}, "sql"},
		{m{"lora": "sql", "lora_path": "other"}, "sql"},
		{m{"lora_path": nil}, ""},
		{m{"lora_path": 7}, ""},
		{m{"lora_path": []any{nil, "sql"}}, ""},
		{m{"lora_path": []any{}}, ""},
	} {
		tokens := prompt(i+1, 160)
		body := m{"model": "m", "token_ids": tokens}
		for k, v := range c.ask {
			body[k] = v
		}
		if a := r.route(body); a.Model != "m" {
			t.Errorf("%v: model %q", c.ask, a.Model)
		}
		for _, adapter := range []string{"", "sql", "other"} {
			want := int32(0)
			if adapter == c.adapter {
				want = 160
			}
			if got := r.prefixOf(0, m{"model": "m", "lora": adapter, "token_ids": tokens}).GPU; got != want {
				t.Errorf("%v: %d tokens with adapter %q, want %d", c.ask, got, adapter, want)
			}
		}
	}
	r.route(m{"model": "v", "lora_path": "sql", "token_ids": prompt(1, 160)})
	if got := r.prefixOf(9, m{"model": "v", "token_ids": prompt(1, 160)}).GPU; got != 160 {
		t.Errorf("vLLM has no such field: %d tokens", got)
	}
	for _, model := range []string{"v:sql", "m:", "x:sql"} {
		if got := r.refused("POST", "/v1/route", m{"model": model, "token_ids": []int{1}}); got != "404 model_not_found" {
			t.Errorf("%s: %s", model, got)
		}
	}
}

// A rank that the router is asked for by its own number counts, whatever the body says.
func TestTheRoutersPinWinsOverAWrongOneInTheBody(t *testing.T) {
	r := start(t, unchecked(sglangRanks("http://127.0.0.1:1", 2)...))
	if a := r.route(m{"model": "m", "token_ids": prompt(1, 100), "routed_dp_rank": 7, "pin": m{"rank": 1}}); a.Rank != 1 || a.Reason != policy.ReasonPin {
		t.Errorf("%+v", a)
	}
	body := m{"model": "m", "prompt": prompt(1, 100), "routed_dp_rank": 7}
	if status, text := r.do("POST", "/v1/completions", body, nil, proxy.PinHeader, "1"); status == http.StatusBadRequest {
		t.Errorf("%d %s", status, text)
	}
}
