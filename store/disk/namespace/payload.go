package namespace

import (
	"fmt"
	"slices"
	"time"

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

// Contents adds the sizes of payloads to a count of the records of each group.
func (n *Registry) Contents(counts map[index.Group]int) []store.Contents {
	n.mu.RLock()
	defer n.mu.RUnlock()
	records, bytes := make([]int64, len(n.byID)), make([]int64, len(n.byID))
	for g, count := range counts {
		if int(g.Namespace) < len(n.byID) {
			records[g.Namespace] += int64(count)
			bytes[g.Namespace] += int64(count) * int64(n.byID[g.Namespace].sizes[g.Shard])
		}
	}
	out := make([]store.Contents, 0, len(n.lookup))
	for id, e := range n.byID {
		if !e.gone {
			info := store.NamespaceInfo{Digest: e.digest, Manifest: slices.Clone(e.manifest)}
			c := store.Contents{NamespaceInfo: info, Records: records[id], Bytes: bytes[id], Sessions: e.engines, Hits: e.hits.Load()}
			if after := e.lastUse.Load(); after != 0 {
				c.LastUse = n.began.Add(time.Duration(after))
			}
			out = append(out, c)
		}
	}
	return out
}

// Hit notes that a look-up has found blocks of a namespace.
func (n *Registry) Hit(number uint16, blocks int, now time.Time) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	if e := n.at(number); e != nil {
		e.hits.Add(uint64(blocks))
		n.use(e, now)
	}
}

func (n *Registry) use(e *namespace, now time.Time) { e.lastUse.Store(max(1, int64(now.Sub(n.began)))) }

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
		n.use(e, time.Now())
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
	n.use(e, time.Now())
	if err := e.sizeError(g.Shard, bytes); err != nil {
		if e.sizes[g.Shard] != 0 {
			// The records it is of may all be gone: looked at soon, not now.
			n.wrong[g] = true
			n.RequestTidy()
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
