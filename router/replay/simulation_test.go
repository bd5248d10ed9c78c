package replay

import (
	"context"
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/kvconn/kvconn/router/policy"
)

// at returns a request of whole blocks of 100 tokens.
func at(seconds float64, output int, blocks ...int32) Request {
	return Request{At: seconds, InputTokens: 100 * len(blocks), OutputTokens: output, Blocks: blocks}
}

func traceOf(requests ...Request) *Trace {
	t := &Trace{Requests: requests, BlockTokens: 100}
	for _, r := range requests {
		for _, b := range r.Blocks {
			t.DistinctBlocks = max(t.DistinctBlocks, int(b)+1)
		}
	}
	return t
}

// small is a rank that computes a block in a second and loads one from disk in half a second.
func small(change func(o *Options)) Options {
	o := Options{
		Ranks: 1, GPUBlocks: 10, DiskBlocks: 100, PrefillTokensPerS: 100, BytesPerToken: 1, DiskBytesPerS: 200,
		ObjectBytesPerS: 400, ObjectDelay: 0.25, DecodeTokenTime: 1,
	}
	if change != nil {
		change(&o)
	}
	return o
}

// recorder keeps what a policy was shown.
type recorder struct {
	policy.Policy
	ranks   [][]policy.Rank
	matches [][]policy.Match
}

func (p *recorder) Place(s *policy.State, r *policy.Request, d *policy.Decision) {
	p.ranks = append(p.ranks, slices.Clone(s.Ranks))
	p.matches = append(p.matches, slices.Clone(r.Match))
	p.Policy.Place(s, r, d)
}

