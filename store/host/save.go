package host

import "github.com/kvconn/kvconn/store"

// Save is one record on its way from memory to a tier.
type Save struct {
	// WriteOp is the record and, in Err, how its write ended. [Cache.Save] sets its payload.
	store.WriteOp
	// Slot holds the payload: [Account.ReserveSave] gives it.
	Slot Slot
}

// Save writes records whose slots have been filled, and returns at once: how many of them, from
// the first on, are taken, and why not more, as [store.Writer] does. Slots of the others are
// released.
//
// done is called once for each that was taken, from any goroutine, when the record can be found
// in the tier or Err is set; it must not block. What was written stays in memory. The slot is
// released by then.
func (c *Cache) Save(saves []*Save, done func(*Save)) (taken int, err error) {
	ops := make([]*store.WriteOp, len(saves))
	for i, s := range saves {
		s.Owner, s.Payload = s, s.Slot.Bytes()
		ops[i] = &s.WriteOp
	}
	taken, err = c.tier.Write(ops, func(op *store.WriteOp) {
		s := op.Owner.(*Save)
		if s.Err == nil {
			s.Slot.Publish(s.Record)
		}
		s.Slot.Release()
		done(s)
	})
	for _, s := range saves[taken:] {
		s.Slot.Release()
	}
	return taken, err
}

// promote offers a record that a slower tier has delivered to the first one, which may refuse
// it: from the slot that it was read into, pinned once more as a save.
func (l *load) promote(it *Item) {
	s := &Save{WriteOp: store.WriteOp{Record: it.Record, Scope: it.Scope}}
	taken := 0
	l.others.Add(1)
	if l.account.pinAlso(&s.Slot, &it.Slot) {
		taken, _ = l.cache.Save([]*Save{s}, l.promoted)
	}
	if taken == 0 {
		s.Err = store.ErrBusy
		l.promoted(s)
	}
}

func (l *load) promoted(s *Save) {
	l.cache.mu.Lock()
	if s.Err == nil {
		l.cache.count.Promoted++
	} else {
		l.cache.count.PromotionsRefused++
	}
	l.cache.mu.Unlock()
	l.others.Done()
}
