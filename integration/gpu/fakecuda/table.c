/* Which entries there are since which version, and the names of errors. With FAKECUDA_REAL_HEADER the compiler compares
 * each entry with NVIDIA's type for that name and version. */
#include "fakecuda.h"
#include <stdio.h>
#ifdef FAKECUDA_REAL_HEADER
#include <cudaTypedefs.h>
#define SAME(name, since, symbol)                                                            \
    _Static_assert(__builtin_types_compatible_p(PFN_##name##_v##since, __typeof__(&symbol)), \
                   #symbol " is not the real one");
#else
#define SAME(name, since, symbol)
#endif

/* Name, version that it came with, symbol. */
#define ENTRIES_12_4(X)                                                                      \
    X(cuInit, 2000, cuInit)                                                                  \
    X(cuDriverGetVersion, 2020, cuDriverGetVersion)                                          \
    X(cuGetProcAddress, 11030, cuGetProcAddress)                                             \
    X(cuGetProcAddress, 12000, cuGetProcAddress_v2)                                          \
    X(cuGetErrorName, 6000, cuGetErrorName)                                                  \
    X(cuGetErrorString, 6000, cuGetErrorString)                                              \
    X(cuDeviceGet, 2000, cuDeviceGet)                                                        \
    X(cuDeviceGetCount, 2000, cuDeviceGetCount)                                              \
    X(cuDeviceGetName, 2000, cuDeviceGetName)                                                \
    X(cuDeviceGetUuid, 9020, cuDeviceGetUuid)                                                \
    X(cuDeviceGetUuid, 11040, cuDeviceGetUuid_v2)                                            \
    X(cuDeviceGetAttribute, 2000, cuDeviceGetAttribute)                                      \
    X(cuDeviceTotalMem, 3020, cuDeviceTotalMem_v2)                                           \
    X(cuDeviceGetPCIBusId, 4010, cuDeviceGetPCIBusId)                                        \
    X(cuDeviceGetByPCIBusId, 4010, cuDeviceGetByPCIBusId)                                    \
    X(cuDeviceCanAccessPeer, 4000, cuDeviceCanAccessPeer)                                    \
    X(cuDevicePrimaryCtxRetain, 7000, cuDevicePrimaryCtxRetain)                              \
    X(cuDevicePrimaryCtxRelease, 7000, cuDevicePrimaryCtxRelease)                            \
    X(cuDevicePrimaryCtxRelease, 11000, cuDevicePrimaryCtxRelease_v2)                        \
    X(cuDevicePrimaryCtxGetState, 7000, cuDevicePrimaryCtxGetState)                          \
    X(cuDevicePrimaryCtxSetFlags, 7000, cuDevicePrimaryCtxSetFlags)                          \
    X(cuDevicePrimaryCtxSetFlags, 11000, cuDevicePrimaryCtxSetFlags_v2)                      \
    X(cuCtxSetCurrent, 4000, cuCtxSetCurrent)                                                \
    X(cuCtxGetCurrent, 4000, cuCtxGetCurrent)                                                \
    X(cuCtxPushCurrent, 4000, cuCtxPushCurrent_v2)                                           \
    X(cuCtxPopCurrent, 4000, cuCtxPopCurrent_v2)                                             \
    X(cuCtxGetDevice, 2000, cuCtxGetDevice)                                                  \
    X(cuCtxSynchronize, 2000, cuCtxSynchronize)                                              \
    X(cuCtxGetStreamPriorityRange, 5050, cuCtxGetStreamPriorityRange)                        \
    X(cuMemGetInfo, 3020, cuMemGetInfo_v2)                                                   \
    X(cuMemAlloc, 3020, cuMemAlloc_v2)                                                       \
    X(cuMemFree, 3020, cuMemFree_v2)                                                         \
    X(cuMemGetAddressRange, 3020, cuMemGetAddressRange_v2)                                   \
    X(cuPointerGetAttribute, 4000, cuPointerGetAttribute)                                    \
    X(cuPointerGetAttributes, 7000, cuPointerGetAttributes)                                  \
    X(cuIpcGetMemHandle, 4010, cuIpcGetMemHandle)                                            \
    X(cuIpcOpenMemHandle, 4010, cuIpcOpenMemHandle)                                          \
    X(cuIpcOpenMemHandle, 11000, cuIpcOpenMemHandle_v2)                                      \
    X(cuIpcGetEventHandle, 4010, cuIpcGetEventHandle)                                        \
    X(cuIpcOpenEventHandle, 4010, cuIpcOpenEventHandle)                                      \
    X(cuIpcCloseMemHandle, 4010, cuIpcCloseMemHandle)                                        \
    X(cuMemCreate, 10020, cuMemCreate)                                                       \
    X(cuMemRelease, 10020, cuMemRelease)                                                     \
    X(cuMemAddressReserve, 10020, cuMemAddressReserve)                                       \
    X(cuMemAddressFree, 10020, cuMemAddressFree)                                             \
    X(cuMemMap, 10020, cuMemMap)                                                             \
    X(cuMemUnmap, 10020, cuMemUnmap)                                                         \
    X(cuMemSetAccess, 10020, cuMemSetAccess)                                                 \
    X(cuMemGetAccess, 10020, cuMemGetAccess)                                                 \
    X(cuMemExportToShareableHandle, 10020, cuMemExportToShareableHandle)                     \
    X(cuMemImportFromShareableHandle, 10020, cuMemImportFromShareableHandle)                 \
    X(cuMemGetAllocationGranularity, 10020, cuMemGetAllocationGranularity)                   \
    X(cuMemGetAllocationPropertiesFromHandle, 10020, cuMemGetAllocationPropertiesFromHandle) \
    X(cuMemRetainAllocationHandle, 11000, cuMemRetainAllocationHandle)                       \
    X(cuMemHostRegister, 4000, cuMemHostRegister)                                            \
    X(cuMemHostRegister, 6050, cuMemHostRegister_v2)                                         \
    X(cuMemHostUnregister, 4000, cuMemHostUnregister)                                        \
    X(cuMemHostGetDevicePointer, 3020, cuMemHostGetDevicePointer_v2)                         \
    X(cuMemHostGetFlags, 2030, cuMemHostGetFlags)                                            \
    X(cuMemHostAlloc, 2020, cuMemHostAlloc)                                                  \
    X(cuMemAllocHost, 3020, cuMemAllocHost_v2)                                               \
    X(cuMemFreeHost, 2000, cuMemFreeHost)                                                    \
    X(cuStreamCreate, 2000, cuStreamCreate)                                                  \
    X(cuStreamCreateWithPriority, 5050, cuStreamCreateWithPriority)                          \
    X(cuStreamDestroy, 4000, cuStreamDestroy_v2)                                             \
    X(cuStreamQuery, 2000, cuStreamQuery)                                                    \
    X(cuStreamSynchronize, 2000, cuStreamSynchronize)                                        \
    X(cuStreamWaitEvent, 3020, cuStreamWaitEvent)                                            \
    X(cuStreamGetPriority, 5050, cuStreamGetPriority)                                        \
    X(cuStreamGetFlags, 5050, cuStreamGetFlags)                                              \
    X(cuStreamGetCtx, 9020, cuStreamGetCtx)                                                  \
    X(cuStreamIsCapturing, 10000, cuStreamIsCapturing)                                       \
    X(cuThreadExchangeStreamCaptureMode, 10010, cuThreadExchangeStreamCaptureMode)           \
    X(cuLaunchHostFunc, 10000, cuLaunchHostFunc)                                             \
    X(cuStreamWriteValue32, 11070, cuStreamWriteValue32_v2)                                  \
    X(cuStreamWaitValue32, 11070, cuStreamWaitValue32_v2)                                    \
    X(cuStreamWriteValue64, 11070, cuStreamWriteValue64_v2)                                  \
    X(cuStreamWaitValue64, 11070, cuStreamWaitValue64_v2)                                    \
    X(cuEventCreate, 2000, cuEventCreate)                                                    \
    X(cuEventRecord, 2000, cuEventRecord)                                                    \
    X(cuEventQuery, 2000, cuEventQuery)                                                      \
    X(cuEventSynchronize, 2000, cuEventSynchronize)                                          \
    X(cuEventDestroy, 4000, cuEventDestroy_v2)                                               \
    X(cuEventElapsedTime, 2000, cuEventElapsedTime)                                          \
    X(cuMemcpy, 4000, cuMemcpy)                                                              \
    X(cuMemcpyAsync, 4000, cuMemcpyAsync)                                                    \
    X(cuMemcpyHtoD, 3020, cuMemcpyHtoD_v2)                                                   \
    X(cuMemcpyDtoH, 3020, cuMemcpyDtoH_v2)                                                   \
    X(cuMemcpyDtoD, 3020, cuMemcpyDtoD_v2)                                                   \
    X(cuMemcpyHtoDAsync, 3020, cuMemcpyHtoDAsync_v2)                                         \
    X(cuMemcpyDtoHAsync, 3020, cuMemcpyDtoHAsync_v2)                                         \
    X(cuMemcpyDtoDAsync, 3020, cuMemcpyDtoDAsync_v2)                                         \
    X(cuMemsetD8, 3020, cuMemsetD8_v2)                                                       \
    X(cuMemsetD32, 3020, cuMemsetD32_v2)                                                     \
    X(cuMemsetD8Async, 3020, cuMemsetD8Async)                                                \
    X(cuMemsetD32Async, 3020, cuMemsetD32Async)                                              \
    X(cuModuleLoadData, 2000, cuModuleLoadData)                                              \
    X(cuModuleLoadDataEx, 2010, cuModuleLoadDataEx)                                          \
    X(cuModuleGetFunction, 2000, cuModuleGetFunction)                                        \
    X(cuModuleUnload, 2000, cuModuleUnload)                                                  \
    X(cuLaunchKernel, 4000, cuLaunchKernel)
#define ENTRIES_12_8(X)                              \
    X(cuMemcpyBatchAsync, 12080, cuMemcpyBatchAsync) \
    X(cuEventElapsedTime, 12080, cuEventElapsedTime_v2)
#define ENTRIES_13_0(X) X(cuMemcpyBatchAsync, 13000, cuMemcpyBatchAsync_v2)

ENTRIES_12_4(SAME)
#if CUDA_VERSION >= 12080
ENTRIES_12_8(SAME)
#endif
#if CUDA_VERSION >= 13000
ENTRIES_13_0(SAME)
#endif

static const struct entry {
    const char *name;
    int since;
    const char *symbol;
    void (*function)(void);
} entries[] = {
#define ROW(name, since, symbol) {#name, since, #symbol, (void (*)(void))symbol},
    ENTRIES_12_4(ROW) ENTRIES_12_8(ROW) ENTRIES_13_0(ROW)};
#define ENTRIES (sizeof entries / sizeof *entries)

bool fc_same_entry(const char *symbol, const char *name) {
    const size_t n = strlen(name);
    if (strncmp(symbol, name, n) != 0) return false;
    return symbol[n] == 0 || (symbol[n] == '_' && symbol[n + 1] == 'v');
}

bool fc_is_entry(const char *name) {
    for (size_t i = 0; i < ENTRIES; i++) {
        if (fc_same_entry(entries[i].symbol, name)) return true;
    }
    return false;
}

/* An entry that this driver is too old for is unknown; one that only the asked version is too old for is not. */
static void (*find(const char *name, int asked, CUdriverProcAddressQueryResult *status))(void) {
    const struct entry *best = NULL;
    *status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    for (size_t i = 0; i < ENTRIES; i++) {
        const struct entry *e = &entries[i];
        if (strcmp(e->name, name) != 0 || e->since > fc_version()) continue;
        if (*status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND) *status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
        if (e->since <= asked && (best == NULL || e->since > best->since)) best = e;
    }
    if (best == NULL) return NULL;
    *status = CU_GET_PROC_ADDRESS_SUCCESS;
    return best->function;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status) {
    FC_ENTER(FC_NOTHING);
    CUdriverProcAddressQueryResult found;
    if (symbol == NULL || pfn == NULL || flags > 2 || version > fc_version()) return CUDA_ERROR_INVALID_VALUE;
    *pfn = (void *)find(symbol, version, &found);
    if (status != NULL) *status = found;
    return CUDA_SUCCESS;
}

/* The first form of it says only that there is none. */
CUresult cuGetProcAddress(const char *symbol, void **pfn, int version, cuuint64_t flags) {
    FC_ENTER(FC_NOTHING);
    CUdriverProcAddressQueryResult found;
    if (symbol == NULL || pfn == NULL || flags > 2 || version > fc_version()) return CUDA_ERROR_INVALID_VALUE;
    *pfn = (void *)find(symbol, version, &found);
    return *pfn != NULL ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* Number, name, and our own words for what it says. */
#define ERRORS(X)                                                                                                    \
    X(0, CUDA_SUCCESS, "no error")                                                                                   \
    X(1, CUDA_ERROR_INVALID_VALUE, "invalid argument")                                                               \
    X(2, CUDA_ERROR_OUT_OF_MEMORY, "out of memory")                                                                  \
    X(3, CUDA_ERROR_NOT_INITIALIZED, "initialization error")                                                         \
    X(4, CUDA_ERROR_DEINITIALIZED, "driver shutting down")                                                           \
    X(34, CUDA_ERROR_STUB_LIBRARY, "CUDA driver is a stub library")                                                  \
    X(46, CUDA_ERROR_DEVICE_UNAVAILABLE, "CUDA-capable device(s) is/are busy or unavailable")                        \
    X(100, CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected")                                               \
    X(101, CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal")                                                      \
    X(200, CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid")                                               \
    X(201, CUDA_ERROR_INVALID_CONTEXT, "invalid device context")                                                     \
    X(205, CUDA_ERROR_MAP_FAILED, "mapping of buffer object failed")                                                 \
    X(206, CUDA_ERROR_UNMAP_FAILED, "unmapping of buffer object failed")                                             \
    X(208, CUDA_ERROR_ALREADY_MAPPED, "resource already mapped")                                                     \
    X(209, CUDA_ERROR_NO_BINARY_FOR_GPU, "no kernel image is available for execution on the device")                 \
    X(211, CUDA_ERROR_NOT_MAPPED, "resource not mapped")                                                             \
    X(214, CUDA_ERROR_ECC_UNCORRECTABLE, "uncorrectable ECC error encountered")                                      \
    X(217, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "peer access is not supported between these two devices")             \
    X(218, CUDA_ERROR_INVALID_PTX, "a PTX JIT compilation failed")                                                   \
    X(220, CUDA_ERROR_NVLINK_UNCORRECTABLE, "uncorrectable NVLink error detected during the execution")              \
    X(221, CUDA_ERROR_JIT_COMPILER_NOT_FOUND, "PTX JIT compiler library not found")                                  \
    X(222, CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "the provided PTX was compiled with an unsupported toolchain.")       \
    X(304, CUDA_ERROR_OPERATING_SYSTEM, "OS call failed or operation not supported on this OS")                      \
    X(400, CUDA_ERROR_INVALID_HANDLE, "invalid resource handle")                                                     \
    X(401, CUDA_ERROR_ILLEGAL_STATE, "the operation cannot be performed in the present state")                       \
    X(500, CUDA_ERROR_NOT_FOUND, "named symbol not found")                                                           \
    X(600, CUDA_ERROR_NOT_READY, "device not ready")                                                                 \
    X(700, CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered")                                   \
    X(701, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "too many resources requested for launch")                            \
    X(702, CUDA_ERROR_LAUNCH_TIMEOUT, "the launch timed out and was terminated")                                     \
    X(704, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is already enabled")                                 \
    X(705, CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "peer access has not been enabled")                                   \
    X(708, CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, "cannot set while device is active in this process")                   \
    X(709, CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed")                                                  \
    X(710, CUDA_ERROR_ASSERT, "device-side assert triggered")                                                        \
    X(711, CUDA_ERROR_TOO_MANY_PEERS, "peer mapping resources exhausted")                                            \
    X(712, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "part or all of the requested memory range is already mapped") \
    X(713, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "pointer does not correspond to a registered memory region")       \
    X(714, CUDA_ERROR_HARDWARE_STACK_ERROR, "hardware stack error")                                                  \
    X(715, CUDA_ERROR_ILLEGAL_INSTRUCTION, "an illegal instruction was encountered")                                 \
    X(716, CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned address")                                                      \
    X(717, CUDA_ERROR_INVALID_ADDRESS_SPACE, "operation not supported on global/shared address space")               \
    X(718, CUDA_ERROR_INVALID_PC, "invalid program counter")                                                         \
    X(719, CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure")                                                   \
    X(720, CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, "too many blocks in cooperative launch")                         \
    X(800, CUDA_ERROR_NOT_PERMITTED, "operation not permitted")                                                      \
    X(801, CUDA_ERROR_NOT_SUPPORTED, "operation not supported")                                                      \
    X(802, CUDA_ERROR_SYSTEM_NOT_READY, "system not yet initialized")                                                \
    X(803, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "system has unsupported display driver / cuda driver combination")     \
    X(804, CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, "forward compatibility was attempted on non supported HW")     \
    X(810, CUDA_ERROR_MPS_CLIENT_TERMINATED, "MPS client terminated")                                                \
    X(900, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing")                \
    X(909, CUDA_ERROR_TIMEOUT, "wait operation timed out")                                                           \
    X(911, CUDA_ERROR_EXTERNAL_DEVICE, "external device error")                                                      \
    X(999, CUDA_ERROR_UNKNOWN, "unknown error")
#ifdef FAKECUDA_REAL_HEADER
#define SAME_NUMBER(number, name, text) _Static_assert(name == number, #name " has another number");
ERRORS(SAME_NUMBER)
#endif

static const struct error {
    int number;
    const char *name, *text;
} errors[] = {
#define ERROR(number, name, text) {number, #name, text},
    ERRORS(ERROR){226, "CUDA_ERROR_CONTAINED", "invalidated by an error that was contained"}, /* later than 12.4 */
};

static const struct error *find_error(CUresult code) {
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        if (errors[i].number == (int)code) return &errors[i];
    }
    return NULL;
}

CUresult cuGetErrorName(CUresult code, const char **text) {
    FC_ENTER(FC_NOTHING);
    const struct error *e = find_error(code);
    if (text == NULL) return CUDA_ERROR_INVALID_VALUE;
    *text = e != NULL ? e->name : NULL;
    return e != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult code, const char **text) {
    FC_ENTER(FC_NOTHING);
    const struct error *e = find_error(code);
    if (text == NULL) return CUDA_ERROR_INVALID_VALUE;
    *text = e != NULL ? e->text : NULL;
    return e != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
