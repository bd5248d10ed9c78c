package prefix

// Stats are an index's figures.
type Stats struct {
	// Blocks are the distinct blocks, Runs the runs they are in, Holders the registered holders.
	Blocks, Runs, Holders int
	// Held are the pairs of holder and block.
	Held int64
	// Bytes is an estimate of the memory that the index takes.
	Bytes int64
	// EvictedBlocks are the blocks dropped because of a bound, since the index was made.
	EvictedBlocks uint64
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
