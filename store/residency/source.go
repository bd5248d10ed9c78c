package residency

import (
	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk"
)

// Source is a store whose residency is told; see [disk.Store].
type Source interface {
	store.Events
	// Namespaces describes the namespaces that records belong to.
	Namespaces() []disk.NamespaceInfo
}

// Manifest is the canonical JSON of a namespace, empty if the store has lost it. It is unknown if the source
// does not list the namespace.
func Manifest(s Source, ns connector.NamespaceDigest) (manifest []byte, known bool) {
	for _, n := range s.Namespaces() {
		if n.Digest == ns {
			return n.Manifest, true
		}
	}
	return nil, false
}
