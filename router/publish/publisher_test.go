package publish

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/storetest"
	"github.com/kvconn/kvconn/internal/testkit/zmqtest"
	"github.com/kvconn/kvconn/internal/zmtp"
	"github.com/kvconn/kvconn/router/event"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk"
)

const testPayloadBytes = 8000

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

func openStore(t *testing.T) (*disk.Store, connector.NamespaceDigest) {
	t.Helper()
	s, err := disk.Open(t.Context(), disk.Options{
		Dir: t.TempDir(), MaxBytes: 12 << 20, SegmentBytes: 1 << 20, BarrierInterval: 5 * time.Millisecond, Logger: quiet(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	ns, err := s.OpenNamespace(&connector.Manifest{
		Engine: "test/1", Model: "m", KVDType: "bfloat16", BlockSize: 16, TensorParallel: 2, PipelineParallel: 1,
		Groups:    []connector.Group{{Layers: 2, KVHeads: 1, HeadSize: 16, Layout: "LBHNC"}},
		KeyScheme: connector.KeySchemeTokens, HashScheme: connector.HashScheme,
	})
	if err != nil {
		t.Fatal(err)
	}
	return s, ns
}

func keyOf(n int) (k connector.Key) {
	binary.BigEndian.PutUint64(k[:], uint64(n)+1<<63)
	return k
}

// save writes shards of the blocks [from, to), a prompt.
func save(t *testing.T, s *disk.Store, ns connector.NamespaceDigest, from, to int, shards ...connector.Shard) {
	t.Helper()
	var ops []*store.WriteOp
	for n := from; n < to; n++ {
		for _, shard := range shards {
			ops = append(ops, &store.WriteOp{
				Record: store.Record{ID: store.RecordID{Namespace: ns, Shard: shard, Key: keyOf(n)},
					Parent: keyOf(n - 1)}, Payload: store.AlignedBuffer(testPayloadBytes),
			})
		}
	}
	storetest.Save(t, s, ops...)
}

func startPublisher(t *testing.T, s *disk.Store, hashes HashForm) *Publisher {
	t.Helper()
	p, err := New(t.Context(), Options{
		Endpoint: "tcp://127.0.0.1:0", ReplayEndpoint: "tcp://127.0.0.1:0", Topic: "kv", Hashes: hashes, Logger: quiet(),
	}, s)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return p
}

// held applies events to a set of hashes.
type held struct {
	t      *testing.T
	hashes map[uint64]bool
	events int
}

func (h *held) Stored(e *event.Stored) {
	h.events++
	if e.Medium != event.MediumDisk || len(e.Tokens) != 0 || e.HasParent || e.BlockSize != 16 {
		h.t.Errorf("%+v", e)
	}
	for _, n := range e.Hashes {
		if h.hashes[n] {
			h.t.Errorf("%x stored twice", n)
		}
		h.hashes[n] = true
	}
}

func (h *held) Removed(e *event.Removed) {
	h.events++
	for _, n := range e.Hashes {
		if !h.hashes[n] {
			h.t.Errorf("%x removed and was not there", n)
		}
		delete(h.hashes, n)
	}
}

func (h *held) Cleared() { clear(h.hashes) }

// replay is what a publisher's replay makes of an empty set.
func replay(t *testing.T, p *Publisher) *held {
	t.Helper()
	c, err := zmtp.DialDealer(t.Context(), "tcp://"+p.ReplayAddr().String(), zmtp.ConnOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	h := &held{t: t, hashes: make(map[uint64]bool)}
	d := event.NewDecoder(event.Limits{})
	next := uint64(0)
	if err := c.Replay(0, time.Minute, func(seq uint64, payload []byte) bool {
		if seq != next {
			t.Errorf("batch %d, want %d", seq, next)
		}
		next++
		if b, err := d.Decode(payload, h); err != nil || !b.HasRank || b.Rank != 0 {
			t.Errorf("batch %d: %+v %v", seq, b, err)
		}
		return true
	}); err != nil {
		t.Fatal(err)
	}
	if c := d.Counters(); c != (event.Counters{}) {
		t.Errorf("%+v", c)
	}
	return h
}

// Blocks come and, under a small cap, go, before and after the publisher begins.
func TestWhatIsPublishedIsWhatIsThere(t *testing.T) {
	s, ns := openStore(t)
	save(t, s, ns, 0, 600, 0, 1)
	p := startPublisher(t, s, HashUint64)
	save(t, s, ns, 1000, 1600, 0, 1)
	save(t, s, ns, 3000, 3005, 1) // never complete
	want := make(map[uint64]bool)
	same := func() bool {
		clear(want)
		for _, from := range []int{0, 1000, 3000} {
			for n := from; n < from+600; n++ {
				k := keyOf(n)
				if storetest.Has(s, store.RecordID{Namespace: ns, Shard: 0, Key: k}) && storetest.Has(s, store.RecordID{Namespace: ns, Shard: 1, Key: k}) {
					want[binary.BigEndian.Uint64(k[:])] = true
				}
			}
		}
		got := replay(t, p).hashes
		for k := range want {
			if !got[k] {
				return false
			}
		}
		return len(got) == len(want)
	}
	for end := time.Now().Add(time.Minute); !same(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("what is published is not what is there, %d blocks", len(want))
		}
	}
	if len(want) == 0 || len(want) == 1200 {
		t.Errorf("%d blocks: nothing was evicted, or all", len(want))
	}
}

func TestHashesHaveTheFormThatWasAskedFor(t *testing.T) {
	k := keyOf(5)
	for form, want := range map[HashForm]string{
		HashUint64: "cf" + hex.EncodeToString(k[:8]),
		HashInt64:  "d3" + hex.EncodeToString(k[:8]),
		HashBytes:  "c410" + hex.EncodeToString(k[:]),
	} {
		e := batch{form: form, medium: "STORAGE", now: func() time.Time { return time.Unix(1757500000, 250000000) }}
		got := hex.EncodeToString(e.removed([]connector.Key{k}))
		if want := "93cb41da3054981000009183a474797065ac426c6f636b52656d6f766564ac626c6f636b5f68617368657391" + want +
			"a66d656469756da753544f5241474500"; got != want {
			t.Errorf("%s: %s\nwant %s", form, got, want)
		}
	}
}

func TestLibzmqReadsWhatIsPublished(t *testing.T) {
	s, ns := openStore(t)
	p := startPublisher(t, s, HashBytes)
	sub := zmqtest.Start(t, "../../internal/zmtp/testdata/libzmq_sub.py", "sub", "tcp://"+p.Addr().String(), "kv")
	sub.Line()
	for p.Stats().Subscribers == 0 {
		time.Sleep(time.Millisecond)
	}
	// The subscription may take effect after the connection: save until something arrives.
	lines := make(chan []string, 1)
	go func() { lines <- sub.Line() }()
	for n := 0; ; n++ {
		save(t, s, ns, n, n+1, 0, 1)
		select {
		case got := <-lines:
			if len(got) != 3 || got[0] != hex.EncodeToString([]byte("kv")) || len(got[1]) != 16 {
				t.Fatalf("%q", got)
			}
			text := fmt.Sprintf("%x", "block_hashes") + "91c410" // one hash of 16 bytes
			if !strings.Contains(got[2], text) || !strings.Contains(got[2], fmt.Sprintf("%x", "BlockStored")) {
				t.Errorf("%s", got[2])
			}
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for name, o := range map[string]Options{
		"no endpoint":        {},
		"an unknown form":    {Endpoint: "tcp://*:5557", Hashes: "sha1"},
		"a negative rank":    {Endpoint: "tcp://*:5557", Rank: -1},
		"ipc for rank 1":     {Endpoint: "ipc:///run/kv", Rank: 1},
		"no port for replay": {Endpoint: "tcp://*:5557", ReplayEndpoint: "tcp://h"},
	} {
		o.EnsureDefaults()
		if err := o.Validate(); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
