/* What the files of the fake CUDA runtime share. Types and prototypes are NVIDIA's own. */
#ifndef FAKECUDART_H
#define FAKECUDART_H

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>

#pragma GCC visibility push(hidden)

/* error.c: remembers an error for cudaGetLastError, as the runtime does for each thread. The driver's numbers are the
 * runtime's too. */
cudaError_t fr_answer(CUresult result);

/* device.c: makes the context of the thread's device current, unless some context is. */
CUresult fr_enter(void);
/* Calls the driver with a context, and answers with what it said. */
#define FR_CALL(call)                                               \
    do {                                                            \
        CUresult entered = fr_enter();                              \
        return fr_answer(entered == CUDA_SUCCESS ? (call) : entered); \
    } while (0)

/* fill.c: sets an array to one value, where a kernel of that name does so. CUDA_ERROR_NOT_SUPPORTED: it does not. */
CUresult fr_fill(const char *kernel, void **args, CUstream stream);

#pragma GCC visibility pop

/* What compilers call for each kernel of a program. NVIDIA declares these for C++ alone. */
void **__cudaRegisterFatBinary(void *binary);
void __cudaRegisterFatBinaryEnd(void **handle);
void __cudaUnregisterFatBinary(void **handle);
char __cudaInitModule(void **handle);
void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int threads, uint3 *tid,
                            uint3 *bid, dim3 *block, dim3 *grid, int *warp);
void __cudaRegisterVar(void **handle, char *host, char *address, const char *name, int external, size_t size,
                       int constant, int global);
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, struct CUstream_st *stream);
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream);
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host);
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args, size_t shared,
                               cudaStream_t stream);

#endif
