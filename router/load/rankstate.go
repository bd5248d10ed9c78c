package load

import (
	"math"
	"time"

	"github.com/kvconn/kvconn/connector"
)

// rankState is what the tracker keeps of one rank.
type rankState struct {
	id         int32
	capacity   Capacity
	load       Rank
	recentAt   time.Time // when load.RecentTokens was right
	frontSince time.Time
	front      *entry // oldest request that waits or is in prefill
	back       *entry
	shared     map[connector.Key]int32 // holders of each counted key
}

func (r *rankState) decay(now time.Time, halfLife time.Duration) {
	if d := now.Sub(r.recentAt); d > 0 {
		r.load.RecentTokens *= math.Exp2(-float64(d) / float64(halfLife))
		r.recentAt = now
	}
}

// enqueue appends e to those that wait or are in prefill.
func (r *rankState) enqueue(e *entry, now time.Time) {
	e.prefill = true
	e.ahead = r.back
	if r.back != nil {
		r.back.after = e
	} else {
		r.front, r.frontSince = e, now
	}
	r.back = e
	r.load.QueuedRequests++
	r.load.QueuedTokens += e.uncached
	r.load.QueuedDiskTokens += e.disk
	r.load.QueuedObjectTokens += e.object
}

// dequeue takes e out of them; the next one is in front from now on.
func (r *rankState) dequeue(e *entry, now time.Time) {
	if !e.prefill {
		return
	}
	e.prefill = false
	if e.ahead != nil {
		e.ahead.after = e.after
	} else {
		r.front, r.frontSince = e.after, now
	}
	if e.after != nil {
		e.after.ahead = e.ahead
	} else {
		r.back = e.ahead
	}
	e.ahead, e.after = nil, nil
	r.load.QueuedRequests--
	r.load.QueuedTokens -= e.uncached
	r.load.QueuedDiskTokens -= e.disk
	r.load.QueuedObjectTokens -= e.object
}

// hold counts the keys of e, each once for the rank.
func (r *rankState) hold(e *entry) {
	for _, k := range e.keys {
		n := r.shared[k]
		if n == 0 {
			r.load.DecodeBlocks++
		}
		r.shared[k] = n + 1
	}
	r.load.DecodeBlocks += e.blocks
}

// drop undoes hold.
func (r *rankState) drop(e *entry) {
	for _, k := range e.keys {
		if n := r.shared[k]; n > 1 {
			r.shared[k] = n - 1
			continue
		}
		delete(r.shared, k)
		r.load.DecodeBlocks--
	}
	r.load.DecodeBlocks -= e.blocks
}

// view returns the load at time now.
func (r *rankState) view(now time.Time) Rank {
	v := r.load
	if r.front != nil {
		v.FrontTokens, v.FrontDiskTokens, v.FrontObjectTokens = r.front.uncached, r.front.disk, r.front.object
		v.FrontAge = max(now.Sub(r.frontSince), 0)
	}
	return v
}
