// Package format encodes what the store puts on disk: the headers of records and
// segments. All integers are little-endian. The document docs/on-disk-format.md
// describes the same bytes.
package format

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/zeebo/xxh3"

	"github.com/kvconn/kvconn/connector"
)

// HeaderBytes is the size of every header: one unit of direct I/O.
const HeaderBytes = 4096

// Version is the version of the on-disk format.
const Version = 1

// StoreID is the random identity of a store. Every header carries it, so that blocks
// left behind by another store on the same device are never taken for records.
type StoreID [16]byte

// Errors of decoding. ErrBlank says that a header was never written (all zero where the
// magic should be); ErrBad that it was damaged or is something else.
var (
	ErrBlank = errors.New("header is blank")
	ErrBad   = errors.New("header is bad")
)

const (
	recordMagic  = "KVCNREC1"
	segmentMagic = "KVCNSEG1"
)

// Record is the header in front of a record's payload.
type Record struct {
	Store     StoreID
	SegmentID uint32
	Slot      uint32
	// Seq is unique among all records that the store ever wrote, and grows.
	Seq       uint64
	Namespace connector.NamespaceDigest
	Shard     connector.Shard
	Depth     uint16 // blocks before this one in its chain, saturating
	Key       connector.Key
	Parent    connector.Key
	Proof     connector.Proof
	// PayloadBytes is the payload's length, PayloadSum its XXH3-64.
	PayloadBytes uint32
	PayloadSum   uint64
}

// Offsets within a record header.
const (
	offMagic     = 0
	offVersion   = 8
	offShard     = 10
	offDepth     = 12
	offStore     = 16
	offSegment   = 32
	offSlot      = 36
	offSeq       = 40
	offNamespace = 48
	offKey       = 80
	offParent    = 96
	offProof     = 112
	offBytes     = 144
	offSum       = 152
	offHeaderSum = HeaderBytes - 8
)

// Encode writes the header into b, which is HeaderBytes long.
func (r *Record) Encode(b []byte) {
	b = b[:HeaderBytes]
	clear(b)
	copy(b[offMagic:], recordMagic)
	le := binary.LittleEndian
	le.PutUint16(b[offVersion:], Version)
	le.PutUint16(b[offShard:], uint16(r.Shard))
	le.PutUint16(b[offDepth:], r.Depth)
	copy(b[offStore:], r.Store[:])
	le.PutUint32(b[offSegment:], r.SegmentID)
	le.PutUint32(b[offSlot:], r.Slot)
	le.PutUint64(b[offSeq:], r.Seq)
	copy(b[offNamespace:], r.Namespace[:])
	copy(b[offKey:], r.Key[:])
	copy(b[offParent:], r.Parent[:])
	copy(b[offProof:], r.Proof[:])
	le.PutUint32(b[offBytes:], r.PayloadBytes)
	le.PutUint64(b[offSum:], r.PayloadSum)
	seal(b)
}

// Decode reads the header in b, which is HeaderBytes long, and verifies its checksum.
func (r *Record) Decode(b []byte) error {
	if err := open(b, recordMagic); err != nil {
		return err
	}
	le := binary.LittleEndian
	r.Shard = connector.Shard(le.Uint16(b[offShard:]))
	r.Depth = le.Uint16(b[offDepth:])
	copy(r.Store[:], b[offStore:])
	r.SegmentID = le.Uint32(b[offSegment:])
	r.Slot = le.Uint32(b[offSlot:])
	r.Seq = le.Uint64(b[offSeq:])
	copy(r.Namespace[:], b[offNamespace:])
	copy(r.Key[:], b[offKey:])
	copy(r.Parent[:], b[offParent:])
	copy(r.Proof[:], b[offProof:])
	r.PayloadBytes = le.Uint32(b[offBytes:])
	r.PayloadSum = le.Uint64(b[offSum:])
	return nil
}

// seal stamps the checksum of everything before it into the last bytes of a header.
func seal(b []byte) {
	binary.LittleEndian.PutUint64(b[offHeaderSum:], xxh3.Hash(b[:offHeaderSum]))
}

// open verifies magic, checksum and version of a header.
func open(b []byte, magic string) error {
	if len(b) != HeaderBytes {
		return fmt.Errorf("%w: %d bytes", ErrBad, len(b))
	}
	if string(b[offMagic:offMagic+len(magic)]) != magic {
		if [8]byte(b) == [8]byte{} {
			return ErrBlank
		}
		return fmt.Errorf("%w: magic", ErrBad)
	}
	if binary.LittleEndian.Uint64(b[offHeaderSum:]) != xxh3.Hash(b[:offHeaderSum]) {
		return fmt.Errorf("%w: checksum", ErrBad)
	}
	if v := binary.LittleEndian.Uint16(b[offVersion:]); v != Version {
		return fmt.Errorf("%w: version %d", ErrBad, v)
	}
	return nil
}

// PayloadSum is the checksum of a payload.
func PayloadSum(payload []byte) uint64 { return xxh3.Hash(payload) }
