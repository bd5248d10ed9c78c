package store

import "unsafe"

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
