package policy_test

import (
	"math"
	"testing"
	"time"

	"github.com/kvconn/kvconn/internal/testkit/policytest"
	"github.com/kvconn/kvconn/router/inflight"
	"github.com/kvconn/kvconn/router/policy"
)

// measured returns an idle state of n ranks on nodes of their own that compute 10,000 tokens a second and load 40,000 from
// disk and 5,000 from the object store.
func measured(n int) *policy.State {
	s := policytest.Idle(n, 0)
	for i := range s.Ranks {
		s.Ranks[i].Node = int32(i)
		s.Ranks[i].Speeds = policy.Speeds{PrefillTokens: 10000, BytesPerToken: 1000, DiskBytes: 40e6, ObjectBytes: 5e6}
	}
	return s
}

// explain routes one request by cost and returns the decision with all scores.
func explain(s *policy.State, o policy.CostOptions, req policy.Request) policy.Decision {
	req.Explain = true
	return policytest.Place(policy.NewCost(o), s, req)
}

// place returns where the requests go, each counting for those after it, and how many each rank gets.
func place(p policy.Policy, s *policy.State, reqs []policy.Request) ([]int32, []int) {
	return policytest.Ranks(s, policytest.PlaceAll(p, s, reqs))
}

// plain charges nothing but time.
func plain() policy.CostOptions { return policy.CostOptions{DecodeWeight: -1, BalanceWeight: -1} }

