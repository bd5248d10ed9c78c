package daemon

import (
	"fmt"
	"math"
	"strings"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/server"
)

type engineRank struct {
	engine string
	rank   int
}

// maxRefused bounds the ranks remembered as refused: far more than a node has.
const maxRefused = 4096

// readyChange is a leader that now offers hits, or no longer does.
type readyChange struct {
	peer  server.Peer
	ranks int    // of the engine
	why   string // why it offers nothing; "" if it offers hits
	// remedy is what a person must do about it, "" where another line says that.
	remedy string
}

// tellReady tells an engine's leaders whether its ranks can load, and which of them are on this node.
// It returns the changes, which the caller passes to logReady after unlocking b.mu. b.mu is held.
func (b *backend) tellReady(engine string) []readyChange {
	var changes []readyChange
	trouble := b.trouble(engine)
	tell := func(setReady func(bool), known *string, why, remedy string, p server.Peer, m *connector.Manifest) {
		setReady(why == "")
		if why != *known {
			*known = why
			changes = append(changes, readyChange{p, m.Ranks(), why, remedy})
		}
	}
	for s := range b.schedulers {
		if s.peer.Engine != engine {
			continue
		}
		why, remedy := b.notReady(s, trouble), ""
		if stray := b.stray(s); stray != nil {
			why, remedy = s.apart(stray), apartRemedy
		}
		s.SetHere(b.ranksHere(engine, s.namespace))
		tell(s.SetReady, &s.notReady, why, remedy, s.peer, s.manifest)
	}
	for w := range b.workers {
		if w.peer.Engine == engine && w.keyed != nil {
			w.keyed.SetHere(b.ranksHere(engine, w.namespace))
			tell(w.keyed.SetReady, &w.notReady, trouble.why(w.manifest.Ranks()), "", w.peer, w.manifest)
		}
	}
	return changes
}

// ranksHere returns the ranks of an engine that have registered on this node. b.mu is held.
func (b *backend) ranksHere(engine string, ns connector.NamespaceDigest) (ranks []int) {
	for w := range b.workers {
		if w.peer.Engine == engine && w.namespace == ns && w.registered {
			ranks = append(ranks, w.rank)
		}
	}
	return ranks
}

// trouble is why ranks of an engine on this node have no memory to load into.
type trouble struct {
	refused int // the lowest rank whose memory was refused, beyond all ranks if none was
	lost    bool
}

// trouble looks through the ranks of an engine. b.mu is held.
func (b *backend) trouble(engine string) trouble {
	t := trouble{refused: math.MaxInt}
	for r := range b.refused {
		if r.engine == engine {
			t.refused = min(t.refused, r.rank)
		}
	}
	for w := range b.workers {
		t.lost = t.lost || w.peer.Engine == engine && w.lost
	}
	return t
}

// why returns why a rank of an engine with that many ranks has no memory to load into, or "".
func (t trouble) why(ranks int) string {
	switch {
	case t.refused < ranks:
		return "the memory of a rank was refused"
	case t.lost:
		return "the memory of a rank is gone"
	}
	return ""
}

// notReady returns why the engine cannot load right now, or "" if it can. A rank on this node
// may have no memory to load into. An engine that cannot report a failed load also needs every
// rank to have mapped this node's host tier, which a rank on another node never does. If several
// instances share one id this means every rank of each, since nothing says which instance a rank
// belongs to. t is the engine's trouble. b.mu is held.
func (b *backend) notReady(s *schedulerSession, t trouble) string {
	if why := t.why(s.manifest.Ranks()); why != "" || s.handoffs == nil {
		return why
	}
	mapped := make(map[int]int)
	for w := range b.workers {
		if w.peer.Engine == s.peer.Engine && w.registered && w.peer.Handoff && w.namespace == s.namespace {
			mapped[w.rank]++
		}
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

const apartRemedy = "use one version of the connector in all processes of the engine; where extra.config differs, and the engine has" +
	" --hf-overrides, write these into a copy of the model's config.json, and pass its directory as --hf-config-path"

// stray returns the lowest rank of the engine that is in a namespace without a leader, while no worker has that
// rank in the leader's: neither finds what the other has. nil if there is none. Other instances with the same id
// have leaders of their own. b.mu is held.
func (b *backend) stray(s *schedulerSession) *workerSession {
	led := make(map[connector.NamespaceDigest]bool)
	for o := range b.schedulers {
		if o.peer.Engine == s.peer.Engine {
			led[o.namespace] = true
		}
	}
	here := make(map[int]bool)
	for w := range b.workers {
		if w.peer.Engine == s.peer.Engine && w.namespace == s.namespace {
			here[w.rank] = true
		}
	}
	var stray *workerSession
	for w := range b.workers {
		if w.peer.Engine != s.peer.Engine || w.keyed != nil || led[w.namespace] || here[w.rank] || w.rank >= s.manifest.Ranks() {
			continue
		}
		if stray == nil || w.rank < stray.rank {
			stray = w
		}
	}
	return stray
}

// apart says how the manifest of a rank differs from the scheduler's.
func (s *schedulerSession) apart(w *workerSession) string {
	const most = 8 // names come from clients
	names := s.manifest.Differences(w.manifest)
	return fmt.Sprintf("rank %d is in another namespace than the scheduler: their manifests differ in %s",
		w.rank, strings.Join(names[:min(len(names), most)], ", "))
}

func (b *backend) logReady(changes []readyChange) {
	for _, c := range changes {
		switch {
		case c.why == "":
			b.log("all ranks can load: hits are offered", c.peer)
		case c.remedy == "":
			b.log("nothing is offered to the engine, and nothing saved", c.peer, "why", c.why, "ranks_needed", c.ranks)
		default:
			b.opts.Logger.Warn("nothing is offered to the engine, and nothing saved", "engine", c.peer.Engine, c.peer.Process(),
				"client", c.peer.Client, "why", c.why, "remedy", c.remedy)
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

// loseMemory notes that the rank's memory is gone, and tells its engine's leader. A client whose connection ends
// registers again.
func (s *workerSession) loseMemory(again bool) {
	s.b.mu.Lock()
	s.registered, s.lost = false, true
	s.unlockReady()
	if again && s.peer.HangUp != nil {
		s.peer.HangUp()
	}
}
