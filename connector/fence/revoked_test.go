package fence

import (
	"math"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kvconn/kvconn/internal/testkit/seed"
)

// newPages returns both mappings of a page.
func newPages(t *testing.T) (engine, daemon *Page) {
	t.Helper()
	engine, f, err := New()
	if err == nil {
		daemon, err = Open(f)
	}
	if err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	t.Cleanup(func() { _, _ = engine.Close(), daemon.Close() })
	return engine, daemon
}

// revokedSince lists which blocks below 100 are revoked.
func revokedSince(p *Page, since uint64) (out []uint32) {
	var r Revoked
	p.ReadRevoked(since, &r)
	for b := range uint32(100) {
		if r.Has(b) {
			out = append(out, b)
		}
	}
	if !r.Any() && out != nil {
		panic("none is revoked, and some are")
	}
	return out
}

func TestRevokedBlocksAreThoseSinceTheCount(t *testing.T) {
	engine, daemon := newPages(t)
	var l Ledger
	l.Attach(engine)
	want := func(since uint64, blocks ...uint32) {
		t.Helper()
		got := revokedSince(daemon, since)
		if len(got) != len(blocks) {
			t.Fatalf("since %d: %v, want %v", since, got, blocks)
		}
		for i := range got {
			if got[i] != blocks[i] {
				t.Fatalf("since %d: %v, want %v", since, got, blocks)
			}
		}
	}
	want(0)
	l.Revoke(nil)
	want(0)
	l.Revoke([]uint32{7, 5, 6, 6, 40})
	first := l.Count()
	want(0, 5, 6, 7, 40)
	want(first)
	l.Revoke([]uint32{99, math.MaxUint32})
	want(first, 99)
	want(0, 5, 6, 7, 40, 99)
	var r Revoked
	for _, run := range []uint64{allBlocks, runOf(math.MaxUint32, 1)} {
		if r.n, r.runs[0] = 1, run; !r.Has(math.MaxUint32) {
			t.Errorf("%#x has not the last block", run)
		}
	}
	if daemon.ReadRevoked(first, &r); !r.Has(math.MaxUint32) || r.Has(math.MaxUint32-1) {
		t.Error("the last block is not the one revoked")
	}
	if daemon.ReadRevoked(l.Count()+1, &r); !r.Has(3) {
		t.Error("a count that the engine has not come to keeps blocks")
	}
}

func TestMoreRevocationsThanARingHasRevokeAll(t *testing.T) {
	engine, daemon := newPages(t)
	var l Ledger
	l.Attach(engine)
	for range ringRuns - 1 {
		l.Revoke([]uint32{7})
	}
	if got := revokedSince(daemon, 0); len(got) != 1 {
		t.Errorf("%v, want block 7 alone", got)
	}
	l.Revoke([]uint32{7})
	if got := revokedSince(daemon, 0); len(got) != 100 {
		t.Errorf("%d blocks are revoked, want all", len(got))
	}
	if got := revokedSince(daemon, 1); len(got) != 1 {
		t.Errorf("%v, want block 7 alone", got)
	}
	// As many in one call.
	before := l.Count()
	var apart []uint32
	for i := range uint32(ringRuns) {
		apart = append(apart, 1000+2*i)
	}
	l.Revoke(apart)
	if got := revokedSince(daemon, before); len(got) != 100 || l.Count() != before+1 {
		t.Errorf("%d blocks are revoked by %d runs, want all by one", len(got), l.Count()-before)
	}
	l.Revoke(apart[1:])
	if got := revokedSince(daemon, before+1); got != nil {
		t.Errorf("%v, want none of these", got)
	}
}

// A save that is told again after a new registration has a count of before it.
func TestCountsMeanTheSameOnEveryPage(t *testing.T) {
	first, _ := newPages(t)
	second, daemon := newPages(t)
	var l Ledger
	l.Revoke([]uint32{1})
	l.Attach(first)
	l.Revoke([]uint32{2})
	count := l.Count()
	first.Fence()
	l.Detach(first)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	l.Revoke([]uint32{3}) // while there is no page
	l.Attach(second)
	l.Detach(first) // late: it is not the one in force
	l.Revoke([]uint32{4})
	if got := revokedSince(daemon, count); len(got) != 2 || got[0] != 3 || got[1] != 4 {
		t.Errorf("%v, want 3 and 4", got)
	}
	if got := revokedSince(daemon, 0); len(got) != 4 {
		t.Errorf("%v, want all four", got)
	}
}

// The engine overwrites a block right after its revocation; the daemon keeps what it has copied of it only if it was whole.
func TestWhatIsCopiedFromARevokedBlockIsKnown(t *testing.T) {
	engine, daemon := newPages(t)
	var l Ledger
	l.Attach(engine)
	const blocks, rounds = 4, 20_000
	var vram [blocks]atomic.Uint64
	type save struct {
		block          uint32
		since, version uint64
	}
	saves := make(chan save, 16)
	var wg sync.WaitGroup
	var kept, dropped int
	wg.Go(func() {
		var r Revoked
		for s := range saves {
			copied := vram[s.block].Load()
			daemon.ReadRevoked(s.since, &r)
			switch {
			case r.Has(s.block):
				dropped++
			case copied != s.version:
				t.Errorf("block %d: kept version %d, want %d", s.block, copied, s.version)
			default:
				kept++
			}
		}
	})
	random := seed.Random(t, 1)
	for version := uint64(1); version <= rounds; version++ {
		b := random.Uint32N(blocks)
		l.Revoke([]uint32{b})
		vram[b].Store(version)
		saves <- save{b, l.Count(), version}
	}
	close(saves)
	wg.Wait()
	if kept == 0 || dropped == 0 {
		t.Errorf("%d kept, %d dropped: want both", kept, dropped)
	}
}

// What a hostile engine writes costs the daemon nothing but this engine's saves.
func TestAnyPageCanBeRead(t *testing.T) {
	engine, daemon := newPages(t)
	random := seed.Random(t, 2)
	for range 2000 {
		for i := range engine.mem {
			engine.mem[i] = byte(random.Uint32())
		}
		revokedSince(daemon, random.Uint64())
		revokedSince(daemon, daemon.revoked.count.Load()-uint64(random.IntN(300)))
	}
}

func TestReadingRevocationsDoesNotAllocate(t *testing.T) {
	engine, daemon := newPages(t)
	var l Ledger
	l.Attach(engine)
	l.Revoke([]uint32{1, 5})
	if n := testing.AllocsPerRun(100, func() {
		var r Revoked
		if daemon.ReadRevoked(0, &r); !r.Has(5) {
			t.Error("block 5 is not revoked")
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
