package disk

import (
	"context"
	"fmt"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/chains"
	"github.com/kvconn/kvconn/store/disk/namespace"
	"github.com/kvconn/kvconn/store/disk/pins"
	"github.com/kvconn/kvconn/store/disk/purge"
)

// Purge removes what the store holds of a namespace, and returns when that is durable: see [purge.Purges]. It fails with
// [namespace.ErrNotOpen] if the namespace is not known. Nothing of it is found by look-ups meanwhile.
func (s *Store) Purge(ctx context.Context, ns connector.NamespaceDigest, wait time.Duration) (r purge.Result, err error) {
	upTo := s.seq.Load() // before the number is asked for, which may be given to another namespace
	number, known := s.namespaces.Number(ns)
	if !known {
		return r, fmt.Errorf("namespace %v: %w", ns, namespace.ErrNotOpen)
	}
	r, err = s.purges.Run(ctx, number, upTo, wait)
	r.Incomplete = !s.rebuild.FindsAll() || s.state.Hides(number)
	s.namespaces.RequestTidy()
	return r, err
}

// PurgePrompt removes the blocks of a prompt, and the blocks that continue it from its last one, of the shards given,
// and returns when that is durable. With dry set it only counts them. Loads that hold some are waited for, for at most wait, and find the rest
// gone. It fails with [namespace.ErrNotOpen] if the namespace is not known. There is at least one key.
func (s *Store) PurgePrompt(ctx context.Context, ns connector.NamespaceDigest, shards []connector.Shard, keys []connector.Key, wait time.Duration, dry bool) (r purge.PromptResult, err error) {
	upTo := s.seq.Load()
	number, known := s.namespaces.Number(ns)
	if !known {
		return r, fmt.Errorf("namespace %v: %w", ns, namespace.ErrNotOpen)
	}
	p := &chains.Prompt{Namespace: number, Shards: shards, Keys: keys, UpTo: upTo}
	blocks, err := chains.Blocks(ctx, s.table, p)
	if err != nil {
		return r, err
	}
	after, err := chains.Continuations(ctx, s.table, p, blocks)
	if err != nil {
		return r, err
	}
	found := append(blocks, after...)
	if !dry {
		found, err = s.purges.Records(ctx, number, found, wait)
		s.namespaces.RequestTidy()
	}
	r.Count(found, keys)
	r.Incomplete = !s.rebuild.FindsAll() || s.state.Hides(number)
	return r, err
}

// Pins are what an administrator has pinned.
func (s *Store) Pins() *pins.Pins { return s.pins }

// purgeStep is a step of a purge.
type purgeStep struct {
	*purge.Step
	done chan error
}

func (p purgeStep) prepare(c *committing) {
	if !c.journalFailed() {
		c.removed = p.Take(c.s.table, c.removed)
	}
}

func (p purgeStep) settle(_ *committing, err error) { p.done <- err }

func (s *Store) commitPurge(step *purge.Step) error {
	p := purgeStep{step, make(chan error, 1)}
	if !s.commits.TryPush(p) {
		return store.ErrClosed
	}
	return <-p.done
}
