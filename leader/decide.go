package leader

// worth returns the boundary up to which loading r's blocks from first on saves most time:
// boundary itself, or less, or first.
func (l *Leader) worth(r *request, first, boundary int) int {
	if boundary == first {
		return first
	}
	best := boundary
	if rate := l.prefillTokensPerS(); rate > 0 && len(l.opts.Levels) > 0 {
		best = l.price.best(&l.have, r.keys, first, boundary, float64(l.bs)/rate)
		if first < best && best < boundary {
			// The windows may have no blocks for that boundary.
			whole := l.windows.boundary(&l.have, r.keys, first, best)
			if whole < best && l.price.saved(whole) <= 0 {
				whole = first
			}
			best = whole
		}
		l.price.refusing = best < boundary
	}
	l.refused = boundary - best
	l.countDecision(r, first, boundary, best)
	return best
}

// countDecision counts what was decided of a hit, once for each request.
func (l *Leader) countDecision(r *request, first, boundary, best int) {
	if r.decided {
		return
	}
	r.decided = true
	switch best {
	case boundary:
		l.stats.DecisionsFull++
	case first:
		l.stats.DecisionsRefused++
	default:
		l.stats.DecisionsTrimmed++
	}
}

// prefillTokensPerS is the prefill speed to decide with, 0 if it is not known.
func (l *Leader) prefillTokensPerS() float64 {
	if v := l.opts.PrefillTokensPerS; v > 0 {
		return v
	}
	return l.prefill.tokensPerS()
}

// probeDue reports whether [Options.Probe] is to be called, and takes it that it is.
func (l *Leader) probeDue() bool {
	if !l.price.refusing || l.opts.Probe == nil {
		return false
	}
	now := l.opts.Now()
	if now.Sub(l.probed) < l.opts.ProbeInterval {
		return false
	}
	l.probed = now
	return true
}
