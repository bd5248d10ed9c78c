// Package steer is what an administrator may have done to a store that is in use: removals, pins, and lists of records.
package steer

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/chains"
	"github.com/kvconn/kvconn/store/disk/index"
	"github.com/kvconn/kvconn/store/disk/index/victim"
	"github.com/kvconn/kvconn/store/disk/namespace"
	"github.com/kvconn/kvconn/store/disk/pins"
	"github.com/kvconn/kvconn/store/disk/purge"
)

// Options are the parts of a store.
type Options struct {
	Table      *index.Table
	Namespaces *namespace.Registry
	Purges     *purge.Purges
	Pins       *pins.Pins
	// Seq is the last sequence number given.
	Seq func() uint64
	// Complete reports whether the store knows all records of a namespace.
	Complete func(namespace uint16) bool
	// AllComplete reports whether it knows those of all namespaces.
	AllComplete func() bool
}

// Steering steers one store. Its methods may be called from any goroutine.
type Steering struct{ o Options }

// New returns what steers a store.
func New(o Options) *Steering { return &Steering{o} }

// Pins are what is pinned.
func (s *Steering) Pins() *pins.Pins { return s.o.Pins }

// Purge removes what the store holds of a namespace, and returns when that is durable: see [purge.Purges]. It fails with
// [namespace.ErrNotOpen] if the namespace is not known. Nothing of it is found by look-ups meanwhile.
func (s *Steering) Purge(ctx context.Context, ns connector.NamespaceDigest, wait time.Duration) (r purge.Result, err error) {
	upTo := s.o.Seq() // before the number is asked for, which may be given to another namespace
	number, err := s.number(ns)
	if err != nil {
		return r, err
	}
	r, err = s.o.Purges.Run(ctx, number, upTo, wait)
	r.Incomplete = !s.o.Complete(number)
	s.o.Namespaces.RequestTidy()
	return r, err
}

// PurgePrompt removes the blocks of a prompt, and the blocks that continue it from its last one, of the shards given,
// and returns when that is durable. With dry set it only counts them. Loads that hold some are waited for, for at most wait, and find the rest
// gone. It fails with [namespace.ErrNotOpen] if the namespace is not known. There is at least one key.
func (s *Steering) PurgePrompt(ctx context.Context, ns connector.NamespaceDigest, shards []connector.Shard, keys []connector.Key, wait time.Duration, dry bool) (r purge.PromptResult, err error) {
	upTo := s.o.Seq()
	number, err := s.number(ns)
	if err != nil {
		return r, err
	}
	p := &chains.Prompt{Namespace: number, Shards: shards, Keys: keys, UpTo: upTo}
	blocks, err := chains.Blocks(ctx, s.o.Table, p)
	if err != nil {
		return r, err
	}
	after, err := chains.Continuations(ctx, s.o.Table, p, blocks)
	if err != nil {
		return r, err
	}
	found := append(blocks, after...)
	if !dry {
		found, err = s.o.Purges.Records(ctx, number, found, wait)
		s.o.Namespaces.RequestTidy()
	}
	r.Count(found, keys)
	r.Incomplete = !s.o.Complete(number)
	return r, err
}

// Resident is a record on disk.
type Resident struct {
	ID store.RecordID
	// Bytes is the size of the payload.
	Bytes int
}

// Recent returns the records of a namespace that were used most recently, parents before the blocks that follow them, with at most maxBytes of
// payloads. It looks at every record, and does not wait for the disk.
func (s *Steering) Recent(ctx context.Context, ns connector.NamespaceDigest, maxBytes int64) ([]Resident, error) {
	number, err := s.number(ns)
	if err != nil {
		return nil, err
	}
	found, err := chains.All(ctx, s.o.Table, &chains.Prompt{Namespace: number, UpTo: s.o.Seq()})
	if err != nil {
		return nil, err
	}
	now := s.o.Table.Clock()
	order := func(r *chains.Record) uint64 {
		const late = 1 << 28 // a use may have been noted after the clock was read
		age := uint32(now) + late - r.Tick
		return victim.Order(now+late-uint64(age), r.Depth)
	}
	slices.SortFunc(found, func(a, b chains.Record) int { return cmp.Compare(order(&b), order(&a)) })
	var list []Resident
	for i := range found {
		r := &found[i]
		if maxBytes -= int64(r.Bytes); maxBytes < 0 {
			break
		}
		list = append(list, Resident{ID: store.RecordID{Namespace: ns, Shard: r.ID.Shard, Key: r.ID.Key}, Bytes: int(r.Bytes)})
	}
	return list, nil
}

func (s *Steering) number(ns connector.NamespaceDigest) (uint16, error) {
	number, known := s.o.Namespaces.Number(ns)
	if !known {
		return 0, fmt.Errorf("namespace %v: %w", ns, namespace.ErrNotOpen)
	}
	return number, nil
}
