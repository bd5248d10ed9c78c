package libcuda

import (
	"fmt"
	"runtime"
	"unsafe"
)

// Module is loaded device code.
type Module struct {
	ctx    *Context
	handle uintptr
}

// LoadModule compiles PTX for the device and loads it.
func (c *Context) LoadModule(ptx string) (*Module, error) {
	m := &Module{ctx: c}
	text := append([]byte(ptx), 0)
	err := c.call(cuModuleLoadDataEx, uintptr(unsafe.Pointer(&m.handle)), uintptr(unsafe.Pointer(&text[0])), 0, 0, 0)
	runtime.KeepAlive(text)
	if err != nil {
		return nil, fmt.Errorf("load the device code: %w", err)
	}
	return m, nil
}

// Unload gives the code back. None of its kernels may be running.
func (m *Module) Unload() error { return m.ctx.call(cuModuleUnload, m.handle) }

// maxKernelParams is how many parameters Launch passes at most.
const maxKernelParams = 8

// Kernel is one entry of a module. Its calls must not run side by side.
type Kernel struct {
	ctx    *Context
	handle uintptr
	// values of the parameters, and their addresses, which the driver reads: here, so that a launch allocates nothing.
	values [maxKernelParams]uint64
	at     [maxKernelParams]unsafe.Pointer
}

// Kernel finds an entry by name.
func (m *Module) Kernel(name string) (*Kernel, error) {
	k := &Kernel{ctx: m.ctx}
	text := append([]byte(name), 0)
	err := m.ctx.call(cuModuleGetFunction, uintptr(unsafe.Pointer(&k.handle)), m.handle, uintptr(unsafe.Pointer(&text[0])))
	runtime.KeepAlive(text)
	if err != nil {
		return nil, fmt.Errorf("kernel %s: %w", name, err)
	}
	return k, nil
}

// Launch queues the kernel with blocks times threads, and 64-bit parameters. A parameter that the kernel declares
// smaller takes the low bytes. The driver copies the parameters before it returns.
func (k *Kernel) Launch(s *Stream, blocks, threads uint32, params ...uint64) error {
	if len(params) > maxKernelParams {
		return fmt.Errorf("%w: %d kernel parameters", errWords, len(params))
	}
	for i, v := range params {
		k.values[i], k.at[i] = v, unsafe.Pointer(&k.values[i])
	}
	return k.ctx.call(cuLaunchKernel, k.handle, uintptr(blocks), 1, 1, uintptr(threads), 1, 1, 0, s.handle, uintptr(unsafe.Pointer(&k.at)), 0)
}
