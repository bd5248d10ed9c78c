package disk

import (
	"errors"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/index"
)

// OpenNamespace implements [store.Namespaces].
func (s *Store) OpenNamespace(m *connector.Manifest) (connector.NamespaceDigest, error) {
	return s.namespaces.Open(m)
}

// CloseNamespace implements [store.Namespaces]. A namespace that no engine has open and that has no
// records is forgotten.
func (s *Store) CloseNamespace(ns connector.NamespaceDigest) { s.namespaces.Leave(ns) }

// Namespaces lists the namespaces of the store.
func (s *Store) Namespaces() []store.NamespaceInfo { return s.namespaces.List() }

// Contents returns how much there is of each namespace. It looks at every record, and does not wait for the disk.
func (s *Store) Contents() []store.Contents { return s.namespaces.Contents(s.table.Census(nil)) }

// PayloadBytes implements [store.Namespaces].
func (s *Store) PayloadBytes(ns connector.NamespaceDigest, shard connector.Shard) int {
	return s.namespaces.PayloadBytes(ns, shard)
}

// HoldPayload implements [store.Namespaces]: of two engines that could not load each other's blocks
// the first is served. If the records of another size are gone by now, and none is looked for,
// their size is free again. It may look at the whole index, and does not wait for the disk.
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

// ReleasePayload implements [store.Namespaces].
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
