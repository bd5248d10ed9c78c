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
}

const (
	offSegStore     = 16
	offSegID        = 32
	offSegSlots     = 36
	offSegSlotBytes = 40
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
	seal(b)
}

// Decode reads and verifies the header in b, which is HeaderBytes long.
func (s *Segment) Decode(b []byte) error {
	if err := open(b, segmentMagic); err != nil {
		return err
	}
	le := binary.LittleEndian
	copy(s.Store[:], b[offSegStore:])
	s.ID = le.Uint32(b[offSegID:])
	s.Slots = le.Uint32(b[offSegSlots:])
	s.SlotBytes = int64(le.Uint64(b[offSegSlotBytes:]))
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
