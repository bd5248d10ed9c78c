package disk

import (
	"context"
	"fmt"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/namespace"
	"github.com/kvconn/kvconn/store/disk/purge"
)

// Purge removes what the store holds of a namespace, and returns when that is durable: see [purge.Purges]. It fails with
// [namespace.ErrNotOpen] if the namespace is not known. Nothing of it is found by look-ups meanwhile.
func (s *Store) Purge(ctx context.Context, ns connector.NamespaceDigest, wait time.Duration) (r purge.Result, err error) {
	upTo := s.seq.Load() // before the number is asked for, which may be given to another namespace
	number, known := s.namespaces.Number(ns)
	if !known {
		return r, fmt.Errorf("namespace %v: %w", ns, namespace.ErrNotOpen)
	}
	r, err = s.purges.Run(ctx, number, upTo, wait)
	r.Incomplete = !s.rebuild.FindsAll() || s.state.Hides(number)
	s.namespaces.RequestTidy()
	return r, err
}

// purgeStep is a step of a purge.
type purgeStep struct {
	*purge.Step
	done chan error
}

func (p purgeStep) prepare(c *committing) {
	if !c.journalFailed() {
		c.removed = p.Take(c.s.table, c.removed)
	}
}

func (p purgeStep) settle(_ *committing, err error) { p.done <- err }

func (s *Store) commitPurge(step *purge.Step) error {
	p := purgeStep{step, make(chan error, 1)}
	if !s.commits.TryPush(p) {
		return store.ErrClosed
	}
	return <-p.done
}
