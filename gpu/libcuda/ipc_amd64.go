package libcuda

import "unsafe"

// openIPCWords: address and flags are in the first two of six registers, and the handle, a structure of more than 16
// bytes, follows on the stack (System V ABI, class MEMORY).
const openIPCWords = 6 + 8

func (c *Context) openIPC(p *DevicePtr, h *IPCHandle) error {
	w := h.words()
	return c.call(cuIpcOpenMemHandle, uintptr(unsafe.Pointer(p)), lazyPeerAccess, 0, 0, 0, 0, w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7])
}
