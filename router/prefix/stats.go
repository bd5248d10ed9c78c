package prefix

// Stats are an index's figures. From Stored to EvictedBlocks they count since it was made.
type Stats struct {
	// Seq counts the calls that changed the index.
	Seq uint64
	// Blocks are the distinct blocks, Runs the runs they are in, Holders the registered holders.
	Blocks, Runs, Holders int
	// Held are the pairs of holder and block.
	Held int64
	// Bytes is an estimate of the memory that the index takes.
	Bytes int64
	// Stored and Removed are the blocks reported, by pairs of holder and block.
	Stored, Removed uint64
	// UnknownRemovals are removed blocks that the holder didn't have, UnknownParents the
	// stores after an unknown block, NameConflicts the stores in which an engine's name
	// for a block was not the known one.
	UnknownRemovals, UnknownParents, NameConflicts uint64
	// Splits counts how often a holder got a hole in a run, Merges how often all its holes were filled.
	Splits, Merges uint64
	// Evictions are the tails dropped because of a bound, EvictedBlocks their blocks.
	Evictions, EvictedBlocks uint64
	// Predicted are the predictions that have not expired, counted by runs.
	Predicted int
}

// Stats returns the index's figures.
func (x *Index) Stats() Stats {
	x.mu.Lock()
	defer x.mu.Unlock()
	s := x.stats
	s.Predicted = len(x.expiry)
	for _, ho := range x.holders {
		if ho != nil {
			s.Held += ho.blocks
		}
	}
	return s
}

// HolderStats are the figures of one holder.
type HolderStats struct {
	Tier Tier
	// Blocks is how many blocks it has.
	Blocks int64
	// OwnNames says that its engine's names differ from those of its domain.
	OwnNames bool
}

// Holder returns a holder's figures; ok is false if it is not registered.
func (x *Index) Holder(h Holder) (s HolderStats, ok bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	ho := x.holder(h)
	if ho == nil {
		return s, false
	}
	return HolderStats{Tier: ho.tier, Blocks: ho.blocks, OwnNames: ho.own != nil}, true
}
