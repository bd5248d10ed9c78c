package inflight

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
)

// clock is a clock that the test moves.
type clock struct{ t time.Time }

func (c *clock) now() time.Time          { return c.t }
func (c *clock) advance(d time.Duration) { c.t = c.t.Add(d) }

func newTracker(t *testing.T, o Options, ranks ...int32) (*Tracker, *clock) {
	t.Helper()
	c := &clock{time.Unix(1000, 0)}
	o.Now = c.now
	tr, err := NewTracker(o)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range ranks {
		if err := tr.AddRank(r); err != nil {
			t.Fatal(err)
		}
	}
	return tr, c
}

func add(t *testing.T, tr *Tracker, r Request) {
	t.Helper()
	if err := tr.Add(r); err != nil {
		t.Fatal(err)
	}
}

func loadOf(tr *Tracker, rank int32) Rank {
	var l [1]Rank
	tr.Snapshot([]int32{rank}, l[:])
	return l[0]
}

func keys(from, n int) []connector.Key {
	k := make([]connector.Key, n)
	for i := range k {
		k[i][0], k[i][1] = byte(from+i), byte((from+i)>>8)
	}
	return k
}

func TestLoadFollowsARequestThroughQueuePrefillAndDecode(t *testing.T) {
	tr, c := newTracker(t, Options{}, 3)
	add(t, tr, Request{ID: 1, Rank: 3, PromptTokens: 100, CachedTokens: 40, DiskTokens: 16, ObjectTokens: 8})
	add(t, tr, Request{ID: 2, Rank: 3, PromptTokens: 50})
	c.advance(2 * time.Second)
	want := Rank{ActiveRequests: 2, QueuedRequests: 2, QueuedTokens: 110, QueuedDiskTokens: 16, QueuedObjectTokens: 8, FrontTokens: 60,
		FrontDiskTokens: 16, FrontObjectTokens: 8, FrontAge: 2 * time.Second, PromptTokens: 150, UncachedTokens: 110, DecodeBlocks: 11}
	check := func(when string) {
		t.Helper()
		got := loadOf(tr, 3)
		forgetRecent(&got)
		if got != want {
			t.Fatalf("%s: %+v, want %+v", when, got, want)
		}
	}
	check("both placed")
	tr.PrefillDone(1)
	c.advance(time.Second)
	want.QueuedRequests, want.QueuedTokens, want.QueuedDiskTokens, want.QueuedObjectTokens = 1, 50, 0, 0
	want.FrontTokens, want.FrontDiskTokens, want.FrontObjectTokens, want.FrontAge = 50, 0, 0, time.Second
	check("first one computed")
	tr.Output(1, 20)
	want.OutputTokens, want.DecodeBlocks = 20, 12
	check("20 tokens generated")
	tr.Finish(1)
	want.ActiveRequests, want.PromptTokens, want.UncachedTokens, want.OutputTokens, want.DecodeBlocks = 1, 50, 50, 0, 4
	check("first one finished")
	tr.Finish(2)
	want = Rank{}
	check("all finished")
}

func TestTheFirstOfAQueueMayBeSilent(t *testing.T) {
	tr, _ := newTracker(t, Options{}, 0)
	silent := func(when string, want bool) {
		t.Helper()
		if l := loadOf(tr, 0); l.FrontSilent != want {
			t.Errorf("%s: %+v", when, l)
		}
	}
	silent("empty", false)
	add(t, tr, Request{ID: 1, PromptTokens: 100})
	add(t, tr, Request{ID: 2, PromptTokens: 100, Silent: true})
	silent("after another", false)
	tr.PrefillDone(1)
	silent("first", true)
	tr.Finish(2)
	tr.Finish(1)
	silent("both gone", false)
	add(t, tr, Request{ID: 3, PromptTokens: 100}) // takes the memory of one of them
	add(t, tr, Request{ID: 4, PromptTokens: 100})
	silent("others", false)
	tr.Finish(3)
	silent("the last", false)
}

func TestCachedTokensBeyondThePromptLeaveNothingToCompute(t *testing.T) {
	tr, _ := newTracker(t, Options{}, 0)
	add(t, tr, Request{ID: 1, PromptTokens: 100, CachedTokens: 120})
	add(t, tr, Request{ID: 2, PromptTokens: 50, CachedTokens: 10})
	if l := loadOf(tr, 0); l.ActiveRequests != 2 || l.UncachedTokens != 40 || l.PromptTokens != 150 {
		t.Fatalf("%+v, want 2 requests, 40 uncached of 150", l)
	}
}

