// Package chains finds the records of a prompt in the index, and those of what continues it.
package chains

import (
	"context"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store/disk/index"
)

// Record is a record that was found.
type Record struct {
	ID    index.ID
	Ref   index.Ref
	Seq   uint64
	Bytes uint32
	// Tick is that of the last use, Depth the blocks before it; only [All] sets them.
	Tick  uint32
	Depth uint16
}

// Prompt names the blocks of a prompt.
type Prompt struct {
	Namespace uint16
	Shards    []connector.Shard
	// Keys are those of consecutive blocks, the first of the prompt first.
	Keys []connector.Key
	// UpTo is the last sequence number that counts.
	UpTo uint64
}

// Blocks returns the records of the prompt's own blocks, with gaps or without.
func Blocks(ctx context.Context, t *index.Table, p *Prompt) (found []Record, err error) {
	for _, shard := range p.Shards {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		for _, key := range p.Keys {
			id := index.ID{Namespace: p.Namespace, Shard: shard, Key: key}
			if f, ok := t.Get(id, false); ok && f.Seq <= p.UpTo {
				found = append(found, Record{ID: id, Ref: f.Ref, Seq: f.Seq, Bytes: f.Bytes})
			}
		}
	}
	return found, nil
}

// All returns the records of a namespace.
func All(ctx context.Context, t *index.Table, p *Prompt) (found []Record, err error) {
	w := walk{limit: int(t.Limit())}
	err = w.each(ctx, t, p, func(in *index.Insertion) {
		found = append(found, Record{ID: in.ID, Ref: in.Ref, Seq: in.Seq, Bytes: in.Bytes, Tick: in.Tick, Depth: in.Depth})
	})
	return found, err
}

// Continuations returns the records whose chains go on from the prompt's last block: what the tokens after it were
// computed from. It looks at every record of the index. A record whose chain has a gap after that block is not found.
func Continuations(ctx context.Context, t *index.Table, p *Prompt, blocks []Record) (found []Record, err error) {
	last := p.Keys[len(p.Keys)-1]
	limit := int(t.Limit())
	w := walk{limit: limit, parents: make([]index.Ref, limit), labels: make([]label, limit)}
	roots := 0
	for i := range blocks {
		if r := &blocks[i]; r.ID.Key == last && int(r.Ref) < len(w.labels) {
			w.labels[r.Ref] = root
			roots++
		}
	}
	if roots == 0 {
		return nil, nil
	}
	for i := range w.parents {
		w.parents[i] = index.NoRef
	}
	if err := w.each(ctx, t, p, func(in *index.Insertion) { w.parents[in.Ref] = in.ParentRef }); err != nil {
		return nil, err
	}
	err = w.each(ctx, t, p, func(in *index.Insertion) {
		// The slot may have another record by now: one with another parent is none of those.
		if w.labels[in.Ref] != root && w.parents[in.Ref] == in.ParentRef && w.follows(in.Ref) {
			found = append(found, Record{ID: in.ID, Ref: in.Ref, Seq: in.Seq, Bytes: in.Bytes})
		}
	})
	return found, err
}

// label is what is known of a slot's record.
type label uint8

const (
	unknown label = iota
	root          // the prompt's last block
	inside        // comes after it
	outside
)

// walk goes up from records to their ancestors, over each record once.
type walk struct {
	limit   int // slots that are looked at
	parents []index.Ref
	labels  []label
	path    []index.Ref
	scratch []index.Insertion
}

// run is how many slots are looked at between two looks at a context.
const run = 1 << 14

// each calls f for the records of the prompt's namespace that count.
func (w *walk) each(ctx context.Context, t *index.Table, p *Prompt, f func(*index.Insertion)) error {
	for from := 0; from < w.limit; from += run {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		// Slots may have been given up meanwhile, with the end of the table.
		n := min(run, w.limit-from, max(0, int(t.Limit())-from))
		w.scratch = t.Describe(index.Range{Base: index.Ref(from), Slots: uint32(n)}, w.scratch[:0])
		for i := range w.scratch {
			if in := &w.scratch[i]; in.ID.Namespace == p.Namespace && in.Seq <= p.UpTo {
				f(in)
			}
		}
	}
	return nil
}

// follows reports whether the record of a slot comes after a root.
func (w *walk) follows(ref index.Ref) bool {
	w.path = w.path[:0]
	at := ref
	for at != index.NoRef && int(at) < len(w.labels) && w.labels[at] == unknown {
		w.labels[at] = outside // also ends a circle, which there is none of while slots keep their records
		w.path = append(w.path, at)
		at = w.parents[at]
	}
	if at == index.NoRef || int(at) >= len(w.labels) || w.labels[at] == outside {
		return false
	}
	for _, r := range w.path {
		w.labels[r] = inside
	}
	return true
}
