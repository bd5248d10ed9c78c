package prefix

import (
	"fmt"
	"slices"
	"time"

	"github.com/kvconn/kvconn/connector"
)

// maxPredictions bounds the predictions kept, by runs: at 40 bytes each.
const maxPredictions = 1 << 20

// Predict notes that a holder is expected to have the blocks of keys, a prompt from its
// beginning, until deadline: what was just routed there, or what a router without events
// thinks is there. Walks count them like blocks that were stored. What events say of the
// same blocks is kept apart, and neither changes the other. Beyond a million predictions
// by runs none is taken in. Errors are ErrUnknownHolder and ErrChain.
func (x *Index) Predict(h Holder, keys []connector.Key, deadline time.Time) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	ho := x.holder(h)
	if ho == nil {
		return fmt.Errorf("%w: %d", ErrUnknownHolder, h)
	}
	x.stats.Seq++
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

// predict notes a prediction for a run's first end blocks.
func (x *Index) predict(h Holder, ho *holder, r *run, end uint32, deadline int64) {
	c := r.cover.Load()
	if !c.knows(h) {
		x.noteRun(h, ho, r)
	}
	if c.more != nil {
		for _, p := range c.more.predicted {
			if p.h == h && p.end >= end && p.deadline >= deadline {
				return
			}
		}
	}
	r.cover.Store(c.withMore(func(m *moreCoverage) {
		list := slices.DeleteFunc(slices.Clone(m.predicted), func(p prediction) bool {
			return p.h == h && p.end <= end && p.deadline <= deadline
		})
		m.predicted = append(list, prediction{h: h, end: end, deadline: deadline})
	}))
	x.recount(r)
	x.expiry.push(expiry{deadline: deadline, run: r})
	x.stats.Bytes += expiryBytes
}

// Expire forgets the predictions whose deadline is not after now, and returns how many, by
// runs.
func (x *Index) Expire(now time.Time) int {
	x.mu.Lock()
	defer x.mu.Unlock()
	count, until := 0, now.UnixNano()
	for len(x.expiry) > 0 && x.expiry[0].deadline <= until {
		r := x.expiry.pop().run
		x.stats.Bytes -= expiryBytes
		count++
		if r.id == 0 {
			continue
		}
		c := r.cover.Load()
		if next := c.withoutPredictions(func(p prediction) bool { return p.deadline <= until }); next != c {
			r.cover.Store(next)
			x.recount(r)
			x.trim(r)
		}
	}
	if count > 0 {
		x.stats.Seq++
	}
	return count
}

// withoutPredictions is c without those that drop says; c itself if there is none.
func (c *coverage) withoutPredictions(drop func(prediction) bool) *coverage {
	if c.more == nil || !slices.ContainsFunc(c.more.predicted, drop) {
		return c
	}
	return c.withMore(func(m *moreCoverage) {
		m.predicted = slices.DeleteFunc(slices.Clone(m.predicted), drop)
	})
}

// knows says whether a holder has some of the run or is expected to.
func (c *coverage) knows(h Holder) bool {
	if f, _, _ := c.find(h); f != formNone {
		return true
	}
	return c.more != nil && slices.ContainsFunc(c.more.predicted, func(p prediction) bool { return p.h == h })
}

// expiry says that a run has a prediction that expires.
type expiry struct {
	deadline int64
	run      *run
}

const expiryBytes = 16

// expiryHeap is a heap of expiries, the earliest first.
type expiryHeap []expiry

func (q *expiryHeap) push(e expiry) {
	*q = append(*q, e)
	list := *q
	for i := len(list) - 1; i > 0; {
		up := (i - 1) / 2
		if list[up].deadline <= list[i].deadline {
			return
		}
		list[up], list[i] = list[i], list[up]
		i = up
	}
}

func (q *expiryHeap) pop() expiry {
	list := *q
	first, last := list[0], len(list)-1
	list[0], list[last] = list[last], expiry{}
	list = list[:last]
	*q = list
	for i := 0; ; {
		least := i
		for k := 2*i + 1; k <= 2*i+2 && k < last; k++ {
			if list[k].deadline < list[least].deadline {
				least = k
			}
		}
		if least == i {
			return first
		}
		list[least], list[i] = list[i], list[least]
		i = least
	}
}
