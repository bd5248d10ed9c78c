package steward

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvconn/kvconn/store/object/follow"
	"github.com/kvconn/kvconn/store/object/format"
)

// Term is what a steward lets others do while it holds the lease. It is valid until the call that got it returns.
type Term struct{ t *term }

// Merge puts removals and deletions into the log; with neither it puts all lists of writers there that wait. This
// node has followed the log to its end when it returns. It fails if the lease is lost.
func (t Term) Merge(ctx context.Context, removed []format.Removal, deleted []format.ObjectID) (err error) {
	if len(removed)+len(deleted) > 0 {
		err = t.t.publish(ctx, &format.List{Removed: removed, Deleted: deleted})
	} else {
		_, err = t.t.mergeAll(ctx)
	}
	if err != nil {
		return err
	}
	return t.t.s.o.Follower.CatchUp(ctx)
}

// Holds asks the bucket whether this node holds the lease, and fails if it does not.
func (t Term) Holds(ctx context.Context) error {
	if err := t.t.guard(); err != nil {
		return err
	}
	return t.t.confirm(ctx)
}

// errAsked is why a head is made again that can be read.
var errAsked = errors.New("a check has found that it names what is not there")

// RemakeHead makes the head again, from the parts that can be read. Where there is nothing for it to name it is
// deleted.
func (t Term) RemakeHead(ctx context.Context) error {
	if err := t.t.rebuild(ctx, errAsked); err != nil || t.t.head.Last > 0 || t.t.headETag == "" {
		return err
	}
	if err := t.t.guard(); err != nil {
		return err
	}
	t.t.headETag = ""
	return t.t.s.o.Client.Delete(ctx, []string{format.HeadFile})
}

// HeldError says that another node holds the lease.
type HeldError struct {
	// Node is its name, "" if that is not known.
	Node string
	// Age is how long ago the node renewed the lease. One that does not for a minute loses it.
	Age time.Duration
}

// Error implements error.
func (e *HeldError) Error() string {
	if e.Node == "" {
		return "another node is the steward of the bucket: it holds the lease"
	}
	return fmt.Sprintf("node %s is the steward of the bucket: it holds the lease, and renewed it %v ago", e.Node, e.Age)
}

// Once takes the lease, merges what waits, calls f if that is not nil, looks at all that readers have reported, and
// gives the lease up. The error wraps a [HeldError] if another node holds the lease.
func (s *Steward) Once(ctx context.Context, f func(context.Context, Term) error) error {
	held, err := s.hold(ctx, func(t *term, ctx context.Context) error { return t.once(ctx, f) })
	if err == nil && !held {
		err = s.holder(ctx)
	}
	return err
}

func (t *term) once(ctx context.Context, f func(context.Context, Term) error) error {
	if err := t.begin(ctx); err != nil {
		return err
	}
	if _, err := t.mergeAll(ctx); err != nil {
		return err
	}
	if f != nil {
		if err := f(ctx, Term{t}); err != nil {
			return err
		}
	}
	for len(t.reports) > 0 {
		if err := t.examine(ctx); err != nil {
			return err
		}
	}
	return nil
}

// holder is the error about the node that holds the lease.
func (s *Steward) holder(ctx context.Context) error {
	b, meta, err := follow.Read(ctx, s.o.Client, format.LeaseFile, format.KindLease)
	if err != nil {
		return &HeldError{}
	}
	l, err := format.DecodeLease(b)
	if err != nil {
		return &HeldError{}
	}
	return &HeldError{Node: l.Node, Age: meta.Now.Sub(meta.Modified)}
}
