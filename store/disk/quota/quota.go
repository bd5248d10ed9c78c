// Package quota keeps each tenant's records on disk within its quota: a write is let through when there is room for it, and
// room is made by evicting the tenant's own records, the coldest first.
package quota

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/index"
	"github.com/kvconn/kvconn/store/disk/index/tenants"
)

// Limits are how many bytes of slots tenants may have. The zero value has none.
type Limits struct {
	// Tenants have limits of their own.
	Tenants map[tenants.ID]int64
	// Default is the limit of each other tenant, 0 for none. Records of no tenant and of unknown ones have none.
	Default int64
}

// Any reports whether there is any limit.
func (l *Limits) Any() bool { return len(l.Tenants) > 0 || l.Default > 0 }

// Of is the limit of a tenant, 0 if it has none.
func (l *Limits) Of(id tenants.ID) int64 {
	if limit := l.Tenants[id]; limit > 0 {
		return limit
	}
	if id == (tenants.ID{}) || id == tenants.Unknown {
		return 0
	}
	return l.Default
}

// Validate reports a limit that cannot be.
func (l *Limits) Validate() error {
	if l.Default < 0 {
		return fmt.Errorf("default quota of %d bytes", l.Default)
	}
	for id, limit := range l.Tenants {
		if limit <= 0 {
			return fmt.Errorf("quota of tenant %v of %d bytes", id, limit)
		}
	}
	return nil
}

// Eviction is a part of what is evicted for a quota: victims of a tenant, in their order, until that has freed a number of
// bytes.
type Eviction struct {
	ID      tenants.ID
	Victims []index.Victim // afterwards those that it has not come to
	Bytes   int64
	// Freed and Records are what it has done, Err why the journal does not have that.
	Freed   int64
	Records int
	Err     error
}

// Options are what [Quotas] work with.
type Options struct {
	// Limits are those to begin with: see [Quotas.SetLimits].
	Limits Limits
	Table  *index.Table
	// Evict has the one goroutine that changes the index do a part of an eviction, and waits for it.
	Evict func(*Eviction)
	// Wait is how long a write waits for room before it fails with [store.ErrBusy].
	Wait time.Duration
}

// Quotas are those of one store. Its methods may be called from any goroutine.
type Quotas struct {
	o      Options
	ledger *tenants.Ledger
	wake   chan struct{}
	limits atomic.Pointer[Limits]

	setting  sync.Mutex // held by SetLimits
	mu       sync.Mutex
	accounts map[tenants.ID]*account

	waiting          atomic.Int64
	evicted, refused atomic.Uint64
}

// account is a tenant that has writes under way, or is being evicted from.
type account struct {
	// reserved are the bytes of writes that were let through and are not done. What was committed of them counts in the
	// ledger, too, for a moment: more than there is, and never less.
	reserved int64
	queue    []waiter
	// victims are the next to go, as they were when they were selected.
	victims []index.Victim
	// again is when records are selected again after a selection that was of no use, pause the time until then.
	again time.Time
	pause time.Duration
}

// waiter is a write that waits for room.
type waiter struct {
	bytes    int64
	deadline time.Time
	done     func(error)
}

// New returns the quotas of a store. [Quotas.Run] must run, or writes that wait do so without end.
func New(o Options) *Quotas {
	q := &Quotas{o: o, ledger: o.Table.Tenants(), wake: make(chan struct{}, 1), accounts: make(map[tenants.ID]*account)}
	q.SetLimits(o.Limits)
	return q
}

// SetLimits replaces the limits. Writes that wait are let through, or refused, as the new ones say; of a tenant with more than its new limit
// the coldest records are evicted. Writes that are under way without a limit may pass a new one until they, too, are evicted.
func (q *Quotas) SetLimits(l Limits) {
	q.setting.Lock()
	defer q.setting.Unlock()
	before := q.limits.Swap(&l)
	for id := range l.Tenants {
		q.ledger.Keep(id)
	}
	if before != nil {
		for id := range before.Tenants {
			if l.Tenants[id] == 0 {
				q.ledger.Unkeep(id)
			}
		}
	}
	q.notify()
}

