package format

import (
	"encoding/binary"
	"fmt"
)

// Segment is the header at the start of a segment file. Slot i begins at
// HeaderBytes + i*SlotBytes.
type Segment struct {
	Store StoreID
	ID    uint32
	// Slots is the number of slots, SlotBytes the size of each: a record header and the
	// payload padded to a multiple of HeaderBytes.
	Slots     uint32
	SlotBytes int64
	// Needs are the features that a program must know to use the segment.
	Needs Needs
}

const (
	offSegStore     = 16
	offSegID        = 32
	offSegSlots     = 36
	offSegSlotBytes = 40
	offSegNeeds     = 48 // from format 2 on
)

// Encode writes the header into b, which is HeaderBytes long.
func (s *Segment) Encode(b []byte) {
	b = b[:HeaderBytes]
	clear(b)
	copy(b, segmentMagic)
	le := binary.LittleEndian
	le.PutUint16(b[offVersion:], Version)
	copy(b[offSegStore:], s.Store[:])
	le.PutUint32(b[offSegID:], s.ID)
	le.PutUint32(b[offSegSlots:], s.Slots)
	le.PutUint64(b[offSegSlotBytes:], uint64(s.SlotBytes))
	le.PutUint32(b[offSegNeeds:], uint32(s.Needs))
	seal(b)
}

// Decode reads and verifies the header in b, which is HeaderBytes long.
func (s *Segment) Decode(b []byte) error {
	version, err := open(b, segmentMagic)
	if err != nil {
		return err
	}
	le := binary.LittleEndian
	copy(s.Store[:], b[offSegStore:])
	s.ID = le.Uint32(b[offSegID:])
	s.Slots = le.Uint32(b[offSegSlots:])
	s.SlotBytes = int64(le.Uint64(b[offSegSlotBytes:]))
	s.Needs = 0
	if version > versionFirst {
		s.Needs = Needs(le.Uint32(b[offSegNeeds:]))
	}
	if err := s.Needs.check(); err != nil {
		return err
	}
	if s.Slots == 0 || s.SlotBytes < 2*HeaderBytes || s.SlotBytes%HeaderBytes != 0 || s.SlotBytes > MaxSlotBytes {
		return fmt.Errorf("%w: %d slots of %d bytes", ErrBad, s.Slots, s.SlotBytes)
	}
	return nil
}

// MaxSlotBytes bounds a slot: the largest payload and its header.
const MaxSlotBytes = 64<<20 + HeaderBytes

// FileBytes is the size of the segment's file.
func (s *Segment) FileBytes() int64 { return HeaderBytes + int64(s.Slots)*s.SlotBytes }

// Offset is where slot i begins.
func (s *Segment) Offset(i uint32) int64 { return HeaderBytes + int64(i)*s.SlotBytes }
