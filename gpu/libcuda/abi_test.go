package libcuda

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"
)

// headersEnv names folders with NVIDIA's cuda.h and cudaTypedefs.h, one for each CUDA version, separated by colons.
// integration/gpu/registry.py brings them from the package registry.
const headersEnv = "KVCONN_CUDA_HEADERS"

// The table, structures and constants are compiled with NVIDIA's own headers. A wrong one does not compile.
func TestTableFitsTheRealHeaders(t *testing.T) {
	for _, dir := range headers(t) {
		t.Run(filepath.Base(strings.TrimSuffix(dir, "/include")), func(t *testing.T) {
			if out, err := compile(t, dir, abiSource(entryPoints)); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
		})
	}
}

// The check must find what it is there for.
func TestWrongTablesDoNotCompile(t *testing.T) {
	dir := headers(t)[0]
	for name, spoil := range map[string]func(*[entryCount]entryPoint){
		"another type":    func(e *[entryCount]entryPoint) { e[cuMemAlloc].params = "CUdeviceptr*, unsigned int" },
		"another count":   func(e *[entryCount]entryPoint) { e[cuMemFree].params = "CUdeviceptr, size_t" },
		"another version": func(e *[entryCount]entryPoint) { e[cuMemAlloc].version = 2000 },
		"another name":    func(e *[entryCount]entryPoint) { e[cuMemFree].name = "cuMemFreeAll" },
		"words too few":   func(e *[entryCount]entryPoint) { e[cuMemHostRegister].words = 2 },
		"words too many":  func(e *[entryCount]entryPoint) { e[cuIpcOpenMemHandle].words++ },
	} {
		t.Run(name, func(t *testing.T) {
			table := entryPoints
			spoil(&table)
			if _, err := compile(t, dir, abiSource(table)); err == nil {
				t.Error("it compiled")
			}
		})
	}
}

func headers(t *testing.T) []string {
	t.Helper()
	dirs := filepath.SplitList(os.Getenv(headersEnv))
	if len(dirs) == 0 {
		t.Skipf("%s is not set: integration/gpu/registry.py brings NVIDIA's headers", headersEnv)
	}
	return dirs
}

func compile(t *testing.T, include, source string) ([]byte, error) {
	t.Helper()
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("no gcc")
	}
	file := filepath.Join(t.TempDir(), "abi.c")
	if err := os.WriteFile(file, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	return exec.CommandContext(t.Context(), gcc, "-std=gnu11", "-fsyntax-only", "-Wall", "-Werror", "-isystem", include, file).CombinedOutput()
}

// abiSource is C code that asserts what the Go code assumes.
func abiSource(table [entryCount]entryPoint) string {
	var b strings.Builder
	// The macro removes the renaming of entry points and declares all versions under their true names.
	b.WriteString("#include <stddef.h>\n#define __CUDA_API_VERSION_INTERNAL\n#include <cuda.h>\n#include <cudaTypedefs.h>\n")
	for _, e := range table {
		pfn := fmt.Sprintf("PFN_%s_v%d", e.name, e.version)
		if e.version == 12080 {
			fmt.Fprintf(&b, "#if CUDA_VERSION >= %d\n", e.version)
		}
		fmt.Fprintf(&b, "_Static_assert(__builtin_types_compatible_p(%s, CUresult (*)(%s)), %q);\n", pfn, e.params, e.name)
		var words []string
		onStack := "0"
		for p := range strings.SplitSeq(e.params, ",") {
			p = strings.TrimSpace(p)
			words = append(words, fmt.Sprintf("(sizeof(%s) > 16 ? 0 : 1)", p))
			onStack += fmt.Sprintf(" + (sizeof(%s) > 16 ? sizeof(%s) / 8 : 0)", p, p)
		}
		// A structure of more than 16 bytes lies after the six registers.
		fmt.Fprintf(&b, "_Static_assert((%[1]s) == 0 ? %[2]d == %[3]s : %[2]d == 6 + (%[1]s), \"words of %[4]s\");\n",
			onStack, e.words, strings.Join(words, " + "), e.name)
		if e.version == 12080 {
			b.WriteString("#endif\n")
		}
	}
	writeLayouts(&b)
	writeConstants(&b)
	return b.String()
}

