package format

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/zeebo/xxh3"
)

// BucketID is the random identity of what lies below a prefix of a bucket. Every list carries it, so
// that what was copied from another bucket, or left from before this one was emptied, is found out.
type BucketID [idBytes]byte

// WriterID is the random name that a writer takes at each opening of the tier.
type WriterID [writerBytes]byte

// ObjectID names a data object, and is never used twice: the id of its writer, and a counter of 6
// bytes in big-endian.
type ObjectID [idBytes]byte

// Sum is the XXH3-128 of some bytes, in big-endian.
type Sum [sumBytes]byte

// Seconds is a time by the clock of the bucket: seconds since 1970, in UTC.
type Seconds uint32

// SecondsOf is a time of the bucket's clock: what is written into it is compared by all nodes.
func SecondsOf(t time.Time) Seconds { return Seconds(t.Unix()) }

// MaxCounter is the greatest counter in an [ObjectID], and the greatest sequence of a writer.
const MaxCounter = 1<<48 - 1

// NewBucketID draws an identity.
func NewBucketID() (id BucketID) {
	_, _ = rand.Read(id[:]) // it never fails
	return id
}

// NewWriterID draws an identity.
func NewWriterID() (id WriterID) {
	_, _ = rand.Read(id[:])
	return id
}

// NewObjectID is the name of a writer's object. counter is at most [MaxCounter], and grows.
func NewObjectID(w WriterID, counter uint64) (id ObjectID) {
	var n [8]byte
	binary.BigEndian.PutUint64(n[:], counter)
	copy(id[:], w[:])
	copy(id[writerBytes:], n[len(n)-sequenceBytes:])
	return id
}

// Writer is the writer of the object.
func (id ObjectID) Writer() WriterID { return WriterID(id[:writerBytes]) }

// Counter tells the objects of one writer apart.
func (id ObjectID) Counter() uint64 {
	var n [8]byte
	copy(n[len(n)-sequenceBytes:], id[writerBytes:])
	return binary.BigEndian.Uint64(n[:])
}

// SumOf computes the XXH3-128 of b.
func SumOf(b []byte) Sum { return xxh3.Hash128(b).Bytes() }

// String returns lower-case hexadecimal digits.
func (id BucketID) String() string { return hex.EncodeToString(id[:]) }

// String returns lower-case hexadecimal digits.
func (id WriterID) String() string { return hex.EncodeToString(id[:]) }

// String returns lower-case hexadecimal digits.
func (id ObjectID) String() string { return hex.EncodeToString(id[:]) }

// String returns lower-case hexadecimal digits.
func (s Sum) String() string { return hex.EncodeToString(s[:]) }

// MarshalText and UnmarshalText make JSON show hexadecimal digits.
func (id BucketID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText reads what [BucketID.MarshalText] wrote.
func (id *BucketID) UnmarshalText(b []byte) error { return parseHex(id[:], string(b)) }

// MarshalText and UnmarshalText make JSON show hexadecimal digits.
func (id WriterID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText reads what [WriterID.MarshalText] wrote.
func (id *WriterID) UnmarshalText(b []byte) error { return parseHex(id[:], string(b)) }

// MarshalText and UnmarshalText make JSON show hexadecimal digits.
func (s Sum) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what [Sum.MarshalText] wrote.
func (s *Sum) UnmarshalText(b []byte) error { return parseHex(s[:], string(b)) }

// parseHex fills dst with lower-case hexadecimal digits, which must be as many as it takes.
func parseHex(dst []byte, text string) error {
	if len(text) != 2*len(dst) {
		return fmt.Errorf("%w: %d hexadecimal digits, want %d", ErrBad, len(text), 2*len(dst))
	}
	for i := range len(text) {
		if c := text[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return fmt.Errorf("%w: want lower-case hexadecimal digits", ErrBad)
		}
	}
	_, err := hex.Decode(dst, []byte(text))
	return err
}

// parseNumber reads a number of exactly digits lower-case hexadecimal digits, 16 at most.
func parseNumber(text string, digits int) (uint64, error) {
	var n [8]byte
	if err := parseHex(n[len(n)-digits/2:], text); err != nil {
		return 0, err
	}
	return binary.BigEndian.Uint64(n[:]), nil
}
