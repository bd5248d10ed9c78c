package service

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// What is cached for one tenant or adapter is not for another, whichever way a prompt comes.
func TestDecisionsAndPrefixesKeepScopesApart(t *testing.T) {
	ranks := ranksOf("http://h:1", 1)
	ranks[0].Adapters = []string{"tuned"}
	r := start(t, unchecked(ranks...))
	for seed, c := range []struct{ scope, same, other m }{
		{m{"model": "m"}, m{}, m{"cache_salt": "a"}},
		{m{"cache_salt": "a"}, m{"model": "m", "cache_salt": "a"}, m{"cache_salt": "b"}},
		{m{"lora": "tuned"}, m{"model": "tuned"}, m{"model": "m"}},
		{m{"model": "tuned", "cache_salt": "a"}, m{"lora": "tuned", "cache_salt": "a"}, m{"lora": "tuned"}},
	} {
		with := func(scope m) m {
			body := m{"token_ids": prompt(100+seed, 64)}
			for k, v := range scope {
				body[k] = v
			}
			return body
		}
		if a := r.route(with(c.scope)); a.UseTokens != 0 {
			t.Errorf("%v: %d tokens of a new prompt are cached", c.scope, a.UseTokens)
		}
		if same, other := r.prefixOf(0, with(c.same)).GPU, r.prefixOf(0, with(c.other)).GPU; same != 64 || other != 0 {
			t.Errorf("%v: %v has %d, %v has %d", c.scope, c.same, same, c.other, other)
		}
		if a := r.route(with(c.same)); a.UseTokens != 48 {
			t.Errorf("%v after %v: %d tokens cached", c.same, c.scope, a.UseTokens)
		}
	}
	r.route(m{"token_ids": []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}, "cache_salt": "a", "lora": "tuned"})
	for query, want := range map[string]int32{"&cache_salt=a&lora=tuned": 16, "&model=tuned&cache_salt=a": 16, "&cache_salt=a": 0, "&lora=tuned": 0, "": 0} {
		var p PrefixAnswer
		r.do("GET", "/v1/prefix?token_ids=1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16"+query, nil, &p)
		if p.PromptTokens != 16 || p.Ranks[0].Match.GPU != want {
			t.Errorf("%q: %+v, want %d", query, p, want)
		}
	}
}

// As many requests are in flight as can be tracked.
func TestTooManyRequestsInFlightAreRefusedForNow(t *testing.T) {
	r := start(t, func(o *Options) {
		unchecked(ranksOf("http://127.0.0.1:1", 1)...)(o)
		o.Route.Load.MaxRequests = 1
	})
	a := r.route(m{"token_ids": []int{1}})
	for _, path := range []string{"/v1/route", "/v1/completions"} {
		resp, err := http.Post(r.url+path, "application/json", strings.NewReader(`{"prompt":[1]}`))
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") != "1" || !strings.Contains(string(b), `"busy"`) {
			t.Errorf("%s: %s %v %s", path, resp.Status, resp.Header, b)
		}
	}
	r.do("POST", "/v1/requests/"+a.Request+"/finished", nil, nil)
	r.route(m{"token_ids": []int{1}})
}
