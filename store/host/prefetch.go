package host

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
)

const (
	// prefetchShare is the part of the arena that records read before their loads may take.
	prefetchShare = 8
	// prefetchReadBytes are read at one time, so that a load that comes waits for little.
	prefetchReadBytes = 16 << 20
	// prefetchQueue is how many calls wait to have their records read, prefetchBlocks how many blocks
	// they may have together, if there is more than one.
	prefetchQueue, prefetchBlocks = 64, 1 << 18
	// maxAheadBatch bounds the records that a tier is asked for at one time.
	maxAheadBatch = 1024
	// prefetchPause is how long reads of loads are waited for before looking again.
	prefetchPause = time.Millisecond
	// prefetchTTL is when a request is taken to have been loaded, or to be gone.
	prefetchTTL = 30 * time.Second
	// aheadTime is how long a record that was read before its load counts against the share, at
	// least; at most twice as long.
	aheadTime = 2 * time.Minute
)

// Prefetches reads records of one namespace into memory before a load asks for them. It takes a
// bounded part of the arena, gives way to loads, and takes no memory that a load waits for. Loads
// find what was read, and join what is being read. It is safe for concurrent use.
type Prefetches struct {
	cache   *Cache
	tiers   []store.Tier // that records are read from, the fastest first
	account *Account
	reads   func(connector.Shard) bool
	jobs    chan prefetch
	queued  atomic.Int64 // blocks of jobs
	cancel  context.CancelFunc
	ended   chan struct{}
}

// prefetch is what one call asks for.
type prefetch struct {
	ns     connector.NamespaceDigest
	shards []connector.Shard
	parent connector.Key
	blocks []connector.PlanBlock
	until  time.Time
}

// NewPrefetches returns one that reads records of a namespace, of those shards for which reads
// returns true: loads of others come on other nodes. reads is called from one goroutine.
func NewPrefetches(c *Cache, ns connector.NamespaceDigest, reads func(connector.Shard) bool) (*Prefetches, error) {
	account, err := c.Account(AccountOptions{Namespace: ns, LoadBytes: prefetchReadBytes})
	if err != nil {
		return nil, err
	}
	account.readAhead()
	ctx, cancel := context.WithCancel(context.Background())
	p := &Prefetches{cache: c, tiers: store.TiersOf(c.tier), account: account, reads: reads, jobs: make(chan prefetch, prefetchQueue), cancel: cancel, ended: make(chan struct{})}
	go p.run(ctx)
	return p, nil
}

// Close ends the reads, and the account. Nothing is read for later calls of Prefetch.
func (p *Prefetches) Close() {
	p.cancel()
	<-p.ended
	p.account.Close()
}

// Prefetch starts to read the records of consecutive blocks that are not in memory, of shards that a
// load needs together, and returns at once. shards and blocks stay as they are; the slots in them mean
// nothing.
func (p *Prefetches) Prefetch(ns connector.NamespaceDigest, shards []connector.Shard, parent connector.Key, blocks []connector.PlanBlock) {
	n := int64(len(blocks))
	if all := p.queued.Add(n); all == n || all <= prefetchBlocks {
		select {
		case p.jobs <- prefetch{ns, shards, parent, blocks, time.Now().Add(prefetchTTL)}:
			return
		default:
		}
	}
	p.queued.Add(-n)
	p.refused()
}

func (p *Prefetches) refused() {
	p.cache.mu.Lock()
	defer p.cache.mu.Unlock()
	p.cache.count.PrefetchRefused++
}

func (p *Prefetches) run(ctx context.Context) {
	defer close(p.ended)
	for {
		select {
		case <-ctx.Done():
			return
		case job := <-p.jobs:
			p.queued.Add(-int64(len(job.blocks)))
			if !p.read(ctx, &job) {
				p.refused()
			}
		}
	}
}

// read reads what a job asks for, in small parts and between the reads of loads: the first blocks of
// all shards, then the next. It reports false if there was no room.
func (p *Prefetches) read(ctx context.Context, job *prefetch) bool {
	shards := slices.DeleteFunc(slices.Clone(job.shards), func(s connector.Shard) bool {
		return !p.reads(s) || p.cache.tier.PayloadBytes(job.ns, s) == 0
	})
	for len(job.blocks) > 0 && len(shards) > 0 {
		n := 0
		for _, shard := range shards {
			for _, t := range p.tiers {
				n = max(n, p.batch(t, job, shard))
			}
		}
		w := newAheadRound(job.blocks[:min(n, len(job.blocks))])
		for _, shard := range shards {
			if room, ended := p.readShard(ctx, job, shard, w); !room || ended {
				return room
			}
		}
		job.parent, job.blocks = job.blocks[len(w.keys)-1].Key, job.blocks[len(w.keys):]
	}
	return true
}

// aheadRound is the leading blocks of a job that are read next.
type aheadRound struct {
	keys []connector.Key
	// there marks blocks that are in memory, or that an earlier tier has; has those that a tier has;
	// skip those that are not read now.
	there, has, skip []bool
}

func newAheadRound(blocks []connector.PlanBlock) *aheadRound {
	n := len(blocks)
	w := &aheadRound{there: make([]bool, n), has: make([]bool, n), skip: make([]bool, n)}
	for i := range blocks {
		w.keys = append(w.keys, blocks[i].Key)
	}
	return w
}

