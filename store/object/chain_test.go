package object

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/manifests"
	"github.com/kvconn/kvconn/internal/testkit/tiertest"
	"github.com/kvconn/kvconn/store"
)

// An engine whose ranks lie on two nodes gets hits: each node has its own shard on disk, and the bucket has both.
func TestRanksOnTwoNodesGetHits(t *testing.T) {
	inCloud(t, func(t *testing.T, c *cloud) {
		const blocks = 30
		both := []connector.Shard{0, 1}
		var nodes [2]*node
		var disks [2]*tiertest.Memory
		var chains [2]*store.Chain
		for i := range nodes {
			nodes[i], disks[i] = c.open(nil), tiertest.NewMemory(tiertest.Options{Name: "disk"})
			chains[i] = store.NewChain(disks[i], nodes[i])
			if _, err := chains[i].OpenNamespace(manifests.Model("m")); err != nil {
				t.Fatal(err)
			}
			nodes[i].ready()
		}
		records, keys := nodes[0].chain(1, blocks)
		for i, n := range nodes {
			mine := slices.Clone(records)
			for j := range mine {
				mine[j].ID.Shard = connector.Shard(i)
			}
			n.mustWrite(mine...)
			var all sync.WaitGroup
			for _, r := range mine {
				all.Add(1)
				op := &store.WriteOp{Record: r, Scope: scope, Payload: payload(r.ID, payloadBytes)}
				if _, err := disks[i].Write([]*store.WriteOp{op}, func(*store.WriteOp) { all.Done() }); err != nil {
					t.Fatal(err)
				}
			}
			all.Wait()
		}
		for i, chain := range chains {
			nodes[i].until("the ranks' shards are not found", func() bool {
				n, lease := chain.Lookup(nodes[i].ns, both, keys, time.Minute)
				if n == blocks && (disks[i].Leases() != 1 || nodes[i].Stats().Leases != 1) {
					t.Errorf("%d and %d leases", disks[i].Leases(), nodes[i].Stats().Leases)
				}
				chain.Release(lease)
				return n == blocks
			})
			other := records[3]
			other.ID.Shard = connector.Shard(1 - i)
			op := &store.ReadOp{Record: other, Payload: store.AlignedBuffer(payloadBytes)}
			chain.Read(t.Context(), []*store.ReadOp{op}, func(*store.ReadOp) {})
			if op.Err != nil || op.From != "object" || !op.Promote {
				t.Errorf("%v from %q", op.Err, op.From)
			}
			if err := chain.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}
