package byname

import (
	"reflect"
	"slices"
	"testing"

	"github.com/kvconn/kvconn/internal/testkit/policytest"
	"github.com/kvconn/kvconn/internal/testkit/property"
	"github.com/kvconn/kvconn/router/inflight"
	"github.com/kvconn/kvconn/router/policy"
	"pgregory.net/rapid"
)

func drawState(rt *rapid.T) *policy.State {
	s := &policy.State{BlockSize: 16}
	for i := range rapid.IntRange(0, 6).Draw(rt, "ranks") {
		r := policy.Rank{ID: int32(i*i + i/2), Ready: rapid.IntRange(0, 5).Draw(rt, "ready") > 0}
		r.Capacity.MaxActive = rapid.SampledFrom([]int{0, 1, 3, 8}).Draw(rt, "max active")
		r.Capacity.MaxTokens = rapid.SampledFrom([]int64{0, 0, 500, 3000}).Draw(rt, "max tokens")
		r.Load.ActiveRequests = rapid.IntRange(0, 5).Draw(rt, "active")
		r.Load.PromptTokens = rapid.Int64Range(0, 2000).Draw(rt, "tokens")
		r.Load.UncachedTokens = r.Load.PromptTokens / 2
		r.Load.QueuedTokens = r.Load.PromptTokens / 4
		r.Load.RecentTokens = float64(r.Load.PromptTokens) * 1.5
		r.Load.DecodeBlocks = r.Load.PromptTokens / 16
		r.Speeds = policy.Speeds{PrefillTokens: rapid.SampledFrom([]float64{0, 5000, 20000}).Draw(rt, "prefill"), BytesPerToken: 1 << 17,
			DiskBytes: rapid.SampledFrom([]float64{0, 1e8, 5e9}).Draw(rt, "disk"), ObjectBytes: 1e9, ObjectDelay: 0.05}
		s.Ranks = append(s.Ranks, r)
	}
	return s
}

func drawRequests(rt *rapid.T, s *policy.State) []policy.Request {
	var all []policy.Request
	for i := range rapid.IntRange(0, 12).Draw(rt, "requests") {
		r := policy.Request{ID: uint64(i), Tokens: rapid.SampledFrom([]int{0, 1, 64, 100, 1000}).Draw(rt, "tokens"), Pin: policy.NoPin}
		r.Head = []uint32{uint32(rapid.IntRange(0, 2).Draw(rt, "head"))}[:min(r.Tokens, 1)]
		r.Conversation = rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(rt, "conversation")
		r.Content = r.Conversation
		r.FirstTurn = rapid.Bool().Draw(rt, "first turn")
		if rapid.IntRange(0, 3).Draw(rt, "pinned") == 0 {
			r.Pin, r.Strict = int32(rapid.IntRange(0, 9).Draw(rt, "pin")), rapid.Bool().Draw(rt, "strict")
		}
		if rapid.Bool().Draw(rt, "matched") {
			for range s.Ranks {
				m := policy.Match{GPU: int32(r.Tokens / rapid.IntRange(1, 4).Draw(rt, "gpu"))}
				m.Disk = (int32(r.Tokens) - m.GPU) / 2
				m.Object = (int32(r.Tokens) - m.GPU - m.Disk) / 2
				m.Usable, m.LoadDisk, m.LoadObject = m.GPU+m.Disk+m.Object, m.Disk, m.Object
				r.Match = append(r.Match, m)
			}
		}
		r.Explain = rapid.Bool().Draw(rt, "explain")
		all = append(all, r)
	}
	return all
}

func TestSameStateSameDecisions(t *testing.T) {
	property.Check(t, func(rt *rapid.T) {
		one, two := withExact(), withExact()
		for range rapid.IntRange(1, 4).Draw(rt, "batches") {
			s := drawState(rt)
			reqs := drawRequests(rt, s)
			for i := range one {
				a, b := policytest.PlaceAll(one[i], s, reqs), policytest.PlaceAll(two[i], s, reqs)
				if !reflect.DeepEqual(a, b) {
					rt.Fatalf("%s: %+v and %+v", one[i].Name(), a, b)
				}
			}
		}
	})
}

func TestNoDecisionBreaksACapOrLosesARequest(t *testing.T) {
	property.Check(t, func(rt *rapid.T) {
		policies := withExact()
		for range rapid.IntRange(1, 3).Draw(rt, "batches") {
			s := drawState(rt)
			reqs := drawRequests(rt, s)
			for _, p := range policies {
				check(rt, p, s, reqs, policytest.PlaceAll(p, s, reqs))
			}
		}
	})
}

// check verifies the promises that every policy makes.
func check(rt *rapid.T, p policy.Policy, s *policy.State, reqs []policy.Request, out []policy.Decision) {
	loads := make([]inflight.Rank, len(s.Ranks))
	for i := range s.Ranks {
		loads[i] = s.Ranks[i].Load
	}
	for i, d := range out {
		switch {
		case !slices.Contains(policy.Reasons(), d.Reason) || d.Placed() == slices.Contains(refusals(), d.Reason) || d.Placed() != (d.Rank >= 0):
			rt.Fatalf("%s: request %d: %+v", p.Name(), i, d)
		case !d.Placed():
			continue
		case d.Index >= len(s.Ranks) || s.Ranks[d.Index].ID != d.Rank || !s.Ranks[d.Index].Ready:
			rt.Fatalf("%s: request %d on a rank that isn't there: %+v", p.Name(), i, d)
		case !exact(p) && reqs[i].Strict && reqs[i].Pin != policy.NoPin && reqs[i].Pin != d.Rank:
			rt.Fatalf("%s: request %d on rank %d despite its pin %d: %v", p.Name(), i, d.Rank, reqs[i].Pin, d.Reason)
		case int(d.UseTokens) > reqs[i].Tokens || d.LoadDisk+d.LoadObject > d.UseTokens || d.LoadDisk < 0 || d.LoadObject < 0:
			rt.Fatalf("%s: request %d of %d tokens uses %+v", p.Name(), i, reqs[i].Tokens, d)
		}
		loads[d.Index].ActiveRequests++
		loads[d.Index].PromptTokens += int64(reqs[i].Tokens)
	}
	roomFor := func(tokens int) bool {
		for i := range s.Ranks {
			if s.Ranks[i].Ready && s.Ranks[i].Capacity.Holds(&loads[i], tokens) {
				return true
			}
		}
		return false
	}
	for i := range s.Ranks {
		c, before := s.Ranks[i].Capacity, &s.Ranks[i].Load
		if loads[i].ActiveRequests > before.ActiveRequests && (c.MaxActive > 0 && loads[i].ActiveRequests > c.MaxActive || c.MaxTokens > 0 && loads[i].ActiveTokens() > c.MaxTokens) {
			rt.Fatalf("%s: rank %d has %+v of %+v", p.Name(), s.Ranks[i].ID, loads[i], c)
		}
	}
	if exact(p) {
		return // the fair share may refuse, and what is refused is left for the next batch
	}
	for i, d := range out {
		if (d.Reason == policy.ReasonAllFull || d.Reason == policy.ReasonNoRanks || d.Reason == policy.ReasonFairShare) && roomFor(reqs[i].Tokens) {
			rt.Fatalf("%s: request %d is refused (%v) though there is room", p.Name(), i, d.Reason)
		}
	}
}
