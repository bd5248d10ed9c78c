package daemon

import (
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/storetest"
	"github.com/kvconn/kvconn/internal/testkit/tiertest"
	"github.com/kvconn/kvconn/internal/testkit/wait"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/host"
)

// A tier that the daemon knows nothing of takes one more name in the chain: it is priced, leased,
// read through, counted and shown.
func TestThirdTierTakesOneMoreNameInTheChain(t *testing.T) {
	const onDisk, blocks = 2, 5
	disk := tiertest.NewMemory(tiertest.Options{Name: "disk"}) // a real one may stall
	slow := tiertest.NewMemory(tiertest.Options{Name: "object"})
	a, err := host.New(host.Options{Bytes: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close() })
	o := &Options{Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler), PrefillTokensPerS: 4, NoPrefetch: true} // prefill takes 1 s for a block
	o.EnsureDefaults()
	b := newBackend(o, store.NewChain(disk, slow), a)
	m := residencyManifest()
	s, w := openEngine(t, b, m)
	defer s.Close()
	defer w.Close()
	records, tokens := promptRecords(m, blocks)
	storetest.Save(t, disk, records[:2*onDisk]...) // of two shards
	storetest.Save(t, slow, records[2*onDisk:]...)
	match := func(request string) int {
		t.Helper()
		offer, err := s.Match(t.Context(), &connector.MatchRequest{Request: request, Tokens: tokens, PromptTokens: len(tokens)})
		if err != nil {
			t.Fatal(err)
		}
		return offer.Tokens
	}

	slow.SetSpeed(store.Speed{BytesPerS: 1e3}) // a block takes 16 s
	if got, want := match("slow"), onDisk*m.BlockSize; got != want {
		t.Errorf("%d tokens offered while the slow tier is slower than prefill, want the %d on disk", got, want)
	}
	if slow.Leases() != 0 {
		t.Error("records that are not offered are leased")
	}
	b.probe()
	wait.For(t, "the slow tier is probed", func() bool { return slow.Usage().Hits > 0 })
	slow.SetSpeed(store.Speed{BytesPerS: 1e9})
	if got, want := match("fast"), blocks*m.BlockSize; got != want {
		t.Fatalf("%d tokens offered once it is faster, want %d", got, want)
	}
	if slow.Leases() != 1 {
		t.Errorf("%d leases of the slow tier, want one for the offer", slow.Leases())
	}

	wait.For(t, "the probe ends", func() bool { return !b.probers[1].Probing() })
	before := slow.Usage().Hits
	plan, err := s.Step(t.Context(), &connector.StepRequest{Allocs: []connector.Alloc{{
		Request: "fast", External: blocks * m.BlockSize, Blocks: [][]uint32{{0, 1, 2, 3, 4, 5}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Load(t.Context(), plan.Metadata); err != nil {
		t.Fatal(err)
	}
	wait.For(t, "the load ends", func() bool {
		ended, err := w.Poll(t.Context())
		if err != nil || len(ended.Finished) > 0 && len(ended.Finished[0].FailedBlocks) > 0 {
			t.Fatalf("%+v, %v", ended, err)
		}
		return len(ended.Finished) > 0
	})
	if err := s.Loaded(t.Context(), &connector.LoadedReport{Done: []string{"fast"}}); err != nil {
		t.Fatal(err)
	}
	if slow.Leases() != 0 {
		t.Error("a lease outlives its load")
	}
	wait.For(t, "blocks from the slow tier are on disk", func() bool {
		return storetest.Has(disk, records[2*onDisk].ID) && storetest.Has(disk, records[2*blocks-2].ID)
	})

	shown := statusOf(b.levels)
	if names := slices.Collect(func(yield func(string) bool) {
		for _, tier := range shown {
			yield(tier.Tier)
		}
	}); !slices.Equal(names, []string{"host", "disk", "object"}) {
		t.Fatalf("status lists %v", names)
	}
	if object := shown[2]; object.Hits != before+blocks-onDisk || object.Records != 2*(blocks-onDisk) || object.LoadBytesPerS != 1e9 {
		t.Errorf("status of the slow tier, from which %[2]d records were loaded: %+[1]v", object, blocks-onDisk)
	}
	if text := scrape(t, &reading{tiers: shown}); !strings.Contains(text, `kvconn_tier_records{tier="object"} 6`) {
		t.Errorf("no tier object in\n%s", text)
	}
	if rate := s.(*schedulerSession).Stats().LoadBytesPerS["object"]; rate != 1e9 {
		t.Errorf("the leader's figures have %v bytes/s", rate)
	}
}

// promptRecords are the records of both shards of a prompt's blocks, and the prompt.
func promptRecords(m *connector.Manifest, blocks int) (records []*store.WriteOp, tokens []uint32) {
	ns := m.Digest()
	key := connector.RootKey(m.BlockSize, connector.Scope{})
	proof := connector.RootProof(ns, m.BlockSize, connector.Scope{})
	var scratch []byte
	for i := range blocks {
		block := []uint32{9, uint32(i), 0, 0}
		tokens = append(tokens, block...)
		parent := key
		key, scratch = connector.NextKey(parent, connector.AppendTokens(nil, block), scratch)
		proof, scratch = connector.NextProof(proof, connector.AppendTokens(nil, block), scratch)
		for shard := range connector.Shard(2) {
			records = append(records, &store.WriteOp{
				Record:  store.Record{ID: store.RecordID{Namespace: ns, Shard: shard, Key: key}, Parent: parent, Proof: proof},
				Payload: store.AlignedBuffer(residencyTestPayload),
			})
		}
	}
	return records, append(tokens, 9) // the engine computes the last token
}
