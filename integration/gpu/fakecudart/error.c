/* Errors, and the last one of each thread. */
#include "fakecudart.h"

static __thread cudaError_t last;

cudaError_t fr_answer(CUresult result) {
    if (result != CUDA_SUCCESS) last = (cudaError_t)result;
    return (cudaError_t)result;
}

cudaError_t cudaGetLastError(void) {
    const cudaError_t error = last;
    last = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void) { return last; }

const char *cudaGetErrorName(cudaError_t error) {
    const char *text = NULL;
    if (error == cudaErrorInsufficientDriver) return "cudaErrorInsufficientDriver";
    return cuGetErrorName((CUresult)error, &text) == CUDA_SUCCESS && text != NULL ? text : "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t error) {
    const char *text = NULL;
    if (error == cudaErrorInsufficientDriver) return "CUDA driver version is insufficient for CUDA runtime version";
    return cuGetErrorString((CUresult)error, &text) == CUDA_SUCCESS && text != NULL ? text : "unrecognized error code";
}
