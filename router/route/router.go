package route

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvconn/kvconn/router/policy"
	"github.com/kvconn/kvconn/router/prefix"
)

// Router decides where requests go. Its methods may be called from any goroutine.
type Router struct {
	opts    Options
	index   *prefix.Index
	ctx     context.Context // ends with Close: feeds live until then
	cancel  context.CancelFunc
	running errgroup.Group
	flights flights
	ids     atomic.Uint64
	models  atomic.Pointer[map[string]target]
	counts  counts

	// admin is held for whole changes of the ranks, mu for looking at and changing the maps.
	admin   sync.Mutex
	mu      sync.Mutex
	closed  bool
	ranks   map[int32]*rankState
	pools   map[string]*pool
	sources map[sourceKey]*source

	scratches sync.Pool // of *scratch
}

// target is what a model's name in a request stands for.
type target struct {
	pool *pool
	lora string
}

// New makes a router without ranks. Close has to be called.
func New(o Options) (*Router, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	x, err := prefix.New(o.Index)
	if err != nil {
		return nil, err
	}
	r := &Router{
		opts: o, index: x, ranks: map[int32]*rankState{}, pools: map[string]*pool{}, sources: map[sourceKey]*source{},
		flights: flights{byID: map[uint64]flight{}}, counts: counts{reasons: map[policy.Reason]*atomic.Uint64{}},
	}
	for _, reason := range policy.Reasons() {
		r.counts.reasons[reason] = new(atomic.Uint64)
	}
	// Handles begin at a random number, so that one of an earlier router names no request of this one.
	var seed [8]byte
	if _, err := rand.Read(seed[:]); err != nil {
		return nil, err
	}
	r.ids.Store(binary.LittleEndian.Uint64(seed[:]) >> 1)
	r.scratches.New = func() any { return new(scratch) }
	r.models.Store(&map[string]target{})
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.running.Go(func() error { r.expire(); return nil })
	return r, nil
}

// expireInterval is how often what has expired is forgotten.
const expireInterval = time.Second

// expire forgets predictions and requests whose time is over, extends predictions of what waits, and ends prefills whose end is not
// reported.
func (r *Router) expire() {
	tick := time.NewTicker(expireInterval)
	defer tick.Stop()
	for {
		select {
		case <-r.ctx.Done():
			return
		case <-tick.C:
		}
		now := r.opts.Now()
		r.assumePrefilled(now)
		r.extendPredictions(now)
		r.index.Expire(now)
		r.flights.sweep(now.Add(-r.opts.Load.TTL), nil)
	}
}

// Close ends the feeds and forgets everything. Decisions fail from then on.
func (r *Router) Close() {
	r.admin.Lock()
	defer r.admin.Unlock()
	r.mu.Lock()
	r.closed = true
	r.models.Store(&map[string]target{})
	states := slices.Collect(maps.Values(r.ranks))
	r.ranks = map[int32]*rankState{}
	r.mu.Unlock()
	r.cancel()
	for _, s := range states {
		r.release(s)
	}
	_ = r.running.Wait() // its functions return no error
}

// scratch is the work space of one decision.
type scratch struct {
	walk    prefix.Scratch
	results []prefix.Result
	root    rootCache
	// stored is for what stores have of a prompt with an adapter.
	stored storedScratch
}

// Index is the prefix index, for feeds other than the router's own and for measurements.
func (r *Router) Index() *prefix.Index { return r.index }

// Holder is the GPU of a rank in the index; ok is false if there is no such rank.
func (r *Router) Holder(rank int32) (h prefix.Holder, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.ranks[rank]; s != nil {
		return s.gpu, true
	}
	return 0, false
}
