//go:build linux && (amd64 || arm64) && !nogpu

package libcuda

import "github.com/ebitengine/purego"

// Built says whether this program can load a driver.
const Built = true

// open loads a library and keeps its symbols to itself.
func open(path string) (handle uintptr, err error) {
	return purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
}

// find is the address of a symbol.
func find(handle uintptr, symbol string) (uintptr, error) { return purego.Dlsym(handle, symbol) }

// invoke calls a C function. Its answer is the whole return register.
//
//go:uintptrescapes
func invoke(fn uintptr, words ...uintptr) uintptr {
	r, _, _ := purego.SyscallN(fn, words...)
	return r
}
