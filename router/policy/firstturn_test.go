package policy_test

import (
	"testing"

	"github.com/kvconn/kvconn/internal/testkit/policytest"
	"github.com/kvconn/kvconn/router/policy"
)

func TestFirstTurnsGoRoundAndLaterOnesFollowTheirPrefix(t *testing.T) {
	s := policytest.Idle(3, 10)
	p := policy.NewFirstTurn(policy.NewCost(policy.CostOptions{BalanceWeight: -1}))
	first := policytest.Prompts(4, 100, s, 0, 0, 80)
	for i := range first {
		first[i].FirstTurn = true
	}
	got, _ := place(p, s, append(first, policytest.Prompt(9, 100, s, 0, 0, 80)))
	policytest.Expect(t, "4 first turns and a later one", got, []int32{0, 1, 2, 0, 2})
	got, _ = place(p, s, []policy.Request{first[0], policytest.Prompt(9, 100, s, 0, 80)})
	policytest.Expect(t, "next batch: the first turn counts for the other", got, []int32{1, 0})
	policytest.Expect(t, "name", p.Name(), "first-turn/cost")
}
