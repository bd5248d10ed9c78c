package agents

import (
	"errors"
	"math"
	"reflect"
	"testing"

	"github.com/kvconn/kvconn/router/replay"
)

func generate(t *testing.T, o Options) (reused, meanPrompt float64) {
	t.Helper()
	tr, err := Generate(o)
	if err != nil {
		t.Fatal(err)
	}
	seen := make([]bool, tr.DistinctBlocks)
	hits, all := 0, 0
	last := 0.0
	for i, r := range tr.Requests {
		if r.At < last || r.OutputTokens < 1 || len(r.Blocks) != r.InputTokens/tr.BlockTokens {
			t.Fatalf("request %d: %+v", i, r)
		}
		last = r.At
		hit := 0
		for hit < len(r.Blocks) && seen[r.Blocks[hit]] {
			hit++
		}
		hits += hit * tr.BlockTokens
		all += r.InputTokens
		for _, b := range r.Blocks[hit:] {
			if seen[b] {
				t.Fatalf("request %d: a block after a gap was seen before", i)
			}
			seen[b] = true
		}
	}
	for b, ok := range seen {
		if !ok {
			t.Fatalf("block %d of %d is never used", b, len(seen))
		}
	}
	n := float64(len(tr.Requests))
	if rate := n / last; math.Abs(rate/o.RequestsPerS-1) > 0.15 {
		t.Errorf("%.3f requests a second, want %v", rate, o.RequestsPerS)
	}
	return float64(hits) / float64(all), float64(all) / n
}

func TestAgentsAreAsDescribed(t *testing.T) {
	for _, o := range []Options{
		{RequestsPerS: 0.5, Requests: 6000},
		{RequestsPerS: 5, Requests: 6000, MeanPromptTokens: 40_000, Reuse: 0.9, Agents: 100, Seed: 7},
		{RequestsPerS: 2, Requests: 3000, MeanPromptTokens: 30_000, Reuse: 0.8, Agents: 8, Kinds: 1, BlockTokens: 64},
	} {
		want := o
		want.EnsureDefaults()
		reused, mean := generate(t, o)
		if math.Abs(mean/float64(want.MeanPromptTokens)-1) > 0.15 || math.Abs(reused-want.Reuse) > 0.025 { // sessions are shorter at the beginning
			t.Errorf("%+v: mean prompt %.0f, reuse %.3f", o, mean, reused)
		}
	}
}

func TestEqualOptionsGiveEqualTraces(t *testing.T) {
	a, _ := Generate(Options{Requests: 300})
	b, _ := Generate(Options{Requests: 300})
	c, _ := Generate(Options{Requests: 300, Seed: 1})
	if !reflect.DeepEqual(a, b) || reflect.DeepEqual(a, c) {
		t.Error("the seed does not decide")
	}
}

func TestATextDescribesAgents(t *testing.T) {
	m := replay.Options{Nodes: 2}
	got, err := FromText("agents:load=2,agents=8,requests=200,prompt=50000,reuse=0.9,kinds=2,output=100,seed=3", m, 256)
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Agents: 8, Requests: 200, MeanPromptTokens: 50000, Reuse: 0.9, Kinds: 2, MeanOutputTokens: 100, Seed: 3, BlockTokens: 256}
	o.RequestsPerS = 2 * Rate(m, o)
	want, _ := Generate(o)
	if !reflect.DeepEqual(got, want) {
		t.Error("another trace than that of the options")
	}
	if disk, compute := Rate(m, o), Rate(replay.Options{DiskBlocks: -1}, o); math.Abs(disk-2*3e9/(45000*131072)) > 1e-9 || math.Abs(compute-8*10000/5000.) > 1e-9 {
		t.Errorf("%v and %v requests a second", disk, compute)
	}
	if tr, err := FromText("agents:", m, 512); err != nil || len(tr.Requests) != 3000 {
		t.Errorf("the defaults: %v", err)
	}
	for _, bad := range []string{"agents:load", "agents:speed=1", "agents:load=0", "agents:load=-1", "agents:load=NaN", "agents:agents=x", "agents:load=1e300"} {
		if _, err := FromText(bad, m, 512); !errors.Is(err, ErrText) {
			t.Errorf("%s: %v", bad, err)
		}
	}
	for _, bad := range []string{"agents:agents=4294967295", "agents:requests=4294967295", "agents:prompt=4000000000", "agents:reuse=1", "agents:prompt=10", "agents:requests=1000000,prompt=1000000", "agents:kinds=1e9", "agents:output=1e9"} {
		if _, err := FromText(bad, m, 512); err == nil {
			t.Errorf("%s: was generated", bad)
		}
	}
}