func TestKnownAnswers(t *testing.T) {
	prompts := func(r ...Request) []Request { return r }
	loadOnSecondRank := prompts(at(0, 1, 0, 1), at(10, 1, 0, 1, 2))
	queued := prompts(at(0, 1, 0, 1), at(10, 1, 3, 4, 5), at(10, 1, 6), at(10, 1, 0, 1, 2))
	for name, c := range map[string]struct {
		change              func(o *Options)
		requests            []Request
		ttft                []float64 // sorted
		gpu, disk, object   float64   // blocks
		computed            int64
		diskRead, diskWrite float64
		dropped             float64
		refused             int
	}{
		"the second waits for the first and uses its blocks": {
			requests: prompts(at(0, 10, 0, 1), at(1, 1, 0, 1, 2), at(10, 1, 3)), ttft: []float64{1, 2, 2}, gpu: 2, computed: 400, diskWrite: 400,
		},
		"the last token of a cached prompt is computed": {
			requests: prompts(at(0, 1, 0), at(5, 1, 0)), ttft: []float64{0.01, 1}, gpu: 1, computed: 101, diskWrite: 100,
		},
		"a prompt of no tokens": {
			requests: prompts(at(0, 1)), ttft: []float64{0},
		},
		"another rank loads from disk": {
			change:   func(o *Options) { o.Ranks = 2 },
			requests: loadOnSecondRank, ttft: []float64{2, 2}, disk: 2, computed: 300, diskRead: 200, diskWrite: 300,
		},
		"a disk that is slower than computing is left alone": {
			change:   func(o *Options) { o.Ranks, o.DiskBytesPerS = 2, 50 },
			requests: loadOnSecondRank, ttft: []float64{2, 3}, disk: 2, computed: 500, diskWrite: 300,
		},
		"unless loads are forced": {
			change:   func(o *Options) { o.Ranks, o.DiskBytesPerS, o.AlwaysLoad = 2, 50, true },
			requests: loadOnSecondRank, ttft: []float64{2, 5}, disk: 2, computed: 300, diskRead: 200, diskWrite: 300,
		},
		"a delay before the first byte": {
			change:   func(o *Options) { o.Ranks, o.DiskDelay = 2, 0.5 },
			requests: loadOnSecondRank, ttft: []float64{2, 2.5}, disk: 2, computed: 300, diskRead: 200, diskWrite: 300,
		},
		"two ranks share the disk": {
			change:   func(o *Options) { o.Ranks, o.DiskBytesPerS = 3, 400 },
			requests: prompts(at(0, 1, 0, 1), at(10, 1, 0, 1, 2), at(10, 1, 0, 1, 3)), ttft: []float64{2, 2, 2}, disk: 4, computed: 400, diskRead: 400, diskWrite: 400,
		},
		"saves that the disk is too slow for are dropped": {
			change:   func(o *Options) { o.Ranks, o.SaveBytesPerS = 2, 100 }, // a block a second, and no more than that at once
			requests: loadOnSecondRank, ttft: []float64{2, 2.5}, disk: 1, computed: 400, diskRead: 100, diskWrite: 200, dropped: 200,
		},
		"no disk": {
			change:   func(o *Options) { o.Ranks, o.DiskBlocks = 2, -1 },
			requests: loadOnSecondRank, ttft: []float64{2, 3}, computed: 500,
		},
		"another node loads from the object store": {
			change:   func(o *Options) { o.Ranks, o.Nodes, o.ObjectBlocks = 2, 2, 100 },
			requests: loadOnSecondRank, ttft: []float64{1.75, 2}, object: 2, computed: 300, diskWrite: 500,
		},
		"loads wait for their turn": {
			change:   func(o *Options) { o.Ranks = 2 },
			requests: queued, ttft: []float64{1, 2, 3, 5}, disk: 2, computed: 700, diskRead: 200, diskWrite: 700,
		},
		"or overlap with computing": {
			change:   func(o *Options) { o.Ranks, o.OverlapLoads = 2, true },
			requests: queued, ttft: []float64{1, 2, 3, 4}, disk: 2, computed: 700, diskRead: 200, diskWrite: 700,
		},
		"one request at a time": {
			change:   func(o *Options) { o.MaxRunning = 1 },
			requests: prompts(at(0, 10, 0, 1), at(1, 1, 3)), ttft: []float64{2, 12}, computed: 300, diskWrite: 300,
		},
		"a full GPU lets others wait, and takes no prompt that is too long": {
			change:   func(o *Options) { o.GPUBlocks = 3 },
			requests: prompts(at(0, 10, 0, 1), at(1, 1, 3, 4), at(2, 1, 5, 6, 7, 8)), ttft: []float64{2, 13}, computed: 400, diskWrite: 400, refused: 1,
		},
		"faster than recorded": {
			change:   func(o *Options) { o.Speed = 2 },
			requests: prompts(at(0, 1, 0, 1), at(2, 1, 3)), ttft: []float64{2, 2}, computed: 300, diskWrite: 300,
		},
		"one after the other": {
			change:   func(o *Options) { o.Sequential = true },
			requests: prompts(at(0, 50, 0, 1), at(1, 1, 3)), ttft: []float64{1, 2}, computed: 300, diskWrite: 300,
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := Simulate(t.Context(), traceOf(c.requests...), small(c.change), policy.NewRoundRobin(), nil)
			if err != nil {
				t.Fatal(err)
			}
			same := func(a, b float64) bool { return math.Abs(a-b) < 1e-9 }
			if !slices.EqualFunc(r.ttft, c.ttft, same) {
				t.Errorf("times to first token %v, want %v", r.ttft, c.ttft)
			}
			blocks := 0.0
			for _, q := range c.requests {
				if len(q.Blocks) <= small(c.change).GPUBlocks {
					blocks += float64(len(q.Blocks))
				}
			}
			if want := (ByTier{GPU: c.gpu, Disk: c.disk, Object: c.object}).over(blocks); r.BlockHits != want {
				t.Errorf("hits %+v, want %+v", r.BlockHits, want)
			}
			if r.ComputedTokens != c.computed || r.DiskReadBytes != c.diskRead || r.DiskWrittenBytes != c.diskWrite || r.Refused != c.refused {
				t.Errorf("%d tokens computed, %v bytes read, %v written, %d refused; want %d, %v, %v, %d",
					r.ComputedTokens, r.DiskReadBytes, r.DiskWrittenBytes, r.Refused, c.computed, c.diskRead, c.diskWrite, c.refused)
			}
			if r.DroppedSaveBytes != c.dropped {
				t.Errorf("%v bytes of saves dropped, want %v", r.DroppedSaveBytes, c.dropped)
			}
		})
	}
}

