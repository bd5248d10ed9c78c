package prefix

import (
	"fmt"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/router/prefix/coverage"
)

// maxPredictions bounds the predictions kept, by runs: at 40 bytes each.
const maxPredictions = 1 << 20

// Spot is where a prompt ends in an index, for [Index.Extend]. The zero Spot is nowhere.
type Spot struct {
	run *run
	end uint32
	// last is the key of the block before end: it tells whether the run still has the prompt's blocks there.
	last connector.Key
}

func spotOf(r *run, end uint32, keys []connector.Key) Spot {
	return Spot{run: r, end: end, last: keys[len(keys)-1]}
}

// Known says that it is somewhere.
func (s *Spot) Known() bool { return s.run != nil }

// Predict notes that a holder is expected to have the blocks of keys, a prompt from its
// beginning, until deadline: a prompt that was just routed there, or that a router without events
// thinks is there. Walks count predicted blocks like stored ones. Predictions and events about the
// same blocks don't change each other. With a million predictions, counted by runs, no more
// are accepted, and the spot is nowhere. Errors are ErrUnknownHolder and ErrChain.
func (x *Index) Predict(h Holder, keys []connector.Key, deadline time.Time) (end Spot, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	ho := x.holder(h)
	if ho == nil {
		return end, fmt.Errorf("%w: %d", ErrUnknownHolder, h)
	}
	var at *run
	var next uint32
	for rest := keys; len(rest) > 0 && len(x.expiry) < maxPredictions; {
		r, from, n, err := x.locate(at, next, rest)
		if err != nil {
			return end, err
		}
		x.predict(h, ho, r, from+uint32(n), deadline.UnixNano())
		at, next, rest = r, from+uint32(n), rest[n:]
		if len(rest) == 0 {
			end = spotOf(at, next, keys)
		}
	}
	x.bound()
	return end, nil
}

// Extend lets the predictions that a holder has of a prompt's blocks last until deadline, as the prompt still waits there. It begins
// none: what is lost with a restart of the engine stays lost.
func (x *Index) Extend(h Holder, s Spot, deadline time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	ho := x.holder(h)
	if ho == nil || s.run == nil || s.run.id == 0 || s.run.len() < s.end || s.run.published()[s.end-1] != s.last {
		return
	}
	for r, end := s.run, s.end; r != nil && len(x.expiry) < maxPredictions; r, end = r.parent, r.parentOff+1 {
		if !r.cover.Load().Predicts(h, end) {
			break
		}
		x.touch(r)
		x.predict(h, ho, r, end, deadline.UnixNano())
	}
	x.bound()
}

func (x *Index) predict(h Holder, ho *holder, r *run, end uint32, deadline int64) {
	c := r.cover.Load()
	if !c.Knows(h) {
		x.noteRun(h, ho, r)
	}
	next := c.WithPrediction(coverage.Prediction{Holder: h, End: end, Deadline: deadline})
	if next == c {
		return
	}
	x.publish(r, c, next)
	x.expiry.Push(expiry{deadline: deadline, run: r})
	x.stats.Bytes += expiryBytes
}

// Expire forgets the predictions whose deadline is not after now, and returns how many, counted
// by runs.
func (x *Index) Expire(now time.Time) int {
	x.mu.Lock()
	defer x.mu.Unlock()
	count, until := 0, now.UnixNano()
	for len(x.expiry) > 0 && x.expiry[0].deadline <= until {
		r := x.expiry.Pop().run
		x.stats.Bytes -= expiryBytes
		count++
		if r.id == 0 {
			continue
		}
		c := r.cover.Load()
		x.publish(r, c, c.WithoutPredictions(func(p coverage.Prediction) bool { return p.Deadline <= until }))
		x.trim(r)
	}
	return count
}

type expiry struct {
	deadline int64
	run      *run
}

const expiryBytes = 16

// Before says that e expires before f.
func (e expiry) Before(f expiry) bool { return e.deadline < f.deadline }
