// Package heap is a priority queue.
package heap

// Item can be put in a [Heap].
type Item[T any] interface {
	// Before says that the item is to be taken out before another.
	Before(T) bool
}

// Heap is a queue whose first element, at index 0, is before all others. The zero value is empty.
type Heap[T Item[T]] []T

// Push adds an item.
func (h *Heap[T]) Push(item T) {
	*h = append(*h, item)
	list := *h
	for i := len(list) - 1; i > 0; {
		up := (i - 1) / 2
		if !list[i].Before(list[up]) {
			return
		}
		list[up], list[i] = list[i], list[up]
		i = up
	}
}

// Pop takes out the first item. The heap must not be empty.
func (h *Heap[T]) Pop() T {
	list := *h
	first, last := list[0], len(list)-1
	var none T
	list[0], list[last] = list[last], none
	list = list[:last]
	*h = list
	for i := 0; ; {
		least := i
		for k := 2*i + 1; k <= 2*i+2 && k < last; k++ {
			if list[k].Before(list[least]) {
				least = k
			}
		}
		if least == i {
			return first
		}
		list[least], list[i] = list[i], list[least]
		i = least
	}
}
