package steward

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kvconn/kvconn/internal/sleep"
	"github.com/kvconn/kvconn/store/object/bucket"
	"github.com/kvconn/kvconn/store/object/follow"
	"github.com/kvconn/kvconn/store/object/format"
)

// errLost says that another node may hold the lease, or may take it.
var errLost = errors.New("the lease is lost")

// term is the time in which a node is steward.
type term struct {
	s  *Steward
	id format.BucketID

	mu      sync.Mutex
	etag    string
	renewed time.Time // by this machine's clock, when the request for it began
	date    time.Time // by the bucket's

	state
}

// take takes the lease. It reports false if another node holds it.
func (t *term) take(ctx context.Context) (bool, error) {
	c := t.s.o.Client
	_, meta, err := follow.Read(ctx, c, format.LeaseFile, format.KindLease)
	condition := bucket.Condition{ETag: meta.ETag}
	switch {
	case errors.Is(err, bucket.ErrMissing):
		condition = bucket.Condition{Absent: true}
	case err != nil && !errors.Is(err, format.ErrTooLarge):
		return false, err
	case meta.Now.Sub(meta.Modified) <= leaseFor:
		return false, nil
	}
	switch err := t.write(ctx, condition); {
	case errors.Is(err, bucket.ErrCondition):
		return false, nil
	case err != nil:
		return false, err
	}
	if c.Conditional() {
		return true, nil
	}
	if !sleep.For(ctx, settle, nil) {
		return false, ctx.Err()
	}
	return t.ours(ctx)
}

// write puts the lease.
func (t *term) write(ctx context.Context, condition bucket.Condition) error {
	b, err := format.Lease{Node: t.s.o.Node, Writer: t.s.writer}.Encode()
	if err != nil {
		return err
	}
	began := time.Now()
	meta, err := t.s.o.Client.Put(ctx, format.LeaseFile, bytes.NewReader(b), int64(len(b)), condition)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.etag, t.renewed, t.date = meta.ETag, began, t.s.o.Now().Add(-time.Since(began))
	return nil
}

// ours reports whether the lease in the bucket is this node's.
func (t *term) ours(ctx context.Context) (bool, error) {
	b, _, err := follow.Read(ctx, t.s.o.Client, format.LeaseFile, format.KindLease)
	if errors.Is(err, bucket.ErrMissing) || errors.Is(err, format.ErrTooLarge) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	l, err := format.DecodeLease(b)
	return err == nil && l.Writer == t.s.writer, nil
}

// confirm fails if the lease in the bucket is not this node's.
func (t *term) confirm(ctx context.Context) error {
	ours, err := t.ours(ctx)
	if err == nil && !ours {
		err = errLost
	}
	return err
}

// holds reports whether nobody else can have the lease. It looks at two clocks: the one of a machine that was
// stopped may have stood still.
func (t *term) holds() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return time.Since(t.renewed) < holdFor && t.s.o.Now().Sub(t.date) < holdFor
}

// guard comes before each request that only the steward may send.
func (t *term) guard() error {
	if id, ok := t.s.o.Follower.Bucket(); !ok || id != t.id {
		return fmt.Errorf("%w: the bucket is another one, or not for this program", errLost)
	}
	if !t.holds() {
		return errLost
	}
	return nil
}

// renew renews the lease once.
func (t *term) renew(ctx context.Context) error {
	if !t.s.o.Client.Conditional() {
		if err := t.confirm(ctx); err != nil {
			return err
		}
	}
	t.mu.Lock()
	condition := bucket.Condition{ETag: t.etag}
	t.mu.Unlock()
	err := t.write(ctx, condition)
	if errors.Is(err, bucket.ErrCondition) {
		t.s.o.Follower.Suspect() // somebody took it, or the bucket was emptied
		return errLost
	}
	return err
}

// keep renews the lease until it is lost, or the context ends.
func (t *term) keep(ctx context.Context, lost context.CancelCauseFunc) {
	pause := renewEvery
	for sleep.For(ctx, pause, nil) {
		within, cancel := context.WithTimeout(ctx, renewEvery)
		err := t.renew(within)
		cancel()
		pause = renewEvery
		if err != nil {
			pause = time.Second
		}
		if errors.Is(err, errLost) || !t.holds() {
			lost(errLost)
			return
		}
	}
}

// serve works until that is done, the lease is lost, or the context ends; then it gives the lease up.
func (t *term) serve(parent context.Context, work func(*term, context.Context) error) error {
	ctx, lost := context.WithCancelCause(parent)
	kept := make(chan struct{})
	go func() {
		defer close(kept)
		t.keep(ctx, lost)
	}()
	err := work(t, ctx)
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	lost(err)
	<-kept
	if errors.Is(err, errLost) || !t.holds() {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(parent), leaveWithin)
	defer cancel()
	// What fails here costs others a minute.
	if ours, e := t.ours(ctx); e == nil && ours {
		_ = t.s.o.Client.Delete(ctx, []string{format.LeaseFile})
	}
	return err
}

// work does what a steward does.
func (t *term) work(ctx context.Context) error {
	begun := false
	for {
		var n int
		var err error
		if !begun {
			err = t.begin(ctx)
			begun = err == nil
		}
		if err == nil {
			n, err = t.merge(ctx)
		}
		if err == nil {
			err = t.keepHead(ctx)
		}
		if err == nil {
			err = t.fold(ctx)
		}
		if err == nil {
			err = t.sweep(ctx)
		}
		if err == nil && t.s.o.Collector != nil {
			err = t.s.o.Collector.Collect(ctx, Term{t})
		}
		pause := lastMerge
		switch {
		case ctx.Err() != nil || errors.Is(err, errLost) || errors.Is(err, format.ErrNewer) || errors.Is(err, ErrKey):
			return err
		case err != nil:
			if errors.Is(err, bucket.ErrCondition) {
				begun = false // somebody changed what is ours: look again
				if err := t.confirm(ctx); errors.Is(err, errLost) {
					return err
				}
			}
			pause = failurePause
		case n > 0:
			pause = t.interval()
		}
		if !sleep.For(ctx, pause, nil) {
			return ctx.Err()
		}
	}
}
