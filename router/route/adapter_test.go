package route

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/wait"
	"github.com/kvconn/kvconn/router/blockkey"
	"github.com/kvconn/kvconn/router/policy"
	"github.com/kvconn/kvconn/router/prefix"
	"github.com/kvconn/kvconn/store/residency"
)

func TestWhatAGPUAndStoresHaveIsJoined(t *testing.T) {
	for name, c := range map[string]struct{ gpu, stored, want prefix.Result }{
		"stores alone":         {prefix.Result{}, prefix.Result{Disk: 4, Usable: 4, FromDisk: 4}, prefix.Result{Disk: 4, Usable: 4, FromDisk: 4}},
		"the GPU alone":        {prefix.Result{GPU: 3, Usable: 3, FromGPU: 3}, prefix.Result{}, prefix.Result{GPU: 3, Usable: 3, FromGPU: 3}},
		"the disk goes on":     {prefix.Result{GPU: 3}, prefix.Result{Disk: 8, Usable: 8, FromDisk: 8}, prefix.Result{GPU: 3, Disk: 5, Usable: 8, FromGPU: 3, FromDisk: 5}},
		"the GPU has more":     {prefix.Result{GPU: 9}, prefix.Result{Disk: 8, Usable: 8, FromDisk: 8}, prefix.Result{GPU: 9, Usable: 9, FromGPU: 9}},
		"disk and bucket":      {prefix.Result{GPU: 3}, prefix.Result{Disk: 4, Object: 2, Usable: 6, FromDisk: 4, FromObject: 2}, prefix.Result{GPU: 3, Disk: 1, Object: 2, Usable: 6, FromGPU: 3, FromDisk: 1, FromObject: 2}},
		"the bucket's is left": {prefix.Result{GPU: 5}, prefix.Result{Disk: 4, Object: 2, Usable: 6, FromDisk: 4, FromObject: 2}, prefix.Result{GPU: 5, Object: 1, Usable: 6, FromGPU: 5, FromObject: 1}},
		"tiers take turns":     {prefix.Result{GPU: 1}, prefix.Result{Disk: 1, Object: 1, Usable: 4, FromDisk: 3, FromObject: 1}, prefix.Result{GPU: 1, Object: 1, Usable: 4, FromGPU: 1, FromDisk: 2, FromObject: 1}},
	} {
		got := joined(&c.gpu, &c.stored)
		if got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
		if got.FromGPU+got.FromDisk+got.FromObject != got.Usable || got.GPU+got.Disk+got.Object > got.Usable {
			t.Errorf("%s: %+v does not add up", name, got)
		}
	}
}

// adapterNode is a node whose disk has the same prompt for two contents, and whose engines use one of them under the name tuned.
func adapterNode(t *testing.T, tokens []uint32, content string) (url string, tell func(scope string)) {
	t.Helper()
	said, changed := new(atomic.Pointer[string]), make(chan struct{}, 1)
	said.Store(&content)
	m := &connector.Manifest{
		Engine: "test/1", Model: "m", KVDType: "bfloat16", BlockSize: 16, TensorParallel: 1, PipelineParallel: 1,
		Groups: []connector.Group{{Layers: 2, KVHeads: 1, HeadSize: 16, Layout: "LBHNC"}}, KeyScheme: connector.KeySchemeTokens, HashScheme: connector.HashScheme,
	}
	node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/residency" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", residency.ContentType(residency.Disk))
		out := residency.NewWriter(w)
		err := errors.Join(out.Hello(residency.Hello{Epoch: 1}), out.Namespace(residency.Namespace{Digest: m.Digest(), Manifest: m.Canonical()}))
		for scope, blocks := range map[string]int{"old": 4, "new": 2} {
			root := blockkey.Tokens.Root(16, connector.Scope{LoRA: scope})
			var h blockkey.Hasher
			h.Begin(root)
			parent := root.Key()
			for _, key := range h.Append(nil, tokens[:16*blocks], 16) {
				err = errors.Join(err, out.Record(0, residency.Record{Key: key, Parent: parent}))
				parent = key
			}
		}
		for err = errors.Join(err, out.SnapshotEnd(1)); err == nil; {
			err = errors.Join(out.Adapter(residency.Adapter{Name: "tuned", Scope: *said.Load()}), out.Flush(), http.NewResponseController(w).Flush())
			select {
			case <-changed:
			case <-r.Context().Done():
				return
			}
		}
		t.Error(err)
	}))
	t.Cleanup(node.Close)
	return node.URL, func(scope string) {
		said.Store(&scope)
		changed <- struct{}{}
	}
}

// Two nodes use different contents under one name. Each rank is credited with what its own engine could load, beside what its GPU
// has under the name, and with nothing as soon as its node does not know.
func TestEachNodesAdapterIsItsOwn(t *testing.T) {
	tokens := prompt(1, 96)
	urls, tells := [2]string{}, [2]func(string){}
	for i, content := range []string{"old", "new"} {
		urls[i], tells[i] = adapterNode(t, tokens, content)
	}
	r := newRouter(t, 0, nil) // it ends before the nodes
	for i, url := range urls {
		a := rank(i)
		a.Node, a.NodeURL, a.Adapters = string(rune('a'+i)), url, []string{"tuned"}
		a.Speeds = policy.Speeds{PrefillTokens: 10, DiskBytes: 1e9}
		add(t, r, a)
	}
	third := rank(2) // has no node
	third.Adapters = []string{"tuned"}
	add(t, r, third)
	disks := func(model string) (got [3]int32) {
		list, err := r.Prefixes(model, tokens, connector.Scope{})
		if err != nil {
			t.Fatal(err)
		}
		for i, p := range list {
			got[i] = p.Match.Disk
			if p.Match.GPU+p.Match.Disk > p.Match.Usable {
				t.Errorf("%+v", p)
			}
		}
		return got
	}
	wait.For(t, "each node's blocks", func() bool { return disks("tuned") == [3]int32{64, 32, 0} })
	if got := disks("m"); got != [3]int32{} {
		t.Errorf("without the adapter: %v", got)
	}
	// What is in the GPU counts under the name.
	req := free(tokens[:40])
	req.Model, req.Pin = "tuned", 0
	if d := ask(t, r, req); d.Match.Disk != 32 || d.LoadDisk != 32 {
		t.Errorf("%+v", d)
	}
	if got := disks("tuned"); got != [3]int32{32, 32, 0} {
		t.Errorf("with two blocks in the GPU: %v", got)
	}
	tells[0]("")
	wait.For(t, "nothing of the first", func() bool { return disks("tuned") == [3]int32{0, 32, 0} })
	tells[1]("old")
	wait.For(t, "the other content", func() bool { return disks("tuned") == [3]int32{0, 64, 0} })
}
