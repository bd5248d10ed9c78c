package policy

// Admission decides which requests of a queue go into the next batch, before a policy places them: no
// more than the ranks have room for, and no strict pin whose rank is full. What is held back keeps its
// place in the queue.
type Admission struct {
	b batch
}

// Admit sets admitted[i] for reqs[i], in order. Requests that no rank will ever take, such as a strict
// pin on a rank that there is not, are let through for the policy to refuse.
func (a *Admission) Admit(s *State, reqs []Request, admitted []bool) {
	b := &a.b
	defer b.end()
	b.s = s
	b.active = resize(b.active, len(s.Ranks))
	b.held = resize(b.held, len(s.Ranks))
	room, bounded := 0, true
	for i := range s.Ranks {
		r := &s.Ranks[i]
		b.active[i], b.held[i] = r.Load.ActiveRequests, r.Load.ActiveTokens()
		if r.Ready && r.Capacity.MaxActive == 0 {
			bounded = false
		} else if r.Ready {
			room += max(r.Capacity.MaxActive-b.active[i], 0)
		}
	}
	for q := range reqs {
		req := &reqs[q]
		i, why := -1, ReasonScore
		if req.Pin != NoPin && req.Strict {
			i, why = b.pinned(req)
		}
		admitted[q] = why == ReasonPinUnknown || why != ReasonPinFull && why != ReasonPinNotReady && (room > 0 || !bounded)
		if !admitted[q] || why == ReasonPinUnknown {
			continue
		}
		room--
		if i >= 0 {
			b.active[i]++
		}
	}
}
