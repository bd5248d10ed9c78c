// Package counted has the counters of a leader.
package counted

import "github.com/kvconn/kvconn/leader/sources"

// Stats counts a leader's work since its start. The tags are those of package counters.
type Stats struct {
	Requests int `json:"requests" metric:"requests" help:"Requests being followed."`
	// Matches counts match calls, MatchedRequests requests that were asked for at all.
	Matches         uint64 `json:"matches"`
	MatchedRequests uint64 `json:"matched_requests"`
	// Of a request's tokens at its first match the engine has EngineTokens itself; the rest is queried.
	EngineTokens  uint64 `json:"engine_tokens" metric:"prompt_tokens_total" label:"source=engine" help:"Prompt tokens by where they come from: the engine's own cache, a tier, or the engine's computation. They are counted at a request's first match, and add up to all prompt tokens."`
	QueriedTokens uint64 `json:"queried_tokens" metric:"queried_tokens_total" help:"Prompt tokens that the engine did not have itself, counted at the request's first match."`
	OfferedTokens uint64 `json:"offered_tokens" metric:"offered_tokens_total" help:"Prompt tokens offered from the tiers at the request's first match."`
	sources.Stats
	LoadTokens  uint64 `json:"load_tokens" metric:"load_tokens_total" help:"Tokens whose load was planned."`
	SaveBlocks  uint64 `json:"save_blocks" metric:"save_planned_blocks_total" help:"Blocks whose save was planned."`
	FailedLoads uint64 `json:"failed_loads" metric:"failed_requests_total" help:"Requests whose load failed on a rank: the engine computed the prompt instead."`
	// LostLoads counts loads that were given up because the step's plan had no room left.
	LostLoads uint64 `json:"lost_loads"`
	// See SetReady of a leader.
	NotReady uint64 `json:"not_ready" metric:"matches_not_ready_total" help:"Matches answered with no offer because a rank of the engine cannot load."`
	// Doubted counts matches answered with nothing after loads of ranks on other nodes had failed.
	Doubted          uint64 `json:"doubted" metric:"matches_doubted_total" help:"Matches answered with no offer because loads of ranks on other nodes failed several times in a row; loads are tried again after at most 30 s."`
	DecisionsFull    uint64 `json:"decisions_full" metric:"decisions_total" label:"decision=full" help:"Requests with a hit: offered in full, trimmed, or refused because loading would take longer than computing."`
	DecisionsTrimmed uint64 `json:"decisions_trimmed" metric:"decisions_total" label:"decision=trimmed"`
	DecisionsRefused uint64 `json:"decisions_refused" metric:"decisions_total" label:"decision=refused"`
	// PrefillTokensPerS is the prefill speed that decisions are made with, 0 if nothing is
	// known of it. LoadBytesPerS by level, the longest latency and all queued bytes are what the
	// newest decision was made with; 0 means not measured.
	PrefillTokensPerS float64            `json:"prefill_tokens_per_s" sum:"-"`
	LoadBytesPerS     map[string]float64 `json:"load_bytes_per_s,omitempty" sum:"-"`
	LoadLatencyS      float64            `json:"load_latency_s" sum:"-"`
	QueuedBytes       int64              `json:"queued_bytes" sum:"-"`
	// TierRefused is set while offers are cut for the speed of a tier.
	TierRefused bool `json:"tier_refused"`
}
