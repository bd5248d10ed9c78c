package worker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/fence"
	"github.com/kvconn/kvconn/gpu"
	"github.com/kvconn/kvconn/store"
)

// errFenced means that the engine took its memory back.
var errFenced = errors.New("engine memory was taken back")

// memory is one registration: a rank's engine memory and how blocks lie in it.
type memory struct {
	engine gpu.Memory
	page   *fence.Page
	groups []groupMemory
	// tier keeps the payload sizes of the shards in held fixed.
	tier      store.Namespaces
	namespace connector.NamespaceDigest
	held      []connector.Shard

	// copies is held for reading while blocks move, and for writing to close.
	copies sync.RWMutex
	closed bool
	// batches are reused, *gpu.Batch.
	batches sync.Pool
	shape   gpu.Shape
	// turns has room for as many copies of loads as should run side by side.
	turns chan struct{}
	// reached is the last call that the engine's device has come to.
	reached func() uint64
	// calls counts the engine's calls that move blocks; see [gpu.Batch].
	calls atomic.Uint64
	// lost is set, and onLost called, once a copy has found the memory gone.
	lost   atomic.Bool
	onLost func(error)
}

// groupMemory is how the blocks of one layer group lie.
type groupMemory struct {
	layout     connector.GroupLayout
	shard      connector.Shard
	blockBytes int
	// writes is set if this rank stores the shard.
	writes bool
}

// openMemory opens the regions and checks that the layout fits them and the manifest.
func openMemory(o *Options, l *connector.Layout, regions []*os.File, pageFile *os.File, onLost func(error)) (_ *memory, err error) {
	m := &memory{onLost: onLost, tier: o.Cache.Tier(), namespace: o.Namespace}
	m.batches.New = func() any { return new(gpu.Batch) }
	if m.page, err = fence.Open(pageFile); err != nil {
		return nil, err
	}
	m.reached = m.page.Reached
	if m.engine, err = openRegions(o, regions); err != nil {
		return nil, errors.Join(err, m.page.Close())
	}
	if err = m.lay(o, l); err != nil {
		m.releaseSizes()
		return nil, errors.Join(err, m.engine.Close(), m.page.Close())
	}
	m.shape = m.engine.Shape()
	m.turns = make(chan struct{}, m.shape.Calls)
	return m, nil
}

// openRegions has the driver open the regions, and hold the engine's connection if it is one that should.
func openRegions(o *Options, regions []*os.File) (gpu.Memory, error) {
	h, ok := o.Driver.(gpu.Holder)
	if !ok || o.Connection == nil {
		return o.Driver.Open(regions)
	}
	connection, err := o.Connection()
	if err != nil { // descriptors have run out, say: later there may be one
		return nil, fmt.Errorf("%w: hold the engine's connection: %w", gpu.ErrAgain, err)
	}
	defer func() { _ = connection.Close() }()
	return h.OpenHolding(regions, connection)
}

func (m *memory) lay(o *Options, l *connector.Layout) error {
	if err := l.Validate(m.engine.RegionBytes()); err != nil {
		return err
	}
	if len(l.Groups) != len(o.Manifest.Groups) {
		return fmt.Errorf("%w: it has %d groups, the manifest %d", connector.ErrLayout, len(l.Groups), len(o.Manifest.Groups))
	}
	for i := range l.Groups {
		g := groupMemory{layout: l.Groups[i], blockBytes: l.Groups[i].BlockBytes(), writes: o.Manifest.Writes(o.Rank, i)}
		var held bool
		g.shard, held = o.Manifest.Shard(o.Rank, i)
		if held != (g.blockBytes > 0) {
			return fmt.Errorf("%w: group %d: the layout has %d bytes a block for it, which by the manifest rank %d holds: %t",
				connector.ErrLayout, i, g.blockBytes, o.Rank, held)
		}
		// Blocks of another size than the stored ones could neither be saved nor loaded: every
		// offer would fail.
		if held {
			if err := m.tier.HoldPayload(m.namespace, g.shard, g.blockBytes); err != nil {
				return fmt.Errorf("group %d has blocks of %d bytes: %w", i, g.blockBytes, err)
			}
			m.held = append(m.held, g.shard)
			if err := o.Account.Fits(g.blockBytes); err != nil {
				return fmt.Errorf("blocks of %d bytes: %w", g.blockBytes, err)
			}
		}
		m.groups = append(m.groups, g)
	}
	return nil
}

// releaseSizes lets other engines register other payload sizes.
func (m *memory) releaseSizes() {
	for _, shard := range m.held {
		m.tier.ReleasePayload(m.namespace, shard)
	}
	m.held = nil
}

// group returns the group that a transfer names, or nil if the rank holds none of it.
func (m *memory) group(i int) *groupMemory {
	if i >= len(m.groups) || m.groups[i].blockBytes == 0 {
		return nil
	}
	return &m.groups[i]
}

// blockBytes lists the payload size of each group.
func (m *memory) blockBytes() []int {
	out := make([]int, len(m.groups))
	for i := range m.groups {
		out[i] = m.groups[i].blockBytes
	}
	return out
}

// close gives engine memory back. When it returns, the memory is not touched any more.
func (m *memory) close() error {
	m.copies.Lock()
	defer m.copies.Unlock()
	if m.closed {
		return nil
	}
	m.closed = true
	m.releaseSizes()
	return errors.Join(m.engine.Close(), m.page.Close())
}

// blockCopy is one block to copy between engine memory and a buffer.
type blockCopy struct {
	group *groupMemory
	slot  uint32
	buf   []byte
}

