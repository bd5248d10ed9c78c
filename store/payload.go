package store

import "github.com/kvconn/kvconn/connector"

// PayloadBytes is the size of the payloads of a namespace's shard, all of which have the
// same; 0 until the first was written, and for a namespace that is not open.
func (s *Store) PayloadBytes(ns NamespaceID, shard connector.Shard) int {
	n := &s.namespaces
	n.mu.RLock()
	defer n.mu.RUnlock()
	if int(ns) >= len(n.byID) {
		return 0
	}
	return n.byID[ns].sizes[shard]
}
