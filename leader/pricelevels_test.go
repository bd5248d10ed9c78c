package leader

import (
	"fmt"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/seed"
	"github.com/kvconn/kvconn/leader/pricing"
	"github.com/kvconn/kvconn/leader/sources"
	"github.com/kvconn/kvconn/store"
)

// The price of a host tier before a disk, written out for these two.
func twoLevelsBest(x *testTiers, groups []pricing.Group, keys []connector.Key, blockSize, payload int, blockS, margin float64) int {
	var diskS, hostS, startS float64
	if x.speeds.DiskBytesPerS > 0 {
		diskS = margin / x.speeds.DiskBytesPerS
		startS = margin*x.speeds.DiskLatencyS + diskS*float64(x.speeds.DiskQueuedBytes)
	}
	if x.speeds.HostBytesPerS > 0 {
		hostS = margin / x.speeds.HostBytesPerS
	}
	worstS := 0.0
	for g := range groups {
		worstS += max(float64(payload*len(groups[g].Shards))*diskS, float64(payload)*hostS)
	}
	if n := float64(len(keys)); worstS <= blockS && n*(blockS-worstS) > startS {
		return len(keys)
	}
	saved := func(boundary int) float64 {
		v, fromDisk := float64(boundary)*blockS, false
		for g := range groups {
			for i := max(0, groups[g].FirstBlock(boundary*blockSize, blockSize)); i < boundary; i++ {
				if x.host[keys[i]] {
					v -= float64(payload) * hostS
				} else {
					v -= float64(payload*len(groups[g].Shards)) * diskS
					fromDisk = true
				}
			}
		}
		if fromDisk {
			v -= startS
		}
		return v
	}
	best := 0
	for b := 1; b <= len(keys); b++ {
		if v := saved(b); v > 1e-12 && v >= saved(best)-1e-12 {
			best = b
		}
	}
	return best
}

func TestPriceOfTwoLevelsIsTheirFormula(t *testing.T) {
	rng := seed.Random(t, 0)
	for range 500 {
		x := &testTiers{host: map[connector.Key]bool{}, speeds: speeds{
			DiskBytesPerS: []float64{0, 1e6, 3e6, 1e8}[rng.IntN(4)], DiskLatencyS: rng.Float64() * 0.01,
			DiskQueuedBytes: rng.Int64N(20_000), HostBytesPerS: []float64{0, 1e6, 2e6, 1e9}[rng.IntN(4)],
		}}
		f := newFixture(t, func(o *Options) {
			o.Levels = x.levels()
			o.Manifest = testManifest(connector.Group{Layers: 1}, connector.Group{Layers: 1, Window: 4 * (1 + rng.IntN(6))})
			o.Manifest.TensorParallel = 1 + rng.IntN(3)
		})
		keys := f.keys(tokens(0, 4*(1+rng.IntN(30))))
		for _, k := range keys {
			x.host[k] = rng.IntN(3) > 0
		}
		blockS := rng.Float64() * 0.01
		f.price.Refusing = rng.IntN(2) == 0
		margin := 1.0
		if f.price.Refusing {
			margin = 1 / pricing.ReacceptRatio
		}
		got := f.price.Best(&f.have, keys, 0, len(keys), blockS)
		want := twoLevelsBest(x, f.groups, keys, f.bs, f.x.bytes, blockS, margin)
		if got != want {
			t.Fatalf("boundary %d of %d, want %d: %+v, %v s a block, margin %v", got, len(keys), want, x.speeds, blockS, margin)
		}
	}
}

// A block has the price of the first level that has it, whatever their number, and each level is
// asked once for a group's blocks.
func TestThirdLevelIsPricedAsTheOthers(t *testing.T) {
	const tokensOfBlocks = 82
	for _, tc := range []struct {
		name               string
		host, disk         int // leading blocks
		slow               float64
		latency            float64
		queued, ahead      int64
		want               int
		hostCalls, diskAsk int
	}{
		{"fast enough, at a glance", 5, 10, 1e9, 0, 0, 0, 80, 0, 0},
		{"slow end is left out", 5, 10, 0.9e6, 0, 0, 0, 40, 1, 1},
		{"all of it slow", 0, 0, 0.9e6, 0, 0, 0, 0, 1, 1},
		{"latency eats the end", 5, 10, 1e9, 0.021, 0, 0, 40, 1, 1},
		{"so does a queue", 5, 10, 1e8, 0, 2_100_000, 0, 40, 1, 1},
		{"but not of bytes that are read ahead", 5, 10, 1e8, 0, 2_100_000, 2_000_000, 80, 0, 0},
		{"nothing comes from the slow level", 5, 20, 1, 9, 0, 0, 80, 1, 1},
		{"slow level not measured", 5, 10, 0, 9, 9, 0, 80, 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			host := &testLevel{name: "host", has: map[connector.Key]bool{}, speed: func() store.Speed { return store.Speed{BytesPerS: 1e10, PerRank: true} }}
			disk := &testLevel{name: "disk", has: map[connector.Key]bool{}, speed: func() store.Speed { return store.Speed{BytesPerS: 1e9} }}
			slow := &testLevel{name: "object", speed: func() store.Speed {
				return store.Speed{BytesPerS: tc.slow, LatencyS: tc.latency, QueuedBytes: tc.queued, AheadBytes: tc.ahead}
			}}
			f := newFixture(t, func(o *Options) {
				o.Levels, o.PrefillTokensPerS = []store.Level{host, disk, slow}, 4000
			})
			f.run("seed", tokens(0, tokensOfBlocks), 0, connector.Scope{})
			keys := f.keys(tokens(0, tokensOfBlocks))
			for _, k := range keys[:tc.host] {
				host.has[k] = true
			}
			for _, k := range keys[:tc.disk] {
				disk.has[k] = true
			}
			if got := f.offered(tokensOfBlocks, "r"); got != tc.want {
				t.Errorf("offer of %d tokens, want %d", got, tc.want)
			}
			counting := min(tc.want, 1) // what is offered is counted by tier
			if host.calls != tc.hostCalls+counting || disk.calls != tc.diskAsk+counting || slow.calls != 0 {
				t.Errorf("%d, %d and %d calls of Present", host.calls, disk.calls, slow.calls)
			}
			s := f.Stats()
			fromHost, fromDisk := min(tc.host*f.bs, tc.want), min(tc.disk*f.bs, tc.want)
			want := sources.Stats{HostTokens: uint64(fromHost), DiskTokens: uint64(fromDisk - fromHost), ObjectTokens: uint64(tc.want - fromDisk)}
			want.ComputedTokens = uint64(2*tokensOfBlocks - tc.want) // the seed's too
			if s.Stats != want {
				t.Errorf("counted as %+v, want %+v", s.Stats, want)
			}
			if want := map[string]float64{"host": 1e10, "disk": 1e9, "object": tc.slow}; fmt.Sprint(s.LoadBytesPerS) != fmt.Sprint(want) {
				t.Errorf("stats have the speeds %v, want %v", s.LoadBytesPerS, want)
			}
			if s.LoadLatencyS != tc.latency || s.QueuedBytes != tc.queued-tc.ahead {
				t.Errorf("stats have a latency of %v s and %d bytes queued", s.LoadLatencyS, s.QueuedBytes)
			}
		})
	}
}
