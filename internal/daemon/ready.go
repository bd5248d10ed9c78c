package daemon

type engineRank struct {
	engine string
	rank   int
}

// maxRefused bounds the ranks remembered as refused: far more than a node has.
const maxRefused = 4096

// readyChange is a leader that now offers hits, or no longer does.
type readyChange struct {
	s   *schedulerSession
	why string // why it offers nothing; "" if it offers hits
}

// tellReady tells an engine's leaders whether its ranks can load. It returns the changes, which
// the caller passes to logReady after unlocking b.mu. b.mu is held.
func (b *backend) tellReady(engine string) []readyChange {
	var changes []readyChange
	for s := range b.schedulers {
		if s.peer.Engine != engine {
			continue
		}
		why := b.notReady(s)
		s.SetReady(why == "")
		if why != s.notReady {
			s.notReady = why
			changes = append(changes, readyChange{s, why})
		}
	}
	return changes
}

// notReady returns why the engine cannot load right now, or "" if it can. A rank on this node
// may have no memory to load into. An engine that cannot report a failed load also needs every
// rank to have mapped this node's host tier, which a rank on another node never does. If several
// instances share one id this means every rank of each, since nothing says which instance a rank
// belongs to. b.mu is held.
func (b *backend) notReady(s *schedulerSession) string {
	for r := range b.refused {
		if r.engine == s.peer.Engine && r.rank < s.manifest.Ranks() {
			return "the memory of a rank was refused"
		}
	}
	mapped := make(map[int]int)
	for w := range b.workers {
		switch {
		case w.peer.Engine != s.peer.Engine:
		case w.lost:
			return "the memory of a rank is gone"
		case w.registered && w.peer.Handoff && w.namespace == s.namespace:
			mapped[w.rank]++
		}
	}
	if s.handoffs == nil {
		return ""
	}
	instances := 0
	for o := range b.schedulers {
		if o.handoffs != nil && o.peer.Engine == s.peer.Engine && o.namespace == s.namespace {
			instances++
		}
	}
	for rank := range s.manifest.Ranks() {
		if mapped[rank] < instances {
			return "the engine cannot report failed loads, and not all of its ranks have registered on this node"
		}
	}
	return ""
}

func (b *backend) logReady(changes []readyChange) {
	for _, c := range changes {
		if c.why == "" {
			b.log("all ranks can load: hits are offered", c.s.peer)
		} else {
			b.log("nothing is offered to the engine, and nothing saved", c.s.peer, "why", c.why, "ranks_needed", c.s.manifest.Ranks())
		}
	}
}

// setMemory notes whether the rank's memory is held, and whether it was refused, and tells
// its engine's leader. A refusal is remembered after the session's end: clients hang up
// when they are refused.
func (s *workerSession) setMemory(registered, refused bool) {
	s.b.mu.Lock()
	s.registered, s.lost = registered, false
	name := engineRank{s.peer.Engine, s.rank}
	delete(s.b.refused, name)
	if refused {
		for old := range s.b.refused {
			if len(s.b.refused) < maxRefused {
				break
			}
			delete(s.b.refused, old)
		}
		s.b.refused[name] = struct{}{}
	}
	s.unlockReady()
}

// unlockReady tells the engine's leaders whether its ranks can load, and unlocks the backend.
func (s *workerSession) unlockReady() {
	changes := s.b.tellReady(s.peer.Engine)
	s.b.mu.Unlock()
	s.b.logReady(changes)
}

// loseMemory notes that the rank's memory is gone, and tells its engine's leader.
func (s *workerSession) loseMemory() {
	s.b.mu.Lock()
	s.registered, s.lost = false, true
	s.unlockReady()
}
