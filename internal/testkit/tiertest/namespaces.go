package tiertest

import (
	"fmt"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
)

// namespace is what a [Memory] knows of one.
type namespace struct {
	open  int
	sizes map[connector.Shard]*size
}

// size is that of a shard's payloads, fixed while it has records or is held.
type size struct{ bytes, holds int }

// OpenNamespace implements [store.Namespaces], as do the methods up to ReleasePayload.
func (m *Memory) OpenNamespace(manifest *connector.Manifest) (connector.NamespaceDigest, error) {
	digest := manifest.Digest()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return digest, store.ErrClosed
	}
	ns := m.namespaces[digest]
	if ns == nil {
		ns = &namespace{sizes: make(map[connector.Shard]*size)}
		m.namespaces[digest] = ns
	}
	ns.open++
	return digest, nil
}

// Opened is how often a namespace is open.
func (m *Memory) Opened(digest connector.NamespaceDigest) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if ns := m.namespaces[digest]; ns != nil {
		return ns.open
	}
	return 0
}

// CloseNamespace counts down.
func (m *Memory) CloseNamespace(digest connector.NamespaceDigest) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if ns := m.namespaces[digest]; ns != nil {
		ns.open--
	}
}

// PayloadBytes is the size of a shard's payloads.
func (m *Memory) PayloadBytes(digest connector.NamespaceDigest, shard connector.Shard) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	ns := m.namespaces[digest]
	if ns == nil || ns.sizes[shard] == nil {
		return 0
	}
	return ns.sizes[shard].bytes
}

// HoldPayload fixes a size.
func (m *Memory) HoldPayload(digest connector.NamespaceDigest, shard connector.Shard, bytes int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	err := m.checkSize(digest, shard, bytes)
	if err == nil {
		m.namespaces[digest].sizes[shard].holds++
	}
	return err
}

// ReleasePayload ends a hold.
func (m *Memory) ReleasePayload(digest connector.NamespaceDigest, shard connector.Shard) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if ns := m.namespaces[digest]; ns != nil && ns.sizes[shard] != nil && ns.sizes[shard].holds > 0 {
		ns.sizes[shard].holds--
	}
}

// checkSize fixes the size of a shard's payloads, or compares it. m.mu is held.
func (m *Memory) checkSize(digest connector.NamespaceDigest, shard connector.Shard, bytes int) error {
	ns := m.namespaces[digest]
	if ns == nil {
		return fmt.Errorf("namespace %v is not open: %w", digest, store.ErrInvalid)
	}
	s := ns.sizes[shard]
	if s == nil || s.bytes != bytes && s.holds == 0 && !m.has(digest, shard) {
		ns.sizes[shard] = &size{bytes: bytes}
		return nil
	}
	if s.bytes != bytes {
		return &store.PayloadSizeError{Namespace: digest, Shard: shard, Bytes: bytes, Stored: s.bytes, Held: s.holds > 0}
	}
	return nil
}

// has reports whether a shard has records. m.mu is held.
func (m *Memory) has(digest connector.NamespaceDigest, shard connector.Shard) bool {
	for id := range m.records {
		if id.Namespace == digest && id.Shard == shard {
			return true
		}
	}
	return false
}

// lease pins records.
type lease struct {
	ids map[store.RecordID]bool
	end time.Time
}

// Lookup implements [store.Leases], as do Touch, Renew and Release.
func (m *Memory) Lookup(
	ns connector.NamespaceDigest, shards []connector.Shard, chain []connector.Key, ttl time.Duration,
) (blocks int, id store.LeaseID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := &lease{ids: make(map[store.RecordID]bool), end: time.Now().Add(ttl)}
	for !m.closed && len(shards) > 0 && blocks < len(chain) && m.pin(l, ns, shards, chain[blocks]) {
		blocks++
	}
	if blocks == 0 {
		return 0, 0
	}
	m.leaseID++
	m.leases[m.leaseID] = l
	return blocks, m.leaseID
}

// pin adds all shards of a block to a lease, if they are there.
func (m *Memory) pin(l *lease, ns connector.NamespaceDigest, shards []connector.Shard, key connector.Key) bool {
	for _, shard := range shards {
		if m.records[store.RecordID{Namespace: ns, Shard: shard, Key: key}] == nil {
			return false
		}
	}
	for _, shard := range shards {
		id := store.RecordID{Namespace: ns, Shard: shard, Key: key}
		l.ids[id] = true
		m.used.MoveToFront(m.records[id])
	}
	return true
}

// Touch counts as a use of records.
func (m *Memory) Touch(ns connector.NamespaceDigest, shard connector.Shard, keys []connector.Key) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, k := range keys {
		if e := m.records[store.RecordID{Namespace: ns, Shard: shard, Key: k}]; e != nil {
			m.used.MoveToFront(e)
		}
	}
}

// Renew gives a lease ttl from now.
func (m *Memory) Renew(id store.LeaseID, ttl time.Duration) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.expire()
	l := m.leases[id]
	if l != nil {
		l.end = time.Now().Add(ttl)
	}
	return l != nil
}

// Release ends a lease.
func (m *Memory) Release(id store.LeaseID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.leases, id)
}

// expire ends the leases that have run out. m.mu is held.
func (m *Memory) expire() {
	now := time.Now()
	for id, l := range m.leases {
		if now.After(l.end) {
			delete(m.leases, id)
		}
	}
}

// pinned reports whether a lease pins a record. m.mu is held.
func (m *Memory) pinned(id store.RecordID) bool {
	for _, l := range m.leases {
		if l.ids[id] {
			return true
		}
	}
	return false
}
