package libcuda

// entry is the number of an entry point in the table.
type entry int

// Entry points that are called.
const (
	cuInit entry = iota
	cuDriverGetVersion
	cuDeviceGetCount
	cuDeviceGet
	cuDeviceGetName
	cuDeviceGetUUID
	cuDeviceGetPCIBusID
	cuDeviceGetAttribute
	cuDeviceTotalMem
	cuDevicePrimaryCtxRetain
	cuDevicePrimaryCtxRelease
	cuCtxSetCurrent
	cuMemGetInfo
	cuMemAlloc
	cuMemFree
	cuMemGetAddressRange
	cuMemHostRegister
	cuMemHostUnregister
	cuMemHostGetDevicePointer
	cuIpcGetMemHandle
	cuIpcOpenMemHandle
	cuIpcCloseMemHandle
	cuMemCreate
	cuMemRelease
	cuMemAddressReserve
	cuMemAddressFree
	cuMemMap
	cuMemUnmap
	cuMemSetAccess
	cuMemExportToShareableHandle
	cuMemImportFromShareableHandle
	cuMemGetAllocationGranularity
	cuStreamCreateWithPriority
	cuStreamDestroy
	cuStreamQuery
	cuStreamSynchronize
	cuStreamWaitEvent
	cuStreamWriteValue64
	cuEventCreate
	cuEventDestroy
	cuEventRecord
	cuEventQuery
	cuEventSynchronize
	cuEventElapsedTime
	cuMemcpyHtoDAsync
	cuMemcpyDtoHAsync
	cuMemsetD8Async
	cuMemcpyBatchAsync
	cuModuleLoadDataEx
	cuModuleGetFunction
	cuModuleUnload
	cuLaunchKernel
	entryCount
)

// entryPoint describes one function of the driver.
type entryPoint struct {
	// name is what cuGetProcAddress knows it by, without a suffix of its version.
	name string
	// version is the CUDA version whose form of the function is asked for, as 1000*major+10*minor.
	// A bare name in the library is the oldest form that ever was, with other argument types.
	version int32
	// words is how many 64-bit argument words a call passes. A structure by value takes what the machine's ABI says.
	words int
	// params are the C types of the arguments. The ABI test compares them with NVIDIA's headers.
	params string
	// optional means that kvconn works without it.
	optional bool
}

