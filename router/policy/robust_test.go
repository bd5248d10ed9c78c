package policy

import (
	"fmt"
	"math"
	"testing"

	"github.com/kvconn/kvconn/router/load"
)

// everyPolicy returns one of each, as new.
func everyPolicy() []Policy {
	return []Policy{
		NewRoundRobin(), NewLoad(LoadOptions{}), NewKVAware(KVAwareOptions{}), NewKVAware(KVAwareOptions{Warmup: true, GPUOnly: true}),
		NewFirstTurn(NewCost(CostOptions{})), NewConversation(ConversationOptions{}), NewConversation(ConversationOptions{Placement: PlaceLeastQueued}),
		NewConversation(ConversationOptions{Placement: PlaceLeastTokens, Fallback: NewLoad(LoadOptions{})}), NewServeKVAware(ServeKVAwareOptions{LoadCap: 0.5}),
		NewCost(CostOptions{}), NewCost(CostOptions{OverlapLoads: true}),
	}
}

// forEveryPolicy routes one batch with each policy.
func forEveryPolicy(t *testing.T, s *State, reqs []Request, check func(t *testing.T, out []Decision)) {
	t.Helper()
	for _, p := range everyPolicy() {
		t.Run(p.Name(), func(t *testing.T) {
			out := make([]Decision, len(reqs))
			p.Route(s, reqs, out)
			check(t, out)
		})
	}
}

// reasons returns a check of the reasons of all requests.
func reasons(want ...Reason) func(*testing.T, []Decision) {
	return func(t *testing.T, out []Decision) {
		t.Helper()
		for i, d := range out {
			if d.Reason != want[i] || d.Placed() != want[i].Placed() || d.Placed() != (d.Rank >= 0) {
				t.Errorf("request %d: rank %d, %v, want %v", i, d.Rank, d.Reason, want[i])
			}
		}
	}
}

func TestNoRankIsAClearAnswer(t *testing.T) {
	none := &State{}
	forEveryPolicy(t, none, []Request{prompt(1, 10, none), pinned(prompt(2, 10, none), 3, true), pinned(prompt(3, 10, none), 3, false)},
		reasons(ReasonNoRanks, ReasonPinUnknown, ReasonNoRanks))
	down := idle(2, 0)
	down.Ranks[0].Ready, down.Ranks[1].Ready = false, false
	forEveryPolicy(t, down, []Request{prompt(1, 10, down), pinned(prompt(2, 10, down), 1, true)}, reasons(ReasonNoRanks, ReasonPinNotReady))
}

func TestFullRanksAreAClearAnswer(t *testing.T) {
	s := idle(2, 3, 3, 3)
	forEveryPolicy(t, s, []Request{prompt(1, 10, s), pinned(prompt(2, 10, s), 1, true), pinned(prompt(3, 10, s), 1, false)},
		reasons(ReasonAllFull, ReasonPinFull, ReasonAllFull))
	tight := idle(2, 0)
	tight.Ranks[0].Capacity.MaxTokens, tight.Ranks[1].Capacity.MaxTokens = 50, 50
	forEveryPolicy(t, tight, []Request{prompt(1, 51, tight)}, reasons(ReasonAllFull))
}

func TestStrictPinIsHonouredOrRefused(t *testing.T) {
	s := idle(3, 3, 3)
	s.Ranks[2].Ready = false
	reqs := []Request{pinned(prompt(1, 10, s), 0, true), pinned(prompt(2, 10, s), 1, true), pinned(prompt(3, 10, s), 2, true),
		pinned(prompt(4, 10, s), 77, true), pinned(prompt(5, 10, s), -5, true)}
	forEveryPolicy(t, s, reqs, reasons(ReasonPinFull, ReasonPin, ReasonPinNotReady, ReasonPinUnknown, ReasonPinUnknown))
}

