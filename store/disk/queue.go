package disk

import "sync"

// queue is an unbounded first-in first-out queue between goroutines; what goes in is
// bounded by a byte budget elsewhere.
type queue[T any] struct {
	mu     sync.Mutex
	ready  sync.Cond
	items  []T
	closed bool
}

func newQueue[T any]() *queue[T] {
	q := new(queue[T])
	q.ready.L = &q.mu
	return q
}

func (q *queue[T]) push(items ...T) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.items = append(q.items, items...)
	if len(items) > 1 {
		q.ready.Broadcast()
	} else {
		q.ready.Signal()
	}
}

// tryPush adds an item unless the queue is closed.
func (q *queue[T]) tryPush(item T) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false
	}
	q.items = append(q.items, item)
	q.ready.Signal()
	return true
}

// pop waits for an item. It reports false when the queue is closed and empty.
func (q *queue[T]) pop() (item T, ok bool) {
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

// popAll waits for items and moves all of them (at most limit) to the end of buf.
func (q *queue[T]) popAll(buf []T, limit int) (out []T, ok bool) {
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

func (q *queue[T]) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.ready.Broadcast()
}
