package published

import (
	"cmp"
	"slices"
	"strconv"
	"testing"

	"github.com/zeebo/xxh3"

	"github.com/kvconn/kvconn/internal/testkit/policytest"
	"github.com/kvconn/kvconn/router/policy"
)

// orOff turns the 0 of a case into our value for none.
func orOff(v float64) float64 {
	if v == 0 {
		return -1
	}
	return v
}

func TestKVAwareDecidesEveryPublishedCase(t *testing.T) {
	eachCase(t, func(t *testing.T, c *routerCase) {
		p := NewKVAware(KVAwareOptions{Beta: orOff(c.Params.Beta), MatchRate: orOff(c.Params.Threshold), Multiplier: c.Params.Multiplier,
			Warmup: c.Params.Warmup})
		Exactly(p)
		for _, step := range c.steps() {
			st, reqs := step.state(c.Params.MaxActive), step.requests()
			out := p.decided(st, reqs)
			if step.Expected.Error != "" { // the published router crashes
				for i := range out {
					if !out[i].Placed() {
						t.Errorf("request %d: %v", reqs[i].ID, out[i].Reason)
					}
				}
				continue
			}
			step.checkAssign(t, reqs, out)
			step.checkFairShare(t, c, c.Params.Multiplier, out)
			checkScores(t, step, reqs, out)
			if c.Params.Warmup && !slices.Equal(p.pending, step.Expected.PendingWarmup) {
				t.Errorf("ranks to warm up %v, want %v", p.pending, step.Expected.PendingWarmup)
			}
		}
	}, "kv_aware")
}

// checkScores compares eligible ranks, loads and scores of every decision, bit for bit.
func checkScores(t *testing.T, step *caseStep, reqs []policy.Request, out []policy.Decision) {
	t.Helper()
	for _, want := range step.Expected.Decisions {
		q := slices.IndexFunc(reqs, func(r policy.Request) bool { return r.ID == want.ID })
		var eligible []int32
		var loads, totals []float64
		for _, s := range out[q].Scores {
			if s.Eligible {
				eligible = append(eligible, s.Rank)
				loads = append(loads, s.LoadTokens)
				totals = append(totals, s.Total)
			}
		}
		if !slices.Equal(eligible, want.Eligible) || !slices.Equal(loads, want.Loads) || !slices.Equal(totals, want.Scores) {
			t.Errorf("request %d: ranks %v loads %v scores %v, want %v %v %v", want.ID, eligible, loads, totals, want.Eligible, want.Loads, want.Scores)
		}
		if out[q].Rank != want.Chosen {
			t.Errorf("request %d on rank %d, want %d of %v", want.ID, out[q].Rank, want.Chosen, want.Acceptable)
		}
	}
}

func TestLoadDecidesEveryPublishedCase(t *testing.T) {
	eachCase(t, func(t *testing.T, c *routerCase) {
		p := NewLoad()
		Exactly(p)
		step := &c.caseStep
		st, reqs := step.state(c.Params.MaxActive), step.requests()
		out := p.decided(st, reqs)
		if step.Expected.Error != "" { // the published router crashes
			for i := range out {
				if out[i].Reason != policy.ReasonAllFull {
					t.Errorf("request %d: %v, want %v", reqs[i].ID, out[i].Reason, policy.ReasonAllFull)
				}
			}
			return
		}
		step.checkAssign(t, reqs, out)
		step.checkFairShare(t, c, 1, out)
	}, "default")
}

func TestLoadBalancesBelowAGivenLimit(t *testing.T) {
	eachCase(t, func(t *testing.T, c *routerCase) {
		p := NewLoad()
		p.decide = func() { p.balance(c.Params.ExpectedActive) }
		reqs := c.requests()
		c.checkAssign(t, reqs, p.decided(c.state(0), reqs))
	}, "default_balance")
}

