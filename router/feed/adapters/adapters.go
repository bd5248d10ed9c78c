// Package adapters keeps what the names of LoRA adapters stand for in a store.
package adapters

import "sync"

// maxNames bounds the names of LoRA adapters that are remembered of a store, in all its namespaces. If there are more, nothing
// is known of any until the stream begins again.
const maxNames = 1 << 15

// maxBytes bounds a name and a scope; what is longer is not remembered. Connectors' scopes have 71 bytes.
const maxBytes = 512

// Table is what names of LoRA adapters stand for in the namespaces of a store, which are known by a key. The zero value is
// empty. Its methods may be called from any goroutine.
type Table[K comparable] struct {
	mu     sync.RWMutex
	byName map[string]map[K]string
	n      int
	full   bool
}

// Set notes what a name stands for in one namespace; an empty scope is nothing.
func (a *Table[K]) Set(in K, name, scope string) {
	if len(name) > maxBytes || len(scope) > maxBytes {
		scope = ""
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	scopes := a.byName[name]
	_, known := scopes[in]
	switch {
	case scope == "" && known:
		a.n--
		if delete(scopes, in); len(scopes) == 0 {
			delete(a.byName, name)
		}
	case scope == "":
	case !known && a.n >= maxNames:
		a.byName, a.n, a.full = nil, 0, true
	case a.full:
	default:
		if a.byName == nil {
			a.byName = make(map[string]map[K]string)
		}
		if scopes == nil {
			scopes = make(map[K]string, 1)
			a.byName[name] = scopes
		}
		if !known {
			a.n++
		}
		scopes[in] = scope
	}
}

// Scope is what a name stands for: empty if nothing is known, or namespaces differ.
func (a *Table[K]) Scope(name string) (scope string) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	for _, s := range a.byName[name] {
		if scope != "" && s != scope {
			return ""
		}
		scope = s
	}
	return scope
}

// Clear forgets all.
func (a *Table[K]) Clear() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.byName, a.n, a.full = nil, 0, false
}

// Count is how many names are known, each as often as it is in a namespace.
func (a *Table[K]) Count() int {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.n
}
