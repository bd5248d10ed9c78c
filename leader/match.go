package leader

import (
	"context"
	"fmt"

	"github.com/zeebo/xxh3"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
)

// Match returns how much of a request can be loaded beyond m.Computed. It may be repeated at will,
// and keeps nothing that m refers to. The offer never reaches the request's last token, since the
// engine must compute at least one, and is nothing where Computed is not block-aligned. With
// [Options.Handoff] the offer is not async, and the match may take [Options.HandoffTimeout].
func (l *Leader) Match(ctx context.Context, m *connector.MatchRequest) (connector.Offer, error) {
	if err := checkMatch(m); err != nil {
		return connector.Offer{}, err
	}
	l.mu.Lock()
	offer, err := l.match(ctx, m)
	probe := l.probeDue()
	l.mu.Unlock()
	if probe {
		l.opts.Probe()
	}
	return offer, err
}

// checkMatch refuses a request that is out of bounds.
func checkMatch(m *connector.MatchRequest) error {
	if m.From < 0 || m.Computed < 0 || m.From > connector.MaxTokens || len(m.Tokens)+m.From > connector.MaxTokens {
		return fmt.Errorf("%w: prompt of more than %d tokens", connector.ErrBadRequest, connector.MaxTokens)
	}
	if len(m.Spans) > connector.MaxSpans {
		return fmt.Errorf("%w: %d spans, at most %d", connector.ErrBadRequest, len(m.Spans), connector.MaxSpans)
	}
	for i := range m.Spans {
		s := &m.Spans[i]
		if s.Start < 0 || s.Start >= s.End || s.End > connector.MaxTokens || (i > 0 && s.Start < m.Spans[i-1].Start) {
			return fmt.Errorf("%w: span %d of tokens [%d, %d): want spans that are not empty, ordered by their start, and below %d",
				connector.ErrBadRequest, i, s.Start, s.End, connector.MaxTokens)
		}
	}
	return nil
}

// match is Match with the lock held; it lets go of the lock while it waits for reads.
func (l *Leader) match(ctx context.Context, m *connector.MatchRequest) (offer connector.Offer, err error) {
	if l.closed {
		return offer, nil
	}
	r, fresh, err := l.admit(m)
	if err != nil || r.waiting {
		return offer, err
	}
	l.stats.Matches++
	var tiers [connector.MaxTiers]connector.TierTokens
	known := m.From + len(m.Tokens)
	if fresh && l.opts.Arrived != nil && !r.noSave { // now: a handoff unlocks the leader, and the request may become another
		blocks := min(r.prompt, known) / l.bs
		l.hash.keys(r, blocks)
		r.arrival = l.opts.Arrived(r.prompt, r.keys[:blocks])
	}
	first := m.Computed / l.bs
	boundary := first
	switch end := (known - 1) / l.bs; {
	case l.notReady.Load():
		l.stats.NotReady++
		offer.Why = connector.WhyNotReady
		l.unpin(r)
	case r.noLoad || r.failed || m.Computed%l.bs != 0 || known == 0 || first >= end:
		offer.Why = connector.WhyNone(r.noLoad, r.failed)
		l.unpin(r)
	case l.doubt.Denies(m.Request, l.opts.Now()):
		l.stats.Doubted++
		offer.Why = connector.WhyDoubted
		l.unpin(r)
	default:
		l.refused = 0
		boundary = l.offer(r, first, l.fits(r, first, end))
		offer.Refused, offer.Why = l.refused*l.bs, connector.WhyMissed(l.refused)
		if fresh && boundary > first { // a handoff brings all into the first tier
			tiers = l.price.Tiers(&l.have, r.keys, first, boundary)
		}
		if l.opts.Handoff != nil {
			if boundary > first {
				offer.Why = connector.WhyLate // if it comes to nothing
			}
			boundary = l.handOff(ctx, r, first, boundary)
		} else if l.opts.Prefetch != nil && boundary > max(first, r.ahead) {
			l.prefetch(r, first, boundary)
		}
	}
	if boundary > first {
		offer.Why = ""
		l.doubt.Offered(m.Request, l.opts.Now())
		offer.Tokens, offer.Async = (boundary-first)*l.bs, l.opts.Handoff == nil
		if r.handoff != nil {
			offer.Handoff = r.handoff.offer(boundary)
		}
		if m.Tiers && fresh && l.opts.Handoff == nil {
			offer.Tiers = tiers
		} else if m.Tiers {
			offer.Tiers = l.price.Tiers(&l.have, r.keys, first, boundary)
		}
	}
	if fresh {
		l.stats.MatchedRequests++
		had := min(m.Computed, known)
		l.stats.EngineTokens += uint64(had)
		l.stats.QueriedTokens += uint64(known - had)
		l.stats.OfferedTokens += uint64(offer.Tokens)
		l.stats.Stats.Add(known-had, offer.Tokens, &tiers)
	}
	return offer, nil
}

