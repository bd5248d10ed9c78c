package libcuda

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"
	"unsafe"
)

// UUID names a device the same in every process and container, unlike its ordinal.
type UUID [16]byte

// String is the form that nvidia-smi and CUDA_VISIBLE_DEVICES use.
func (u UUID) String() string {
	return fmt.Sprintf("GPU-%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

// Attribute is a CUdevice_attribute.
type Attribute int32

// Attributes that kvconn asks for.
const (
	AttrCopyEngines    Attribute = 40
	AttrMajor          Attribute = 75
	AttrMinor          Attribute = 76
	AttrHostRegister   Attribute = 99
	AttrVMM            Attribute = 102
	AttrPosixFD        Attribute = 103
	AttrStreamMemOps64 Attribute = 122
	AttrFabric         Attribute = 128
	AttrHostNUMANode   Attribute = 134
)

// Device is one GPU.
type Device struct {
	lib     *Library
	ordinal int32
}

// Devices are all that this process sees.
func (l *Library) Devices() ([]Device, error) {
	var n int32
	if err := l.call(cuDeviceGetCount, uintptr(unsafe.Pointer(&n))); err != nil {
		return nil, fmt.Errorf("count devices: %w", err)
	}
	devices := make([]Device, n)
	for i := range devices {
		devices[i].lib = l
		if err := l.call(cuDeviceGet, uintptr(unsafe.Pointer(&devices[i].ordinal)), uintptr(i)); err != nil {
			return nil, fmt.Errorf("device %d: %w", i, err)
		}
	}
	return devices, nil
}

// Ordinal is the device's number in this process.
func (d Device) Ordinal() int { return int(d.ordinal) }

// UUID of the device.
func (d Device) UUID() (UUID, error) {
	var u UUID
	if err := d.lib.call(cuDeviceGetUUID, uintptr(unsafe.Pointer(&u)), uintptr(d.ordinal)); err != nil {
		return u, fmt.Errorf("device %d: %w", d.ordinal, err)
	}
	return u, nil
}

// Name is the marketing name.
func (d Device) Name() (string, error) {
	return d.text(cuDeviceGetName)
}

// PCIBusID is in lower case, as the directories under /sys/bus/pci/devices are.
func (d Device) PCIBusID() (string, error) {
	s, err := d.text(cuDeviceGetPCIBusID)
	return strings.ToLower(s), err
}

func (d Device) text(e entry) (string, error) {
	b := make([]byte, 256)
	err := d.lib.call(e, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), uintptr(d.ordinal))
	runtime.KeepAlive(b)
	if err != nil {
		return "", fmt.Errorf("device %d: %w", d.ordinal, err)
	}
	text, _, _ := bytes.Cut(b, []byte{0})
	return string(text), nil
}

// TotalBytes is the size of the device's memory.
func (d Device) TotalBytes() (int64, error) {
	var n uint64
	if err := d.lib.call(cuDeviceTotalMem, uintptr(unsafe.Pointer(&n)), uintptr(d.ordinal)); err != nil {
		return 0, fmt.Errorf("device %d: %w", d.ordinal, err)
	}
	return int64(n), nil
}

// Attribute of the device.
func (d Device) Attribute(a Attribute) (int, error) {
	var v int32
	if err := d.lib.call(cuDeviceGetAttribute, uintptr(unsafe.Pointer(&v)), uintptr(a), uintptr(d.ordinal)); err != nil {
		return 0, fmt.Errorf("device %d: attribute %d: %w", d.ordinal, a, err)
	}
	return int(v), nil
}

// Context is a device's primary context, the one that torch uses, too. Calls in it set it on their thread first: the
// current context belongs to the OS thread, and Go moves goroutines between threads.
type Context struct {
	lib    *Library
	dev    Device
	handle uintptr
}

// Retain makes the device's primary context or takes part in it. It takes some hundred MB of the device's memory.
func (d Device) Retain() (*Context, error) {
	c := &Context{lib: d.lib, dev: d}
	if err := d.lib.call(cuDevicePrimaryCtxRetain, uintptr(unsafe.Pointer(&c.handle)), uintptr(d.ordinal)); err != nil {
		return nil, fmt.Errorf("context of device %d: %w", d.ordinal, err)
	}
	return c, nil
}

// Release gives the context back. Nothing of it may be used afterwards.
func (c *Context) Release() error {
	if err := c.lib.call(cuDevicePrimaryCtxRelease, uintptr(c.dev.ordinal)); err != nil {
		return fmt.Errorf("release the context of device %d: %w", c.dev.ordinal, err)
	}
	return nil
}

// Device of the context.
// HasBatch reports whether the driver takes many copies in one call (CUDA 12.8).
func (c *Context) HasBatch() bool { return c.lib.HasBatch() }

func (c *Context) Device() Device { return c.dev }

// raw makes the context current on this thread and calls the driver. An earlier caller's context may still be current
// there, so it is set every time.
//
//go:uintptrescapes
func (c *Context) raw(e entry, words ...uintptr) (Code, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := c.lib.call(cuCtxSetCurrent, c.handle); err != nil {
		return 0, err
	}
	return c.lib.raw(e, words...)
}

// call is raw with the driver's answer as an error.
//
//go:uintptrescapes
func (c *Context) call(e entry, words ...uintptr) error {
	code, err := c.raw(e, words...)
	if err != nil {
		return err
	}
	return answer(e, code, words)
}

// ready asks the driver about work that may not be done yet. It makes no error of NotReady, so that polling does not
// allocate.
func (c *Context) ready(e entry, handle uintptr) (bool, error) {
	code, err := c.raw(e, handle)
	if err != nil || code == NotReady {
		return false, err
	}
	err = answer(e, code, []uintptr{handle})
	return err == nil, err
}

// MemInfo is how much of the device's memory is free, and all of it, in bytes.
func (c *Context) MemInfo() (freeBytes, totalBytes int64, err error) {
	var f, t uint64
	if err := c.call(cuMemGetInfo, uintptr(unsafe.Pointer(&f)), uintptr(unsafe.Pointer(&t))); err != nil {
		return 0, 0, err
	}
	return int64(f), int64(t), nil
}