func TestSharedBlocksCountOnceOnlyWithReuse(t *testing.T) {
	for _, at := range []struct {
		reuse             bool
		both, one, outOne int64
	}{{true, 6, 4, 5}, {false, 8, 4, 5}} {
		tr, _ := newTracker(t, Options{AssumeKVReuse: at.reuse}, 0)
		add(t, tr, Request{ID: 1, PromptTokens: 64, Keys: keys(0, 4)})
		add(t, tr, Request{ID: 2, PromptTokens: 60, Keys: append(keys(0, 2), keys(100, 1)...)}) // and a partial block
		if got := loadOf(tr, 0).DecodeBlocks; got != at.both {
			t.Errorf("reuse %v: %d blocks, want %d", at.reuse, got, at.both)
		}
		tr.Finish(1)
		if got := loadOf(tr, 0).DecodeBlocks; got != at.one {
			t.Errorf("reuse %v, one finished: %d blocks, want %d", at.reuse, got, at.one)
		}
		tr.Output(2, 5)
		if got := loadOf(tr, 0).DecodeBlocks; got != at.outOne {
			t.Errorf("reuse %v, into the next block: %d blocks, want %d", at.reuse, got, at.outOne)
		}
		tr.Finish(2)
		if got := loadOf(tr, 0); got.DecodeBlocks != 0 || len(tr.ranks[0].shared) != 0 || tr.keys != 0 {
			t.Errorf("reuse %v, all finished: %+v", at.reuse, got)
		}
	}
}

func TestLostRequestsExpire(t *testing.T) {
	tr, c := newTracker(t, Options{}, 0)
	add(t, tr, Request{ID: 1, PromptTokens: 10})
	add(t, tr, Request{ID: 2, PromptTokens: 10})
	c.advance(299 * time.Second)
	tr.PrefillDone(1)
	c.advance(time.Second)
	if l := loadOf(tr, 0); l.ActiveRequests != 1 || tr.Requests() != 1 {
		t.Fatalf("%+v, want the one that was heard of", l)
	}
	if tr.Finish(2) || !tr.Finish(1) {
		t.Fatal("the lost one is known or the other isn't")
	}
}

func TestBadRequestsAreRefused(t *testing.T) {
	tr, _ := newTracker(t, Options{MaxRequests: 2, MaxRanks: 1}, 0)
	add(t, tr, Request{ID: 1})
	for _, at := range []struct {
		req  Request
		want error
	}{
		{Request{ID: 2, Rank: 9}, ErrUnknownRank}, {Request{ID: 1}, ErrDuplicate}, {Request{ID: 2, PromptTokens: -1}, ErrInvalid},
		{Request{ID: 2, PromptTokens: 1 << 40}, ErrInvalid}, {Request{ID: 2, PromptTokens: 16, Keys: keys(0, 2)}, ErrInvalid},
		{Request{ID: 2, PromptTokens: 16, CachedTokens: 4, DiskTokens: 5}, ErrInvalid},
	} {
		if err := tr.Add(at.req); !errors.Is(err, at.want) {
			t.Errorf("%+v: %v, want %v", at.req, err, at.want)
		}
	}
	add(t, tr, Request{ID: 2})
	if err := tr.Add(Request{ID: 3}); !errors.Is(err, ErrFull) {
		t.Errorf("third request of two: %v", err)
	}
	if err := tr.AddRank(1); !errors.Is(err, ErrFull) {
		t.Errorf("second rank of one: %v", err)
	}
	if tr.PrefillDone(7) || tr.Output(7, 1) || tr.Finish(7) {
		t.Error("an unknown request is known")
	}
}

func TestKeysBeyondTheBoundCountAsUnshared(t *testing.T) {
	tr, _ := newTracker(t, Options{AssumeKVReuse: true}, 0)
	tr.maxKeys = 3
	add(t, tr, Request{ID: 1, PromptTokens: 64, Keys: keys(0, 4)})
	add(t, tr, Request{ID: 2, PromptTokens: 64, Keys: keys(0, 4)})
	if got := loadOf(tr, 0).DecodeBlocks; got != 8 {
		t.Fatalf("%d blocks, want 8", got)
	}
	tr.Finish(1)
	tr.Finish(2)
	if got := loadOf(tr, 0).DecodeBlocks; got != 0 || tr.keys != 0 {
		t.Fatalf("%d blocks and %d keys are left", got, tr.keys)
	}
}

func TestRemovedRankTakesItsRequestsAlong(t *testing.T) {
	tr, _ := newTracker(t, Options{}, 4, 2)
	add(t, tr, Request{ID: 1, Rank: 2, PromptTokens: 10})
	add(t, tr, Request{ID: 2, Rank: 4, PromptTokens: 10})
	if n := tr.RemoveRank(2); n != 1 || tr.Requests() != 1 {
		t.Fatalf("%d requests gone, %d left", n, tr.Requests())
	}
	if err := tr.Add(Request{ID: 3, Rank: 2}); !errors.Is(err, ErrUnknownRank) {
		t.Fatalf("the rank is known: %v", err)
	}
	if l := loadOf(tr, 4); l.ActiveRequests != 1 || loadOf(tr, 2) != (Rank{}) {
		t.Fatalf("the other rank has %+v", l)
	}
}

