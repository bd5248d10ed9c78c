// Package queue has a queue between goroutines.
package queue

import "sync"

// Queue is an unbounded first-in first-out queue between goroutines; what goes in is
// bounded by a byte budget elsewhere.
type Queue[T any] struct {
	mu     sync.Mutex
	ready  sync.Cond
	items  []T
	closed bool
}

// New returns an empty queue.
func New[T any]() *Queue[T] {
	q := new(Queue[T])
	q.ready.L = &q.mu
	return q
}

// Push adds items. One that is pushed after Close is still handed out.
func (q *Queue[T]) Push(items ...T) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.items = append(q.items, items...)
	if len(items) > 1 {
		q.ready.Broadcast()
	} else {
		q.ready.Signal()
	}
}

// TryPush adds an item unless the queue is closed.
func (q *Queue[T]) TryPush(item T) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false
	}
	q.items = append(q.items, item)
	q.ready.Signal()
	return true
}

// Pop waits for an item. It reports false when the queue is closed and empty.
func (q *Queue[T]) Pop() (item T, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.items) == 0 {
		if q.closed {
			return item, false
		}
		q.ready.Wait()
	}
	item = q.items[0]
	var zero T
	q.items[0] = zero
	q.items = q.items[1:]
	return item, true
}

// PopAll waits for items and moves all of them (at most limit) to the end of buf.
func (q *Queue[T]) PopAll(buf []T, limit int) (out []T, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.items) == 0 {
		if q.closed {
			return buf, false
		}
		q.ready.Wait()
	}
	n := min(limit, len(q.items))
	buf = append(buf, q.items[:n]...)
	rest := copy(q.items, q.items[n:])
	clear(q.items[rest:])
	q.items = q.items[:rest]
	return buf, true
}

// Close has [Queue.Pop] end when the queue is empty.
func (q *Queue[T]) Close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.ready.Broadcast()
}
