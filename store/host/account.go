package host

import (
	"fmt"
	"slices"
)

// Account is one rank's share of an arena. What its loads and its saves pin is bounded
// by its options and by an equal part of half the arena each, so that every rank can get
// on whatever the others do. A rank that holds nothing may have one slot of any size.
// Cached records that nobody pins belong to no account: they make room for any.
type Account struct {
	arena *Arena
	opts  AccountOptions

	// The rest is guarded by the arena's mutex.
	loadBytes, saveBytes int64 // pinned, or promised to those that are pending
	queue                slotQueue
	closed               bool
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
	c := &Account{arena: a, opts: o}
	a.accounts = append(a.accounts, c)
	return c, nil
}

// Close ends the account: who waits fails with [ErrClosed], and nothing more is given
// out. Slots that are held stay valid until they are released.
func (c *Account) Close() {
	a := c.arena
	a.mu.Lock()
	defer a.mu.Unlock()
	c.closed = true
	for s := c.queue.head; s != nil; s = c.queue.head {
		a.unqueue(s)
		s.empty()
		s.held.Store(false)
		s.signal()
	}
	a.forget(c)
	a.serve()
}

// forget takes a closed account off the list once nothing is charged to it.
func (a *Arena) forget(c *Account) {
	if c.closed && c.loadBytes == 0 && c.saveBytes == 0 {
		if i := slices.Index(a.accounts, c); i >= 0 {
			a.accounts = slices.Delete(a.accounts, i, i+1)
		}
	}
}

// Usage is what an account holds and may hold at the moment, in bytes.
type Usage struct {
	LoadBytes      int64 `json:"load_bytes"`
	LoadLimitBytes int64 `json:"load_limit_bytes"`
	SaveBytes      int64 `json:"save_bytes"`
	SaveLimitBytes int64 `json:"save_limit_bytes"`
}

// Usage returns what the account holds and may hold.
func (c *Account) Usage() Usage {
	c.arena.mu.Lock()
	defer c.arena.mu.Unlock()
	share := c.arena.share()
	return Usage{
		LoadBytes: c.loadBytes, LoadLimitBytes: min(c.opts.LoadBytes, share),
		SaveBytes: c.saveBytes, SaveLimitBytes: min(c.opts.SaveBytes, share),
	}
}

// halves are loads and saves.
const halves = 2

// share is what one account may hold of each half of the arena.
func (a *Arena) share() int64 {
	return int64(len(a.units)) * int64(a.opts.unitBytes) / int64(halves*max(1, len(a.accounts)))
}

// allows reports whether the account may hold another slot of that class.
func (c *Account) allows(k *class, save bool) bool {
	used, limit := c.loadBytes, c.opts.LoadBytes
	if save {
		used, limit = c.saveBytes, c.opts.SaveBytes
	}
	return used == 0 || used+int64(k.slotBytes) <= min(limit, c.arena.share())
}

// charge adds a handle's slot to the account, or takes it off again.
func (c *Account) charge(s *Slot, sign int64) {
	n := sign * int64(s.class.slotBytes)
	if s.save {
		c.saveBytes += n
	} else {
		c.loadBytes += n
	}
	if n < 0 {
		c.arena.forget(c)
	}
}

// mustBeEmpty panics on a handle in use, whose slot would be lost.
func (s *Slot) mustBeEmpty() {
	if s.held.Load() {
		panic("host: the handle is in use")
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
	case <-s.ready: // of a wait that nobody ended
	default:
	}
	s.account, s.class, s.payload, s.save, s.keyed = c, k, payloadBytes, save, false
	return nil
}
