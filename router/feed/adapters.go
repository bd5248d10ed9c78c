package feed

import (
	"fmt"
	"sync"

	"github.com/kvconn/kvconn/store/residency"
)

// maxAdapters bounds the names of LoRA adapters that are remembered of a store, in all its namespaces. If there are more, nothing
// is known of any until the stream begins again.
const maxAdapters = 1 << 15

// maxAdapterBytes bounds a name and a scope; what is longer is not remembered. Connectors' scopes have 71 bytes.
const maxAdapterBytes = 512

// adapters are what names of LoRA adapters stand for in the namespaces of a store that are followed. Its methods may be
// called from any goroutine.
type adapters struct {
	mu     sync.RWMutex
	byName map[string]map[*view]string
	n      int
	full   bool
}

// set notes what a name stands for in one namespace; an empty scope is nothing.
func (a *adapters) set(v *view, name, scope string) {
	if len(name) > maxAdapterBytes || len(scope) > maxAdapterBytes {
		scope = ""
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	scopes := a.byName[name]
	_, known := scopes[v]
	switch {
	case scope == "" && known:
		a.n--
		if delete(scopes, v); len(scopes) == 0 {
			delete(a.byName, name)
		}
	case scope == "":
	case !known && a.n >= maxAdapters:
		a.byName, a.n, a.full = nil, 0, true
	case a.full:
	default:
		if a.byName == nil {
			a.byName = make(map[string]map[*view]string)
		}
		if scopes == nil {
			scopes = make(map[*view]string, 1)
			a.byName[name] = scopes
		}
		if !known {
			a.n++
		}
		scopes[v] = scope
	}
}

// scope is what a name stands for: empty if nothing is known, or namespaces differ.
func (a *adapters) scope(name string) (scope string) {
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

func (a *adapters) clear() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.byName, a.n, a.full = nil, 0, false
}

func (a *adapters) count() int {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.n
}

// AdapterScope is the LoRA of the scope (connector.Scope) that the store has the blocks of prompts with an adapter under; empty
// if that is not known. Engines and their KV events go by the adapter's name, stores by its content. It may be called from
// any goroutine, and does not wait for the stream.
func (f *Residency) AdapterScope(name string) string { return f.adapters.scope(name) }

// adapter notes what an adapter's name stands for. The caller holds mu.
func (f *Residency) adapter(a *residency.Adapter) error {
	v, known := f.numbers[a.Namespace]
	switch {
	case !known:
		return fmt.Errorf("%w: an adapter of a namespace that was not described", residency.ErrMalformed)
	case v != nil:
		f.adapters.set(v, a.Name, a.Scope)
	}
	return nil
}