// choose skips all blocks but the next few that a tier has, or any has, and that were not chosen before. It reports
// whether there are some.
func (w *aheadRound) choose(most int, any bool) bool {
	n := 0
	for i := range w.keys {
		chosen := n < most && !w.there[i] && (w.has[i] || any)
		if w.skip[i] = !chosen; chosen {
			w.there[i] = true
			n++
		}
	}
	return n > 0
}

// batch is how many records of a shard a tier is asked for at one time.
func (p *Prefetches) batch(t store.Tier, job *prefetch, shard connector.Shard) int {
	return min(max(readBatch, store.Batch(t, p.cache.tier.PayloadBytes(job.ns, shard))), maxAheadBatch)
}

// readShard reads the blocks of a round that are not in memory, each from the tier that a load would read
// it from. It reports whether there was room, and whether the time for it has ended.
func (p *Prefetches) readShard(ctx context.Context, job *prefetch, shard connector.Shard, w *aheadRound) (room, ended bool) {
	clear(w.there)
	p.cache.Present(job.ns, shard, w.keys, w.there)
	for _, t := range p.tiers {
		clear(w.has)
		if len(p.tiers) > 1 {
			t.Present(job.ns, shard, w.keys, w.has)
		}
		for most := p.batch(t, job, shard); w.choose(most, len(p.tiers) == 1); {
			if ended = !p.awaitTurn(ctx, t, job.until); ended || !p.part(ctx, job, shard, w.skip) {
				return ended, ended
			}
		}
	}
	return true, false
}

// awaitTurn waits until a tier owes no load anything. It reports false if ctx or the time ends first.
func (p *Prefetches) awaitTurn(ctx context.Context, t store.Tier, until time.Time) bool {
	for t.Speed().QueuedBytes > 0 && time.Now().Before(until) && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(prefetchPause):
		}
	}
	return ctx.Err() == nil && time.Now().Before(until)
}

// part reads the first of a job's blocks of one shard, but for those that are there. It reports false
// if there was no room for all.
func (p *Prefetches) part(ctx context.Context, job *prefetch, shard connector.Shard, there []bool) (room bool) {
	payloadBytes := p.cache.tier.PayloadBytes(job.ns, shard)
	l := &load{ctx: ctx, reading: ctx, cache: p.cache, account: p.account, arrived: func(it *Item) {
		if it.Err == nil {
			it.Slot.Release()
		}
	}}
	items := make([]Item, len(there))
	var reads []*store.ReadOp
	room = true
	for i := 0; i < len(items) && room; i++ {
		if there[i] {
			continue
		}
		it, parent := &items[i], job.parent
		if i > 0 {
			parent = job.blocks[i-1].Key
		}
		b := &job.blocks[i]
		it.Record = store.Record{ID: store.RecordID{Namespace: job.ns, Shard: shard, Key: b.Key}, Parent: parent, Proof: b.Proof}
		it.PayloadBytes = payloadBytes
		outcome, err := p.account.Acquire(ctx, &it.Slot, it.Record, payloadBytes, false)
		switch {
		case errors.Is(err, ErrFull) && len(reads) > 0: // for what is read at one time
			l.read(reads)
			l.others.Wait()
			reads = nil
			i-- // once more
		case err != nil:
			room = false
		case outcome == Fill:
			it.Ahead = true
			reads = append(reads, it.fill())
		default: // a load was faster
			it.Slot.Release()
		}
	}
	if len(reads) > 0 {
		l.read(reads)
	}
	l.others.Wait()
	return room
}

// aheads counts the bytes of slots whose records were read before a load that has not come, by marks
// that the slots have. The mark changes with time: what is older than the last two may be of requests
// that were aborted, or of engines that are gone, and would keep others from being read.
type aheads struct {
	mark, last uint8 // never the same; 0 is no mark
	began      time.Time
	bytes      [math.MaxUint8 + 1]int64
	all        int64
	// from has the tiers that records of such slots were read from, but for the cache's own.
	from map[slotID]string
}

// allowsAhead reports whether a slot may be given to a record that no load has asked for.
func (a *Arena) allowsAhead(k *class) bool {
	h, now := &a.aheads, a.opts.now()
	for n := min(2, now.Sub(h.began)/aheadTime); n > 0; n-- {
		h.last, h.mark, h.began = h.mark, h.mark%math.MaxUint8+1, now
	}
	limit := int64(len(a.units)) * int64(a.opts.unitBytes) / prefetchShare
	return a.waiting == 0 && h.bytes[h.mark]+h.bytes[h.last]+int64(k.slotBytes) <= limit
}

// noteUse notes that a slot is filled before its load, or that the load has come.
func (a *Arena) noteUse(s *Slot) {
	switch p := a.slot(s.slot); {
	case s.account.ahead:
		if s.outcome() == Fill && p.ahead == 0 {
			p.ahead = a.aheads.mark
			a.countAhead(p.ahead, s.class.slotBytes)
		}
	case a.endAhead(s.slot):
		a.count.PrefetchUsed++
	}
}

// endAhead makes a slot like any other, and reports whether it was read before its load.
func (a *Arena) endAhead(id slotID) bool {
	p := a.slot(id)
	if p.ahead == 0 {
		return false
	}
	a.countAhead(p.ahead, -a.classOfSlot(id).slotBytes)
	p.ahead = 0
	delete(a.aheads.from, id)
	return true
}

func (a *Arena) countAhead(mark uint8, bytes int) {
	a.aheads.bytes[mark] += int64(bytes)
	a.aheads.all += int64(bytes)
}
