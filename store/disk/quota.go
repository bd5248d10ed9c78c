package disk

import (
	"github.com/kvconn/kvconn/store/disk/quota"
)

// SetQuotas replaces the quotas that the store was opened with: see [quota.Quotas.SetLimits].
func (s *Store) SetQuotas(l quota.Limits) { s.quotas.SetLimits(l) }

// quotaEviction is a part of an eviction for a tenant's quota.
type quotaEviction struct {
	*quota.Eviction
	done chan struct{}
}

// evictOf has the committer do a part of an eviction.
func (s *Store) evictOf(e *quota.Eviction) {
	q := quotaEviction{e, make(chan struct{})}
	s.commits.Push(q)
	<-q.done
}

func (e quotaEviction) prepare(c *committing) {
	before := len(c.removed)
	for !c.journalFailed() && e.Freed < e.Bytes && len(e.Victims) > 0 && len(c.removed)-before < commitLimit {
		c.removed = e.Take(c.s.table, c.removed)
	}
}

func (e quotaEviction) settle(_ *committing, err error) {
	e.Err = err
	close(e.done)
}

// admitted goes on with a write that has waited for room in its tenant's quota, or ends it.
func (s *Store) admitted(op *write, err error) {
	s.writes.mu.Lock() // it may be about to be accepted
	defer s.writes.mu.Unlock()
	if err == nil {
		s.writes.queue.Push(op)
		return
	}
	op.Err, op.ticket = err, quota.Ticket{}
	s.commits.Push(ended{op})
}
