package byname

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/kvconn/kvconn/internal/testkit/policytest"
	"github.com/kvconn/kvconn/router/policy"
	"github.com/kvconn/kvconn/router/policy/published"
)

// everyPolicy returns one of each, as new.
func everyPolicy() []policy.Policy {
	return []policy.Policy{
		policy.NewRoundRobin(), published.NewLoad(), published.NewKVAware(published.KVAwareOptions{}),
		published.NewKVAware(published.KVAwareOptions{Warmup: true, GPUOnly: true}), policy.NewFirstTurn(policy.NewCost(policy.CostOptions{})),
		published.NewConversation(published.ConversationOptions{}), published.NewConversation(published.ConversationOptions{Placement: published.PlaceLeastQueued}),
		published.NewConversation(published.ConversationOptions{Placement: published.PlaceLeastTokens, Fallback: published.NewLoad()}),
		published.NewServeKVAware(published.ServeKVAwareOptions{Cap: 32}), policy.NewCost(policy.CostOptions{}), policy.NewCost(policy.CostOptions{OverlapLoads: true}),
	}
}

// exact reports whether a policy answers exactly as published.
func exact(p policy.Policy) bool { _, ok := p.(policy.Batcher); return ok }

// withExact returns everyPolicy and those that answer exactly as published.
func withExact() []policy.Policy {
	return append(everyPolicy(), published.Exactly(published.NewLoad()),
		published.Exactly(published.NewKVAware(published.KVAwareOptions{Warmup: true})), published.Exactly(published.NewConversation(published.ConversationOptions{})))
}

// refusals are the reasons for no rank.
func refusals() []policy.Reason {
	return []policy.Reason{policy.ReasonNoRanks, policy.ReasonAllFull, policy.ReasonFairShare, policy.ReasonPinUnknown, policy.ReasonPinNotReady, policy.ReasonPinFull, policy.ReasonInvalid}
}

// forEveryPolicy places requests with each policy.
func forEveryPolicy(t *testing.T, s *policy.State, reqs []policy.Request, check func(t *testing.T, out []policy.Decision)) {
	t.Helper()
	for _, p := range everyPolicy() {
		t.Run(p.Name(), func(t *testing.T) { check(t, policytest.PlaceAll(p, s, reqs)) })
	}
}

// reasons returns a check of the reasons of all requests.
func reasons(want ...policy.Reason) func(*testing.T, []policy.Decision) {
	return func(t *testing.T, out []policy.Decision) {
		t.Helper()
		for i, d := range out {
			if d.Reason != want[i] || d.Placed() == slices.Contains(refusals(), want[i]) || d.Placed() != (d.Rank >= 0) {
				t.Errorf("request %d: rank %d, %v, want %v", i, d.Rank, d.Reason, want[i])
			}
		}
	}
}

func TestNoRankIsAClearAnswer(t *testing.T) {
	none := &policy.State{BlockSize: 16}
	forEveryPolicy(t, none, []policy.Request{policytest.Prompt(1, 10, none), policytest.Pinned(policytest.Prompt(2, 10, none), 3, true), policytest.Pinned(policytest.Prompt(3, 10, none), 3, false)},
		reasons(policy.ReasonNoRanks, policy.ReasonPinUnknown, policy.ReasonNoRanks))
	down := policytest.Idle(2, 0)
	down.Ranks[0].Ready, down.Ranks[1].Ready = false, false
	forEveryPolicy(t, down, []policy.Request{policytest.Prompt(1, 10, down), policytest.Pinned(policytest.Prompt(2, 10, down), 1, true)}, reasons(policy.ReasonNoRanks, policy.ReasonPinNotReady))
}

