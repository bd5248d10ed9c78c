package libcuda

import (
	"fmt"
	"unsafe"
)

// SourceOrder says when a batch copy may read its sources (CUmemcpySrcAccessOrder).
type SourceOrder int32

// Orders of a batch copy.
const (
	// OrderStream reads in stream order: after the work queued before. Device memory that an engine writes needs it.
	OrderStream SourceOrder = 1
	// OrderAny may read at once, before the work queued earlier. Only for sources that do not change until the end.
	OrderAny SourceOrder = 3
)

// copyAttributes is CUmemcpyAttributes, 24 bytes.
type copyAttributes struct {
	order   SourceOrder
	srcHint location
	dstHint location
	flags   uint32
}

// Copies is a list of copies that one call submits. Its arrays are the caller's, which must keep them where they are
// until the call returns: outside the Go heap, or pinned.
type Copies struct {
	// Dst, Src and SizeBytes have the same length. Addresses are of a device or of host memory.
	Dst, Src  []DevicePtr
	SizeBytes []uint64
}

// CopyBatch queues copies in one call, which may run in any order beside each other. It returns [ErrUnsupported] if
// the driver has none. After an error an unknown part is queued.
func (s *Stream) CopyBatch(b *Copies, order SourceOrder) error {
	n := len(b.Dst)
	if n == 0 || len(b.Src) != n || len(b.SizeBytes) != n {
		return fmt.Errorf("%w: %d destinations, %d sources, %d sizes", errWords, n, len(b.Src), len(b.SizeBytes))
	}
	var call struct {
		attrs copyAttributes
		index uint64
		fail  uint64
	}
	call.attrs.order = order
	return s.ctx.call(cuMemcpyBatchAsync, uintptr(unsafe.Pointer(&b.Dst[0])), uintptr(unsafe.Pointer(&b.Src[0])), uintptr(unsafe.Pointer(&b.SizeBytes[0])), uintptr(n),
		uintptr(unsafe.Pointer(&call.attrs)), uintptr(unsafe.Pointer(&call.index)), 1, uintptr(unsafe.Pointer(&call.fail)), s.handle)
}

// CopyToDevice queues one copy from host memory. Memory that is not registered is copied before the call returns.
func (s *Stream) CopyToDevice(dst DevicePtr, src []byte) error {
	return s.CopyAddrToDevice(dst, uint64(addr(src)), uint64(len(src)))
}

// CopyToHost queues one copy to host memory, which must stay where it is until the stream is there.
func (s *Stream) CopyToHost(dst []byte, src DevicePtr) error {
	return s.CopyDeviceToAddr(uint64(addr(dst)), src, uint64(len(dst)))
}

// CopyAddrToDevice is CopyToDevice from a host address.
func (s *Stream) CopyAddrToDevice(dst DevicePtr, src, sizeBytes uint64) error {
	return s.ctx.call(cuMemcpyHtoDAsync, uintptr(dst), uintptr(src), uintptr(sizeBytes), s.handle)
}

// CopyDeviceToAddr is CopyToHost to a host address.
func (s *Stream) CopyDeviceToAddr(dst uint64, src DevicePtr, sizeBytes uint64) error {
	return s.ctx.call(cuMemcpyDtoHAsync, uintptr(dst), uintptr(src), uintptr(sizeBytes), s.handle)
}

// Fill queues setting bytes of device memory to v.
func (s *Stream) Fill(p DevicePtr, v byte, sizeBytes uint64) error {
	return s.ctx.call(cuMemsetD8Async, uintptr(p), uintptr(v), uintptr(sizeBytes), s.handle)
}

// Addr is the address of host memory, for Copies. mem must be of mmap, not of the Go heap.
func Addr(mem []byte) DevicePtr { return DevicePtr(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))) }
