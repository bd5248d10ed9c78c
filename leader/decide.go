package leader

import (
	"slices"

	"github.com/kvconn/kvconn/connector"
)

// worth returns the boundary up to which loading r's blocks from first on saves most time:
// boundary itself, or less, or first.
func (h *hits) worth(r *hit, first, boundary int) int {
	h.learnHere()
	if boundary == first {
		return first
	}
	best, priced := h.best(r, first, boundary)
	if priced {
		if first < best && best < boundary {
			// The windows may have no blocks for that boundary.
			whole := h.windows.Boundary(&h.have, r.keys, first, best)
			if whole < best && h.price.Saved(whole) <= 0 {
				whole = first
			}
			best = whole
		}
		h.price.Refusing = best < boundary
	}
	h.refused = boundary - best
	h.countDecision(r, first, boundary, best)
	return best
}

// learnHere takes over what [hits.SetHere] has told.
func (h *hits) learnHere() {
	if here := h.here.Load(); here != h.priced {
		h.priced = here
		h.price.SetHere(here.shards)
	}
}

// oneHere returns one of a block's shards that stands for all: one that is loaded on this node, if there is one.
func (h *hits) oneHere(shards []connector.Shard) connector.Shard {
	if h.priced != nil {
		for _, s := range shards {
			if slices.Contains(h.priced.shards, s) {
				return s
			}
		}
	}
	return shards[0]
}

// best is the boundary up to which loading saves most time, whether or not windows have their blocks for
// it. It reports false, and is boundary, while the speeds that decide are not known.
func (h *hits) best(r *hit, first, boundary int) (best int, priced bool) {
	rate := h.prefillTokensPerS()
	if rate <= 0 || len(h.opts.Levels) == 0 {
		return boundary, false
	}
	return h.price.Best(&h.have, r.keys, first, boundary, float64(h.bs)/rate), true
}

// countDecision counts what was decided of a hit, once for each request.
func (h *hits) countDecision(r *hit, first, boundary, best int) {
	if r.decided {
		return
	}
	r.decided = true
	switch best {
	case boundary:
		h.stats.DecisionsFull++
	case first:
		h.stats.DecisionsRefused++
	default:
		h.stats.DecisionsTrimmed++
	}
}

// prefillTokensPerS is the prefill speed to decide with, 0 if it is not known.
func (h *hits) prefillTokensPerS() float64 {
	if v := h.opts.PrefillTokensPerS; v > 0 {
		return v
	}
	return h.prefill.TokensPerS()
}

// probeDue reports whether [Options.Probe] is to be called, and takes it that it is.
func (h *hits) probeDue() bool {
	if !h.price.Refusing || h.opts.Probe == nil {
		return false
	}
	now := h.opts.Now()
	if now.Sub(h.probed) < h.opts.ProbeInterval {
		return false
	}
	h.probed = now
	return true
}