func TestFullRanksAreAClearAnswer(t *testing.T) {
	s := policytest.Idle(2, 3, 3, 3)
	forEveryPolicy(t, s, []policy.Request{policytest.Prompt(1, 10, s), policytest.Pinned(policytest.Prompt(2, 10, s), 1, true), policytest.Pinned(policytest.Prompt(3, 10, s), 1, false)},
		reasons(policy.ReasonAllFull, policy.ReasonPinFull, policy.ReasonAllFull))
	tight := policytest.Idle(2, 0)
	tight.Ranks[0].Capacity.MaxTokens, tight.Ranks[1].Capacity.MaxTokens = 50, 50
	forEveryPolicy(t, tight, []policy.Request{policytest.Prompt(1, 51, tight)}, reasons(policy.ReasonAllFull))
}

func TestStrictPinIsHonouredOrRefused(t *testing.T) {
	s := policytest.Idle(3, 3, 3)
	s.Ranks[2].Ready = false
	reqs := []policy.Request{policytest.Pinned(policytest.Prompt(1, 10, s), 0, true), policytest.Pinned(policytest.Prompt(2, 10, s), 1, true), policytest.Pinned(policytest.Prompt(3, 10, s), 2, true),
		policytest.Pinned(policytest.Prompt(4, 10, s), 77, true), policytest.Pinned(policytest.Prompt(5, 10, s), -5, true)}
	forEveryPolicy(t, s, reqs, reasons(policy.ReasonPinFull, policy.ReasonPin, policy.ReasonPinNotReady, policy.ReasonPinUnknown, policy.ReasonPinUnknown))
}

// However the requests of a batch are shared out, those for which no other rank will do go first.
func TestNobodyTakesTheRoomThatAStrictPinNeeds(t *testing.T) {
	for _, c := range []policy.Capacity{{MaxActive: 1}, {MaxTokens: 10}} {
		s := policytest.Idle(2, 0)
		s.Ranks[0].Capacity, s.Ranks[1].Capacity = c, c
		reqs := []policy.Request{policytest.Prompt(1, 10, s), policytest.Pinned(policytest.Prompt(2, 10, s), 0, true)}
		reqs[0].FirstTurn, reqs[0].Conversation = true, "a"
		forEveryPolicy(t, s, reqs, func(t *testing.T, out []policy.Decision) {
			if out[0].Rank != 1 || out[1].Rank != 0 {
				t.Errorf("%+v: %+v", c, out)
			}
		})
	}
}

func TestRelaxedPinOnAFullRankGoesElsewhere(t *testing.T) {
	s := policytest.Idle(2, 3, 3)
	forEveryPolicy(t, s, []policy.Request{policytest.Pinned(policytest.Prompt(1, 10, s), 0, false), policytest.Pinned(policytest.Prompt(2, 10, s), 9, false)}, func(t *testing.T, out []policy.Decision) {
		for i := range out {
			if out[i].Rank != 1 {
				t.Errorf("request %d: rank %d, %v", i, out[i].Rank, out[i].Reason)
			}
		}
	})
}

func TestEmptyAndHugePromptsArePlaced(t *testing.T) {
	s := policytest.Idle(4, 10)
	reqs := []policy.Request{policytest.Prompt(1, 0, s), policytest.Prompt(2, 0, s, 0, 0, 0), policytest.Prompt(3, 2<<20, s, 2<<20), policytest.Prompt(4, 1, s)}
	forEveryPolicy(t, s, reqs, func(t *testing.T, out []policy.Decision) {
		for i := range out {
			if !out[i].Placed() {
				t.Errorf("request %d: %v", i, out[i].Reason)
			}
		}
	})
}

func TestNonsenseIsRefused(t *testing.T) {
	s := policytest.Idle(2, 10)
	bad := policytest.Prompt(2, 10, s, 0)
	bad.Match = bad.Match[:1]
	forEveryPolicy(t, s, []policy.Request{policytest.Prompt(1, -1, s), bad, policytest.Prompt(3, math.MaxInt, s)}, reasons(policy.ReasonInvalid, policy.ReasonInvalid, policy.ReasonInvalid))
}

