package published

import (
	"strings"
	"testing"

	"github.com/kvconn/kvconn/internal/testkit/policytest"
	"github.com/kvconn/kvconn/router/policy"
)

// A strict pin beats the conversation's rank, and the conversation keeps that rank. A pin that is only a wish loses.
func TestAStrictPinGoesBeforeTheConversationsRank(t *testing.T) {
	s := policytest.Idle(3, 0)
	p := NewConversation(ConversationOptions{MaxConversations: 2})
	name := "a"
	turn := func(rank int32, strict bool) policy.Decision {
		req := policytest.Prompt(1, 10, s)
		req.Conversation = name
		if rank != policy.NoPin {
			req = policytest.Pinned(req, rank, strict)
		}
		var d policy.Decision
		p.Place(s, &req, &d)
		return d
	}
	turn(policy.NoPin, false)
	for _, c := range []struct {
		pin    int32
		strict bool
		want   int32
		why    policy.Reason
	}{{2, true, 2, policy.ReasonPin}, {2, false, 0, policy.ReasonConversation}, {7, true, -1, policy.ReasonPinUnknown}, {policy.NoPin, false, 0, policy.ReasonConversation}} {
		if d := turn(c.pin, c.strict); d.Rank != c.want || d.Reason != c.why {
			t.Errorf("pin %d, strict %t: rank %d, %v, want %d, %v", c.pin, c.strict, d.Rank, d.Reason, c.want, c.why)
		}
	}
	name = "b"
	turn(policy.NoPin, false)
	name = "a"
	turn(2, true)
	name = "c"
	turn(policy.NoPin, false) // b has to make room
	if home, ok := p.homes.get("a"); !ok || home != 0 {
		t.Errorf("a conversation was forgotten while in use: home %d, %t", home, ok)
	}
}

// TensorRT-LLM's admission lets a pin on an unknown rank through, and a known conversation goes home whatever its pin.
func TestExactlyAsPublishedAConversationOutweighsAPinOnAnUnknownRank(t *testing.T) {
	s := policytest.Idle(3, 1)
	p := Exactly(NewConversation(ConversationOptions{}))
	req := policytest.Prompt(1, 10, s)
	req.Conversation = "a"
	policytest.Place(p, s, req)
	known, unknown, free := policytest.Pinned(req, 7, true), policytest.Pinned(policytest.Prompt(2, 10, s), 7, true), policytest.Prompt(3, 10, s)
	all := []policy.Request{known, unknown, free, free, free}
	got := policytest.PlaceAll(p, s, all)
	for i, want := range []policy.Reason{policy.ReasonConversation, policy.ReasonPinUnknown, policy.ReasonScore, policy.ReasonScore, policy.ReasonAllFull} {
		if got[i].Reason != want {
			t.Errorf("request %d: %+v, want %s", i, got[i], want)
		}
	}
}

func TestConversationMovesOnlyWhenItsRankIsGone(t *testing.T) {
	s := policytest.Idle(3, 10)
	p := NewConversation(ConversationOptions{})
	req := policytest.Prompt(1, 10, s)
	req.Conversation = "A"
	step := func(what string, reason policy.Reason, rank int32) {
		t.Helper()
		var d policy.Decision
		p.Place(s, &req, &d)
		if home, _ := p.homes.get("A"); d.Reason != reason || home != rank {
			t.Errorf("%s: %v on rank %d, home %d, want %v and home %d", what, d.Reason, d.Rank, home, reason, rank)
		}
	}
	step("first turn", policy.ReasonNewConversation, 0)
	step("second turn", policy.ReasonConversation, 0)
	s.Ranks[0].Ready = false
	step("its rank is not ready", policy.ReasonOverflow, 0)
	s.Ranks[0].Ready = true
	step("its rank is back", policy.ReasonConversation, 0)
	s.Ranks = s.Ranks[1:]
	step("its rank is gone", policy.ReasonNewConversation, 1)
}

func TestRoomBeyondTheFairShareIsUsed(t *testing.T) {
	for _, p := range []policy.Policy{NewLoad(), NewKVAware(KVAwareOptions{Multiplier: 0.5})} {
		s := policytest.Idle(2, 0, 1, 10)
		s.Ranks[0].Capacity = policy.Capacity{MaxActive: 1}
		r, d := policytest.Prompt(1, 10, s), policy.Decision{}
		p.Place(s, &r, &d)
		policytest.Expect(t, p.Name(), d.Rank, 1)
	}
}

// A conversation whose rank is full is in use all the same.
func TestAnOverflowingConversationIsNotTheOneToForget(t *testing.T) {
	s := policytest.Idle(2, 0)
	p := NewConversation(ConversationOptions{MaxConversations: 2})
	turn := func(s *policy.State, conversation string) policy.Decision {
		var d policy.Decision
		req := policytest.Prompt(1, 10, s)
		req.Conversation = conversation
		p.Place(s, &req, &d)
		return d
	}
	home := turn(s, "a").Rank
	turn(s, "b")
	full := policytest.Idle(2, 1)
	full.Ranks[home].Load.ActiveRequests = 1
	if d := turn(full, "a"); d.Reason != policy.ReasonOverflow {
		t.Fatalf("%+v", d)
	}
	turn(s, "c") // b has to make room
	if got, ok := p.homes.get("a"); !ok || got != home {
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
	s := policytest.Idle(4, 0)
	p := policy.NewFirstTurn(NewConversation(ConversationOptions{}))
	var d policy.Decision
	for _, conversation := range []string{"a", "b", "c"} {
		req := policytest.Prompt(1, 10, s)
		req.Conversation, req.FirstTurn = conversation, true
		p.Place(s, &req, &d)
		first := d.Rank
		req.FirstTurn = false
		p.Place(s, &req, &d)
		if d.Rank != first || d.Reason != policy.ReasonConversation {
			t.Errorf("%s: first turn on rank %d, second on %d, %v", conversation, first, d.Rank, d.Reason)
		}
	}
}
