package policy

import (
	"fmt"
	"slices"
	"testing"

	"github.com/kvconn/kvconn/router/load"
)

// idle returns a state of n ranks that take so many requests, with the given active requests.
func idle(n, maxActive int, active ...int) *State {
	s := &State{Ranks: make([]Rank, n)}
	for i := range s.Ranks {
		s.Ranks[i] = Rank{ID: int32(i), Ready: true, Capacity: load.Capacity{MaxActive: maxActive}}
		if i < len(active) {
			s.Ranks[i].Load.ActiveRequests = active[i]
		}
	}
	return s
}

// prompt returns a request of so many tokens, matched in the GPU of the first ranks.
func prompt(id uint64, tokens int, s *State, match ...int32) Request {
	r := Request{ID: id, Tokens: tokens, Pin: NoPin}
	if len(match) > 0 {
		r.Match = make([]Match, len(s.Ranks))
		for i, m := range match {
			r.Match[i] = Match{GPU: m, Usable: m}
		}
	}
	return r
}

func prompts(n, tokens int, s *State, match ...int32) []Request {
	var all []Request
	for i := range n {
		all = append(all, prompt(uint64(i+1), tokens, s, match...))
	}
	return all
}

func pinned(r Request, rank int32, strict bool) Request {
	r.Pin, r.Strict = rank, strict
	return r
}

// route returns the ranks of all requests, -1 for none, and how many each rank got.
func route(p Policy, s *State, reqs []Request) (ranks []int32, counts []int) {
	out := make([]Decision, len(reqs))
	p.Route(s, reqs, out)
	counts = make([]int, len(s.Ranks))
	for _, d := range out {
		ranks = append(ranks, d.Rank)
		if d.Placed() {
			counts[d.Index]++
		}
	}
	return ranks, counts
}

func expect(t *testing.T, what string, got, want any) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func TestPublishedKVAwareCases(t *testing.T) {
	two := idle(2, 10)
	kv := func(o KVAwareOptions) Policy { return NewKVAware(o) }

	got, _ := route(kv(KVAwareOptions{}), two, []Request{prompt(1, 100, two, 80, 0)})
	expect(t, "m=(80,0), idle", got, []int32{0})

	loaded := idle(2, 10)
	loaded.Ranks[0].Load.UncachedTokens, loaded.Ranks[1].Load.UncachedTokens = 500, 100
	got, _ = route(kv(KVAwareOptions{}), loaded, []Request{prompt(1, 100, loaded)})
	expect(t, "no cache, load (500,100)", got, []int32{1})

	got, _ = route(kv(KVAwareOptions{}), two, []Request{pinned(prompt(1, 100, two, 80, 0), 1, true)})
	expect(t, "explicit rank 1, m=(80,0)", got, []int32{1})

	four := []Request{prompt(1, 100, two, 80), prompt(2, 100, two, 80), prompt(3, 100, two), prompt(4, 100, two)}
	got, _ = route(kv(KVAwareOptions{Multiplier: 1}), two, four)
	expect(t, "multiplier 1, requests 1 and 2 have m=80 on rank 0", got, []int32{0, 0, 1, 1})

	got, _ = route(kv(KVAwareOptions{}), two, []Request{prompt(1, 100, two, 80), prompt(2, 100, two)})
	expect(t, "m1=(80,0), request 2 has none", got, []int32{0, 1})

	_, counts := route(kv(KVAwareOptions{}), idle(4, 10), prompts(8, 10, two))
	expect(t, "8 requests of 10 tokens, 4 ranks", counts, []int{2, 2, 2, 2})

	got, _ = route(kv(KVAwareOptions{}), idle(2, 2), prompts(3, 10, two))
	expect(t, "3 requests, max 2, 2 ranks: unplaced", slices.Contains(got, -1), false)

	wide := idle(4, 100)
	_, counts = route(kv(KVAwareOptions{Multiplier: 4, Beta: 0.1}), wide, prompts(8, 100, wide, 80))
	expect(t, "8 requests all m=80 on rank 0, beta 0.1, multiplier 4", counts, []int{8, 0, 0, 0})
	_, counts = route(kv(KVAwareOptions{Multiplier: 1, Beta: 0.1}), wide, prompts(8, 100, wide, 80))
	expect(t, "8 requests all m=80 on rank 0, beta 0.1, multiplier 1: on rank 0", counts[0], 2)
}

func TestPublishedWarmupCases(t *testing.T) {
	p := NewKVAware(KVAwareOptions{Warmup: true})
	s := idle(4, 10)
	got, _ := route(p, s, prompts(4, 10, s, 9))
	expect(t, "4 requests", got, []int32{0, 1, 2, 3})

	p = NewKVAware(KVAwareOptions{Warmup: true})
	got, _ = route(p, s, []Request{pinned(prompt(1, 10, s), 2, true), prompt(2, 10, s)})
	expect(t, "strict to 2, then relaxed", got, []int32{2, 0})
	expect(t, "strict to 2, then relaxed: pending", p.pending, []int32{1, 3})

	p = NewKVAware(KVAwareOptions{Warmup: true})
	full := idle(4, 2, 2)
	got, _ = route(p, full, prompts(1, 10, full))
	expect(t, "rank 0 at its cap: chosen", got[0] > 0, true)
	expect(t, "rank 0 at its cap: pending", p.pending, []int32{0, 1, 2, 3})
}

