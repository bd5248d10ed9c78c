package blocksize

import (
	"fmt"
	"maps"
	"testing"

	"pgregory.net/rapid"
)

// What is counted as engines come and go is what counting all of them gives.
func TestVotesAreThoseOfARecount(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b, want := newBallot(), map[any]*engine{}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			feed, on := rapid.IntRange(0, 4).Draw(t, "feed"), rapid.Bool().Draw(t, "on")
			tokens := rapid.SampledFrom([]int{16, 64, 128}).Draw(t, "tokens")
			change := func(what func(*engine)) {
				b.change(feed, what)
				if want[feed] == nil {
					want[feed] = new(engine)
				}
				what(want[feed])
			}
			switch rapid.IntRange(0, 4).Draw(t, "what") {
			case 0:
				b.forget(feed)
				delete(want, feed)
			case 1, 2:
				change(func(e *engine) { e.connected = on })
			default:
				change(func(e *engine) { e.tokens, e.counts = tokens, true })
			}
			if votes := recount(want); !maps.Equal(b.votes, votes) {
				t.Fatalf("%v, want %v", b.votes, votes)
			}
			for feed, e := range want {
				if *b.engines[feed] != *e {
					t.Fatalf("%v is %+v, want %+v", feed, b.engines[feed], e)
				}
			}
		}
	})
}

// recount chooses the votes that count, and counts them.
func recount(engines map[any]*engine) map[int]int {
	live, left := false, false
	for _, e := range engines {
		live = live || e.live()
		left = left || e.counts
	}
	votes := make(map[int]int)
	for _, e := range engines {
		if live || !left {
			e.counts = e.tokens != 0 && (e.connected || !live)
		}
		if e.counts {
			votes[e.tokens]++
		}
	}
	return votes
}

// BenchmarkEnginesComeAndGo is of a router that starts, loses all of its engines, and is told to follow none of them.
func BenchmarkEnginesComeAndGo(b *testing.B) {
	for _, n := range []int{100, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				s := New(nil)
				for i := range n {
					s.EngineConnected(i, true)
					s.EngineSays(i, int32(i), 16)
				}
				for i := range n {
					s.EngineConnected(i, false)
				}
				for i := range n {
					s.Forget(i)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/engine")
		})
	}
}
