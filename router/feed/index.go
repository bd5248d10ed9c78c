package feed

import (
	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/router/prefix"
)

// Holder is a rank's GPU, a node's disk or a bucket.
type Holder = prefix.Holder

// Index is where feeds write to. Several feeds may use it at one time.
type Index interface {
	// Stored says that h holds the blocks of these keys, which are consecutive and follow the block that
	// h knows as parent, or begin a prompt. ids are h's own names for them, by which they are removed. A
	// block must be removed as often as it was stored.
	Stored(h Holder, parent uint64, hasParent bool, ids []uint64, keys []connector.Key) error
	// ParentKey is the key of the block that h calls id, if h holds it.
	ParentKey(h Holder, id uint64) (connector.Key, bool)
	// Removed says that h has dropped one copy of each block, and returns how many of them were unknown.
	Removed(h Holder, ids []uint64) (unknown int)
	// Clear says that h holds nothing.
	Clear(h Holder)
	// Evicted reports whether the index has forgotten blocks of h by itself since the last Clear, to stay
	// within its memory.
	Evicted(h Holder) bool
}
