package leader

import (
	"fmt"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
)

// speeds are those of a disk that all ranks share and of a host tier.
type speeds struct {
	DiskBytesPerS, DiskLatencyS float64
	DiskQueuedBytes             int64
	HostBytesPerS               float64
}

// testTiers are a host tier of some records before a disk that has all; a block of the fixture has
// 1000 bytes.
type testTiers struct {
	speeds speeds
	host   map[connector.Key]bool
}

// levels are the two.
func (x *testTiers) levels() []store.Level {
	return []store.Level{
		&testLevel{name: "host", has: x.host, speed: func() store.Speed {
			return store.Speed{BytesPerS: x.speeds.HostBytesPerS, PerRank: true}
		}},
		&testLevel{name: "disk", speed: func() store.Speed {
			return store.Speed{BytesPerS: x.speeds.DiskBytesPerS, LatencyS: x.speeds.DiskLatencyS, QueuedBytes: x.speeds.DiskQueuedBytes}
		}},
	}
}

// testLevel has some records.
type testLevel struct {
	name  string
	has   map[connector.Key]bool
	speed func() store.Speed
	calls int             // of Present
	shard connector.Shard // of the last call
}

func (v *testLevel) Name() string       { return v.name }
func (v *testLevel) Speed() store.Speed { return v.speed() }
func (v *testLevel) Usage() store.Usage { return store.Usage{} }
func (v *testLevel) Present(_ connector.NamespaceDigest, shard connector.Shard, keys []connector.Key, at []bool) {
	v.calls, v.shard = v.calls+1, shard
	for i, k := range keys {
		at[i] = at[i] || v.has[k]
	}
}

// newPriced is a leader of an engine that computes 4,000 tokens a second, which are 1,000
// blocks: a disk of 1 MB/s is as fast.
func newPriced(t *testing.T, change func(*Options)) (*fixture, *testTiers) {
	x := &testTiers{host: map[connector.Key]bool{}}
	f := newFixture(t, func(o *Options) {
		o.Levels, o.PrefillTokensPerS = x.levels(), 4000
		if change != nil {
			change(o)
		}
	})
	f.run("seed", tokens(0, 82), 0, connector.Scope{})
	return f, x
}

func (f *fixture) offered(n int, id any) int {
	f.Helper()
	return f.match(connector.MatchRequest{Request: fmt.Sprint(id), Tokens: tokens(0, n)})
}

func TestOfferEndsWhereLoadingIsSlowerThanPrefill(t *testing.T) {
	for _, tc := range []struct {
		name   string
		speeds speeds
		host   int // blocks in the host tier, from the first on
		want   int
	}{
		{"nothing measured", speeds{}, 0, 80},
		{"fast disk", speeds{DiskBytesPerS: 1e9}, 0, 80},
		{"slow disk", speeds{DiskBytesPerS: 0.9e6}, 0, 0},
		{"disk just faster", speeds{DiskBytesPerS: 1.1e6}, 0, 80},
		{"latency is more than all of the prefill", speeds{DiskBytesPerS: 1e9, DiskLatencyS: 0.021}, 0, 0},
		{"latency is less", speeds{DiskBytesPerS: 1e9, DiskLatencyS: 0.019}, 0, 80},
		{"queue of 30 ms", speeds{DiskBytesPerS: 1e8, DiskQueuedBytes: 3e6}, 0, 0},
		{"queue of 10 ms", speeds{DiskBytesPerS: 1e8, DiskQueuedBytes: 1e6}, 0, 80},
		{"slow disk and a fast host tier", speeds{DiskBytesPerS: 0.5e6, HostBytesPerS: 1e9}, 7, 28},
		{"slow disk, all in the host tier", speeds{DiskBytesPerS: 1, DiskLatencyS: 9, HostBytesPerS: 1e9}, 20, 80},
		{"slow disk for the end only", speeds{DiskBytesPerS: 0.5e6, HostBytesPerS: 1e9}, 19, 76},
		{"slow host tier", speeds{DiskBytesPerS: 1e9, HostBytesPerS: 0.5e6}, 20, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f, x := newPriced(t, nil)
			x.speeds = tc.speeds
			for _, k := range f.keys(tokens(0, 82))[:tc.host] {
				x.host[k] = true
			}
			if got := f.offered(82, "r"); got != tc.want {
				t.Errorf("offer of %d tokens, want %d", got, tc.want)
			}
			if got := f.x.pinned(); got != tc.want/4 {
				t.Errorf("%d records pinned for %d tokens", got, tc.want)
			}
			s := f.Stats()
			full, trimmed, refused := 1, 0, 0 // the seed had nothing to decide
			if tc.want < 80 {
				full, trimmed = 0, 1
			}
			if tc.want == 0 {
				trimmed, refused = 0, 1
			}
			if s.DecisionsFull != uint64(full) || s.DecisionsTrimmed != uint64(trimmed) || s.DecisionsRefused != uint64(refused) {
				t.Errorf("decisions %d full, %d trimmed, %d refused", s.DecisionsFull, s.DecisionsTrimmed, s.DecisionsRefused)
			}
			if s.LoadBytesPerS["disk"] != tc.speeds.DiskBytesPerS || s.QueuedBytes != tc.speeds.DiskQueuedBytes || s.PrefillTokensPerS != 4000 {
				t.Errorf("stats %+v hide what the decision was made with", s)
			}
		})
	}
}

