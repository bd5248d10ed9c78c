// Package blocksize knows how many tokens a block of a model has. A setting wins; else it is what most of the model's
// engines say in their KV events, else what most namespaces of its stores have. What an engine has said does not count while
// only others are connected: it is down, or restarts with another size.
package blocksize

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/kvconn/kvconn/connector"
)

// Default is assumed while nobody has said anything.
const Default = 16

// Origin says where a block size comes from.
type Origin string

// The origins, from the strongest to the weakest.
const (
	// Given is a setting.
	Given Origin = "given"
	// Engines means KV events.
	Engines Origin = "engines"
	// Stores means namespaces of disks and buckets. They may be left over from engines of before.
	Stores Origin = "stores"
	// Assumed means that nobody has said anything.
	Assumed Origin = "assumed"
)

// Size is the block size of one model, shared by the feeds of its ranks and stores. Its methods may be called from any
// goroutine.
type Size struct {
	onChange func()
	tokens   atomic.Int64

	mu      sync.Mutex
	given   int
	origin  Origin
	engines ballot
	stores  map[any]map[int]int
	changed chan struct{}
}

// New makes a Size that nobody has said anything of. onChange, if not nil, is called after what a feed says has changed
// the size, by the feed's goroutine.
func New(onChange func()) *Size {
	s := &Size{
		onChange: onChange, origin: Assumed, engines: newBallot(), stores: map[any]map[int]int{}, changed: make(chan struct{}),
	}
	s.tokens.Store(Default)
	return s
}

// Of makes a Size that is given.
func Of(tokens int) *Size {
	s := New(nil)
	s.Give(tokens)
	return s
}

// Tokens is the size as it is now, at least 1.
func (s *Size) Tokens() int { return int(s.tokens.Load()) }

// Changed is closed with the next change.
func (s *Size) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// IsGiven reports whether the size is a setting.
func (s *Size) IsGiven() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.given != 0
}

// Give sets the size; 0 has it learnt. It does not call onChange.
func (s *Size) Give(tokens int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.given = tokens
	s.decide()
}

// EngineSays notes what the events of a rank say; feed is what follows them. A size out of bounds is not noted.
func (s *Size) EngineSays(feed any, rank int32, tokens int) {
	if tokens < 1 || tokens > connector.MaxBlockSize {
		return
	}
	s.note(func() {
		s.engines.change(feed, func(e *engine) {
			e.rank, e.tokens, e.counts = rank, tokens, true // while none is connected, the latest word counts
		})
	})
}

// EngineConnected notes whether the engine that a feed follows can be reached.
func (s *Size) EngineConnected(feed any, connected bool) {
	s.note(func() { s.engines.change(feed, func(e *engine) { e.connected = connected }) })
}

// StoreSays notes how many namespaces of each size a store has; feed is what follows it.
func (s *Size) StoreSays(feed any, namespaces map[int]int) {
	s.note(func() { s.stores[feed] = maps.Clone(namespaces) })
}

// Forget forgets what a feed has said: its rank or store is gone.
func (s *Size) Forget(feed any) {
	s.note(func() {
		s.engines.forget(feed)
		delete(s.stores, feed)
	})
}

func (s *Size) note(what func()) {
	s.mu.Lock()
	what()
	changed := s.decide()
	s.mu.Unlock()
	if changed && s.onChange != nil {
		s.onChange()
	}
}

// decide reports whether the size is another than before. The caller holds mu.
func (s *Size) decide() (changed bool) {
	old := s.Tokens()
	next := old
	switch votes, from := s.votes(); {
	case s.given != 0:
		next, s.origin = s.given, Given
	case len(votes) > 0:
		next, s.origin = most(votes, old), from
	case s.origin == Given: // it was a setting, which is gone
		next, s.origin = Default, Assumed
	}
	if next == old {
		return false
	}
	s.tokens.Store(int64(next))
	close(s.changed)
	s.changed = make(chan struct{})
	return true
}

// most is the size with the most votes. Of those with as many it is the present one, else the largest.
func most(votes map[int]int, present int) int {
	return slices.MaxFunc(slices.Collect(maps.Keys(votes)), func(a, b int) int {
		if c := cmp.Compare(votes[a], votes[b]); c != 0 || a == b {
			return c
		}
		switch present {
		case a:
			return 1
		case b:
			return -1
		}
		return cmp.Compare(a, b)
	})
}

// votes are those that decide, and whose they are. The caller holds mu.
func (s *Size) votes() (map[int]int, Origin) {
	if len(s.engines.votes) > 0 {
		return s.engines.votes, Engines
	}
	return s.byStores(), Stores
}

func (s *Size) byStores() map[int]int {
	votes := make(map[int]int)
	for _, sizes := range s.stores {
		for tokens, n := range sizes {
			votes[tokens] += n
		}
	}
	return votes
}
