package leader

import (
	"fmt"
	"sync"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
)

// testPrefetch notes what it is asked to read.
type testPrefetch struct {
	mu    sync.Mutex
	asked []string
}

func (p *testPrefetch) Prefetch(_ connector.NamespaceDigest, shards []connector.Shard, parent connector.Key, blocks []connector.PlanBlock) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var none connector.Proof
	for i := range blocks {
		if blocks[i].Proof == none {
			panic("a block without a proof")
		}
	}
	for _, shard := range shards {
		p.asked = append(p.asked, fmt.Sprintf("shard %d: %d blocks from %x", shard, len(blocks), blocks[0].Key[:2]))
	}
	_ = parent
}

// hostLevel has the blocks that a test says.
type hostLevel struct {
	store.Level
	has map[connector.Key]bool
}

func (h *hostLevel) Name() string       { return "host" }
func (h *hostLevel) Speed() store.Speed { return store.Speed{} }
func (h *hostLevel) Present(_ connector.NamespaceDigest, _ connector.Shard, keys []connector.Key, at []bool) {
	for i, k := range keys {
		at[i] = at[i] || h.has[k]
	}
}

func TestOfferedBlocksAreReadBeforeTheirLoadOnce(t *testing.T) {
	p, host := new(testPrefetch), &hostLevel{has: map[connector.Key]bool{}}
	f := newFixture(t, func(o *Options) { o.Prefetch, o.Levels = p, []store.Level{host, host} })
	toks := tokens(100, 4*10+1)
	f.run("first", toks, 0, connector.Scope{})
	if len(p.asked) != 0 {
		t.Errorf("asked for %v though nothing was offered", p.asked)
	}
	keys := f.keys(toks)
	blocks := len(keys)
	want := func(what string, first int) {
		t.Helper()
		var all []string
		for _, s := range f.prefix {
			all = append(all, fmt.Sprintf("shard %d: %d blocks from %x", s, blocks-first, keys[first][:2]))
		}
		if fmt.Sprint(p.asked) != fmt.Sprint(all) {
			t.Errorf("%s: asked for %v, want %v", what, p.asked, all)
		}
		p.asked = nil
	}
	host.has[keys[0]], host.has[keys[1]], host.has[keys[4]] = true, true, true
	for range 3 { // as for a request that waits
		f.match(connector.MatchRequest{Request: "r", Tokens: toks})
	}
	want("from the first block that is not in memory", 2)
	f.match(connector.MatchRequest{Request: "none", Tokens: toks, NoLoad: true})
	if len(p.asked) != 0 {
		t.Errorf("asked for %v of a request that loads nothing", p.asked)
	}
	other := append([]uint32{7}, toks...)
	f.match(connector.MatchRequest{Request: "r", Tokens: other})
	f.match(connector.MatchRequest{Request: "r", Tokens: toks})
	want("of a request with other tokens", 2)
	for _, k := range keys {
		host.has[k] = true
	}
	f.match(connector.MatchRequest{Request: "warm", Tokens: toks})
	if len(p.asked) != 0 {
		t.Errorf("asked for %v, though all of it is in memory", p.asked)
	}
}

func TestHandoffsAreNotReadTwice(t *testing.T) {
	p := new(testPrefetch)
	f, _ := newHandoff(t, func(o *Options) { o.Prefetch = p })
	toks := tokens(100, 4*10+1)
	f.run("first", toks, 0, connector.Scope{})
	f.match(connector.MatchRequest{Request: "r", Tokens: toks})
	if len(p.asked) != 0 {
		t.Errorf("asked for %v", p.asked)
	}
}

// A window needs its last blocks alone.
func TestOfWindowsOnlyWhatIsLoadedIsReadBefore(t *testing.T) {
	p := new(testPrefetch)
	f := newFixture(t, func(o *Options) {
		m := *o.Manifest
		full := m.Groups[0]
		window := full
		window.Window = 2 * m.BlockSize
		m.Groups = []connector.Group{full, window}
		o.Manifest, o.Prefetch = &m, p
	})
	toks := tokens(100, 10*f.bs+1)
	f.run("first", toks, 0, connector.Scope{})
	f.match(connector.MatchRequest{Request: "r", Tokens: toks})
	keys := f.keys(toks)
	w := f.windows.Searches[0].Group
	begin := w.FirstBlock(len(keys)*f.bs, f.bs)
	var want []string
	for _, s := range f.prefix {
		want = append(want, fmt.Sprintf("shard %d: %d blocks from %x", s, len(keys), keys[0][:2]))
	}
	for _, s := range w.Shards {
		want = append(want, fmt.Sprintf("shard %d: %d blocks from %x", s, len(keys)-begin, keys[begin][:2]))
	}
	if begin == 0 || fmt.Sprint(p.asked) != fmt.Sprint(want) {
		t.Errorf("asked for %v, want %v", p.asked, want)
	}
}
