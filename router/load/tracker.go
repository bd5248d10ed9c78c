package load

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kvconn/kvconn/connector"
)

// Tracker holds the requests in flight of every rank. It is safe for concurrent use.
type Tracker struct {
	opts Options

	mu             sync.Mutex
	ranks          map[int32]*rankState
	requests       map[uint64]*entry
	oldest, newest *entry
	free           []*entry
	freeKeys       int // block keys that these have room for
	keys           int // block keys kept, of all requests
	expired        uint64
}

// NewTracker returns a tracker without ranks.
func NewTracker(o Options) (*Tracker, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	return &Tracker{opts: o, ranks: map[int32]*rankState{}, requests: map[uint64]*entry{}}, nil
}

// SetRank makes a rank known, or changes the capacity of one that is.
func (t *Tracker) SetRank(rank int32, c Capacity) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r := t.ranks[rank]; r != nil {
		r.capacity = c
		return nil
	}
	if len(t.ranks) >= t.opts.MaxRanks {
		return fmt.Errorf("set rank %d: %w ranks", rank, ErrFull)
	}
	t.ranks[rank] = &rankState{id: rank, capacity: c, recentAt: t.opts.Now(), shared: map[connector.Key]int32{}}
	return nil
}

// RemoveRank forgets a rank and all its requests, as after its end. It returns how many they were.
func (t *Tracker) RemoveRank(rank int32) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.ranks[rank]
	if r == nil {
		return 0
	}
	n := 0
	for e := t.oldest; e != nil; {
		next := e.newer
		if e.rank == r {
			t.remove(e, t.opts.Now())
			n++
		}
		e = next
	}
	delete(t.ranks, rank)
	return n
}

// Add books a request that was placed on a rank. The capacity of the rank is not checked: what was
// placed counts. Errors wrap [ErrUnknownRank], [ErrDuplicate], [ErrFull] or [ErrInvalid].
func (t *Tracker) Add(req Request) error {
	if err := req.validate(t.opts.BlockSize); err != nil {
		return fmt.Errorf("add request %d of %d tokens: %w", req.ID, req.PromptTokens, err)
	}
	now := t.opts.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expire(now)
	r := t.ranks[req.Rank]
	switch {
	case r == nil:
		return fmt.Errorf("add request %d to rank %d: %w", req.ID, req.Rank, ErrUnknownRank)
	case t.requests[req.ID] != nil:
		return fmt.Errorf("add request %d: %w", req.ID, ErrDuplicate)
	case len(t.requests) >= t.opts.MaxRequests:
		return fmt.Errorf("add request %d: %w requests", req.ID, ErrFull)
	}
	e := t.take()
	e.id, e.rank = req.ID, r
	e.prompt, e.uncached = int64(req.PromptTokens), int64(max(req.PromptTokens-req.CachedTokens, 0))
	e.disk, e.object = int64(req.DiskTokens), int64(req.ObjectTokens)
	if t.opts.AssumeKVReuse {
		e.keys = append(e.keys, req.Keys[:min(len(req.Keys), t.opts.MaxKeys-t.keys)]...)
		t.keys += len(e.keys)
	}
	e.blocks = int64(blocksOf(req.PromptTokens, t.opts.BlockSize) - len(e.keys))
	t.requests[req.ID] = e
	t.append(e, now)
	r.decay(now, t.opts.RecentHalfLife)
	r.load.RecentTokens += float64(e.uncached)
	r.load.ActiveRequests++
	r.load.PromptTokens += e.prompt
	r.load.UncachedTokens += e.uncached
	r.hold(e)
	r.enqueue(e, now)
	return nil
}

// PrefillDone says that a request has its first output token. It reports whether the request is known.
func (t *Tracker) PrefillDone(id uint64) bool {
	return t.touch(id, func(e *entry, now time.Time) { e.rank.dequeue(e, now) })
}

// Output says that a request has generated more tokens. A first one ends its prefill. It reports
// whether the request is known.
func (t *Tracker) Output(id uint64, tokens int) bool {
	return t.touch(id, func(e *entry, now time.Time) {
		e.rank.dequeue(e, now)
		if tokens <= 0 || tokens > maxPromptTokens {
			return
		}
		before := blocksOf(int(e.prompt+e.output), t.opts.BlockSize)
		e.output += int64(tokens)
		more := int64(blocksOf(int(e.prompt+e.output), t.opts.BlockSize) - before)
		e.blocks += more
		e.rank.load.DecodeBlocks += more
		e.rank.load.OutputTokens += int64(tokens)
	})
}

// Finish forgets a request, however it ended. It reports whether the request was known.
func (t *Tracker) Finish(id uint64) bool {
	return t.touch(id, func(e *entry, now time.Time) { t.remove(e, now) })
}

// Expire forgets the requests of which nothing was heard for [Options.TTL] and returns how many there
// have been since the start. Add and Snapshot do so themselves.
func (t *Tracker) Expire() uint64 {
	now := t.opts.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expire(now)
	return t.expired
}

// Requests returns the number of requests in flight.
func (t *Tracker) Requests() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.requests)
}

// Snapshot copies the load and the capacity of ranks[i] into loads[i] and capacities[i]; known[i] says
// whether there is such a rank, else both are zero. capacities and known may be nil. All are of one
// moment. It does not allocate; the slices must be as long as ranks.
func (t *Tracker) Snapshot(ranks []int32, loads []Rank, capacities []Capacity, known []bool) {
	now := t.opts.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expire(now)
	for i, id := range ranks {
		var v Rank
		var c Capacity
		r := t.ranks[id]
		if r != nil {
			r.decay(now, t.opts.RecentHalfLife)
			v, c = r.view(now), r.capacity
		}
		loads[i] = v
		if capacities != nil {
			capacities[i] = c
		}
		if known != nil {
			known[i] = r != nil
		}
	}
}

// Ranks appends the ids of all ranks to dst, in ascending order.
func (t *Tracker) Ranks(dst []int32) []int32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	from := len(dst)
	for id := range t.ranks {
		dst = append(dst, id)
	}
	slices.Sort(dst[from:])
	return dst
}