// A policy sees what the router would: loads on the trace's clock, speeds, and every rank's prefix.
func TestPolicySeesLoadAndPrefixes(t *testing.T) {
	p := &recorder{Policy: policy.NewRoundRobin()}
	trace := traceOf(at(0, 8, 0, 1), at(1, 8, 2), at(5, 8, 0, 1, 3))
	if _, err := Simulate(t.Context(), trace, small(func(o *Options) { o.Ranks = 2 }), p, nil); err != nil {
		t.Fatal(err)
	}
	second := p.ranks[1][0].Load
	if second.QueuedTokens != 200 || second.FrontTokens != 200 || second.FrontAge != time.Second || second.ActiveRequests != 1 {
		t.Errorf("load seen by the second request: %+v", second)
	}
	third := p.ranks[2][0].Load
	if third.QueuedTokens != 0 || third.ActiveRequests != 1 || third.DecodeBlocks != 2 {
		t.Errorf("load seen by the third request: %+v", third)
	}
	if want := []policy.Match{{GPU: 200, Usable: 200}, {Disk: 200, Usable: 200, LoadDisk: 200}}; !slices.Equal(p.matches[2], want) {
		t.Errorf("matches seen by the third request: %+v, want %+v", p.matches[2], want)
	}
	if v := p.ranks[2][1].Speeds; v.PrefillTokens != 100 || v.DiskBytes != 200 || v.BytesPerToken != 1 || v.ObjectDelay != 0.25 {
		t.Errorf("speeds %+v", v)
	}
}

// noRank places nothing.
type noRank struct{ policy.Policy }

func (noRank) Place(_ *policy.State, _ *policy.Request, d *policy.Decision) {
	*d = policy.Decision{Rank: -1, Index: -1, Reason: policy.ReasonNoRanks}
}

func TestRequestOnNoRankIsAnError(t *testing.T) {
	if _, err := Simulate(t.Context(), traceOf(at(0, 1, 0)), Options{}, noRank{}, nil); !errors.Is(err, ErrNotPlaced) {
		t.Error(err)
	}
}

func TestCancelledRunEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Simulate(ctx, traceOf(at(0, 1, 0)), Options{}, policy.NewRoundRobin(), nil); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestOptionsThatCannotWork(t *testing.T) {
	for name, o := range map[string]Options{
		"ranks": {Ranks: -1}, "nodes": {Ranks: 8, Nodes: 3}, "gpu": {GPUBlocks: -1}, "running": {MaxRunning: -1},
		"prefill": {PrefillTokensPerS: math.NaN()}, "disk": {DiskBytesPerS: -1}, "speed": {Speed: math.Inf(1)}, "hardly any speed": {Speed: 1e-310}, "hardly any prefill": {PrefillTokensPerS: 1e-310}, "spread": {Spread: -1}, "no spread": {Spread: math.NaN()}, "saves": {SaveBytesPerS: -1},
		"endless spread": {Spread: math.Inf(1)}, "no delay": {DiskDelay: math.NaN()}, "endless object delay": {ObjectDelay: math.Inf(1)}, "no decode time": {DecodeTokenTime: math.NaN()},
	} {
		if _, err := Simulate(t.Context(), traceOf(at(0, 1, 0)), o, policy.NewRoundRobin(), nil); err == nil {
			t.Errorf("%s: %+v were accepted", name, o)
		}
	}
}
