package published

import (
	"math"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/zeebo/xxh3"

	"github.com/kvconn/kvconn/router/policy"
)

// Placement is how a new conversation gets its rank.
type Placement string

const (
	// PlaceRoundRobin takes the next rank in turn.
	PlaceRoundRobin Placement = "round-robin"
	// PlaceLeastQueued takes the rank with the fewest requests, the first of them.
	PlaceLeastQueued Placement = "least-queued"
	// PlaceLeastTokens takes the rank with the fewest prompt tokens, then the fewest requests, then
	// the next one in turn.
	PlaceLeastTokens Placement = "least-tokens"
)

// ConversationOptions configure the policy conversation.
type ConversationOptions struct {
	// Placement is for new conversations and for requests that overflow. Default [PlaceRoundRobin].
	Placement Placement
	// MaxConversations bounds the conversations remembered; the least recently used one is
	// forgotten. Default 65,536.
	MaxConversations int
	// Multiplier is how many times the fair share of requests a rank may have to be given another
	// new conversation, as long as some rank has less. Default 2, at least 1.
	Multiplier float64
	// Fallback decides the requests that belong to no conversation. Nil places each like a new one.
	Fallback policy.Policy
}

// Conversation keeps the requests of a conversation on one rank, whatever became of their blocks:
// TensorRT-LLM's conversation affinity. While the rank is full or not ready requests go elsewhere; a rank that
// is gone loses each of its conversations with the next request. A pin that is not strict counts for a new
// conversation only, a strict one for its own request, too.
type Conversation struct {
	batch
	opts   ConversationOptions
	homes  homes
	cursor int
	limit  int // requests of a rank that gets new conversations
}

var _ policy.Adopter = (*Conversation)(nil)

// NewConversation returns the policy conversation.
func NewConversation(o ConversationOptions) *Conversation {
	if o.MaxConversations <= 0 {
		o.MaxConversations = maxHomes
	}
	o.Multiplier = max(orTwo(o.Multiplier), 1)
	p := &Conversation{opts: o, homes: newHomes(o.MaxConversations)}
	p.decide = p.placeBatch
	return p
}

// Name returns "conversation".
func (*Conversation) Name() string { return "conversation" }

// Adopt makes a rank the home of a conversation.
func (p *Conversation) Adopt(conversation string, rank int32) {
	if conversation != "" {
		p.homes.set(conversation, rank)
	}
}

func (p *Conversation) placeBatch() {
	p.limit = p.fairShare(p.opts.Multiplier, len(p.order))
	p.strictFirst()
	p.each(func(r *policy.Request, d *policy.Decision) bool {
		if p.opts.Fallback != nil && r.Conversation == "" {
			p.opts.Fallback.Place(p.s, r, d)
			return true
		}
		return p.pinned(r, d)
	})
	p.each(func(r *policy.Request, d *policy.Decision) bool {
		p.choose(r, d)
		return true
	})
}

// home returns the place of the rank of a conversation, or -1 if it has none or that is gone.
func (p *Conversation) home(conversation string) int {
	if id, ok := p.homes.get(conversation); ok {
		return p.s.Index(id)
	}
	return -1
}

// pinned decides a request by its pin if that is strict or its conversation has no rank yet. It reports
// whether the request is decided.
func (p *Conversation) pinned(r *policy.Request, d *policy.Decision) bool {
	isNew := p.home(r.Conversation) < 0
	if !isNew && (p.exactly || !r.Strict) || !p.rules.PlacePinned(p.s, r, d) {
		return false
	}
	switch {
	case !d.Placed():
	case isNew:
		p.Adopt(r.Conversation, d.Rank)
	default:
		p.homes.touch(r.Conversation)
	}
	return true
}

// choose places a request on the rank of its conversation, or on a new one.
func (p *Conversation) choose(r *policy.Request, d *policy.Decision) {
	i := p.home(r.Conversation)
	why := policy.ReasonConversation
	switch {
	case i < 0:
		if i = p.fresh(r); i >= 0 {
			p.Adopt(r.Conversation, p.s.Ranks[i].ID)
		}
		why = policy.ReasonNewConversation
		if r.Conversation == "" {
			why = policy.ReasonScore
		}
	case p.s.Holds(i, r.Tokens):
		p.homes.touch(r.Conversation)
	default:
		if !p.exactly {
			p.homes.touch(r.Conversation)
		}
		i = p.fresh(r)
		why = policy.ReasonOverflow
	}
	if i < 0 {
		p.rules.Refuse(p.s, r, d, policy.ReasonAllFull)
		return
	}
	p.place(r, d, i, why)
}

// fresh returns the place of the rank for a new conversation: one below the fair share if there is one,
// else any that is not full, else -1.
func (p *Conversation) fresh(r *policy.Request) int {
	i := p.freshBelow(p.limit, r)
	if i < 0 {
		i = p.freshBelow(math.MaxInt, r)
	}
	if i >= 0 && p.opts.Placement != PlaceLeastQueued {
		p.cursor = (i + 1) % len(p.s.Ranks)
	}
	return i
}

func (p *Conversation) freshBelow(limit int, r *policy.Request) int {
	switch p.opts.Placement {
	case PlaceLeastQueued:
		return p.least(0, limit, r, false)
	case PlaceLeastTokens:
		return p.least(p.cursor, limit, r, true)
	}
	return p.s.InTurn(p.cursor, limit, r.Tokens)
}

// homes maps conversations to the ids of their ranks, up to a bound: the least recently used is forgotten. It
// keeps hashes of their names, which clients choose and may be long; two of one hash would share a rank.
type homes struct {
	lru *simplelru.LRU[xxh3.Uint128, int32]
}

// maxHomes is how many names are remembered.
const maxHomes = 65536

func newHomes(most int) homes {
	lru, err := simplelru.NewLRU[xxh3.Uint128, int32](most, nil)
	if err != nil { // most is not positive: the options have a default
		panic(err)
	}
	return homes{lru}
}

// get returns the rank of a conversation.
func (h homes) get(name string) (rank int32, ok bool) { return h.lru.Peek(xxh3.HashString128(name)) }

// touch makes a known conversation the most recently used one.
func (h homes) touch(name string) { h.lru.Get(xxh3.HashString128(name)) }

// set gives a conversation a rank and makes it the most recently used one.
func (h homes) set(name string, rank int32) { h.lru.Add(xxh3.HashString128(name), rank) }
