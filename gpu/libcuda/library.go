// Package libcuda calls the CUDA driver library without cgo and without a CUDA toolkit: libcuda.so.1 is loaded at run
// time, and every entry point is asked of it in one known version. It adds no policy: one method is one call of the
// driver, with typed arguments and errors.
//
// A fault inside the library ends the process, and so does a call that never returns, in effect: no call can be
// called back. So the daemon never loads the library; its copiers do, one child process for each GPU.
//
// Sources: cuda.h and cudaTypedefs.h of CUDA 12.4 to 13.5, with which the ABI test compiles the table; "CUDA Driver
// API" reference manual.
package libcuda

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"unsafe"
)

// DefaultPath is the driver's library as the driver's package installs it. The name without a version is the stub of
// the toolkits.
const DefaultPath = "libcuda.so.1"

// OldestVersion is the oldest CUDA version of a driver that kvconn runs on: 12.4.
const OldestVersion Version = 12040

// Version is a CUDA version as 1000*major + 10*minor.
type Version int32

// String is the version as people write it, such as 12.8.
func (v Version) String() string { return fmt.Sprintf("%d.%d", v/1000, v%1000/10) }

// Library is a loaded driver. It is safe for concurrent use. It stays loaded until the process ends: the driver has
// threads of its own.
type Library struct {
	fns     [entryCount]uintptr
	version Version
}

// Open loads the library at path and initializes the driver. It returns [ErrNoDriver], [ErrStub] or [ErrTooOld], or
// an error of the driver.
func Open(path string) (*Library, error) {
	handle, err := open(path)
	if err != nil {
		return nil, fmt.Errorf("%w: load %s: %w", ErrNoDriver, path, err)
	}
	l := new(Library)
	if err := l.start(handle); err != nil {
		return nil, fmt.Errorf("CUDA driver %s: %w", path, err)
	}
	return l, nil
}

func (l *Library) start(handle uintptr) error {
	// The two functions without which no other can be judged have one form only, so their bare names are right.
	for _, e := range []entry{cuInit, cuDriverGetVersion} {
		fn, err := find(handle, entryPoints[e].name)
		if err != nil {
			return fmt.Errorf("%w: it has no %s", ErrNoDriver, entryPoints[e].name)
		}
		l.fns[e] = fn
	}
	var version Version
	if err := l.call(cuDriverGetVersion, uintptr(unsafe.Pointer(&version))); err != nil {
		return asNoDriver(err)
	}
	if version < OldestVersion {
		return fmt.Errorf("%w: it is for CUDA %s, and %s is needed", ErrTooOld, version, OldestVersion)
	}
	l.version = version
	if err := l.call(cuInit, 0); err != nil {
		return asNoDriver(err)
	}
	return l.resolve(handle)
}

// asNoDriver gives the answers of a driver that can serve nobody their names.
func asNoDriver(err error) error {
	switch CodeOf(err) {
	case StubLibrary:
		return fmt.Errorf("%w: %w", ErrStub, err)
	case NoDevice, SystemNotReady, DriverMismatch, CompatNotSupported:
		return fmt.Errorf("%w: %w", ErrNoDriver, err)
	}
	return err
}

// resolve asks the driver for every entry point in its version. The driver answers success with a null address for
// one that it lacks.
func (l *Library) resolve(handle uintptr) error {
	ask, err := find(handle, "cuGetProcAddress_v2")
	if err != nil {
		return fmt.Errorf("%w: it has no cuGetProcAddress_v2", ErrTooOld)
	}
	var missing []string
	for e := range entryCount {
		p := &entryPoints[e]
		if p.version > int32(l.version) {
			continue // the driver would answer that the version is no valid value
		}
		var fn uintptr
		var status int32
		name := append([]byte(p.name), 0)
		r := invoke(ask, uintptr(unsafe.Pointer(&name[0])), uintptr(unsafe.Pointer(&fn)), uintptr(p.version), 0, uintptr(unsafe.Pointer(&status)))
		runtime.KeepAlive(name)
		if Code(int32(r)) == Success && fn != 0 {
			l.fns[e] = fn
		} else if !p.optional {
			missing = append(missing, p.name)
		}
	}
	if missing != nil {
		return fmt.Errorf("%w: it lacks %v", ErrTooOld, missing)
	}
	return nil
}

// Version is the newest CUDA version that the driver serves.
func (l *Library) Version() Version { return l.version }

// errWords means a call that does not fit its prototype.
var errWords = errors.New("call with the wrong number of argument words")

// raw is the one place that calls the driver. It refuses a call of another number of words than the prototype has.
// Go memory that words point to is converted in the argument list itself (as for syscall.Syscall).
//
//go:uintptrescapes
func (l *Library) raw(e entry, words ...uintptr) (Code, error) {
	p := &entryPoints[e]
	if len(words) != p.words {
		return 0, fmt.Errorf("%w: %s takes %d, not %d", errWords, p.name, p.words, len(words))
	}
	fn := l.fns[e]
	if fn == 0 {
		return 0, fmt.Errorf("%w: %s (it is of CUDA %s)", ErrUnsupported, p.name, Version(p.version))
	}
	// A CUresult has 32 bits; the rest of the register is anything.
	r := invoke(fn, words...)
	return Code(int32(r)), nil
}

// call is raw with the driver's answer as an error.
//
//go:uintptrescapes
func (l *Library) call(e entry, words ...uintptr) error {
	code, err := l.raw(e, words...)
	if err != nil {
		return err
	}
	return answer(e, code, words)
}

// answer makes an error of what the driver answered, nil of success.
func answer(e entry, code Code, words []uintptr) error {
	if code == Success {
		return nil
	}
	return &Error{Entry: entryPoints[e].name, Code: code, Args: slices.Clone(words)}
}

// HasBatch reports whether the driver takes many copies in one call (CUDA 12.8).
func (l *Library) HasBatch() bool { return l.has(cuMemcpyBatchAsync) }

// HasStreamWrites reports whether a stream can write a 64-bit value; the device must be able to, as well
// (AttrStreamMemOps64).
func (l *Library) HasStreamWrites() bool { return l.has(cuStreamWriteValue64) }

// has reports whether an optional entry point is there.
func (l *Library) has(e entry) bool { return l.fns[e] != 0 }
