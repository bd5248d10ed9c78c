package service

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/enginetest"
	"github.com/kvconn/kvconn/internal/testkit/wait"
	"github.com/kvconn/kvconn/router/blocksize"
	"github.com/kvconn/kvconn/router/registry"
)

// fillSized is fillStore for one plain prompt in blocks of another size.
func fillSized(t *testing.T, dir string, blockSize int, tokens []uint32) {
	t.Helper()
	m := manifestOf("m")
	m.BlockSize = blockSize
	fill(t, dir, m, func(save func(parent, key connector.Key)) {
		parent := connector.RootKey(blockSize, connector.Scope{})
		for ; len(tokens) >= blockSize; tokens = tokens[blockSize:] {
			key, _ := connector.NextKey(parent, connector.AppendTokens(nil, tokens[:blockSize]), nil)
			save(parent, key)
			parent = key
		}
	})
}

// blockSizes is what the status says of the only model, and health.
func (r *running) blockSizes() (blocksize.Status, Health) {
	r.t.Helper()
	var s Status
	if r.do("GET", "/v1/status", nil, &s); len(s.BlockSizes) != 1 {
		r.t.Fatalf("%+v", s.BlockSizes)
	}
	return s.BlockSizes[0], s.Health
}

// Nobody says block_size. A node's store has blocks of 128 tokens, and that is how its prompts are found.
func TestTheBlockSizeIsLearntFromAStore(t *testing.T) {
	tokens := prompt(1, 640)
	dir := filepath.Join(t.TempDir(), "store")
	fillSized(t, dir, 128, tokens)
	ranks := ranksOf("http://h", 1)
	ranks[0].Node, ranks[0].NodeURL = "n", startDaemon(t, dir)
	r := start(t, unchecked(ranks...))
	wait.For(t, "the disk's blocks", func() bool { return r.prefixOf(0, m{"token_ids": tokens}).Disk == 640 })
	if st, h := r.blockSizes(); st.Tokens != 128 || st.From != blocksize.Stores || !h.OK {
		t.Errorf("%+v, %+v", st, h)
	}
	// What is routed there is found in blocks of that size as well.
	if a := r.route(m{"token_ids": prompt(2, 640)}); a.Rank != 0 {
		t.Errorf("%+v", a)
	}
	if got := r.prefixOf(0, m{"token_ids": prompt(2, 639)}).GPU; got != 512 {
		t.Errorf("%d tokens of 639", got)
	}
}

// An engine's events say 8, and its node's store has that namespace beside one of an engine of before. Blocks that
// requests in flight count in are not lost.
func TestTheBlockSizeIsLearntFromEventsBeforeStores(t *testing.T) {
	tokens := prompt(1, 160)
	dir := filepath.Join(t.TempDir(), "store")
	fillSized(t, dir, 16, prompt(2, 160))
	fillSized(t, dir, 8, tokens)
	endpoint, pubs := enginetest.Publish(t, 1, 8)
	ranks := ranksOf("http://h", 1)
	ranks[0].Events = &registry.Events{Endpoint: endpoint}
	ranks[0].Node, ranks[0].NodeURL = "n", startDaemon(t, dir)
	r := start(t, unchecked(ranks...))
	before := r.route(m{"token_ids": prompt(3, 64)})
	wait.For(t, "a subscription", func() bool { return pubs[0].Subscribers() == 1 })
	body := m{"token_ids": tokens}
	wait.For(t, "blocks of GPU and disk", func() bool {
		pubs[0].Store(tokens[:40])
		p := r.prefixOf(0, body)
		return p.GPU == 40 && p.Disk == 120
	})
	st, h := r.blockSizes()
	if st.Tokens != 8 || st.From != blocksize.Engines || !h.OK || len(st.Stores) != 2 || len(st.Engines) != 1 {
		t.Errorf("%+v, %+v", st, h)
	}
	if status, text := r.do("POST", "/v1/requests/"+before.Request+"/finished", nil, nil); status >= 300 {
		t.Errorf("a request of before is lost: %d %s", status, text)
	}
}

