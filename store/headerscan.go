package store

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store/internal/disk"
	"github.com/kvconn/kvconn/store/internal/format"
	"github.com/kvconn/kvconn/store/internal/index"
	"github.com/kvconn/kvconn/store/internal/journal"
)

// recoverFromHeaders rebuilds index and journal from what the segments say of themselves.
// Bad headers are passed over.
func (s *Store) recoverFromHeaders(ctx context.Context, files []string) error {
	heads := make(map[uint32]format.Segment)
	for _, path := range files {
		id, _ := segmentIDOf(filepath.Base(path))
		s.space.nextID = max(s.space.nextID, id+1)
		head, err := s.readSegmentHead(path, id)
		if err != nil {
			s.warn(fmt.Errorf("segment file %s is not used: %w", path, err))
			if err := s.opts.fs.Rename(path, path+".bad"); err != nil {
				return err
			}
			continue
		}
		heads[head.ID] = head
		if err := s.journal.PutSegment(journal.Segment{ID: head.ID, Slots: head.Slots, SlotBytes: head.SlotBytes}); err != nil {
			return err
		}
	}
	if err := s.openSegments(heads); err != nil {
		return err
	}
	h := &headerScan{s: s, l: newLoader(s), parents: make(map[index.Ref]connector.Key), kept: make(map[index.Ref]headerKept), buf: disk.AlignedBytes(format.HeaderBytes)}
	var err error
	for _, head := range sortedHeads(heads) {
		if err = h.scan(ctx, s.space.segments[head.ID]); err != nil {
			break
		}
	}
	h.l.finish()
	if err != nil {
		return err
	}
	for _, r := range h.l.lost {
		delete(h.parents, r.Ref)
	}
	return h.finish()
}

func (s *Store) readSegmentHead(path string, id uint32) (format.Segment, error) {
	var head format.Segment
	f, err := s.opts.fs.OpenFile(path, false, s.direct)
	if err != nil {
		return head, err
	}
	defer func() { _ = f.Close() }()
	b := disk.AlignedBytes(format.HeaderBytes)
	if err := f.ReadVec(b, nil, 0); err != nil {
		return head, err
	}
	if err = head.Decode(b); err == nil && head.Store == s.id && head.ID == id {
		return head, nil
	}
	if found, ok := s.guessSegment(f, b, id); ok {
		return found, nil
	}
	return head, fmt.Errorf("%w: neither the segment's header nor any of its records can be read", format.ErrBad)
}

// guessSegment finds the geometry of a segment whose header is damaged in the first intact
// header of a record: it says which slot it is in and how large the payload is.
func (s *Store) guessSegment(f disk.File, b []byte, id uint32) (format.Segment, bool) {
	size, err := f.Size()
	if err != nil {
		return format.Segment{}, false
	}
	for at := int64(format.HeaderBytes); at+format.HeaderBytes <= size; at += format.HeaderBytes {
		var r format.Record
		if f.ReadVec(b, nil, at) != nil || r.Decode(b) != nil || r.Store != s.id || r.SegmentID != id {
			continue
		}
		head := format.Segment{Store: s.id, ID: id, SlotBytes: slotBytes(int(r.PayloadBytes))}
		if head.Offset(r.Slot) != at {
			continue
		}
		head.Slots = uint32((size - format.HeaderBytes) / head.SlotBytes)
		return head, true
	}
	return format.Segment{}, false
}

// headerKept is what the journal keeps of a header and the index does not.
type headerKept struct {
	scope  connector.ScopeDigest
	scheme format.KeyScheme
	flags  uint16
}

// headerScan reads the header of every slot.
type headerScan struct {
	s       *Store
	l       *loader
	parents map[index.Ref]connector.Key
	kept    map[index.Ref]headerKept
	buf     []byte
	bad     int
}

func (h *headerScan) scan(ctx context.Context, g *segment) error {
	for slot := uint32(0); slot < g.Slots; slot++ {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := g.file.ReadVec(h.buf, nil, g.Offset(slot)); err != nil {
			h.bad++
			continue
		}
		var r format.Record
		switch err := r.Decode(h.buf); {
		case errors.Is(err, format.ErrBlank), errors.Is(err, format.ErrNewer):
		case err != nil || r.Store != h.s.id || r.SegmentID != g.ID || r.Slot != slot || r.Seq == 0 ||
			slotBytes(int(r.PayloadBytes)) != g.SlotBytes || r.PayloadBytes == 0:
			h.bad++
		default:
			if err := h.add(g, &r); err != nil {
				return err
			}
		}
	}
	return nil
}

func (h *headerScan) add(g *segment, r *format.Record) error {
	ns, err := h.s.namespaces.find(r.Namespace)
	if err != nil {
		return err
	}
	ref := g.base + index.Ref(r.Slot)
	h.parents[ref], h.kept[ref] = r.Parent, headerKept{r.Scope, r.KeyScheme, r.Flags}
	h.l.add(index.Loaded{
		ID: index.ID{Namespace: uint16(ns), Shard: r.Shard, Key: r.Key}, Ref: ref,
		Seq: r.Seq, Bytes: r.PayloadBytes, Parent: index.NoRef, Tick: uint32(r.Seq & (1<<30 - 1)),
	})
	return nil
}

// finish links chains and writes the new journal.
func (h *headerScan) finish() error {
	s := h.s
	for i, n := range s.namespaces.byID {
		_ = s.loadManifest(n) // one that is lost is written again when an engine brings it
		if err := s.journal.PutNamespace(journal.Namespace{ID: uint16(i), Digest: n.digest}); err != nil {
			return err
		}
		n.listed = true
	}
	s.table.Link(h.parents)
	s.table.Settle()
	batch := s.journal.NewBatch()
	for _, g := range s.space.segments {
		if err := h.rewrite(batch, g); err != nil {
			return err
		}
	}
	s.opens = s.seq.Load() >> opensShift
	if h.bad > 0 {
		s.warn(fmt.Errorf("%d slots held no intact record", h.bad))
	}
	s.warn(fmt.Errorf("journal was lost: index rebuilt from headers, %d records", s.table.Len()))
	return nil
}

func (h *headerScan) rewrite(batch *journal.Batch, g *segment) error {
	s := h.s
	for _, r := range s.table.Describe(g.slots()) {
		parentAt := journal.NoLocation
		if p := s.space.at(r.ParentRef); r.ParentRef != index.NoRef && p != nil {
			parentAt = p.location(r.ParentRef)
		}
		if s.namespaces.unnoted(RecordID{Namespace: NamespaceID(r.ID.Namespace), Shard: r.ID.Shard}) {
			s.namespaces.byID[r.ID.Namespace].sizes[r.ID.Shard] = int(r.Bytes)
			if err := batch.PutSize(r.ID.Namespace, r.ID.Shard, r.Bytes); err != nil {
				return err
			}
		}
		kept := h.kept[r.Ref]
		err := batch.PutRecord(&journal.Record{
			Location: g.location(r.Ref), Namespace: r.ID.Namespace, Shard: r.ID.Shard, Key: r.ID.Key,
			Parent: h.parents[r.Ref], ParentAt: parentAt, Depth: r.Depth, Tick: r.Tick, Bytes: r.Bytes, Seq: r.Seq,
			Scope: kept.scope, KeyScheme: kept.scheme, Flags: kept.flags,
		})
		if err != nil {
			return err
		}
	}
	return batch.Commit()
}
