package policy

// Decision is where a request goes, or why nowhere.
type Decision struct {
	// Rank is the id of the chosen rank and Index its place in [State.Ranks], both -1 for none.
	Rank  int32
	Index int
	// Reason is why that rank, or why none.
	Reason Reason
	// UseTokens is how many tokens of the prompt are expected not to be computed there, LoadDisk and
	// LoadObject those of them to be loaded from these tiers.
	UseTokens, LoadDisk, LoadObject int32
	// Scores has an entry for each rank of the state, in order, if the request asked for it, was
	// valid and there was a rank that is ready; else it is empty. Totals are 0 where nothing was
	// compared, such as for a pin.
	Scores []Score
}

// Placed reports whether there is a rank.
func (d *Decision) Placed() bool { return d.Index >= 0 }

// Score is what a policy made of one rank. Lower totals are better for every policy but
// serve-kv-aware. The parts that a policy does not use are zero.
type Score struct {
	// Rank is the id of the rank.
	Rank int32
	// Eligible is false if the rank could not be chosen; then Total is not set.
	Eligible bool
	// Total is what was compared: seconds for cost, tokens for load and kv-aware, blocks for
	// serve-kv-aware.
	Total float64
	// MatchTokens is the part of the prompt that counted as already there, or worth loading.
	MatchTokens int32
	// LoadTokens is the token load of the rank as the policy saw it, ActiveRequests the requests
	// there, both with the placements of this batch.
	LoadTokens     float64
	ActiveRequests int
	// QueueSeconds, LoadSeconds, PrefillSeconds and DecodeSeconds add up to the estimated time to
	// first token, with BalanceSeconds on top to Total. Only cost sets them.
	QueueSeconds, LoadSeconds, PrefillSeconds, DecodeSeconds, BalanceSeconds float64
}

// Reason is why a rank was chosen, or none.
type Reason uint8

const (
	// ReasonScore: the best score, or the least load.
	ReasonScore Reason = iota
	// ReasonRoundRobin: the next one in turn.
	ReasonRoundRobin
	// ReasonPin: the client asked for it.
	ReasonPin
	// ReasonConversation: the conversation lives there.
	ReasonConversation
	// ReasonNewConversation: the conversation is new, or its rank is gone, and lives there now.
	ReasonNewConversation
	// ReasonOverflow: the conversation's rank is full or not ready; it stays its rank.
	ReasonOverflow
	// ReasonWarmup: the rank has not had a request yet.
	ReasonWarmup
	// ReasonContent: requests of equal content were sent there.
	ReasonContent

	// ReasonNoRanks: there is no rank that is ready.
	ReasonNoRanks
	// ReasonAllFull: all ranks that are ready are full.
	ReasonAllFull
	// ReasonFairShare: there is room, but only beyond the fair share of this batch; the request is
	// to be routed again with the next. Only with the option AsPublished.
	ReasonFairShare
	// ReasonPinUnknown: the strict pin names a rank that there is not.
	ReasonPinUnknown
	// ReasonPinNotReady: the strict pin names a rank that is not ready.
	ReasonPinNotReady
	// ReasonPinFull: the strict pin names a rank that is full.
	ReasonPinFull
	// ReasonInvalid: the request's numbers are out of range.
	ReasonInvalid
)

// Placed reports whether the reason comes with a rank.
func (r Reason) Placed() bool { return r < ReasonNoRanks }

// Retry reports whether the same request may be placed later.
func (r Reason) Retry() bool {
	return r == ReasonNoRanks || r == ReasonAllFull || r == ReasonFairShare || r == ReasonPinNotReady || r == ReasonPinFull
}

// String returns a short text for people and metrics.
func (r Reason) String() string {
	switch r {
	case ReasonScore:
		return "score"
	case ReasonRoundRobin:
		return "round_robin"
	case ReasonPin:
		return "pin"
	case ReasonConversation:
		return "conversation"
	case ReasonNewConversation:
		return "new_conversation"
	case ReasonOverflow:
		return "overflow"
	case ReasonWarmup:
		return "warmup"
	case ReasonContent:
		return "content"
	case ReasonNoRanks:
		return "no_ranks"
	case ReasonAllFull:
		return "all_full"
	case ReasonFairShare:
		return "fair_share"
	case ReasonPinUnknown:
		return "pin_unknown"
	case ReasonPinNotReady:
		return "pin_not_ready"
	case ReasonPinFull:
		return "pin_full"
	case ReasonInvalid:
		return "invalid"
	default:
		return "unknown"
	}
}
