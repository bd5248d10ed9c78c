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
	w.opts.Cache.Tier().Present(w.opts.Namespace, g.shard, keys, at)
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
	w.begin(w.newLoad(mem, call, request, []stretch{keyedStretch(g, k)}, nil))
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
	var b saveBatch
	if !g.writes {
		b.result.Present = len(k.Hashes)
		return b.result, nil
	}
	scope, all := k.Scope.Digest(), keyedStretch(g, k)
	from := 0 // of a stretch of missing blocks
	save := func(to int) {
		if b.result.Dropped > 0 { // of no use without those before it
			b.result.Dropped += to - from
		} else {
			w.gather(&b, scope, all.part(from, to))
		}
		from = to + 1
	}
	for i, stored := range w.present(g, k) {
		if stored {
			b.result.Present++
			save(i)
		}
	}
	save(len(k.Hashes))
	return w.write(ctx, mem, call, &b), nil
}
