package residency

import (
	"fmt"
	"sync"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
)

// Numbers are what the streams of a store call its namespaces. Routers of earlier releases take a number in a
// resumed stream for what it was before, so a number means the same as long as streams are resumed. Its
// methods may be called from any goroutine.
type Numbers struct {
	mu sync.Mutex
	of map[connector.NamespaceDigest]uint32
}

// NewNumbers makes an empty table.
func NewNumbers() *Numbers { return &Numbers{of: make(map[connector.NamespaceDigest]uint32)} }

// Full reports whether all numbers are given out.
func (n *Numbers) Full() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.of) == maxNamespaces
}

// number fails with an error that ends the stream once all numbers are given out.
func (n *Numbers) number(ns connector.NamespaceDigest) (uint32, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	number, known := n.of[ns]
	switch {
	case known:
		return number, nil
	case len(n.of) == maxNamespaces:
		return 0, fmt.Errorf("more than %d namespaces: %w", maxNamespaces, store.ErrLagged)
	}
	number = uint32(len(n.of))
	n.of[ns] = number
	return number, nil
}
