package feed

import (
	"sync"

	"github.com/kvconn/kvconn/connector"
)

// maxRoots bounds the scopes that are remembered.
const maxRoots = 1 << 16

// roots are the keys at which prompts begin. Their lock is held for moments only.
type roots struct {
	mu sync.Mutex
	// plain is the root of prompts without a scope. It is never forgotten, however many scopes there are.
	plain connector.Key
	known map[connector.Key]bool
	// fresh are roots that were noted and not acted on yet.
	fresh []connector.Key
}

func newRoots(plain connector.Key) roots {
	return roots{plain: plain, known: map[connector.Key]bool{plain: true}}
}

// setPlain has prompts without a scope begin at k from now on.
func (r *roots) setPlain(k connector.Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.plain != k {
		delete(r.known, r.plain)
		r.plain = k
		r.known[k] = true
	}
}

// has reports whether prompts are known to begin at k.
func (r *roots) has(k connector.Key) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.known[k]
}

// note notes a root, and reports whether it is new. If too many others wait, it is left for the next time.
func (r *roots) note(k connector.Key) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.known[k] || len(r.fresh) >= maxRoots {
		return false
	}
	if len(r.known) >= maxRoots {
		for other := range r.known { // any: what is in the index stays there
			if other != r.plain {
				delete(r.known, other)
				break
			}
		}
	}
	r.known[k] = true
	r.fresh = append(r.fresh, k)
	return true
}

func (r *roots) waiting() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.fresh) > 0
}

func (r *roots) take() []connector.Key {
	r.mu.Lock()
	defer r.mu.Unlock()
	fresh := r.fresh
	r.fresh = nil
	return fresh
}
