package namespace

import (
	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/journal"
)

// Residents are the records of a snapshot of the journal, for subscribers.
type Residents struct {
	*journal.Snapshot
	registry *Registry
}

// Residents tells the records of a snapshot.
func (n *Registry) Residents(s *journal.Snapshot) Residents { return Residents{s, n} }

// Records calls f for each record that can be read.
func (s Residents) Records(f func(store.Resident) error) error {
	return s.Snapshot.Records(func(r *journal.Record) error {
		ns := s.registry.Digest(r.Namespace)
		if !r.Readable() || ns == (connector.NamespaceDigest{}) {
			return nil
		}
		return f(store.Resident{ID: store.RecordID{Namespace: ns, Shard: r.Shard, Key: r.Key}, Parent: r.Parent})
	})
}