func TestRanksShareTheDisk(t *testing.T) {
	f, x := newPriced(t, func(o *Options) { o.Manifest.TensorParallel = 4 })
	x.speeds.DiskBytesPerS = 3.9e6
	if got := f.offered(82, "r"); got != 0 {
		t.Errorf("offer of %d tokens: four ranks together are slower than prefill", got)
	}
	x.speeds.DiskBytesPerS = 5.1e6
	if got := f.offered(82, "s"); got != 80 {
		t.Errorf("offer of %d tokens from a disk fast enough for four ranks, want 80", got)
	}
}

// Ranks on other nodes load from disks of their own. What this node's disk has is what its own ranks' shards say.
func TestRanksOnOtherNodesDoNotShareTheDisk(t *testing.T) {
	f, x := newPriced(t, func(o *Options) { o.Manifest.TensorParallel = 4 })
	f.SetHere([]int{2, 3})
	x.speeds = speeds{DiskBytesPerS: 1.9e6, HostBytesPerS: 1e9}
	if got := f.offered(82, "slow"); got != 0 {
		t.Errorf("offer of %d tokens: the two ranks here are slower than prefill", got)
	}
	if shard := f.opts.Levels[0].(*testLevel).shard; shard != 2 {
		t.Errorf("looked for shard %d, want the first that is loaded here", shard)
	}
	x.speeds.DiskBytesPerS = 2.6e6
	if got := f.offered(82, "fast"); got != 80 {
		t.Errorf("offer of %d tokens from a disk fast enough for the two ranks here, want 80", got)
	}
	f.SetHere(nil)
	x.speeds.DiskBytesPerS = 3.9e6
	if got := f.offered(82, "nothing known"); got != 0 {
		t.Errorf("offer of %d tokens: all ranks may be here, and are slower than prefill", got)
	}
}

func TestWindowsCostOnlyWhatIsLoaded(t *testing.T) {
	f, x := newPriced(t, hybrid)
	x.speeds.DiskBytesPerS = 1.3e6 // 20 blocks and a window of 4 take 18.5 ms, prefill 20
	if got := f.offered(82, "r"); got != 80 {
		t.Errorf("offer of %d tokens, want 80", got)
	}
}

func TestPricedBoundaryIsOneThatTheWindowsHave(t *testing.T) {
	f, x := newPriced(t, hybrid)
	x.speeds = speeds{DiskBytesPerS: 0.5e6, HostBytesPerS: 1e9}
	keys := f.keys(tokens(0, 82))
	for _, k := range keys[:10] {
		x.host[k] = true // best would be boundary 10, whose window has no block 9
	}
	f.setStored(1, keys[9], false)
	if got := f.offered(82, "r"); got != 36 {
		t.Errorf("offer of %d tokens, want 36", got)
	}
	if got, want := f.x.pinned(), 9+4; got != want {
		t.Errorf("%d records pinned, want %d", got, want)
	}
	if s := f.Stats(); s.DecisionsTrimmed != 1 {
		t.Errorf("decisions %+v, want one trimmed", s)
	}
}

func TestDecisionsHaveHysteresis(t *testing.T) {
	f, x := newPriced(t, nil)
	for i, tc := range []struct{ mbPerS, want float64 }{
		{1.05, 80}, {0.95, 0}, {1.05, 0}, {1.2, 0}, {1.26, 80}, {1.05, 80}, {1.01, 80}, {0.99, 0},
	} {
		x.speeds.DiskBytesPerS = tc.mbPerS * 1e6
		if got := f.offered(82, i); got != int(tc.want) {
			t.Errorf("offer of %d tokens at %.2f MB/s, want %v", got, tc.mbPerS, tc.want)
		}
	}
}

