package store

import (
	"fmt"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store/internal/index"
)

// ErrPayloadSize says that the records which a namespace's shard has are of another size.
// It is matched by every [PayloadSizeError] and wraps [ErrInvalid].
var ErrPayloadSize = fmt.Errorf("store: payload size differs from that of the shard's records: %w", ErrInvalid)

// PayloadSizeError is an [ErrPayloadSize] with both sizes.
type PayloadSizeError struct {
	Namespace NamespaceID
	Shard     connector.Shard
	// Bytes is the size that was asked for, Stored that of the records there are.
	Bytes, Stored int
}

// Error implements error.
func (e *PayloadSizeError) Error() string {
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

// CheckPayload reports whether payloads of that size can be saved into a namespace's shard,
// for an engine that registers: a [PayloadSizeError] if the shard has records of another
// size. If those are gone by now, the size is free again. It may look at the whole index,
// and does not wait for the disk.
func (s *Store) CheckPayload(ns NamespaceID, shard connector.Shard, bytes int) error {
	err := s.namespaces.sizeError(RecordID{Namespace: ns, Shard: shard}, bytes)
	if err == nil || !s.freeSize(groupID{ns, shard}) {
		return err
	}
	return s.namespaces.sizeError(RecordID{Namespace: ns, Shard: shard}, bytes)
}

// sizeError is the error of a payload whose size is not the shard's, if that is fixed.
func (n *namespaces) sizeError(id RecordID, bytes int) error {
	n.mu.RLock()
	defer n.mu.RUnlock()
	e := n.at(id.Namespace)
	if e == nil {
		return fmt.Errorf("namespace %d: %w", id.Namespace, errNotOpen)
	}
	if stored := e.sizes[id.Shard]; stored != 0 && stored != bytes {
		return &PayloadSizeError{Namespace: id.Namespace, Shard: id.Shard, Bytes: bytes, Stored: stored}
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
	switch stored := e.sizes[id.Shard]; stored {
	case 0:
		e.sizes[id.Shard] = bytes
	case bytes:
	default:
		// The records it is of may all be gone: looked at soon, not now.
		n.wrong[groupID{id.Namespace, id.Shard}] = true
		n.requestTidy()
		return &PayloadSizeError{Namespace: id.Namespace, Shard: id.Shard, Bytes: bytes, Stored: stored}
	}
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
