package namespace

import (
	"context"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store/disk/fsio"
	"github.com/kvconn/kvconn/store/disk/index"
	"github.com/kvconn/kvconn/store/disk/journal"
)

// Forgetting is an attempt to forget a namespace without records and engines, or the payload
// size of a shard without records. What is noted in it comes before the records are counted: if
// it is the same afterwards, there still is none.
type Forgetting struct {
	ID uint16
	// Size says that only the payload size of Shard is to be forgotten.
	Size  bool
	Shard connector.Shard

	opened, inserted uint64
	manifest         []byte
	digest           connector.NamespaceDigest
	shards           []connector.Shard // whose sizes the journal may have
}

// Tidy has a token when namespaces or payload sizes should be looked at soon.
func (n *Registry) Tidy() <-chan struct{} { return n.tidy }

// RequestTidy asks for namespaces to be tidied soon.
func (n *Registry) RequestTidy() {
	select {
	case n.tidy <- struct{}{}:
	default:
	}
}

// WrongSizes returns the payload sizes that writes did not agree with since the last call.
func (n *Registry) WrongSizes() map[index.Group]bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	wrong := n.wrong
	n.wrong = make(map[index.Group]bool)
	return wrong
}

// KeepLost writes the manifests whose files were lost and that an engine has brought again.
func (n *Registry) KeepLost(ctx context.Context) {
	var lost []uint16
	n.mu.RLock()
	for i, e := range n.byID {
		if !e.gone && e.listed && !e.kept && e.manifest != nil {
			lost = append(lost, uint16(i))
		}
	}
	n.mu.RUnlock()
	for _, id := range lost {
		if ctx.Err() != nil {
			return
		}
		if err := n.Keep(id); err != nil {
			n.o.Report.Logger.Warn("store: cannot write a manifest again", "err", err,
				"remedy", "none: it is tried again with the next record of the namespace")
		}
	}
}

// Unopened begins to forget each namespace that no engine has open.
func (n *Registry) Unopened() (out []*Forgetting) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	for i, e := range n.byID {
		if !e.gone && e.engines == 0 {
			out = append(out, e.forgetting(uint16(i)))
		}
	}
	return out
}

// Forgetting begins to forget a namespace, or nothing (nil) if it is not known.
func (n *Registry) Forgetting(id uint16) *Forgetting {
	n.mu.RLock()
	defer n.mu.RUnlock()
	if e := n.at(id); e != nil {
		return e.forgetting(id)
	}
	return nil
}

func (e *namespace) forgetting(id uint16) *Forgetting {
	return &Forgetting{ID: id, opened: e.opened, inserted: e.inserted.Load()}
}

// Forget ends what Forgetting began, and reports whether it is forgotten. Nothing may be written
// into it meanwhile.
func (n *Registry) Forget(f *Forgetting) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	e := n.at(f.ID)
	if e == nil || e.inserted.Load() != f.inserted {
		return false
	}
	if f.Size {
		f.shards = append(f.shards, f.Shard)
		delete(e.sizes, f.Shard)
		delete(e.noted, f.Shard)
		return true
	}
	if e.engines > 0 || e.opened != f.opened || n.keeping[f.ID] != nil {
		return false
	}
	for shard := range e.noted {
		f.shards = append(f.shards, shard)
	}
	f.digest = e.digest
	if e.kept {
		f.manifest = e.manifest
	}
	e.used.Store(true) // events may name it
	n.remove(f.ID)
	return true
}

// DeleteFrom takes what was forgotten out of the journal. What fails is found at the next start.
func (f *Forgetting) DeleteFrom(batch *journal.Batch) {
	for _, shard := range f.shards {
		_ = batch.DeleteSize(f.ID, shard)
	}
	if !f.Size {
		_ = batch.DeleteNamespace(f.ID)
	}
}

// Forgotten removes the file of a namespace that was forgotten, and frees its number.
func (n *Registry) Forgotten(f *Forgetting) {
	if f.manifest != nil { // it is a file
		if err := n.o.FS.Remove(n.manifestPath(f.digest)); err != nil && !fsio.IsNotExist(err) {
			n.o.Report.Logger.Warn("store: cannot remove a manifest", "err", err, "remedy", "none: it is tried again at the next start")
			return // it stays counted
		}
		n.o.Unclaim(len(f.manifest))
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.used = append(n.used, f.ID)
}
