// Package purge removes all records of a namespace or of a tenant, or some, from a store that is in use.
package purge

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/chains"
	"github.com/kvconn/kvconn/store/disk/index"
	"github.com/kvconn/kvconn/store/disk/index/tenants"
)

// Result is what a purge has done.
type Result struct {
	// Removed records are gone for good. Left are those that loads held to the end.
	Removed int64 `json:"removed"`
	Left    int64 `json:"left"`
	// Incomplete says that the store does not know all records of the namespace: it is still looking for them after a
	// journal was lost, a segment cannot be read, or they are sealed with a key that it does not have.
	Incomplete bool `json:"incomplete"`
}

const (
	// stepRuns and stepRecords bound what one step looks at and takes out: the committer has other work.
	stepRuns    = 64
	stepRecords = 1024
	// pause is the time between two passes over the index while loads hold records.
	pause = 20 * time.Millisecond
)

// Step is a part of a purge that the store's committer does between batches of other work.
type Step struct {
	namespace uint16
	upTo      uint64
	from      index.Ref
	left      int64
	removed   int64
	// tenant is whose records go, in all namespaces, if it is not nil.
	tenant *tenants.ID

	// records are single records to remove, instead of a namespace; those that loads hold, too, if force is set. taken are
	// those removed, kept those that loads hold.
	records     []chains.Record
	force       bool
	taken, kept []chains.Record
}

// Take takes some records out of the table, and appends them to out. It is for the committer.
func (s *Step) Take(t *index.Table, out []index.Removed) []index.Removed {
	before := len(out)
	if s.records != nil {
		return s.takeRecords(t, out)
	}
	for n := 0; n < stepRuns && len(out)-before < stepRecords && s.from != index.NoRef; n++ {
		var left int
		if s.tenant != nil {
			out, left, s.from = emptyTenant(t, *s.tenant, s.upTo, s.from, out)
		} else {
			out, left, s.from = t.EmptyOf(s.namespace, s.upTo, s.from, out)
		}
		s.left += int64(left)
	}
	s.removed += int64(len(out) - before)
	return out
}

// Purges are those of one store. One runs at a time. Its methods may be called from any goroutine.
type Purges struct {
	// current is the purge that runs, nil if there is none.
	current atomic.Pointer[target]
	running chan struct{}
	// tenant is the purge of a tenant that runs, nil if there is none.
	tenant atomic.Pointer[tenantTarget]
	commit func(*Step) error
	sync   func(context.Context) error
	total  atomic.Uint64
}

// target is what a purge removes.
type target struct {
	namespace uint16
	upTo      uint64
	// records are the sequence numbers of single records, by their slots; nil for all of the namespace.
	records map[index.Ref]uint64
}

// New returns the purges of a store. commit has its committer do a step, and returns why the journal does not have
// it. sync waits until everything committed is durable.
func New(commit func(*Step) error, sync func(context.Context) error) *Purges {
	return &Purges{running: make(chan struct{}, 1), commit: commit, sync: sync}
}

// Holds reports whether a whole namespace is being purged: no look-up is to pin its records then, or a purge of a busy
// model would not end.
func (p *Purges) Holds(namespace uint16) bool {
	t := p.current.Load()
	return t != nil && t.records == nil && t.namespace == namespace
}

// Dooms reports whether the record of a slot is about to be purged: a save of it that comes now replaces it, so that it stays.
func (p *Purges) Dooms(namespace uint16, ref index.Ref, seq uint64) bool {
	t := p.current.Load()
	switch {
	case t == nil || t.namespace != namespace || seq > t.upTo:
		return false
	case t.records == nil:
		return true
	}
	return t.records[ref] == seq
}

// Removed is how many records were removed since the opening.
func (p *Purges) Removed() uint64 { return p.total.Load() }

// Run removes the records of a namespace whose sequence numbers are at most upTo, and returns when that is durable.
// For records that loads hold it waits for at most wait. Saves go on meanwhile: their numbers are higher. With an
// error, [store.ErrIO] or that of ctx, some records may be gone already, and may come back after a crash.
func (p *Purges) Run(ctx context.Context, namespace uint16, upTo uint64, wait time.Duration) (r Result, err error) {
	select {
	case p.running <- struct{}{}:
		defer func() { <-p.running }()
	case <-ctx.Done():
		return r, fmt.Errorf("wait for another purge: %w: %w", store.ErrTimeout, context.Cause(ctx))
	}
	p.current.Store(&target{namespace: namespace, upTo: upTo})
	defer p.current.Store(nil)
	return p.repeat(ctx, Step{namespace: namespace, upTo: upTo}, wait)
}

// repeat goes over the index until nothing is left, or the wait for what loads hold has ended, and makes it durable.
func (p *Purges) repeat(ctx context.Context, what Step, wait time.Duration) (r Result, err error) {
	deadline := time.NewTimer(wait)
	defer deadline.Stop()
	for {
		removed, left, err := p.pass(ctx, what)
		r.Removed += removed
		p.total.Add(uint64(removed))
		if r.Left = left; err != nil {
			return r, fmt.Errorf("purge: %w", err)
		}
		if left == 0 {
			break
		}
		again := time.NewTimer(pause)
		select {
		case <-again.C:
			continue
		case <-deadline.C:
		case <-ctx.Done():
		}
		again.Stop()
		break
	}
	if err := p.sync(ctx); err != nil {
		return r, fmt.Errorf("purge: %w", err)
	}
	return r, nil
}

// pass goes over the index once.
func (p *Purges) pass(ctx context.Context, what Step) (removed, left int64, err error) {
	s := &what
	for s.from != index.NoRef && err == nil {
		if ctx.Err() != nil {
			return s.removed, s.left, context.Cause(ctx)
		}
		err = p.commit(s)
	}
	return s.removed, s.left, err
}
