// Package residents lists the records of a snapshot of the journal for subscribers.
package residents

import (
	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/journal"
	"github.com/kvconn/kvconn/store/record"
)

// Snapshot has the records of a snapshot of the journal.
type Snapshot struct {
	*journal.Snapshot
	// Digest is the digest of a namespace's number, zero if it is not known.
	Digest func(namespace uint16) connector.NamespaceDigest
	Opener *record.Opener
}

// Records calls f for each record that can be read.
func (s Snapshot) Records(f func(store.Resident) error) error {
	return s.Snapshot.Records(func(r *journal.Record) error {
		ns := s.Digest(r.Namespace)
		if s.Opener.AcceptKey(r.Algorithm, r.KeyID) != nil || ns == (connector.NamespaceDigest{}) {
			return nil
		}
		return f(store.Resident{ID: store.RecordID{Namespace: ns, Shard: r.Shard, Key: r.Key}, Parent: r.Parent})
	})
}
