package published

import (
	"slices"
	"testing"

	"github.com/kvconn/kvconn/internal/testkit/policytest"
	"github.com/kvconn/kvconn/router/policy"
)

// servePrompt repeats tokens as the published serve cases are written.
func servePrompt(parts ...[2]int) []int {
	var all []int
	for _, p := range parts {
		all = append(all, slices.Repeat([]int{p[0]}, p[1])...)
	}
	return all
}

// serveMatch counts as the published server does: in blocks over all tokens but the last, a partial
// block at the end taken for a whole one. Our index counts whole blocks only; the score is the same
// function of either.
func serveMatch(stored, asked []int, block int) int32 {
	stored, asked = stored[:len(stored)-1], asked[:len(asked)-1]
	n := int32(0)
	for at := 0; at < len(asked) && at < len(stored); at += block {
		if !slices.Equal(stored[at:min(at+block, len(stored))], asked[at:min(at+block, len(asked))]) {
			break
		}
		n += int32(block)
	}
	return n
}

func TestPublishedServeCases(t *testing.T) {
	stored := [][]int{servePrompt([2]int{1000, 100}), servePrompt([2]int{1000, 50}, [2]int{1001, 150}), servePrompt([2]int{1002, 300})}
	s := policytest.Idle(3, 0)
	s.BlockSize = 32
	p := NewServeKVAware(ServeKVAwareOptions{})
	ask := func(what string, asked []int, rank int32, want ...int32) {
		t.Helper()
		req := policy.Request{ID: 1, Tokens: len(asked), Pin: policy.NoPin, Match: make([]policy.Match, 3), Explain: true}
		for i := range stored {
			m := serveMatch(stored[i], asked, 32)
			req.Match[i] = policy.Match{GPU: m, Usable: m}
		}
		out := make([]policy.Decision, 1)
		p.Place(s, &req, &out[0])
		var matches []int32
		for _, e := range out[0].Scores {
			matches = append(matches, e.MatchTokens)
		}
		policytest.Expect(t, what+": matches", matches, want)
		policytest.Expect(t, what+": rank", out[0].Rank, rank)
	}
	ask("[1000]x100", stored[0], 0, 128, 32, 0)
	ask("[1000]x50+[1001]x150", stored[1], 1, 32, 224, 0)
	ask("[1002]x300", stored[2], 2, 0, 0, 320)
	ask("[1000]x500", servePrompt([2]int{1000, 500}), 0, 96, 32, 0)

	nine := servePrompt([2]int{7, 9})
	s.BlockSize = 4
	out := make([]policy.Decision, 1)
	m := serveMatch(nine, nine, 4)
	r := policytest.Prompt(1, len(nine), s, 0, m, 0)
	p.Place(s, &r, &out[0])
	policytest.Expect(t, "9 tokens, block 4, stored on the second", []int32{m, out[0].Rank}, []int32{8, 1})
}
