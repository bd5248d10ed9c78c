package integration

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/daemon"
	"github.com/kvconn/kvconn/internal/engine"
	"github.com/kvconn/kvconn/internal/testkit/storetest"
	"github.com/kvconn/kvconn/store/disk"
)

// processes makes every rank a process of its own.
func processes(o *engine.Options) {
	o.RankCommand = []string{"/usr/bin/env", rankVariable + "=1", os.Args[0]}
}

// damageShard flips a bit in the payload of a shard's records that have depth blocks
// before them, and returns how many there were.
func damageShard(t *testing.T, dir string, shard connector.Shard, depth int) int {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "segments", "*"))
	if err != nil {
		t.Fatal(err)
	}
	type record struct {
		path   string
		at     int64
		parent string
	}
	records := make(map[string]record)
	for _, path := range files {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for at := 0; at+8192 <= len(b); at += 4096 {
			// Magic, shard, key and parent, as in docs/on-disk-format.md.
			if h := b[at:]; string(h[:8]) == "KVCNREC1" && connector.Shard(binary.LittleEndian.Uint16(h[10:])) == shard {
				records[string(h[80:96])] = record{path, int64(at), string(h[96:112])}
			}
		}
	}
	damaged := 0
	for _, r := range records {
		blocks := 0
		for p, ok := records[r.parent]; ok; p, ok = records[p.parent] {
			blocks++
		}
		if blocks == depth {
			flip(t, r.path, r.at+4096+100)
			damaged++
		}
	}
	return damaged
}

