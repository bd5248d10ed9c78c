package catalog

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