func near(t *testing.T, what string, got, want float64) {
	t.Helper()
	if math.Abs(got-want) > 1e-9 {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func TestCostIsTheTimeToTheFirstToken(t *testing.T) {
	s := measured(3)
	// policy.Rank 0 has it all but is busy, rank 1 has it on disk, rank 2 has nothing.
	s.Ranks[0].Load = inflight.Rank{QueuedRequests: 2, QueuedTokens: 30000, FrontTokens: 10000, FrontAge: 400 * time.Millisecond, QueuedDiskTokens: 4000}
	req := policytest.Prompt(1, 10000, s, 0)
	req.Match[0] = policy.Match{GPU: 9000, Usable: 9000}
	req.Match[1] = policy.Match{GPU: 1000, Disk: 8000, Usable: 9000, LoadDisk: 8000}
	d := explain(s, plain(), req)
	near(t, "queue of rank 0", d.Scores[0].QueueSeconds, 3-0.4+0.1)
	near(t, "total of rank 0", d.Scores[0].Total, 2.7+0.1)
	near(t, "load of rank 1", d.Scores[1].LoadSeconds, 0.2)
	near(t, "total of rank 1", d.Scores[1].Total, 0.3)
	near(t, "total of rank 2", d.Scores[2].Total, 1)
	if d.Rank != 1 || d.UseTokens != 9000 || d.LoadDisk != 8000 || d.LoadObject != 0 {
		t.Errorf("%+v", d)
	}
}

func TestAHitSlowerThanComputingIsWorthNothing(t *testing.T) {
	s := measured(2)
	req := policytest.Prompt(1, 10000, s, 0)
	req.Match[0] = policy.Match{Object: 9000, Usable: 9000, LoadObject: 9000} // 1.8 s against 0.9 s
	d := explain(s, plain(), req)
	near(t, "object hit", d.Scores[0].Total, d.Scores[1].Total)
	if d.UseTokens != 0 || d.Scores[0].MatchTokens != 0 {
		t.Errorf("%+v", d)
	}
	s.Ranks[0].Speeds.DiskDelay = 40
	req.Match[0] = policy.Match{Disk: 9000, Usable: 9000, LoadDisk: 9000}
	near(t, "disk hit after a long queue", explain(s, plain(), req).Scores[0].Total, 1)
	s.Ranks[0].Speeds = policy.Speeds{PrefillTokens: 10000}
	near(t, "disk of unknown bandwidth", explain(s, plain(), req).Scores[0].Total, 1)
}

func TestTheBestCutOfThePrefixIsLoaded(t *testing.T) {
	s := measured(1)
	for _, at := range []struct {
		what                       string
		m                          policy.Match
		use, loadDisk, loadObject  int32
		diskBytes, objectBytes     float64
		wantLoad, wantPrefillAfter float64
	}{
		{"disk but not the object store after it", policy.Match{GPU: 1000, Disk: 4000, Object: 3000, Usable: 8000, LoadDisk: 4000, LoadObject: 3000},
			5000, 4000, 0, 40e6, 5e6, 0.1, 0.5},
		{"both", policy.Match{GPU: 1000, Disk: 4000, Object: 3000, Usable: 8000, LoadDisk: 4000, LoadObject: 3000}, 8000, 4000, 3000, 40e6, 30e6, 0.2, 0.2},
		{"a gap on disk before more in the GPU", policy.Match{GPU: 1000, Disk: 1000, Usable: 9000, LoadDisk: 1000}, 9000, 1000, 0, 5e6, 0, 0.2, 0.1},
		{"the GPU alone", policy.Match{GPU: 1000, Disk: 8000, Usable: 9000, LoadDisk: 8000}, 1000, 0, 0, 5e6, 0, 0, 0.9},
	} {
		s.Ranks[0].Speeds.DiskBytes, s.Ranks[0].Speeds.ObjectBytes = at.diskBytes, at.objectBytes
		req := policytest.Prompt(1, 10000, s, 0)
		req.Match[0] = at.m
		d := explain(s, plain(), req)
		near(t, at.what+": load", d.Scores[0].LoadSeconds, at.wantLoad)
		near(t, at.what+": prefill", d.Scores[0].PrefillSeconds, at.wantPrefillAfter)
		if d.UseTokens != at.use || d.LoadDisk != at.loadDisk || d.LoadObject != at.loadObject {
			t.Errorf("%s: %+v", at.what, d)
		}
	}
}

func TestOverlappedLoadsCostOnlyWhatTheQueueDoesNotHide(t *testing.T) {
	s := measured(1)
	s.Ranks[0].Load = inflight.Rank{QueuedTokens: 1500, QueuedDiskTokens: 4000}
	req := policytest.Prompt(1, 10000, s, 0)
	req.Match[0] = policy.Match{Disk: 8000, Usable: 8000, LoadDisk: 8000}
	o := plain()
	o.OverlapLoads = true
	d := explain(s, o, req)
	near(t, "queue", d.Scores[0].QueueSeconds, 0.15)
	near(t, "load beyond the queue", d.Scores[0].LoadSeconds, 0.05)
	near(t, "total", d.Scores[0].Total, 0.4)
}

func TestUnmeasuredRanksAreTakenForAverage(t *testing.T) {
	s := measured(3)
	s.Ranks[0].Speeds, s.Ranks[1].Speeds.PrefillTokens = policy.Speeds{}, 30000
	d := explain(s, plain(), policytest.Prompt(1, 20000, s))
	near(t, "unmeasured", d.Scores[0].Total, 1)
	if d.Rank != 1 {
		t.Errorf("rank %d, want the fastest", d.Rank)
	}
	s = policytest.Idle(1, 0)
	near(t, "nothing measured", explain(s, plain(), policytest.Prompt(1, 10000, s)).Scores[0].Total, 1)
}

func TestDecodeIsCharged(t *testing.T) {
	s := measured(2)
	s.Ranks[0].Load = inflight.Rank{DecodeBlocks: 10}
	s.Ranks[1].Load = inflight.Rank{DecodeBlocks: 5}
	d := explain(s, policy.CostOptions{DecodeWeight: 0.2, BalanceWeight: -1}, policytest.Prompt(1, 10000, s))
	near(t, "decode of rank 0", d.Scores[0].DecodeSeconds, 0.2)
	near(t, "decode of rank 1", d.Scores[1].DecodeSeconds, 0.1)
}

func TestOneHotPrefixDoesNotOverloadItsRank(t *testing.T) {
	for weight, want := range map[float64]float64{1: 2.3, 8: 1.2} {
		s := measured(8)
		p := policy.NewCost(policy.CostOptions{BalanceWeight: weight})
		var work [8]float64
		for id := range uint64(4000) { // far apart: no queue, only rank 0 has the prefix
			d := policytest.Place(p, s, policytest.Prompt(id, 10000, s, 5000))
			work[d.Index] += float64(10000 - d.UseTokens)
		}
		most, sum := 0.0, 0.0
		for _, w := range work {
			most = max(most, w)
			sum += w
		}
		if ratio := most / (sum / 8); ratio > want {
			t.Errorf("weight %v: the busiest rank has %.3f times the mean", weight, ratio)
		}
	}
}

func TestEarlierPlacementsOfABatchCountForLaterOnes(t *testing.T) {
	s := measured(4)
	_, counts := place(policy.NewCost(policy.CostOptions{}), s, policytest.Prompts(8, 1000, s, 500, 500, 500, 500))
	policytest.Expect(t, "8 equal requests on 4 equal ranks", counts, []int{2, 2, 2, 2})
}

func TestCapacityHoldsRequestsAndTokens(t *testing.T) {
	l := inflight.Rank{ActiveRequests: 2, PromptTokens: 90, OutputTokens: 10}
	for _, at := range []struct {
		c      policy.Capacity
		tokens int
		want   bool
	}{{policy.Capacity{}, 1 << 30, true}, {policy.Capacity{MaxActive: 2}, 1, false}, {policy.Capacity{MaxActive: 3, MaxTokens: 150}, 50, true}, {policy.Capacity{MaxTokens: 150}, 51, false}} {
		if at.c.Holds(&l, at.tokens) != at.want {
			t.Errorf("%+v with %d tokens more: %v", at.c, at.tokens, !at.want)
		}
	}
}
