package load

import "time"

// Rank is the load of one data-parallel rank at one moment.
type Rank struct {
	// ActiveRequests counts the requests in flight, QueuedRequests those of them that wait or are in
	// prefill.
	ActiveRequests, QueuedRequests int
	// QueuedTokens is what is left to compute in front of a new request: the uncached prompt tokens
	// of requests that wait or are in prefill.
	QueuedTokens int64
	// QueuedDiskTokens and QueuedObjectTokens are what the same requests load from these tiers.
	QueuedDiskTokens, QueuedObjectTokens int64
	// FrontTokens, FrontDiskTokens and FrontObjectTokens are the parts of these that belong to the
	// oldest of the requests, FrontAge is how long it has been the oldest: an engine serves prompts
	// in order, so this much of it is done.
	FrontTokens, FrontDiskTokens, FrontObjectTokens int64
	FrontAge                                        time.Duration
	// PromptTokens counts the prompt tokens of all active requests, UncachedTokens those that were
	// not cached when the request was placed, OutputTokens what they have generated.
	PromptTokens, UncachedTokens, OutputTokens int64
	// DecodeBlocks is the number of token blocks that active requests hold; see
	// [Options.AssumeKVReuse].
	DecodeBlocks int64
	// RecentTokens is the sum of uncached tokens of requests placed lately, each halved every
	// [Options.RecentHalfLife].
	RecentTokens float64
}

// ActiveTokens is the number of tokens, prompts and output, of the active requests.
func (r *Rank) ActiveTokens() int64 { return r.PromptTokens + r.OutputTokens }

// Place adds a request of the given prompt tokens to r as [Tracker.Add] would, except for blocks that
// it shares: all its blocks are counted. It lets a policy count the placements of one batch.
func (r *Rank) Place(promptTokens, cachedTokens, diskTokens, objectTokens, blockSize int) {
	uncached := int64(max(promptTokens-cachedTokens, 0))
	if r.QueuedRequests == 0 {
		r.FrontTokens, r.FrontDiskTokens, r.FrontObjectTokens, r.FrontAge = uncached, int64(diskTokens), int64(objectTokens), 0
	}
	r.ActiveRequests++
	r.QueuedRequests++
	r.QueuedTokens += uncached
	r.QueuedDiskTokens += int64(diskTokens)
	r.QueuedObjectTokens += int64(objectTokens)
	r.PromptTokens += int64(promptTokens)
	r.UncachedTokens += uncached
	r.DecodeBlocks += int64(blocksOf(promptTokens, blockSize))
	r.RecentTokens += float64(uncached)
}

// Capacity bounds what a rank takes. Zero means unbounded.
type Capacity struct {
	// MaxActive is the largest number of active requests.
	MaxActive int
	// MaxTokens is the largest number of tokens of active requests, prompts and output.
	MaxTokens int64
}

// Holds reports whether a rank of this capacity and load r takes one more request of the given prompt.
func (c Capacity) Holds(r *Rank, promptTokens int) bool {
	return (c.MaxActive == 0 || r.ActiveRequests < c.MaxActive) &&
		(c.MaxTokens == 0 || r.ActiveTokens()+int64(promptTokens) <= c.MaxTokens)
}

// blocksOf returns the number of blocks that tokens fill, the last one perhaps in part.
func blocksOf(tokens, blockSize int) int {
	return (tokens + blockSize - 1) / blockSize
}
