package service

import (
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/kvconn/kvconn/router/policy"
	"github.com/kvconn/kvconn/router/route"
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
		if a := r.route(with(c.scope)); a.CachedTokens != 0 {
			t.Errorf("%v: %d tokens of a new prompt are cached", c.scope, a.CachedTokens)
		}
		if same, other := r.prefixOf(0, with(c.same)).GPU, r.prefixOf(0, with(c.other)).GPU; same != 64 || other != 0 {
			t.Errorf("%v: %v has %d, %v has %d", c.scope, c.same, same, c.other, other)
		}
		if a := r.route(with(c.same)); a.CachedTokens != 48 {
			t.Errorf("%v after %v: %d tokens cached", c.same, c.scope, a.CachedTokens)
		}
	}
	r.route(m{"token_ids": []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}, "cache_salt": "a", "lora": "tuned"})
	for query, want := range map[string]int32{"&cache_salt=a&lora=tuned": 16, "&model=tuned&cache_salt=a": 16, "&cache_salt=a": 0, "&lora=tuned": 0, "": 0} {
		var p PrefixAnswer
		r.do("GET", "/v1/prefix?token_ids=1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16"+query, nil, &p)
		if p.PromptTokens != 16 || p.Ranks[0].Prefix.GPU != want {
			t.Errorf("%q: %+v, want %d", query, p, want)
		}
	}
}

// Every part of a score is said under its own name.
func TestScoresHaveTheirParts(t *testing.T) {
	d := route.Decision{
		Decision: policy.Decision{Scores: []policy.Score{
			{
				Rank: 1, Eligible: true, Total: 2, MatchTokens: 3, LoadTokens: 4, ActiveRequests: 5,
				QueueSeconds: 6, LoadSeconds: 7, PrefillSeconds: 8, DecodeSeconds: 9, BalanceSeconds: 10,
			},
			{Rank: 11, Total: 12},
		}},
		Matches: []policy.Match{{GPU: 13, Disk: 14, Object: 15, Usable: 16, LoadDisk: 17, LoadObject: 18}, {GPU: 19}},
	}
	two := 2.0
	want := []Score{
		{
			Rank: 1, Eligible: true, Total: &two, MatchTokens: 3, LoadTokens: 4, ActiveRequests: 5,
			QueueS: 6, LoadS: 7, PrefillS: 8, DecodeS: 9, BalanceS: 10, Prefix: Match{GPU: 13, Disk: 14, Object: 15, Usable: 16, LoadDisk: 17, LoadObject: 18},
		},
		{Rank: 11, Prefix: Match{GPU: 19}},
	}
	if got := scores(&d); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
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
