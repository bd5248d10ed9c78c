package residency

import (
	"fmt"
	"sync"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
)

// Numbers gives numbers to the namespaces of a store's streams. Routers of earlier releases take a number in a
// resumed stream for what it was before, so a number means the same as long as streams are resumed. The zero
// value is ready; its methods may be called from any goroutine.
type Numbers struct {
	mu    sync.Mutex
	now   *Table
	ended bool // streams are not resumed any more
}

// Table is what streams call namespaces. Its methods may be called from any goroutine.
type Table struct {
	mu sync.Mutex
	of map[connector.NamespaceDigest]uint32
}

// For returns the numbers for a stream. Once all are given out, new streams begin with a new table and no
// stream is resumed any more: then it returns nil for one that would be.
func (n *Numbers) For(resumed bool) *Table {
	n.mu.Lock()
	defer n.mu.Unlock()
	full := n.now != nil && n.now.full()
	switch {
	case resumed && n.ended:
		return nil
	case n.now == nil || full && !resumed:
		n.now, n.ended = &Table{of: make(map[connector.NamespaceDigest]uint32)}, n.ended || full
	}
	return n.now
}

func (t *Table) full() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.of) == maxNamespaces
}

// number fails with an error that ends the stream once all numbers are given out.
func (t *Table) number(ns connector.NamespaceDigest) (uint32, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	number, known := t.of[ns]
	switch {
	case known:
		return number, nil
	case len(t.of) == maxNamespaces:
		return 0, fmt.Errorf("more than %d namespaces: %w", maxNamespaces, store.ErrLagged)
	}
	number = uint32(len(t.of))
	t.of[ns] = number
	return number, nil
}
