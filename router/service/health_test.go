package service

import (
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kvconn/kvconn/internal/testkit/testlog"
	"github.com/kvconn/kvconn/internal/testkit/wait"
	"github.com/kvconn/kvconn/router/blocksize"
	"github.com/kvconn/kvconn/router/discover"
	"github.com/kvconn/kvconn/router/feed"
	"github.com/kvconn/kvconn/router/route"
)

// A check that was under way when a request failed does not clear the engine: it is checked once more.
func TestACheckFromBeforeAFailureDoesNotCount(t *testing.T) {
	o := Options{HTTP: "127.0.0.1:0", Logger: quiet()}
	o.EnsureDefaults()
	s, err := newServer(&o)
	if err != nil {
		t.Fatal(err)
	}
	defer s.router.Close()
	const url = "http://127.0.0.1:1"
	if err := s.router.Add(ranksOf(url, 2)...); err != nil {
		t.Fatal(err)
	}
	c, e := s.checks, &endpoint{well: true, checking: true}
	c.endpoints[url] = e
	c.failed(0, errors.New("EOF"))
	c.ended(url, e, nil)
	if !e.well || e.failures != failuresUntilOut-1 || e.next.After(time.Now()) {
		t.Errorf("after a check from before: %+v", e)
	}
	e.checking = true
	c.ended(url, e, errors.New("503"))
	if info, _ := s.router.Rank(1); e.well || info.Ready || info.Why != "503" {
		t.Errorf("after one that failed: %+v, %+v", e, info)
	}
	e.checking = true
	c.ended(url, e, nil)
	if info, _ := s.router.Rank(1); !e.well || !info.Ready || e.failures != 0 {
		t.Errorf("after one that went well: %+v, %+v", e, info)
	}
}

// Whoever mistyped an endpoint reads of it in the log, once.
func TestAnEngineThatWasNeverReachedIsLogged(t *testing.T) {
	var log testlog.Text
	r := start(t, func(o *Options) {
		o.Ranks, o.Logger = ranksOf("http://127.0.0.1:1", 2), slog.New(slog.NewTextHandler(&log, nil))
	})
	wait.For(t, "a warning", func() bool { return strings.Contains(log.String(), "cannot be used yet") })
	if status, _ := r.do("GET", "/readyz", nil, nil); status != http.StatusServiceUnavailable {
		t.Errorf("status %d", status)
	}
	if text := log.String(); strings.Count(text, "level=WARN") != 1 || !strings.Contains(text, "endpoint=http://127.0.0.1:1") || !strings.Contains(text, "ranks=2 ready=0") {
		t.Errorf("%s", text)
	}
}

// What is known of blocks is judged by its strongest source: stores keep blocks of engines of before.
func TestHealthJudgesBlockSizes(t *testing.T) {
	stores := []blocksize.NamespacesOf{{Tokens: 16, Namespaces: 1}, {Tokens: 128, Namespaces: 2}}
	engines := []blocksize.RanksOf{{Tokens: 16, Ranks: []int32{0, 1}}, {Tokens: 128, Ranks: []int32{2}}}
	refused := []feed.RankStats{{State: feed.StateRefused, Error: "why"}}
	for name, c := range map[string]struct {
		size    blocksize.Status
		engines []feed.RankStats
		want    string
		detail  string
	}{
		"assumed":                         {size: blocksize.Status{Tokens: 16, From: blocksize.Assumed}},
		"given, and stores have it too":   {size: blocksize.Status{Tokens: 16, From: blocksize.Given, Stores: stores}},
		"given, and engines say it":       {size: blocksize.Status{Tokens: 16, From: blocksize.Given, Engines: engines[:1], Stores: stores[1:]}},
		"given, and one engine differs":   {blocksize.Status{Tokens: 16, From: blocksize.Given, Engines: engines}, refused, "feed_refused", "16 is given, rank 2 has blocks of 128"},
		"given, and no store has it":      {blocksize.Status{Tokens: 16, From: blocksize.Given, Stores: stores[1:]}, nil, "store_refused", "16 is given, stores have blocks of 128"},
		"engines agree, stores do not":    {size: blocksize.Status{Tokens: 16, From: blocksize.Engines, Engines: engines[:1], Stores: stores[1:]}},
		"engines differ":                  {blocksize.Status{Tokens: 16, From: blocksize.Engines, Engines: engines}, refused, "block_sizes_differ", "ranks 0, 1 have blocks of 16 tokens, rank 2 has blocks of 128"},
		"stores differ, and no engine":    {blocksize.Status{Tokens: 128, From: blocksize.Stores, Stores: stores}, nil, "block_sizes_differ", "no engine's events say"},
		"an engine's events are refused":  {blocksize.Status{Tokens: 16, From: blocksize.Assumed}, refused, "feed_refused", "why"},
		"stores have one, nobody says it": {size: blocksize.Status{Tokens: 128, From: blocksize.Stores, Stores: stores[1:]}},
	} {
		st := route.Stats{Ranks: 1, Ready: 1, Engines: c.engines, BlockSizes: []blocksize.Status{c.size}}
		h := health(&st, new(discover.Stats))
		if h.OK != (c.want == "") || len(h.Reasons) > 1 || !h.OK && (h.Reasons[0].Code != c.want || !strings.Contains(h.Reasons[0].Detail, c.detail)) {
			t.Errorf("%s: %+v", name, h)
		}
	}
}

func TestARankWithoutAnIDGetsOne(t *testing.T) {
	r := start(t, unchecked(ranksOf("http://h", 2)...))
	for _, want := range []int32{2, 3} {
		var a route.RankInfo
		if status, text := r.do("POST", "/v1/ranks", m{"model": "m", "endpoint": "http://other"}, &a); status != http.StatusCreated || a.ID != want {
			t.Errorf("%d %s, want rank %d", status, text, want)
		}
	}
	if got := r.refused("POST", "/v1/ranks", m{"id": 0, "model": "m", "endpoint": "http://other"}); got != "409 rank_exists" {
		t.Error(got)
	}
}

func TestTwoRanksThatAreOneAreWarnedOf(t *testing.T) {
	var log testlog.Text
	ranks := append(ranksOf("http://h", 2), ranksOf("http://h", 3)[1])
	ranks[2].ID = 2
	start(t, func(o *Options) { unchecked(ranks...)(o); o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	if text := log.String(); strings.Count(text, "level=WARN") != 1 || !strings.Contains(text, "rank=2 other=1") {
		t.Errorf("%s", text)
	}
}
