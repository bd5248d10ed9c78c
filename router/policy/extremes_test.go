package policy_test

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/kvconn/kvconn/internal/testkit/policytest"
	"github.com/kvconn/kvconn/router/policy"
)

// policy.Speeds that nobody can have measured must not decide: rank 1 is the idle one.
func TestSpeedsThatAreNoneCountAsNotMeasured(t *testing.T) {
	for _, v := range []float64{0, -1, math.NaN(), math.Inf(1), math.Inf(-1), math.SmallestNonzeroFloat64, 1e-300, math.MaxFloat64} {
		s := policytest.Idle(2, 0)
		s.Ranks[0].Speeds = policy.Speeds{PrefillTokens: v, DiskBytes: v, ObjectBytes: v, BytesPerToken: v}
		s.Ranks[0].Load.ActiveRequests, s.Ranks[0].Load.QueuedRequests = 1, 1
		s.Ranks[0].Load.QueuedTokens, s.Ranks[0].Load.FrontTokens = 5000, 5000
		for _, tokens := range []int{1, 1000} {
			d := explain(s, policy.CostOptions{}, policytest.Prompt(1, tokens, s))
			if d.Rank != 1 {
				t.Errorf("speed %g, %d tokens: rank %d, scores %+v", v, tokens, d.Rank, d.Scores)
			}
			if _, err := json.Marshal(d); err != nil {
				t.Errorf("speed %g: %v", v, err) // a part is not finite
			}
		}
	}
}
