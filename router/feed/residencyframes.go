package feed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/router/blockkey"
	"github.com/kvconn/kvconn/store/residency"
)

// apply applies a frame, after which the stream is at a position.
func (f *Residency) apply(frame any, at residency.Position) (err error) {
	f.mu.Lock()
	defer f.unlock()
	switch frame := frame.(type) {
	case residency.Hello:
		err = f.begin(frame)
	case residency.Namespace:
		err = f.namespace(&frame)
	case residency.Records:
		err = f.records(frame)
	case residency.SnapshotEnd:
		f.loaded()
	case residency.Adapter:
		err = f.adapter(&frame)
	}
	if err == nil {
		f.stats.Epoch, f.stats.LastSeq = at.Epoch, at.Seq
	}
	return err
}

func (f *Residency) begin(h residency.Hello) error {
	if h.Resumed && f.views == nil { // forgotten since it was asked for
		return fmt.Errorf("%w: it resumes what is forgotten", residency.ErrMalformed)
	}
	f.stats.Connects++
	f.stats.Connected, f.stats.Error = true, ""
	f.numbers = make(map[uint32]*view)
	f.adapters.Clear() // the stream tells them all again
	if h.Resumed {
		f.stats.Resumed++
		f.stats.State = StateSynced
		return nil
	}
	f.forgetLocked()
	f.views, f.ignored = make(map[connector.NamespaceDigest]*view), make(map[connector.NamespaceDigest]bool)
	f.sizes = make(map[int]int)
	f.setBlockSize(f.opts.BlockSize.Tokens())
	f.loading, f.stats.State = true, StateStale
	return nil
}

// namespace begins to follow a namespace, or to ignore it. A resumed stream describes it again.
func (f *Residency) namespace(n *residency.Namespace) error {
	if _, twice := f.numbers[n.Number]; twice {
		return fmt.Errorf("%w: namespace %d is described twice", residency.ErrMalformed, n.Number)
	}
	v := f.views[n.Digest]
	if v == nil && !f.ignored[n.Digest] {
		if len(f.views)+len(f.ignored) == residency.MaxNamespaces {
			return fmt.Errorf("%w: more than %d namespaces since the snapshot", residency.ErrMalformed, residency.MaxNamespaces)
		}
		if v = f.newView(n); v == nil {
			f.ignored[n.Digest] = true
			f.stats.IgnoredNamespaces++
		} else {
			f.views[n.Digest] = v
		}
	}
	f.numbers[n.Number] = v
	return nil
}

// newView is the view of a namespace, nil if it is of no use to the router.
func (f *Residency) newView(n *residency.Namespace) *view {
	m, err := connector.ParseManifest(n.Manifest)
	if err != nil { // lost, or of another version
		f.opts.Logger.Warn("a store's namespace is ignored", "url", f.opts.URL, "namespace", n.Digest, "error", err)
		return nil
	}
	switch err := f.opts.Scheme.Check(m); {
	case errors.Is(err, blockkey.ErrPairs):
		f.opts.Logger.Warn("a store's namespace is ignored: its blocks cannot be found by a prompt's tokens",
			"url", f.opts.URL, "namespace", n.Digest, "model", m.Model, "error", err)
		return nil
	case err != nil: // no prompt's keys are like these
		return nil
	}
	if f.opts.Wanted != nil && !f.opts.Wanted(n.Digest, m) {
		return nil
	}
	f.noteSize(m.BlockSize)
	if m.BlockSize != f.blockSize {
		f.stats.MismatchedBlockSize++
		level := slog.LevelInfo // it may be left over from an engine of before
		if f.opts.BlockSize.IsGiven() {
			level = slog.LevelWarn
		}
		f.opts.Logger.Log(context.Background(), level, "a store's namespace has another block size than the router and is ignored",
			"url", f.opts.URL, "namespace", n.Digest, "model", m.Model, "block_size", m.BlockSize, "router", f.blockSize)
		return nil
	}
	h, ok := f.opts.Holder(n.Digest, m)
	if !ok {
		return nil
	}
	return &view{
		holder: h, index: f.index, shards: residency.NewShards(m), loading: f.loading, maxWait: f.opts.MaxWaiting,
		isRoot: f.roots.has,
	}
}

func (f *Residency) records(records residency.Records) error {
	f.stats.Records += uint64(records.Len())
	var v *view
	var number uint32
	for i := range records.Len() {
		r := records.At(i)
		if i == 0 || r.Namespace != number {
			if v != nil {
				v.flush()
			}
			known := false
			if v, known = f.numbers[r.Namespace]; !known {
				return fmt.Errorf("%w: a record of a namespace that was not described", residency.ErrMalformed)
			}
			number = r.Namespace
		}
		switch {
		case v == nil:
		case r.Removed:
			v.removed(r.Key, r.Shard)
		default:
			v.stored(r.Key, r.Parent, r.Shard)
		}
	}
	if v != nil {
		v.flush()
	}
	return nil
}

func (f *Residency) loaded() {
	for _, v := range f.views {
		v.loaded()
	}
	f.loading = false
	f.tellSizes()
	f.stats.Snapshots++
	f.stats.State = StateSynced
}

// AdapterScope is the LoRA of the scope (connector.Scope) that the store has the blocks of prompts with an adapter under; empty
// if that is not known. Engines and their KV events go by the adapter's name, stores by its content. It may be called from
// any goroutine, and does not wait for the stream.
func (f *Residency) AdapterScope(name string) string { return f.adapters.Scope(name) }

// adapter notes what an adapter's name stands for. The caller holds mu.
func (f *Residency) adapter(a *residency.Adapter) error {
	v, known := f.numbers[a.Namespace]
	switch {
	case !known:
		return fmt.Errorf("%w: an adapter of a namespace that was not described", residency.ErrMalformed)
	case v != nil:
		f.adapters.Set(v, a.Name, a.Scope)
	}
	return nil
}
