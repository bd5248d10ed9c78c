package host

// Stats is the state of an [Arena] at one moment. Counters run from its making. The tags are
// those of package counters.
type Stats struct {
	// Bytes is the size of the arena. AssignedBytes of it are divided into slots,
	// PopulatedBytes are faulted in ahead of use and HugeBytes of those in huge pages.
	Bytes          int64 `json:"bytes"`
	AssignedBytes  int64 `json:"assigned_bytes"`
	PopulatedBytes int64 `json:"populated_bytes" metric:"populated_bytes" help:"Bytes of the host tier whose memory pages were prepared in advance."`
	HugeBytes      int64 `json:"huge_bytes" metric:"huge_page_bytes" help:"Bytes of the host tier in huge pages."`
	// UsedBytes are pinned by loads and saves; CleanBytes hold records that can be found,
	// whether pinned or not.
	UsedBytes  int64 `json:"used_bytes" metric:"pinned_bytes" help:"Bytes of the host tier that running loads and saves hold."`
	CleanBytes int64 `json:"clean_bytes"`
	// Records can be found, or are being read so that they can.
	Records  int `json:"records"`
	Accounts int `json:"accounts"`
	// Active accounts share the arena.
	Active int `json:"active_accounts"`
	// Waiting loads wait for memory.
	Waiting int `json:"waiting" metric:"waiting_loads" help:"Loads that wait for memory of the host tier."`
	// PrefetchedBytes hold records that are or were read before their load, which has not come.
	PrefetchedBytes int64 `json:"prefetched_bytes" metric:"prefetched_bytes" help:"Bytes of the host tier with records that were read ahead for loads that have not started yet."`
	Counters
}

// Counters are the running totals of an [Arena].
type Counters struct {
	// Hits found a verified record, Misses found none. Joined waited for another's read
	// of the same record, Mismatched found a record of another prefix: also misses.
	Hits       uint64 `json:"hits"`
	Misses     uint64 `json:"misses" metric:"missed_records_total" help:"Records that loads looked for in the host tier and did not find."`
	Joined     uint64 `json:"joined"`
	Mismatched uint64 `json:"mismatched"`
	// Evictions made room for something else.
	Evictions uint64 `json:"evictions" metric:"evicted_records_total" help:"Records that were evicted from the host tier."`
	// RefusedSaves were given up for want of memory. RefusedLoads found none and did not wait, Waits did.
	RefusedSaves uint64 `json:"refused_saves" metric:"refused_saves_total" help:"Saves that were dropped because the host tier had no memory for them."`
	RefusedLoads uint64 `json:"refused_loads"`
	Waits        uint64 `json:"waits"`
	// Drains are the times memory had to be kept free for a waiter as it was released.
	Drains uint64 `json:"drains"`
	// Prefetched records were read before their load. PrefetchUsed found that load, PrefetchWasted
	// made room for something else before it came. PrefetchRefused requests had records read
	// in part or not at all, for want of room.
	Prefetched      uint64 `json:"prefetched" metric:"prefetched_records_total" help:"Records that were read into the host tier ahead of their load."`
	PrefetchUsed    uint64 `json:"prefetch_used" metric:"prefetch_used_records_total" help:"Records read ahead that a load used."`
	PrefetchWasted  uint64 `json:"prefetch_wasted" metric:"prefetch_wasted_records_total" help:"Records read ahead that were evicted before their load."`
	PrefetchRefused uint64 `json:"prefetch_refused" metric:"prefetch_refused_total" help:"Requests whose records could not all be read ahead, because the host tier had no room."`
	// Promoted records came from a slower tier than the first and were given to that,
	// PromotionsRefused found no room, or were refused or not written there.
	Promoted          uint64 `json:"promoted" metric:"promoted_records_total" help:"Records of slower tiers that were copied to the disk."`
	PromotionsRefused uint64 `json:"promotions_refused" metric:"promotions_refused_total" help:"Records of slower tiers that were not copied to the disk: it had no room, or the write failed."`
}

// Stats returns the state of the arena.
func (a *Arena) Stats() Stats {
	a.mu.Lock()
	defer a.mu.Unlock()
	unit := int64(a.opts.unitBytes)
	st := Stats{
		Bytes: int64(len(a.units)) * unit, AssignedBytes: int64(len(a.units)-a.freeUnits) * unit,
		UsedBytes: a.usedBytes, CleanBytes: a.cleanBytes,
		PrefetchedBytes: a.aheads.all,
		Records:         a.index.len, Accounts: a.accounts, Active: a.active, Waiting: a.waiting, Counters: a.count,
	}
	st.PopulatedBytes, st.HugeBytes = a.mem.Populated()
	return st
}
