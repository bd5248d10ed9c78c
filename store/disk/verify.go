package disk

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/format"
)

// verifier verifies what the readers completed.
func (s *Store) verifier() {
	defer s.verifiers.Done()
	for {
		op, ok := s.verifying.pop()
		if !ok {
			return
		}
		s.completeRead(op)
	}
}

// verifierCount leaves processors to the readers: a checksum takes a fifth of a
// millisecond in which they could not ask for more. One verifier keeps up with several
// times the bandwidth of a disk.
func verifierCount() int {
	const most = 16
	return min(max(1, runtime.GOMAXPROCS(0)/2), most)
}

// completeRead verifies an op whose bytes have arrived and reports it.
func (s *Store) completeRead(op *read) {
	if err := op.ioErr; err != nil {
		op.Err = fmt.Errorf("read record %v: %w: %w", op.ID.Key, store.ErrIO, err)
	} else {
		op.Err = s.verify(op)
	}
	at := &op.found
	switch {
	case op.Err == nil:
		s.doubts.good(at.ref)
	case errors.Is(op.Err, store.ErrIO), errors.Is(op.Err, store.ErrMismatch):
		if s.readFailed(at.ref, at.seq, op.Err) {
			s.commits.push(commit{kind: commitDrop, read: op})
			return
		}
	case errors.Is(op.Err, store.ErrCorrupt):
		// The committer takes it out of the index and then reports it.
		s.opts.Logger.Warn("store: dropped a corrupt record", "err", op.Err,
			"remedy", "none for one; check the disk if there are more")
		s.commits.push(commit{kind: commitDrop, read: op})
		return
	}
	s.finishRead(op)
}

// verify compares header and payload with the index and with what the caller expects.
func (s *Store) verify(op *read) error {
	var h format.Record
	at := op.found.g.location(op.found.ref)
	bad := func(what string) error {
		return fmt.Errorf("record %v in slot %d of segment %d: %s: %w", op.ID.Key, at.Slot, at.Segment, what, store.ErrCorrupt)
	}
	switch err := h.Decode(op.header.bytes); {
	case errors.Is(err, format.ErrNewer):
		return fmt.Errorf("record %v: %w: %w", op.ID.Key, store.ErrUnreadable, err)
	case err != nil:
		return bad(err.Error())
	}
	switch {
	case h.Store != s.id:
		return bad("belongs to another store")
	case h.SegmentID != at.Segment || h.Slot != at.Slot:
		return bad("belongs to another slot")
	case h.Key != op.ID.Key || h.Shard != op.ID.Shard || h.Namespace != op.ID.Namespace:
		return bad("slot holds another record")
	case h.Seq != op.found.seq:
		return bad("slot holds another generation")
	case int(h.PayloadBytes) != len(op.Payload):
		return bad("length differs from the index")
	case h.PayloadSum != format.PayloadSum(op.Payload):
		return bad("payload checksum")
	case op.probe:
		return nil
	case h.Proof != op.Proof:
		return fmt.Errorf("record %v: proof: %w", op.ID.Key, store.ErrMismatch)
	case h.Parent != op.Parent:
		return fmt.Errorf("record %v: parent %v, want %v: %w", op.ID.Key, h.Parent, op.Parent, store.ErrMismatch)
	}
	op.Scope, op.From = h.Scope, s.Name()
	return nil
}
