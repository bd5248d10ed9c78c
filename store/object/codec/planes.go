package codec

import (
	"encoding/binary"
	"math/bits"
	"strings"
)

// maxWidth is the largest element that is split, in bytes.
const maxWidth = 4

// known reports whether elements of width bytes can be encoded.
func known(width int) bool { return width == 1 || width == 2 || width == 4 }

// Width returns the bytes of an element of a data type, as engines name them, 0 for a type whose
// elements have no exponent in their highest bits, or that is not known: its payloads are not worth a try.
func Width(dtype string) int {
	name := strings.TrimPrefix(strings.ToLower(dtype), "torch.")
	switch name {
	case "bfloat16", "bf16", "float16", "fp16", "half":
		return 2
	case "float32", "fp32", "float":
		return 4
	case "uint8", "int8": // what engines call their own formats of 8 bits
		return 1
	}
	if strings.HasPrefix(name, "float8") || strings.HasPrefix(name, "fp8") {
		return 1
	}
	return 0
}

// split takes elements apart: raw are the planes of their lower bytes, which tell the width, and top is
// that of the highest. Each element is rotated by a bit before, so that its sign is in the lowest plane.
func split(raw [maxWidth - 1][]byte, top, elements []byte) {
	if raw[1] == nil {
		split2(raw[0], top, elements)
		return
	}
	for i := range top {
		v := bits.RotateLeft32(binary.LittleEndian.Uint32(elements[4*i:]), 1)
		raw[0][i], raw[1][i], raw[2][i], top[i] = byte(v), byte(v>>8), byte(v>>16), byte(v>>24)
	}
}

// merge is the opposite of split.
func merge(elements []byte, raw [maxWidth - 1][]byte, top []byte, width int) {
	if width == 2 {
		merge2(elements, raw[0], top)
		return
	}
	for i := range top {
		v := uint32(raw[0][i]) | uint32(raw[1][i])<<8 | uint32(raw[2][i])<<16 | uint32(top[i])<<24
		binary.LittleEndian.PutUint32(elements[4*i:], bits.RotateLeft32(v, -1))
	}
}

// Masks of four lanes of 16 bits, which are handled at one time.
const (
	lowBits   = 0x0001_0001_0001_0001
	lowBytes  = 0x00ff_00ff_00ff_00ff
	lowHalves = 0x0000_ffff_0000_ffff
)

func split2(low, high, elements []byte) {
	le := binary.LittleEndian
	for len(elements) >= 8 {
		v := le.Uint64(elements)
		v = v<<1&^lowBits | v>>15&lowBits
		le.PutUint32(low, gather(v))
		le.PutUint32(high, gather(v>>8))
		elements, low, high = elements[8:], low[4:], high[4:]
	}
	for i := range low {
		v := bits.RotateLeft16(le.Uint16(elements[2*i:]), 1)
		low[i], high[i] = byte(v), byte(v>>8)
	}
}

func merge2(elements, low, high []byte) {
	le := binary.LittleEndian
	for len(elements) >= 8 {
		v := spread(le.Uint32(low)) | spread(le.Uint32(high))<<8
		le.PutUint64(elements, v>>1&^(lowBits<<15)|v&lowBits<<15)
		elements, low, high = elements[8:], low[4:], high[4:]
	}
	for i := range low {
		v := uint16(low[i]) | uint16(high[i])<<8
		le.PutUint16(elements[2*i:], bits.RotateLeft16(v, -1))
	}
}

// gather puts the low bytes of four lanes side by side.
func gather(v uint64) uint32 {
	v &= lowBytes
	v = (v | v>>8) & lowHalves
	return uint32(v | v>>16)
}

// spread is the opposite of gather.
func spread(b uint32) uint64 {
	v := uint64(b)
	v = (v | v<<16) & lowHalves
	return (v | v<<8) & lowBytes
}
