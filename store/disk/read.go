package disk

import (
	"context"
	"errors"
	"fmt"
	mathrand "math/rand/v2"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/fsio"
	"github.com/kvconn/kvconn/store/disk/index"
	"github.com/kvconn/kvconn/store/disk/journal"
	"github.com/kvconn/kvconn/store/disk/namespace"
	"github.com/kvconn/kvconn/store/disk/readio"
	"github.com/kvconn/kvconn/store/record"
)

// Read implements [store.Reader]. The time for one record is [Options].ReadTimeout.
func (s *Store) Read(ctx context.Context, ops []*store.ReadOp, done func(*store.ReadOp)) {
	s.reads.Read(ctx, ops, done, false)
}

// Export implements [store.Exporter].
func (s *Store) Export(ctx context.Context, ops []*store.ReadOp, done func(*store.ReadOp)) {
	s.reads.Read(ctx, ops, done, true)
}

// Speed returns how fast reads are at the moment. It starts from the calibration if
// there is one, and sinks while a disk owes an answer.
func (s *Store) Speed() store.Speed { return s.reads.Speed() }

// records are the store's records as [readio.Reader] sees them.
type records struct{ s *Store }

// Locate implements readio.Records.
func (r records) Locate(op *readio.Read) error {
	s := r.s
	if err := store.CheckBuffer(op.Payload); err != nil {
		return err
	}
	id, known := s.resolve(&op.ID)
	if !known {
		return fmt.Errorf("namespace %v: %w", op.ID.Namespace, namespace.ErrNotOpen)
	}
	f, ok := s.table.Get(id, true)
	if !ok {
		return store.ErrGone
	}
	if int(f.Bytes) != len(op.Payload) {
		s.table.Unpin(f.Ref)
		return fmt.Errorf("read of %d bytes of a record of %d: %w", len(op.Payload), f.Bytes, store.ErrInvalid)
	}
	g := s.space.At(f.Ref)
	at := g.Location(f.Ref)
	op.Place = readio.Place{Ref: f.Ref, Seq: f.Seq, At: at, File: g.File, Offset: g.Offset(at.Slot)}
	return nil
}

// Unpin implements readio.Records.
func (r records) Unpin(ref index.Ref) { r.s.table.Unpin(ref) }

// Overdue implements readio.Records.
func (r records) Overdue(at readio.Place, err error) {
	if r.s.readFailed(at.Ref, at.Seq, err) {
		r.s.discard(unusable{removal{ref: at.Ref, seq: at.Seq}})
	}
}

// Verify implements readio.Records. A record that is to be dropped is found no more when it
// returns.
func (r records) Verify(op *readio.Read) {
	s := r.s
	if op.IOErr != nil {
		op.Err = fmt.Errorf("read record %v: %w: %w", op.ID.Key, store.ErrIO, op.IOErr)
	} else {
		op.Err = s.verify(op)
	}
	switch {
	case op.Err == nil:
		s.doubts.Good(op.Ref)
		return
	case errors.Is(op.Err, store.ErrIO), errors.Is(op.Err, store.ErrMismatch),
		errors.Is(op.Err, record.ErrKey), errors.Is(op.Err, record.ErrUnsealed): // the journal says otherwise
		if !s.readFailed(op.Ref, op.Seq, op.Err) {
			return
		}
	case errors.Is(op.Err, store.ErrCorrupt):
		s.opts.Logger.Warn("store: dropped a corrupt record", "err", op.Err,
			"remedy", "none for one; check the disk if there are more")
	default:
		return
	}
	s.discard(unusable{removal{op.Ref, op.Seq, fsio.OfMedium(op.IOErr)}})
}

// verify compares header and payload with the index and with what the caller expects.
func (s *Store) verify(op *readio.Read) error {
	var h record.Header
	stored := op.Stored
	if stored == nil {
		stored = op.Payload
	}
	want := s.want(op.At, &op.ID, op.Seq, len(op.Payload))
	err := s.opener.Begin(&h, op.Header.Bytes, &want)
	if err == nil {
		err = s.opener.Open(&h, op.Header.Bytes, op.Payload, stored[:h.Stored()])
	}
	switch {
	case errors.Is(err, store.ErrUnreadable):
		return fmt.Errorf("record %v: %w", op.ID.Key, err)
	case err != nil:
		return fmt.Errorf("record %v in slot %d of segment %d: %w: %w", op.ID.Key, op.At.Slot, op.At.Segment, err, store.ErrCorrupt)
	case op.Probe:
		op.Parent, op.Proof = h.Parent, h.Proof
	default:
		if err := h.CheckPrefix(&op.Record); err != nil {
			return err
		}
	}
	op.Scope, op.From = h.Scope, s.Name()
	return nil
}

// want is what the header of a slot says if the index is right.
func (s *Store) want(at journal.Location, id *store.RecordID, seq uint64, bytes int) record.Want {
	return record.Want{Store: s.state.ID, SegmentID: at.Segment, Slot: at.Slot, Seq: seq, ID: *id, PayloadBytes: bytes}
}

// Count implements readio.Records.
func (r records) Count(op *store.ReadOp) {
	c := &r.s.count
	switch err := op.Err; {
	case err == nil:
		c.Reads.Add(1)
		c.ReadBytes.Add(uint64(len(op.Payload)))
	case errors.Is(err, store.ErrCorrupt):
		c.Corrupt.Add(1)
	case errors.Is(err, store.ErrMismatch):
		c.Mismatched.Add(1)
	case errors.Is(err, store.ErrGone):
		c.Gone.Add(1)
	case errors.Is(err, context.Canceled): // nobody wants it any more
	case errors.Is(err, store.ErrTimeout):
		c.ReadTimeouts.Add(1)
	case errors.Is(err, store.ErrIO):
		c.ReadErrors.Add(1)
	}
}

// readFailed notes that a record could not be read or is of another prefix. It reports
// whether the record is to be dropped.
func (s *Store) readFailed(ref index.Ref, seq uint64, err error) (drop bool) {
	if !s.doubts.Bad(ref, seq, err) {
		return false
	}
	s.count.Unreadable.Add(1)
	s.opts.Logger.Warn("store: dropped a record that could not be read twice", "err", err,
		"remedy", "look for I/O errors in the kernel's log; if it goes on, replace the disk")
	return true
}

// Probe implements [store.Tier]. The read waits in the queue like any other.
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
