package policy

import "math"

// Placement is how a new conversation gets its rank.
type Placement uint8

const (
	// PlaceRoundRobin takes the next rank in turn.
	PlaceRoundRobin Placement = iota
	// PlaceLeastQueued takes the rank with the fewest requests, the first of them.
	PlaceLeastQueued
	// PlaceLeastTokens takes the rank with the fewest prompt tokens, then the fewest requests, then
	// the next one in turn.
	PlaceLeastTokens
)

// ConversationOptions configure the policy conversation.
type ConversationOptions struct {
	// Placement is for new conversations and for what overflows. Default [PlaceRoundRobin].
	Placement Placement
	// MaxConversations bounds the conversations remembered; the least recently used one is
	// forgotten. Default 65,536.
	MaxConversations int
	// Multiplier is how many times the fair share of requests a rank may have to be given another
	// new conversation, as long as there is a rank with less. Default 2, at least 1.
	Multiplier float64
	// Fallback decides the requests that belong to no conversation. Nil places each like a new one.
	Fallback Policy
	// AsPublished answers as TensorRT-LLM's router does where that is worse: a request whose strict
	// pin is full is placed elsewhere, for its own admission comes first, one whose conversation has a
	// rank goes there whatever its pin, and a conversation that overflows does not count as used.
	// Default false: the first is refused, the second goes where it is pinned, the third counts.
	AsPublished bool
}

// EnsureDefaults fills in what is not set.
func (o *ConversationOptions) EnsureDefaults() {
	if o.MaxConversations <= 0 || o.MaxConversations > math.MaxInt32 {
		o.MaxConversations = 65536
	}
	if !(o.Multiplier > 0) || math.IsInf(o.Multiplier, 1) {
		o.Multiplier = 2
	}
	o.Multiplier = max(o.Multiplier, 1)
}

// Conversation keeps the requests of a conversation on one rank, whatever became of their blocks:
// TensorRT-LLM's conversation affinity. A rank that is full or not ready sends requests elsewhere for
// the time being; one that is gone loses its conversations as they come. A relaxed pin counts for a new
// conversation only, a strict one for its own request too.
type Conversation struct {
	opts   ConversationOptions
	b      batch
	sub    split
	homes  homes
	cursor int
	limit  int // requests of a rank that gets new conversations
}

// NewConversation returns the policy conversation.
func NewConversation(o ConversationOptions) *Conversation {
	o.EnsureDefaults()
	return &Conversation{opts: o, homes: newHomes(o.MaxConversations), b: batch{asPublished: o.AsPublished}}
}

// Name returns "conversation".
func (*Conversation) Name() string { return "conversation" }

// Len returns the number of conversations remembered.
func (p *Conversation) Len() int { return len(p.homes.index) }

// Home returns the id of the rank of a conversation, if it is remembered.
func (p *Conversation) Home(conversation string) (rank int32, ok bool) {
	return p.homes.get(conversation)
}

// Route places reqs.
func (p *Conversation) Route(s *State, reqs []Request, out []Decision) {
	b := &p.b
	defer b.end()
	if !b.begin(s, reqs, out) {
		return
	}
	p.limit = b.fairCap(p.opts.Multiplier, len(b.order))
	if p.opts.Fallback != nil {
		p.sub.routeStrict(p.opts.Fallback, b, p.toFallback)
	}
	b.strictFirst()
	b.keep(func(q int32) bool { return p.toFallback(q) || !p.placePinned(q) })
	b.keep(func(q int32) bool {
		if p.toFallback(q) {
			return true
		}
		p.decide(q)
		return false
	})
	if p.opts.Fallback != nil {
		p.sub.route(p.opts.Fallback, b)
	}
}

func (p *Conversation) toFallback(q int32) bool {
	return p.opts.Fallback != nil && p.b.reqs[q].Conversation == ""
}

// home returns the place of the rank of a conversation, or -1 if it has none or that is gone.
func (p *Conversation) home(conversation string) int {
	if conversation == "" {
		return -1
	}
	id, ok := p.homes.get(conversation)
	if !ok {
		return -1
	}
	return p.b.index(id)
}

// placePinned decides request q by its pin if that is strict or its conversation has no rank yet. It reports
// whether request q is decided.
func (p *Conversation) placePinned(q int32) bool {
	b := &p.b
	conversation := b.reqs[q].Conversation
	isNew := p.home(conversation) < 0
	if !isNew && (p.opts.AsPublished || !b.reqs[q].Strict) {
		return false
	}
	i, decided := b.pin(q)
	if i >= 0 {
		if isNew {
			p.bind(conversation, i)
		} else {
			p.homes.touch(conversation)
		}
		b.place(q, i, ReasonPin, b.hit(q, i))
	}
	return decided
}

func (p *Conversation) bind(conversation string, i int) { p.adopt(conversation, p.b.s.Ranks[i].ID) }

// adopt makes a rank the home of a conversation, as where another policy placed its first turn.
func (p *Conversation) adopt(conversation string, rank int32) {
	if conversation != "" {
		p.homes.set(conversation, rank)
	}
}

// decide places request q on the rank of its conversation, or on a new one.
func (p *Conversation) decide(q int32) {
	b := &p.b
	req := &b.reqs[q]
	i := p.home(req.Conversation)
	why := ReasonConversation
	switch {
	case i < 0:
		if i = p.fresh(req.Tokens); i >= 0 {
			p.bind(req.Conversation, i)
		}
		why = ReasonNewConversation
		if req.Conversation == "" {
			why = ReasonScore
		}
	case b.holds(i, req.Tokens):
		p.homes.touch(req.Conversation)
	default:
		if !p.opts.AsPublished {
			p.homes.touch(req.Conversation)
		}
		i = p.fresh(req.Tokens)
		why = ReasonOverflow
	}
	if i < 0 {
		b.refuse(q, ReasonAllFull)
		return
	}
	b.place(q, i, why, b.hit(q, i))
}

// fresh returns the place of the rank for a new conversation: one below the fair share if there is one,
// else any that is not full, else -1.
func (p *Conversation) fresh(promptTokens int) int {
	i := p.freshBelow(p.limit, promptTokens)
	if i < 0 {
		i = p.freshBelow(unlimited, promptTokens)
	}
	if i >= 0 && p.opts.Placement != PlaceLeastQueued {
		p.cursor = (i + 1) % len(p.b.s.Ranks)
	}
	return i
}

func (p *Conversation) freshBelow(limit, promptTokens int) int {
	b := &p.b
	if p.opts.Placement == PlaceRoundRobin {
		return b.inTurn(p.cursor, limit, promptTokens)
	}
	best := -1
	n := len(b.s.Ranks)
	for k := range n {
		i := k
		if p.opts.Placement == PlaceLeastTokens {
			i = (p.cursor + k) % n
		}
		if b.active[i] < limit && b.holds(i, promptTokens) && (best < 0 || p.less(i, best)) {
			best = i
		}
	}
	return best
}

// less compares two ranks for a new conversation.
func (p *Conversation) less(i, j int) bool {
	b := &p.b
	if p.opts.Placement == PlaceLeastTokens && b.tokens[i] != b.tokens[j] {
		return b.tokens[i] < b.tokens[j]
	}
	return b.active[i] < b.active[j]
}