// flip flips a bit of the byte at an offset of a file.
func flip(t *testing.T, path string, at int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var b [1]byte
	if _, err := f.ReadAt(b[:], at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 4
	if _, err := f.WriteAt(b[:], at); err != nil {
		t.Fatal(err)
	}
}

func TestShardOfOneRankThatIsCorruptOrMissingCostsItsBlocksOnly(t *testing.T) {
	t.Parallel()
	for _, v := range []struct {
		variant
		shard connector.Shard
		ranks int
	}{
		{variant{"two tensor-parallel ranks", func(o *engine.Options) { o.TensorParallel = 2 }}, 1, 2},
		{variant{"two stages", func(o *engine.Options) { o.PipelineParallel = 2 }}, 1, 2},
		{variant{"two ranks that hold the same KV", func(o *engine.Options) { o.TensorParallel, o.Model.KVHeads = 2, 1 }}, 0, 2},
		{variant{"two ranks in each of two stages", func(o *engine.Options) { o.TensorParallel, o.PipelineParallel = 2, 2 }}, 3, 4},
		// Shard 5 is the second rank's of the group with full attention, whose blocks are all
		// needed.
		{variant{"two ranks of a hybrid model", func(o *engine.Options) { hybrid(o); o.TensorParallel = 2 }}, 5, 2},
	} {
		t.Run(v.name, func(t *testing.T) {
			change := func(o *engine.Options) { v.change(o); processes(o) }
			ps := prompts(71, 1)
			want := reference(t, change, ps)
			n := newMemoryNode(t)
			quick := func(o *daemon.Options) { o.Store = new(storetest.Disk).Under }
			n.serve(quick)
			e := newInstance(t, n, change)
			if len(e.RankPIDs()) != v.ranks {
				t.Fatalf("%d processes", len(e.RankPIDs()))
			}
			same(t, "first run", e.run("first", ps), want)
			e.close()
			n.stop()
			const damaged = 5
			if c := damageShard(t, n.dir, v.shard, damaged); c != 1 {
				t.Fatalf("%d records of shard %d are at block %d, want 1", c, v.shard, damaged)
			}
			n.serve(quick)
			e = newInstance(t, n, change)
			run := func(name string, noSave bool) engine.Result {
				q := requestsOf(name, ps)
				q[0].NoSave = noSave
				got := e.serve(q...)
				same(t, name, got, want)
				return got[0]
			}
			all := whole(ps[0], 8)
			if r := run("corrupt", true); r.RecomputedTokens == 0 || r.CachedTokens+r.RecomputedTokens != all {
				t.Errorf("shard is corrupt: %d tokens loaded, %d recomputed of %d", r.CachedTokens, r.RecomputedTokens, all)
			}
			// The bad record was dropped: no rank is offered what one of them lacks.
			if r := run("missing", true); r.CachedTokens >= all || r.CachedTokens > 8*damaged || r.RecomputedTokens != 0 {
				t.Errorf("shard is missing: %d tokens loaded, %d recomputed, want %d and 0", r.CachedTokens, r.RecomputedTokens, 8*damaged)
			}
			run("saved again", false)
			n.wait("the block to be saved again", func() bool { return n.status().Store.WriteInFlightBytes == 0 })
			if r := run("whole again", true); r.CachedTokens != all || r.RecomputedTokens != 0 {
				t.Errorf("saved again: %d tokens loaded, %d recomputed, want %d and 0", r.CachedTokens, r.RecomputedTokens, all)
			}
			e.close()
			n.waitLetGo()
		})
	}
}

// What ranks replicate is stored once.
func TestReplicatedKVIsStoredOnce(t *testing.T) {
	t.Parallel()
	n := newMemoryNode(t)
	n.serve(nil)
	ps := prompts(72, 1)
	for _, tp := range []int{1, 2} {
		change := func(o *engine.Options) { o.TensorParallel, o.Model.KVHeads = tp, 1; processes(o) }
		before := n.status().Store.Records
		e := newInstance(t, n, change)
		same(t, "run", e.run("run", ps), reference(t, change, ps))
		n.wait("all saves", func() bool { return n.status().Store.WriteInFlightBytes == 0 })
		blocks := int64(len(ps[0])+generated-1) / 8
		if got := n.status().Store.Records - before; got != blocks {
			t.Errorf("%d ranks: %d records of %d blocks", tp, got, blocks)
		}
		e.close()
	}
}

// A rank whose reads hang for longer than a load may take costs the load; one that is only
// slow costs nothing.
func TestShardOfOneRankThatIsSlowHoldsUpNothingButItsLoad(t *testing.T) {
	t.Parallel()
	change := func(o *engine.Options) { o.TensorParallel = 2; processes(o) }
	ps := prompts(73, 2)
	want := reference(t, change, ps)
	for name, hangs := range map[string]bool{"slow": false, "hangs": true} {
		t.Run(name, func(t *testing.T) {
			n := newMemoryNode(t)
			disk := new(storetest.Disk)
			start := func(timeout func(*daemon.Options)) {
				n.serve(func(o *daemon.Options) { o.Store = disk.Under; timeout(o) })
			}
			start(func(*daemon.Options) {})
			e := newInstance(t, n, change)
			same(t, "first run", e.run("first", ps), want)
			e.close()
			n.stop()
			start(func(o *daemon.Options) {
				if hangs {
					o.LoadTimeout = hangTimeout
				}
			})
			release := make(chan struct{})
			disk.Hook(func(op storetest.Op) error {
				switch {
				case op.Kind != storetest.Read || !op.Set || op.Shard != 1:
				case hangs:
					<-release
				default:
					time.Sleep(slowRead)
				}
				return nil
			})
			e = newInstance(t, n, change)
			got := e.run(name, ps)
			same(t, name, got, want)
			if failed := recomputed(got) > 0; failed != hangs {
				t.Errorf("%d tokens recomputed", recomputed(got))
			}
			close(release)
			disk.Hook(nil)
			e.close()
			n.waitLetGo()
		})
	}
}

// An engine dies with a rank, as real ones do, and another takes over what it saved.
func TestKilledRankProcessLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	change := func(o *engine.Options) { o.TensorParallel = 2; processes(o) }
	ps := prompts(74, 3)
	want := reference(t, change, ps)
	n := newMemoryNode(t)
	n.serve(func(o *daemon.Options) {
		o.Store = func(s disk.Options) disk.Options { return new(storetest.Disk).Under(s) }
	})
	first := newInstance(t, n, change)
	same(t, "first run", first.run("first", ps), want)
	first.close()
	for steps := range 4 {
		e := newInstance(t, n, change)
		for _, q := range requestsOf("killed", ps) {
			if err := e.Submit(q); err != nil {
				t.Fatal(err)
			}
		}
		for range steps {
			if _, _, err := e.Step(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if err := syscall.Kill(e.RankPIDs()[1], syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if _, err := e.Run(t.Context(), nil); !errors.Is(err, engine.ErrRank) || !strings.Contains(err.Error(), "rank 1") {
			t.Errorf("killed after %d steps: error %v", steps, err)
		}
		e.close()
		n.waitLetGo()
	}
	last := newInstance(t, n, change)
	got := last.run("last", ps)
	same(t, "last run", got, want)
	if !slices.ContainsFunc(got, func(r engine.Result) bool { return r.CachedTokens > 0 }) {
		t.Error("nothing came from the cache")
	}
}
