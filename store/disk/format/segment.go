// Package format encodes what the store puts on disk beside records: the headers of segments and
// the FORMAT file. All integers are little-endian. The document docs/on-disk-format.md describes
// the same bytes.
package format

import (
	"encoding/binary"
	"fmt"

	"github.com/kvconn/kvconn/store/record"
)

const segmentMagic = "KVCNSEG1"

// Segment is the header at the start of a segment file. Slot i begins at
// record.HeaderBytes + i*SlotBytes.
type Segment struct {
	Store record.StoreID
	ID    uint32
	// Slots is the number of slots, SlotBytes the size of each: a record header and the
	// payload padded to a multiple of [record.HeaderBytes].
	Slots     uint32
	SlotBytes int64
	// Needs are the features that a program must know to use the segment.
	Needs record.Needs
}

const (
	offSegVersion   = 8
	offSegStore     = 16
	offSegID        = 32
	offSegSlots     = 36
	offSegSlotBytes = 40
	offSegNeeds     = 48 // from format 2 on
)

// Encode writes the header into b, which is [record.HeaderBytes] long.
func (s *Segment) Encode(b []byte) {
	b = b[:record.HeaderBytes]
	clear(b)
	copy(b, segmentMagic)
	le := binary.LittleEndian
	le.PutUint16(b[offSegVersion:], record.Version)
	copy(b[offSegStore:], s.Store[:])
	le.PutUint32(b[offSegID:], s.ID)
	le.PutUint32(b[offSegSlots:], s.Slots)
	le.PutUint64(b[offSegSlotBytes:], uint64(s.SlotBytes))
	le.PutUint32(b[offSegNeeds:], uint32(s.Needs))
	record.PutSum(b)
}

// Decode reads and verifies the header in b, which is [record.HeaderBytes] long.
func (s *Segment) Decode(b []byte) error {
	version, err := record.Verify(b, segmentMagic)
	if err != nil {
		return err
	}
	le := binary.LittleEndian
	copy(s.Store[:], b[offSegStore:])
	s.ID = le.Uint32(b[offSegID:])
	s.Slots = le.Uint32(b[offSegSlots:])
	s.SlotBytes = int64(le.Uint64(b[offSegSlotBytes:]))
	s.Needs = 0
	if version > record.VersionFirst {
		s.Needs = record.Needs(le.Uint32(b[offSegNeeds:]))
	}
	if err := s.Needs.Check(0); err != nil {
		return err
	}
	if s.Slots == 0 || s.SlotBytes < 2*record.HeaderBytes || s.SlotBytes%record.HeaderBytes != 0 || s.SlotBytes > MaxSlotBytes {
		return fmt.Errorf("%w: %d slots of %d bytes", record.ErrBad, s.Slots, s.SlotBytes)
	}
	return nil
}

// MaxSlotBytes bounds a slot: the largest payload and its header.
const MaxSlotBytes = 64<<20 + record.HeaderBytes

// FileBytes is the size of the segment's file.
func (s *Segment) FileBytes() int64 { return record.HeaderBytes + int64(s.Slots)*s.SlotBytes }

// Offset is where slot i begins.
func (s *Segment) Offset(i uint32) int64 { return record.HeaderBytes + int64(i)*s.SlotBytes }
