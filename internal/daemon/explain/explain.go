// Package explain says why a prompt is found in the cache or is not.
package explain

import (
	"cmp"
	"context"
	"slices"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/daemon/prompt"
	"github.com/kvconn/kvconn/store"
)

// Request is a prompt to explain.
type Request = prompt.Prompt

// Answer is what is known of a prompt.
type Answer struct {
	Model  string `json:"model"`
	Tokens int    `json:"tokens"`
	// Reference is the namespace that others are compared with: that of the model's newest engine, "" if none is connected.
	Reference string `json:"reference"`
	// PrefillTokensPerS is how fast that engine computes tokens, 0 if it is not known.
	PrefillTokensPerS float64 `json:"prefill_tokens_per_s"`
	// Namespaces are those of the model, the reference first, then those with the most blocks of the prompt.
	Namespaces []Namespace `json:"namespaces"`
	// More namespaces of the model were not looked at.
	More int `json:"more"`
}

// Namespace is what one namespace has of the prompt.
type Namespace struct {
	Digest string `json:"digest"`
	Engine string `json:"engine"`
	// Differences from the reference are why its engines cannot use this namespace.
	Differences []Difference `json:"differences"`
	// OwnKeys says that its engines name blocks by hashes of their own: the blocks of a prompt are not known.
	OwnKeys bool `json:"own_keys"`
	// Blocks are the prompt's whole blocks. Stored of them, from the start on, are there with all of their shards, on Tiers.
	Blocks    int    `json:"blocks"`
	BlockSize int    `json:"block_size"`
	Stored    int    `json:"stored"`
	Tiers     []Tier `json:"tiers"`
	// Later blocks are there after the first one that is missing: of no use without it.
	Later int `json:"later"`
	// LoadS is how long the load of what is stored would take now, PrefillS its computation, both in seconds; 0 if not known.
	LoadS    float64 `json:"load_s"`
	PrefillS float64 `json:"prefill_s"`
}

// Difference is a field in which two manifests differ. What a manifest does not have is "".
type Difference struct {
	Field     string `json:"field"`
	Here      string `json:"here"`
	Reference string `json:"reference"`
}

// Tier is a part of what is stored: each block counts for the fastest tier that has it.
type Tier struct {
	Tier   string `json:"tier"`
	Blocks int    `json:"blocks"`
	Bytes  int64  `json:"bytes"`
}

// Engine is the newest engine of a model.
type Engine struct {
	Manifest          *connector.Manifest // nil if there is none
	PrefillTokensPerS float64
}

// Source is where the answers come from.
type Source struct {
	// Levels are where loads come from, the fastest first.
	Levels []store.Level
	// Namespaces lists those of the disk.
	Namespaces func() []store.NamespaceInfo
	// PayloadBytes is that of the chain of tiers.
	PayloadBytes func(connector.NamespaceDigest, connector.Shard) int
	// Newest returns the newest engine of a model.
	Newest func(model string) Engine
}

// maxNamespaces bounds the work of an answer.
const maxNamespaces = 32

// Explain answers. It fails with the cause of ctx alone.
func (s *Source) Explain(ctx context.Context, r *Request) (*Answer, error) {
	newest := s.Newest(r.Model)
	a := &Answer{Model: r.Model, Tokens: len(r.Tokens), PrefillTokensPerS: newest.PrefillTokensPerS, Namespaces: []Namespace{}}
	if newest.Manifest != nil {
		a.Reference = newest.Manifest.Digest().String()
	}
	keys := make(map[int][]connector.Key)
	for _, m := range s.manifests(r.Model, newest.Manifest) {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if len(a.Namespaces) == maxNamespaces {
			a.More++
			continue
		}
		if keys[m.BlockSize] == nil {
			keys[m.BlockSize] = r.Keys(m.BlockSize)
		}
		a.Namespaces = append(a.Namespaces, s.look(m, &newest, keys[m.BlockSize]))
	}
	slices.SortStableFunc(a.Namespaces, func(x, y Namespace) int {
		switch {
		case x.Digest == a.Reference:
			return -1
		case y.Digest == a.Reference:
			return 1
		}
		return cmp.Compare(y.Stored, x.Stored)
	})
	return a, nil
}

// manifests returns those of a model, that of the reference first.
func (s *Source) manifests(model string, reference *connector.Manifest) (list []*connector.Manifest) {
	if reference != nil {
		list = append(list, reference)
	}
	for _, m := range prompt.Manifests(model, s.Namespaces()) {
		if reference == nil || m.Digest() != reference.Digest() {
			list = append(list, m)
		}
	}
	return list
}

// look looks for a prompt in one namespace.
func (s *Source) look(m *connector.Manifest, newest *Engine, keys []connector.Key) Namespace {
	n := Namespace{
		Digest: m.Digest().String(), Engine: m.Engine, Differences: differences(m, newest.Manifest),
		OwnKeys: m.KeyScheme == connector.KeySchemeEngine, Blocks: len(keys), BlockSize: m.BlockSize, Tiers: []Tier{},
	}
	if n.OwnKeys {
		return n
	}
	c := s.count(m, keys)
	n.Stored, n.Later, n.Tiers = c.stored, c.later, c.tiers
	n.LoadS = c.loadS
	if v := newest.PrefillTokensPerS; v > 0 {
		n.PrefillS = float64(n.Stored*m.BlockSize) / v
	}
	return n
}

func differences(m, reference *connector.Manifest) []Difference {
	list := []Difference{}
	if reference == nil {
		return list
	}
	here, there := m.Fields(), reference.Fields()
	for _, field := range m.Differences(reference) {
		list = append(list, Difference{Field: field, Here: here[field], Reference: there[field]})
	}
	return list
}
