package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unsafe"

	"github.com/tinylib/msgp/msgp"

	"github.com/kvconn/kvconn/connector"
)

// decoder reads one msgpack body. The first failure sticks in err, and every later read
// returns zero, so that callers check once at the end. Sizes are checked against the
// bytes that are really there, and against the caller's bound, before anything is
// allocated.
type decoder struct {
	b   []byte
	err error
}

func (d *decoder) fail(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: "+format, append([]any{connector.ErrProtocol}, args...)...)
	}
}

func (d *decoder) check(what string, rest []byte, err error) bool {
	if d.err != nil {
		return false
	}
	if err != nil {
		d.fail("read %s: %v", what, err)
		return false
	}
	d.b = rest
	return true
}

// fields calls fn with each key of a map. fn reads the value; one that it does not read is skipped.
func (d *decoder) fields(fn func(key []byte)) {
	n, rest, err := msgp.ReadMapHeaderBytes(d.b)
	if !d.check("map", rest, err) {
		return
	}
	for range n {
		key, rest, err := msgp.ReadMapKeyZC(d.b)
		if !d.check("key", rest, err) {
			return
		}
		fn(key)
		if len(d.b) == len(rest) && d.err == nil {
			rest, err := msgp.Skip(d.b)
			d.check("unknown value", rest, err)
		}
		if d.err != nil {
			return
		}
	}
}

// message is fields for a whole body. It reports the first failure, or that bytes are left over.
func (d *decoder) message(fn func(key []byte)) error {
	d.fields(fn)
	if d.err == nil && len(d.b) != 0 {
		d.fail("%d bytes after the body", len(d.b))
	}
	return d.err
}

// array returns the length of an array of at most limit elements. An element takes one
// byte at least, so a length beyond the bytes left is refused before anyone allocates.
func (d *decoder) array(what string, limit int) int {
	if d.err != nil {
		return 0
	}
	n, rest, err := msgp.ReadArrayHeaderBytes(d.b)
	if !d.check(what, rest, err) {
		return 0
	}
	if int64(n) > int64(limit) || int64(n) > int64(len(rest)) {
		d.fail("%s: array of %d, at most %d", what, n, min(limit, len(rest)))
		return 0
	}
	return int(n)
}

// tuple wants an array of exactly n elements.
func (d *decoder) tuple(what string, n int) bool {
	if got := d.array(what, n); d.err == nil && got != n {
		d.fail("%s: %d elements, want %d", what, got, n)
	}
	return d.err == nil
}

func (d *decoder) str(what string, limit int) string { return strings.Clone(d.view(what, limit)) }

// view is str without a copy: the string is a view of the body, valid as long as that is.
func (d *decoder) view(what string, limit int) string {
	if d.err != nil {
		return ""
	}
	s, rest, err := msgp.ReadStringZC(d.b)
	if !d.check(what, rest, err) {
		return ""
	}
	if len(s) > limit {
		d.fail("%s: %d bytes, at most %d", what, len(s), limit)
		return ""
	}
	return unsafe.String(unsafe.SliceData(s), len(s))
}

// bytes returns a view of the body, valid as long as the body is.
func (d *decoder) bytes(what string, limit int) []byte {
	if d.err != nil {
		return nil
	}
	v, rest, err := msgp.ReadBytesZC(d.b)
	if !d.check(what, rest, err) {
		return nil
	}
	if len(v) > limit {
		d.fail("%s: %d bytes, at most %d", what, len(v), limit)
		return nil
	}
	return v
}

// u32s decodes a bin of little-endian 32-bit numbers, at most limit of them.
func (d *decoder) u32s(what string, limit int) []uint32 { return d.appendU32s(nil, what, limit) }

// appendU32s is u32s into memory that out brings.
func (d *decoder) appendU32s(out []uint32, what string, limit int) []uint32 {
	v := d.bytes(what, 4*limit)
	if len(v)%4 != 0 {
		d.fail("%s: %d bytes are no whole number of u32", what, len(v))
	}
	if d.err != nil {
		return out
	}
	out = slices.Grow(out, len(v)/4)
	for i := 0; i < len(v); i += 4 {
		out = append(out, binary.LittleEndian.Uint32(v[i:]))
	}
	return out
}

func (d *decoder) uint(what string, limit uint64) uint64 {
	if d.err != nil {
		return 0
	}
	v, rest, err := msgp.ReadUint64Bytes(d.b)
	if !d.check(what, rest, err) {
		return 0
	}
	if v > limit {
		d.fail("%s: %d, at most %d", what, v, limit)
		return 0
	}
	return v
}

func (d *decoder) bool(what string) bool {
	if d.err != nil {
		return false
	}
	v, rest, err := msgp.ReadBoolBytes(d.b)
	d.check(what, rest, err)
	return v && d.err == nil
}

// putString and its like append a field of a map: its key and its value.
func putString(b []byte, key, v string) []byte {
	return msgp.AppendString(msgp.AppendString(b, key), v)
}

func putInt(b []byte, key string, v int) []byte { return msgp.AppendInt(msgp.AppendString(b, key), v) }

func putBool(b []byte, key string, v bool) []byte {
	return msgp.AppendBool(msgp.AppendString(b, key), v)
}

func putBytes(b []byte, key string, v []byte) []byte {
	return msgp.AppendBytes(msgp.AppendString(b, key), v)
}

func putArray(b []byte, key string, n int) []byte {
	return msgp.AppendArrayHeader(msgp.AppendString(b, key), uint32(n))
}

func putU32s(b []byte, key string, v []uint32) []byte {
	return appendU32s(msgp.AppendString(b, key), v)
}

// appendU32s is the inverse of decoder.u32s.
func appendU32s(b []byte, v []uint32) []byte {
	b = msgp.AppendBytesHeader(b, uint32(4*len(v)))
	return connector.AppendTokens(b, v)
}

// ErrTooLarge says that a frame is beyond the bounds: nothing of it was sent.
var ErrTooLarge = errors.New("frame too large")
