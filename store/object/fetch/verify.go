package fetch

import (
	"errors"
	"fmt"
	"slices"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/record"
	"github.com/kvconn/kvconn/store/seal"
)

const headerBytes = record.HeaderBytes

// errSlot is a record that stores more than its slot has room for.
var errSlot = errors.New("length differs from the list")

// open verifies the header of a record. The error wraps [store.ErrGone] if the record is intact and not for
// this op or this node; others mean that it is bad.
func (f *Fetcher) open(t *task, s *scratch) error {
	place := uint32(t.place.Ordinal)
	want := record.Want{
		Store: record.StoreID(t.place.Object), Slot: place, Seq: uint64(place) + 1, ID: t.op.ID, PayloadBytes: len(t.op.Payload),
	}
	h := &s.opened
	err := f.opener.Begin(h, s.header[:], &want)
	switch {
	case errors.Is(err, store.ErrUnreadable):
		if errors.Is(err, record.ErrUnsealed) || errors.Is(err, record.ErrKey) {
			f.counts.unsealed.Add(1)
		}
		return fmt.Errorf("record %v: %w", t.op.ID.Key, err)
	case err != nil:
		return err
	}
	if err := h.CheckPrefix(&t.op.Record); err != nil {
		return err
	}
	if int64(headerBytes+h.Stored()) > t.place.Bytes {
		return errSlot
	}
	return nil
}

// into is where the stored bytes of a record go: into the op's buffer, if they are the payload.
func (s *scratch) into(payload []byte) []byte {
	if s.opened.Needs == 0 {
		return payload
	}
	n := s.opened.Stored()
	s.stored = slices.Grow(s.stored[:0], n+seal.TagBytes)
	s.stored = s.stored[:cap(s.stored)]
	return s.stored[:n]
}

// verify makes the payload of the stored bytes, and verifies it.
func (f *Fetcher) verify(t *task, s *scratch, stored []byte) error {
	return f.opener.Open(&s.opened, s.header[:], t.op.Payload, stored)
}
