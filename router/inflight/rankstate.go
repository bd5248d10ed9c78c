package inflight

import (
	"math"
	"time"

	"github.com/kvconn/kvconn/connector"
)

// rankState is what the tracker keeps of one rank.
type rankState struct {
	load       Rank
	recentAt   time.Time               // when load.RecentTokens was right
	queue      list                    // requests that wait or are in prefill
	frontSince time.Time               // since when the first of them has been the first
	shared     map[connector.Key]int32 // number of requests that hold each counted key
}

func (r *rankState) decay(now time.Time, halfLife time.Duration) {
	if d := now.Sub(r.recentAt); d > 0 {
		r.load.RecentTokens *= math.Exp2(-float64(d) / float64(halfLife))
		r.recentAt = now
	}
}

// enqueue appends e to the requests that wait or are in prefill.
func (r *rankState) enqueue(e *entry, now time.Time) {
	e.prefill = true
	if r.queue.first == nil {
		r.frontSince = now
	}
	r.queue.append(e)
	r.load.QueuedRequests++
	r.load.QueuedTokens += e.uncached
	r.load.QueuedDiskTokens += e.disk
	r.load.QueuedObjectTokens += e.object
}

// dequeue removes e from them.
func (r *rankState) dequeue(e *entry, now time.Time) {
	if !e.prefill {
		return
	}
	e.prefill = false
	if r.queue.first == e {
		r.frontSince = now
	}
	r.queue.remove(e)
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
	if e := r.queue.first; e != nil {
		v.FrontTokens, v.FrontDiskTokens, v.FrontObjectTokens = e.uncached, e.disk, e.object
		v.FrontAge = max(now.Sub(r.frontSince), 0)
	}
	return v
}
