package libcuda

import (
	"errors"
	"fmt"
	"strings"
)

// Errors of Open that callers decide on.
var (
	// ErrNoDriver means that the machine has no CUDA driver library, or one that finds no device.
	ErrNoDriver = errors.New("no CUDA driver")
	// ErrStub means that the library is the stub that toolkits bring for linking, not a driver.
	ErrStub = errors.New("the CUDA library is a stub, not a driver")
	// ErrTooOld means that the driver is older than OldestVersion.
	ErrTooOld = errors.New("the CUDA driver is too old")
	// ErrUnsupported means that this driver lacks an optional entry point.
	ErrUnsupported = errors.New("not supported by this CUDA driver")
)

// Code is a CUresult.
type Code int32

// Codes that callers tell apart. The ABI test compares them with NVIDIA's headers.
const (
	Success              Code = 0
	InvalidValue         Code = 1
	OutOfMemory          Code = 2
	NotInitialized       Code = 3
	Deinitialized        Code = 4
	StubLibrary          Code = 34
	NoDevice             Code = 100
	InvalidDevice        Code = 101
	InvalidContext       Code = 201
	MapFailed            Code = 205
	InvalidPTX           Code = 218
	UnsupportedPTX       Code = 222
	InvalidHandle        Code = 400
	NotFound             Code = 500
	NotReady             Code = 600
	IllegalAddress       Code = 700
	LaunchTimeout        Code = 702
	AlreadyRegistered    Code = 712
	NotRegistered        Code = 713
	MisalignedAddress    Code = 716
	LaunchFailed         Code = 719
	NotPermitted         Code = 800
	NotSupported         Code = 801
	SystemNotReady       Code = 802
	DriverMismatch       Code = 803
	CompatNotSupported   Code = 804
	UnknownError         Code = 999
	eccUncorrectable     Code = 214
	contained            Code = 226
	nvlinkUncorrectable  Code = 220
	noPeerAccess         Code = 217
	assertFailed         Code = 710
	hardwareStackError   Code = 714
	externalDevice       Code = 911
	mpsClientTerminated  Code = 810
	tensorMemoryLeak     Code = 721
	invalidAddressSpace  Code = 717
	invalidProgramCount  Code = 718
	illegalInstruction   Code = 715
	operatingSystemError Code = 304
)

// Sticky reports whether the context is dead after it: every later call fails, and only a new process heals it
// (cuda.h: "the process must be terminated and relaunched"). 214, 220 and 710 are counted among them, too.
func (c Code) Sticky() bool {
	switch c {
	case eccUncorrectable, nvlinkUncorrectable, contained, IllegalAddress, LaunchTimeout, assertFailed, hardwareStackError,
		illegalInstruction, MisalignedAddress, invalidAddressSpace, invalidProgramCount, LaunchFailed, tensorMemoryLeak,
		mpsClientTerminated, externalDevice:
		return true
	}
	return false
}

// String is the name in NVIDIA's headers without its prefix, or the number.
func (c Code) String() string {
	if s, ok := codeNames[c]; ok {
		return fmt.Sprintf("%s (%d)", s, int32(c))
	}
	return fmt.Sprintf("CUDA error %d", int32(c))
}

var codeNames = map[Code]string{
	InvalidValue: "INVALID_VALUE", OutOfMemory: "OUT_OF_MEMORY", NotInitialized: "NOT_INITIALIZED",
	Deinitialized: "DEINITIALIZED", StubLibrary: "STUB_LIBRARY", NoDevice: "NO_DEVICE", InvalidDevice: "INVALID_DEVICE",
	InvalidContext: "INVALID_CONTEXT", MapFailed: "MAP_FAILED", eccUncorrectable: "ECC_UNCORRECTABLE",
	noPeerAccess: "PEER_ACCESS_UNSUPPORTED", InvalidPTX: "INVALID_PTX", nvlinkUncorrectable: "NVLINK_UNCORRECTABLE", UnsupportedPTX: "UNSUPPORTED_PTX_VERSION",
	contained: "CONTAINED", operatingSystemError: "OPERATING_SYSTEM", InvalidHandle: "INVALID_HANDLE", NotFound: "NOT_FOUND",
	NotReady: "NOT_READY", IllegalAddress: "ILLEGAL_ADDRESS", LaunchTimeout: "LAUNCH_TIMEOUT", assertFailed: "ASSERT",
	AlreadyRegistered: "HOST_MEMORY_ALREADY_REGISTERED", NotRegistered: "HOST_MEMORY_NOT_REGISTERED",
	hardwareStackError: "HARDWARE_STACK_ERROR", illegalInstruction: "ILLEGAL_INSTRUCTION",
	MisalignedAddress: "MISALIGNED_ADDRESS", invalidAddressSpace: "INVALID_ADDRESS_SPACE",
	invalidProgramCount: "INVALID_PC", LaunchFailed: "LAUNCH_FAILED", tensorMemoryLeak: "TENSOR_MEMORY_LEAK",
	NotPermitted: "NOT_PERMITTED", NotSupported: "NOT_SUPPORTED", SystemNotReady: "SYSTEM_NOT_READY",
	DriverMismatch: "SYSTEM_DRIVER_MISMATCH", CompatNotSupported: "COMPAT_NOT_SUPPORTED_ON_DEVICE",
	mpsClientTerminated: "MPS_CLIENT_TERMINATED", externalDevice: "EXTERNAL_DEVICE", UnknownError: "UNKNOWN",
}

// Error is a call that the driver answered with an error. The driver may answer any call with an error of an
// earlier asynchronous one.
type Error struct {
	Entry string
	Code  Code
	// Args are the argument words of the call, addresses included.
	Args []uintptr
}

// Error names the call with its arguments.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Entry)
	b.WriteByte('(')
	for i, w := range e.Args {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%#x", w)
	}
	return b.String() + "): " + e.Code.String()
}

// CodeOf is the code of an error that came from a call, and Success if it did not.
func CodeOf(err error) Code {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return Success
}

// IsSticky reports whether err ended the context of its process.
func IsSticky(err error) bool { return CodeOf(err).Sticky() }
