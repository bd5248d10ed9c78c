/* Memory of the device and of the host, copies, and memory of other processes. */
#include <stdint.h>
#include <string.h>
#include "fakecudart.h"

#define ADDRESS(p) ((CUdeviceptr)(uintptr_t)(p))

cudaError_t cudaMalloc(void **out, size_t size) {
    CUdeviceptr address = 0;
    CUresult result = fr_enter();
    if (out == NULL) return fr_answer(CUDA_ERROR_INVALID_VALUE);
    if (result == CUDA_SUCCESS && size > 0) result = cuMemAlloc(&address, size);
    if (result == CUDA_SUCCESS) *out = (void *)(uintptr_t)address;
    return fr_answer(result);
}

cudaError_t cudaFree(void *p) { FR_CALL(p == NULL ? CUDA_SUCCESS : cuMemFree(ADDRESS(p))); }

cudaError_t cudaHostAlloc(void **out, size_t size, unsigned flags) { FR_CALL(cuMemHostAlloc(out, size, flags)); }

cudaError_t cudaFreeHost(void *p) { FR_CALL(p == NULL ? CUDA_SUCCESS : cuMemFreeHost(p)); }

cudaError_t cudaHostRegister(void *p, size_t size, unsigned flags) { FR_CALL(cuMemHostRegister(p, size, flags)); }

cudaError_t cudaHostUnregister(void *p) { FR_CALL(cuMemHostUnregister(p)); }

/* Which side each address is on, the driver knows from the address. */
cudaError_t cudaMemcpy(void *dst, const void *src, size_t size, enum cudaMemcpyKind kind) {
    (void)kind;
    FR_CALL(cuMemcpy(ADDRESS(dst), ADDRESS(src), size));
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t size, enum cudaMemcpyKind kind, cudaStream_t stream) {
    (void)kind;
    FR_CALL(cuMemcpyAsync(ADDRESS(dst), ADDRESS(src), size, stream));
}

cudaError_t cudaMemcpyPeerAsync(void *dst, int dst_device, const void *src, int src_device, size_t size,
                                cudaStream_t stream) {
    (void)dst_device, (void)src_device;
    FR_CALL(cuMemcpyAsync(ADDRESS(dst), ADDRESS(src), size, stream));
}

static CUresult copy_rows(char *dst, size_t dst_pitch, const char *src, size_t src_pitch, size_t width, size_t height,
                          CUstream stream) {
    CUresult result = width > dst_pitch || width > src_pitch ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    for (size_t row = 0; row < height && result == CUDA_SUCCESS; row++) {
        result = cuMemcpyAsync(ADDRESS(dst + row * dst_pitch), ADDRESS(src + row * src_pitch), width, stream);
    }
    return result;
}

cudaError_t cudaMemcpy2DAsync(void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width,
                              size_t height, enum cudaMemcpyKind kind, cudaStream_t stream) {
    (void)kind;
    FR_CALL(copy_rows(dst, dst_pitch, src, src_pitch, width, height, stream));
}

cudaError_t cudaMemset(void *p, int value, size_t size) { FR_CALL(cuMemsetD8(ADDRESS(p), (unsigned char)value, size)); }

cudaError_t cudaMemsetAsync(void *p, int value, size_t size, cudaStream_t stream) {
    FR_CALL(cuMemsetD8Async(ADDRESS(p), (unsigned char)value, size, stream));
}

/* An address that the driver does not know is the host's, and no error. */
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *p) {
    CUresult result = fr_enter();
    unsigned type = 0;
    if (out == NULL) return fr_answer(CUDA_ERROR_INVALID_VALUE);
    memset(out, 0, sizeof *out);
    if (result != CUDA_SUCCESS) return fr_answer(result);
    result = cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ADDRESS(p));
    if (result == CUDA_ERROR_INVALID_VALUE) {
        *out = (struct cudaPointerAttributes){.type = cudaMemoryTypeUnregistered, .device = -2};
        out->hostPointer = (void *)(uintptr_t)p;
        return cudaSuccess;
    }
    if (result != CUDA_SUCCESS) return fr_answer(result);
    out->type = type == CU_MEMORYTYPE_DEVICE ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
    result = cuPointerGetAttribute(&out->device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, ADDRESS(p));
    if (result != CUDA_SUCCESS) return fr_answer(result);
    CUdeviceptr device = 0;
    if (cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, ADDRESS(p)) == CUDA_SUCCESS) {
        out->devicePointer = (void *)(uintptr_t)device;
    }
    if (out->type == cudaMemoryTypeHost) out->hostPointer = (void *)(uintptr_t)p;
    return cudaSuccess;
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *p) {
    FR_CALL(cuIpcGetMemHandle((CUipcMemHandle *)handle, ADDRESS(p)));
}

cudaError_t cudaIpcOpenMemHandle(void **out, cudaIpcMemHandle_t handle, unsigned flags) {
    CUipcMemHandle of_driver;
    CUdeviceptr address = 0;
    CUresult result = fr_enter();
    if (out == NULL) return fr_answer(CUDA_ERROR_INVALID_VALUE);
    memcpy(&of_driver, &handle, sizeof handle);
    if (result == CUDA_SUCCESS) result = cuIpcOpenMemHandle(&address, of_driver, flags);
    if (result == CUDA_SUCCESS) *out = (void *)(uintptr_t)address;
    return fr_answer(result);
}

cudaError_t cudaIpcCloseMemHandle(void *p) { FR_CALL(cuIpcCloseMemHandle(ADDRESS(p))); }
