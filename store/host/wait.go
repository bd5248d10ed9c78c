package host

// node ties what it is part of into a list.
type node[T any] struct {
	prev, next *node[T]
	of         *T
}

// list is a doubly linked list of nodes, each of which is in one list at a time.
type list[T any] struct {
	head, tail *node[T]
	len        int
}

// first is what the first node is of, nil in an empty list.
func (l *list[T]) first() *T {
	if l.head == nil {
		return nil
	}
	return l.head.of
}

func (l *list[T]) push(n *node[T], of *T) {
	*n = node[T]{prev: l.tail, of: of}
	if l.tail != nil {
		l.tail.next = n
	} else {
		l.head = n
	}
	l.tail = n
	l.len++
}

func (l *list[T]) pushFront(n *node[T], of *T) {
	*n = node[T]{next: l.head, of: of}
	if l.head != nil {
		l.head.prev = n
	} else {
		l.tail = n
	}
	l.head = n
	l.len++
}

func (l *list[T]) remove(n *node[T]) {
	if n.prev != nil {
		n.prev.next = n.next
	} else {
		l.head = n.next
	}
	if n.next != nil {
		n.next.prev = n.prev
	} else {
		l.tail = n.prev
	}
	*n = node[T]{}
	l.len--
}

// serve gives memory to the handles that wait, the accounts in turn.
func (a *Arena) serve() {
	if a.waiting == 0 {
		return
	}
	// Only accounts with waiters are looked at. They move to the end as they are tried.
	for failed := 0; failed < a.queued.len; {
		c := a.queued.first()
		a.queued.remove(&c.node)
		a.queued.push(&c.node, c)
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
	s := c.queue.first()
	c.queue.remove(&s.node) // which may be needed for another list
	if !a.try(s) {
		c.queue.pushFront(&s.node, s)
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
	if c.queue.head == nil {
		a.queued.push(&c.node, c)
		a.countActive(c)
	}
	c.queue.push(&s.node, s)
	a.waiting++
}

// unqueue takes a handle that has not been served off its queue.
func (a *Arena) unqueue(s *Slot) {
	c := s.account
	c.queue.remove(&s.node)
	a.dequeued(c)
	// The account's next waiter may need a longer run.
	if next := c.queue.first(); a.drain.owner == c && (next == nil || next.class != a.drain.class) {
		a.drain.end()
	}
}

// dequeued counts a waiter less, which has left its account's queue.
func (a *Arena) dequeued(c *Account) {
	a.waiting--
	if c.queue.head == nil {
		a.queued.remove(&c.node)
		a.countActive(c)
	}
}
