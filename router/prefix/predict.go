package prefix

import (
	"fmt"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/router/prefix/coverage"
)

// maxPredictions bounds the predictions kept, by runs: at 40 bytes each.
const maxPredictions = 1 << 20

// Predict notes that a holder is expected to have the blocks of keys, a prompt from its
// beginning, until deadline: a prompt that was just routed there, or that a router without events
// thinks is there. Walks count predicted blocks like stored ones. Predictions and events about the
// same blocks don't change each other. With a million predictions, counted by runs, no more
// are accepted. Errors are ErrUnknownHolder and ErrChain.
func (x *Index) Predict(h Holder, keys []connector.Key, deadline time.Time) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	ho := x.holder(h)
	if ho == nil {
		return fmt.Errorf("%w: %d", ErrUnknownHolder, h)
	}
	var at *run
	var next uint32
	for len(keys) > 0 && len(x.expiry) < maxPredictions {
		r, from, n, err := x.locate(at, next, keys)
		if err != nil {
			return err
		}
		x.predict(h, ho, r, from+uint32(n), deadline.UnixNano())
		at, next, keys = r, from+uint32(n), keys[n:]
	}
	x.bound()
	return nil
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
