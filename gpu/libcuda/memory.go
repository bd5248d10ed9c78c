package libcuda

import (
	"encoding/binary"
	"fmt"
	"unsafe"
)

// DevicePtr is an address in a device's memory. The host must not follow it.
type DevicePtr uint64

// Alloc allocates device memory of the legacy kind, which cuIpcGetMemHandle exports.
func (c *Context) Alloc(sizeBytes int64) (DevicePtr, error) {
	var p DevicePtr
	if err := c.call(cuMemAlloc, uintptr(unsafe.Pointer(&p)), uintptr(sizeBytes)); err != nil {
		return 0, fmt.Errorf("allocate %d bytes on the device: %w", sizeBytes, err)
	}
	return p, nil
}

// Free gives an allocation back.
func (c *Context) Free(p DevicePtr) error { return c.call(cuMemFree, uintptr(p)) }

// AddressRange is the allocation or mapping that p lies in. For memory of the virtual memory calls it is one mapping,
// not the reservation around it.
func (c *Context) AddressRange(p DevicePtr) (base DevicePtr, sizeBytes int64, err error) {
	var n uint64
	if err := c.call(cuMemGetAddressRange, uintptr(unsafe.Pointer(&base)), uintptr(unsafe.Pointer(&n)), uintptr(p)); err != nil {
		return 0, 0, fmt.Errorf("allocation of %#x: %w", p, err)
	}
	return base, int64(n), nil
}

// Flags of cuMemHostRegister: usable by all contexts, and by kernels.
const (
	hostPortable  = 1
	hostDeviceMap = 2
)

// HostRegister locks the pages of host memory and makes it known to the device, so that copies from and to it are
// direct memory access. One copy must not cross two registrations. mem must be of mmap, not of the Go heap.
func (c *Context) HostRegister(mem []byte) error {
	if err := c.call(cuMemHostRegister, addr(mem), uintptr(len(mem)), hostPortable|hostDeviceMap); err != nil {
		return fmt.Errorf("register %d bytes of host memory: %w", len(mem), err)
	}
	return nil
}

// HostUnregister undoes HostRegister of the same memory.
func (c *Context) HostUnregister(mem []byte) error { return c.call(cuMemHostUnregister, addr(mem)) }

// HostDevicePtr is the address by which kernels and stream operations reach registered host memory.
func (c *Context) HostDevicePtr(mem []byte) (DevicePtr, error) {
	var p DevicePtr
	if err := c.call(cuMemHostGetDevicePointer, uintptr(unsafe.Pointer(&p)), addr(mem), 0); err != nil {
		return 0, fmt.Errorf("device address of host memory: %w", err)
	}
	return p, nil
}

// addr is the address of mapped memory.
func addr(mem []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(mem))) }

// IPCHandle names a whole legacy allocation to other processes.
type IPCHandle [64]byte

// words are the handle as argument words.
func (h *IPCHandle) words() (w [8]uintptr) {
	for i := range w {
		w[i] = uintptr(binary.LittleEndian.Uint64(h[8*i:]))
	}
	return w
}

// IPCHandle exports the allocation that p is the base of.
func (c *Context) IPCHandle(p DevicePtr) (IPCHandle, error) {
	var h IPCHandle
	if err := c.call(cuIpcGetMemHandle, uintptr(unsafe.Pointer(&h)), uintptr(p)); err != nil {
		return h, fmt.Errorf("export %#x: %w", p, err)
	}
	return h, nil
}

// lazyPeerAccess is the only flag of cuIpcOpenMemHandle.
const lazyPeerAccess = 1

// OpenIPC maps the allocation of another process. Freeing it there before CloseIPC here is undefined; the death of
// that process is not.
func (c *Context) OpenIPC(h IPCHandle) (DevicePtr, error) {
	var p DevicePtr
	if err := c.openIPC(&p, &h); err != nil {
		return 0, fmt.Errorf("open another process's device memory: %w", err)
	}
	return p, nil
}

// CloseIPC undoes OpenIPC.
func (c *Context) CloseIPC(p DevicePtr) error { return c.call(cuIpcCloseMemHandle, uintptr(p)) }