func (c *blockCopy) appendPieces(pieces []gpu.Piece) []gpu.Piece {
	at := 0
	for i := range c.group.layout.Runs {
		r := &c.group.layout.Runs[i]
		for layer := range uint64(r.Layers) {
			n := int(r.Bytes)
			pieces = append(pieces, gpu.Piece{
				Region: r.Region,
				Offset: r.Offset + layer*r.LayerStride + uint64(c.slot)*r.BlockStride,
				Host:   c.buf[at : at+n],
			})
			at += n
		}
	}
	return pieces
}

// batchPieces is how many pieces a batch has at least when no more blocks are added: a layout may
// have blocks of many small pieces, and each takes memory.
const batchPieces = 4096

// copy copies blocks for the engine's call of that number, unless the engine has taken its memory
// back. A save is only good if that did not happen before its end either: the blocks may hold the
// bytes of other tokens by then. took is the time of the copies, without the wait for the engine's device.
func (m *memory) copy(ctx context.Context, d gpu.Direction, call uint64, blocks []blockCopy) (took time.Duration, err error) {
	m.copies.RLock()
	defer m.copies.RUnlock()
	if m.closed {
		return 0, errFenced
	}
	b := m.batches.Get().(*gpu.Batch)
	b.Direction, b.AfterCall, b.Reached = d, call, m.reached
	// A step may be long: the engine need not wait for it to take its memory back.
	if a, ok := m.engine.(gpu.Awaiter); ok {
		err = a.Await(ctx, b)
	}
	if err == nil {
		began := time.Now()
		err = m.copyBatch(ctx, b, blocks)
		took = time.Since(began)
	}
	m.batches.Put(b)
	if errors.Is(err, gpu.ErrLost) && !m.lost.Swap(true) {
		m.onLost(err)
	}
	return took, err
}

// copyBatch copies blocks with a batch that says all but what.
func (m *memory) copyBatch(ctx context.Context, b *gpu.Batch, blocks []blockCopy) (err error) {
	if !m.page.Begin() {
		return errFenced
	}
	defer m.page.End()
	for i := 0; i < len(blocks) && err == nil; {
		b.Pieces = b.Pieces[:0]
		for ; i < len(blocks) && len(b.Pieces) < batchPieces; i++ {
			b.Pieces = blocks[i].appendPieces(b.Pieces)
		}
		err = m.engine.Copy(ctx, b)
		clear(b.Pieces)
	}
	if err == nil && b.Direction == gpu.Save && m.page.Fenced() {
		err = errFenced
	}
	return err
}

// kept is how many of n blocks come before the first that the engine has revoked since its count was that, none if
// the memory was given back. Called after a copy out of the blocks, it says what the engine has not overwritten before.
func (m *memory) kept(since uint64, n int, slot func(int) uint32) int {
	m.copies.RLock()
	defer m.copies.RUnlock()
	if m.closed {
		return 0
	}
	var r fence.Revoked
	m.page.ReadRevoked(since, &r)
	if !r.Any() {
		return n
	}
	for i := range n {
		if r.Has(slot(i)) {
			return i
		}
	}
	return n
}

// stretch is a run of consecutive blocks of one prompt and layer group, from or to the engine's
// memory.
type stretch struct {
	group  *groupMemory
	parent connector.Key // of the first block
	// anyParent is set if the engine does not know the parent.
	anyParent bool
	blocks    []connector.PlanBlock
	scope     connector.ScopeDigest // of a save
	// first is the number of blocks before the stretch in its load or save. Blocks from cut on are not waited
	// for, since one that comes before them has failed.
	first, cut int
}

// record is what block i of the stretch is stored as.
func (s *stretch) record(ns connector.NamespaceDigest, i int) store.Record {
	b := &s.blocks[i]
	r := store.Record{ID: store.RecordID{Namespace: ns, Shard: s.group.shard, Key: b.Key}, Proof: b.Proof}
	if i > 0 {
		r.Parent = s.blocks[i-1].Key
	} else {
		r.Parent, r.AnyParent = s.parent, s.anyParent
	}
	return r
}

// planned lists the stretches of this rank's shards.
func planned(mem *memory, transfers []connector.Transfer) []stretch {
	stretches := make([]stretch, 0, len(transfers))
	for i := range transfers {
		t := &transfers[i]
		if g := mem.group(t.Group); g != nil {
			stretches = append(stretches, stretch{group: g, parent: t.Parent, blocks: t.Blocks, scope: t.Scope})
		}
	}
	return stretches
}

// keyedStretch is that of blocks by the engine's own keys.
func keyedStretch(g *groupMemory, k *connector.KeyedPart) stretch {
	s := stretch{group: g, parent: connector.EngineKey(k.Parent), anyParent: k.AnyParent, blocks: make([]connector.PlanBlock, len(k.Hashes))}
	for i := range s.blocks {
		s.blocks[i] = connector.PlanBlock{Slot: k.Slots[i], Key: connector.EngineKey(k.Hashes[i]), Proof: k.Hashes[i]}
	}
	return s
}

// part is blocks [from, to) of the stretch.
func (s *stretch) part(from, to int) stretch {
	p := *s
	if from > 0 {
		p.parent, p.anyParent = s.blocks[from-1].Key, false
	}
	p.first, p.blocks = s.first+from, s.blocks[from:to]
	return p
}

// find returns the stretch and the place in it of block i of a load.
func find(stretches []stretch, i int) (*stretch, int) {
	after := sort.Search(len(stretches), func(n int) bool { return stretches[n].first > i })
	s := &stretches[after-1]
	return s, i - s.first
}
