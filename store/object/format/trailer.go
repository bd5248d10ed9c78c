package format

import (
	"encoding/binary"
	"fmt"

	"github.com/zeebo/xxh3"

	"github.com/kvconn/kvconn/store/seal"
)

// TrailerBytes is the size of the trailer, which ends a data object.
const TrailerBytes = 64

const trailerMagic = "KVCNOBJ1"

// Offsets within a trailer.
const (
	offTrailerVersion   = 8
	offTrailerKeyID     = 12
	offTrailerFooter    = 16
	offTrailerBytes     = 24
	offTrailerRecords   = 28
	offTrailerObject    = 32
	offTrailerFooterSum = 48
	offTrailerSum       = 56
)

// Trailer says where the footer of a data object is: the list of its records, by which it is found
// again if no other list has it.
type Trailer struct {
	Object ObjectID
	// KeyID is the key that the footer is sealed with, 0 if it is not sealed.
	KeyID uint32
	// FooterOffset is where the footer begins, and the last slot ends.
	FooterOffset int64
	FooterBytes  uint32
	Records      uint32
	FooterSum    uint64 // XXH3-64
}

// AppendTail ends a data object: it appends the footer and the trailer to its slots. It sets the
// object's Bytes, and returns [ErrInvalid] if the slots are not those that the object tells of.
func (o *Object) AppendTail(slots []byte, bucket BucketID, ring *seal.Ring) ([]byte, error) {
	tail, err := o.Tail(int64(len(slots)), bucket, ring)
	if err != nil {
		return nil, err
	}
	return append(slots, tail...), nil
}

// Tail is what [Object.AppendTail] appends to slots of that many bytes.
func (o *Object) Tail(slots int64, bucket BucketID, ring *seal.Ring) ([]byte, error) {
	bytes := slots + o.footerBytes() + TrailerBytes
	if slots%Unit != 0 || slots > MaxSlotsBytes || bytes > MaxObjectBytes {
		return nil, fmt.Errorf("data object %s: %w: %d bytes of slots", o.ID, ErrInvalid, slots)
	}
	o.Bytes = uint32(bytes)
	l := List{Name: DataName(o.ID), Bucket: bucket, Objects: []Object{*o}}
	footer, err := l.Encode(ring)
	if err != nil {
		return nil, err
	}
	t := Trailer{
		Object: o.ID, FooterOffset: slots, FooterBytes: uint32(len(footer)),
		Records: uint32(len(o.Records)), FooterSum: xxh3.Hash(footer),
	}
	if ring != nil {
		t.KeyID = ring.KeyID()
	}
	return t.append(footer), nil
}

func (t *Trailer) append(b []byte) []byte {
	var e [TrailerBytes]byte
	le := binary.LittleEndian
	copy(e[:], trailerMagic)
	le.PutUint16(e[offTrailerVersion:], Version)
	le.PutUint32(e[offTrailerKeyID:], t.KeyID)
	le.PutUint64(e[offTrailerFooter:], uint64(t.FooterOffset))
	le.PutUint32(e[offTrailerBytes:], t.FooterBytes)
	le.PutUint32(e[offTrailerRecords:], t.Records)
	copy(e[offTrailerObject:], t.Object[:])
	le.PutUint64(e[offTrailerFooterSum:], t.FooterSum)
	le.PutUint64(e[offTrailerSum:], xxh3.Hash(e[:offTrailerSum]))
	return append(b, e[:]...)
}

// DecodeTrailer verifies and decodes b, the last [TrailerBytes] bytes of the data object with an id,
// which has objectBytes in all.
func DecodeTrailer(b []byte, id ObjectID, objectBytes int64) (Trailer, error) {
	t, err := decodeTrailer(b, id, objectBytes)
	if err != nil {
		return Trailer{}, fmt.Errorf("trailer of data object %s: %w", id, err)
	}
	return t, nil
}

func decodeTrailer(b []byte, id ObjectID, objectBytes int64) (t Trailer, err error) {
	if len(b) != TrailerBytes {
		return t, fmt.Errorf("%w: %d bytes", ErrBad, len(b))
	}
	le := binary.LittleEndian
	if string(b[:len(trailerMagic)]) != trailerMagic || le.Uint64(b[offTrailerSum:]) != xxh3.Hash(b[:offTrailerSum]) {
		return t, fmt.Errorf("%w: magic or checksum", ErrBad)
	}
	if err := checkVersion(le.Uint16(b[offTrailerVersion:])); err != nil {
		return t, err
	}
	t = Trailer{
		Object: ObjectID(b[offTrailerObject:]), KeyID: le.Uint32(b[offTrailerKeyID:]),
		FooterOffset: int64(le.Uint64(b[offTrailerFooter:])), FooterBytes: le.Uint32(b[offTrailerBytes:]),
		Records: le.Uint32(b[offTrailerRecords:]), FooterSum: le.Uint64(b[offTrailerFooterSum:]),
	}
	switch {
	case t.Object != id:
		return t, fmt.Errorf("%w: it is that of %s", ErrBad, t.Object)
	case objectBytes > MaxObjectBytes || t.FooterBytes > MaxFooterBytes || t.Records > MaxObjectRecords:
		return t, fmt.Errorf("%w: %d records, a footer of %d bytes, %d bytes in all", ErrTooLarge, t.Records, t.FooterBytes, objectBytes)
	case t.FooterOffset < minSlotUnits*Unit || t.FooterOffset%Unit != 0 || t.FooterOffset != objectBytes-TrailerBytes-int64(t.FooterBytes):
		return t, fmt.Errorf("%w: a footer of %d bytes at %d, %d bytes in all", ErrBad, t.FooterBytes, t.FooterOffset, objectBytes)
	}
	return t, nil
}

// DecodeFooter verifies and decodes the footer that the trailer tells of. b is overwritten if it is
// sealed.
func (t *Trailer) DecodeFooter(b []byte, bucket BucketID, ring *seal.Ring) (*Object, error) {
	if len(b) != int(t.FooterBytes) || xxh3.Hash(b) != t.FooterSum {
		return nil, fmt.Errorf("footer of data object %s: %w: length or checksum", t.Object, ErrBad)
	}
	l, err := DecodeList(b, DataName(t.Object), bucket, ring)
	if err != nil {
		return nil, err
	}
	o := &l.Objects[0]
	if int64(o.Bytes) != t.FooterOffset+int64(t.FooterBytes)+TrailerBytes || len(o.Records) != int(t.Records) {
		return nil, fmt.Errorf("footer of data object %s: %w: %d bytes and %d records", t.Object, ErrBad, o.Bytes, len(o.Records))
	}
	return o, nil
}
