// Package record encodes records as tiers store them: a header, which says what a record is, and
// its payload. All integers are little-endian. The document docs/on-disk-format.md describes the
// same bytes.
package record

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/zeebo/xxh3"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/object/codec"
	"github.com/kvconn/kvconn/store/seal"
)

// HeaderBytes is the size of every header: one unit of direct I/O.
const HeaderBytes = 4096

// Version is the version of headers that is written. Older ones are read.
const Version = 2

// VersionFirst is the version without scopes: a header ends with its payload's checksum.
const VersionFirst = 1

// StoreID is the random identity of a store, or of an object in a bucket. Every header carries it,
// so that blocks left behind by another store on the same device are never taken for records.
type StoreID [16]byte

// Errors of decoding. ErrBlank says that a header was never written (all zero where the
// magic should be); ErrBad that it was damaged or is something else; ErrNewer, which wraps
// [store.ErrUnreadable], that it is intact and needs a program that knows more than this one.
var (
	ErrBlank = errors.New("header is blank")
	ErrBad   = errors.New("header is bad")
	ErrNewer = fmt.Errorf("header needs a newer program: %w", store.ErrUnreadable)
)

// Needs are features that a program must know to read what follows a header. A later
// version of the program sets further bits; whoever does not know one of them must neither
// read the payload nor call it damaged. What can be passed over needs no bit: reserved
// bytes are not looked at.
type Needs uint32

// The needs of records. Where either is set, the checksum of the payload is that of what is stored.
const (
	NeedsDecryption Needs = 1 << 0 // the payload is sealed
	NeedsDecoding   Needs = 1 << 1 // the payload is compressed; before it is sealed

	known = NeedsDecryption | NeedsDecoding
)

// KeyScheme says how a record's key was made.
type KeyScheme uint8

// The key schemes. Records of format 1 do not say.
const (
	KeySchemeUnknown KeyScheme = iota
	KeySchemeTokens            // hashed from tokens
	KeySchemeEngine            // the engine's own hash
)

// KeySchemeOf is the number of a manifest's key scheme.
func KeySchemeOf(name string) KeyScheme {
	switch name {
	case connector.KeySchemeTokens:
		return KeySchemeTokens
	case connector.KeySchemeEngine:
		return KeySchemeEngine
	}
	return KeySchemeUnknown
}

// Cipher says how a payload is encrypted. Its fields are zero where it is not.
type Cipher struct {
	Algorithm uint8 // [seal.Algorithm]
	KeyID     uint32
	Nonce     [seal.NonceBytes]byte
	Tag       [seal.TagBytes]byte
}

const magic = "KVCNREC1"

// Header is the header before a record's payload.
type Header struct {
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
	// PayloadBytes is the payload's length, PayloadSum the XXH3-64 of what is stored of it.
	PayloadBytes uint32
	PayloadSum   uint64
	// Scope tells whose record it is; [connector.UnknownScope] in format 1.
	Scope     connector.ScopeDigest
	KeyScheme KeyScheme
	Flags     uint16 // none are defined
	Needs     Needs
	Cipher    Cipher
	// StoredBytes is the length of what is stored if Needs says that it is not the payload, else 0.
	StoredBytes uint32
	Codec       uint8 // [codec.Planes]
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

	// From format 2 on.
	offNeeds       = 160
	offScope       = 164
	offKeyScheme   = 180
	offAlgorithm   = 181
	offFlags       = 182
	offKeyID       = 184
	offNonce       = 188
	offTag         = 212
	offStoredBytes = 228
	offCodec       = 232

	offHeaderSum = HeaderBytes - 8
)

// Encode writes the header into b, which is HeaderBytes long.
func (h *Header) Encode(b []byte) {
	h.encode(b)
	PutSum(b)
}

// encode is Encode without the header's checksum.
func (h *Header) encode(b []byte) {
	b = b[:HeaderBytes]
	clear(b)
	copy(b[offMagic:], magic)
	le := binary.LittleEndian
	le.PutUint16(b[offVersion:], Version)
	le.PutUint16(b[offShard:], uint16(h.Shard))
	le.PutUint16(b[offDepth:], h.Depth)
	copy(b[offStore:], h.Store[:])
	le.PutUint32(b[offSegment:], h.SegmentID)
	le.PutUint32(b[offSlot:], h.Slot)
	le.PutUint64(b[offSeq:], h.Seq)
	copy(b[offNamespace:], h.Namespace[:])
	copy(b[offKey:], h.Key[:])
	copy(b[offParent:], h.Parent[:])
	copy(b[offProof:], h.Proof[:])
	le.PutUint32(b[offBytes:], h.PayloadBytes)
	le.PutUint64(b[offSum:], h.PayloadSum)
	le.PutUint32(b[offNeeds:], uint32(h.Needs))
	copy(b[offScope:], h.Scope[:])
	b[offKeyScheme] = uint8(h.KeyScheme)
	b[offAlgorithm] = h.Cipher.Algorithm
	le.PutUint16(b[offFlags:], h.Flags)
	le.PutUint32(b[offKeyID:], h.Cipher.KeyID)
	copy(b[offNonce:], h.Cipher.Nonce[:])
	copy(b[offTag:], h.Cipher.Tag[:])
	le.PutUint32(b[offStoredBytes:], h.StoredBytes)
	b[offCodec] = h.Codec
}

