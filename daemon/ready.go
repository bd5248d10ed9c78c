package daemon

// engineRank names a rank of an engine.
type engineRank struct {
	engine string
	rank   int
}

// maxRefused bounds the ranks that are remembered as refused: far above those of a node.
const maxRefused = 4096

// tellReady tells an engine's leaders whether its ranks can load. b.mu is held.
func (b *backend) tellReady(engine string) {
	for s := range b.schedulers {
		if s.peer.Engine == engine {
			s.SetReady(b.ready(s))
		}
	}
}

// ready reports whether a hit would be one: not where a rank on this node has no memory to
// load into. For an engine that cannot report a failed load every rank must have mapped
// this node's staging memory, which a rank on another node never does. b.mu is held.
func (b *backend) ready(s *schedulerSession) bool {
	for r := range b.refused {
		if r.engine == s.peer.Engine {
			return false
		}
	}
	mapped := make(map[int]struct{})
	for w := range b.workers {
		if w.peer.Engine == s.peer.Engine && w.registered && w.peer.Staged && w.digest == s.digest {
			mapped[w.rank] = struct{}{}
		}
	}
	return s.staging == nil || len(mapped) == s.manifest.Ranks()
}

// setMemory notes whether the rank's memory is held, and whether it could not be taken or
// is gone, and tells its engine's leader.
func (s *workerSession) setMemory(registered, refused bool) {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	s.registered = registered
	name := engineRank{s.peer.Engine, s.rank}
	if !refused {
		delete(s.b.refused, name)
	} else if len(s.b.refused) < maxRefused {
		s.b.refused[name] = struct{}{}
	}
	s.b.tellReady(s.peer.Engine)
}

// forgetRefused forgets what was refused of an engine that is gone. b.mu is held.
func (b *backend) forgetRefused(engine string) {
	for s := range b.schedulers {
		if s.peer.Engine == engine {
			return
		}
	}
	for r := range b.refused {
		if r.engine == engine {
			delete(b.refused, r)
		}
	}
}