func TestRefusedTierIsProbedOnceASecond(t *testing.T) {
	probes := 0
	f, x := newPriced(t, func(o *Options) { o.Probe = func() { probes++ } })
	x.speeds.DiskBytesPerS = 1e9
	f.offered(82, "a")
	if probes != 0 {
		t.Fatal("a tier that is in use is probed")
	}
	x.speeds.DiskBytesPerS = 1
	for i := range 100 {
		f.offered(82, i)
		f.step(connector.StepRequest{})
		f.clock.advance(100 * time.Millisecond)
	}
	if probes != 10 {
		t.Errorf("%d probes in 10 s, want 10", probes)
	}
	if !f.Stats().TierRefused {
		t.Error("the status does not show it")
	}
	x.speeds.DiskBytesPerS = 1e9
	if got := f.offered(82, "b"); got != 80 || f.Stats().TierRefused {
		t.Errorf("offer of %d tokens once the tier is fast again, want 80", got)
	}
}

func TestRepeatedMatchesCountAsOneDecision(t *testing.T) {
	f, x := newPriced(t, nil)
	x.speeds.DiskBytesPerS = 1
	for range 10 {
		f.offered(82, "r")
	}
	if got := f.Stats().DecisionsRefused; got != 1 {
		t.Errorf("%d decisions, want 1", got)
	}
}

// prefill runs one request's chunks and two decodes, each step taking its time.
func (f *fixture) prefill(id string, chunk int, step, decode time.Duration, overlap bool) {
	f.match(connector.MatchRequest{Request: id, Tokens: tokens(0, 2*chunk+1)})
	took := []time.Duration{step, step, decode, decode}
	if overlap { // the scheduler is one step ahead
		took = []time.Duration{0, step, step, decode}
	}
	for i, count := range []int{chunk, chunk, 1, 1} {
		f.step(connector.StepRequest{Scheduled: []connector.Scheduled{{Request: id, Computed: min(i, 2) * chunk, Count: count}}})
		f.clock.advance(took[i])
	}
	f.step(connector.StepRequest{Finished: []string{id}})
}

func TestPrefillSpeedIsLearntFromBusySteps(t *testing.T) {
	for _, overlap := range []bool{false, true} {
		f := newFixture(t, nil)
		for i := range 10 {
			if s := f.Stats().PrefillTokensPerS; i < 2 && s != 0 {
				t.Fatalf("speed %v after %d requests", s, i)
			}
			f.prefill(fmt.Sprint(i), 512, 100*time.Millisecond, time.Millisecond, overlap)
			f.clock.advance(time.Hour) // idle
		}
		if s := f.Stats().PrefillTokensPerS; s < 5100 || s > 5140 {
			t.Errorf("overlap %v: learnt %v tokens/s, want 5120", overlap, s)
		}
	}
	f := newFixture(t, nil)
	for i := range 10 {
		f.prefill(fmt.Sprint(i), 100, time.Millisecond, time.Millisecond, false)
	}
	if s := f.Stats().PrefillTokensPerS; s != 0 {
		t.Errorf("learnt %v tokens/s from small steps", s)
	}
}

// A client that tells a decoding request only where it fills a block, as vLLM's does, tells
// many steps at once: the time between two of its calls is not that of one step.
func TestPrefillSpeedIsNotLearntFromStepsToldTogether(t *testing.T) {
	const chunk = 512
	prefill := 100 * time.Millisecond
	for name, decode := range map[string]func(computed int) connector.Scheduled{
		"steps since the last call": func(computed int) connector.Scheduled { return connector.Scheduled{Computed: computed, Count: 4} },
		"this step only":            func(computed int) connector.Scheduled { return connector.Scheduled{Computed: computed + 3, Count: 1} },
	} {
		f := newFixture(t, nil)
		for i := range 20 {
			id := fmt.Sprint(i)
			f.match(connector.MatchRequest{Request: id, Tokens: tokens(0, 3*chunk)})
			for k := range 3 {
				f.step(connector.StepRequest{Scheduled: []connector.Scheduled{{Request: id, Computed: k * chunk, Count: chunk}}})
				f.clock.advance(prefill)
			}
			for computed := 3 * chunk; computed < 3*chunk+16; computed += 4 {
				f.clock.advance(3 * prefill) // of the decodes that nobody tells
				s := decode(computed)
				s.Request = id
				f.step(connector.StepRequest{Scheduled: []connector.Scheduled{s}})
				f.clock.advance(prefill)
			}
			f.step(connector.StepRequest{Finished: []string{id}})
		}
		if s := f.Stats().PrefillTokensPerS; s < 5100 || s > 5140 {
			t.Errorf("%s: learnt %v tokens/s, want 5120 from the chunks that follow each other", name, s)
		}
	}
}

func TestOffersAreFullUntilPrefillIsKnown(t *testing.T) {
	f, x := newPriced(t, func(o *Options) { o.PrefillTokensPerS = 0 })
	x.speeds.DiskBytesPerS = 1
	if got := f.offered(82, "r"); got != 80 {
		t.Errorf("offer of %d tokens, want 80: nobody knows what prefill takes", got)
	}
}
