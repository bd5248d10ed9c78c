package leader

import (
	"slices"

	"github.com/kvconn/kvconn/connector"
)

// Prefetch reads records into host memory before their load. It may be called from several
// goroutines, and must not call the leader.
type Prefetch interface {
	// Prefetch starts to read the records of consecutive blocks, of several shards that a load needs
	// together, and returns at once. It may leave out any of them. shards and blocks stay as they are,
	// and the slots of blocks mean nothing.
	Prefetch(ns connector.NamespaceDigest, shards []connector.Shard, parent connector.Key, blocks []connector.PlanBlock)
}

// prefetch has the offered blocks [first, boundary) of a request read, once.
func (l *Leader) prefetch(r *request, first, boundary int) {
	r.ahead = boundary
	from := l.missing(r, first, boundary)
	if from == boundary {
		return
	}
	l.hash.proofs(r, boundary)
	blocks := make([]connector.PlanBlock, boundary-from)
	for i := range blocks {
		blocks[i] = r.planBlock(from+i, 0)
	}
	if len(l.prefix) > 0 {
		l.opts.Prefetch.Prefetch(l.opts.Namespace, l.prefix, r.parent(from), blocks)
	}
	for i := range l.windows.Searches {
		w := l.windows.Searches[i].Group
		begin := max(from, w.FirstBlock(boundary*l.bs, l.bs))
		l.opts.Prefetch.Prefetch(l.opts.Namespace, w.Shards, r.parent(begin), blocks[begin-from:])
	}
}

// missing is the first of r's blocks [first, boundary) that the fastest level does not have, or
// boundary. One shard stands for all, since ranks load and evict alike.
func (l *Leader) missing(r *request, first, boundary int) int {
	if len(l.opts.Levels) == 0 {
		return first
	}
	shards := l.prefix
	if len(shards) == 0 {
		shards = l.groups[0].Shards
	}
	n := boundary - first
	l.at = slices.Grow(l.at[:0], n)[:n]
	clear(l.at)
	l.opts.Levels[0].Present(l.opts.Namespace, l.oneHere(shards), r.keys[first:boundary], l.at)
	if i := slices.Index(l.at, false); i >= 0 {
		return first + i
	}
	return boundary
}
