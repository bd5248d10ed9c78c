package residency

import (
	"context"
	"time"

	"github.com/kvconn/kvconn/connector"
)

// NamedAdapter is the name of a LoRA adapter in requests to the engines of a namespace.
type NamedAdapter struct {
	Namespace connector.NamespaceDigest
	Name      string
}

// AdapterSource knows which content the engines of a daemon use under the names of LoRA adapters.
type AdapterSource interface {
	// Version changes with every change of Scopes.
	Version() uint64
	// Scopes are the names with the one scope that each stands for. The map is the caller's.
	Scopes() map[NamedAdapter]string
}

// adapterInterval is how soon a reader is told of a change of adapters.
const adapterInterval = time.Second

// patience is how long to wait for the next events before there may be something else to write.
func (s *Stream) patience() time.Duration {
	if s.Adapters != nil {
		return adapterInterval
	}
	return heartbeatInterval
}

// tellAdapters writes what has changed since the reader was told last.
func (s *Stream) tellAdapters(ctx context.Context) error {
	if s.Adapters == nil || s.adapters != nil && s.version == s.Adapters.Version() {
		return nil
	}
	version := s.Adapters.Version() // first: a change meanwhile is found the next time
	now := s.Adapters.Scopes()
	var manifests Manifests
	left := false
	for a, scope := range now {
		if told, ok := s.adapters[a]; ok && told == scope {
			continue
		}
		if _, described := s.numbers[a.Namespace]; !described {
			if manifests == nil {
				manifests = ReadManifests(s.Source)
			}
			if len(manifests[a.Namespace]) == 0 || len(s.numbers) == MaxNamespaces {
				delete(now, a) // until it is: it can have no records yet
				left = true
				continue
			}
		}
		if err := s.tellAdapter(ctx, a, scope); err != nil {
			return err
		}
	}
	for a := range s.adapters {
		if _, ok := now[a]; !ok {
			if err := s.tellAdapter(ctx, a, ""); err != nil {
				return err
			}
		}
	}
	if s.adapters, s.version = now, version; left {
		s.version-- // look again
	}
	return nil
}

func (s *Stream) tellAdapter(ctx context.Context, a NamedAdapter, scope string) error {
	number, described := s.numbers[a.Namespace]
	if !described {
		number = uint32(len(s.numbers))
		if err := s.describe(ctx, number, a.Namespace); err != nil {
			return err
		}
	}
	return s.To.Adapter(Adapter{Namespace: number, Name: a.Name, Scope: scope})
}