// However the requests of a batch are shared out, those for which no other rank will do go first.
func TestNobodyTakesTheRoomThatAStrictPinNeeds(t *testing.T) {
	for _, c := range []load.Capacity{{MaxActive: 1}, {MaxTokens: 10}} {
		s := idle(2, 0)
		s.Ranks[0].Capacity, s.Ranks[1].Capacity = c, c
		reqs := []Request{prompt(1, 10, s), pinned(prompt(2, 10, s), 0, true)}
		reqs[0].FirstTurn, reqs[0].Conversation = true, "a"
		forEveryPolicy(t, s, reqs, func(t *testing.T, out []Decision) {
			if out[0].Rank != 1 || out[1].Rank != 0 {
				t.Errorf("%+v: %+v", c, out)
			}
		})
	}
}

// "No other rank will do" goes before the conversation's rank, which stays its rank; a wish does not.
func TestAStrictPinGoesBeforeTheConversationsRank(t *testing.T) {
	s := idle(3, 0)
	p := NewConversation(ConversationOptions{MaxConversations: 2})
	name := "a"
	turn := func(rank int32, strict bool) Decision {
		req := prompt(1, 10, s)
		req.Conversation = name
		if rank != NoPin {
			req = pinned(req, rank, strict)
		}
		out := make([]Decision, 1)
		p.Route(s, []Request{req}, out)
		return out[0]
	}
	turn(NoPin, false)
	for _, c := range []struct {
		pin    int32
		strict bool
		want   int32
		why    Reason
	}{{2, true, 2, ReasonPin}, {2, false, 0, ReasonConversation}, {7, true, -1, ReasonPinUnknown}, {NoPin, false, 0, ReasonConversation}} {
		if d := turn(c.pin, c.strict); d.Rank != c.want || d.Reason != c.why {
			t.Errorf("pin %d, strict %t: rank %d, %v, want %d, %v", c.pin, c.strict, d.Rank, d.Reason, c.want, c.why)
		}
	}
	name = "b"
	turn(NoPin, false)
	name = "a"
	turn(2, true)
	name = "c"
	turn(NoPin, false) // b has to make room
	if home, ok := p.Home("a"); !ok || home != 0 {
		t.Errorf("a conversation was forgotten while in use: home %d, %t", home, ok)
	}
}

func TestRelaxedPinOnAFullRankGoesElsewhere(t *testing.T) {
	s := idle(2, 3, 3)
	forEveryPolicy(t, s, []Request{pinned(prompt(1, 10, s), 0, false), pinned(prompt(2, 10, s), 9, false)}, func(t *testing.T, out []Decision) {
		for i := range out {
			if out[i].Rank != 1 {
				t.Errorf("request %d: rank %d, %v", i, out[i].Rank, out[i].Reason)
			}
		}
	})
}

func TestEmptyAndHugePromptsArePlaced(t *testing.T) {
	s := idle(4, 10)
	reqs := []Request{prompt(1, 0, s), prompt(2, 0, s, 0, 0, 0), prompt(3, 2<<20, s, 2<<20), prompt(4, 1, s)}
	forEveryPolicy(t, s, reqs, func(t *testing.T, out []Decision) {
		for i := range out {
			if !out[i].Placed() {
				t.Errorf("request %d: %v", i, out[i].Reason)
			}
		}
	})
}

func TestNonsenseIsRefused(t *testing.T) {
	s := idle(2, 10)
	bad := prompt(2, 10, s, 0)
	bad.Match = bad.Match[:1]
	forEveryPolicy(t, s, []Request{prompt(1, -1, s), bad, prompt(3, math.MaxInt, s)}, reasons(ReasonInvalid, ReasonInvalid, ReasonInvalid))
}

// A match beyond the prompt is cut, whichever tier it is on.
func TestAMatchLongerThanThePromptIsCut(t *testing.T) {
	s := idle(1, 0)
	s.Ranks[0].Speeds = Speeds{PrefillTokens: 10, DiskBytes: 1e9, ObjectBytes: 1e9, BytesPerToken: 1}
	for _, m := range []Match{{GPU: 50, Usable: 50}, {Disk: 50, Usable: 50, LoadDisk: 50}, {Disk: 50, Usable: 90, LoadDisk: 90}, {GPU: 5, Disk: 50, Object: 50, Usable: 105, LoadDisk: 50, LoadObject: 50}} {
		req := prompt(1, 10, s)
		req.Match = []Match{m}
		forEveryPolicy(t, s, []Request{req}, func(t *testing.T, out []Decision) {
			if d := out[0]; d.UseTokens > 10 || d.LoadDisk < 0 || d.LoadObject < 0 || d.LoadDisk+d.LoadObject > d.UseTokens {
				t.Errorf("%+v: %+v", m, d)
			}
		})
	}
}

