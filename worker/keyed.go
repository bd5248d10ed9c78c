package worker

import (
	"context"
	"fmt"

	"github.com/kvconn/kvconn/connector"
)

// keyed checks a call by the engine's own keys and returns the group it names of the
// registered memory.
func (w *Worker) keyed(mem *memory, k *connector.KeyedBlocks) (*groupMemory, error) {
	if w.opts.Manifest.KeyScheme != connector.KeySchemeEngine {
		return nil, fmt.Errorf("%w: the namespace's key scheme is %q", connector.ErrBadRequest, w.opts.Manifest.KeyScheme)
	}
	if mem == nil {
		return nil, connector.ErrNotRegistered
	}
	g := mem.group(k.Group)
	if g == nil {
		return nil, fmt.Errorf("%w: the rank has no blocks of group %d", connector.ErrBadRequest, k.Group)
	}
	return g, nil
}

// parentKey is the key in front of a stretch; the root's is zero.
func parentKey(k *connector.KeyedBlocks) connector.Key { return connector.EngineKey(k.Parent) }

// Present returns how many leading blocks have this rank's shard stored.
func (w *Worker) Present(_ context.Context, k *connector.KeyedBlocks) (int, error) {
	g, err := w.keyed(w.memory(), k)
	if err != nil {
		return 0, err
	}
	for i, there := range w.present(g, k) {
		if !there {
			return i, nil
		}
	}
	return len(k.Hashes), nil
}

// present says of each block whether this rank's shard of it is stored.
func (w *Worker) present(g *groupMemory, k *connector.KeyedBlocks) []bool {
	keys, at := make([]connector.Key, len(k.Hashes)), make([]bool, len(k.Hashes))
	for i := range keys {
		keys[i] = connector.EngineKey(k.Hashes[i])
	}
	w.store.Present(w.opts.Namespace, g.shard, keys, at)
	return at
}

// Fetch starts the load of blocks by key, which Poll reports as request.
func (w *Worker) Fetch(_ context.Context, request string, k *connector.KeyedBlocks) error {
	mem, call := w.call()
	g, err := w.keyed(mem, k)
	if err != nil {
		return err
	}
	w.mu.Lock()
	err = w.loads.admits(1, len(k.Hashes))
	w.mu.Unlock()
	if err != nil {
		return err
	}
	blocks := make([]loadBlock, len(k.Hashes))
	parent := parentKey(k)
	for i := range blocks {
		key := connector.EngineKey(k.Hashes[i])
		blocks[i] = loadBlock{group: g, slot: k.Slots[i], parent: parent, key: key, proof: k.Hashes[i]}
		parent = key
	}
	w.begin(w.newLoad(mem, call, request, blocks, nil))
	return nil
}

// Put saves blocks by key. Engines offer the same blocks again and again: what is stored
// is not written over.
func (w *Worker) Put(ctx context.Context, k *connector.KeyedBlocks) (connector.SaveResult, error) {
	mem, call := w.call()
	g, err := w.keyed(mem, k)
	if err != nil {
		return connector.SaveResult{}, err
	}
	s := staged{scope: k.Scope.Digest()}
	if !g.writes {
		s.result.Present = len(k.Hashes)
		return s.result, nil
	}
	// Stretches of missing blocks.
	var blocks []connector.PlanBlock
	before, present := parentKey(k), w.present(g, k)
	for i := range k.Hashes {
		key := connector.EngineKey(k.Hashes[i])
		switch {
		case present[i]:
			s.result.Present++
			w.stage(&s, g, before, blocks)
			blocks, before = blocks[:0], key
		case s.result.Dropped > 0: // of no use without those before it
			s.result.Dropped++
		default:
			blocks = append(blocks, connector.PlanBlock{Slot: k.Slots[i], Key: key, Proof: k.Hashes[i]})
		}
	}
	w.stage(&s, g, before, blocks)
	return w.write(ctx, mem, call, &s), nil
}
