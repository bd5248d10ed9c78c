package prefix

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/docs"
	"github.com/kvconn/kvconn/internal/testkit/prompts"
	"github.com/kvconn/kvconn/internal/testkit/seed"
)

// session is a conversation: a prompt that grows turn by turn.
type session struct {
	keys []connector.Key
	ids  []uint64
}

// grow appends blocks to a session, after taking back the last drop of them: another answer
// to the same question.
func (s *session) grow(rng *rand.Rand, drop, blocks int) {
	keep := len(s.keys) - drop
	parent := connector.Key{}
	if keep > 0 {
		parent = s.keys[keep-1]
	}
	s.keys = new(connector.KeyHasher).Append(s.keys[:keep:keep], parent, prompts.Random(rng, 16*blocks), 16)
	s.ids = s.ids[:keep:keep]
	for _, k := range s.keys[keep:] {
		s.ids = append(s.ids, KeyID(k)*3)
	}
}

// engine is a rank's cache of a number of blocks, the least recently used dropped first, and
// of a prompt's the last first.
type engine struct {
	x    *Index
	h    Holder
	room int
	used map[uint64]int // block to the time of its last use
	now  int
	// order are the blocks as they were used; those used again since are passed over.
	order []used
}

type used struct {
	id uint64
	at int
}

// serve runs a prompt and reports what that stores and drops.
func (e *engine) serve(t *testing.T, s *session) {
	e.now++
	cached := 0
	for cached < len(s.ids) && e.used[s.ids[cached]] > 0 {
		cached++
	}
	for i := len(s.ids) - 1; i >= 0; i-- {
		e.used[s.ids[i]] = e.now
		e.order = append(e.order, used{s.ids[i], e.now})
	}
	if cached < len(s.ids) {
		p := prompt{keys: s.keys, ids: s.ids}
		p.report(t, e.x, e.h, cached, len(s.ids), 32)
	}
	for len(e.used) > e.room {
		u := e.order[0]
		e.order = e.order[1:]
		if e.used[u.id] == u.at {
			delete(e.used, u.id)
			if unknown := e.x.Removed(e.h, []uint64{u.id}); unknown != 0 {
				t.Fatal("the engine drops a block that the index doesn't know")
			}
		}
	}
}

// After ten thousand turns with other answers, evictions and prompts that come back, the index has
// hardly more than the engines have.
func TestChurnLeavesNothingBehind(t *testing.T) {
	const room, sessions = 4000, 60
	turns := 10_000
	if testing.Short() || raceEnabled {
		turns = 500
	}
	x := newIndex(t)
	rng := seed.Random(t, 1)
	holders, _ := gpuRanks(t, x, 4)
	var engines []*engine
	for _, h := range holders {
		engines = append(engines, &engine{x: x, h: h, room: room, used: map[uint64]int{}})
	}
	var system session
	system.grow(rng, 0, 100)
	list := make([]session, sessions)
	most := 0
	for turn := range turns {
		s := &list[rng.IntN(sessions)]
		switch {
		case len(s.keys) == 0 || len(s.keys) > 600:
			*s = system
			s.grow(rng, 0, 20)
		case rng.IntN(4) == 0:
			s.grow(rng, rng.IntN(min(30, len(s.keys)-100)), 1+rng.IntN(30))
		default:
			s.grow(rng, 0, 1+rng.IntN(40))
		}
		engines[rng.IntN(4)].serve(t, s)
		if turn > turns/2 {
			most = max(most, x.Stats().Runs)
		}
	}
	x.check(t)
	held := map[uint64]bool{}
	for _, e := range engines {
		for id := range e.used {
			held[id] = true
		}
	}
	s := x.Stats()
	t.Logf("%d distinct blocks held; %+v; at most %d runs", len(held), s, most)
	if s.Held != 4*room || s.Blocks > len(held)+len(held)/4 {
		t.Errorf("%d blocks for %d that engines have: %+v", s.Blocks, len(held), s)
	}
	if os.Getenv(seed.Variable) == "" && turns == 10_000 {
		docs.Says(t, "adr/0006-router-index.md", fmt.Sprintf("left %d runs and %d placeholders for %d,%03d blocks, %.0f bytes each",
			s.Runs, s.Blocks-len(held), len(held)/1000, len(held)%1000, float64(s.Bytes)/float64(s.Blocks)))
	}
	if s.Runs > len(held)/8 {
		t.Errorf("%d runs for %d blocks", s.Runs, s.Blocks)
	}
}
