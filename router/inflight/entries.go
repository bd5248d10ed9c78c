package inflight

import (
	"time"

	"github.com/kvconn/kvconn/connector"
)

// entry is a request in flight. Entries are recycled.
type entry struct {
	id                   uint64
	rank                 *rankState
	prompt, uncached     int64
	disk, object, output int64
	prefill              bool            // waits or is in prefill
	silent               bool            // see Request.Silent
	keys                 []connector.Key // counted once per rank
	blocks               int64           // counted for this request alone
	touched              time.Time
	links                [2]links
}

type links struct{ before, after *entry }

// The lists that an entry can be in.
const (
	byReport = iota // all requests, in the order of their last reports
	byRank          // requests of one rank that wait or are in prefill, in the order of their placement
)

// list is a list of entries, linked through their links of one kind.
type list struct {
	kind        int
	first, last *entry
}

func (l *list) append(e *entry) {
	e.links[l.kind] = links{before: l.last}
	if l.last != nil {
		l.last.links[l.kind].after = e
	} else {
		l.first = e
	}
	l.last = e
}

func (l *list) remove(e *entry) {
	at := &e.links[l.kind]
	if at.before != nil {
		at.before.links[l.kind].after = at.after
	} else {
		l.first = at.after
	}
	if at.after != nil {
		at.after.links[l.kind].before = at.before
	} else {
		l.last = at.before
	}
	*at = links{}
}

// release empties e for its next use, keeping the memory of its keys if it has room for no more than limit.
func (e *entry) release(limit int) {
	keys := e.keys[:0]
	if cap(keys) > limit {
		keys = nil
	}
	*e = entry{keys: keys}
}

// maxFree bounds the entries that are kept for reuse, maxFreeKeys the block keys that they have room for: 4 MiB.
const (
	maxFree     = 4096
	maxFreeKeys = 256 << 10
)

func (t *Tracker) take() *entry {
	if n := len(t.free); n > 0 {
		e := t.free[n-1]
		t.free = t.free[:n-1]
		t.freeKeys -= cap(e.keys)
		return e
	}
	return &entry{}
}

// touch looks up a request, notes that it was reported and calls f under the lock.
func (t *Tracker) touch(id uint64, f func(*entry, time.Time)) bool {
	now := t.opts.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.requests[id]
	if e == nil {
		return false
	}
	e.touched = now
	t.reported.remove(e)
	t.reported.append(e)
	f(e, now)
	return true
}

func (t *Tracker) remove(e *entry, now time.Time) {
	r := e.rank
	r.dequeue(e, now)
	r.drop(e)
	r.load.ActiveRequests--
	r.load.PromptTokens -= e.prompt
	r.load.UncachedTokens -= e.uncached
	r.load.OutputTokens -= e.output
	t.keys -= len(e.keys)
	t.reported.remove(e)
	delete(t.requests, e.id)
	e.release(maxFreeKeys - t.freeKeys)
	if len(t.free) < maxFree {
		t.free = append(t.free, e)
		t.freeKeys += cap(e.keys)
	}
}

// expire removes requests that nobody has reported for too long.
func (t *Tracker) expire(now time.Time) {
	for e := t.reported.first; e != nil && now.Sub(e.touched) >= t.opts.TTL; e = t.reported.first {
		t.remove(e, now)
	}
}