// Ticket is what a write has taken of a quota. Its zero value has taken nothing.
type Ticket struct {
	id    tenants.ID
	bytes int64
}

// Admit lets a write of a tenant through if there is room, and reports that. Otherwise it has done called later, from the
// goroutine of [Quotas.Run], with nil when there is room, or with [store.ErrBusy]. It fails with [store.ErrTooLarge] if there
// never will be, and with [store.ErrBusy] if there is none until pins end. The ticket is to be given to [Quotas.Release] once the write has ended, but not if done was called with an
// error.
func (q *Quotas) Admit(id tenants.ID, bytes int64, done func(error)) (t Ticket, now bool, err error) {
	limits := q.limits.Load()
	if !limits.Any() {
		return t, true, nil
	}
	as, _ := q.ledger.Tenant(id) // it may count with the rest
	limit := limits.Of(as.ID)
	switch {
	case limit == 0:
		return t, true, nil
	case bytes > limit:
		q.refused.Add(1)
		return t, false, fmt.Errorf("a record of %d bytes and a quota of %d: %w", bytes, limit, store.ErrTooLarge)
	case as.Pinned+bytes > limit:
		q.refused.Add(1)
		return t, false, noRoom(bytes, as.Pinned, limit)
	}
	t = Ticket{as.ID, bytes}
	q.mu.Lock()
	defer q.mu.Unlock()
	a := q.account(t.id)
	if used, _ := q.used(t.id); len(a.queue) == 0 && used+a.reserved+bytes <= limit {
		a.reserved += bytes
		return t, true, nil
	}
	a.queue = append(a.queue, waiter{bytes: bytes, deadline: time.Now().Add(q.o.Wait), done: done})
	q.waiting.Add(1)
	q.notify()
	return t, false, nil
}

// noRoom is the error of a write for which pinned records leave no room: to wait would be of no use.
func noRoom(bytes, pinned, limit int64) error {
	return fmt.Errorf("no room for %d bytes in a quota of %d, %d of them are pinned: %w", bytes, limit, pinned, store.ErrBusy)
}

// used is how many bytes the index has of a tenant, and how many of them are pinned.
func (q *Quotas) used(id tenants.ID) (bytes, pinned int64) {
	t, _ := q.ledger.Tenant(id)
	if t.ID != id { // it counts with the rest
		return 0, 0
	}
	return t.Bytes, t.Pinned
}

// account is that of a tenant. q.mu is held.
func (q *Quotas) account(id tenants.ID) *account {
	a := q.accounts[id]
	if a == nil {
		a = new(account)
		q.accounts[id] = a
	}
	return a
}

// Release ends what a write has taken: it has failed, or the index has its record.
func (q *Quotas) Release(t Ticket) {
	if t.bytes == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	a := q.account(t.id)
	a.reserved -= t.bytes
	if len(a.queue) > 0 {
		q.notify()
	} else if a.reserved == 0 && len(a.victims) == 0 {
		delete(q.accounts, t.id)
	}
}

func (q *Quotas) notify() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// Stats are counters of quotas since the opening.
type Stats struct {
	Waiting int64  `json:"waiting_writes" metric:"quota_waiting_writes" help:"Writes that wait until their tenant's own records have made room in its quota."`
	Evicted uint64 `json:"evicted_records" metric:"quota_evicted_records_total" help:"Records evicted to keep a tenant within its quota."`
	Refused uint64 `json:"refused_writes" metric:"quota_refused_writes_total" help:"Writes refused because a tenant's quota had no room for them in time."`
}

// Stats returns the counters.
func (q *Quotas) Stats() Stats {
	return Stats{Waiting: q.waiting.Load(), Evicted: q.evicted.Load(), Refused: q.refused.Load()}
}
