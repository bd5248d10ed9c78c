package leader

// Stats counts a leader's work since its start.
type Stats struct {
	// Requests are followed now.
	Requests int `json:"requests"`
	// Matches counts match calls, MatchedRequests requests that were asked for at all.
	Matches         uint64 `json:"matches"`
	MatchedRequests uint64 `json:"matched_requests"`
	// QueriedTokens counts the tokens of requests at their first match, OfferedTokens
	// those offered then, LoadTokens those whose load was planned.
	QueriedTokens uint64 `json:"queried_tokens"`
	OfferedTokens uint64 `json:"offered_tokens"`
	LoadTokens    uint64 `json:"load_tokens"`
	// SaveBlocks counts blocks planned to be saved, FailedLoads requests whose load
	// failed on any rank.
	SaveBlocks  uint64 `json:"save_blocks"`
	FailedLoads uint64 `json:"failed_loads"`
	// LostLoads counts loads that were given up because the step's plan had no room left.
	LostLoads uint64 `json:"lost_loads"`
	// NotReady counts matches that were answered with nothing because a rank cannot
	// load; see [Leader.SetReady].
	NotReady uint64 `json:"not_ready"`
	// DecisionsFull counts requests whose hit was offered whole, DecisionsTrimmed those
	// where it was cut and DecisionsRefused those where nothing was offered, both because
	// loading would have taken longer than prefill.
	DecisionsFull    uint64 `json:"decisions_full"`
	DecisionsTrimmed uint64 `json:"decisions_trimmed"`
	DecisionsRefused uint64 `json:"decisions_refused"`
	// PrefillTokensPerS is the prefill speed that decisions are made with, 0 if nothing is
	// known of it. LoadBytesPerS, LoadLatencyS and QueuedBytes are what the newest one
	// took loads to cost.
	PrefillTokensPerS float64   `json:"prefill_tokens_per_s"`
	LoadBytesPerS     TierRates `json:"load_bytes_per_s"`
	LoadLatencyS      float64   `json:"load_latency_s"`
	QueuedBytes       int64     `json:"queued_bytes"`
	// TierRefused is set while offers are cut for the speed of the disk.
	TierRefused bool `json:"tier_refused"`
}

// TierRates is a speed in bytes a second for each tier; 0 means not measured.
type TierRates struct {
	Disk float64 `json:"disk"`
	Host float64 `json:"host"`
}

// Stats returns the counters.
func (l *Leader) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.stats
	s.Requests = len(l.requests.byHash)
	s.PrefillTokensPerS = l.price.tokensPerS()
	s.TierRefused = l.price.refusing
	return s
}
