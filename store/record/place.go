package record

import (
	"errors"
	"fmt"

	"github.com/kvconn/kvconn/store"
)

// Want is what a header must say: which record it is of, and where it lies.
type Want struct {
	// Store, SegmentID and Slot are the place, Seq the write of it.
	Store     StoreID
	SegmentID uint32
	Slot      uint32
	Seq       uint64
	ID        store.RecordID
	// PayloadBytes is the length of the payload before it was compressed.
	PayloadBytes int
}

// Reasons for which a header is not the one that is wanted.
var (
	errOtherStore  = errors.New("belongs to another store")
	errOtherSlot   = errors.New("belongs to another slot")
	errOtherRecord = errors.New("slot holds another record than the index says")
	errOtherWrite  = errors.New("slot holds another generation")
	errLength      = errors.New("length differs from the index")
)

// Check returns why h is not the header that is wanted, nil if it is.
func (h *Header) Check(w *Want) error {
	switch {
	case h.Store != w.Store:
		return errOtherStore
	case h.SegmentID != w.SegmentID || h.Slot != w.Slot:
		return errOtherSlot
	case h.Key != w.ID.Key || h.Shard != w.ID.Shard || h.Namespace != w.ID.Namespace:
		return errOtherRecord
	case h.Seq != w.Seq:
		return errOtherWrite
	case int(h.PayloadBytes) != w.PayloadBytes:
		return errLength
	}
	return nil
}

// CheckPrefix returns [store.ErrMismatch] if h is of another prefix than r. It sets the parent of a record
// that is wanted with any.
func (h *Header) CheckPrefix(r *store.Record) error {
	switch {
	case h.Proof != r.Proof:
		return fmt.Errorf("record %v: proof: %w", r.ID.Key, store.ErrMismatch)
	case r.AnyParent:
		r.Parent = h.Parent
	case h.Parent != r.Parent:
		return fmt.Errorf("record %v: parent %v, want %v: %w", r.ID.Key, h.Parent, r.Parent, store.ErrMismatch)
	}
	return nil
}
