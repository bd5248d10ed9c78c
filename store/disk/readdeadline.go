package disk

import (
	"context"
	"fmt"
	"time"
)

// awaitReads waits for a batch, giving up ops that run past their deadline.
func (s *Store) awaitReads(ctx context.Context, b *readBatch, ops []*ReadOp) {
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
			cause := fmt.Errorf("%w: %w", ErrTimeout, context.Cause(ctx))
			s.abandon(b, ops, cause, func(*readState, time.Time) bool { return true })
		case <-b.timer.C:
			s.abandonLate(b, ops)
			b.timer.Reset(interval)
		}
	}
}

// abandonLate gives up the ops that the disk has owed for longer than the timeout, and
// those still queued if the disk has delivered nothing for so long.
func (s *Store) abandonLate(b *readBatch, ops []*ReadOp) {
	limit := s.opts.ReadTimeout
	err := fmt.Errorf("disk did not answer within %v: %w", limit, ErrTimeout)
	s.abandon(b, ops, err, func(rd *readState, now time.Time) bool {
		if rd.phase == readIssued {
			return now.Sub(rd.issuedAt) > limit
		}
		return now.Sub(b.began) > limit && now.Sub(s.reads.progress) > limit
	})
}

// abandon reports those ops of a batch that late selects and that are queued or issued.
func (s *Store) abandon(b *readBatch, ops []*ReadOp, err error, late func(*readState, time.Time) bool) {
	r := &s.reads
	now := s.opts.clock()
	for _, op := range ops {
		r.mu.Lock()
		rd := &op.rd
		// An op that was reported is the caller's again; it may be in another batch.
		mine := rd.batch == b && (rd.phase == readQueued || rd.phase == readIssued) && rd.found.g != nil
		if !mine || !late(rd, now) {
			r.mu.Unlock()
			continue
		}
		r.drop(op)
		hung, at := rd.outstanding > 0, rd.found
		// That a caller gave up, or that others were before it, says nothing of the record.
		slow := hung && now.Sub(rd.issuedAt) > s.opts.ReadTimeout
		rd.phase = readDone
		if hung {
			rd.phase = readAbandoned
			rd.unsettled.Store(true)
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
		s.report(op)
	}
}

// settle ends an abandoned op after its last request.
func (s *Store) settle(op *ReadOp) {
	s.letGo(op)
	callback := op.OnSettled
	op.rd.unsettled.Store(false)
	if callback != nil {
		callback(op)
	}
}
