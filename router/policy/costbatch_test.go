package policy_test

import (
	"testing"

	"github.com/kvconn/kvconn/internal/testkit/policytest"
	"github.com/kvconn/kvconn/router/policy"
)

// What a batch has placed counts for the rest of it, each charge by itself.
func TestCostCountsWhatTheBatchHasPlaced(t *testing.T) {
	first := func(change func(*policy.State)) *policy.State { // rank 0 is the one that ties go to
		s := measured(2)
		s.Ranks[1].Load.RecentTokens = 1e6
		if change != nil {
			change(s)
		}
		return s
	}
	onDisk := func(s *policy.State, tokens int32) policy.Request {
		r := policytest.Prompt(1, int(tokens), s, 0)
		for i := range r.Match {
			r.Match[i] = policy.Match{Disk: tokens, Usable: tokens, LoadDisk: tokens}
		}
		return r
	}
	inGPU := func(s *policy.State) policy.Request { return policytest.Prompt(1, 1600, s, 1600, 1600) }
	nearlyInGPU := func(s *policy.State) policy.Request { return policytest.Prompt(1, 1600, s, 1599, 1599) }
	fast := func(s *policy.State) { s.Ranks[0].Speeds.PrefillTokens, s.Ranks[1].Load.RecentTokens = 50000, 0 }
	for name, c := range map[string]struct {
		s    *policy.State
		o    policy.CostOptions
		req  func(*policy.State) policy.Request
		want []int32
	}{
		"prompts to compute": {first(nil), plain(), func(s *policy.State) policy.Request { return policytest.Prompt(1, 1000, s) }, []int32{0, 1, 0, 1}},
		"prefixes to load":   {first(nil), plain(), func(s *policy.State) policy.Request { return onDisk(s, 1000) }, []int32{0, 1, 0, 1}},
		"blocks to decode":   {first(nil), policy.CostOptions{DecodeWeight: 1, BalanceWeight: -1}, nearlyInGPU, []int32{0, 1, 0, 1}},
		"nothing":            {first(nil), plain(), inGPU, []int32{0, 0, 0, 0}},
		"a faster rank":      {first(fast), plain(), func(s *policy.State) policy.Request { return policytest.Prompt(1, 1000, s) }, []int32{0, 0, 0, 0}},
		"what its GPU took":  {first(fast), policy.CostOptions{DecodeWeight: -1, BalanceWeight: 50}, func(s *policy.State) policy.Request { return policytest.Prompt(1, 1000, s, 0) }, []int32{0, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			var reqs []policy.Request
			for range c.want {
				reqs = append(reqs, c.req(c.s))
			}
			got, _ := place(policy.NewCost(c.o), c.s, reqs)
			policytest.Expect(t, name, got, c.want)
		})
	}
}

func TestCostBreaksTiesByRecentWorkThenByRequests(t *testing.T) {
	for _, c := range []struct {
		recent [3]float64
		active [3]int
		want   int32
	}{
		{[3]float64{5, 5, 5}, [3]int{2, 2, 2}, 0},
		{[3]float64{5, 4, 6}, [3]int{1, 2, 0}, 1},
		{[3]float64{5, 5, 5}, [3]int{2, 2, 1}, 2},
	} {
		s := measured(3)
		for i := range s.Ranks {
			s.Ranks[i].Load.RecentTokens, s.Ranks[i].Load.ActiveRequests = c.recent[i], c.active[i]
		}
		if got, _ := place(policy.NewCost(plain()), s, policytest.Prompts(1, 100, s)); got[0] != c.want {
			t.Errorf("%+v: rank %d", c, got[0])
		}
	}
}
