package published

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"testing"

	"github.com/kvconn/kvconn/internal/testkit/docs"
	"github.com/kvconn/kvconn/internal/testkit/policytest"
	"github.com/kvconn/kvconn/router/inflight"
	"github.com/kvconn/kvconn/router/policy"
)

// The published algorithms' answers; the fields are explained in the file itself.
type casesFile struct {
	TieBreak []struct {
		Seed uint64
		N    int
		Perm []int32
	} `json:"tie_break_vectors"`
	Cases []routerCase
}

type routerCase struct {
	Name, Policy string
	Params       caseParams
	caseStep
	Then []caseStep
}

type caseParams struct {
	Beta, Threshold, Multiplier float64
	MaxActive                   int `json:"max_active"`
	Warmup                      bool
	ExpectedActive              int `json:"expected_active"`
	Placement                   string
	MaxSessions                 int      `json:"max_sessions"`
	TokensPerBlock              int      `json:"tokens_per_block"`
	LoadWeight                  float64  `json:"load_weight"`
	LoadCap                     *float64 `json:"load_cap"`
	MaxBatchSize                int      `json:"max_batch_size"`
}

type caseStep struct {
	Ranks []struct {
		Rank   int32
		Active int
		Tokens int64
	}
	Requests []struct {
		ID           uint64
		Len          int
		Base         uint32
		Match        []int32
		DPRank       *int32 `json:"dp_rank"`
		Relax        *bool
		Conv, Parent string
		ConvKey      string `json:"conv_key"`
	}
	Expected caseAnswer
}

type caseAnswer struct {
	Assign         json.RawMessage
	ExpectedActive int `json:"expected_active"`
	Unassigned     []uint64
	HeldBack       []uint64 `json:"held_back"`
	Decisions      []struct {
		ID            uint64
		Eligible      []int32
		Loads, Scores []float64
		Gate          bool
		Acceptable    []int32
		Chosen        int32
	}
	PendingWarmup []int32 `json:"pending_warmup"`
	Map           [][2]any
	Cursor        int
	Scores        []float64
	Pins          map[string]string
	Turn          int `json:"rr_counter"`
	Error         string
}

// caseFiles are the few cases that come along and, where it is at hand, the file they are from.
func caseFiles(t *testing.T) []casesFile {
	t.Helper()
	var all []casesFile
	for _, path := range []string{"testdata/router_cases.json", "../../../../shared/data/router_cases.json"} {
		b, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) && len(all) > 0 {
			t.Logf("%s is not here: only the cases of testdata were run", path)
			return all
		}
		var f casesFile
		if err == nil {
			err = json.Unmarshal(b, &f)
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, f)
	}
	return all
}

// eachCase runs f for every case of one of the policies.
func eachCase(t *testing.T, f func(t *testing.T, c *routerCase), policies ...string) {
	t.Helper()
	n := 0
	for _, file := range caseFiles(t) {
		for i := range file.Cases {
			c := &file.Cases[i]
			for _, p := range policies {
				if c.Policy == p {
					t.Run(c.Name, func(t *testing.T) { f(t, c) })
					n++
				}
			}
		}
	}
	if n == 0 {
		t.Fatalf("no case of %v", policies)
	}
	t.Logf("%d cases", n)
}

// steps returns all calls of a case.
func (c *routerCase) steps() []*caseStep {
	all := []*caseStep{&c.caseStep}
	for i := range c.Then {
		all = append(all, &c.Then[i])
	}
	return all
}

// state returns the state of a step.
func (s *caseStep) state(maxActive int) *policy.State {
	st := policy.State{BlockSize: 16}
	for _, r := range s.Ranks {
		st.Ranks = append(st.Ranks, policy.Rank{ID: r.Rank, Ready: true, Capacity: policy.Capacity{MaxActive: maxActive},
			Load: inflight.Rank{ActiveRequests: r.Active, PromptTokens: r.Tokens, UncachedTokens: r.Tokens}})
	}
	return &st
}

// requests returns the requests of a step.
func (s *caseStep) requests() []policy.Request {
	var all []policy.Request
	for _, q := range s.Requests {
		r := policy.Request{ID: q.ID, Tokens: q.Len, Conversation: cmp.Or(q.Parent, q.Conv), Content: q.ConvKey, Pin: policy.NoPin, Explain: true}
		for i := range min(q.Len, 64) {
			r.Head = append(r.Head, q.Base+uint32(i))
		}
		if q.DPRank != nil {
			r.Pin, r.Strict = *q.DPRank, q.Relax != nil && !*q.Relax
		}
		for _, m := range q.Match {
			r.Match = append(r.Match, policy.Match{GPU: m, Usable: m})
		}
		all = append(all, r)
	}
	return all
}

// decided returns the decisions of a batch that no admission has looked at, as most cases are recorded.
func (b *batch) decided(s *policy.State, reqs []policy.Request) []policy.Decision {
	out := make([]policy.Decision, len(reqs))
	b.begin(s, policytest.Pointers(reqs), policytest.Pointers(out))
	b.decide()
	b.end()
	return out
}

// checkAssign compares decisions with the published assignment.
func (s *caseStep) checkAssign(t *testing.T, reqs []policy.Request, out []policy.Decision) {
	t.Helper()
	var assign map[int32][]uint64
	if err := json.Unmarshal(s.Expected.Assign, &assign); err != nil {
		t.Fatal(err)
	}
	want := map[uint64]int32{}
	for rank, ids := range assign {
		for _, id := range ids {
			want[id] = rank
		}
	}
	for i := range reqs {
		rank, ok := want[reqs[i].ID]
		if !ok {
			rank = -1
		}
		if out[i].Rank != rank || out[i].Placed() != ok {
			t.Errorf("request %d on rank %d (%v), want %d", reqs[i].ID, out[i].Rank, out[i].Reason, rank)
		}
	}
}

// checkFairShare compares the published number of requests that a rank may have after the step.
func (s *caseStep) checkFairShare(t *testing.T, c *routerCase, multiplier float64, out []policy.Decision) {
	t.Helper()
	var b batch
	st := s.state(c.Params.MaxActive)
	b.begin(st, nil, nil)
	got := b.fairShare(multiplier, len(out))
	for i := range st.Ranks {
		for _, d := range out {
			if d.Index == i {
				st.Ranks[i].Load.ActiveRequests++
			}
		}
		got = max(got, st.Ranks[i].Load.ActiveRequests)
	}
	if got = min(got, c.Params.MaxActive); got != s.Expected.ExpectedActive {
		t.Errorf("a rank may have %d requests, want %d", got, s.Expected.ExpectedActive)
	}
}

func TestTheDecisionNamesTheNumberOfCases(t *testing.T) {
	docs.Says(t, "adr/0008-router-policies.md", fmt.Sprintf("%d recorded cases are in `testdata`", len(caseFiles(t)[0].Cases)))
}

func TestTieBreakPermutationsAreThePublishedOnes(t *testing.T) {
	for _, f := range caseFiles(t) {
		for _, v := range f.TieBreak {
			var m mt19937
			m.seed(v.Seed)
			got := make([]int32, v.N)
			m.permute(got)
			for i := range got {
				if got[i] != v.Perm[i] {
					t.Fatalf("seed %d: %v, want %v", v.Seed, got, v.Perm)
				}
			}
		}
	}
}
