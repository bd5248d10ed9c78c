package connector

import (
	"fmt"
	"testing"
)

// chain hashes whole blocks of tokens.
func chain(ns NamespaceDigest, blockSize int, s Scope, tokens []uint32) (keys []Key, proofs []Proof) {
	key, proof := RootKey(blockSize, s), RootProof(ns, blockSize, s)
	var scratch []byte
	for ; len(tokens) >= blockSize; tokens = tokens[blockSize:] {
		b := AppendTokens(nil, tokens[:blockSize])
		key, scratch = NextKey(key, b, scratch)
		proof, scratch = NextProof(proof, b, scratch)
		keys, proofs = append(keys, key), append(proofs, proof)
	}
	return keys, proofs
}

// The vectors were made independently, with Python's xxhash and hashlib. They are part
// of the on-disk format: a change of them is a new HashScheme.
func TestChainVectors(t *testing.T) {
	tokens := make([]uint32, 48)
	for i := range tokens {
		tokens[i] = uint32(i * 7)
	}
	for _, tc := range []struct {
		name      string
		blockSize int
		scope     Scope
		key       string
		proof     string
	}{
		{"plain", 16, Scope{}, "eb83ef8723b39653cdcabb34d49eced8", "2f8784d15df7f995b9055e2d80eb2729039b281a5ab4fe9fa4a47dad81ae19c4"},
		{"salt", 16, Scope{Salt: "tenant"}, "776d651118878a5dc98b0095967f90c4", "a162ab3a718b3f66b91e1d78e731a8d3328e4d7e5784cc552a39b601cace8106"},
		{"lora", 8, Scope{LoRA: "adapter"}, "c70194a308fdb690462ad9eaed77adc1", "bb465b171365912bd2d8faa60bc7d34c8555cad2ecd4b39f20100184204b475e"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			keys, proofs := chain(NamespaceDigest{1, 2, 3}, tc.blockSize, tc.scope, tokens)
			if got := keys[len(keys)-1].String(); got != tc.key {
				t.Errorf("key %s, want %s", got, tc.key)
			}
			if got := proofs[len(proofs)-1].String(); got != tc.proof {
				t.Errorf("proof %s, want %s", got, tc.proof)
			}
		})
	}
}

// Made independently, too: one span within a block, and one that reaches over three.
func TestChainVectorsOfSpans(t *testing.T) {
	const blockSize = 16
	scope := Scope{Salt: "tenant"}
	spans := []Span{{Start: 3, End: 5, ID: []byte("a")}, {Start: 10, End: 37, ID: []byte("image")}}
	key, proof := RootKey(blockSize, scope), RootProof(NamespaceDigest{1, 2, 3}, blockSize, scope)
	for i, want := range [][2]string{
		{"dbcd04db28adf498753794c7d01eff0a", "26c0d023aa8c0011fb95a42069163676f5317cd07384316680ecc48771264977"},
		{"e75b5354e68c1bb945630ddbec128a29", "f2265146c2650948cefe8f73df584c5a66eab5b90914792c22958932c9715cfc"},
		{"b92d1ea7be9a31608069123dece2300d", "9157bfc3d8c509aa0521504348284f80838449db0cb6641a07e3d52713d472f8"},
	} {
		tokens := make([]uint32, blockSize)
		for k := range tokens {
			tokens[k] = uint32((i*blockSize + k) * 7)
		}
		b := AppendExtra(AppendTokens(nil, tokens), spans, i*blockSize, (i+1)*blockSize)
		key, _ = NextKey(key, b, nil)
		proof, _ = NextProof(proof, b, nil)
		if key.String() != want[0] || proof.String() != want[1] {
			t.Errorf("block %d: key %s and proof %s, want %s and %s", i, key, proof, want[0], want[1])
		}
	}
}

func TestChainSeparatesWhateverChangesTheBytes(t *testing.T) {
	tokens := make([]uint32, 64)
	seenKeys, seenProofs := map[Key]string{}, map[Proof]string{}
	check := func(name string, ns NamespaceDigest, blockSize int, s Scope, tokens []uint32, sameKeys bool) {
		t.Helper()
		keys, proofs := chain(ns, blockSize, s, tokens)
		last, lastProof := keys[len(keys)-1], proofs[len(proofs)-1]
		if other, seen := seenKeys[last]; seen && !sameKeys {
			t.Errorf("%s and %s have the same key", name, other)
		}
		if other, seen := seenProofs[lastProof]; seen {
			t.Errorf("%s and %s have the same proof", name, other)
		}
		seenKeys[last], seenProofs[lastProof] = name, name
	}
	check("base", NamespaceDigest{}, 16, Scope{}, tokens, false)
	check("shorter", NamespaceDigest{}, 16, Scope{}, tokens[:48], false)
	check("salt", NamespaceDigest{}, 16, Scope{Salt: "a"}, tokens, false)
	check("lora", NamespaceDigest{}, 16, Scope{LoRA: "a"}, tokens, false)
	check("salt and lora shifted", NamespaceDigest{}, 16, Scope{Salt: "aa"}, tokens, false)
	check("block size", NamespaceDigest{}, 32, Scope{}, tokens, false)
	check("namespace", NamespaceDigest{1}, 16, Scope{}, tokens, true) // by proof only
	early := append([]uint32(nil), tokens...)
	early[0] = 1
	check("early token", NamespaceDigest{}, 16, Scope{}, early, false)
}

func TestChainDoesNotAllocate(t *testing.T) {
	tokens := AppendTokens(nil, make([]uint32, 16))
	scratch := make([]byte, 0, 256)
	var key Key
	var proof Proof
	if n := testing.AllocsPerRun(100, func() {
		key, scratch = NextKey(key, tokens, scratch)
		proof, scratch = NextProof(proof, tokens, scratch)
	}); n != 0 {
		t.Errorf("%v allocations a block, want 0", n)
	}
}

func BenchmarkNextKey(b *testing.B) {
	tokens := AppendTokens(nil, make([]uint32, 16))
	var key Key
	var scratch []byte
	for b.Loop() {
		key, scratch = NextKey(key, tokens, scratch)
	}
}

func BenchmarkNextProof(b *testing.B) {
	tokens := AppendTokens(nil, make([]uint32, 16))
	var proof Proof
	var scratch []byte
	for b.Loop() {
		proof, scratch = NextProof(proof, tokens, scratch)
	}
}

func TestScopeDigest(t *testing.T) {
	var none Scope
	if d := none.Digest(); d != (ScopeDigest{}) {
		t.Errorf("digest of the empty scope is %x", d)
	}
	a, b := Scope{Salt: "a"}.Digest(), Scope{Salt: "a", LoRA: "x"}.Digest()
	if [8]byte(a[:]) != [8]byte(b[:]) || a == b {
		t.Errorf("%x and %x: want the same tenant and another adapter", a, b)
	}
	if c := (Scope{Salt: "x"}).Digest(); [8]byte(c[:]) == [8]byte(a[:]) || [8]byte(c[:]) == [8]byte(b[8:]) {
		t.Errorf("tenant of %x is another's, or an adapter's", c)
	}
	// printf 'kvconn/tenant/1a' | sha256sum; printf 'kvconn/adapter/1x' | sha256sum
	if got, want := fmt.Sprintf("%x", b), "f04f41e1926bb3857746c918c16448d5"; got != want {
		t.Errorf("digest is %s, want %s", got, want)
	}
}
