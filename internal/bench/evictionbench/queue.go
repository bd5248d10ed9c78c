package evictionbench

import "container/list"

// node is a key in one of a policy's queues.
type node struct {
	key  int32
	freq uint8
	in   *queue
	at   *list.Element
}

// queue is a list of nodes, the most recent one at its front.
type queue struct{ list.List }

// push puts a node at the front, out of the queue that it is in.
func (q *queue) push(n *node) {
	n.leave()
	n.in, n.at = q, q.PushFront(n)
}

// leave takes a node out of its queue.
func (n *node) leave() {
	if n.in != nil {
		n.in.Remove(n.at)
		n.in = nil
	}
}

// last is the node at the back.
func (q *queue) last() *node { return q.Back().Value.(*node) }
