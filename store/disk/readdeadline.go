package disk

import (
	"context"
	"fmt"
	"time"

	"github.com/kvconn/kvconn/store"
)

// awaitReads waits for a batch, giving up ops that run past their deadline.
func (s *Store) awaitReads(ctx context.Context, b *readBatch) {
	interval := max(s.opts.ReadTimeout/8, time.Millisecond)
	b.timer.Reset(interval)
	defer b.timer.Stop()
	ended := ctx.Done()
	for {
		select {
		case <-b.ended:
			return
		case <-ended:
			ended = nil
			cause := fmt.Errorf("%w: %w", store.ErrTimeout, context.Cause(ctx))
			s.abandon(b, cause, func(*read, time.Time) bool { return true })
		case <-b.timer.C:
			s.abandonLate(b)
			b.timer.Reset(interval)
		}
	}
}

// abandonLate gives up the ops that the disk has owed for longer than the timeout, and
// those still queued if the disk has delivered nothing for so long.
func (s *Store) abandonLate(b *readBatch) {
	limit := s.opts.ReadTimeout
	err := fmt.Errorf("disk did not answer within %v: %w", limit, store.ErrTimeout)
	s.abandon(b, err, func(op *read, now time.Time) bool {
		if op.phase == readIssued {
			return now.Sub(op.issuedAt) > limit
		}
		return now.Sub(b.began) > limit && now.Sub(s.reads.progress) > limit
	})
}

// abandon reports those ops of a batch that late selects and that are queued or issued.
func (s *Store) abandon(b *readBatch, err error, late func(*read, time.Time) bool) {
	r := &s.reads
	now := s.opts.clock()
	for _, op := range b.ops {
		r.mu.Lock()
		mine := op.batch == b && (op.phase == readQueued || op.phase == readIssued) && op.found.g != nil
		if !mine || !late(op, now) {
			r.mu.Unlock()
			continue
		}
		r.drop(op)
		hung, at := op.outstanding > 0, op.found
		// That a caller gave up, or that others were before it, says nothing of the record.
		slow := hung && now.Sub(op.issuedAt) > s.opts.ReadTimeout
		op.phase = readDone
		if hung {
			op.phase = readAbandoned
			op.SetSettled(false)
		}
		op.Err = err
		r.wakeOne()
		r.mu.Unlock()
		if slow && s.readFailed(at.ref, at.seq, err) {
			job := &dropJob{ref: at.ref, seq: at.seq, done: make(chan struct{})}
			s.commits.tryPush(commit{kind: commitDropSlot, drop: job})
		}
		if !hung {
			s.letGo(op)
		}
		s.reportRead(op)
	}
}

// settle ends an abandoned op after its last request.
func (s *Store) settle(op *read) {
	s.letGo(op)
	callback := op.OnSettled
	op.SetSettled(true)
	if callback != nil {
		callback(op.ReadOp)
	}
}
