package libcuda

import (
	"fmt"
	"os"
	"unsafe"
)

// HandleType is a CUmemAllocationHandleType: how memory of the virtual memory calls can be exported.
type HandleType int32

// Kinds of export. A fabric handle needs a fabric manager's channel, which kvconn does not use.
const (
	HandleNone   HandleType = 0
	HandlePosix  HandleType = 1
	HandleFabric HandleType = 8
)

// Values of the structures below.
const (
	allocationPinned = 1
	locationDevice   = 1
	accessReadWrite  = 3
)

// location is CUmemLocation.
type location struct {
	kind int32
	id   int32
}

// allocationProp is CUmemAllocationProp, 32 bytes.
type allocationProp struct {
	kind        int32
	handleTypes HandleType
	location    location
	win32       uint64
	compression uint8
	rdmaCapable uint8
	usage       uint16
	reserved    [4]uint8
}

// accessDesc is CUmemAccessDesc, 12 bytes.
type accessDesc struct {
	location location
	flags    int32
}

// Allocation is a handle of physical memory. It holds the memory until it is released, mapped or not, and so does
// every open descriptor that it was exported to.
type Allocation uint64

func (c *Context) prop(t HandleType) *allocationProp {
	return &allocationProp{kind: allocationPinned, handleTypes: t, location: location{locationDevice, c.dev.ordinal}}
}

// Granularity is what sizes and addresses of allocations on this device are multiples of.
func (c *Context) Granularity(t HandleType) (int64, error) {
	var n uint64
	if err := c.call(cuMemGetAllocationGranularity, uintptr(unsafe.Pointer(&n)), uintptr(unsafe.Pointer(c.prop(t))), 0); err != nil {
		return 0, fmt.Errorf("granularity of allocations: %w", err)
	}
	return int64(n), nil
}

// CreateAllocation makes physical memory on the device, exportable as t says.
func (c *Context) CreateAllocation(sizeBytes int64, t HandleType) (Allocation, error) {
	var a Allocation
	if err := c.call(cuMemCreate, uintptr(unsafe.Pointer(&a)), uintptr(sizeBytes), uintptr(unsafe.Pointer(c.prop(t))), 0); err != nil {
		return 0, fmt.Errorf("create %d bytes on the device: %w", sizeBytes, err)
	}
	return a, nil
}

// ReleaseAllocation gives a handle back.
func (c *Context) ReleaseAllocation(a Allocation) error { return c.call(cuMemRelease, uintptr(a)) }

// ExportAllocation makes a descriptor of the allocation, which other processes import. The memory stays allocated
// while it is open.
func (c *Context) ExportAllocation(a Allocation) (*os.File, error) {
	fd := int32(-1)
	if err := c.call(cuMemExportToShareableHandle, uintptr(unsafe.Pointer(&fd)), uintptr(a), uintptr(HandlePosix), 0); err != nil {
		return nil, fmt.Errorf("export an allocation: %w", err)
	}
	return os.NewFile(uintptr(fd), "CUDA allocation"), nil
}

// ImportAllocation makes a handle of another process's export. The descriptor may be closed afterwards.
func (c *Context) ImportAllocation(f *os.File) (Allocation, error) {
	var a Allocation
	if err := c.call(cuMemImportFromShareableHandle, uintptr(unsafe.Pointer(&a)), f.Fd(), uintptr(HandlePosix)); err != nil {
		return 0, fmt.Errorf("import an allocation: %w", err)
	}
	return a, nil
}

// Reserve takes a range of device addresses without memory.
func (c *Context) Reserve(sizeBytes int64) (DevicePtr, error) {
	var p DevicePtr
	if err := c.call(cuMemAddressReserve, uintptr(unsafe.Pointer(&p)), uintptr(sizeBytes), 0, 0, 0); err != nil {
		return 0, fmt.Errorf("reserve %d bytes of device addresses: %w", sizeBytes, err)
	}
	return p, nil
}

// FreeAddresses gives a whole reservation back.
func (c *Context) FreeAddresses(p DevicePtr, sizeBytes int64) error {
	return c.call(cuMemAddressFree, uintptr(p), uintptr(sizeBytes))
}

// Map maps a whole allocation into a reservation and lets the context's device read and write it.
func (c *Context) Map(p DevicePtr, sizeBytes int64, a Allocation) error {
	if err := c.call(cuMemMap, uintptr(p), uintptr(sizeBytes), 0, uintptr(a), 0); err != nil {
		return fmt.Errorf("map %d bytes on the device: %w", sizeBytes, err)
	}
	access := &accessDesc{location: location{locationDevice, c.dev.ordinal}, flags: accessReadWrite}
	if err := c.call(cuMemSetAccess, uintptr(p), uintptr(sizeBytes), uintptr(unsafe.Pointer(access)), 1); err != nil {
		_ = c.Unmap(p, sizeBytes)
		return fmt.Errorf("let the device use %d mapped bytes: %w", sizeBytes, err)
	}
	return nil
}

// Unmap undoes Map of whole mappings.
func (c *Context) Unmap(p DevicePtr, sizeBytes int64) error {
	return c.call(cuMemUnmap, uintptr(p), uintptr(sizeBytes))
}