// A setting that is not what engines say holds, and is said.
func TestAGivenBlockSizeThatEnginesContradictIsAHealthReason(t *testing.T) {
	endpoint, pubs := enginetest.Publish(t, 1, 8)
	ranks := ranksOf("http://h", 1)
	ranks[0].Events, ranks[0].BlockSize = &registry.Events{Endpoint: endpoint}, 16
	r := start(t, unchecked(ranks...))
	wait.For(t, "a subscription", func() bool { return pubs[0].Subscribers() == 1 })
	wait.For(t, "a bad verdict", func() bool {
		pubs[0].Store(prompt(1, 64))
		st, h := r.blockSizes()
		return st.Tokens == 16 && st.From == blocksize.Given && !h.OK && h.Reasons[0].Code == "feed_refused" &&
			strings.Contains(h.Reasons[0].Detail, "block_size 16 is given, rank 0 has blocks of 8") && strings.Contains(h.Reasons[0].Remedy, "leave block_size out")
	})
	// It gets requests all the same, and what is routed there counts for a while.
	if a := r.route(m{"token_ids": prompt(2, 64)}); a.Rank != 0 {
		t.Errorf("%+v", a)
	}
	// Taken back, it is learnt.
	if status, text := r.do("PATCH", "/v1/ranks/0", m{"block_size": 0}, nil); status != 200 {
		t.Fatal(text)
	}
	wait.For(t, "the engine's blocks", func() bool {
		pubs[0].Store(prompt(1, 64))
		_, h := r.blockSizes()
		return h.OK && r.prefixOf(0, m{"token_ids": prompt(1, 64)}).GPU == 64
	})
}

// A given size that no namespace has is of no use for what is on disk.
func TestAGivenBlockSizeThatStoresContradictIsAHealthReason(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	fillSized(t, dir, 128, prompt(1, 640))
	ranks := ranksOf("http://h", 1)
	ranks[0].BlockSize, ranks[0].Node, ranks[0].NodeURL = 16, "n", startDaemon(t, dir)
	r := start(t, unchecked(ranks...))
	wait.For(t, "a bad verdict", func() bool {
		_, h := r.blockSizes()
		return !h.OK && h.Reasons[0].Code == "store_refused" && strings.Contains(h.Reasons[0].Detail, "block_size 16 is given, stores have blocks of 128")
	})
}

// Two of three ranks have blocks of 8 tokens, one of 16: the majority counts, and health names the other.
func TestRanksOfDifferentBlocksAreAHealthReason(t *testing.T) {
	var pubs []*enginetest.Publisher
	ranks := ranksOf("http://h", 3)
	for i, size := range []int{16, 8, 8} {
		endpoint, p := enginetest.Publish(t, 1, size)
		ranks[i].DPMode, ranks[i].DPRank, ranks[i].Events = registry.External, 0, &registry.Events{Endpoint: endpoint}
		pubs = append(pubs, p...)
	}
	r := start(t, unchecked(ranks...))
	tokens := prompt(1, 64)
	wait.For(t, "a bad verdict", func() bool {
		for _, p := range pubs {
			p.Store(tokens)
		}
		st, h := r.blockSizes()
		return st.Tokens == 8 && !h.OK && h.Reasons[0].Code == "block_sizes_differ" && strings.Contains(h.Reasons[0].Detail, "rank 0 has blocks of 16")
	})
	wait.For(t, "the majority's blocks", func() bool {
		for _, p := range pubs {
			p.Store(tokens)
		}
		return r.prefixOf(0, m{"token_ids": tokens}).GPU == 0 && r.prefixOf(1, m{"token_ids": tokens}).GPU == 64 && r.prefixOf(2, m{"token_ids": tokens}).GPU == 64
	})
	// Without it all is well.
	if status, text := r.do("DELETE", "/v1/ranks/0", nil, nil); status >= 300 {
		t.Fatal(text)
	}
	wait.For(t, "a good verdict", func() bool { _, h := r.blockSizes(); return h.OK })
}
