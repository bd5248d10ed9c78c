package fetch

import (
	"errors"
	"fmt"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/record"
)

const headerBytes = record.HeaderBytes

// Reasons for which a record is bad, beside those of its header.
var (
	errOtherPlace  = errors.New("belongs to another place")
	errOtherRecord = errors.New("is another record than the list says")
	errLength      = errors.New("length differs from the list")
	errPayloadSum  = errors.New("payload checksum")
)

// opening is a record whose header was verified.
type opening struct {
	header record.Header
	// stored is how many bytes follow the header.
	stored int
}

// open verifies the header of a record. The error wraps [store.ErrGone] if the record is intact and not
// for this op or this program; others mean that it is bad.
func (f *Fetcher) open(t *task, s *scratch) (o opening, err error) {
	h := &o.header
	err = h.Decode(s.header[:])
	switch op := t.op; {
	case errors.Is(err, record.ErrNewer):
		return o, fmt.Errorf("record %v: %w: %w", op.ID.Key, store.ErrUnreadable, err)
	case err != nil:
		return o, err
	case h.Store != record.StoreID(t.place.Object) || h.SegmentID != 0 || h.Slot != uint32(t.place.Ordinal) || h.Seq != uint64(t.place.Ordinal)+1:
		return o, errOtherPlace
	case h.Key != op.ID.Key || h.Shard != op.ID.Shard || h.Namespace != op.ID.Namespace:
		return o, errOtherRecord
	case int(h.PayloadBytes) != len(op.Payload):
		return o, errLength
	case h.Proof != op.Proof:
		return o, fmt.Errorf("record %v: proof: %w", op.ID.Key, store.ErrMismatch)
	case h.Parent != op.Parent:
		return o, fmt.Errorf("record %v: parent %v, want %v: %w", op.ID.Key, h.Parent, op.Parent, store.ErrMismatch)
	}
	o.stored = len(t.op.Payload)
	if int64(headerBytes+o.stored) > t.place.Bytes {
		return o, errLength
	}
	return o, nil
}

// into is where the stored bytes of a record go: straight into the op's buffer where that can be.
func (o *opening) into(t *task, s *scratch) []byte { return t.op.Payload }

// verify makes the payload of the stored bytes, and verifies it.
func (f *Fetcher) verify(o *opening, t *task, stored []byte) error {
	if o.header.PayloadSum != record.PayloadSum(stored) {
		return errPayloadSum
	}
	return nil
}
