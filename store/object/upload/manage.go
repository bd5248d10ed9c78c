package upload

import "time"

const (
	// Pauses after objects that failed, in a row: the first, doubled up to the last.
	firstPause, lastPause = time.Second, time.Minute
	// fullPause is how often to look whether a bucket at its cap has room.
	fullPause = 5 * time.Second
	// downPause is how often to look whether a bucket that does not work does again.
	downPause = time.Second
)

// manage starts uploads when there is something to upload, until Close has nothing to wait for.
func (u *Uploader) manage() {
	defer close(u.managed)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		u.closeNamespaces()
		wait, over := u.startAll()
		if over {
			return
		}
		timer.Reset(wait)
		select {
		case <-u.wake:
		case <-timer.C:
		case <-u.ctx.Done():
			return
		}
	}
}

// startAll starts as many uploads as may be. It returns when to look again, or that all is over.
func (u *Uploader) startAll() (wait time.Duration, over bool) {
	for {
		used, down := u.target.Usage(), !u.target.Writable()
		full := used.MaxBytes > 0 && used.UsedBytes >= used.MaxBytes
		u.mu.Lock()
		turned := full != u.full
		u.full, u.down = full, down
		o, wait, over := u.startOne()
		u.mu.Unlock()
		if turned && full {
			u.o.Logger.Warn("upload: the bucket is at its cap; uploads wait until it has room", "max_bytes", used.MaxBytes)
		} else if turned {
			u.o.Logger.Info("upload: the bucket has room; uploads go on")
		}
		if o == nil {
			return wait, over
		}
		u.sending.Go(func() { u.send(o) })
	}
}

// startOne takes an object out of the queue, if one may start. Otherwise it returns when to look again,
// or that all is over: Close waits, and nothing is left that could be uploaded. u.mu is held.
func (u *Uploader) startOne() (o *object, wait time.Duration, over bool) {
	l, wait := u.q.next(u.now(), u.closing)
	switch pause := time.Until(u.resume); {
	case u.closing && (l == nil || u.full || u.down || u.failures > 0):
		return nil, maxAge, u.flying == 0
	case u.flying >= u.limit:
		return nil, maxAge, false // one that lands wakes us
	case l == nil:
		if u.flying == 0 && u.q.records == 0 {
			u.memory.trim()
		}
		return nil, wait, false
	case u.full:
		return nil, fullPause, false
	case u.down:
		return nil, downPause, false
	case pause > 0:
		return nil, pause, false
	}
	u.flying++
	return u.q.take(l), 0, false
}

// requeue puts what failed at the end of the queue, with its age. While Close waits nothing is tried
// twice. u.mu is held.
func (u *Uploader) requeue(f *flight) {
	u.count.Failed += uint64(len(f.retry))
	if u.closing {
		u.count.abandoned += len(f.retry)
		return
	}
	if len(f.retry) == 0 {
		return
	}
	l := u.q.lane(f.object.lane.id, f.object.payloadBytes)
	for _, it := range f.retry {
		if !u.q.add(l, it) {
			u.count.Dropped++
			u.missed.Store(true)
		}
	}
	u.q.forget(l)
}

// adapt takes what became of an object for a sign of how the bucket is: one that fails is left in peace
// for a while, and one that throttles gets half as many objects at a time. It reports whether the bucket
// began to fail, and whether it works again. u.mu is held.
func (u *Uploader) adapt(f *flight) (fails, works bool) {
	before := u.failures
	switch {
	case len(f.retry) > 0:
		u.resume = time.Now().Add(min(firstPause<<min(u.failures, 10), lastPause))
		u.failures++
		if u.o.Throttled(f.err) {
			u.limit, u.credit = max(u.limit/2, 1), 0
		}
	case f.stored > 0:
		u.failures, u.resume = 0, time.Time{}
		if u.credit++; u.credit >= u.limit && u.limit < u.o.Uploads {
			u.limit, u.credit = u.limit+1, 0
		}
	}
	return before == 0 && u.failures > 0, before > 0 && u.failures == 0
}

// closeNamespaces ends what flights have opened. It is not done where they end: there the target
// reports, and may hold its locks.
func (u *Uploader) closeNamespaces() {
	u.mu.Lock()
	all := u.toClose
	u.toClose = nil
	u.mu.Unlock()
	for _, ns := range all {
		u.target.CloseNamespace(ns)
	}
}
