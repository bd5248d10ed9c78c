package catalog

import "github.com/kvconn/kvconn/store/object/format"

// State is what is known of an object.
type State uint8

// The states.
const (
	// StatePresent objects are offered, if their records are in memory.
	StatePresent State = iota
	// StateLost objects were missing or damaged when this node read them: nothing in them is found any more.
	StateLost
	// StateLeaving objects were removed: they are not offered, and still read.
	StateLeaving
)

// Info describes an object.
type Info struct {
	ID    format.ObjectID
	State State
	Cause format.Cause // of objects that are lost or leaving
	// Records and Bytes are 0 while only the removal of an object is known.
	Records int
	Bytes   int64          // of the whole object
	Used    format.Seconds // when it was last used; of those that are leaving when they were removed
	// Offered is set if its records are found.
	Offered bool
}

func (o *row) info() Info {
	i := Info{
		ID: o.id, Cause: format.Cause(o.flags & causeMask), Records: int(o.records), Bytes: int64(o.bytes),
		Used: format.Seconds(o.lastUse()), Offered: o.offered(),
	}
	switch {
	case o.is(isLeaving):
		i.State = StateLeaving
	case o.is(isLost):
		i.State = StateLost
	}
	return i
}

// Stats are the figures of a catalog.
type Stats struct {
	// Objects are in the bucket, and not removed; Bytes is their size.
	Objects, Bytes int64
	// LeavingObjects are removed, and their bytes are still there.
	LeavingObjects, LeavingBytes int64
	// Records are on offer. One that two objects have counts twice.
	Records int64
	// LeftOut records are in the bucket and not in memory, by Options.IndexBytes; Unreadable ones need what
	// this program does not have.
	LeftOut, Unreadable int64
	// IndexBytes is the memory in use, EventBytes that of events beside it.
	IndexBytes, EventBytes int64
	// LostObjects counts objects that this node found missing or damaged, since the start.
	LostObjects uint64
}

// Stats returns the figures of now.
func (c *Catalog) Stats() Stats {
	c.mu.RLock()
	defer c.mu.RUnlock()
	s := c.sums
	for i := range c.slabs {
		if c.slabs[i].memory != nil {
			s.IndexBytes += slabBytes
		}
	}
	s.IndexBytes += c.hash.bytes()
	s.EventBytes = c.log.Bytes()
	return s
}