func TestPublishedDefaultCases(t *testing.T) {
	s := idle(4, 3)
	for i, tokens := range []int64{10, 15, 20, 25} {
		s.Ranks[i].Load.PromptTokens = tokens
	}
	published := func() Policy { return NewLoad(LoadOptions{AsPublished: true}) }
	got, _ := route(published(), s, prompts(7, 3, s))
	expect(t, "[0,0,0,0], 7 relaxed", got, []int32{0, 0, 1, 1, 2, 2, 3})

	got, _ = route(published(), s, prompts(13, 3, s))
	expect(t, "[0,0,0,0], 13", got, []int32{0, 0, 1, 0, 1, 2, 1, 2, 3, 2, 3, 3, -1})

	for i, n := range []int{3, 1, 3, 0} {
		s.Ranks[i].Load.ActiveRequests = n
	}
	pins := []Request{pinned(prompt(0, 3, s), 0, true), pinned(prompt(1, 3, s), 0, false)}
	admitted := make([]bool, 2)
	new(Admission).Admit(s, pins, admitted)
	expect(t, "[3,1,3,0], (0, strict), (0, relaxed): admitted", admitted, []bool{false, true})

	var b batch
	b.begin(idle(4, 8, 2, 1, 3, 0), prompts(2, 3, s), make([]Decision, 2))
	expect(t, "[2,1,3,0]+2, max 8: expected", b.fairCap(1, 2), 3)
}

func TestPublishedConversationCases(t *testing.T) {
	in := func(conversation string, r Request) Request {
		r.Conversation = conversation
		return r
	}
	s := idle(4, 1000)
	p := NewConversation(ConversationOptions{})
	first := []Request{in("A", prompt(1, 10, s)), in("B", prompt(2, 10, s)), in("C", prompt(3, 10, s)), in("D", prompt(4, 10, s))}
	one, _ := route(p, s, first)
	expect(t, "4 conversations", one, []int32{0, 1, 2, 3})
	two, _ := route(p, s, first)
	expect(t, "turn 2", two, one)

	p = NewConversation(ConversationOptions{})
	_, counts := route(p, s, prompts(8, 10, s))
	expect(t, "no id x8", counts, []int{2, 2, 2, 2})
	expect(t, "no id x8: recorded", p.Len(), 0)

	p = NewConversation(ConversationOptions{MaxConversations: 2})
	for i := range 5 {
		route(p, s, []Request{in(fmt.Sprint("c", i), prompt(uint64(i), 10, s))})
	}
	_, c2 := p.Home("c2")
	_, c3 := p.Home("c3")
	_, c4 := p.Home("c4")
	expect(t, "at most 2, c0 to c4", []bool{c2, c3, c4}, []bool{false, true, true})

	p = NewConversation(ConversationOptions{AsPublished: true}) // else the later one would be sent to 1, and A stay at 2
	route(p, s, []Request{in("A", pinned(prompt(1, 10, s), 2, true))})
	got, _ := route(p, s, []Request{in("A", pinned(prompt(2, 10, s), 1, true))})
	expect(t, "bound to 2, later explicit 1", got, []int32{2})

	full := idle(4, 5, 0, 0, 5, 0)
	got, _ = route(p, full, []Request{in("A", prompt(3, 10, s))})
	home, _ := p.Home("A")
	expect(t, "home at its cap: elsewhere, home kept", []any{got[0] != 2, home}, []any{true, 2})

	eight := idle(8, 256)
	p = NewConversation(ConversationOptions{})
	var same []Request
	for i := range 40 {
		same = append(same, in("A", prompt(uint64(i), 10, eight)))
	}
	_, counts = route(p, eight, same)
	expect(t, "40 of the same conversation", slices.Max(counts), 40)

	busy := idle(4, 64, 40, 40, 40, 64)
	_, counts = route(NewConversation(ConversationOptions{}), busy, prompts(8, 10, busy))
	expect(t, "[40,40,40,64], cap 64, 8 new", counts, []int{3, 3, 2, 0})
}

func TestFirstTurnsGoRoundAndLaterOnesFollowTheirPrefix(t *testing.T) {
	s := idle(3, 10)
	p := NewFirstTurn(NewKVAware(KVAwareOptions{}))
	first := prompts(4, 100, s, 0, 0, 80)
	for i := range first {
		first[i].FirstTurn = true
	}
	got, _ := route(p, s, append(first, prompt(9, 100, s, 0, 0, 80)))
	expect(t, "4 first turns and a later one", got, []int32{0, 1, 2, 0, 2})
	got, _ = route(p, s, []Request{first[0], prompt(9, 100, s, 0, 80)})
	expect(t, "next batch: the first turn counts for the other", got, []int32{1, 0})
	expect(t, "name", p.Name(), "first-turn/kv-aware")
}

func TestRequestsWithoutConversationGoToTheFallback(t *testing.T) {
	s := idle(3, 10)
	p := NewConversation(ConversationOptions{Fallback: NewKVAware(KVAwareOptions{})})
	reqs := []Request{prompt(1, 100, s, 0, 0, 80), prompt(2, 100, s)}
	reqs[1].Conversation = "A"
	got, _ := route(p, s, reqs)
	expect(t, "no id, new conversation", got, []int32{2, 0})
}
