package leader

import "github.com/kvconn/kvconn/leader/chain"

// hasher computes keys and proofs of requests.
type hasher struct{ chain.Hasher }

// keys makes sure that r has the keys of its first n blocks.
func (h *hasher) keys(r *request, n int) { r.keys = h.Keys(r.keys, r.roots, r.tokens, r.spans, n) }

// proofs makes sure that r has the proofs of its first n blocks.
func (h *hasher) proofs(r *request, n int) {
	r.proofs = h.Proofs(r.proofs, r.roots, r.tokens, r.spans, n)
}
