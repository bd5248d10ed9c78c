package collect

// Stats are the running totals of a [Collector], in objects if nothing else is said. The tags are those of
// package counters.
type Stats struct {
	// RemovedCap and RemovedAge are offered no more, by cause.
	RemovedCap uint64 `json:"removed_cap" metric:"removed_objects_total" label:"cause=cap" help:"Objects that this node took out of the offer as the steward."`
	RemovedAge uint64 `json:"removed_age" metric:"removed_objects_total" label:"cause=age"`
	// Deleted objects are gone, Orphans were in no list.
	Deleted uint64 `json:"deleted_objects" metric:"deleted_objects_total" help:"Objects whose bytes this node deleted as the steward."`
	Orphans uint64 `json:"orphans" metric:"orphans_total" help:"Objects in no list that this node deleted as the steward."`
	// Foreign names lie where data objects do, and are left there; at the last look.
	Foreign uint64 `json:"foreign_names"`
}

// Stats returns the totals.
func (c *Collector) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stats
}
