// Package inflight keeps track of the requests that are in flight on each data-parallel rank: waiting, in
// prefill and in decode.
//
// The router books a request when it places it ([Tracker.Add]), reports the end of its prefill and its own
// end, and forgets a request that nobody mentions for a time. [Tracker.Snapshot] copies the resulting load
// of every rank into the caller's memory without allocating. Policies decide by that load.
package inflight

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kvconn/kvconn/connector"
)

// Tracker holds the requests in flight of every rank. It is safe for concurrent use.
type Tracker struct {
	opts Options

	mu       sync.Mutex
	ranks    map[int32]*rankState
	requests map[uint64]*entry
	reported list // all requests, by the time of their last report
	free     []*entry
	freeKeys int // block keys that these have room for
	keys     int // block keys kept, of all requests
	maxKeys  int // more are not kept: their blocks count as if they were not shared
}

// NewTracker returns a tracker without ranks.
func NewTracker(o Options) (*Tracker, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	return &Tracker{opts: o, ranks: map[int32]*rankState{}, requests: map[uint64]*entry{}, maxKeys: 4 << 20}, nil
}

// AddRank makes a rank known. One that is known already stays as it is. The error wraps [ErrFull].
func (t *Tracker) AddRank(rank int32) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.ranks[rank] != nil:
		return nil
	case len(t.ranks) >= t.opts.MaxRanks:
		return fmt.Errorf("add rank %d: %w ranks", rank, ErrFull)
	}
	t.ranks[rank] = &rankState{recentAt: t.opts.Now(), queue: list{kind: byRank}, shared: map[connector.Key]int32{}}
	return nil
}

// SetBlockSize sets the number of tokens in a block, which must be positive. Requests that are in flight keep their blocks.
func (t *Tracker) SetBlockSize(tokens int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.opts.BlockSize = tokens
}

// RemoveRank forgets a rank and all its requests. It returns how many requests it had.
func (t *Tracker) RemoveRank(rank int32) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.ranks[rank]
	if r == nil {
		return 0
	}
	n := 0
	for e := t.reported.first; e != nil; {
		next := e.links[byReport].after
		if e.rank == r {
			t.remove(e, t.opts.Now())
			n++
		}
		e = next
	}
	delete(t.ranks, rank)
	return n
}

// Add books a request that was placed on a rank. Errors wrap [ErrUnknownRank], [ErrDuplicate], [ErrFull] or [ErrInvalid].
func (t *Tracker) Add(req Request) error {
	now := t.opts.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := req.validate(t.opts.BlockSize); err != nil {
		return fmt.Errorf("add request %d of %d tokens: %w", req.ID, req.PromptTokens, err)
	}
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
	e.disk, e.object, e.silent = int64(req.DiskTokens), int64(req.ObjectTokens), req.Silent
	if t.opts.AssumeKVReuse {
		e.keys = append(e.keys, req.Keys[:min(len(req.Keys), t.maxKeys-t.keys)]...)
		t.keys += len(e.keys)
	}
	e.blocks = int64(blocksOf(req.PromptTokens, t.opts.BlockSize) - len(e.keys))
	t.requests[req.ID] = e
	e.touched = now
	t.reported.append(e)
	r.decay(now)
	r.load.RecentTokens += float64(e.uncached)
	r.load.RecentDiskTokens += float64(e.disk)
	r.load.RecentObjectTokens += float64(e.object)
	r.load.RecentRequests++
	r.load.ActiveRequests++
	r.load.PromptTokens += e.prompt
	r.load.UncachedTokens += e.uncached
	r.hold(e)
	r.enqueue(e, now)
	return nil
}

// PrefillDone reports that a request has its first output token. It says whether the request is known.
func (t *Tracker) PrefillDone(id uint64) bool {
	return t.touch(id, func(e *entry, now time.Time) { e.rank.dequeue(e, now) })
}

// Output reports that a request has generated more tokens; the first report ends its prefill. It says
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

// Finish forgets a request, however it ended. It says whether the request was known.
func (t *Tracker) Finish(id uint64) bool {
	return t.touch(id, func(e *entry, now time.Time) { t.remove(e, now) })
}

// Requests returns the number of requests in flight.
func (t *Tracker) Requests() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.requests)
}

// Snapshot copies the load of ranks[i] into loads[i], zero for a rank that is not known, all of one moment. It
// does not allocate; loads must be as long as ranks.
func (t *Tracker) Snapshot(ranks []int32, loads []Rank) {
	now := t.opts.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expire(now)
	for i, id := range ranks {
		loads[i] = Rank{}
		if r := t.ranks[id]; r != nil {
			r.decay(now)
			loads[i] = r.view(now)
		}
	}
}

// Errors of [Tracker.Add].
var (
	// ErrUnknownRank means that the rank was never set or has been removed.
	ErrUnknownRank = errors.New("inflight: unknown rank")
	// ErrDuplicate means that a request of this id is in flight.
	ErrDuplicate = errors.New("inflight: request is in flight already")
	// ErrFull means that as many requests or ranks are tracked as the options allow.
	ErrFull = errors.New("inflight: too many")
	// ErrInvalid means that token counts or the number of keys are out of range.
	ErrInvalid = errors.New("inflight: invalid request")
)

// Request is a request that was placed on a rank.
type Request struct {
	// ID names the request until it finishes.
	ID uint64
	// Rank is where it was placed.
	Rank int32
	// PromptTokens is the length of its prompt. CachedTokens of them need not be computed, whichever
	// tier has them; DiskTokens and ObjectTokens are the part of CachedTokens that the rank loads from
	// disk and from the object store.
	PromptTokens, CachedTokens, DiskTokens, ObjectTokens int
	// Silent says that the end of its prefill may not be reported before its own end: see [Rank.FrontSilent].
	Silent bool
	// Keys are the block keys of the prompt, for shared counting. They may be nil or cover only the head
	// of the prompt. They are copied.
	Keys []connector.Key
}

// maxPromptTokens bounds a prompt: more than any engine takes, and sums of them never overflow.
const maxPromptTokens = 1 << 30

func (r *Request) validate(blockSize int) error {
	if r.PromptTokens < 0 || r.PromptTokens > maxPromptTokens || r.CachedTokens < 0 || r.CachedTokens > maxPromptTokens ||
		r.DiskTokens < 0 || r.DiskTokens > r.CachedTokens || r.ObjectTokens < 0 || r.ObjectTokens > r.CachedTokens ||
		len(r.Keys) > blocksOf(r.PromptTokens, blockSize) {
		return ErrInvalid
	}
	return nil
}
