package service

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/client"
	"github.com/kvconn/kvconn/internal/daemon"
	"github.com/kvconn/kvconn/internal/testkit/enginetest"
	"github.com/kvconn/kvconn/internal/testkit/storetest"
	"github.com/kvconn/kvconn/internal/testkit/wait"
	"github.com/kvconn/kvconn/router/policy"
	"github.com/kvconn/kvconn/router/registry"
	"github.com/kvconn/kvconn/router/route"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk"
)

const payloadBytes = 8000

// fillStore saves the blocks of prompts of a model in a store that is then closed.
func fillStore(t *testing.T, dir, model string, prompts map[connector.Scope][]uint32) {
	t.Helper()
	m := manifestOf(model)
	fill(t, dir, m, func(save func(parent, key connector.Key)) {
		for scope, tokens := range prompts {
			parent := connector.RootKey(m.BlockSize, scope)
			for ; len(tokens) >= m.BlockSize; tokens = tokens[m.BlockSize:] {
				key, _ := connector.NextKey(parent, connector.AppendTokens(nil, tokens[:m.BlockSize]), nil)
				save(parent, key)
				parent = key
			}
		}
	})
}

func manifestOf(model string) *connector.Manifest {
	return &connector.Manifest{
		Engine: "test/1", Model: model, KVDType: "bfloat16", BlockSize: 16, TensorParallel: 1, PipelineParallel: 1,
		Groups:    []connector.Group{{Layers: 2, KVHeads: 1, HeadSize: 16, Layout: "LBHNC"}},
		KeyScheme: connector.KeySchemeTokens, HashScheme: connector.HashScheme,
	}
}

