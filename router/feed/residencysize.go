package feed

import (
	"context"
	"errors"
	"maps"
)

// errResized ends a stream whose namespaces were chosen by a block size that is not the model's any more.
var errResized = errors.New("the model's blocks have another size")

// watchSize cancels a stream once its views have another block size than the router expects. changed is a signal from before
// the stream began.
func (f *Residency) watchSize(ctx context.Context, changed <-chan struct{}, cancel context.CancelCauseFunc) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
		changed = f.opts.BlockSize.Changed()
		if f.outdated() {
			cancel(errResized)
			return
		}
	}
}

func (f *Residency) outdated() bool {
	f.mu.Lock()
	defer f.unlock()
	return f.blockSize != f.opts.BlockSize.Tokens()
}

// resized forgets the views of another block size; the next stream begins with a snapshot.
func (f *Residency) resized() {
	f.mu.Lock()
	defer f.unlock()
	f.opts.Logger.Info("a store's residency is read again: the model's blocks have another size", "url", f.opts.URL, "tier", f.opts.Tier)
	f.forgetLocked()
	f.stats.Connected, f.stats.State = false, StateConnecting
}

// noteSize tells the router that the store has one more namespace of a block size. If that changes what is expected and nothing
// was chosen by the size before, the stream goes on with it. The caller holds mu.
func (f *Residency) noteSize(tokens int) {
	mismatched := false
	for size := range f.sizes {
		mismatched = mismatched || size != f.blockSize
	}
	f.sizes[tokens]++
	f.tellSizes()
	if len(f.views) == 0 && !mismatched {
		f.setBlockSize(f.opts.BlockSize.Tokens())
	}
}

// setBlockSize has views of that size made from now on. The caller holds mu.
func (f *Residency) setBlockSize(tokens int) {
	f.blockSize = tokens
	f.roots.setPlain(f.opts.Scheme.StoreRoot(tokens))
}

// tellSizes tells what the store has. While a snapshot comes it is no less than earlier streams have shown: the first namespaces
// of a snapshot are not all, and a size that changed with them would have the snapshot begin again without end. mu is held.
func (f *Residency) tellSizes() {
	say := maps.Clone(f.sizes)
	if f.loading {
		for size, n := range f.told {
			say[size] = max(say[size], n)
		}
	}
	f.told = maps.Clone(say)
	f.opts.BlockSize.StoreSays(f, say)
}
