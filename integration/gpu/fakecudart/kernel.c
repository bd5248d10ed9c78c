/* Kernels. The fake cannot run machine code: it does for itself what kernels that fill an array do, and refuses others.
 * With FAKECUDART_TRACE=1 it prints the name of each kernel that it refuses. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include "fakecudart.h"

static struct kernel {
    const void *host;
    const char *name;
    void **module;
} *kernels;
static size_t kernel_count, kernel_room;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void **__cudaRegisterFatBinary(void *binary) {
    void **handle = malloc(sizeof *handle);
    if (handle != NULL) *handle = binary;
    return handle;
}

void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }

char __cudaInitModule(void **handle) {
    (void)handle;
    return 1;
}

void __cudaUnregisterFatBinary(void **handle) {
    size_t kept = 0;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < kernel_count; i++) {
        if (kernels[i].module != handle) kernels[kept++] = kernels[i];
    }
    kernel_count = kept;
    pthread_mutex_unlock(&lock);
    free(handle);
}

void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int threads, uint3 *tid,
                            uint3 *bid, dim3 *block, dim3 *grid, int *warp) {
    (void)device, (void)threads, (void)tid, (void)bid, (void)block, (void)grid, (void)warp;
    pthread_mutex_lock(&lock);
    if (kernel_count == kernel_room) {
        kernel_room = kernel_room == 0 ? 1024 : 2 * kernel_room;
        kernels = realloc(kernels, kernel_room * sizeof *kernels);
        if (kernels == NULL) abort();
    }
    kernels[kernel_count++] = (struct kernel){host, name, handle};
    pthread_mutex_unlock(&lock);
}

void __cudaRegisterVar(void **handle, char *host, char *address, const char *name, int external, size_t size,
                       int constant, int global) {
    (void)handle, (void)host, (void)address, (void)name, (void)external, (void)size, (void)constant, (void)global;
}

/* What stands in <<< >>>, between the two calls that the compiler makes of it. */
static __thread struct {
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
} configuration;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, struct CUstream_st *stream) {
    configuration.grid = grid;
    configuration.block = block;
    configuration.shared = shared;
    configuration.stream = stream;
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
    *grid = configuration.grid;
    *block = configuration.block;
    *shared = configuration.shared;
    *(cudaStream_t *)stream = configuration.stream;
    return cudaSuccess;
}

static const char *name_of(const void *host) {
    const char *name = NULL;
    pthread_mutex_lock(&lock);
    for (size_t i = kernel_count; i-- > 0 && name == NULL;) {
        if (kernels[i].host == host) name = kernels[i].name;
    }
    pthread_mutex_unlock(&lock);
    return name;
}

static CUresult launch(const void *host, void **args, cudaStream_t stream) {
    const char *name = name_of(host), *trace = getenv("FAKECUDART_TRACE");
    if (name == NULL) return (CUresult)cudaErrorInvalidDeviceFunction;
    const CUresult result = fr_fill(name, args, stream);
    if (result == CUDA_ERROR_NOT_SUPPORTED && trace != NULL && *trace == '1') {
        fprintf(stderr, "fakecudart: cannot run %s\n", name);
    }
    return result;
}

cudaError_t cudaLaunchKernel(const void *host, dim3 grid, dim3 block, void **args, size_t shared, cudaStream_t stream) {
    (void)grid, (void)block, (void)shared;
    FR_CALL(launch(host, args, stream));
}

cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host) {
    *kernel = (cudaKernel_t)(uintptr_t)host;
    return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args, size_t shared,
                               cudaStream_t stream) {
    return cudaLaunchKernel((const void *)kernel, grid, block, args, shared, stream);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *host, void **args) {
    if (config == NULL) return fr_answer(CUDA_ERROR_INVALID_VALUE);
    return cudaLaunchKernel(host, config->gridDim, config->blockDim, args, config->dynamicSmemBytes, config->stream);
}
