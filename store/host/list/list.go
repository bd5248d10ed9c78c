// Package list has doubly linked lists whose nodes are fields of what is in them, so that adding to a list
// allocates nothing.
package list

// Node is a field of what can be in a list.
type Node[T any] struct {
	prev, next *Node[T]
	of         *T
}

// Next is the node after this one, nil at the end.
func (n *Node[T]) Next() *Node[T] { return n.next }

// Of is what the node is a field of.
func (n *Node[T]) Of() *T { return n.of }

// List is a list of nodes. A node is in one list at a time. The zero value is empty.
type List[T any] struct {
	head, tail *Node[T]
	len        int
}

// Len is how many nodes there are.
func (l *List[T]) Len() int { return l.len }

// Head is the first node, nil in an empty list.
func (l *List[T]) Head() *Node[T] { return l.head }

// First is what the first node is of, nil in an empty list.
func (l *List[T]) First() *T {
	if l.head == nil {
		return nil
	}
	return l.head.of
}

// Push appends a node, which is part of of.
func (l *List[T]) Push(n *Node[T], of *T) {
	*n = Node[T]{prev: l.tail, of: of}
	if l.tail != nil {
		l.tail.next = n
	} else {
		l.head = n
	}
	l.tail = n
	l.len++
}

// PushFront puts a node before all others.
func (l *List[T]) PushFront(n *Node[T], of *T) {
	*n = Node[T]{next: l.head, of: of}
	if l.head != nil {
		l.head.prev = n
	} else {
		l.tail = n
	}
	l.head = n
	l.len++
}

// Remove takes a node out.
func (l *List[T]) Remove(n *Node[T]) {
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
	*n = Node[T]{}
	l.len--
}
