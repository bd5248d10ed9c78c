package store

import (
	"fmt"
	"unsafe"
)

// Limits of a payload in bytes.
const (
	MinPayloadBytes = 1
	MaxPayloadBytes = 64 << 20
)

// BufferAlign is what the address and the capacity of a payload buffer must be a multiple of, in
// bytes: direct I/O to the disk wants it.
const BufferAlign = 4096

// PayloadBufferSize returns the capacity, a multiple of [BufferAlign], that the buffer of a
// payload of payloadBytes must have. The bytes between the payload and that capacity belong to
// the tier during an operation and are undefined after it.
func PayloadBufferSize(payloadBytes int) int {
	return (payloadBytes + BufferAlign - 1) &^ (BufferAlign - 1)
}

// AlignedBuffer returns a zeroed buffer for a payload of payloadBytes that satisfies the rules of
// [ReadOp] and [WriteOp]. It is on the Go heap, in small pages: huge ones are read into a fifth to
// two fifths faster.
func AlignedBuffer(payloadBytes int) []byte {
	padded := PayloadBufferSize(payloadBytes)
	raw := make([]byte, padded+BufferAlign)
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(raw))) & (BufferAlign - 1))
	return raw[skip : skip+payloadBytes : skip+padded]
}

// CheckBuffer returns an [ErrInvalid] if the buffer of a payload does not keep the rules of [ReadOp].
func CheckBuffer(payload []byte) error {
	switch n := len(payload); {
	case n < MinPayloadBytes || n > MaxPayloadBytes:
		return fmt.Errorf("payload of %d bytes: want %d to %d: %w", n, MinPayloadBytes, MaxPayloadBytes, ErrInvalid)
	case uintptr(unsafe.Pointer(unsafe.SliceData(payload)))%BufferAlign != 0:
		return fmt.Errorf("payload buffer is not aligned to %d bytes: %w", BufferAlign, ErrInvalid)
	case cap(payload) < PayloadBufferSize(n):
		return fmt.Errorf("payload buffer has capacity %d, want %d: %w", cap(payload), PayloadBufferSize(n), ErrInvalid)
	}
	return nil
}
