package published

import (
	"fmt"
	"slices"
	"testing"

	"github.com/kvconn/kvconn/internal/testkit/policytest"
	"github.com/kvconn/kvconn/router/policy"
)

// exactly makes a policy answer exactly as published.
func exactly(p Scheduler) *batch {
	Exactly(p)
	return p.shared()
}

// ranks returns where the requests go, -1 for nowhere, and how many each rank gets. No admission looks at them
// first.
func (b *batch) ranks(s *policy.State, reqs []policy.Request) ([]int32, []int) {
	return policytest.Ranks(s, b.decided(s, reqs))
}

func TestPublishedKVAwareCases(t *testing.T) {
	two := policytest.Idle(2, 10)
	kv := func(o KVAwareOptions) *batch { return exactly(NewKVAware(o)) }

	got, _ := kv(KVAwareOptions{}).ranks(two, []policy.Request{policytest.Prompt(1, 100, two, 80, 0)})
	policytest.Expect(t, "m=(80,0), idle", got, []int32{0})

	loaded := policytest.Idle(2, 10)
	loaded.Ranks[0].Load.UncachedTokens, loaded.Ranks[1].Load.UncachedTokens = 500, 100
	got, _ = kv(KVAwareOptions{}).ranks(loaded, []policy.Request{policytest.Prompt(1, 100, loaded)})
	policytest.Expect(t, "no cache, load (500,100)", got, []int32{1})

	got, _ = kv(KVAwareOptions{}).ranks(two, []policy.Request{policytest.Pinned(policytest.Prompt(1, 100, two, 80, 0), 1, true)})
	policytest.Expect(t, "explicit rank 1, m=(80,0)", got, []int32{1})

	four := []policy.Request{policytest.Prompt(1, 100, two, 80), policytest.Prompt(2, 100, two, 80), policytest.Prompt(3, 100, two), policytest.Prompt(4, 100, two)}
	got, _ = kv(KVAwareOptions{Multiplier: 1}).ranks(two, four)
	policytest.Expect(t, "multiplier 1, requests 1 and 2 have m=80 on rank 0", got, []int32{0, 0, 1, 1})

	got, _ = kv(KVAwareOptions{}).ranks(two, []policy.Request{policytest.Prompt(1, 100, two, 80), policytest.Prompt(2, 100, two)})
	policytest.Expect(t, "m1=(80,0), request 2 has none", got, []int32{0, 1})

	_, counts := kv(KVAwareOptions{}).ranks(policytest.Idle(4, 10), policytest.Prompts(8, 10, two))
	policytest.Expect(t, "8 requests of 10 tokens, 4 ranks", counts, []int{2, 2, 2, 2})

	got, _ = kv(KVAwareOptions{}).ranks(policytest.Idle(2, 2), policytest.Prompts(3, 10, two))
	policytest.Expect(t, "3 requests, max 2, 2 ranks: unplaced", slices.Contains(got, -1), false)

	wide := policytest.Idle(4, 100)
	_, counts = kv(KVAwareOptions{Multiplier: 4, Beta: 0.1}).ranks(wide, policytest.Prompts(8, 100, wide, 80))
	policytest.Expect(t, "8 requests all m=80 on rank 0, beta 0.1, multiplier 4", counts, []int{8, 0, 0, 0})
	_, counts = kv(KVAwareOptions{Multiplier: 1, Beta: 0.1}).ranks(wide, policytest.Prompts(8, 100, wide, 80))
	policytest.Expect(t, "8 requests all m=80 on rank 0, beta 0.1, multiplier 1: on rank 0", counts[0], 2)
}

func TestPublishedWarmupCases(t *testing.T) {
	p := NewKVAware(KVAwareOptions{Warmup: true})
	s := policytest.Idle(4, 10)
	got, _ := p.ranks(s, policytest.Prompts(4, 10, s, 9))
	policytest.Expect(t, "4 requests", got, []int32{0, 1, 2, 3})

	p = NewKVAware(KVAwareOptions{Warmup: true})
	got, _ = p.ranks(s, []policy.Request{policytest.Pinned(policytest.Prompt(1, 10, s), 2, true), policytest.Prompt(2, 10, s)})
	policytest.Expect(t, "strict to 2, then relaxed", got, []int32{2, 0})
	policytest.Expect(t, "strict to 2, then relaxed: pending", p.pending, []int32{1, 3})

	p = NewKVAware(KVAwareOptions{Warmup: true})
	full := policytest.Idle(4, 2, 2)
	got, _ = p.ranks(full, policytest.Prompts(1, 10, full))
	policytest.Expect(t, "rank 0 at its cap: chosen", got[0] > 0, true)
	policytest.Expect(t, "rank 0 at its cap: pending", p.pending, []int32{0, 1, 2, 3})
}