func TestLoadAfterAdmissionDecidesEveryPublishedCase(t *testing.T) {
	eachCase(t, func(t *testing.T, c *routerCase) {
		st, reqs := c.state(c.Params.MaxActive), c.requests()
		p, out := NewLoad(), make([]policy.Decision, len(reqs))
		exact := Exactly(p)
		p.begin(st, policytest.Pointers(reqs), policytest.Pointers(out))
		p.admit()
		var held []uint64
		var admitted []int
		for q := range reqs {
			if slices.Contains(p.order, int32(q)) {
				admitted = append(admitted, q)
			} else {
				held = append(held, reqs[q].ID)
			}
		}
		if !slices.Equal(held, c.Expected.HeldBack) {
			t.Errorf("held back %v, want %v", held, c.Expected.HeldBack)
		}
		exact.PlaceAll(st, policytest.Pointers(reqs), policytest.Pointers(out))
		var in []policy.Decision
		for _, q := range admitted {
			in = append(in, out[q])
		}
		c.checkAssign(t, reqs, out)
		c.checkFairShare(t, c, 1, in)
	}, "admission+default")
}

func TestConversationDecidesEveryPublishedCase(t *testing.T) {
	placements := map[string]Placement{"round_robin": PlaceRoundRobin, "least_queued": PlaceLeastQueued, "least_tokens": PlaceLeastTokens}
	eachCase(t, func(t *testing.T, c *routerCase) {
		p := NewConversation(ConversationOptions{Placement: placements[c.Params.Placement], MaxConversations: c.Params.MaxSessions,
			Multiplier: c.Params.Multiplier})
		Exactly(p)
		for _, step := range c.steps() {
			st, reqs := step.state(c.Params.MaxActive), step.requests()
			out := p.decided(st, reqs)
			step.checkAssign(t, reqs, out)
			step.checkFairShare(t, c, max(c.Params.Multiplier, 1), out)
			got := p.homes.lru.Keys()
			if len(got) != len(step.Expected.Map) {
				t.Fatalf("remembered %v, want %v", got, step.Expected.Map)
			}
			for i, e := range step.Expected.Map {
				if rank, _ := p.homes.get(e[0].(string)); got[i] != xxh3.HashString128(e[0].(string)) || rank != int32(e[1].(float64)) {
					t.Fatalf("remembered %v, want %v", got, step.Expected.Map)
				}
			}
			if p.cursor != step.Expected.Cursor {
				t.Errorf("cursor %d, want %d", p.cursor, step.Expected.Cursor)
			}
		}
	}, "conversation")
}

func TestServeKVAwareDecidesEveryPublishedCase(t *testing.T) {
	eachCase(t, func(t *testing.T, c *routerCase) {
		o := ServeKVAwareOptions{LoadWeight: orOff(c.Params.LoadWeight)}
		if c.Params.LoadCap != nil {
			o.Cap = *c.Params.LoadCap * float64(cmp.Or(c.Params.MaxBatchSize, 64))
		}
		p := NewServeKVAware(o)
		for _, step := range c.steps() {
			st, reqs := step.state(0), step.requests()
			st.BlockSize = c.Params.TokensPerBlock
			out := make([]policy.Decision, 1)
			reqs[0].Tokens = 8192
			p.Place(st, &reqs[0], &out[0])
			if got, err := strconv.Atoi(string(step.Expected.Assign)); err != nil || out[0].Rank != int32(got) {
				t.Errorf("request %d on rank %d (%v), want %s", reqs[0].ID, out[0].Rank, out[0].Reason, step.Expected.Assign)
			}
			for i, s := range out[0].Scores {
				if s.Total != step.Expected.Scores[i] {
					t.Errorf("rank %d has score %v, want %v", i, s.Total, step.Expected.Scores[i])
				}
			}
			for key, server := range step.Expected.Pins {
				if got, ok := p.contents.get(key); !ok || "s"+strconv.Itoa(int(got)) != server {
					t.Errorf("content %s stays on rank %d, want %s", key, got, server)
				}
			}
			if p.turn != step.Expected.Turn {
				t.Errorf("turn %d, want %d", p.turn, step.Expected.Turn)
			}
		}
	}, "serve_kv_aware")
}
