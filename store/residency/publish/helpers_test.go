package publish

import (
	"context"
	"encoding/binary"
	"log/slog"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/manifests"
	"github.com/kvconn/kvconn/internal/testkit/storetest"
	"github.com/kvconn/kvconn/internal/testkit/wait"
	"github.com/kvconn/kvconn/internal/zmtp"
	"github.com/kvconn/kvconn/router/event"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk"
	"github.com/kvconn/kvconn/store/residency"
)

const testPayloadBytes = 8000

func openStore(t *testing.T) (*disk.Store, connector.NamespaceDigest) {
	t.Helper()
	s, err := disk.Open(t.Context(), disk.Options{
		Dir: t.TempDir(), MaxBytes: 12 << 20, SegmentBytes: 1 << 20, BarrierInterval: 5 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s, openNamespace(t, s, "m")
}

// openNamespace opens a namespace of two shards.
func openNamespace(t *testing.T, s *disk.Store, model string) connector.NamespaceDigest {
	t.Helper()
	ns, err := s.OpenNamespace(manifests.New(func(m *connector.Manifest) { m.Model, m.TensorParallel = model, 2 }))
	if err != nil {
		t.Fatal(err)
	}
	return ns
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

// run publishes a source until the test ends.
func run(t *testing.T, o Options, s residency.Source) *Publisher {
	t.Helper()
	o.Endpoint, o.ReplayEndpoint, o.Logger = "tcp://127.0.0.1:0", "tcp://127.0.0.1:0", slog.New(slog.DiscardHandler)
	p, err := New(t.Context(), o, s)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return p
}

// held applies events to a set of hashes.
type held struct {
	t      *testing.T
	hashes map[uint64]bool
	// cleared counts clears, late those that came after blocks.
	cleared, late int
}

func (h *held) Stored(e *event.Stored) {
	if !e.OffGPU || len(e.Tokens) != 0 || e.HasParent || e.BlockSize != 16 {
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
	for _, n := range e.Hashes {
		if !h.hashes[n] {
			h.t.Errorf("%x removed and was not there", n)
		}
		delete(h.hashes, n)
	}
}

func (h *held) Cleared() {
	if h.cleared++; len(h.hashes) > 0 {
		h.late++
	}
	clear(h.hashes)
}

// replay is what a publisher's replay makes of an empty set.
func replay(t *testing.T, p *Publisher) *held {
	t.Helper()
	c, err := zmtp.DialDealer(t.Context(), p.Stats().ReplayEndpoint)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	h := &held{t: t, hashes: make(map[uint64]bool)}
	d := event.NewDecoder()
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
	if d.UnknownTypes+d.UnknownKeys > 0 {
		t.Errorf("%d unknown types, %d unknown keys", d.UnknownTypes, d.UnknownKeys)
	}
	return h
}

// published waits until n blocks are published, and returns the replay.
func published(t *testing.T, p *Publisher, n int) (h *held) {
	t.Helper()
	wait.For(t, "all blocks", func() bool {
		h = replay(t, p)
		return len(h.hashes) >= n
	})
	return h
}
