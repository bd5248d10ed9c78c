package disk

import (
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/purge"
)

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
