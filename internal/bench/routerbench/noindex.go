package routerbench

import (
	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/router/prefix"
)

// noIndex is an index that keeps nothing, to measure what comes before one.
type noIndex struct{}

// Stored takes everything.
func (*noIndex) Stored(prefix.Holder, uint64, bool, []uint64, []connector.Key) error { return nil }

// ParentKey finds everything.
func (*noIndex) ParentKey(prefix.Holder, uint64) (connector.Key, bool) { return connector.Key{}, true }

// Removed had everything.
func (*noIndex) Removed(prefix.Holder, []uint64) int { return 0 }

// Clear does nothing.
func (*noIndex) Clear(prefix.Holder) {}

// Evicted reports that nothing was forgotten.
func (*noIndex) Evicted(prefix.Holder) bool { return false }
