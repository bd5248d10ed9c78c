// Package catalog knows in memory what is in a bucket: which records are in which data objects, and
// what has become of these. Look-ups are answered from it with no request to the bucket.
package catalog

import (
	"context"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/object/format"
)

// Catalog is what is known of a bucket. It may be used by any number of goroutines. Nothing in it waits for
// I/O, and no lock is held for longer than a thousand keys or entries take.
type Catalog struct{}

// Place is where a record lies in the bucket.
type Place struct {
	Object  format.ObjectID
	Ordinal uint16 // of the record in its object
	// From and Bytes are the slot of the record: header, stored bytes, zeros. It is never longer than a slot
	// of the payload's size.
	From, Bytes int64
	Needs       uint16
	Codec       uint8
}

// State is what is known of an object.
type State uint8

// The states.
const (
	// Present objects are offered, if their records are in memory.
	Present State = iota
	// Lost objects were missing or damaged when this node read them: they are not found any more.
	Lost
	// Leaving objects were removed: they are not offered, and still read.
	Leaving
)

// Info describes an object.
type Info struct {
	ID      format.ObjectID
	State   State
	Cause   format.Cause   // of Lost and Leaving
	Records int            // 0 if only its removal is known yet
	Bytes   int64          // of the whole object
	Used    format.Seconds // when it was last used; of Leaving ones when it was removed
	// Offered is set if its records are found.
	Offered bool
}

// Stats are the figures of a catalog.
type Stats struct {
	// Objects are in the bucket, and not removed; Bytes is their size.
	Objects, Bytes int64
	// LeavingObjects are removed, and their bytes are still there.
	LeavingObjects, LeavingBytes int64
	// Records are found by look-ups. A key may be there twice.
	Records int64
	// LeftOut records are in the bucket and not in memory: by IndexBytes, or as this program cannot read them.
	LeftOut, Unreadable int64
	// IndexBytes is the memory in use, EventBytes that of events beside it.
	IndexBytes, EventBytes int64
	// LostObjects counts objects that this node found missing or damaged, since the start.
	LostObjects uint64
}

// New returns an empty catalog. Close gives its memory back.
func New(o Options) (*Catalog, error) { panic("to be written") }

// Close gives the memory back. The catalog is empty from then on, and stays so.
func (c *Catalog) Close() { panic("to be written") }

// Apply takes in what a list says, and returns how many records are offered now that were not, and how many
// no longer. It does not matter in which sequence lists come, nor how often. Reports of readers that found an
// object lost are passed over: the steward looks for itself.
func (c *Catalog) Apply(l *format.List) (added, removed int) { panic("to be written") }

// Present sets at[i] where the record of keys[i] is offered, and leaves the rest of at as it is.
func (c *Catalog) Present(ns connector.NamespaceDigest, s connector.Shard, keys []connector.Key, at []bool) {
	panic("to be written")
}

// Prefix is how many leading blocks of chain are offered with every one of the shards. If pin is not nil,
// the objects that they are in count as used, and are kept readable until [Catalog.Unpin]; pin may have others
// already.
func (c *Catalog) Prefix(ns connector.NamespaceDigest, s []connector.Shard, chain []connector.Key, pin *Pins) int {
	panic("to be written")
}

// Used counts as a use of the objects that have the records. It is [store.UseListener].
func (c *Catalog) Used(ns connector.NamespaceDigest, s []connector.Shard, keys []connector.Key) {
	panic("to be written")
}

// Locate finds a record with payloads of a size, also in an object that is leaving.
func (c *Catalog) Locate(id store.RecordID, payloadBytes int) (Place, bool) { panic("to be written") }

// Lost says that an object is not there, or damaged. Nothing in it is found from now on. It reports false if
// the object is not offered anyway.
func (c *Catalog) Lost(o format.ObjectID, why format.Cause) bool { panic("to be written") }

// Uses returns and forgets which objects this node used since the last call.
func (c *Catalog) Uses() []format.Use { panic("to be written") }

// Coldest returns objects that are to be removed so that this many bytes go: those used least recently,
// of those used in the same hour those deeper in their chains first. What a lease of this node pins is left
// out.
func (c *Catalog) Coldest(bytes int64) []format.ObjectID { panic("to be written") }

// Unused returns the objects that were last used before a time.
func (c *Catalog) Unused(before format.Seconds) []format.ObjectID { panic("to be written") }

// Removed returns the objects that were removed before a time and are not known to be deleted. What a lease
// of this node pins is left out.
func (c *Catalog) Removed(before format.Seconds) []format.ObjectID { panic("to be written") }

// Object describes an object. It reports false if nothing is known of it, or its bytes are gone.
func (c *Catalog) Object(id format.ObjectID) (Info, bool) { panic("to be written") }

// Objects calls f for the objects that are known, until it returns false. Those that come meanwhile may be
// left out. f may use the catalog.
func (c *Catalog) Objects(f func(Info) bool) { panic("to be written") }

// PayloadBytes is the size of the payloads of a shard that look-ups find: the one that is held, else
// the one that came first; 0 if there is none.
func (c *Catalog) PayloadBytes(ns connector.NamespaceDigest, s connector.Shard) int {
	panic("to be written")
}

// HoldPayload has look-ups find records of a size until ReleasePayload. Of two sizes the first is served.
func (c *Catalog) HoldPayload(ns connector.NamespaceDigest, s connector.Shard, bytes int) {
	panic("to be written")
}

// ReleasePayload ends one HoldPayload.
func (c *Catalog) ReleasePayload(ns connector.NamespaceDigest, s connector.Shard, bytes int) {
	panic("to be written")
}

// Namespaces are those that a record is known of.
func (c *Catalog) Namespaces() []connector.NamespaceDigest { panic("to be written") }

// Epoch is a random number of this catalog.
func (c *Catalog) Epoch() uint64 { panic("to be written") }

// Subscribe takes a snapshot of the records that are offered, and follows what comes and goes after it.
func (c *Catalog) Subscribe(ctx context.Context) (store.Subscription, error) { panic("to be written") }

// SubscribeAfter follows the events after seq, without a snapshot.
func (c *Catalog) SubscribeAfter(epoch, seq uint64) (store.Subscription, error) {
	panic("to be written")
}

// Forget empties the catalog: the bucket is another one. Subscribers have to begin again.
func (c *Catalog) Forget() { panic("to be written") }

// Stats returns the figures of now.
func (c *Catalog) Stats() Stats { panic("to be written") }

// Pins are objects that a lease keeps readable. The zero value has none.
type Pins struct{}

// Until is when a lease on the pins has to end: half the grace after the first of them was pinned. It is zero
// if there are none.
func (p *Pins) Until() time.Time { panic("to be written") }

// Unpin lets go of all pins, which may be used again.
func (c *Catalog) Unpin(p *Pins) { panic("to be written") }
