package namespace

import (
	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/journal"
	"github.com/kvconn/kvconn/store/record"
)

// Residents are the records of a snapshot of the journal, for subscribers.
type Residents struct {
	*journal.Snapshot
	registry *Registry
	opener   *record.Opener
}

// Residents tells the records of a snapshot, those that the opener accepts.
func (n *Registry) Residents(s *journal.Snapshot, o *record.Opener) Residents {
	return Residents{s, n, o}
}

// Records calls f for each record that is used.
func (s Residents) Records(f func(store.Resident) error) error {
	return s.Snapshot.Records(func(r *journal.Record) error {
		ns := s.registry.Digest(r.Namespace)
		if s.opener.AcceptKey(r.Algorithm, r.KeyID) != nil || ns == (connector.NamespaceDigest{}) {
			return nil
		}
		return f(store.Resident{ID: store.RecordID{Namespace: ns, Shard: r.Shard, Key: r.Key}, Parent: r.Parent})
	})
}
