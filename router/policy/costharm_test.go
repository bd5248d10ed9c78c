package policy_test

import (
	"slices"
	"testing"
	"time"

	"github.com/kvconn/kvconn/internal/testkit/policytest"
	"github.com/kvconn/kvconn/router/inflight"
	"github.com/kvconn/kvconn/router/policy"
)

// oneNode puts all ranks of a state on one node.
func oneNode(s *policy.State) *policy.State {
	for i := range s.Ranks {
		s.Ranks[i].Node = 0
	}
	return s
}

// onDisk returns a request whose prompt is on disk for each rank but for the last 1,000 of 9,000 tokens.
func onDisk(s *policy.State) policy.Request {
	r := policytest.Prompt(1, 9000, s, 0)
	for i := range r.Match {
		r.Match[i] = policy.Match{Disk: 8000, Usable: 8000, LoadDisk: 8000}
	}
	return r
}

// Two loads share a disk: each delays the other by what the shorter one takes.
func TestLoadsOfANodeDelayEachOther(t *testing.T) {
	for _, c := range []struct {
		queued             int64 // tokens that rank 1 loads; 40,000 a second
		wantLoad, wantHarm float64
	}{{0, 0.2, 0}, {2000, 0.25, 0.05}, {40000, 0.4, 0.2}} {
		s := oneNode(measured(2))
		s.Ranks[1].Load = inflight.Rank{QueuedRequests: 1, QueuedDiskTokens: c.queued, FrontDiskTokens: c.queued}
		d := explain(s, plain(), onDisk(s))
		near(t, "load", d.Scores[0].LoadSeconds, c.wantLoad)
		near(t, "delay", d.Scores[0].DelaySeconds, c.wantHarm)
		s.Ranks[1].Node = 1
		d = explain(s, plain(), onDisk(s))
		near(t, "load from another disk", d.Scores[0].LoadSeconds, 0.2)
		near(t, "delay on another disk", d.Scores[0].DelaySeconds, 0)
	}
}

// A disk that was busy half of the time lets two loads to come wait as long as this one takes: 0.5/(1-0.5)^2.
func TestALoadDelaysThoseThatComeToABusyDisk(t *testing.T) {
	s := oneNode(measured(2))
	s.Ranks[0].Load = inflight.Rank{RecentDiskTokens: 0.5 * 40000 * 1060, RecentSeconds: 1000}
	d := explain(s, plain(), onDisk(s))
	near(t, "delay", d.Scores[1].DelaySeconds, 0.2*2)
}

// What a request takes on any rank delays those that come to the rank's own queue. What it takes beyond that delays those of the
// node, however long the rank's own queue is.
func TestWorkDelaysThoseThatCome(t *testing.T) {
	s := oneNode(measured(2))
	for i := range s.Ranks { // one request a second, which takes half a second
		s.Ranks[i].Load = inflight.Rank{RecentRequests: 1060, RecentTokens: 5000 * 1060, RecentSeconds: 1000}
	}
	s.Ranks[0].Load.QueuedRequests, s.Ranks[0].Load.QueuedTokens, s.Ranks[0].Load.FrontTokens = 1, 40000, 40000 // 4 s
	d := explain(s, plain(), policytest.Prompt(1, 10000, s, 9000))
	near(t, "0.1 s of work on a rank with a queue", d.Scores[0].DelaySeconds, 2*(0.1*4+0.1*0.1/2))
	near(t, "1 s of work on one without", d.Scores[1].DelaySeconds, 2*(0.9*2+1./2))
}

// Blocks that come back make pushing them out dear: by what loading or computing them takes.
func TestMemoryHasAPriceIfBlocksComeBack(t *testing.T) {
	s := measured(2)
	p := policy.NewCost(plain())
	memory := func() []float64 {
		r := policytest.Prompt(1, 9000, s, 8000)
		r.Explain = true
		d := policytest.Place(p, s, r)
		return []float64{d.Scores[0].MemorySeconds, d.Scores[1].MemorySeconds}
	}
	if got := memory(); !slices.Equal(got, []float64{0, 0}) {
		t.Errorf("nothing came back, and memory costs %v", got)
	}
	for range 1000 { // what is on disk was in some GPU before
		policytest.Place(p, s, onDisk(s))
	}
	got := memory()
	if part := got[1] / (9000. / 40000); got[0] <= 0 || got[1] < 5*got[0] || part < 0.4 || part > 1.6 {
		t.Errorf("8 of 9 tokens came back, and memory costs %v", got)
	}
}

// A rank whose first request is late is taken to hang for as long again.
func TestALateRequestKeepsItsRankBusy(t *testing.T) {
	s := measured(2)
	s.Ranks[0].Load = inflight.Rank{QueuedRequests: 1, QueuedTokens: 1000, FrontTokens: 1000, FrontAge: 5 * time.Second}
	near(t, "queue", explain(s, plain(), policytest.Prompt(1, 1000, s)).Scores[0].QueueSeconds, 4.9)
	// Where the end of its prefill is not reported, nobody knows that it is late. What comes after it counts.
	s.Ranks[0].Load.FrontSilent = true
	s.Ranks[0].Load.QueuedRequests, s.Ranks[0].Load.QueuedTokens = 2, 3000
	near(t, "queue", explain(s, plain(), policytest.Prompt(1, 1000, s)).Scores[0].QueueSeconds, 0.2)
	s.Ranks[0].Load.FrontAge = 40 * time.Millisecond
	near(t, "queue", explain(s, plain(), policytest.Prompt(1, 1000, s)).Scores[0].QueueSeconds, 0.26)
}

func TestRanksThatLoadEveryHit(t *testing.T) {
	s := measured(1)
	s.Ranks[0].Speeds.DiskBytes = 5e6 // 1.6 s, and computing takes 0.8
	o := plain()
	if d := explain(s, o, onDisk(s)); d.LoadDisk != 0 {
		t.Errorf("%+v", d)
	}
	o.AlwaysLoad = true
	if d := explain(s, o, onDisk(s)); d.LoadDisk != 8000 {
		t.Errorf("%+v", d)
	}
}

// What a rank's GPU took in stays with the rank while others come and go.
func TestRanksKeepTheirHistory(t *testing.T) {
	s := measured(3)
	p := policy.NewCost(policy.CostOptions{DecodeWeight: -1})
	for range 20 {
		r := policytest.Prompt(1, 9000, s, 0)
		r.Pin = s.Ranks[2].ID
		policytest.Place(p, s, r)
	}
	balance := func() float64 {
		r := policytest.Prompt(1, 9000, s, 0)
		r.Explain = true
		d := policytest.Place(p, s, r)
		return d.Scores[len(d.Scores)-1].BalanceSeconds
	}
	before := balance()
	s.Ranks = s.Ranks[1:]
	if after := balance(); before <= 0 || after <= 0 {
		t.Errorf("balance %v, and %v without the first rank", before, after)
	}
}

// Where nothing new comes for long, what GPUs took in fades to nothing, and still no number is infinite.
func TestPromptsThatBringNothingNewLeaveFiniteScores(t *testing.T) {
	s := measured(2)
	p := policy.NewCost(policy.CostOptions{})
	policytest.Place(p, s, policytest.Prompt(1, 9000, s, 0))
	for range 40000 {
		policytest.Place(p, s, policytest.Prompt(1, 9000, s, 9000, 9000))
	}
	for range 2 {
		r := policytest.Prompt(1, 9000, s, 8000)
		r.Explain = true
		for _, score := range policytest.Place(p, s, r).Scores {
			if !(score.Total >= 0 && score.Total < 10) {
				t.Errorf("%+v", score)
			}
		}
	}
}
