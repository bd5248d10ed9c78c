package disk

import (
	"errors"
	"fmt"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store/disk/index"
)

// ErrPayloadSize says that a namespace's shard has payloads of another size: those of its
// records, or those that an engine which is connected has registered.
// It is matched by every [PayloadSizeError] and wraps [ErrInvalid].
var ErrPayloadSize = fmt.Errorf("store: payload size differs from that of the shard's records: %w", ErrInvalid)

// PayloadSizeError is an [ErrPayloadSize] with both sizes.
type PayloadSizeError struct {
	Namespace NamespaceID
	Shard     connector.Shard
	// Bytes is the size that was asked for, Stored that of the records there are, or, with Held
	// set, that of an engine's memory: see [Store.HoldPayload].
	Bytes, Stored int
	Held          bool
}

// Error implements error.
func (e *PayloadSizeError) Error() string {
	if e.Held {
		return fmt.Sprintf("payload of %d bytes: an engine that is connected has registered shard %d in namespace %d with %d bytes: is the same model served with two memory layouts?",
			e.Bytes, e.Shard, e.Namespace, e.Stored)
	}
	return fmt.Sprintf("payload of %d bytes: the records of shard %d in namespace %d have %d bytes: was the same model served with another memory layout?",
		e.Bytes, e.Shard, e.Namespace, e.Stored)
}

// Unwrap returns [ErrPayloadSize].
func (e *PayloadSizeError) Unwrap() error { return ErrPayloadSize }

// PayloadBytes is the size of the payloads of a namespace's shard, all of which have the
// same; 0 while there is none, and for a namespace that is not open.
func (s *Store) PayloadBytes(ns NamespaceID, shard connector.Shard) int {
	n := &s.namespaces
	n.mu.RLock()
	defer n.mu.RUnlock()
	e := n.at(ns)
	if e == nil {
		return 0
	}
	return e.sizes[shard]
}

// HoldPayload fixes the size in bytes of the payloads of a namespace's shard, for an engine that
// registers its memory, until [Store.ReleasePayload]. It fails with a [PayloadSizeError] if the
// shard has records of another size, or another engine holds another: of two that could not
// load each other's blocks the first is served. If the records are gone by now, and none is
// looked for, their size is free again. It may look at the whole index, and does not wait for
// the disk.
func (s *Store) HoldPayload(ns NamespaceID, shard connector.Shard, bytes int) error {
	err := s.namespaces.hold(ns, shard, bytes)
	var size *PayloadSizeError
	if !errors.As(err, &size) || size.Held || !s.findsAll() || !s.freeSize(groupID{ns, shard}) {
		return err
	}
	return s.namespaces.hold(ns, shard, bytes)
}

// ReleasePayload ends one [Store.HoldPayload]. The namespace is still open.
func (s *Store) ReleasePayload(ns NamespaceID, shard connector.Shard) {
	n := &s.namespaces
	n.mu.Lock()
	defer n.mu.Unlock()
	e := n.at(ns)
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

func (n *namespaces) hold(ns NamespaceID, shard connector.Shard, bytes int) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	e := n.at(ns)
	if e == nil {
		return fmt.Errorf("namespace %d: %w", ns, errNotOpen)
	}
	if err := e.sizeError(RecordID{Namespace: ns, Shard: shard}, bytes); err != nil {
		return err
	}
	e.holds[shard] = sizeHold{bytes: bytes, engines: e.holds[shard].engines + 1}
	return nil
}

// sizeError is the error of a payload whose size is not the shard's, if that is fixed or held.
// The mutex of namespaces is held.
func (e *namespace) sizeError(id RecordID, bytes int) error {
	if stored := e.sizes[id.Shard]; stored != 0 && stored != bytes {
		return &PayloadSizeError{Namespace: id.Namespace, Shard: id.Shard, Bytes: bytes, Stored: stored}
	}
	if h, held := e.holds[id.Shard]; held && h.bytes != bytes {
		return &PayloadSizeError{Namespace: id.Namespace, Shard: id.Shard, Bytes: bytes, Stored: h.bytes, Held: true}
	}
	return nil
}

// checkSize reports whether a write has its shard's payload size. The first one fixes it.
func (n *namespaces) checkSize(id RecordID, bytes int) error {
	n.mu.RLock()
	e := n.at(id.Namespace)
	fixed := false
	if e != nil {
		e.used.Store(true)
		fixed = e.sizes[id.Shard] == bytes
	}
	n.mu.RUnlock()
	if fixed {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	e = n.at(id.Namespace)
	if e == nil {
		return fmt.Errorf("namespace %d: %w", id.Namespace, errNotOpen)
	}
	e.used.Store(true)
	if err := e.sizeError(id, bytes); err != nil {
		if e.sizes[id.Shard] != 0 {
			// The records it is of may all be gone: looked at soon, not now.
			n.wrong[groupID{id.Namespace, id.Shard}] = true
			n.requestTidy()
		}
		return err
	}
	e.sizes[id.Shard] = bytes
	return nil
}

// foundSize fixes the payload size of a shard of which a record was found, unless it is.
func (n *namespaces) foundSize(id RecordID, bytes int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if e := n.at(id.Namespace); e != nil && e.sizes[id.Shard] == 0 {
		e.sizes[id.Shard] = bytes
	}
}

// unnoted reports whether the journal does not have the payload size of a shard yet, and
// takes it that it has from now on.
func (n *namespaces) unnoted(id RecordID) bool {
	n.mu.RLock()
	noted := n.byID[id.Namespace].noted[id.Shard]
	n.mu.RUnlock()
	if noted {
		return false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.byID[id.Namespace].noted[id.Shard] = true
	return true
}

// freeSize frees the payload size of a shard if no record of it is left. It reports whether
// it has.
func (s *Store) freeSize(g groupID) bool {
	job := s.forgetting(g.namespace)
	if job == nil {
		return false
	}
	job.shard, job.size = g.shard, true
	group := index.Group{Namespace: uint16(g.namespace), Shard: g.shard}
	if s.table.Census(func(o index.Group) bool { return o == group })[group] > 0 {
		return false
	}
	return s.pushForget(job)
}