// A match beyond the prompt is cut, whichever tier it is on.
func TestAMatchLongerThanThePromptIsCut(t *testing.T) {
	s := policytest.Idle(1, 0)
	s.Ranks[0].Speeds = policy.Speeds{PrefillTokens: 10, DiskBytes: 1e9, ObjectBytes: 1e9, BytesPerToken: 1}
	for _, m := range []policy.Match{{GPU: 50, Usable: 50}, {Disk: 50, Usable: 50, LoadDisk: 50}, {Disk: 50, Usable: 90, LoadDisk: 90}, {GPU: 5, Disk: 50, Object: 50, Usable: 105, LoadDisk: 50, LoadObject: 50}} {
		req := policytest.Prompt(1, 10, s)
		req.Match = []policy.Match{m}
		forEveryPolicy(t, s, []policy.Request{req}, func(t *testing.T, out []policy.Decision) {
			if d := out[0]; d.UseTokens > 10 || d.LoadDisk < 0 || d.LoadObject < 0 || d.LoadDisk+d.LoadObject > d.UseTokens {
				t.Errorf("%+v: %+v", m, d)
			}
		})
	}
}

func TestMixedPinsInOneConversationBatchArePlaced(t *testing.T) {
	s := policytest.Idle(4, 10)
	reqs := []policy.Request{policytest.Prompt(1, 10, s), policytest.Pinned(policytest.Prompt(2, 10, s), 1, true), policytest.Pinned(policytest.Prompt(3, 10, s), 2, false), policytest.Pinned(policytest.Prompt(4, 10, s), 1, false)}
	for i := range reqs {
		reqs[i].Conversation = fmt.Sprint("c", i/2)
	}
	forEveryPolicy(t, s, reqs, func(t *testing.T, out []policy.Decision) {
		for i := range out {
			if !out[i].Placed() {
				t.Errorf("request %d: %v", i, out[i].Reason)
			}
		}
	})
}

func TestAThousandRanksAreAllUsed(t *testing.T) {
	s := policytest.Idle(1024, 4)
	forEveryPolicy(t, s, policytest.Prompts(1024, 64, s), func(t *testing.T, out []policy.Decision) {
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

func TestEveryRankIsExplainedWhenAskedFor(t *testing.T) {
	s := policytest.Idle(3, 2, 2)
	reqs := []policy.Request{policytest.Prompt(1, 10, s), policytest.Pinned(policytest.Prompt(2, 10, s), 1, true), policytest.Pinned(policytest.Prompt(3, 10, s), 0, true), policytest.Prompt(4, 10, s), policytest.Prompt(5, 10, s), policytest.Prompt(6, 10, s)}
	for i := range reqs {
		reqs[i].Explain = i < 5
	}
	forEveryPolicy(t, s, reqs, func(t *testing.T, out []policy.Decision) {
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

func TestReasonsAreDistinctAndRetriesAreRefusals(t *testing.T) {
	seen := map[policy.Reason]bool{}
	for _, r := range policy.Reasons() {
		if seen[r] || r == "" || r.Retry() && !slices.Contains(refusals(), r) {
			t.Errorf("reason %q", r)
		}
		seen[r] = true
	}
}

// The router's settings allow any weights: totals are compared and written as JSON all the same.
func TestTotalsAreFiniteWithAnyWeights(t *testing.T) {
	s, reqs := warmState(4, 2, true)
	for _, name := range []string{"cost", "kv-aware", "first-turn/cost"} {
		for _, w := range []float64{1e12, 1e300, math.MaxFloat64, math.Inf(1), math.NaN(), -math.MaxFloat64} {
			p, err := New(Options{Name: name, Cost: policy.CostOptions{DecodeWeight: w, BalanceWeight: w}, KVAware: published.KVAwareOptions{Beta: w, MatchRate: w}})
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range policytest.PlaceAll(p, s, reqs) {
				if _, err := json.Marshal(d); err != nil {
					t.Errorf("%s, weights of %g: %v", name, w, err)
				}
			}
		}
	}
}
