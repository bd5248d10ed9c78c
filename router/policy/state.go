package policy

import (
	"slices"

	"github.com/kvconn/kvconn/router/inflight"
)

// State is what a policy decides by. Policies do not modify it.
type State struct {
	// Ranks are all ranks, with distinct ids, in an order that is the same for all routers.
	Ranks []Rank
	// BlockSize is the number of tokens in a block.
	BlockSize int
}

// Rank is a policy's view of one data-parallel rank.
type Rank struct {
	// ID is the caller's name of the rank, not negative.
	ID int32
	// Ready is false for a rank that gets no requests: starting, draining or silent.
	Ready bool
	// Capacity bounds what the rank takes.
	Capacity Capacity
	// Node is the number of the rank's node, from 0 and below the number of ranks: ranks of equal numbers share its disk. A rank
	// with any other number has a disk of its own. Only the policy cost uses it.
	Node int32
	// Load is what is in flight there.
	Load inflight.Rank
	// Speeds were measured there; only the policy cost uses them.
	Speeds Speeds
}

// Capacity bounds what a rank takes. Zero means unbounded.
type Capacity struct {
	// MaxActive is the largest number of active requests.
	MaxActive int
	// MaxTokens is the largest number of tokens of active requests, prompts and output.
	MaxTokens int64
}

// Holds reports whether a rank of this capacity and load l takes one more request of the given prompt.
func (c Capacity) Holds(l *inflight.Rank, promptTokens int) bool {
	return (c.MaxActive == 0 || l.ActiveRequests < c.MaxActive) &&
		(c.MaxTokens == 0 || l.ActiveTokens()+int64(promptTokens) <= c.MaxTokens)
}

// Speeds of one rank, with the JSON names of the HTTP interface.
type Speeds struct {
	// PrefillTokens is the number of prompt tokens computed in a second. 0 means not measured yet:
	// the mean of the other ranks stands in for it, or a default if none is known: see [State.PrefillSpeed].
	PrefillTokens float64 `json:"prefill_tokens_per_s,omitempty"`
	// DiskBytes and ObjectBytes are the bytes loaded from the tier in a second, up to the GPU. 0
	// means that this was not measured or that there is no such tier: nothing is loaded from there.
	DiskBytes   float64 `json:"disk_bytes_per_s,omitempty"`
	ObjectBytes float64 `json:"object_bytes_per_s,omitempty"`
	// BytesPerToken is the size of the KV of one token, over all shards that the rank loads.
	BytesPerToken float64 `json:"bytes_per_token,omitempty"`
	// DiskDelay and ObjectDelay are seconds before the first byte, the tier's own queue included. They are finite and
	// not negative.
	DiskDelay   float64 `json:"-"`
	ObjectDelay float64 `json:"-"`
}

// defaultPrefillTokens stands in for a prefill speed, in tokens a second, while none is measured. With
// equal ranks its value only weighs waiting against loading.
const defaultPrefillTokens = 10000

// PrefillSpeed returns the mean of the ranks' measured prefill speeds, in tokens a second, or a default.
func (s *State) PrefillSpeed() float64 {
	sum, measured := 0.0, 0
	for i := range s.Ranks {
		if v := s.Ranks[i].Speeds.PrefillTokens; positive(v) {
			sum += v
			measured++
		}
	}
	if measured == 0 {
		return defaultPrefillTokens
	}
	return sum / float64(measured)
}

// Match is how many tokens of a prompt a rank has, by tier, with the JSON names of the HTTP interface.
type Match struct {
	// GPU is the prefix in the rank's GPU.
	GPU int32 `json:"gpu"`
	// Disk is what follows it on disk, Object what follows that in the object store, each without a
	// gap.
	Disk   int32 `json:"disk"`
	Object int32 `json:"object"`
	// Usable is the longest prefix whose every block is on some tier; a block in the GPU counts even if
	// one before it is on disk alone. At least GPU + Disk + Object.
	Usable int32 `json:"usable"`
	// LoadDisk and LoadObject are the tokens of Usable that have to be loaded from these tiers.
	LoadDisk   int32 `json:"load_disk"`
	LoadObject int32 `json:"load_object"`
}

// NoPin as the pin of a [Request] leaves the choice to the policy.
const NoPin = -1

// Request is a request to be placed.
type Request struct {
	// ID names the request; ties may be broken by it.
	ID uint64
	// Tokens is the length of the prompt.
	Tokens int
	// Head holds the first tokens of the prompt, 64 of them or all, for policies that place requests of
	// a batch with equal heads one after the other. May be nil.
	Head []uint32
	// Conversation is the id that the turns of a conversation have in common, "" if there is none.
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

// match returns the match on the i-th rank.
func (r *Request) match(i int) Match {
	if i < len(r.Match) {
		return r.Match[i]
	}
	return Match{}
}

// Policy places requests on ranks.
type Policy interface {
	// Name is the policy's name in configuration.
	Name() string
	// Place decides one request and sets d. Memory of d.Scores is reused.
	Place(s *State, r *Request, d *Decision)
}

// Batcher is a policy that places several requests at once, in an order of its own, each counting for those
// it places after it.
type Batcher interface {
	Policy
	// PlaceAll decides reqs and sets out[i] for reqs[i]. Memory of out[i].Scores is reused.
	PlaceAll(s *State, reqs []*Request, out []*Decision)
}

// Holds reports whether the i-th rank is ready and takes one more request of the given prompt.
func (s *State) Holds(i, promptTokens int) bool {
	r := &s.Ranks[i]
	return r.Ready && r.Capacity.Holds(&r.Load, promptTokens)
}

// Index returns the place of the rank of the given id, or -1.
func (s *State) Index(id int32) int {
	if id < 0 {
		return -1
	}
	if int(id) < len(s.Ranks) && s.Ranks[id].ID == id {
		return int(id)
	}
	return slices.IndexFunc(s.Ranks, func(r Rank) bool { return r.ID == id })
}

// InTurn returns the first place from cursor on whose rank has fewer requests than limit and takes one of the
// given prompt, or -1.
func (s *State) InTurn(cursor, limit, promptTokens int) int {
	n := len(s.Ranks)
	for k := range n {
		if i := (cursor + k) % n; s.Ranks[i].Load.ActiveRequests < limit && s.Holds(i, promptTokens) {
			return i
		}
	}
	return -1
}
