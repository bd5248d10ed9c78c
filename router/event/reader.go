package event

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// ErrMalformed says that a message is not a batch of KV cache events, or passes a limit.
var ErrMalformed = errors.New("malformed KV event batch")

// reader reads msgpack values from b.
type reader struct {
	b []byte
	i int
}

// malformed describes what is wrong at the reader's position.
func (r *reader) malformed(what string) error {
	return fmt.Errorf("%w: %s at byte %d of %d", ErrMalformed, what, r.i, len(r.b))
}

// Lead bytes of msgpack values.
const (
	codeNil     = 0xc0
	codeFalse   = 0xc2
	codeTrue    = 0xc3
	codeBin8    = 0xc4
	codeBin16   = 0xc5
	codeBin32   = 0xc6
	codeExt8    = 0xc7
	codeFloat32 = 0xca
	codeFloat64 = 0xcb
	codeUint8   = 0xcc
	codeUint16  = 0xcd
	codeUint32  = 0xce
	codeUint64  = 0xcf
	codeInt8    = 0xd0
	codeInt16   = 0xd1
	codeInt32   = 0xd2
	codeInt64   = 0xd3
	codeFixExt1 = 0xd4
	codeStr8    = 0xd9
	codeStr16   = 0xda
	codeStr32   = 0xdb
	codeArray16 = 0xdc
	codeArray32 = 0xdd
	codeMap16   = 0xde
	codeMap32   = 0xdf
)

// peek returns the next lead byte; at the end nil's, and false.
func (r *reader) peek() (byte, bool) {
	if r.i >= len(r.b) {
		return codeNil, false
	}
	return r.b[r.i], true
}

// isNil skips a nil if that is next.
func (r *reader) isNil() bool {
	c, ok := r.peek()
	if ok && c == codeNil {
		r.i++
		return true
	}
	return false
}

// unsigned reads the big-endian number of n bytes that follows a lead byte.
func (r *reader) unsigned(n int) (uint64, error) {
	if len(r.b)-r.i < 1+n {
		return 0, r.malformed("a number ends early")
	}
	b := r.b[r.i+1:]
	r.i += 1 + n
	switch n {
	case 1:
		return uint64(b[0]), nil
	case 2:
		return uint64(binary.BigEndian.Uint16(b)), nil
	case 4:
		return uint64(binary.BigEndian.Uint32(b)), nil
	default:
		return binary.BigEndian.Uint64(b), nil
	}
}

// count reads the header of an array or a map. Every element takes at least size bytes, so that a count
// beyond what is there is refused before anything is made of it.
func (r *reader) count(fix, code16 byte, size int) (int, error) {
	c, ok := r.peek()
	var n uint64
	var err error
	switch {
	case !ok:
		return 0, r.malformed("an array or a map is missing")
	case c&0xf0 == fix:
		n = uint64(c & 0x0f)
		r.i++
	case c == code16:
		n, err = r.unsigned(2)
	case c == code16+1:
		n, err = r.unsigned(4)
	default:
		return 0, r.malformed("not the array or the map that belongs here")
	}
	if err == nil && n > uint64(len(r.b)-r.i)/uint64(size) {
		err = r.malformed("a count is larger than the message")
	}
	return int(n), err
}

func (r *reader) array() (int, error) { return r.count(0x90, codeArray16, 1) }

func (r *reader) isMap() bool {
	c, _ := r.peek()
	return c&0xf0 == 0x80 || c == codeMap16 || c == codeMap32
}

func (r *reader) isArray() bool {
	c, _ := r.peek()
	return c&0xf0 == 0x90 || c == codeArray16 || c == codeArray32
}

