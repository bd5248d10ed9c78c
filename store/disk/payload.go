package disk

import (
	"errors"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/index"
	"github.com/kvconn/kvconn/store/disk/namespace"
)

// NamespaceInfo describes a namespace of a store.
type NamespaceInfo = namespace.Info

// OpenNamespace makes the namespace that m describes known, and returns its digest. It does
// not wait for the disk. Every call is to be followed by one of [Store.CloseNamespace].
func (s *Store) OpenNamespace(m *connector.Manifest) (connector.NamespaceDigest, error) {
	return s.namespaces.Open(m)
}

// CloseNamespace says that an engine which had opened the namespace has gone. A namespace
// that no engine has open and that has no records is forgotten.
func (s *Store) CloseNamespace(ns connector.NamespaceDigest) { s.namespaces.Leave(ns) }

// Namespaces lists the namespaces of the store.
func (s *Store) Namespaces() []NamespaceInfo { return s.namespaces.List() }

// PayloadBytes is the size of the payloads of a namespace's shard, all of which have the
// same; 0 while there is none, and for a namespace that is not open.
func (s *Store) PayloadBytes(ns connector.NamespaceDigest, shard connector.Shard) int {
	return s.namespaces.PayloadBytes(ns, shard)
}

// HoldPayload fixes the size in bytes of the payloads of a namespace's shard, for an engine that
// registers its memory, until [Store.ReleasePayload]. It fails with a [store.PayloadSizeError] if the
// shard has records of another size, or another engine holds another: of two that could not
// load each other's blocks the first is served. If the records are gone by now, and none is
// looked for, their size is free again. It may look at the whole index, and does not wait for
// the disk.
func (s *Store) HoldPayload(ns connector.NamespaceDigest, shard connector.Shard, bytes int) error {
	err := s.namespaces.HoldPayload(ns, shard, bytes)
	var size *store.PayloadSizeError
	if !errors.As(err, &size) || size.Held || !s.rebuild.FindsAll() {
		return err
	}
	number, known := s.namespaces.Number(ns)
	if !known || !s.freeSize(index.Group{Namespace: number, Shard: shard}) {
		return err
	}
	return s.namespaces.HoldPayload(ns, shard, bytes)
}

// ReleasePayload ends one [Store.HoldPayload]. The namespace is still open.
func (s *Store) ReleasePayload(ns connector.NamespaceDigest, shard connector.Shard) {
	s.namespaces.ReleasePayload(ns, shard)
}

// freeSize frees the payload size of a shard if no record of it is left. It reports whether
// it has.
func (s *Store) freeSize(g index.Group) bool {
	f := s.namespaces.Forgetting(g.Namespace)
	if f == nil {
		return false
	}
	f.Shard, f.Size = g.Shard, true
	if s.table.Census(func(o index.Group) bool { return o == g })[g] > 0 {
		return false
	}
	return s.forget(f)
}
