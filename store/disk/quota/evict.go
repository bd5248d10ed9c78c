package quota

import (
	"context"
	"fmt"
	"time"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/fsio"
	"github.com/kvconn/kvconn/store/disk/index/tenants"
	"github.com/kvconn/kvconn/store/disk/index/victim"
)

const (
	// batchPart of a quota is freed beyond what is needed: a journal entry for each record would cost less than the rest.
	batchPart = 64
	// A selection takes this part of a tenant's records, within bounds: each looks at every slot of the store.
	selectPart, selectLeast, selectMost = 16, 64, 1 << 16
	// selectAtOnce is for how many tenants one selection is at most, keepVictims how many victims are kept while nobody
	// waits for them: both bound memory, however many tenants there are.
	selectAtOnce, keepVictims = 256, 1 << 20
	// lookInterval is how often tenants are looked for that have more than their quotas without a write: a start, a
	// rebuild and a lease that ends bring some.
	lookInterval = time.Second
	// stuckLeast to stuckMost is how long to wait where nothing can be evicted, since all of it is held or under way.
	stuckLeast, stuckMost = 5 * time.Millisecond, 320 * time.Millisecond
)

// Run makes room for writes that wait, until ctx ends. There must be no more writes then.
func (q *Quotas) Run(ctx context.Context) {
	tick := time.NewTicker(lookInterval)
	defer tick.Stop()
	for {
		for over, looked := q.over(), time.Now(); ; {
			progress, left := q.pass(over)
			if !left || ctx.Err() != nil {
				break
			}
			if !progress {
				fsio.Sleep(ctx, stuckLeast)
			}
			if time.Since(looked) > lookInterval { // others may have more than theirs meanwhile
				over, looked = q.over(), time.Now()
			}
		}
		look := tick.C
		if !q.limits.Load().Any() {
			look = nil
		}
		select {
		case <-ctx.Done():
			return
		case <-q.wake:
		case <-look:
		}
	}
}

// over are the tenants that have more than their quotas.
func (q *Quotas) over() []tenants.ID {
	l := q.limits.Load()
	if !l.Any() {
		return nil
	}
	return q.ledger.Over(l.Of)
}

// due is a tenant that has writes waiting, or more than its quota.
type due struct {
	id tenants.ID
	*account
	limit int64 // 0 for none any more
	need  int64 // what must be freed before all of them fit, or all that pins leave
	freed int64
}

// pass evicts what it can for the tenants that need it, and lets writes through. left says that some wait still, or have
// more than their quotas.
func (q *Quotas) pass(over []tenants.ID) (progress, left bool) {
	list := q.due(over)
	for i := range list {
		progress = q.evict(&list[i]) || progress
	}
	if q.selectMore(list) {
		for i := range list {
			progress = q.evict(&list[i]) || progress
		}
	}
	now := time.Now()
	for i := range list {
		d := &list[i]
		if d.freed > 0 {
			d.pause = 0
		}
		progress = q.admit(d, now) || progress
		left = left || d.need > d.freed || q.anyWaits(d)
	}
	return progress, left
}

// due are the tenants to evict from.
func (q *Quotas) due(over []tenants.ID) (list []due) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, id := range over {
		q.account(id)
	}
	kept, limits := 0, q.limits.Load()
	for id, a := range q.accounts {
		need, limit := int64(0), limits.Of(id)
		if limit > 0 {
			// Without what is reserved: the index may have some of it already, and what counts twice would be evicted
			// for. The rest is looked at again when its writes have ended.
			used, pinned := q.used(id)
			need = min(used-limit+a.waits(limit-pinned), used-pinned)
		} else {
			a.victims = nil
		}
		if need > 0 || len(a.queue) > 0 {
			list = append(list, due{id: id, account: a, limit: limit, need: need})
			continue
		}
		if kept += len(a.victims); kept > keepVictims {
			a.victims = nil
		}
		if a.reserved == 0 && len(a.victims) == 0 {
			delete(q.accounts, id)
		}
	}
	return list
}

// waits is how many bytes wait for room, without writes that will be refused, as they have more than most.
func (a *account) waits(most int64) (bytes int64) {
	for i := range a.queue {
		if b := a.queue[i].bytes; b <= most {
			bytes += b
		}
	}
	return bytes
}

// evict evicts victims that were selected before. Only the goroutine of Run has to do with victims.
func (q *Quotas) evict(d *due) (progress bool) {
	extra := d.limit / batchPart
	for d.need > d.freed && len(d.victims) > 0 {
		e := &Eviction{ID: d.id, Victims: d.victims, Bytes: d.need + extra - d.freed}
		q.o.Evict(e)
		d.freed += e.Freed
		q.evicted.Add(uint64(e.Records))
		progress = progress || e.Records > 0
		q.mu.Lock()
		d.victims = e.Victims
		q.mu.Unlock()
		if e.Err != nil || e.Records == 0 && len(e.Victims) > 0 {
			break // the journal has failed
		}
	}
	return progress
}

// selectMore selects victims for those that need more, all in one pass over the index.
func (q *Quotas) selectMore(list []due) (selected bool) {
	now := time.Now()
	var of []*victim.Selection
	chosen := make(map[int]*victim.Selection)
	for i := range list {
		d := &list[i]
		if d.need <= d.freed || len(d.victims) > 0 || now.Before(d.again) || len(chosen) == selectAtOnce {
			continue
		}
		t, n := q.ledger.Tenant(d.id)
		if t.ID != d.id || t.Records == 0 {
			continue
		}
		s := victim.NewSelection(int(min(max(selectLeast, t.Records/selectPart), selectMost)))
		if grow := int(n) + 1 - len(of); grow > 0 {
			of = append(of, make([]*victim.Selection, grow)...)
		}
		of[n], chosen[i] = s, s
		d.pause = min(max(stuckLeast, 2*d.pause), stuckMost)
		d.again = now.Add(d.pause)
	}
	if len(chosen) == 0 {
		return false
	}
	coldest(q.o.Table, of)
	q.mu.Lock()
	defer q.mu.Unlock()
	for i, s := range chosen {
		list[i].victims = s.Sorted()
	}
	return true
}

// admit lets writes through in the order in which they came, and fails those that have waited for too long.
func (q *Quotas) admit(d *due, now time.Time) (progress bool) {
	var through []func(error)
	var late []waiter
	var errs []error
	limit := d.limit
	q.mu.Lock()
	used, pinned := q.used(d.id)
	for ; len(d.queue) > 0 && (limit == 0 || used+d.reserved+d.queue[0].bytes <= limit); d.queue = d.queue[1:] {
		d.reserved += d.queue[0].bytes
		through = append(through, d.queue[0].done)
	}
	for ; len(d.queue) > 0; d.queue = d.queue[1:] {
		switch w := d.queue[0]; {
		case pinned+w.bytes > limit:
			errs = append(errs, noRoom(w.bytes, pinned, limit))
		case w.deadline.Before(now):
			errs = append(errs, fmt.Errorf("no room for %d bytes in a quota of %d within %v: %w", w.bytes, limit, q.o.Wait, store.ErrBusy))
		}
		if len(errs) == len(late) {
			break
		}
		late = append(late, d.queue[0])
	}
	if len(d.queue) == 0 {
		d.queue = nil
	}
	q.waiting.Add(-int64(len(through) + len(late)))
	q.mu.Unlock()
	for _, done := range through {
		done(nil)
	}
	q.refused.Add(uint64(len(late)))
	for i, w := range late {
		w.done(errs[i])
	}
	return len(through)+len(late) > 0
}

func (q *Quotas) anyWaits(d *due) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(d.queue) > 0
}
