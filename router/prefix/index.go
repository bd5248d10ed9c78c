package prefix

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/router/heap"
	"github.com/kvconn/kvconn/router/prefix/coverage"
)

// Holder is the ordinal of something that has blocks: a rank's GPU, a node's disk, a
// bucket. Ordinals are small and are used again after [Index.RemoveHolder].
type Holder = coverage.Holder

// Tier is what kind of memory a holder is.
type Tier uint8

// The tiers that a rank's blocks come from, the fastest first.
const (
	GPU Tier = iota
	Disk
	Object
	tiers
)

// String returns the tier's name; t is one of the tiers.
func (t Tier) String() string {
	return [...]string{"gpu", "disk", "object"}[t]
}

var (
	// ErrUnknownHolder says that a holder is not registered.
	ErrUnknownHolder = errors.New("prefix index: unknown holder")
	// ErrTooManyHolders says that [Options.MaxHolders] are registered.
	ErrTooManyHolders = errors.New("prefix index: too many holders")
	// ErrUnknownParent says that blocks follow one that the index has never seen or has
	// forgotten: they cannot be placed. The caller drops them or resynchronizes the holder.
	ErrUnknownParent = errors.New("prefix index: parent block unknown")
	// ErrChain says that the first key of a run was reported after two different
	// blocks. Chained keys have one predecessor, so the keys or the parent are wrong.
	ErrChain = errors.New("prefix index: key follows another block")
)

// Index is a prefix index; see the package comment. Its methods may be called from any
// goroutine. Changes take turns; walks wait for nothing.
type Index struct {
	opts  Options
	heads *heads
	// epoch is a clock for eviction, see epochParts.
	epoch atomic.Uint32

	mu sync.Mutex
	// runs is the table of runs by id; 0 is not used. free are the ids to use again.
	runs        []*run
	free        []uint32
	holders     []*holder
	domains     map[string]*names
	expiry      heap.Heap[expiry]
	hand        uint32
	epochBlocks int
	// places is work space of Removed, renamed and restated of Stored: blocks whose name is another's now, and blocks that
	// have got another name.
	places, renamed, restated []place
	stats                     Stats
}

type holder struct {
	// names are the names of the declared domain. own, if not nil, are of this holder alone; they are made
	// once its names turn out to differ from the domain's.
	names, own *names
	// runs are the ids of all runs in which the holder has blocks or is expected to,
	// and of some in which it had.
	runs []uint32
	// compactAt is the length of runs at which the latter are taken out.
	compactAt int
	// copies counts the copies beyond the first of blocks that were reported again.
	copies map[place]uint32
	blocks int64
	// evicted says that an eviction has taken blocks from it since it was cleared last.
	evicted bool
}

// New makes an empty index.
func New(o Options) (*Index, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	x := &Index{opts: o, runs: make([]*run, 1), domains: make(map[string]*names)}
	x.heads = newHeads(&x.stats.Bytes)
	return x, nil
}

// AddHolder registers a holder. Holders of one domain name equal blocks equally (ranks
// whose engines have equal hash settings) and share one map of names; [KeyDomain] is the
// domain of kvconn's stores. A holder whose names turn out to differ gets a map of its own. The
// error is ErrTooManyHolders if the bound is reached.
func (x *Index) AddHolder(domain string) (Holder, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	h := slices.Index(x.holders, nil)
	if h < 0 {
		if len(x.holders) == x.opts.MaxHolders {
			return 0, fmt.Errorf("%w: %d", ErrTooManyHolders, len(x.holders))
		}
		h = len(x.holders)
		x.holders = append(x.holders, nil)
	}
	d := x.domains[domain]
	if d == nil {
		d = newNames(domain, &x.stats.Bytes)
		x.domains[domain] = d
	}
	d.holders++
	x.holders[h] = &holder{names: d, compactAt: minCompact}
	x.stats.Holders++
	return Holder(h), nil
}

// RemoveHolder forgets a holder and all its blocks, and gives the memory back. Its ordinal is
// used again: a [Ranks] that names it must be replaced first. Unknown holders are ignored.
func (x *Index) RemoveHolder(h Holder) {
	x.mu.Lock()
	defer x.mu.Unlock()
	ho := x.holder(h)
	if ho == nil {
		return
	}
	x.clear(h, ho)
	x.holders[h] = nil
	for n := len(x.holders); n > 0 && x.holders[n-1] == nil; n-- {
		x.holders = x.holders[:n-1]
	}
	x.stats.Holders--
	if ho.names.holders--; ho.names.holders == 0 {
		delete(x.domains, ho.names.domain)
		for _, r := range x.runs[1:] {
			if r != nil {
				x.forgetNames(r, ho.names)
			}
		}
		x.stats.Bytes -= ho.names.bytes()
	}
}

