package warm

import (
	"context"
	"errors"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/daemon/prompt"
	"github.com/kvconn/kvconn/internal/testkit/storetest"
	"github.com/kvconn/kvconn/internal/testkit/tiertest"
	"github.com/kvconn/kvconn/internal/testkit/wait"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk"
	"github.com/kvconn/kvconn/store/host"
)

// rig is a disk and a slower tier, with a host tier in front.
type rig struct {
	*Warmer
	disk     *disk.Store
	slow     *tiertest.Memory
	manifest *connector.Manifest
	ns       connector.NamespaceDigest
}

func newRig(t *testing.T, hostBytes int64) *rig {
	t.Helper()
	r := &rig{slow: tiertest.NewMemory(tiertest.Options{Name: "object"}), manifest: storetest.SmallManifest()}
	r.disk, r.ns = storetest.Small(t, 64<<20)
	if _, err := r.slow.OpenNamespace(r.manifest); err != nil {
		t.Fatal(err)
	}
	a, err := host.New(host.Options{Bytes: hostBytes})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		wait.For(t, "memory is given back", func() bool { return a.Stats().UsedBytes == 0 })
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	r.Warmer = &Warmer{Cache: host.NewCache(a, store.NewChain(r.disk, r.slow)), Disk: r.disk}
	return r
}

// save saves the blocks of a prompt into a tier.
func (r *rig) save(t *testing.T, w store.Writer, p *prompt.Prompt) (records []store.Record) {
	t.Helper()
	keys, proofs := p.Keys(storetest.SmallBlockTokens), p.Proofs(r.ns, storetest.SmallBlockTokens)
	for shard := range connector.Shard(2) {
		for i := range keys {
			op := &store.WriteOp{Record: store.Record{ID: store.RecordID{Namespace: r.ns, Shard: shard, Key: keys[i]}, Proof: proofs[i]}, Payload: store.AlignedBuffer(storetest.SmallPayloadBytes)}
			if op.Parent = connector.RootKey(storetest.SmallBlockTokens, connector.Scope{}); i > 0 {
				op.Parent = keys[i-1]
			}
			storetest.Save(t, w, op)
			records = append(records, op.Record)
		}
	}
	return records
}

func tokens(n, of int) *prompt.Prompt {
	p := &prompt.Prompt{Model: "m", Tokens: make([]uint32, n)}
	for i := range p.Tokens {
		p.Tokens[i] = uint32(of)
	}
	return p
}

func (r *rig) inMemory(records []store.Record) (n int) {
	for _, rec := range records {
		if storetest.Has(r.Cache, rec.ID) {
			n++
		}
	}
	return n
}

func (r *rig) prompt(ctx context.Context, p *prompt.Prompt, room int64) (Counts, error) {
	return r.Prompt(ctx, r.manifest, p, room, func(Counts) {})
}

func TestAPromptComesFromAllTiers(t *testing.T) {
	const blocks = 20
	r := newRig(t, 64<<20)
	near, far := tokens(blocks*storetest.SmallBlockTokens, 1), tokens(blocks*storetest.SmallBlockTokens, 2)
	onDisk, inBucket := r.save(t, r.disk, near), r.save(t, r.slow, far)
	if c, err := r.prompt(t.Context(), near, r.Room()); err != nil || c.Loaded != 2*blocks || c.Promoted != 0 || c.Bytes != 2*blocks*storetest.SmallPayloadBytes {
		t.Errorf("%+v, %v", c, err)
	}
	if c, err := r.prompt(t.Context(), far, r.Room()); err != nil || c.Loaded != 2*blocks || c.Promoted != 2*blocks {
		t.Errorf("%+v, %v", c, err)
	}
	if n := r.inMemory(append(onDisk, inBucket...)); n != 4*blocks {
		t.Errorf("%d records are in memory", n)
	}
	wait.For(t, "the disk gets what the bucket had", func() bool { return storetest.Has(r.disk, inBucket[len(inBucket)-1].ID) })
	if c, err := r.prompt(t.Context(), tokens(2*storetest.SmallBlockTokens, 9), r.Room()); err != nil || c.Missing != 4 || c.Loaded+c.Failed != 0 {
		t.Errorf("%+v, %v", c, err)
	}
}

func TestWarmingsAreBounded(t *testing.T) {
	const blocks, room = 50, 20 * storetest.SmallPayloadBytes
	r := newRig(t, 64<<20)
	old, recent := tokens(blocks*storetest.SmallBlockTokens, 1), tokens(blocks*storetest.SmallBlockTokens, 2)
	r.save(t, r.disk, old)
	records := r.save(t, r.disk, recent)
	n, lease := r.disk.Lookup(r.ns, []connector.Shard{0, 1}, recent.Keys(storetest.SmallBlockTokens), 0)
	if n != blocks {
		t.Fatal(n)
	}
	r.disk.Release(lease)
	c, err := r.Namespace(t.Context(), r.ns, room, func(Counts) {})
	if err != nil || c.Loaded != 20 || c.Records != 20 {
		t.Errorf("%+v, %v", c, err)
	}
	// The beginning of what was used last, in both shards.
	if got := r.inMemory(records[:10]) + r.inMemory(records[blocks:blocks+10]); got != 20 {
		t.Errorf("%d of the records used last are in memory", got)
	}
	if c, err := r.prompt(t.Context(), old, room); err != nil || c.Loaded != 20 || !c.Truncated {
		t.Errorf("%+v, %v", c, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.prompt(ctx, old, r.Room()); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
