// Package adapters knows which content the engines of a daemon use under the names of LoRA adapters. Requests name an
// adapter, records are of its content: routers need both.
package adapters

import (
	"sync"
	"sync/atomic"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store/residency"
)

const (
	// maxNames bounds the names that are remembered of one session, maxAll those of all, at 0.9 KB each at most.
	maxNames = 4096
	maxAll   = 1 << 16
	// maxNameBytes is the longest name that routers know of, maxScopeBytes seven times what connectors make.
	maxNameBytes  = 256
	maxScopeBytes = 512
)

// Registry has what each engine's session has told. A name stands for a scope while all sessions of a namespace that know the
// name agree; where one neither loads nor saves with it, it stands for nothing. What a session has told ends with
// the session. Its methods may be called from any goroutine.
type Registry struct {
	version atomic.Uint64

	mu       sync.Mutex
	sessions map[any]*session
	names    int // of all sessions
}

type session struct {
	namespace connector.NamespaceDigest
	scopes    map[string]string
	// full says that names were left out, so that nothing is known of any.
	full bool
}

var _ residency.AdapterSource = (*Registry)(nil)

// New makes a Registry that knows nothing.
func New() *Registry { return &Registry{sessions: make(map[any]*session)} }

// Tell notes what a session's engine uses. key names the session until [Registry.Forget].
func (r *Registry) Tell(key any, ns connector.NamespaceDigest, list []connector.Adapter) {
	if len(list) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sessions[key]
	if s == nil {
		s = &session{namespace: ns, scopes: make(map[string]string)}
		r.sessions[key] = s
	}
	changed := false
	for _, a := range list {
		changed = r.note(s, a.Name, a.LoRA) || changed
	}
	if changed {
		r.version.Add(1)
	}
}

// note reports whether a name stands for something else than before. The caller holds mu.
func (r *Registry) note(s *session, name, scope string) (changed bool) {
	if len(scope) > maxScopeBytes {
		scope = "" // it is not one that others have
	}
	old, known := s.scopes[name]
	switch {
	case s.full || known && old == scope || len(name) > maxNameBytes:
		return false
	case !known && (len(s.scopes) >= maxNames || r.names >= maxAll):
		r.names -= len(s.scopes)
		s.full, s.scopes = true, nil
		return true
	case !known:
		r.names++
	}
	s.scopes[name] = scope
	return true
}

// Forget forgets what a session has told.
func (r *Registry) Forget(key any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.sessions[key]; s != nil {
		r.names -= len(s.scopes)
		delete(r.sessions, key)
		r.version.Add(1)
	}
}

// Version changes with every change.
func (r *Registry) Version() uint64 { return r.version.Load() }

// Scopes are the names that stand for one scope.
func (r *Registry) Scopes() map[residency.NamedAdapter]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make(map[residency.NamedAdapter]string)
	full := make(map[connector.NamespaceDigest]bool)
	for _, s := range r.sessions {
		full[s.namespace] = full[s.namespace] || s.full
		for name, scope := range s.scopes {
			a := residency.NamedAdapter{Namespace: s.namespace, Name: name}
			if other, known := out[a]; known && other != scope {
				scope = ""
			}
			out[a] = scope
		}
	}
	for a, scope := range out {
		if scope == "" || full[a.Namespace] {
			delete(out, a)
		}
	}
	return out
}