// Clear forgets all blocks of a holder (an engine that restarted or cleared its cache), and
// gives the memory back. Unknown holders are ignored.
func (x *Index) Clear(h Holder) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if ho := x.holder(h); ho != nil {
		x.clear(h, ho)
	}
}

// holder returns a registered holder, or nil.
func (x *Index) holder(h Holder) *holder {
	if int(h) >= len(x.holders) {
		return nil
	}
	return x.holders[h]
}

func (x *Index) clear(h Holder, ho *holder) {
	for _, id := range ho.runs {
		r := x.runs[id]
		if r == nil {
			continue
		}
		x.releaseRun(h, ho, r)
		if ho.own != nil {
			x.forgetNames(r, ho.own)
		}
		x.trim(r)
	}
	if ho.own != nil {
		x.stats.Bytes -= ho.own.bytes()
	}
	if ho.blocks != 0 {
		panic("prefix: a cleared holder still has blocks")
	}
	x.stats.Bytes -= int64(4*cap(ho.runs) + copyBytes*len(ho.copies))
	ho.own, ho.runs, ho.copies, ho.compactAt, ho.evicted = nil, nil, nil, minCompact, false
}

const (
	minCompact = 64
	// copyBytes is about what an entry of a Go map from place to count takes.
	copyBytes = 40
)

func (x *Index) noteRun(h Holder, ho *holder, r *run) {
	before := cap(ho.runs)
	if len(ho.runs) >= ho.compactAt {
		slices.Sort(ho.runs)
		ho.runs = slices.DeleteFunc(slices.Compact(ho.runs), func(id uint32) bool {
			r := x.runs[id]
			return r == nil || !r.cover.Load().Knows(h) && (ho.own == nil || r.namesIn(ho.own) == nil)
		})
		ho.compactAt = max(minCompact, 2*len(ho.runs))
		if cap(ho.runs) > 4*len(ho.runs) {
			ho.runs = slices.Clone(ho.runs)
		}
	}
	ho.runs = append(ho.runs, r.id)
	x.stats.Bytes += int64(4 * (cap(ho.runs) - before))
}

// ParentKey returns the key of the block that a holder's engine calls id, to hash an
// event's tokens that follow it. ok is false if the index doesn't know it.
func (x *Index) ParentKey(h Holder, id uint64) (k connector.Key, ok bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	ho := x.holder(h)
	if ho == nil {
		return k, false
	}
	p, ok := x.find(h, ho, id)
	if !ok {
		return k, false
	}
	return x.runs[p.run()].published()[p.off()], true
}

// find returns the place of a block by a holder's name for it. For a holder with names of its own, a name of the
// domain counts only for a block that it has and never named otherwise: one from before the names differed.
func (x *Index) find(h Holder, ho *holder, id uint64) (place, bool) {
	id = normal(id)
	if ho.own == nil {
		return ho.names.get(x.runs, id)
	}
	if p, ok := ho.own.get(x.runs, id); ok {
		return p, true
	}
	p, ok := ho.names.get(x.runs, id)
	if !ok || ho.own.nameAt(x.runs, p) != 0 || !x.runs[p.run()].cover.Load().Has(h, p.off()) {
		return 0, false
	}
	return p, true
}

// Stats are an index's figures.
type Stats struct {
	// Blocks are the distinct blocks, Runs the runs they are in, Holders the registered holders.
	Blocks, Runs, Holders int
	// Held are the pairs of holder and block.
	Held int64
	// Bytes is an estimate of the memory that the index takes.
	Bytes int64
	// EvictedBlocks are the blocks dropped because of a bound, since the index was made.
	EvictedBlocks uint64
	// Predicted are the predictions that have not expired, counted by runs.
	Predicted int
}

// Stats returns the index's figures.
func (x *Index) Stats() Stats {
	x.mu.Lock()
	defer x.mu.Unlock()
	s := x.stats
	s.Predicted = len(x.expiry)
	for _, ho := range x.holders {
		if ho != nil {
			s.Held += ho.blocks
		}
	}
	return s
}

// HolderBlocks is how many blocks a holder has.
func (x *Index) HolderBlocks(h Holder) int64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	if ho := x.holder(h); ho != nil {
		return ho.blocks
	}
	return 0
}