// forgetRecent clears what is left of requests that ended.
func forgetRecent(l *Rank) {
	l.RecentTokens, l.RecentDiskTokens, l.RecentObjectTokens, l.RecentRequests, l.RecentSeconds = 0, 0, 0, 0, 0
}

func TestRecentTokensHalve(t *testing.T) {
	tr, c := newTracker(t, Options{}, 0)
	add(t, tr, Request{ID: 1, PromptTokens: 1000, CachedTokens: 200})
	tr.Finish(1)
	c.advance(recentHalfLife)
	if got := loadOf(tr, 0).RecentTokens; got < 399.999 || got > 400.001 {
		t.Fatalf("%v recent tokens, want 400", got)
	}
}

// At a steady rate the recent sums over the recent seconds are the rate from the beginning.
func TestRecentSumsOverRecentSecondsAreRates(t *testing.T) {
	tr, c := newTracker(t, Options{TTL: time.Hour}, 0)
	for id := range uint64(3000) { // one a second, each of 100 tokens to compute, 20 from disk and 10 from the object store
		c.advance(time.Second)
		add(t, tr, Request{ID: id, PromptTokens: 130, CachedTokens: 30, DiskTokens: 20, ObjectTokens: 10})
		tr.Finish(id)
		if l := loadOf(tr, 0); id%100 == 99 {
			for _, got := range []float64{l.RecentTokens / 100, l.RecentDiskTokens / 20, l.RecentObjectTokens / 10, l.RecentRequests} {
				if rate := got / l.RecentSeconds; rate < 0.99 || rate > 1.01 {
					t.Fatalf("after %d s: %v a second, want 1: %+v", id+1, rate, l)
				}
			}
		}
	}
	placed := Rank{}
	placed.Place(130, 30, 20, 10, 16)
	if placed.RecentTokens != 100 || placed.RecentDiskTokens != 20 || placed.RecentObjectTokens != 10 || placed.RecentRequests != 1 {
		t.Errorf("%+v", placed)
	}
}

func TestSnapshotAndSteadyTrafficDoNotAllocate(t *testing.T) {
	tr, _ := newTracker(t, Options{AssumeKVReuse: true}, 0, 1, 2)
	ranks, loads := []int32{0, 1, 2}, make([]Rank, 3)
	k := keys(0, 8)
	once := func() {
		_ = tr.Add(Request{ID: 1, Rank: 1, PromptTokens: 128, Keys: k})
		tr.PrefillDone(1)
		tr.Output(1, 3)
		tr.Snapshot(ranks, loads)
		tr.Finish(1)
	}
	once()
	if n := testing.AllocsPerRun(100, once); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}

func TestConcurrentUseLeavesNothingBehind(t *testing.T) {
	tr, err := NewTracker(Options{AssumeKVReuse: true})
	if err != nil {
		t.Fatal(err)
	}
	for r := range int32(4) {
		if err := tr.AddRank(r); err != nil {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			loads := make([]Rank, 4)
			for i := range 200 {
				id := uint64(g*1000 + i)
				if err := tr.Add(Request{ID: id, Rank: int32(i % 4), PromptTokens: 64, Keys: keys(i%8, 4)}); err != nil {
					t.Error(err)
				}
				tr.PrefillDone(id)
				tr.Snapshot([]int32{0, 1, 2, 3}, loads)
				tr.Finish(id)
			}
		})
	}
	wg.Wait()
	for r := range int32(4) {
		l := loadOf(tr, r)
		if forgetRecent(&l); l != (Rank{}) {
			t.Errorf("rank %d: %+v", r, l)
		}
	}
}

func TestOptionsThatCannotWorkAreRefused(t *testing.T) {
	for _, o := range []Options{{BlockSize: -1}, {TTL: -1}, {MaxRequests: -1}, {MaxRanks: -1}} {
		if _, err := NewTracker(o); err == nil {
			t.Errorf("%+v was taken", o)
		}
	}
}

func TestPublishedRankStateCases(t *testing.T) {
	tr, _ := newTracker(t, Options{}, 0)
	add(t, tr, Request{ID: 1, PromptTokens: 100, CachedTokens: 90})
	add(t, tr, Request{ID: 2, PromptTokens: 200})
	if l := loadOf(tr, 0); l.ActiveRequests != 2 || l.PromptTokens != 300 {
		t.Errorf("prompts of 100 and 200: %+v", l)
	}
	tr.Finish(2) // its poll failed
	if l := loadOf(tr, 0); l.ActiveRequests != 1 || l.PromptTokens != 100 {
		t.Errorf("one ended in an error: %+v", l)
	}
}
