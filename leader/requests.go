package leader

import (
	"github.com/zeebo/xxh3"
)

// requests are the requests that are followed, in the order of their last use. The memory of a
// forgotten one is used for a new one.
type requests struct {
	byHash map[xxh3.Uint128]*request
	// head is the sentinel of a ring: head.next was used last, head.prev longest ago.
	head   request
	idle   []*request
	groups int
	// size adds up what requests hold; see [request.size].
	size int
}

// Bounds of the memory that is kept for new requests.
const (
	maxIdleRequests = 16
	maxIdleSize     = 256 << 10
)

func (q *requests) init(groups int) {
	q.byHash, q.groups = make(map[xxh3.Uint128]*request), groups
	q.head.prev, q.head.next = &q.head, &q.head
}

// find returns the request of an id, or nil. Another id of equal hash, which nobody finds by
// chance, is another request.
func (q *requests) find(id string) *request {
	if r := q.byHash[xxh3.HashString128(id)]; r != nil && string(r.id) == id {
		return r
	}
	return nil
}

// add makes the request of an id. No request has its hash.
func (q *requests) add(id string) *request {
	var r *request
	if n := len(q.idle); n > 0 {
		r, q.idle = q.idle[n-1], q.idle[:n-1]
	} else {
		r = new(request)
	}
	r.reset(q.groups)
	r.hash, r.id = xxh3.HashString128(id), append(r.id[:0], id...)
	q.byHash[r.hash] = r
	q.link(r)
	return r
}

// remove forgets a request. The caller recycles it.
func (q *requests) remove(r *request) {
	delete(q.byHash, r.hash)
	q.unlink(r)
	q.size -= r.counted
}

// count notes how much a request holds now.
func (q *requests) count(r *request) {
	size := r.size()
	q.size += size - r.counted
	r.counted = size
}

// recycle keeps the memory of a request that was removed.
func (q *requests) recycle(r *request) {
	if len(q.idle) < maxIdleRequests && r.kept() <= maxIdleSize {
		q.idle = append(q.idle, r)
	}
}

// touch counts as a use of the request.
func (q *requests) touch(r *request) {
	q.unlink(r)
	q.link(r)
}

// oldest is the request that was used longest ago, or nil.
func (q *requests) oldest() *request {
	if q.head.prev == &q.head {
		return nil
	}
	return q.head.prev
}

func (q *requests) link(r *request) {
	r.prev, r.next = &q.head, q.head.next
	r.prev.next, r.next.prev = r, r
}

func (q *requests) unlink(r *request) {
	r.prev.next, r.next.prev = r.next, r.prev
	r.prev, r.next = nil, nil
}
