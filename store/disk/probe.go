package disk

import (
	"context"
	"fmt"
	mathrand "math/rand/v2"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/index"
)

// Probe reads and verifies one resident record into memory of its own, in the queue like
// any other, so that [Store.Speed] is of now though no load asks for anything. It
// returns [store.ErrGone] if there is no such record, and the errors of [Store.Read].
func (s *Store) Probe(ctx context.Context) error {
	id, bytes, ok := s.anyRecord()
	if !ok {
		return fmt.Errorf("probe: %w", store.ErrGone)
	}
	op := &store.ReadOp{Record: store.Record{ID: id}, Payload: store.AlignedBuffer(bytes)}
	s.reads.Read(ctx, []*store.ReadOp{op}, func(*store.ReadOp) {}, true)
	if op.Err != nil {
		return fmt.Errorf("probe: %w", op.Err)
	}
	return nil
}

// anyRecord finds a record, beginning at a random slot of a random segment: a disk may
// keep what it is asked for again and again in its cache.
func (s *Store) anyRecord() (id store.RecordID, bytes int, ok bool) {
	segments := s.space.InUse()
	mathrand.Shuffle(len(segments), func(i, j int) { segments[i], segments[j] = segments[j], segments[i] })
	for _, g := range segments {
		first := mathrand.Uint32N(max(1, g.Slots))
		for i := range g.Slots {
			ref := g.Base + index.Ref((first+i)%g.Slots)
			if s.space.At(ref) != g {
				break // given up meanwhile
			}
			in, found, ok := s.table.PinSlot(ref)
			if !ok {
				continue
			}
			s.table.Unpin(ref)
			return s.recordID(in), int(found.Bytes), true
		}
	}
	return id, 0, false
}
