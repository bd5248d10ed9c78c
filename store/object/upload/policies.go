package upload

import (
	"sync"

	"github.com/kvconn/kvconn/connector"
)

// policies know the manifests and the policies of namespaces.
type policies struct {
	source Source
	choose func(*connector.Manifest) Policy

	mu    sync.RWMutex
	known map[connector.NamespaceDigest]namespace
}

type namespace struct {
	manifest *connector.Manifest
	policy   Policy
}

func (p *policies) init(source Source, choose func(*connector.Manifest) Policy) {
	p.source, p.choose, p.known = source, choose, make(map[connector.NamespaceDigest]namespace)
}

// cached returns what is known of a namespace.
func (p *policies) cached(ns connector.NamespaceDigest) (n namespace, known bool) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	n, known = p.known[ns]
	return n, known
}

// of returns a namespace. One whose manifest is lost has [Off]: nobody could tell what its records are.
func (p *policies) of(ns connector.NamespaceDigest) namespace {
	if n, known := p.cached(ns); known {
		return n
	}
	for _, info := range p.source.Namespaces() {
		if info.Digest != ns || info.Manifest == nil {
			continue
		}
		m, err := connector.ParseManifest(info.Manifest)
		if err != nil || m.Digest() != ns {
			break
		}
		n := namespace{m, p.choose(m)}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.known[ns] = n
		return n
	}
	return namespace{policy: Off}
}
