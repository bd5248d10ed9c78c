package storetest

import (
	"log/slog"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/manifests"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk"
)

// Blocks of a small store have SmallBlockTokens tokens, and their records SmallPayloadBytes of payload.
const (
	SmallBlockTokens  = 4
	SmallPayloadBytes = 8000
)

// Small is a small store with a namespace of two shards.
func Small(t testing.TB, maxBytes int64) (*disk.Store, connector.NamespaceDigest) {
	t.Helper()
	s, err := disk.Open(t.Context(), disk.Options{
		Dir: t.TempDir(), MaxBytes: maxBytes, SegmentBytes: 1 << 20, BarrierInterval: 5 * time.Millisecond,
		MinFreeBytes: -1, Logger: slog.New(slog.DiscardHandler), // whatever else is on this machine's disk
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	ns, err := s.OpenNamespace(SmallManifest())
	if err != nil {
		t.Fatal(err)
	}
	return s, ns
}

// SmallManifest describes a namespace of two shards.
func SmallManifest() *connector.Manifest {
	return manifests.New(func(m *connector.Manifest) { m.BlockSize, m.TensorParallel = SmallBlockTokens, 2 })
}

// SmallChain are the keys of a prompt of n blocks, after its root key.
func SmallChain(scope connector.Scope, prompt, n int) []connector.Key {
	keys := []connector.Key{connector.RootKey(SmallBlockTokens, scope)}
	var scratch []byte
	for i := range n {
		var key connector.Key
		key, scratch = connector.NextKey(keys[i], connector.AppendTokens(nil, []uint32{uint32(prompt), uint32(i), 0, 0}), scratch)
		keys = append(keys, key)
	}
	return keys
}

// SaveSmall writes shards of a prompt's blocks and waits.
func SaveSmall(t testing.TB, s store.Writer, ns connector.NamespaceDigest, keys []connector.Key, shards ...connector.Shard) {
	t.Helper()
	var ops []*store.WriteOp
	for i := 1; i < len(keys); i++ {
		for _, shard := range shards {
			ops = append(ops, &store.WriteOp{
				Record:  store.Record{ID: store.RecordID{Namespace: ns, Shard: shard, Key: keys[i]}, Parent: keys[i-1]},
				Payload: store.AlignedBuffer(SmallPayloadBytes),
			})
		}
	}
	Save(t, s, ops...)
}
