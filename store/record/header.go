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
)

// HeaderBytes is the size of every header: one unit of direct I/O.
const HeaderBytes = 4096

// Version is the version of headers that is written. Older ones are read.
const Version = 2

// VersionFirst is the version without scopes: a header ends with its payload's checksum.
const VersionFirst = 1

// StoreID is the random identity of a store. Every header carries it, so that blocks
// left behind by another store on the same device are never taken for records.
type StoreID [16]byte

// Errors of decoding. ErrBlank says that a header was never written (all zero where the
// magic should be); ErrBad that it was damaged or is something else; ErrNewer that it is
// intact and needs a program that knows more than this one.
var (
	ErrBlank = errors.New("header is blank")
	ErrBad   = errors.New("header is bad")
	ErrNewer = errors.New("header needs a newer program")
)

// Needs are features that a program must know to read what follows a header. A later
// version of the program sets further bits; whoever does not know one of them must neither
// read the payload nor call it damaged. What can be passed over needs no bit: reserved
// bytes are not looked at.
type Needs uint32

// NeedsDecryption is set in records whose payload is encrypted.
const NeedsDecryption Needs = 1 << 0

// known are the features that this program can read.
const known Needs = 0

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
	Algorithm uint8
	KeyID     uint32
	Nonce     [24]byte // as much of it as the algorithm uses
	Tag       [16]byte
	// StoredBytes is the length of what is in the slot, if it is not that of the payload.
	StoredBytes uint32
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
	// PayloadBytes is the payload's length, PayloadSum its XXH3-64.
	PayloadBytes uint32
	PayloadSum   uint64
	// Scope tells whose record it is; [connector.UnknownScope] in format 1.
	Scope     connector.ScopeDigest
	KeyScheme KeyScheme
	Flags     uint16 // none are defined
	Needs     Needs
	Cipher    Cipher
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

	offHeaderSum = HeaderBytes - 8
)

// Encode writes the header into b, which is HeaderBytes long.
func (r *Header) Encode(b []byte) {
	b = b[:HeaderBytes]
	clear(b)
	copy(b[offMagic:], magic)
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
	le.PutUint32(b[offNeeds:], uint32(r.Needs))
	copy(b[offScope:], r.Scope[:])
	b[offKeyScheme] = uint8(r.KeyScheme)
	b[offAlgorithm] = r.Cipher.Algorithm
	le.PutUint16(b[offFlags:], r.Flags)
	le.PutUint32(b[offKeyID:], r.Cipher.KeyID)
	copy(b[offNonce:], r.Cipher.Nonce[:])
	copy(b[offTag:], r.Cipher.Tag[:])
	le.PutUint32(b[offStoredBytes:], r.Cipher.StoredBytes)
	PutSum(b)
}

// Decode reads the header in b, which is HeaderBytes long, and verifies its checksum. With
// [ErrNewer] the record says what it is, but its payload cannot be read.
func (r *Header) Decode(b []byte) error {
	version, err := Verify(b, magic)
	if err != nil {
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
	r.Scope, r.KeyScheme, r.Flags, r.Needs, r.Cipher = connector.UnknownScope, KeySchemeUnknown, 0, 0, Cipher{}
	if version == VersionFirst {
		return nil
	}
	r.Needs = Needs(le.Uint32(b[offNeeds:]))
	copy(r.Scope[:], b[offScope:])
	r.KeyScheme = KeyScheme(b[offKeyScheme])
	r.Flags = le.Uint16(b[offFlags:])
	r.Cipher.Algorithm = b[offAlgorithm]
	r.Cipher.KeyID = le.Uint32(b[offKeyID:])
	copy(r.Cipher.Nonce[:], b[offNonce:])
	copy(r.Cipher.Tag[:], b[offTag:])
	r.Cipher.StoredBytes = le.Uint32(b[offStoredBytes:])
	return r.Needs.Check()
}

// Check returns [ErrNewer] if n has a feature that this program does not know.
func (n Needs) Check() error {
	if unknown := n &^ known; unknown != 0 {
		return fmt.Errorf("%w: features %#x", ErrNewer, uint32(unknown))
	}
	return nil
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
