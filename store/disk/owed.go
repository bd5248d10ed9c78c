package disk

import (
	"fmt"
	"slices"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/index"
	"github.com/kvconn/kvconn/store/disk/journal"
)

// heal has the committer put a new journal in the place of the failed one, or only finish its
// batch, with nil.
func (s *Store) heal(d *journal.Draft) (err error) {
	open := s.between(func(c *committing) {
		if d == nil {
			return
		}
		s.journal.Replace(d)
		s.namespaces.Unnote()
		// What left the index while the draft was written is in it.
		err = c.settleOwed()
		s.barrier.Touch()
	})
	if !open {
		if d != nil {
			d.Abort()
		}
		return store.ErrClosed
	}
	return err
}

// owe notes slots whose state in the journal is not known, since it failed: they are not
// used before their deletion is durable in the next.
func (c *committing) owe() {
	for i := range c.inserts {
		c.s.space.At(c.inserts[i].Ref).Settled()
		c.owed = append(c.owed, c.inserts[i].Ref)
	}
	for _, r := range c.removed {
		c.owed = append(c.owed, r.Ref)
	}
}

// settleOwed deletes what is owed and lets a barrier free the slots.
func (c *committing) settleOwed() error {
	for from := 0; from < len(c.owed); from += commitLimit {
		for _, ref := range c.owed[from:min(from+commitLimit, len(c.owed))] {
			if g := c.s.space.At(ref); g != nil {
				if err := c.batch.DeleteRecord(g.Location(ref)); err != nil {
					return fmt.Errorf("%w: %w", store.ErrIO, err)
				}
			}
		}
		if c.batch.Empty() {
			continue
		}
		if err := c.batch.Commit(); err != nil {
			return fmt.Errorf("%w: %w", store.ErrIO, err)
		}
	}
	there := slices.DeleteFunc(c.owed, func(ref index.Ref) bool { return c.s.space.At(ref) == nil })
	c.s.space.AddPending(there)
	c.owed = c.owed[:0]
	return nil
}
