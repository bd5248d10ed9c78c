package chain

import (
	"fmt"
	"slices"
	"testing"

	"github.com/kvconn/kvconn/connector"
)

const blockSize = 4

// byHand are the keys and proofs of a prompt as package connector chains them.
func byHand(ns connector.NamespaceDigest, s connector.Scope, tokens []uint32, spans []connector.Span) (keys []connector.Key, proofs []connector.Proof) {
	key, proof := connector.RootKey(blockSize, s), connector.RootProof(ns, blockSize, s)
	for start := 0; start+blockSize <= len(tokens); start += blockSize {
		end := start + blockSize
		b := connector.AppendExtra(connector.AppendTokens(nil, tokens[start:end]), spans, start, end)
		key, _ = connector.NextKey(key, b, nil)
		proof, _ = connector.NextProof(proof, b, nil)
		keys, proofs = append(keys, key), append(proofs, proof)
	}
	return keys, proofs
}

func prompt(n int) []uint32 {
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = uint32(i*2654435761) % 50000
	}
	return tokens
}

// However a chain grows it is the one that package connector has.
func TestAChainGrowsAsItWouldBeComputedAtOnce(t *testing.T) {
	ns, scope := connector.NamespaceDigest{1}, connector.Scope{Salt: "s", LoRA: "l"}
	tokens := prompt(10*blockSize + 3)
	for name, spans := range map[string][]connector.Span{
		"plain": nil,
		"spans": {{Start: 3, End: 9}, {Start: 9, End: 10}, {Start: 30, End: 40}},
	} {
		keys, proofs := byHand(ns, scope, tokens, spans)
		h := New(ns, blockSize)
		roots := h.Roots(scope)
		var gotKeys []connector.Key
		var gotProofs []connector.Proof
		for _, n := range []int{0, 1, 1, 4, 3, 10} {
			gotKeys = h.Keys(gotKeys, roots, tokens, spans, n)
			gotProofs = h.Proofs(gotProofs, roots, tokens, spans, n)
			if !slices.Equal(gotKeys, keys[:len(gotKeys)]) || !slices.Equal(gotProofs, proofs[:len(gotProofs)]) || len(gotKeys) < n || len(gotProofs) < n {
				t.Errorf("%s: %d blocks: %v %v", name, n, gotKeys, gotProofs)
			}
		}
		if all := h.Keys(nil, roots, tokens, spans, 10); !slices.Equal(all, keys) {
			t.Errorf("%s: %v, want %v", name, all, keys)
		}
	}
}

func TestRootsAreRememberedAndBounded(t *testing.T) {
	h := New(connector.NamespaceDigest{1}, blockSize)
	s := connector.Scope{Salt: "a"}
	r := h.Roots(s)
	if r.Scope != s || r.Digest != s.Digest() || r.Key != connector.RootKey(blockSize, s) || h.Roots(s) != r {
		t.Errorf("%+v", r)
	}
	for i := range 3 * maxRoots {
		h.Roots(connector.Scope{Salt: fmt.Sprint(i)})
	}
	if len(h.roots) > maxRoots {
		t.Errorf("%d scopes", len(h.roots))
	}
}

func TestAChainThatHasRoomAllocatesNothing(t *testing.T) {
	h := New(connector.NamespaceDigest{1}, blockSize)
	s, tokens := connector.Scope{Salt: "a"}, prompt(64*blockSize)
	spans := []connector.Span{{Start: 3, End: 9}}
	keys, proofs := make([]connector.Key, 0, 64), make([]connector.Proof, 0, 64)
	for _, spans := range [][]connector.Span{nil, spans} {
		run := func() {
			roots := h.Roots(s)
			h.Keys(keys, roots, tokens, spans, 64)
			h.Proofs(proofs, roots, tokens, spans, 64)
		}
		run()
		if n := testing.AllocsPerRun(10, run); n > 0 {
			t.Errorf("%d spans: %v allocations", len(spans), n)
		}
	}
}