// Decode reads the header in b, which is HeaderBytes long, and verifies its checksum. With
// [ErrNewer] the record says what it is, but its payload cannot be read.
func (h *Header) Decode(b []byte) error {
	version, err := Verify(b, magic)
	if err != nil {
		return err
	}
	le := binary.LittleEndian
	h.Shard = connector.Shard(le.Uint16(b[offShard:]))
	h.Depth = le.Uint16(b[offDepth:])
	copy(h.Store[:], b[offStore:])
	h.SegmentID = le.Uint32(b[offSegment:])
	h.Slot = le.Uint32(b[offSlot:])
	h.Seq = le.Uint64(b[offSeq:])
	copy(h.Namespace[:], b[offNamespace:])
	copy(h.Key[:], b[offKey:])
	copy(h.Parent[:], b[offParent:])
	copy(h.Proof[:], b[offProof:])
	h.PayloadBytes = le.Uint32(b[offBytes:])
	h.PayloadSum = le.Uint64(b[offSum:])
	h.Scope, h.KeyScheme, h.Flags, h.Needs = connector.UnknownScope, KeySchemeUnknown, 0, 0
	h.Cipher, h.StoredBytes, h.Codec = Cipher{}, 0, 0
	if version == VersionFirst {
		return nil
	}
	h.Needs = Needs(le.Uint32(b[offNeeds:]))
	copy(h.Scope[:], b[offScope:])
	h.KeyScheme = KeyScheme(b[offKeyScheme])
	h.Flags = le.Uint16(b[offFlags:])
	h.Cipher.Algorithm = b[offAlgorithm]
	h.Cipher.KeyID = le.Uint32(b[offKeyID:])
	copy(h.Cipher.Nonce[:], b[offNonce:])
	copy(h.Cipher.Tag[:], b[offTag:])
	h.StoredBytes, h.Codec = le.Uint32(b[offStoredBytes:]), b[offCodec]
	return h.checkNeeds()
}

// checkNeeds reports an error if what is stored needs what this program does not know, or has a length that
// cannot be.
func (h *Header) checkNeeds() error {
	if err := h.Needs.Check(known); err != nil {
		return err
	}
	sealed, compressed := h.Needs&NeedsDecryption != 0, h.Needs&NeedsDecoding != 0
	switch {
	case sealed && h.Cipher.Algorithm != seal.Algorithm:
		return fmt.Errorf("%w: algorithm %d", ErrNewer, h.Cipher.Algorithm)
	case compressed && h.Codec != codec.Planes:
		return fmt.Errorf("%w: codec %d", ErrNewer, h.Codec)
	case compressed && h.StoredBytes >= h.PayloadBytes, sealed && !compressed && h.StoredBytes != h.PayloadBytes:
		return fmt.Errorf("%w: %d bytes stored of %d", ErrBad, h.StoredBytes, h.PayloadBytes)
	}
	return nil
}

// Check returns [ErrNewer] if n has a feature beside those that are known.
func (n Needs) Check(known Needs) error {
	if unknown := n &^ known; unknown != 0 {
		return fmt.Errorf("%w: features %#x", ErrNewer, uint32(unknown))
	}
	return nil
}

// Stored is how many bytes are stored after the header.
func (h *Header) Stored() int {
	if h.Needs&known != 0 {
		return int(h.StoredBytes)
	}
	return int(h.PayloadBytes)
}

// PutSum writes the checksum of all before it into the last bytes of a header.
func PutSum(b []byte) {
	binary.LittleEndian.PutUint64(b[offHeaderSum:], xxh3.Hash(b[:offHeaderSum]))
}

// Verify verifies magic, checksum and version of a header of any kind, and returns the version. The
// errors are [ErrBlank], [ErrBad] and [ErrNewer].
func Verify(b []byte, magic string) (version uint16, err error) {
	if len(b) != HeaderBytes {
		return 0, fmt.Errorf("%w: %d bytes", ErrBad, len(b))
	}
	if string(b[offMagic:offMagic+len(magic)]) != magic {
		if [8]byte(b) == [8]byte{} {
			return 0, ErrBlank
		}
		return 0, fmt.Errorf("%w: magic", ErrBad)
	}
	if binary.LittleEndian.Uint64(b[offHeaderSum:]) != xxh3.Hash(b[:offHeaderSum]) {
		return 0, fmt.Errorf("%w: checksum", ErrBad)
	}
	switch version = binary.LittleEndian.Uint16(b[offVersion:]); {
	case version == 0:
		return 0, fmt.Errorf("%w: version 0", ErrBad)
	case version > Version:
		return 0, fmt.Errorf("%w: version %d", ErrNewer, version)
	}
	return version, nil
}

// PayloadSum is the checksum of a payload.
func PayloadSum(payload []byte) uint64 { return xxh3.Hash(payload) }