// text reads a string, or a byte string; nil reads as an empty one.
func (r *reader) text() ([]byte, error) {
	c, ok := r.peek()
	var n uint64
	var err error
	switch {
	case !ok:
		return nil, r.malformed("a string is missing")
	case c&0xe0 == 0xa0:
		n = uint64(c & 0x1f)
		r.i++
	case c == codeNil:
		r.i++
	case c == codeStr8, c == codeBin8:
		n, err = r.unsigned(1)
	case c == codeStr16, c == codeBin16:
		n, err = r.unsigned(2)
	case c == codeStr32, c == codeBin32:
		n, err = r.unsigned(4)
	default:
		return nil, r.malformed("not a string")
	}
	if err != nil {
		return nil, err
	}
	return r.bytes(n)
}

func (r *reader) bytes(n uint64) ([]byte, error) {
	if n > uint64(len(r.b)-r.i) {
		return nil, r.malformed("a string is longer than the message")
	}
	b := r.b[r.i : r.i+int(n) : r.i+int(n)]
	r.i += int(n)
	return b, nil
}

// integer reads any integer, two's complement in 64 bits; negative tells a negative one from one above
// the largest int64.
func (r *reader) integer() (v uint64, negative bool, err error) {
	c, ok := r.peek()
	switch {
	case !ok:
		return 0, false, r.malformed("a number is missing")
	case c < 0x80:
		r.i++
		return uint64(c), false, nil
	case c >= 0xe0:
		r.i++
		return uint64(int64(int8(c))), true, nil
	case c >= codeUint8 && c <= codeUint64:
		v, err = r.unsigned(1 << (c - codeUint8))
		return v, false, err
	case c >= codeInt8 && c <= codeInt64:
		if v, err = r.unsigned(1 << (c - codeInt8)); err != nil {
			return 0, false, err
		}
		shift := 64 - 8<<(c-codeInt8)
		s := int64(v<<shift) >> shift
		return uint64(s), s < 0, nil
	}
	return 0, false, r.malformed("not an integer")
}

// smallInt reads an integer from lo to hi.
func (r *reader) smallInt(lo, hi int64) (int64, error) {
	at := r.i
	v, negative, err := r.integer()
	if err != nil {
		return 0, err
	}
	if s := int64(v); (s < 0) == negative && s >= lo && s <= hi {
		return s, nil
	}
	r.i = at
	return 0, r.malformed("a number is out of bounds")
}

// float reads a number as a float64.
func (r *reader) float() (float64, error) {
	c, _ := r.peek()
	switch c {
	case codeFloat64:
		v, err := r.unsigned(8)
		return math.Float64frombits(v), err
	case codeFloat32:
		v, err := r.unsigned(4)
		return float64(math.Float32frombits(uint32(v))), err
	}
	v, negative, err := r.integer()
	if negative {
		return float64(int64(v)), err
	}
	return float64(v), err
}

// skip skips one value of any kind. It does not recurse, so that nesting costs no stack.
func (r *reader) skip() error {
	for left := 1; left > 0; left-- {
		n, err := r.skipHead()
		if err != nil {
			return err
		}
		left += n
	}
	return nil
}

// skipHead skips one value without its elements and returns how many values those are.
func (r *reader) skipHead() (elements int, err error) {
	c, ok := r.peek()
	switch {
	case !ok:
		return 0, r.malformed("a value is missing")
	case c < 0x80 || c >= 0xe0 || c == codeNil || c == codeFalse || c == codeTrue:
		r.i++
		return 0, nil
	case r.isArray():
		return r.array()
	case r.isMap():
		n, err := r.count(0x80, codeMap16, 2)
		return 2 * n, err
	case c == codeFloat32:
		_, err = r.unsigned(4)
		return 0, err
	case c == codeFloat64:
		_, err = r.unsigned(8)
		return 0, err
	case c >= codeUint8 && c <= codeInt64:
		_, _, err = r.integer()
		return 0, err
	case c >= codeFixExt1 && c < codeStr8:
		r.i++
		_, err = r.bytes(1 + 1<<(c-codeFixExt1))
		return 0, err
	case c >= codeExt8 && c < codeFloat32:
		n, err := r.unsigned(1 << (c - codeExt8))
		if err == nil {
			_, err = r.bytes(n + 1)
		}
		return 0, err
	}
	_, err = r.text()
	return 0, err
}
