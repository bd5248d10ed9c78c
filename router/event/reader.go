package event

import (
	"errors"
	"fmt"

	"github.com/tinylib/msgp/msgp"
)

// ErrMalformed says that a message is not a batch of KV cache events, or passes a limit.
var ErrMalformed = errors.New("malformed KV event batch")

// reader reads msgpack values. It takes what engines send, which package msgp alone would not: nil for an empty
// string, any integer for a hash. A count is checked against the bytes that are there before it is used.
type reader struct {
	b    []byte // what is left
	size int    // of the message
}

func newReader(b []byte) reader { return reader{b: b, size: len(b)} }

func (r *reader) malformed(what string) error {
	return fmt.Errorf("%w: %s at byte %d of %d", ErrMalformed, what, r.size-len(r.b), r.size)
}

// to moves on to rest, unless err says that the value before it could not be read.
func (r *reader) to(rest []byte, err error) error {
	if err != nil {
		return r.malformed(err.Error())
	}
	r.b = rest
	return nil
}

// read is what was read since the reader was at from.
func (r *reader) read(from []byte) []byte {
	n := len(from) - len(r.b)
	return from[:n:n]
}

func (r *reader) is(t msgp.Type) bool { return msgp.NextType(r.b) == t }

// isNil skips a nil if that is next.
func (r *reader) isNil() bool {
	if !msgp.IsNil(r.b) {
		return false
	}
	r.b = r.b[1:]
	return true
}

func (r *reader) array() (int, error) {
	n, rest, err := msgp.ReadArrayHeaderBytes(r.b)
	return r.count(n, rest, err)
}

func (r *reader) fields() (int, error) {
	n, rest, err := msgp.ReadMapHeaderBytes(r.b)
	return r.count(n, rest, err)
}

// count checks a number of elements: each takes at least one byte.
func (r *reader) count(n uint32, rest []byte, err error) (int, error) {
	if err == nil && uint64(n) > uint64(len(rest)) {
		err = msgp.ErrShortBytes
	}
	return int(n), r.to(rest, err)
}

// text reads a string, or a byte string; nil reads as an empty one.
func (r *reader) text() ([]byte, error) {
	switch {
	case r.isNil():
		return nil, nil
	case len(r.b) > 0 && r.b[0]-codeBin8 <= 2:
		b, rest, err := msgp.ReadBytesZC(r.b)
		return b, r.to(rest, err)
	}
	b, rest, err := msgp.ReadStringZC(r.b)
	return b, r.to(rest, err)
}

// integer reads any integer, two's complement in 64 bits; negative tells a negative one from one above
// the largest int64.
func (r *reader) integer() (v uint64, negative bool, err error) {
	if r.is(msgp.UintType) {
		v, rest, err := msgp.ReadUint64Bytes(r.b)
		return v, false, r.to(rest, err)
	}
	s, rest, err := msgp.ReadInt64Bytes(r.b)
	return uint64(s), s < 0, r.to(rest, err)
}

func (r *reader) number(most int) (int, error) {
	v, rest, err := msgp.ReadInt64Bytes(r.b)
	if err == nil && (v < 0 || v > int64(most)) {
		return 0, r.malformed("a number is out of bounds")
	}
	return int(v), r.to(rest, err)
}

func (r *reader) skip() error { return r.to(msgp.Skip(r.b)) }
