package route

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/kvconn/kvconn/router/prefix"
)

// flight is a request that was placed and has not finished.
type flight struct {
	pool   *pool
	rank   *rankState
	placed time.Time
	heard  time.Time
	// compute is how many tokens it had to compute if it was alone on its rank and loaded nothing,
	// else 0. The rank's speed is learnt from its prefill then.
	compute int32
	// assume is when the prefill is assumed to be over; 0 if its end will be reported, or cannot be
	// predicted. extend is when the prediction of its blocks is to be extended. Both are in Unix nanoseconds: a map keeps no more
	// than 128 bytes of a value in place.
	assume, extend int64
	// spot is where its prompt ends in the index as long as it waits for its prefill.
	spot prefix.Spot
}

// flights are the requests in flight by handle.
type flights struct {
	mu   sync.Mutex
	byID map[uint64]flight
}

func (f *flights) add(id uint64, e flight) {
	f.mu.Lock()
	f.byID[id] = e
	f.mu.Unlock()
}

// hear returns a request as it was and notes that it was reported.
func (f *flights) hear(id uint64, now time.Time, prefillDone bool) (e flight, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if e, ok = f.byID[id]; !ok {
		return e, false
	}
	next := e
	next.heard = now
	if prefillDone {
		next.compute, next.assume, next.spot = 0, 0, prefix.Spot{}
	}
	f.byID[id] = next
	return e, true
}

func (f *flights) remove(id uint64) (e flight, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e, ok = f.byID[id]
	delete(f.byID, id)
	return e, ok
}

// due returns the requests whose prefill is assumed to be over by now.
func (f *flights) due(now time.Time) (ids []uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, e := range f.byID {
		if e.assume != 0 && e.assume <= now.UnixNano() {
			ids = append(ids, id)
		}
	}
	return ids
}

// waiting returns the requests that wait for their prefill and whose predictions are to be extended by now. The next time is after
// half of what they are extended by.
func (f *flights) waiting(now time.Time, by func(*rankState) time.Duration) (list []flight) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, e := range f.byID {
		if !e.spot.Known() || e.extend > now.UnixNano() {
			continue
		}
		list = append(list, e)
		e.extend = now.Add(by(e.rank) / 2).UnixNano()
		f.byID[id] = e
	}
	return list
}

// sweep forgets requests that were last reported earlier than before, as the tracker does by itself, and those
// of a rank that is gone.
func (f *flights) sweep(before time.Time, gone *rankState) {
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.DeleteFunc(f.byID, func(_ uint64, e flight) bool { return e.heard.Before(before) || e.rank == gone })
}

// move gives requests of ranks to those that take their places.
func (f *flights) move(to map[*rankState]*rankState) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, e := range f.byID {
		if s := to[e.rank]; s != nil {
			e.rank = s
			f.byID[id] = e
		}
	}
}

// PrefillDone reports that a request has its first output token. It returns whether the request is known: not
// if it has finished, was not reported for too long, or its rank was removed.
func (r *Router) PrefillDone(handle uint64) bool {
	now := r.opts.Now()
	e, ok := r.flights.hear(handle, now, true)
	if !ok {
		return false
	}
	e.rank.learnPrefill(e.compute, now.Sub(e.placed).Seconds())
	return e.pool.tracker.PrefillDone(handle)
}

// assumePrefilled ends the prefills that should be over and whose end is not reported. Nothing is learnt from
// them.
func (r *Router) assumePrefilled(now time.Time) {
	for _, handle := range r.flights.due(now) {
		if e, ok := r.flights.hear(handle, now, true); ok {
			e.pool.tracker.PrefillDone(handle)
		}
	}
}

// extendPredictions lets what waits for its prefill count as in the rank's GPU for longer: in a queue of a minute, the next turn of a
// conversation would otherwise go elsewhere, and do the work of this one again.
func (r *Router) extendPredictions(now time.Time) {
	for _, e := range r.flights.waiting(now, r.predictTTL) {
		e.pool.mu.Lock()
		// A rank that was removed has left its number in the index to another.
		if slices.Contains(e.pool.view.Load().states, e.rank) {
			r.index.Extend(e.rank.gpu, e.spot, now.Add(r.predictTTL(e.rank)))
		}
		e.pool.mu.Unlock()
	}
}

// Output reports that a request has generated more tokens. It returns whether the request is known.
func (r *Router) Output(handle uint64, tokens int) bool {
	e, ok := r.flights.hear(handle, r.opts.Now(), false)
	return ok && e.pool.tracker.Output(handle, tokens)
}

// Finish reports the end of a request, however it ended. It returns whether the request was known.
func (r *Router) Finish(handle uint64) bool {
	e, ok := r.flights.remove(handle)
	return ok && e.pool.tracker.Finish(handle)
}
