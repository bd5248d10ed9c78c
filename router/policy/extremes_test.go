package policy

import (
	"math"
	"strings"
	"testing"
)

// Speeds that nobody can have measured must not decide: rank 1 is the idle one.
func TestSpeedsThatAreNoneCountAsNotMeasured(t *testing.T) {
	for _, v := range []float64{0, -1, math.NaN(), math.Inf(1), math.Inf(-1), math.SmallestNonzeroFloat64, 1e-300, math.MaxFloat64} {
		s := idle(2, 0)
		s.Ranks[0].Speeds = Speeds{PrefillTokens: v, DiskBytes: v, ObjectBytes: v, BytesPerToken: v, DiskDelay: v, ObjectDelay: v, QueueDelay: v}
		s.Ranks[0].Load.ActiveRequests, s.Ranks[0].Load.QueuedRequests = 1, 1
		s.Ranks[0].Load.QueuedTokens, s.Ranks[0].Load.FrontTokens = 5000, 5000
		for _, tokens := range []int{1, 1000} {
			out := make([]Decision, 1)
			req := prompt(1, tokens, s)
			req.Explain = true
			NewCost(CostOptions{}).Route(s, []Request{req}, out)
			if out[0].Rank != 1 {
				t.Errorf("speed %g, %d tokens: rank %d, scores %+v", v, tokens, out[0].Rank, out[0].Scores)
			}
			for _, score := range out[0].Scores {
				if math.IsNaN(score.Total) || math.IsInf(score.Total, 0) {
					t.Errorf("speed %g: a total of %g seconds", v, score.Total)
				}
			}
		}
	}
}

// A conversation whose rank is full is in use all the same.
func TestAnOverflowingConversationIsNotTheOneToForget(t *testing.T) {
	s := idle(2, 0)
	p := NewConversation(ConversationOptions{MaxConversations: 2})
	turn := func(s *State, conversation string) Decision {
		out := make([]Decision, 1)
		req := prompt(1, 10, s)
		req.Conversation = conversation
		p.Route(s, []Request{req}, out)
		return out[0]
	}
	home := turn(s, "a").Rank
	turn(s, "b")
	full := idle(2, 1)
	full.Ranks[home].Load.ActiveRequests = 1
	if d := turn(full, "a"); d.Reason != ReasonOverflow {
		t.Fatalf("%+v", d)
	}
	turn(s, "c") // b has to make room
	if got, ok := p.Home("a"); !ok || got != home {
		t.Error("a conversation was forgotten while in use")
	}
}

// Clients name conversations: what is remembered does not grow with the names.
func TestLongNamesOfConversationsCostNoMemory(t *testing.T) {
	h := newHomes(10)
	long := strings.Repeat("x", 1<<20)
	h.set(long, 3)
	h.set(long+"y", 4)
	if r, ok := h.get(long); !ok || r != 3 {
		t.Errorf("rank %d %v", r, ok)
	}
	if r, ok := h.get(long + "y"); !ok || r != 4 {
		t.Errorf("rank %d %v", r, ok)
	}
	if n := testing.AllocsPerRun(10, func() { h.set(long, 5) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// The second turn goes where the first one was, although that was another policy's choice.
func TestFirstTurnTellsWhereAConversationLives(t *testing.T) {
	s := idle(4, 0)
	p := NewFirstTurn(NewConversation(ConversationOptions{}))
	out := make([]Decision, 1)
	for _, conversation := range []string{"a", "b", "c"} {
		req := prompt(1, 10, s)
		req.Conversation, req.FirstTurn = conversation, true
		p.Route(s, []Request{req}, out)
		first := out[0].Rank
		req.FirstTurn = false
		p.Route(s, []Request{req}, out)
		if out[0].Rank != first || out[0].Reason != ReasonConversation {
			t.Errorf("%s: first turn on rank %d, second on %d, %v", conversation, first, out[0].Rank, out[0].Reason)
		}
	}
}
