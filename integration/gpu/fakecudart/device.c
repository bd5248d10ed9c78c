/* Devices, the context of each, and what the driver can do. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include "fakecudart.h"

#define MAX_DEVICES 16

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CUcontext primary[MAX_DEVICES];
static __thread int chosen;

static CUresult start(void) {
    int version = 0;
    CUresult result = cuInit(0);
    if (result == CUDA_SUCCESS) result = cuDriverGetVersion(&version);
    if (result == CUDA_SUCCESS && version < CUDART_VERSION / 1000 * 1000) return (CUresult)cudaErrorInsufficientDriver;
    return result;
}

/* The runtime retains a device's primary context once and never lets go. */
static CUresult use(int device) {
    CUresult result = CUDA_SUCCESS;
    if (device < 0 || device >= MAX_DEVICES) return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&lock);
    if (primary[device] == NULL) result = cuDevicePrimaryCtxRetain(&primary[device], device);
    CUcontext context = primary[device];
    pthread_mutex_unlock(&lock);
    return result == CUDA_SUCCESS ? cuCtxSetCurrent(context) : result;
}

CUresult fr_enter(void) {
    CUcontext current = NULL;
    CUresult result = start();
    if (result == CUDA_SUCCESS) result = cuCtxGetCurrent(&current);
    return result == CUDA_SUCCESS && current == NULL ? use(chosen) : result;
}

cudaError_t cudaGetDeviceCount(int *count) {
    CUresult result = start();
    if (count != NULL) *count = 0;
    return fr_answer(result == CUDA_SUCCESS ? cuDeviceGetCount(count) : result);
}

cudaError_t cudaSetDevice(int device) {
    CUresult result = start();
    if (result == CUDA_SUCCESS) result = use(device);
    if (result == CUDA_SUCCESS) chosen = device;
    return fr_answer(result);
}

static CUresult device_of(CUcontext context, int *device) {
    int found = -1;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MAX_DEVICES; i++) {
        if (primary[i] == context) found = i;
    }
    pthread_mutex_unlock(&lock);
    if (found < 0) return cuCtxGetDevice(device);
    *device = found;
    return CUDA_SUCCESS;
}

/* The device of the current context, which the driver's calls may have changed. No context is made for this, and no
 * device is asked: torch asks also while it cleans up after a device was lost. */
cudaError_t cudaGetDevice(int *device) {
    CUcontext current = NULL;
    CUresult result = start();
    if (device == NULL) return fr_answer(CUDA_ERROR_INVALID_VALUE);
    if (result == CUDA_SUCCESS) result = cuCtxGetCurrent(&current);
    *device = chosen;
    if (result == CUDA_SUCCESS && current != NULL) result = device_of(current, device);
    return fr_answer(result);
}

cudaError_t cudaDeviceSynchronize(void) { FR_CALL(cuCtxSynchronize()); }

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    FR_CALL(cuCtxGetStreamPriorityRange(least, greatest));
}

cudaError_t cudaMemGetInfo(size_t *free, size_t *total) { FR_CALL(cuMemGetInfo(free, total)); }

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    CUresult result = start();
    return fr_answer(result == CUDA_SUCCESS ? cuDeviceGetAttribute(value, (CUdevice_attribute)attribute, device)
                                            : result);
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int size, int device) {
    CUresult result = start();
    return fr_answer(result == CUDA_SUCCESS ? cuDeviceGetPCIBusId(text, size, device) : result);
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    CUresult result = start();
    return fr_answer(result == CUDA_SUCCESS ? cuDeviceCanAccessPeer(can, device, peer) : result);
}

cudaError_t cudaDriverGetVersion(int *version) { return fr_answer(cuDriverGetVersion(version)); }

cudaError_t cudaRuntimeGetVersion(int *version) {
    if (version == NULL) return fr_answer(CUDA_ERROR_INVALID_VALUE);
    *version = CUDART_VERSION;
    return cudaSuccess;
}

/* An entry that the driver lacks is no error: its address is nothing, and the status says so. */
cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
                                             unsigned long long flags, enum cudaDriverEntryPointQueryResult *status) {
    CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SUCCESS;
    if (symbol == NULL || function == NULL) return fr_answer(CUDA_ERROR_INVALID_VALUE);
    *function = NULL;
    const CUresult result = cuGetProcAddress(symbol, function, (int)version, flags, &found);
    if (status != NULL) *status = (enum cudaDriverEntryPointQueryResult)found;
    return fr_answer(result == CUDA_ERROR_NOT_FOUND ? CUDA_SUCCESS : result);
}

static int attribute(CUdevice device, CUdevice_attribute number) {
    int value = 0;
    return cuDeviceGetAttribute(&value, number, device) == CUDA_SUCCESS ? value : 0;
}

static void fill_limits(struct cudaDeviceProp *p, int device) {
    p->maxThreadsPerBlock = attribute(device, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
    for (int i = 0; i < 3; i++) {
        p->maxThreadsDim[i] = attribute(device, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X + i);
        p->maxGridSize[i] = attribute(device, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X + i);
    }
    p->sharedMemPerBlock = (size_t)attribute(device, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK);
    p->sharedMemPerBlockOptin = (size_t)attribute(device, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
    p->sharedMemPerMultiprocessor =
        (size_t)attribute(device, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
    p->totalConstMem = (size_t)attribute(device, CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY);
    p->memPitch = (size_t)attribute(device, CU_DEVICE_ATTRIBUTE_MAX_PITCH);
    p->textureAlignment = (size_t)attribute(device, CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT);
    p->regsPerBlock = attribute(device, CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK);
    p->regsPerMultiprocessor = attribute(device, CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR);
    p->maxThreadsPerMultiProcessor = attribute(device, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
    p->maxBlocksPerMultiProcessor = attribute(device, CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR);
    p->multiProcessorCount = attribute(device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    p->warpSize = attribute(device, CU_DEVICE_ATTRIBUTE_WARP_SIZE);
    p->l2CacheSize = attribute(device, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
    p->memoryBusWidth = attribute(device, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH);
}

static void fill_abilities(struct cudaDeviceProp *p, int device) {
    p->major = attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
    p->minor = attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    p->pciDomainID = attribute(device, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID);
    p->pciBusID = attribute(device, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID);
    p->pciDeviceID = attribute(device, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID);
    p->canMapHostMemory = attribute(device, CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY);
    p->concurrentKernels = attribute(device, CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS);
    p->asyncEngineCount = attribute(device, CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT);
    p->unifiedAddressing = attribute(device, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING);
    p->streamPrioritiesSupported = attribute(device, CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED);
    p->cooperativeLaunch = attribute(device, CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH);
    p->hostRegisterSupported = attribute(device, CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED);
    p->memoryPoolsSupported = attribute(device, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED);
    p->clusterLaunch = attribute(device, CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH);
    p->ipcEventSupported = attribute(device, CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED);
    p->hostNumaId = attribute(device, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
    CUuuid uuid;
    CUresult result = start();
    if (p == NULL) return fr_answer(CUDA_ERROR_INVALID_VALUE);
    memset(p, 0, sizeof *p);
    if (result == CUDA_SUCCESS) result = cuDeviceGetName(p->name, sizeof p->name, device);
    if (result == CUDA_SUCCESS) result = cuDeviceTotalMem(&p->totalGlobalMem, device);
    if (result == CUDA_SUCCESS) result = cuDeviceGetUuid(&uuid, device);
    if (result != CUDA_SUCCESS) return fr_answer(result);
    memcpy(&p->uuid, &uuid, sizeof uuid);
    fill_limits(p, device);
    fill_abilities(p, device);
    return cudaSuccess;
}