func TestPublishedDefaultCases(t *testing.T) {
	s := policytest.Idle(4, 3)
	for i, tokens := range []int64{10, 15, 20, 25} {
		s.Ranks[i].Load.PromptTokens = tokens
	}
	published := func() *batch { return exactly(NewLoad()) }
	got, _ := published().ranks(s, policytest.Prompts(7, 3, s))
	policytest.Expect(t, "[0,0,0,0], 7 relaxed", got, []int32{0, 0, 1, 1, 2, 2, 3})

	got, _ = published().ranks(s, policytest.Prompts(13, 3, s))
	policytest.Expect(t, "[0,0,0,0], 13", got, []int32{0, 0, 1, 0, 1, 2, 1, 2, 3, 2, 3, 3, -1})

	for i, n := range []int{3, 1, 3, 0} {
		s.Ranks[i].Load.ActiveRequests = n
	}
	pins := []policy.Request{policytest.Pinned(policytest.Prompt(0, 3, s), 0, true), policytest.Pinned(policytest.Prompt(1, 3, s), 0, false)}
	out := make([]policy.Decision, 2)
	published().run(s, policytest.Pointers(pins), policytest.Pointers(out))
	policytest.Expect(t, "[3,1,3,0], (0, strict), (0, relaxed)", []any{out[0].Reason, out[1].Rank}, []any{policy.ReasonPinFull, 1})

	b := batch{s: policytest.Idle(4, 8, 2, 1, 3, 0)}
	policytest.Expect(t, "[2,1,3,0]+2, max 8: expected", b.fairShare(1, 2), 3)
}

func TestPublishedConversationCases(t *testing.T) {
	in := func(conversation string, r policy.Request) policy.Request {
		r.Conversation = conversation
		return r
	}
	s := policytest.Idle(4, 1000)
	p := NewConversation(ConversationOptions{})
	first := []policy.Request{in("A", policytest.Prompt(1, 10, s)), in("B", policytest.Prompt(2, 10, s)), in("C", policytest.Prompt(3, 10, s)), in("D", policytest.Prompt(4, 10, s))}
	one, _ := p.ranks(s, first)
	policytest.Expect(t, "4 conversations", one, []int32{0, 1, 2, 3})
	two, _ := p.ranks(s, first)
	policytest.Expect(t, "turn 2", two, one)

	p = NewConversation(ConversationOptions{})
	_, counts := p.ranks(s, policytest.Prompts(8, 10, s))
	policytest.Expect(t, "no id x8", counts, []int{2, 2, 2, 2})
	policytest.Expect(t, "no id x8: recorded", p.homes.lru.Len(), 0)

	p = NewConversation(ConversationOptions{MaxConversations: 2})
	for i := range 5 {
		p.ranks(s, []policy.Request{in(fmt.Sprint("c", i), policytest.Prompt(uint64(i), 10, s))})
	}
	_, c2 := p.homes.get("c2")
	_, c3 := p.homes.get("c3")
	_, c4 := p.homes.get("c4")
	policytest.Expect(t, "at most 2, c0 to c4", []bool{c2, c3, c4}, []bool{false, true, true})

	p = NewConversation(ConversationOptions{})
	Exactly(p) // else the later one would be sent to 1, and A stay at 2
	p.ranks(s, []policy.Request{in("A", policytest.Pinned(policytest.Prompt(1, 10, s), 2, true))})
	got, _ := p.ranks(s, []policy.Request{in("A", policytest.Pinned(policytest.Prompt(2, 10, s), 1, true))})
	policytest.Expect(t, "bound to 2, later explicit 1", got, []int32{2})

	full := policytest.Idle(4, 5, 0, 0, 5, 0)
	got, _ = p.ranks(full, []policy.Request{in("A", policytest.Prompt(3, 10, s))})
	home, _ := p.homes.get("A")
	policytest.Expect(t, "home at its cap: elsewhere, home kept", []any{got[0] != 2, home}, []any{true, 2})

	eight := policytest.Idle(8, 256)
	p = NewConversation(ConversationOptions{})
	var same []policy.Request
	for i := range 40 {
		same = append(same, in("A", policytest.Prompt(uint64(i), 10, eight)))
	}
	_, counts = p.ranks(eight, same)
	policytest.Expect(t, "40 of the same conversation", slices.Max(counts), 40)

	busy := policytest.Idle(4, 64, 40, 40, 40, 64)
	_, counts = NewConversation(ConversationOptions{}).ranks(busy, policytest.Prompts(8, 10, busy))
	policytest.Expect(t, "[40,40,40,64], cap 64, 8 new", counts, []int{3, 3, 2, 0})
}

func TestRequestsWithoutConversationGoToTheFallback(t *testing.T) {
	s := policytest.Idle(3, 10)
	p := NewConversation(ConversationOptions{Fallback: NewKVAware(KVAwareOptions{})})
	reqs := []policy.Request{policytest.Prompt(1, 100, s, 0, 0, 80), policytest.Prompt(2, 100, s)}
	reqs[1].Conversation = "A"
	got, _ := p.ranks(s, reqs)
	policytest.Expect(t, "no id, new conversation", got, []int32{2, 0})
}