// entryPoints is the table of all functions that are called. The versions are those of cudaTypedefs.h; none but
// the optional ones is newer than [OldestVersion].
var entryPoints = [entryCount]entryPoint{
	cuInit:                         {"cuInit", 2000, 1, "unsigned int", false},
	cuDriverGetVersion:             {"cuDriverGetVersion", 2020, 1, "int*", false},
	cuDeviceGetCount:               {"cuDeviceGetCount", 2000, 1, "int*", false},
	cuDeviceGet:                    {"cuDeviceGet", 2000, 2, "CUdevice*, int", false},
	cuDeviceGetName:                {"cuDeviceGetName", 2000, 3, "char*, int, CUdevice", false},
	cuDeviceGetUUID:                {"cuDeviceGetUuid", 11040, 2, "CUuuid*, CUdevice", false},
	cuDeviceGetPCIBusID:            {"cuDeviceGetPCIBusId", 4010, 3, "char*, int, CUdevice", false},
	cuDeviceGetAttribute:           {"cuDeviceGetAttribute", 2000, 3, "int*, CUdevice_attribute, CUdevice", false},
	cuDeviceTotalMem:               {"cuDeviceTotalMem", 3020, 2, "size_t*, CUdevice", false},
	cuDevicePrimaryCtxRetain:       {"cuDevicePrimaryCtxRetain", 7000, 2, "CUcontext*, CUdevice", false},
	cuDevicePrimaryCtxRelease:      {"cuDevicePrimaryCtxRelease", 11000, 1, "CUdevice", false},
	cuCtxSetCurrent:                {"cuCtxSetCurrent", 4000, 1, "CUcontext", false},
	cuMemGetInfo:                   {"cuMemGetInfo", 3020, 2, "size_t*, size_t*", false},
	cuMemAlloc:                     {"cuMemAlloc", 3020, 2, "CUdeviceptr*, size_t", false},
	cuMemFree:                      {"cuMemFree", 3020, 1, "CUdeviceptr", false},
	cuMemGetAddressRange:           {"cuMemGetAddressRange", 3020, 3, "CUdeviceptr*, size_t*, CUdeviceptr", false},
	cuMemHostRegister:              {"cuMemHostRegister", 6050, 3, "void*, size_t, unsigned int", false},
	cuMemHostUnregister:            {"cuMemHostUnregister", 4000, 1, "void*", false},
	cuMemHostGetDevicePointer:      {"cuMemHostGetDevicePointer", 3020, 3, "CUdeviceptr*, void*, unsigned int", false},
	cuIpcGetMemHandle:              {"cuIpcGetMemHandle", 4010, 2, "CUipcMemHandle*, CUdeviceptr", false},
	cuIpcOpenMemHandle:             {"cuIpcOpenMemHandle", 11000, openIPCWords, "CUdeviceptr*, CUipcMemHandle, unsigned int", false},
	cuIpcCloseMemHandle:            {"cuIpcCloseMemHandle", 4010, 1, "CUdeviceptr", false},
	cuMemCreate:                    {"cuMemCreate", 10020, 4, "CUmemGenericAllocationHandle*, size_t, const CUmemAllocationProp*, unsigned long long", false},
	cuMemRelease:                   {"cuMemRelease", 10020, 1, "CUmemGenericAllocationHandle", false},
	cuMemAddressReserve:            {"cuMemAddressReserve", 10020, 5, "CUdeviceptr*, size_t, size_t, CUdeviceptr, unsigned long long", false},
	cuMemAddressFree:               {"cuMemAddressFree", 10020, 2, "CUdeviceptr, size_t", false},
	cuMemMap:                       {"cuMemMap", 10020, 5, "CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long", false},
	cuMemUnmap:                     {"cuMemUnmap", 10020, 2, "CUdeviceptr, size_t", false},
	cuMemSetAccess:                 {"cuMemSetAccess", 10020, 4, "CUdeviceptr, size_t, const CUmemAccessDesc*, size_t", false},
	cuMemExportToShareableHandle:   {"cuMemExportToShareableHandle", 10020, 4, "void*, CUmemGenericAllocationHandle, CUmemAllocationHandleType, unsigned long long", false},
	cuMemImportFromShareableHandle: {"cuMemImportFromShareableHandle", 10020, 3, "CUmemGenericAllocationHandle*, void*, CUmemAllocationHandleType", false},
	cuMemGetAllocationGranularity:  {"cuMemGetAllocationGranularity", 10020, 3, "size_t*, const CUmemAllocationProp*, CUmemAllocationGranularity_flags", false},
	cuStreamCreateWithPriority:     {"cuStreamCreateWithPriority", 5050, 3, "CUstream*, unsigned int, int", false},
	cuStreamDestroy:                {"cuStreamDestroy", 4000, 1, "CUstream", false},
	cuStreamQuery:                  {"cuStreamQuery", 2000, 1, "CUstream", false},
	cuStreamSynchronize:            {"cuStreamSynchronize", 2000, 1, "CUstream", false},
	cuStreamWaitEvent:              {"cuStreamWaitEvent", 3020, 3, "CUstream, CUevent, unsigned int", false},
	// Without 64-bit stream operations call numbers come another way.
	cuStreamWriteValue64: {"cuStreamWriteValue64", 11070, 4, "CUstream, CUdeviceptr, cuuint64_t, unsigned int", true},
	cuEventCreate:        {"cuEventCreate", 2000, 2, "CUevent*, unsigned int", false},
	cuEventDestroy:       {"cuEventDestroy", 4000, 1, "CUevent", false},
	cuEventRecord:        {"cuEventRecord", 2000, 2, "CUevent, CUstream", false},
	cuEventQuery:         {"cuEventQuery", 2000, 1, "CUevent", false},
	cuEventSynchronize:   {"cuEventSynchronize", 2000, 1, "CUevent", false},
	cuEventElapsedTime:   {"cuEventElapsedTime", 2000, 3, "float*, CUevent, CUevent", false},
	cuMemcpyHtoDAsync:    {"cuMemcpyHtoDAsync", 3020, 4, "CUdeviceptr, const void*, size_t, CUstream", false},
	cuMemcpyDtoHAsync:    {"cuMemcpyDtoHAsync", 3020, 4, "void*, CUdeviceptr, size_t, CUstream", false},
	cuMemsetD8Async:      {"cuMemsetD8Async", 3020, 4, "CUdeviceptr, unsigned char, size_t, CUstream", false},
	// The form of 12.8 is asked for from newer drivers, too: that of 13.0 has no failIdx, and a call in the wrong
	// form crashes.
	cuMemcpyBatchAsync: {
		"cuMemcpyBatchAsync", 12080, 9,
		"CUdeviceptr*, CUdeviceptr*, size_t*, size_t, CUmemcpyAttributes*, size_t*, size_t, size_t*, CUstream", true,
	},
	cuModuleLoadDataEx:  {"cuModuleLoadDataEx", 2010, 5, "CUmodule*, const void*, unsigned int, CUjit_option*, void**", false},
	cuModuleGetFunction: {"cuModuleGetFunction", 2000, 3, "CUfunction*, CUmodule, const char*", false},
	cuModuleUnload:      {"cuModuleUnload", 2000, 1, "CUmodule", false},
	cuLaunchKernel: {
		"cuLaunchKernel", 4000, 11,
		"CUfunction, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, CUstream, void**, void**", false,
	},
}
