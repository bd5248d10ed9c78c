package service

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"path/filepath"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/enginetest"
	"github.com/kvconn/kvconn/internal/testkit/wait"
	"github.com/kvconn/kvconn/router/policy"
	"github.com/kvconn/kvconn/router/proxy"
	"github.com/kvconn/kvconn/router/registry"
)

// sglangRanks are ranks 0 to n-1 of one SGLang server.
func sglangRanks(endpoint string, n int) []registry.Rank {
	ranks := ranksOf(endpoint, n)
	for i := range ranks {
		ranks[i].Engine = registry.SGLang
	}
	return ranks
}

// fillPages saves the pages of a prompt as SGLang's storage backend does, those for which keep is true.
func fillPages(t *testing.T, dir string, tokens []uint32, keep func(page int) bool) {
	t.Helper()
	m := manifestOf("m")
	m.Engine, m.KeyScheme = "sglang/0.5.23", connector.KeySchemeEngine
	fill(t, dir, m, func(save func(parent, key connector.Key)) {
		var before []byte
		var parent connector.Key
		for page := range len(tokens) / m.BlockSize {
			hash := sha256.Sum256(connector.AppendTokens(before, tokens[page*m.BlockSize:(page+1)*m.BlockSize]))
			key := connector.EngineKey(hash)
			if keep(page) {
				save(parent, key)
			}
			before, parent = hash[:], key
		}
	})
}

