package policy

import (
	"github.com/kvconn/kvconn/router/load"
)

// State is what a policy decides by. It isn't modified.
type State struct {
	// Ranks are all ranks, in an order that is the same for all routers, their ids distinct.
	Ranks []Rank
	// BlockSize is the number of tokens in a block; 0 means 16.
	BlockSize int
}

// Rank is a policy's view of one data-parallel rank.
type Rank struct {
	// ID is the caller's name of the rank, not negative.
	ID int32
	// Ready is false for a rank that gets no requests: starting, draining or silent.
	Ready bool
	// Capacity bounds what the rank takes.
	Capacity load.Capacity
	// Load is what is in flight there.
	Load load.Rank
	// Speeds are what was measured there; only the policy cost uses them.
	Speeds Speeds
}

// Speeds are the measured speeds of one rank.
type Speeds struct {
	// PrefillTokens is the number of prompt tokens computed in a second. 0 means not measured yet:
	// the mean of the other ranks stands in for it, or [DefaultPrefillTokens] if none is known.
	PrefillTokens float64
	// DiskBytes and ObjectBytes are the bytes loaded from the tier in a second, up to the GPU. 0
	// means not measured or not at hand: nothing is loaded from there.
	DiskBytes, ObjectBytes float64
	// BytesPerToken is the size of the KV of one token, over all shards the rank loads.
	BytesPerToken float64
	// DiskDelay and ObjectDelay are seconds before the first byte, the tier's own queue included.
	DiskDelay, ObjectDelay float64
	// QueueDelay is seconds of waiting beyond what the tracked requests explain.
	QueueDelay float64
}

// DefaultPrefillTokens stands in for a prefill speed, in tokens a second, while none is measured. With
// equal ranks its value only weighs waiting against loading.
const DefaultPrefillTokens = 10000

// Match is how many tokens of a prompt a rank has, by tier.
type Match struct {
	// GPU is the prefix in the rank's GPU.
	GPU int32
	// Disk is what follows it on disk, Object what follows that in the object store, each without a
	// gap.
	Disk, Object int32
	// Usable is the longest prefix whose every block is on some tier, so that a block in the GPU
	// counts behind one that is on disk alone. At least GPU + Disk + Object.
	Usable int32
	// LoadDisk and LoadObject are the tokens of Usable that have to be loaded from these tiers.
	LoadDisk, LoadObject int32
}

// NoPin as the pin of a [Request] leaves the choice to the policy.
const NoPin = -1

// Request is a request to be placed.
type Request struct {
	// ID names the request; ties may be broken by it.
	ID uint64
	// Tokens is the length of the prompt.
	Tokens int
	// Head holds the first tokens of the prompt, 64 of them or all; requests of a batch with equal
	// heads are placed after each other. May be nil.
	Head []uint32
	// Conversation is the id that the turns of a conversation have in common, "" if there is none:
	// see [AffinityKey].
	Conversation string
	// FirstTurn says that it is the first request of its conversation.
	FirstTurn bool
	// Content names the opening of the prompt (the first two messages) for the policy
	// serve-kv-aware, which keeps requests of equal content together; "" if there is none.
	Content string
	// Pin is the id of the rank the client asks for, or [NoPin]. The zero value asks for rank 0.
	Pin int32
	// Strict says that no other rank will do.
	Strict bool
	// Match is the match on each rank, in the order of [State.Ranks]. Nil means none.
	Match []Match
	// Explain asks for the scores of all ranks in [Decision.Scores].
	Explain bool
}

// AffinityKey returns the conversation id to route by: the parent's for a sub-agent, which shares the
// parent's prefix.
func AffinityKey(parent, conversation string) string {
	if parent != "" {
		return parent
	}
	return conversation
}

// match returns the match on the i-th rank.
func (r *Request) match(i int) Match {
	if i < len(r.Match) {
		return r.Match[i]
	}
	return Match{}
}

// urgency orders a batch: strict pins first.
func (r *Request) urgency() int {
	if r.Pin != NoPin && r.Strict {
		return 0
	}
	return 1
}

// Policy places requests on ranks.
type Policy interface {
	// Name is the policy's name in configuration.
	Name() string
	// Route decides reqs, in the order the policy sees fit, and sets out[i] for reqs[i]; out is at
	// least as long. Memory of out[i].Scores is reused.
	Route(s *State, reqs []Request, out []Decision)
}

func (s *State) blockSize() int {
	if s.BlockSize > 0 {
		return s.BlockSize
	}
	return 16
}
