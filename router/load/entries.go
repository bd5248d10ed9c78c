package load

import "time"

// maxFree bounds the entries that are kept for reuse, maxFreeKeys the block keys that they have room for: 4 MiB.
const (
	maxFree     = 4096
	maxFreeKeys = 256 << 10
)

// take returns an empty entry.
func (t *Tracker) take() *entry {
	if n := len(t.free); n > 0 {
		e := t.free[n-1]
		t.free = t.free[:n-1]
		t.freeKeys -= cap(e.keys)
		return e
	}
	return &entry{}
}

// append makes e the one that was heard of last.
func (t *Tracker) append(e *entry, now time.Time) {
	e.touched = now
	e.older, e.newer = t.newest, nil
	if t.newest != nil {
		t.newest.newer = e
	} else {
		t.oldest = e
	}
	t.newest = e
}

// unlink takes e out of the order of last words.
func (t *Tracker) unlink(e *entry) {
	if e.older != nil {
		e.older.newer = e.newer
	} else {
		t.oldest = e.newer
	}
	if e.newer != nil {
		e.newer.older = e.older
	} else {
		t.newest = e.older
	}
}

// touch looks up a request, notes the word of it and does f under the lock.
func (t *Tracker) touch(id uint64, f func(*entry, time.Time)) bool {
	now := t.opts.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.requests[id]
	if e == nil {
		return false
	}
	t.unlink(e)
	t.append(e, now)
	f(e, now)
	return true
}

// remove takes e out of everything.
func (t *Tracker) remove(e *entry, now time.Time) {
	r := e.rank
	r.dequeue(e, now)
	r.drop(e)
	r.load.ActiveRequests--
	r.load.PromptTokens -= e.prompt
	r.load.UncachedTokens -= e.uncached
	r.load.OutputTokens -= e.output
	t.keys -= len(e.keys)
	t.unlink(e)
	delete(t.requests, e.id)
	e.release(maxFreeKeys - t.freeKeys)
	if len(t.free) < maxFree {
		t.free = append(t.free, e)
		t.freeKeys += cap(e.keys)
	}
}

// expire removes what was last heard of too long ago.
func (t *Tracker) expire(now time.Time) {
	for t.oldest != nil && now.Sub(t.oldest.touched) >= t.opts.TTL {
		t.remove(t.oldest, now)
		t.expired++
	}
}