func TestMixedPinsInOneConversationBatchArePlaced(t *testing.T) {
	s := idle(4, 10)
	reqs := []Request{prompt(1, 10, s), pinned(prompt(2, 10, s), 1, true), pinned(prompt(3, 10, s), 2, false), pinned(prompt(4, 10, s), 1, false)}
	for i := range reqs {
		reqs[i].Conversation = fmt.Sprint("c", i/2)
	}
	forEveryPolicy(t, s, reqs, func(t *testing.T, out []Decision) {
		for i := range out {
			if !out[i].Placed() {
				t.Errorf("request %d: %v", i, out[i].Reason)
			}
		}
	})
}

func TestAThousandRanksAreAllUsed(t *testing.T) {
	s := idle(1024, 4)
	forEveryPolicy(t, s, prompts(1024, 64, s), func(t *testing.T, out []Decision) {
		used := map[int32]int{}
		for i := range out {
			if !out[i].Placed() {
				t.Fatalf("request %d: %v", i, out[i].Reason)
			}
			used[out[i].Rank]++
		}
		if len(used) != 1024 {
			t.Errorf("%d ranks of 1024 used", len(used))
		}
	})
}

func TestConversationMovesOnlyWhenItsRankIsGone(t *testing.T) {
	s := idle(3, 10)
	p := NewConversation(ConversationOptions{})
	req := prompt(1, 10, s)
	req.Conversation = "A"
	step := func(what string, reason Reason, rank int32) {
		t.Helper()
		out := make([]Decision, 1)
		p.Route(s, []Request{req}, out)
		if home, _ := p.Home("A"); out[0].Reason != reason || home != rank {
			t.Errorf("%s: %v on rank %d, home %d, want %v and home %d", what, out[0].Reason, out[0].Rank, home, reason, rank)
		}
	}
	step("first turn", ReasonNewConversation, 0)
	step("second turn", ReasonConversation, 0)
	s.Ranks[0].Ready = false
	step("its rank is not ready", ReasonOverflow, 0)
	s.Ranks[0].Ready = true
	step("its rank is back", ReasonConversation, 0)
	s.Ranks = s.Ranks[1:]
	step("its rank is gone", ReasonNewConversation, 1)
}

func TestRoomBeyondTheFairShareIsUsed(t *testing.T) {
	for _, p := range []Policy{NewLoad(LoadOptions{}), NewKVAware(KVAwareOptions{Multiplier: 0.5})} {
		s := idle(2, 0, 1, 10)
		s.Ranks[0].Capacity = load.Capacity{MaxActive: 1}
		got, _ := route(p, s, prompts(1, 10, s))
		expect(t, p.Name(), got, []int32{1})
	}
}

func TestEveryRankIsExplainedWhenAskedFor(t *testing.T) {
	s := idle(3, 2, 2)
	reqs := []Request{prompt(1, 10, s), pinned(prompt(2, 10, s), 1, true), pinned(prompt(3, 10, s), 0, true), prompt(4, 10, s), prompt(5, 10, s), prompt(6, 10, s)}
	for i := range reqs {
		reqs[i].Explain = i < 5
	}
	forEveryPolicy(t, s, reqs, func(t *testing.T, out []Decision) {
		for i, d := range out {
			want := 3
			if i == 5 {
				want = 0
			}
			if len(d.Scores) != want || want > 0 && (d.Scores[2].Rank != 2 || d.Scores[0].Eligible) {
				t.Errorf("request %d: %+v", i, d)
			}
		}
	})
}

func TestReasonsHaveNames(t *testing.T) {
	seen := map[string]bool{}
	for r := ReasonScore; r <= ReasonInvalid; r++ {
		if seen[r.String()] || r.String() == "unknown" || r.Placed() && r.Retry() {
			t.Errorf("reason %d: %v", r, r)
		}
		seen[r.String()] = true
	}
	if (ReasonInvalid + 1).String() != "unknown" {
		t.Error("a reason that there is not has a name")
	}
}
