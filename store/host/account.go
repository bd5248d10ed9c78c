package host

import (
	"fmt"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/host/list"
)

// Account is one rank's share of an arena. Its options bound what its loads and its saves pin,
// and so does an equal part of half the arena for each, so that no rank can stop another. A rank
// that holds nothing may have one slot of any size.
//
// An account shares the arena while it is active (see [Account.SetActive]) or holds or waits for
// memory. Others, such as a connection that does nothing, make nobody's part smaller. Cached
// records that nobody pins belong to no account and make room for any.
type Account struct {
	arena *Arena
	opts  AccountOptions
	ns    namespaceID

	// The rest is guarded by the arena's mutex.
	loadBytes, saveBytes int64 // pinned, or promised to pending handles
	queue                list.List[Slot]
	closed               bool
	// ahead is set if what the account loads is read before its load; see [Prefetches]. count is what
	// its handles count in: the arena's, or what nobody reads, since the loads that come will count.
	ahead bool
	count *Counters
	// active is set by the account's owner, counted while the account shares the arena.
	active, counted bool
	node            list.Node[Account] // among the accounts with waiters
}

// Account adds a rank.
func (a *Arena) Account(o AccountOptions) (*Account, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil, ErrClosed
	}
	c := &Account{arena: a, opts: o, ns: a.number(o.Namespace), count: &a.count}
	a.accounts++
	return c, nil
}

// space is a namespace that has a number.
type space struct {
	digest connector.NamespaceDigest
	// uses are its accounts that are not forgotten, and its findable slots.
	uses int
}

// number returns the number of a namespace, for one more account. It is given out again once the
// namespace has neither accounts nor findable slots. a.mu is held.
func (a *Arena) number(ns connector.NamespaceDigest) namespaceID {
	id, known := a.namespaces[ns]
	if n := len(a.vacantNamespaces); !known {
		if n > 0 {
			id, a.vacantNamespaces = a.vacantNamespaces[n-1], a.vacantNamespaces[:n-1]
		} else {
			id, a.spaces = namespaceID(len(a.spaces)), append(a.spaces, space{})
		}
		a.namespaces[ns], a.spaces[id].digest = id, ns
	}
	a.spaces[id].uses++
	return id
}

// leave counts one use of a namespace less. a.mu is held.
func (a *Arena) leave(id namespaceID) {
	s := &a.spaces[id]
	if s.uses--; s.uses == 0 {
		delete(a.namespaces, s.digest)
		a.vacantNamespaces = append(a.vacantNamespaces, id)
	}
}

// record returns a record as slots know it. It panics if the record is of another namespace than
// the account: it would be taken for one of the account's.
func (c *Account) record(r *store.Record) slotRecord {
	if r.ID.Namespace != c.opts.Namespace {
		panic("host: record of another namespace than the account's")
	}
	k := slotKey{ns: c.ns, shard: r.ID.Shard, key: r.ID.Key}
	return slotRecord{slotKey: k, proof: r.Proof, parent: parentCheck(r.Parent), anyParent: r.AnyParent}
}

// SetActive says whether the rank keeps its share also while it holds nothing.
func (c *Account) SetActive(active bool) {
	a := c.arena
	a.mu.Lock()
	defer a.mu.Unlock()
	c.active = active && !c.closed
	a.countActive(c)
	a.serve()
}

// readAhead makes the account one of reads before their loads.
func (c *Account) readAhead() { c.ahead, c.count = true, new(Counters) }

// countActive counts an account that shares the arena now, and no other.
func (a *Arena) countActive(c *Account) {
	counts := !c.ahead && (c.active || c.loadBytes > 0 || c.saveBytes > 0 || c.queue.Head() != nil)
	if counts != c.counted {
		c.counted = counts
		if counts {
			a.active++
		} else {
			a.active--
		}
	}
}

// Close ends the account: calls that wait fail with [ErrClosed], and nothing more is given out.
// Slots that are held stay valid until they are released.
func (c *Account) Close() {
	a := c.arena
	a.mu.Lock()
	defer a.mu.Unlock()
	if c.closed {
		return
	}
	c.closed, c.active = true, false
	for s := c.queue.First(); s != nil; s = c.queue.First() {
		a.unqueue(s)
		s.giveUp()
	}
	a.countActive(c)
	a.forget(c)
	a.serve()
}

// forget stops counting a closed account once nothing is charged to it.
func (a *Arena) forget(c *Account) {
	if c.closed && c.loadBytes == 0 && c.saveBytes == 0 {
		a.accounts--
		a.leave(c.ns)
	}
}

// halves are loads and saves.
const halves = 2

// share is what the account may hold of each half of the arena.
func (c *Account) share() int64 {
	a := c.arena
	sharers := a.active
	if !c.counted {
		sharers++
	}
	return int64(len(a.units)) * int64(a.opts.unitBytes) / int64(halves*sharers)
}

// allows reports whether the account may hold another slot of that class.
func (c *Account) allows(k *class, save bool) bool {
	used, limit := c.loadBytes, c.opts.LoadBytes
	if c.ahead && !save && !c.arena.allowsAhead(k) {
		return false
	}
	if save {
		used, limit = c.saveBytes, c.opts.SaveBytes
	}
	return used == 0 || used+int64(k.slotBytes) <= min(limit, c.share())
}

// charge adds a handle's slot to the account, or takes it off again.
func (c *Account) charge(s *Slot, sign int64) {
	n := sign * int64(s.class.slotBytes)
	if s.save {
		c.saveBytes += n
	} else {
		c.loadBytes += n
	}
	c.arena.countActive(c)
	if n < 0 {
		c.arena.forget(c)
	}
}

// begin prepares an empty handle.
func (c *Account) begin(s *Slot, payloadBytes int, save bool) error {
	if c.closed || c.arena.closed {
		return ErrClosed
	}
	k := c.arena.classOf(payloadBytes)
	if k == nil {
		return fmt.Errorf("%w: %d bytes", ErrTooLarge, payloadBytes)
	}
	select {
	case <-s.ready: // left by an earlier wait
	default:
	}
	s.account, s.class, s.payload, s.save = c, k, payloadBytes, save
	return nil
}
