package libcuda

import "unsafe"

// openIPCWords: a structure of more than 16 bytes is passed by the address of a copy (AAPCS64).
const openIPCWords = 3

func (c *Context) openIPC(p *DevicePtr, h *IPCHandle) error {
	byValue := *h
	return c.call(cuIpcOpenMemHandle, uintptr(unsafe.Pointer(p)), uintptr(unsafe.Pointer(&byValue)), lazyPeerAccess)
}
