// Package warm loads records into host memory before anybody asks for them.
package warm

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/daemon/prompt"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/steer"
	"github.com/kvconn/kvconn/store/host"
)

// Disk is the store on disk.
type Disk interface {
	store.Exporter
	// Recent returns the records of a namespace that were used most recently.
	Recent(ctx context.Context, ns connector.NamespaceDigest, maxBytes int64) ([]steer.Resident, error)
}

// Warmer loads records. It is safe for concurrent use.
type Warmer struct {
	// Cache is the host tier in front of all tiers.
	Cache *host.Cache
	Disk  Disk
	// Logger is told what was loaded.
	Logger *slog.Logger
}

// Counts are how far a warming is.
type Counts struct {
	// Records are to be loaded. Loaded of them were, and had Bytes of payloads; Already were in host memory. Missing
	// records are on no tier any more, Failed could not be read, or there was no memory for them.
	Records int64 `json:"records"`
	Loaded  int64 `json:"loaded"`
	Already int64 `json:"already"`
	Missing int64 `json:"missing"`
	Failed  int64 `json:"failed"`
	Bytes   int64 `json:"bytes"`
	// Promoted records came from a slower tier and were given to the disk as well.
	Promoted int64 `json:"promoted"`
	// Truncated says that there was more than host memory may take.
	Truncated bool `json:"truncated"`
}

const (
	// share is the part of host memory that a warming fills at most: it must not push out what it has loaded itself.
	shareNum, shareDen = 3, 4
	// batch is how many records are asked of the tiers at one time, batches how many of these.
	batch, batches = 16, 4
	// memoryWait is how long memory is waited for, memoryPause the time between two tries.
	memoryWait, memoryPause = 5 * time.Second, 2 * time.Millisecond
)

// Room is how many bytes of payloads a warming may load.
func (w *Warmer) Room() int64 { return w.Cache.Usage().MaxBytes / shareDen * shareNum }

// wanted is a record to load. parent and proof are known of prompts alone.
type wanted struct {
	store.Record
	bytes int
}

// Namespace loads what was used most recently of a namespace, from disk, within room bytes. progress is called now and then.
func (w *Warmer) Namespace(ctx context.Context, ns connector.NamespaceDigest, room int64, progress func(Counts)) (Counts, error) {
	recent, err := w.Disk.Recent(ctx, ns, room)
	if err != nil {
		return Counts{}, err
	}
	list := make([]wanted, len(recent))
	for i := range list { // the most recent last: it is to stay longest
		r := &recent[len(recent)-1-i]
		list[i] = wanted{store.Record{ID: r.ID}, r.Bytes}
	}
	return w.load(ctx, ns, list, w.Disk.Export, progress)
}

// Prompt loads the blocks of a prompt from the fastest tier that has them, within room bytes, its beginning first.
func (w *Warmer) Prompt(ctx context.Context, m *connector.Manifest, p *prompt.Prompt, room int64, progress func(Counts)) (Counts, error) {
	tier := w.Cache.Tier()
	ns, err := tier.OpenNamespace(m)
	if err != nil {
		return Counts{}, fmt.Errorf("open namespace %v: %w", m.Digest(), err)
	}
	defer tier.CloseNamespace(ns)
	var list []wanted
	truncated := false
	keys, proofs := p.Keys(m.BlockSize), p.Proofs(ns, m.BlockSize)
	parent := connector.RootKey(m.BlockSize, connector.Scope{Salt: p.Salt})
	for i := range keys {
		for g := range m.Groups {
			for _, shard := range m.GroupShards(g) {
				n := tier.PayloadBytes(ns, shard)
				if n == 0 {
					continue
				}
				if room -= int64(n); room < 0 {
					truncated = true
					continue
				}
				list = append(list, wanted{store.Record{ID: store.RecordID{Namespace: ns, Shard: shard, Key: keys[i]}, Parent: parent, Proof: proofs[i]}, n})
			}
		}
		parent = keys[i]
	}
	c, err := w.load(ctx, ns, list, tier.Read, progress)
	c.Truncated = truncated
	return c, err
}

