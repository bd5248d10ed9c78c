package readio

import (
	"context"
	"fmt"
	"time"

	"github.com/kvconn/kvconn/store"
)

// await waits for a batch, giving up ops that run past their deadline.
func (r *Reader) await(ctx context.Context, b *batch) {
	interval := max(r.o.Timeout/8, time.Millisecond)
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
			r.abandon(b, cause, func(*Read, time.Time) bool { return true })
		case <-b.timer.C:
			r.abandonLate(b)
			b.timer.Reset(interval)
		}
	}
}

// abandonLate gives up the ops that the disk has owed for longer than the timeout, and
// those still queued if the disk has delivered nothing for so long.
func (r *Reader) abandonLate(b *batch) {
	limit := r.o.Timeout
	err := fmt.Errorf("disk did not answer within %v: %w", limit, store.ErrTimeout)
	r.abandon(b, err, func(op *Read, now time.Time) bool {
		if op.phase == issued {
			return now.Sub(op.issuedAt) > limit
		}
		return now.Sub(b.began) > limit && now.Sub(r.progress) > limit
	})
}

// abandon reports those ops of a batch that late selects and that are queued or issued.
func (r *Reader) abandon(b *batch, err error, late func(*Read, time.Time) bool) {
	now := r.o.Clock()
	for _, op := range b.ops {
		r.mu.Lock()
		mine := op.batch == b && (op.phase == queued || op.phase == issued) && op.File != nil
		if !mine || !late(op, now) {
			r.mu.Unlock()
			continue
		}
		r.drop(op)
		hung := op.outstanding > 0
		at := op.Place
		// That a caller gave up, or that others were before it, says nothing of the record.
		slow := hung && now.Sub(op.issuedAt) > r.o.Timeout
		op.phase = done
		if hung {
			op.phase = abandoned
			op.outstanding++ // the report: the op settles after it
			op.SetSettled(false)
		}
		op.Err = err
		r.wakeOne()
		r.mu.Unlock()
		if slow {
			r.o.Records.Overdue(at, err)
		}
		if !hung {
			r.letGo(op)
		}
		r.report(op)
		if hung && r.settles(op) {
			r.settle(op)
		}
	}
}

// settles counts the report of an abandoned op, and reports whether no request is outstanding.
func (r *Reader) settles(op *Read) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	op.outstanding--
	return op.outstanding == 0
}

// settle ends an abandoned op after its report and its last request.
func (r *Reader) settle(op *Read) {
	r.letGo(op)
	callback := op.OnSettled
	op.SetSettled(true)
	if callback != nil {
		callback(op.ReadOp)
	}
}