// admit finds or makes the request of m and takes over its tokens. A request whose scope
// or spans have changed starts over.
func (l *Leader) admit(m *connector.MatchRequest) (r *request, fresh bool, err error) {
	r = l.requests.byHash[xxh3.HashString128(m.Request)]
	if r != nil && (string(r.id) != m.Request || r.roots.Scope != m.Scope || !r.sameSpans(m.Spans)) {
		l.forget(r)
		r = nil
	}
	if r == nil {
		if m.From > 0 {
			return nil, false, fmt.Errorf("%w: %q", connector.ErrUnknownRequest, m.Request)
		}
		l.makeRoom(1, len(m.Tokens))
		r = l.requests.add(m.Request)
		r.roots = l.hash.Roots(m.Scope)
		r.setSpans(m.Spans)
		r.prompt = len(m.Tokens)
		fresh = true
	}
	if r.waiting {
		return r, false, nil
	}
	if !r.tell(l.bs, m.From, m.Tokens) {
		return nil, false, fmt.Errorf("%w: %q is known up to token %d, not %d",
			connector.ErrUnknownRequest, m.Request, len(r.tokens), m.From)
	}
	if m.PromptTokens > 0 {
		r.prompt = m.PromptTokens
	}
	r.noLoad, r.noSave = m.NoLoad, m.NoSave
	if fresh || m.Trace != "" { // the daemon may have given a request its trace, at the first match
		r.trace = append(r.trace[:0], m.Trace...)
	}
	l.requests.touch(r)
	l.requests.count(r)
	l.makeRoom(0, 0)
	return r, fresh, nil
}

// offer finds, prices and pins those of r's blocks [first, end) that are to be loaded, and lets go
// of what was pinned for r before. It returns the boundary, in blocks; first means no offer.
func (l *Leader) offer(r *request, first, end int) int {
	l.hash.keys(r, end)
	l.swap(&r.hit)
	boundary := l.find(&r.hit, first, end)
	if (boundary-first)*l.bs < l.opts.MinOfferTokens {
		boundary = first
	}
	if boundary == first {
		l.unpin(r)
	} else {
		l.room.promise(r, l.steps, l.offerBytes(r, first, boundary))
	}
	r.offered = boundary
	l.releaseHeld()
	return boundary
}

// find returns the largest boundary up to which r's blocks from first on are there in every layer
// group, worth loading and pinned.
func (l *hits) find(r *hit, first, end int) int {
	// The chain begins where the engine's own prefix ends: blocks before it may be gone from the
	// tiers.
	limit := end
	if len(l.prefix) > 0 {
		n, lease := l.index.Lookup(l.opts.Namespace, l.prefix, r.keys[first:end], l.opts.LeaseTTL)
		limit = first + n
		r.leases = appendLease(r.leases, lease)
	}
	boundary := l.worth(r, first, l.windows.Boundary(&l.have, r.keys, first, limit))
	if boundary == limit && len(l.windows.Searches) == 0 {
		return boundary
	}
	l.held = append(l.held, r.leases...)
	r.leases = r.leases[:0]
	for boundary > first {
		// Only an eviction since the search can make a block miss now.
		miss := l.pin(r, first, boundary)
		if miss == boundary {
			return boundary
		}
		l.held = append(l.held, r.leases...)
		r.leases = r.leases[:0]
		boundary = l.windows.Boundary(&l.have, r.keys, first, miss)
	}
	return first
}

// pin pins what a load of blocks [first, boundary) needs and returns boundary, or the
// first block that is missing.
func (l *hits) pin(r *hit, first, boundary int) int {
	miss := boundary
	if len(l.prefix) > 0 {
		n, lease := l.index.Lookup(l.opts.Namespace, l.prefix, r.keys[first:boundary], l.opts.LeaseTTL)
		r.leases = appendLease(r.leases, lease)
		miss = first + n
	}
	for i := range l.windows.Searches {
		w := l.windows.Searches[i].Group
		begin := max(first, w.FirstBlock(boundary*l.bs, l.bs))
		n, lease := l.index.Lookup(l.opts.Namespace, w.Shards, r.keys[begin:boundary], l.opts.LeaseTTL)
		r.leases = appendLease(r.leases, lease)
		miss = min(miss, begin+n)
	}
	return miss
}

func appendLease(leases []store.LeaseID, id store.LeaseID) []store.LeaseID {
	if id == 0 {
		return leases
	}
	return append(leases, id)
}

// unpin lets go of what is pinned for r's offer.
func (l *Leader) unpin(r *request) {
	l.release(&r.hit)
	r.offered = 0
	l.room.promise(r, l.steps, 0)
	r.handoff.release()
	r.handoff = nil
}