// fill saves blocks of one namespace in a store that is then closed.
func fill(t *testing.T, dir string, m *connector.Manifest, blocks func(save func(parent, key connector.Key))) {
	t.Helper()
	s, err := disk.Open(t.Context(), disk.Options{Dir: dir, MaxBytes: 64 << 20, Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	ns, err := s.OpenNamespace(m)
	if err != nil {
		t.Fatal(err)
	}
	blocks(func(parent, key connector.Key) {
		storetest.Save(t, s, &store.WriteOp{Record: store.Record{ID: store.RecordID{Namespace: ns, Key: key}, Parent: parent}, Payload: store.AlignedBuffer(payloadBytes)})
	})
}

// startDaemon runs a node's kvconnd and returns its URL.
func startDaemon(t *testing.T, dir string) string {
	return startDaemonAt(t, dir, filepath.Join(t.TempDir(), "s"))
}

func startDaemonAt(t *testing.T, dir, socket string) string {
	t.Helper()
	ready := make(chan daemon.Info, 1)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- daemon.Run(ctx, daemon.Options{
			Dir: dir, Socket: socket, HTTP: "127.0.0.1:0", MaxBytes: 64 << 20, HostBytes: 64 << 20, Logger: quiet(),
			Ready: func(i daemon.Info) { ready <- i },
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	select {
	case i := <-ready:
		return "http://" + i.HTTP
	case err := <-done:
		t.Fatalf("the daemon ended: %v", err)
		return ""
	}
}

// prefixOf is what a rank has of a prompt.
func (r *running) prefixOf(rank int32, body m) policy.Match {
	r.t.Helper()
	var p PrefixAnswer
	r.do("POST", "/v1/prefix", body, &p)
	for _, x := range p.Ranks {
		if x.Rank == rank {
			return x.Match
		}
	}
	r.t.Fatalf("no rank %d in %+v", rank, p)
	return policy.Match{}
}

// Two ranks of one engine with events, one node. A prompt goes where it is in the GPU; when the GPU has been
// cleared, the node's disk still has it.
func TestRoutingFollowsEventsAndResidency(t *testing.T) {
	tokens := prompt(1, 1600)
	dir := filepath.Join(t.TempDir(), "store")
	fillStore(t, dir, "m", map[connector.Scope][]uint32{{}: tokens, {Salt: "tenant"}: tokens[:800]})
	node := startDaemon(t, dir)
	e := enginetest.New(t, "m")
	endpoint, pubs := enginetest.Publish(t, 2, 16)
	ranks := ranksOf(e.URL, 2)
	ranks[1].Node, ranks[1].NodeURL = "n", node
	for i := range ranks {
		ranks[i].Events = &registry.Events{Endpoint: endpoint}
		ranks[i].Speeds = policy.Speeds{PrefillTokens: 1000, DiskBytes: 1e9}
	}
	r := start(t, func(o *Options) { o.Ranks = ranks })
	r.ready(2)
	body := m{"model": "m", "token_ids": tokens}

	wait.For(t, "the disk's blocks", func() bool { return r.prefixOf(1, body).Disk == 1600 })
	if a := r.route(body); a.Rank != 1 || a.UseTokens != 1584 || a.LoadDisk != 1584 {
		t.Errorf("%+v", a)
	}
	// Another rank has it in its GPU. What rank 1 was given counts as there, too, so ask with a clean slate.
	wait.For(t, "subscriptions", func() bool { return pubs[0].Subscribers() == 1 && pubs[1].Subscribers() == 1 })
	// Again and again: a subscriber is connected a little before its subscription has arrived.
	wait.For(t, "the GPU's blocks", func() bool {
		pubs[1].Clear()
		pubs[0].Store(tokens)
		return r.prefixOf(0, body).GPU == 1600 && r.prefixOf(1, body).GPU == 0
	})
	var a RouteAnswer
	wait.For(t, "the rank whose GPU has it", func() bool { // on a busy machine a rank may miss a health check
		if a = r.route(body); a.Rank == 0 && a.UseTokens == 1584 && a.LoadDisk == 0 && a.Headers[registry.RankHeader] == "0" {
			return true
		}
		r.do("POST", "/v1/requests/"+a.Request+"/finished", nil, nil)
		pubs[1].Clear()
		return false
	})
	pubs[0].Clear()
	wait.For(t, "the end of the GPU's blocks", func() bool { return r.prefixOf(0, body).GPU == 0 })
	r.do("POST", "/v1/requests/"+a.Request+"/finished", nil, nil)
	if a = r.route(body); a.Rank != 1 || a.LoadDisk+a.UseTokens == 0 {
		t.Errorf("%+v", a)
	}

	salted := m{"model": "m", "token_ids": tokens, "cache_salt": "tenant"}
	wait.For(t, "the tenant's blocks", func() bool { return r.prefixOf(1, salted).Disk == 800 })
	if got := r.prefixOf(1, m{"model": "m", "token_ids": tokens, "cache_salt": "other"}); got.Usable != 0 {
		t.Errorf("another tenant has %+v", got)
	}
	var info route.RankInfo
	if r.do("GET", "/v1/ranks/1", nil, &info); info.DiskFeed == nil || !info.DiskFeed.Connected || info.Speed.BytesPerToken != 2*16*2 {
		t.Errorf("%+v", info)
	}
}

// A connector tells its leader an adapter's content (docs/adr/0010-identity.md). A request that names the
// adapter so finds its blocks on disk. One that has its name, as events have, finds nobody's.
func TestAnAdaptersBlocksOnDiskAreFoundByItsContent(t *testing.T) {
	const content = "lora-1:0a"
	tokens := prompt(1, 160)
	dir := filepath.Join(t.TempDir(), "store")
	fillStore(t, dir, "m", map[connector.Scope][]uint32{{LoRA: content}: tokens, {Salt: "tenant", LoRA: content}: tokens[:80]})
	ranks := ranksOf("http://h", 1)
	ranks[0].Node, ranks[0].NodeURL, ranks[0].Adapters = "n", startDaemon(t, dir), []string{"tuned"}
	r := start(t, unchecked(ranks...))
	wait.For(t, "the adapter's blocks", func() bool {
		return r.prefixOf(0, m{"model": "m", "lora": content, "token_ids": tokens}).Disk == 160
	})
	wait.For(t, "the tenant's blocks", func() bool {
		return r.prefixOf(0, m{"model": "m", "lora": content, "cache_salt": "tenant", "token_ids": tokens}).Disk == 80
	})
	for _, body := range []m{{"model": "tuned"}, {"model": "m", "lora": "tuned"}, {"model": "m"}, {"model": "tuned", "cache_salt": "tenant"}} {
		body["token_ids"] = tokens
		if got := r.prefixOf(0, body); got.Usable != 0 {
			t.Errorf("%v: %+v", body, got)
		}
	}
}

// A node's engine tells what it computes with under an adapter's name: from then on, requests that name it find its blocks on disk.
// A second engine of the node with other content under the name leaves it open what a rank would load.
func TestAnAdaptersBlocksOnDiskAreFoundByItsName(t *testing.T) {
	const content = "lora-1:0a"
	tokens := prompt(1, 160)
	dir, socket := filepath.Join(t.TempDir(), "store"), filepath.Join(t.TempDir(), "s")
	fillStore(t, dir, "m", map[connector.Scope][]uint32{{LoRA: content}: tokens, {Salt: "tenant", LoRA: content}: tokens[:80]})
	ranks := ranksOf("http://h", 2)
	ranks[0].Node, ranks[0].NodeURL, ranks[0].Adapters, ranks[1].Adapters = "n", startDaemonAt(t, dir, socket), []string{"tuned"}, []string{"tuned"}
	r := start(t, unchecked(ranks...))
	engine := func(name, lora string) *client.Scheduler {
		s, err := client.NewScheduler(client.Options{Socket: socket, Engine: name, Name: "test", Manifest: *manifestOf("m"), CallTimeout: 20 * time.Second, Logger: quiet()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		if err := s.Connect(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.Step(t.Context(), &connector.StepRequest{Adapters: []connector.Adapter{{Name: "tuned", LoRA: lora}}})
		return s
	}
	disks := func(body m) [2]int32 {
		body["token_ids"] = tokens
		return [2]int32{r.prefixOf(0, body).Disk, r.prefixOf(1, body).Disk}
	}
	first := engine("a", content)
	wait.For(t, "the adapter's blocks", func() bool { return disks(m{"model": "tuned"}) == [2]int32{160, 0} })
	wait.For(t, "the tenant's blocks", func() bool { return disks(m{"model": "tuned", "cache_salt": "tenant"}) == [2]int32{80, 0} })
	if got := disks(m{"model": "m"}); got != [2]int32{} {
		t.Errorf("without the adapter: %v", got)
	}
	engine("b", content)
	second := engine("c", "lora-1:0b")
	wait.For(t, "doubt", func() bool { return disks(m{"model": "tuned"}) == [2]int32{} })
	second.Close()
	wait.For(t, "its end", func() bool { return disks(m{"model": "tuned"}) == [2]int32{160, 0} })
	first.Step(t.Context(), &connector.StepRequest{Adapters: []connector.Adapter{{Name: "tuned"}}})
	wait.For(t, "an engine that does not use it any more", func() bool { return disks(m{"model": "tuned"}) == [2]int32{} })
	var info route.RankInfo
	if r.do("GET", "/v1/ranks/0", nil, &info); info.DiskFeed == nil || info.DiskFeed.Adapters != 0 {
		t.Errorf("%+v", info)
	}
}

func TestAStoreOfAnotherModelDoesNotCount(t *testing.T) {
	tokens := prompt(1, 160)
	dir := filepath.Join(t.TempDir(), "store")
	fillStore(t, dir, "other/model", map[connector.Scope][]uint32{{}: tokens})
	node := startDaemon(t, dir)
	ranks := ranksOf("http://h", 2)
	for i := range ranks {
		ranks[i].Node = "n"
	}
	ranks[0].NodeURL = node
	ranks[1].CacheModel = "other/model"
	r := start(t, unchecked(ranks...))
	body := m{"token_ids": tokens}
	wait.For(t, "the disk's blocks", func() bool { return r.prefixOf(1, body).Disk == 160 })
	if got := r.prefixOf(0, body); got.Usable != 0 {
		t.Errorf("%+v", got)
	}
}

// The proxy in front of two engines: a conversation's turns reach the rank that has their prefix, and go on
// elsewhere when it dies.
func TestTurnsOfAConversationFollowTheirPrefix(t *testing.T) {
	a, b := enginetest.New(t, "m"), enginetest.New(t, "m")
	r := start(t, func(o *Options) {
		o.HealthInterval = 20 * time.Millisecond
		o.Ranks = []registry.Rank{{ID: 0, Model: "m", Endpoint: a.URL}, {ID: 1, Model: "m", Endpoint: b.URL}}
	})
	r.ready(2)
	text := strings.Repeat("a long system prompt ", 20)
	turn := func() {
		text += "and the next turn's question "
		if status, got := r.do("POST", "/v1/chat/completions", m{"model": "m", "messages": []m{{"role": "user", "content": text}}}, nil); status != 200 {
			t.Fatal(got)
		}
	}
	for range 4 {
		turn()
	}
	na, nb := len(a.Requests()), len(b.Requests())
	if na*nb != 0 || na+nb != 4 {
		t.Errorf("%d turns went to one rank, %d to the other", na, nb)
	}
	dead, alive := a, b
	if nb > 0 {
		dead, alive = b, a
	}
	dead.CloseClientConnections()
	dead.Close()
	for range 3 {
		turn()
	}
	if n := len(alive.Requests()); n != 3 {
		t.Errorf("%d of 3 turns reached the engine that is left", n)
	}
}
