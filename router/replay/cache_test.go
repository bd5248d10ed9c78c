package replay

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvconn/kvconn/internal/testkit/seed"
)

// randomPrompts returns prompts that fork like those of conversations.
func randomPrompts(random *rand.Rand, n int) *Trace {
	t := &Trace{BlockTokens: 16}
	for i := range n {
		var blocks []int32
		if i > 0 {
			old := t.Requests[random.IntN(len(t.Requests))].Blocks
			blocks = slices.Clone(old[:random.IntN(len(old)+1)])
		}
		for range 1 + random.IntN(5) {
			blocks = append(blocks, int32(t.DistinctBlocks))
			t.DistinctBlocks++
		}
		t.Requests = append(t.Requests, Request{At: float64(i) * 0.01, InputTokens: len(blocks)*16 - random.IntN(16), OutputTokens: random.IntN(40), Blocks: blocks})
	}
	return t
}

// naiveLRU holds blocks from the least to the most recently used one.
type naiveLRU struct {
	max    int
	blocks []int32
}

func (c *naiveLRU) use(blocks []int32) {
	for _, b := range slices.Backward(blocks) {
		if i := slices.Index(c.blocks, b); i >= 0 {
			c.blocks = slices.Delete(c.blocks, i, i+1)
		}
		c.blocks = append(c.blocks, b)
		c.blocks = c.blocks[max(len(c.blocks)-c.max, 0):]
	}
}

func (c *naiveLRU) prefix(blocks []int32) int {
	n := 0
	for n < len(blocks) && slices.Contains(c.blocks, blocks[n]) {
		n++
	}
	return n
}

func TestLRUAgreesWithANaiveOne(t *testing.T) {
	for _, capacity := range []int{0, 1, 7, 60} {
		trace := randomPrompts(seed.Random(t, capacity), 400)
		c, naive := newLRU(capacity), &naiveLRU{max: capacity}
		for i, r := range trace.Requests {
			if got, want := c.prefix(r.Blocks), naive.prefix(r.Blocks); got != want {
				t.Fatalf("capacity %d, request %d: prefix of %d blocks, want %d", capacity, i, got, want)
			}
			c.use(r.Blocks)
			naive.use(r.Blocks)
			if len(c.at) != len(naive.blocks) {
				t.Fatalf("capacity %d, request %d: %d blocks, want %d", capacity, i, len(c.at), len(naive.blocks))
			}
		}
	}
}

// With requests that hold their blocks for a while, the cache never holds more than its size, never
// evicts what is held, and has of each prompt a prefix.
func TestGPUCacheKeepsWhatIsHeld(t *testing.T) {
	const capacity = 40
	random := seed.Random(t, 5)
	trace := randomPrompts(random, 600)
	c := newGPUCache(capacity)
	var running [][]int32
	waited := 0
	for _, r := range trace.Requests {
		for !c.hold(r.Blocks) {
			if len(running) == 0 {
				if len(r.Blocks) <= capacity {
					t.Fatal("no room in an idle cache")
				}
				break
			}
			waited++
			c.release(running[0])
			running = running[1:]
		}
		if len(r.Blocks) > capacity {
			continue
		}
		c.validate(r.Blocks)
		running = append(running, r.Blocks)
		if random.IntN(3) == 0 {
			i := random.IntN(len(running))
			c.release(running[i])
			running = slices.Delete(running, i, i+1)
		}
		held := map[int32]bool{}
		for _, blocks := range running {
			if c.prefix(blocks) != len(blocks) {
				t.Fatal("a block of a running request was evicted")
			}
			for _, b := range blocks {
				held[b] = true
			}
		}
		if len(c.at) > capacity || c.held != len(held) {
			t.Fatalf("%d blocks, %d held; want at most %d, and %d", len(c.at), c.held, capacity, len(held))
		}
		if random.IntN(20) > 0 {
			continue
		}
		for _, old := range trace.Requests {
			n := c.prefix(old.Blocks)
			for _, b := range old.Blocks[n:] {
				if _, ok := c.at[b]; ok {
					t.Fatal("a block outlived the one before it")
				}
			}
		}
	}
	if waited == 0 {
		t.Error("the cache was never full")
	}
}

func TestLinkSharesItsBandwidthEqually(t *testing.T) {
	l := newLink(100)
	l.start(0, task{request: 1, work: 300, seq: 1})
	l.start(1, task{request: 2, work: 100, seq: 2}) // the first has 200 bytes to go
	type end struct {
		request int32
		at      float64
	}
	var got []end
	for len(l.loads) > 0 {
		at := l.next()
		got = append(got, end{l.finish(at).request, at})
	}
	if want := []end{{2, 3}, {1, 4}}; !slices.Equal(got, want) {
		t.Errorf("ends %v, want %v", got, want)
	}
	if !math.IsInf(l.next(), 1) {
		t.Error("an idle link has something to end")
	}
}
