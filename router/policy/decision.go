package policy

import "encoding/json"

// Decision is where a request goes, or why nowhere, with the JSON names of the HTTP interface.
type Decision struct {
	// Rank is the id of the chosen rank and Index its place in [State.Ranks], both -1 for none.
	Rank  int32 `json:"rank"`
	Index int   `json:"-"`
	// Reason is why that rank, or why none.
	Reason Reason `json:"reason"`
	// UseTokens is how many tokens of the prompt are expected not to be computed there, LoadDisk and
	// LoadObject those of them to be loaded from these tiers.
	UseTokens  int32 `json:"cached_tokens"`
	LoadDisk   int32 `json:"load_disk_tokens"`
	LoadObject int32 `json:"load_object_tokens"`
	// Scores has an entry for each rank of the state, in order, if the request asked for it, was
	// valid and there was a rank that is ready; else it is empty. Totals are 0 where nothing was
	// compared, such as for a pin.
	Scores []Score `json:"scores,omitempty"`
}

// Placed reports whether there is a rank.
func (d *Decision) Placed() bool { return d.Index >= 0 }

// Score is what a policy made of one rank. Lower totals are better for every policy but serve-kv-aware.
// All numbers are finite. The parts that a policy does not use are zero.
type Score struct {
	// Rank is the id of the rank.
	Rank int32 `json:"rank"`
	// Eligible is false if the rank could not be chosen; then Total has no meaning and is null in JSON.
	Eligible bool `json:"eligible"`
	// Total is the number that was compared: seconds for cost, tokens for load and kv-aware, blocks for
	// serve-kv-aware.
	Total float64 `json:"total"`
	// MatchTokens is the part of the prompt that counted as already there, or worth loading.
	MatchTokens int32 `json:"match_tokens"`
	// LoadTokens is the token load of the rank as the policy saw it, ActiveRequests the requests
	// there, both with the requests of the same batch that were placed before.
	LoadTokens     float64 `json:"load_tokens"`
	ActiveRequests int     `json:"active_requests"`
	// QueueSeconds, LoadSeconds and PrefillSeconds add up to the estimated time to first token. On top,
	// to Total, come DelaySeconds, what other requests wait longer, MemorySeconds, what it takes to bring back the
	// blocks that this prompt pushes out of the GPU, and the charges DecodeSeconds and BalanceSeconds. Only cost sets them.
	QueueSeconds   float64 `json:"queue_s"`
	LoadSeconds    float64 `json:"load_s"`
	PrefillSeconds float64 `json:"prefill_s"`
	DelaySeconds   float64 `json:"delay_s"`
	MemorySeconds  float64 `json:"memory_s"`
	DecodeSeconds  float64 `json:"decode_s"`
	BalanceSeconds float64 `json:"balance_s"`
	// Prefix is what the rank has of the prompt.
	Prefix Match `json:"prefix"`
}

// MarshalJSON writes the total of a rank that could not be chosen as null.
func (s Score) MarshalJSON() ([]byte, error) {
	type fields Score
	v := struct {
		fields
		Total *float64 `json:"total"`
	}{fields: fields(s)}
	if s.Eligible {
		v.Total = &s.Total
	}
	return json.Marshal(v)
}

// Reason is why a rank was chosen, or none: a short text for people and metrics.
type Reason string

// Reasons of a decision for a rank.
const (
	// ReasonScore: the best score, or the least load.
	ReasonScore Reason = "score"
	// ReasonRoundRobin: the next one in turn.
	ReasonRoundRobin Reason = "round_robin"
	// ReasonPin: the client asked for it.
	ReasonPin Reason = "pin"
	// ReasonConversation: the conversation lives there.
	ReasonConversation Reason = "conversation"
	// ReasonNewConversation: the conversation is new, or its rank is gone, and lives there now.
	ReasonNewConversation Reason = "new_conversation"
	// ReasonOverflow: the conversation's rank is full or not ready, but remains its rank.
	ReasonOverflow Reason = "overflow"
	// ReasonWarmup: the rank has not had a request yet.
	ReasonWarmup Reason = "warmup"
	// ReasonContent: requests of equal content were sent there.
	ReasonContent Reason = "content"
)

// Reasons of a decision for no rank.
const (
	// ReasonNoRanks: no rank is ready.
	ReasonNoRanks Reason = "no_ranks"
	// ReasonAllFull: all ranks that are ready are full.
	ReasonAllFull Reason = "all_full"
	// ReasonFairShare: there is room, but only beyond the fair share of this batch; the request is
	// to be routed again with the next batch. Only policies that answer exactly as published give it.
	ReasonFairShare Reason = "fair_share"
	// ReasonPinUnknown: the strict pin names an unknown rank.
	ReasonPinUnknown Reason = "pin_unknown"
	// ReasonPinNotReady: the strict pin names a rank that is not ready.
	ReasonPinNotReady Reason = "pin_not_ready"
	// ReasonPinFull: the strict pin names a rank that is full.
	ReasonPinFull Reason = "pin_full"
	// ReasonInvalid: the request's numbers are out of range.
	ReasonInvalid Reason = "invalid"
)

// Reasons returns all reasons.
func Reasons() []Reason {
	return []Reason{
		ReasonScore, ReasonRoundRobin, ReasonPin, ReasonConversation, ReasonNewConversation, ReasonOverflow, ReasonWarmup, ReasonContent,
		ReasonNoRanks, ReasonAllFull, ReasonFairShare, ReasonPinUnknown, ReasonPinNotReady, ReasonPinFull, ReasonInvalid,
	}
}

// Retry reports whether the same request may be placed later.
func (r Reason) Retry() bool {
	switch r {
	case ReasonNoRanks, ReasonAllFull, ReasonFairShare, ReasonPinNotReady, ReasonPinFull:
		return true
	}
	return false
}
