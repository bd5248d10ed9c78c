package host

// serve gives memory to the handles that wait, the accounts in turn.
func (a *Arena) serve() {
	if a.waiting == 0 {
		return
	}
	// Only accounts with waiters are looked at. They move to the end as they are tried.
	for failed := 0; failed < a.queued.Len(); {
		c := a.queued.First()
		a.queued.Remove(&c.node)
		a.queued.Push(&c.node, c)
		if a.serveOne(c) {
			failed = 0
		} else {
			failed++
		}
	}
	a.drain.start()
}

// serveOne serves an account's first waiter if that is possible.
func (a *Arena) serveOne(c *Account) bool {
	s := c.queue.First()
	c.queue.Remove(&s.node) // which may be needed for another list
	if !a.try(s) {
		c.queue.PushFront(&s.node, s)
		return false
	}
	a.dequeued(c)
	if a.drain.owner == c {
		a.drain.end()
	}
	s.signal()
	return true
}

// enqueue makes a handle wait for memory.
func (a *Arena) enqueue(s *Slot) {
	c := s.account
	if c.queue.Head() == nil {
		a.queued.Push(&c.node, c)
		a.countActive(c)
	}
	c.queue.Push(&s.node, s)
	a.waiting++
}

// unqueue takes a handle that has not been served off its queue.
func (a *Arena) unqueue(s *Slot) {
	c := s.account
	c.queue.Remove(&s.node)
	a.dequeued(c)
	// The account's next waiter may need a longer run.
	if next := c.queue.First(); a.drain.owner == c && (next == nil || next.class != a.drain.class) {
		a.drain.end()
	}
}

// dequeued counts a waiter less, which has left its account's queue.
func (a *Arena) dequeued(c *Account) {
	a.waiting--
	if c.queue.Head() == nil {
		a.queued.Remove(&c.node)
		a.countActive(c)
	}
}
