package upload

import (
	"context"
	"slices"

	"github.com/kvconn/kvconn/connector"
)

const (
	// useCalls wait to be looked at, with useKeys keys together, if there is more than one.
	useCalls = 64
	useKeys  = 1 << 16
)

// use is what one look-up found: consecutive blocks.
type use struct {
	ns     connector.NamespaceDigest
	shards []connector.Shard
	keys   []connector.Key
}

// Used says that a look-up has found consecutive blocks with every one of shards. It queues those that
// wait for their second use, and those that found no room before. It costs a look-up next to nothing,
// never waits, and drops uses that come too fast.
func (u *Uploader) Used(ns connector.NamespaceDigest, shards []connector.Shard, found []connector.Key) {
	if n, known := u.policies.cached(ns); known && (n.policy == Off || n.policy == All && !u.missed.Load()) {
		return
	}
	n := int64(len(found))
	if all := u.usedKeys.Add(n); all != n && all > useKeys {
		u.usedKeys.Add(-n)
		return
	}
	select {
	case u.uses <- use{ns, slices.Clone(shards), slices.Clone(found)}:
	default:
		u.usedKeys.Add(-n)
	}
}

// takeUses offers what was used, until ctx ends.
func (u *Uploader) takeUses(ctx context.Context) {
	g := gatherer{u: u}
	for {
		select {
		case <-ctx.Done():
			return
		case x := <-u.uses:
			u.usedKeys.Add(-int64(len(x.keys)))
			if n := u.policies.of(x.ns); n.policy == SecondUse || n.policy == All && u.missed.Load() {
				for _, shard := range x.shards {
					g.used(laneID{x.ns, shard}, x.keys)
				}
			}
		}
	}
}

// used offers those of consecutive blocks that the source has. The parent of the first is not known:
// the record's header tells, when it is read.
func (g *gatherer) used(id laneID, found []connector.Key) {
	g.id = id
	var parent connector.Key
	for len(found) > 0 {
		part := found[:min(len(found), gatherRecords)]
		found = found[len(part):]
		there := make([]bool, len(part))
		g.u.source.Present(id.ns, id.shard, part, there)
		for i, k := range part {
			if there[i] {
				g.items = append(g.items, item{key: k, parent: parent})
			}
			parent = k
		}
		if len(g.items) > 0 {
			g.offer()
			g.items = g.items[:0]
		}
	}
}
