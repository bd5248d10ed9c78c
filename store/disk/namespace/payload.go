package namespace

import (
	"fmt"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/index"
)

// PayloadBytes is the size of a shard's payloads, as by [store.Namespaces].
func (n *Registry) PayloadBytes(ns connector.NamespaceDigest, shard connector.Shard) int {
	n.mu.RLock()
	defer n.mu.RUnlock()
	e := n.of(ns)
	if e == nil {
		return 0
	}
	return e.sizes[shard]
}

// HoldPayload fixes the size of a shard's payloads for an engine, as by [store.Namespaces].
func (n *Registry) HoldPayload(ns connector.NamespaceDigest, shard connector.Shard, bytes int) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	e := n.of(ns)
	if e == nil {
		return fmt.Errorf("namespace %v: %w", ns, ErrNotOpen)
	}
	if err := e.sizeError(shard, bytes); err != nil {
		return err
	}
	e.holds[shard] = sizeHold{bytes: bytes, engines: e.holds[shard].engines + 1}
	return nil
}

// ReleasePayload ends one [Registry.HoldPayload]. The namespace is still open.
func (n *Registry) ReleasePayload(ns connector.NamespaceDigest, shard connector.Shard) {
	n.mu.Lock()
	defer n.mu.Unlock()
	e := n.of(ns)
	if e == nil {
		return
	}
	h, ok := e.holds[shard]
	if !ok {
		return
	}
	if h.engines--; h.engines == 0 {
		delete(e.holds, shard)
		return
	}
	e.holds[shard] = h
}

// sizeHold is the payload size that engines have registered for a shard, and how many have.
type sizeHold struct{ bytes, engines int }

// sizeError is the error of a payload whose size is not the shard's, if that is fixed or held.
// The mutex of the registry is held.
func (e *namespace) sizeError(shard connector.Shard, bytes int) error {
	if stored := e.sizes[shard]; stored != 0 && stored != bytes {
		return &store.PayloadSizeError{Namespace: e.digest, Shard: shard, Bytes: bytes, Stored: stored}
	}
	if h, held := e.holds[shard]; held && h.bytes != bytes {
		return &store.PayloadSizeError{Namespace: e.digest, Shard: shard, Bytes: bytes, Stored: h.bytes, Held: true}
	}
	return nil
}

// CheckSize reports whether a write has its shard's payload size. The first one fixes it.
func (n *Registry) CheckSize(g index.Group, bytes int) error {
	n.mu.RLock()
	e := n.at(g.Namespace)
	fixed := false
	if e != nil {
		e.used.Store(true)
		fixed = e.sizes[g.Shard] == bytes
	}
	n.mu.RUnlock()
	if fixed {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	e = n.at(g.Namespace)
	if e == nil {
		return fmt.Errorf("namespace: %w", ErrNotOpen)
	}
	e.used.Store(true)
	if err := e.sizeError(g.Shard, bytes); err != nil {
		if e.sizes[g.Shard] != 0 {
			// The records it is of may all be gone: looked at soon, not now.
			n.wrong[g] = true
			n.requestTidy()
		}
		return err
	}
	e.sizes[g.Shard] = bytes
	return nil
}

// FoundSize fixes the payload size of a shard when a record is found, unless it is fixed.
func (n *Registry) FoundSize(g index.Group, bytes int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if e := n.at(g.Namespace); e != nil && e.sizes[g.Shard] == 0 {
		e.sizes[g.Shard] = bytes
	}
}