func writeLayouts(b *strings.Builder) {
	var p allocationProp
	var a accessDesc
	var c copyAttributes
	size := func(c string, n uintptr) { fmt.Fprintf(b, "_Static_assert(sizeof(%s) == %d, %q);\n", c, n, c) }
	offset := func(c, field string, n uintptr) {
		fmt.Fprintf(b, "_Static_assert(offsetof(%s, %s) == %d, \"%s.%s\");\n", c, field, n, c, field)
	}
	size("CUmemAllocationProp", unsafe.Sizeof(p))
	offset("CUmemAllocationProp", "type", unsafe.Offsetof(p.kind))
	offset("CUmemAllocationProp", "requestedHandleTypes", unsafe.Offsetof(p.handleTypes))
	offset("CUmemAllocationProp", "location", unsafe.Offsetof(p.location))
	offset("CUmemAllocationProp", "win32HandleMetaData", unsafe.Offsetof(p.win32))
	offset("CUmemAllocationProp", "allocFlags.gpuDirectRDMACapable", unsafe.Offsetof(p.rdmaCapable))
	offset("CUmemAllocationProp", "allocFlags.usage", unsafe.Offsetof(p.usage))
	size("CUmemAccessDesc", unsafe.Sizeof(a))
	offset("CUmemAccessDesc", "flags", unsafe.Offsetof(a.flags))
	size("CUmemLocation", unsafe.Sizeof(location{}))
	offset("CUmemLocation", "id", unsafe.Offsetof(location{}.id))
	size("CUipcMemHandle", unsafe.Sizeof(IPCHandle{}))
	size("CUuuid", unsafe.Sizeof(UUID{}))
	b.WriteString("#if CUDA_VERSION >= 12080\n")
	size("CUmemcpyAttributes", unsafe.Sizeof(c))
	offset("CUmemcpyAttributes", "srcAccessOrder", unsafe.Offsetof(c.order))
	offset("CUmemcpyAttributes", "srcLocHint", unsafe.Offsetof(c.srcHint))
	offset("CUmemcpyAttributes", "dstLocHint", unsafe.Offsetof(c.dstHint))
	offset("CUmemcpyAttributes", "flags", unsafe.Offsetof(c.flags))
	fmt.Fprintf(b, "_Static_assert(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM == %d && CU_MEMCPY_SRC_ACCESS_ORDER_ANY == %d, \"orders\");\n",
		OrderStream, OrderAny)
	b.WriteString("#endif\n")
}

func writeConstants(b *strings.Builder) {
	for name, code := range map[string]Code{
		"CUDA_SUCCESS": Success, "CUDA_ERROR_TIMEOUT": 909,
	} {
		fmt.Fprintf(b, "_Static_assert(%s == %d, %q);\n", name, code, name)
	}
	for code, name := range codeNames {
		if code == tensorMemoryLeak || code == contained { // of CUDA 12.8 and 12.6
			b.WriteString("#if CUDA_VERSION >= 12080\n")
		}
		fmt.Fprintf(b, "_Static_assert(CUDA_ERROR_%s == %d, %q);\n", name, code, name)
		if code == tensorMemoryLeak || code == contained {
			b.WriteString("#endif\n")
		}
	}
	for name, v := range map[string]int{
		"CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT":                          int(AttrCopyEngines),
		"CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR":                    int(AttrMajor),
		"CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR":                    int(AttrMinor),
		"CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED":                     int(AttrHostRegister),
		"CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED":         int(AttrVMM),
		"CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED": int(AttrPosixFD),
		"CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS":               int(AttrStreamMemOps64),
		"CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED":                int(AttrFabric),
		"CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID":                                int(AttrHostNUMANode),
		"CU_MEMHOSTREGISTER_PORTABLE":                                     hostPortable,
		"CU_MEMHOSTREGISTER_DEVICEMAP":                                    hostDeviceMap,
		"CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS":                              lazyPeerAccess,
		"CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR":                        int(HandlePosix),
		"CU_MEM_HANDLE_TYPE_FABRIC":                                       int(HandleFabric),
		"CU_MEM_ALLOCATION_TYPE_PINNED":                                   allocationPinned,
		"CU_MEM_LOCATION_TYPE_DEVICE":                                     locationDevice,
		"CU_MEM_ACCESS_FLAGS_PROT_READWRITE":                              accessReadWrite,
		"CU_STREAM_NON_BLOCKING":                                          streamNonBlocking,
		"CU_EVENT_BLOCKING_SYNC":                                          eventBlockingSync,
		"CU_EVENT_DISABLE_TIMING":                                         eventDisableTiming,
		"CU_STREAM_WRITE_VALUE_DEFAULT":                                   0,
		"CU_MEM_ALLOC_GRANULARITY_MINIMUM":                                0,
	} {
		fmt.Fprintf(b, "_Static_assert(%s == %d, %q);\n", name, v, name)
	}
}