// read is how records are read.
type read func(ctx context.Context, ops []*store.ReadOp, done func(*store.ReadOp))

// run is a warming under way.
type run struct {
	*Warmer
	account *host.Account
	read    read

	mu     sync.Mutex
	counts Counts
}

func (w *Warmer) load(ctx context.Context, ns connector.NamespaceDigest, list []wanted, read read, progress func(Counts)) (Counts, error) {
	account, err := w.Cache.Account(host.AccountOptions{Namespace: ns})
	if err != nil {
		return Counts{}, err
	}
	defer account.Close()
	r := &run{Warmer: w, account: account, read: read}
	r.counts.Records = int64(len(list))
	turns := make(chan struct{}, batches)
	var all sync.WaitGroup
	for len(list) > 0 && ctx.Err() == nil {
		n := min(len(list), batch)
		part := list[:n]
		list = list[n:]
		turns <- struct{}{}
		all.Go(func() {
			defer func() { <-turns }()
			r.part(ctx, part)
		})
		progress(r.now())
	}
	all.Wait()
	if ctx.Err() != nil {
		return r.now(), context.Cause(ctx)
	}
	return r.now(), nil
}

func (r *run) now() Counts {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.counts
}

func (r *run) count(f func(*Counts)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(&r.counts)
}

// item is a record on its way.
type item struct {
	host.Save
	op store.ReadOp
}

// part loads some records.
func (r *run) part(ctx context.Context, part []wanted) {
	var ops []*store.ReadOp
	for i := range part {
		p := &part[i]
		at := []bool{false}
		if r.Cache.Present(p.ID.Namespace, p.ID.Shard, []connector.Key{p.ID.Key}, at); at[0] {
			r.count(func(c *Counts) { c.Already++ })
			continue
		}
		it := new(item)
		if !r.reserve(ctx, &it.Slot, p.bytes) {
			r.count(func(c *Counts) { c.Failed++ })
			continue
		}
		it.op.Record, it.op.Payload, it.op.Owner, it.op.OnSettled = p.Record, it.Slot.Bytes(), it, settled
		ops = append(ops, &it.op)
	}
	if len(ops) > 0 {
		r.read(ctx, ops, r.done)
	}
}

// reserve gets memory, after a while if need be.
func (r *run) reserve(ctx context.Context, s *host.Slot, bytes int) bool {
	for end := time.Now().Add(memoryWait); !r.account.ReserveSave(s, bytes); time.Sleep(memoryPause) {
		if ctx.Err() != nil || time.Now().After(end) {
			return false
		}
	}
	return true
}

// settled lets go of memory that the kernel has written to until now.
func settled(op *store.ReadOp) { op.Owner.(*item).Slot.Release() }

// done keeps what was read and verified.
func (r *run) done(op *store.ReadOp) {
	it := op.Owner.(*item)
	if op.Err != nil {
		missing := missing(op.Err)
		r.count(func(c *Counts) {
			if missing {
				c.Missing++
			} else {
				c.Failed++
			}
		})
		if op.Settled() {
			it.Slot.Release()
		}
		return
	}
	bytes := int64(len(op.Payload))
	it.Slot.Publish(op.Record)
	promoted := op.Promote
	if promoted {
		it.Record, it.Scope = op.Record, op.Scope
		taken, _ := r.Cache.Save([]*host.Save{&it.Save}, func(*host.Save) {}) // it releases the slot in any case
		promoted = taken == 1
	} else {
		it.Slot.Release()
	}
	r.count(func(c *Counts) {
		c.Loaded, c.Bytes = c.Loaded+1, c.Bytes+bytes
		if promoted {
			c.Promoted++
		}
	})
}
