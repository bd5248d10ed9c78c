package store

import (
	"context"
	"errors"
	"sync"

	"github.com/kvconn/kvconn/connector"
)

// Chain is several tiers as one, the fastest first. A record is read from the first tier that
// delivers it, and the blocks of a prefix may be in several. Writes and events are those of the
// first tier, and so are name, speed, usage and probe: slower tiers take what they want from the
// events of the first, at their own speed, and [Chain.Tiers] has each with its own figures. A
// chain of one tier adds nothing to it.
type Chain struct {
	Tier   // the first
	tiers  []Tier
	leases chainLeases
	// listeners hear of uses: what look-ups find, and what is written that is there already.
	listeners []UseListener
}

var _ Tier = (*Chain)(nil)

// NewChain returns a chain of tiers, the fastest first. There must be at least one. Slower ones that are
// [UseListener] hear of uses.
func NewChain(tiers ...Tier) *Chain {
	c := &Chain{Tier: tiers[0], tiers: tiers, leases: chainLeases{held: make(map[LeaseID][]tierLease)}}
	for _, t := range tiers[1:] {
		if u, ok := t.(UseListener); ok {
			c.Listen(u)
		}
	}
	return c
}

// Listen has a listener hear of uses. It must be called before the chain is used.
func (c *Chain) Listen(u UseListener) { c.listeners = append(c.listeners, u) }

// Tiers returns the tiers, the fastest first.
func (c *Chain) Tiers() []Tier { return c.tiers }

// TiersOf returns the tiers of a chain, or the tier itself.
func TiersOf(t Tier) []Tier {
	if c, ok := t.(*Chain); ok {
		return c.tiers
	}
	return []Tier{t}
}

// Present sets at[i] where any tier has the record of keys[i].
func (c *Chain) Present(ns connector.NamespaceDigest, shard connector.Shard, keys []connector.Key, at []bool) {
	for _, t := range c.tiers {
		t.Present(ns, shard, keys, at)
	}
}

// Read asks the first tier for all records, and each next one for those that the tiers before it
// did not have, or could not read. An op that no tier serves reports the first error other than
// [ErrGone], or [ErrTimeout] while its buffer is in use. [ReadOp].Promote is set where a slower tier
// than the first delivered.
func (c *Chain) Read(ctx context.Context, ops []*ReadOp, done func(*ReadOp)) {
	if len(c.tiers) == 1 {
		c.Tier.Read(ctx, ops, done)
		return
	}
	r := chainRead{done: done}
	for i, t := range c.tiers {
		if len(ops) == 0 {
			return
		}
		r.slower, r.last = i > 0, i == len(c.tiers)-1
		t.Read(ctx, ops, r.tried)
		ops, r.left = r.left, nil
	}
}

// Write hands records to the first tier. Listeners hear that those are in use that it has already: their blocks
// were computed again. No look-up tells so where the leader is on another node, and hears of them from a slower
// tier alone.
func (c *Chain) Write(ops []*WriteOp, done func(*WriteOp)) (accepted int, err error) {
	if len(c.listeners) > 0 {
		c.tellWritten(ops)
	}
	return c.Tier.Write(ops, done)
}

// tellWritten says which of the records to write the first tier has.
func (c *Chain) tellWritten(ops []*WriteOp) {
	for len(ops) > 0 {
		n := 1
		for n < min(len(ops), lookupBlocks) && ops[n].follows(ops[n-1]) {
			n++
		}
		id, keys, at := ops[0].ID, make([]connector.Key, n), make([]bool, n)
		for i, op := range ops[:n] {
			keys[i] = op.ID.Key
		}
		c.Tier.Present(id.Namespace, id.Shard, keys, at)
		for first := 0; first < n; first++ {
			end := first
			for end < n && at[end] {
				end++
			}
			c.tellUsed(id.Namespace, []connector.Shard{id.Shard}, keys[first:end])
			first = end
		}
		ops = ops[n:]
	}
}

// follows reports whether op's block comes right after another's of its shard.
func (op *WriteOp) follows(other *WriteOp) bool {
	return op.ID.Namespace == other.ID.Namespace && op.ID.Shard == other.ID.Shard && op.Parent == other.ID.Key
}

// chainRead is a call of [Chain.Read].
type chainRead struct {
	done         func(*ReadOp)
	slower, last bool // of the tier that is asked

	mu   sync.Mutex
	left []*ReadOp // for the next tier
	// failed has the first errors other than ErrGone of ops that another tier is asked for.
	failed map[*ReadOp]error
}

// tried takes in what a tier has done for an op.
func (r *chainRead) tried(op *ReadOp) {
	if op.Err == nil {
		op.Promote = r.slower
		r.done(op)
		return
	}
	gone := errors.Is(op.Err, ErrGone)
	again := op.Settled() && (gone || errors.Is(op.Err, ErrCorrupt) || errors.Is(op.Err, ErrIO))
	r.mu.Lock()
	first := r.failed[op]
	if again && !r.last {
		if r.left = append(r.left, op); !gone && first == nil {
			if r.failed == nil {
				r.failed = make(map[*ReadOp]error)
			}
			r.failed[op] = op.Err
		}
		r.mu.Unlock()
		return
	}
	r.mu.Unlock()
	if first != nil && op.Settled() {
		op.Err = first
	}
	r.done(op)
}

// OpenNamespace makes the namespace known to all tiers, or to none.
func (c *Chain) OpenNamespace(m *connector.Manifest) (connector.NamespaceDigest, error) {
	ns, err := c.Tier.OpenNamespace(m)
	for i := 1; i < len(c.tiers) && err == nil; i++ {
		if _, err = c.tiers[i].OpenNamespace(m); err != nil {
			for _, opened := range c.tiers[:i] {
				opened.CloseNamespace(ns)
			}
		}
	}
	return ns, err
}

// CloseNamespace says to all tiers that an engine has gone.
func (c *Chain) CloseNamespace(ns connector.NamespaceDigest) {
	for _, t := range c.tiers {
		t.CloseNamespace(ns)
	}
}

// PayloadBytes is the size that the first tier that knows it gives.
func (c *Chain) PayloadBytes(ns connector.NamespaceDigest, shard connector.Shard) int {
	for _, t := range c.tiers {
		if n := t.PayloadBytes(ns, shard); n > 0 {
			return n
		}
	}
	return 0
}

// HoldPayload fixes the size in all tiers, or in none.
func (c *Chain) HoldPayload(ns connector.NamespaceDigest, shard connector.Shard, bytes int) error {
	for i, t := range c.tiers {
		if err := t.HoldPayload(ns, shard, bytes); err != nil {
			for _, held := range c.tiers[:i] {
				held.ReleasePayload(ns, shard)
			}
			return err
		}
	}
	return nil
}

// ReleasePayload ends one HoldPayload.
func (c *Chain) ReleasePayload(ns connector.NamespaceDigest, shard connector.Shard) {
	for _, t := range c.tiers {
		t.ReleasePayload(ns, shard)
	}
}

// Close closes all tiers, the first one last: others may read its events until they are closed.
func (c *Chain) Close() error {
	var errs []error
	for i := len(c.tiers) - 1; i >= 0; i-- {
		errs = append(errs, c.tiers[i].Close())
	}
	return errors.Join(errs...)
}