// Two ranks with events on two nodes. What rank 0 has in its GPU and what its node has on disk count together, and a prompt
// goes where its disk blocks are once no GPU has it.
func TestSGLangsGPUAndDiskMeet(t *testing.T) {
	tokens := prompt(1, 1600)
	dirs := [2]string{filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")}
	fillPages(t, dirs[0], tokens, func(int) bool { return true })
	fillPages(t, dirs[1], prompt(2, 1600), func(int) bool { return true })
	e := enginetest.New(t, "m")
	endpoint, pubs := enginetest.Publish(t, 2, 16)
	ranks := sglangRanks(e.URL, 2)
	for i := range ranks {
		ranks[i].Node, ranks[i].NodeURL = fmt.Sprint(i), startDaemon(t, dirs[i])
		ranks[i].Events = &registry.Events{Endpoint: endpoint}
		ranks[i].Speeds = policy.Speeds{PrefillTokens: 1000, DiskBytes: 1e9}
	}
	r := start(t, func(o *Options) { o.Ranks = ranks })
	r.ready(2)
	for i := range int32(2) {
		body := m{"model": "m", "token_ids": prompt(1+int(i), 1600)}
		wait.For(t, "the disk's pages", func() bool { return r.prefixOf(i, body).Disk == 1600 })
		if a := r.route(body); a.Rank != i || a.LoadDisk != 1584 || a.Body["routed_dp_rank"].String() != fmt.Sprint(i) ||
			a.Headers[registry.OverrideHeader] != fmt.Sprint(i) || a.Headers[registry.RankHeader] != fmt.Sprint(i) {
			t.Errorf("%+v", a)
		}
	}
	wait.For(t, "subscriptions", func() bool { return pubs[0].Subscribers() == 1 && pubs[1].Subscribers() == 1 })
	wait.For(t, "the GPU's pages", func() bool {
		pubs[0].Clear()
		pubs[0].Store(tokens[:640])
		p := r.prefixOf(0, m{"model": "m", "token_ids": tokens})
		return p.GPU == 640 && p.Disk == 960 && p.Usable == 1600
	})
	if p := r.prefixOf(0, m{"model": "m", "token_ids": tokens, "cache_salt": "s"}); p.Usable != 0 {
		t.Errorf("another tenant has %+v", p)
	}
}

// A body names a rank as SGLang has it. The router follows that where it can only mean one rank.
func TestSGLangsPinInABodyIsFollowed(t *testing.T) {
	e := enginetest.New(t, "m")
	other := ranksOf("http://h", 1)[0]
	other.ID, other.Model, other.DPRank = 9, "v", 1
	r := start(t, func(o *Options) { o.Ranks, o.HealthInterval = append(sglangRanks(e.URL, 3), other), -1 })
	for _, name := range []string{"routed_dp_rank", "data_parallel_rank"} {
		for rank := range int32(3) {
			a := r.route(m{"model": "m", "token_ids": prompt(1, 100), name: rank})
			if a.Rank != rank || a.Reason != policy.ReasonPin || a.Note != "" {
				t.Errorf("%+v", a)
			}
			_, _ = r.do("POST", "/v1/completions", m{"model": "m", "prompt": prompt(1, 100), name: rank}, nil)
			got := e.Requests()
			if h := got[len(got)-1].Header.Get(registry.RankHeader); h != fmt.Sprint(rank) {
				t.Errorf("%q reached the engine, not %d", h, rank)
			}
		}
		if got := r.refused("POST", "/v1/route", m{"model": "m", "token_ids": []int{1}, name: 3}); got != "400 invalid_request" {
			t.Error(got)
		}
	}
	if a := r.route(m{"model": "m", "token_ids": prompt(1, 100), "routed_dp_rank": 2, "data_parallel_rank": 1}); a.Rank != 2 {
		t.Errorf("the old name counts: %+v", a)
	}
	if a := r.route(m{"model": "m", "token_ids": prompt(1, 100), "routed_dp_rank": 2, "pin": m{"rank": 1}}); a.Rank != 1 {
		t.Errorf("the router's own pin does not count: %+v", a)
	}
	if a := r.route(m{"model": "m", "token_ids": prompt(3, 100), "routed_dp_rank": "x"}); a.Reason == policy.ReasonPin {
		t.Errorf("%+v", a)
	}
	if a := r.route(m{"model": "v", "token_ids": prompt(3, 100), "routed_dp_rank": 0}); a.Reason == policy.ReasonPin || a.Body != nil {
		t.Errorf("vLLM has no such field: %+v", a)
	}
	if _, text := r.do("POST", "/v1/completions", m{"model": "m", "prompt": prompt(1, 100), "routed_dp_rank": 2}, nil, proxy.PinHeader, "0"); text == "" {
		t.Error("no answer")
	} else if got := e.Requests(); got[len(got)-1].Header.Get(registry.RankHeader) != "0" {
		t.Errorf("the proxy's own pin does not count: %v", got[len(got)-1].Header)
	}
}

// Two servers each have a rank 0.
func TestAPinThatMayMeanSeveralRanksIsSaid(t *testing.T) {
	ranks := sglangRanks("http://h", 2)
	for i := range ranks {
		ranks[i].DPMode, ranks[i].DPRank = registry.External, 0
	}
	r := start(t, unchecked(ranks...))
	a := r.route(m{"model": "m", "token_ids": prompt(1, 100), "routed_dp_rank": 0})
	if a.Reason == policy.ReasonPin || a.Note != "routed_dp_rank is not followed: ranks of several servers have that number" || a.Body != nil {
		t.Errorf("%+v", a)
	}
}

func TestAModelsRanksAreAllSGLangsOrNone(t *testing.T) {
	r := start(t, unchecked(sglangRanks("http://h", 1)...))
	var f struct{ Error struct{ Code string } }
	for _, engine := range []string{"", "vllm"} {
		if status, text := r.do("POST", "/v1/ranks", m{"id": 5, "model": "m", "endpoint": "http://h", "engine": engine}, &f); status != http.StatusConflict || f.Error.Code != "mismatch" {
			t.Errorf("%d %s", status, text)
		}
	}
	if status, text := r.do("PATCH", "/v1/ranks/0", m{"engine": "vllm"}, nil); status != http.StatusOK {
		t.Errorf("%d %s", status, text)
	}
}
