/* Streams and events. */
#include <stdlib.h>
#include <string.h>
#include "fakecudart.h"

cudaError_t cudaStreamCreate(cudaStream_t *out) { FR_CALL(cuStreamCreate(out, 0)); }

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags) { FR_CALL(cuStreamCreate(out, flags)); }

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority) {
    FR_CALL(cuStreamCreateWithPriority(out, flags, priority));
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) { FR_CALL(cuStreamDestroy(stream)); }

cudaError_t cudaStreamQuery(cudaStream_t stream) { FR_CALL(cuStreamQuery(stream)); }

cudaError_t cudaStreamSynchronize(cudaStream_t stream) { FR_CALL(cuStreamSynchronize(stream)); }

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) { FR_CALL(cuStreamGetPriority(stream, priority)); }

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    FR_CALL(cuStreamWaitEvent(stream, event, flags));
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data) {
    FR_CALL(cuLaunchHostFunc(stream, function, data));
}

struct callback {
    cudaStreamCallback_t function;
    cudaStream_t stream;
    void *data;
};

static void call_back(void *argument) {
    struct callback *c = argument;
    c->function(c->stream, cudaSuccess, c->data);
    free(c);
}

static CUresult add_callback(cudaStream_t stream, cudaStreamCallback_t function, void *data) {
    struct callback *c = malloc(sizeof *c);
    if (c == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    *c = (struct callback){function, stream, data};
    const CUresult result = cuLaunchHostFunc(stream, call_back, c);
    if (result != CUDA_SUCCESS) free(c);
    return result;
}

cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void *data, unsigned flags) {
    FR_CALL(function == NULL || flags != 0 ? CUDA_ERROR_INVALID_VALUE : add_callback(stream, function, data));
}

/* The fake driver captures nothing. */
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
    CUstreamCaptureStatus of_driver = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult result = fr_enter();
    if (status == NULL) return fr_answer(CUDA_ERROR_INVALID_VALUE);
    if (result == CUDA_SUCCESS) result = cuStreamIsCapturing(stream, &of_driver);
    *status = (enum cudaStreamCaptureStatus)of_driver;
    return fr_answer(result);
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                                     cudaGraph_t *graph, const cudaGraphNode_t **dependencies,
                                     const cudaGraphEdgeData **edges, size_t *count) {
    if (id != NULL) *id = 0;
    if (graph != NULL) *graph = NULL;
    if (dependencies != NULL) *dependencies = NULL;
    if (edges != NULL) *edges = NULL;
    if (count != NULL) *count = 0;
    return cudaStreamIsCapturing(stream, status);
}

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
    FR_CALL(cuThreadExchangeStreamCaptureMode((CUstreamCaptureMode *)mode));
}

cudaError_t cudaEventCreate(cudaEvent_t *out) { FR_CALL(cuEventCreate(out, 0)); }

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags) { FR_CALL(cuEventCreate(out, flags)); }

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) { FR_CALL(cuEventRecord(event, stream)); }

/* The flag is for captures. */
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
    FR_CALL(flags > 1 ? CUDA_ERROR_INVALID_VALUE : cuEventRecord(event, stream));
}

cudaError_t cudaEventQuery(cudaEvent_t event) { FR_CALL(cuEventQuery(event)); }

cudaError_t cudaEventSynchronize(cudaEvent_t event) { FR_CALL(cuEventSynchronize(event)); }

cudaError_t cudaEventDestroy(cudaEvent_t event) { FR_CALL(cuEventDestroy(event)); }

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end) {
    FR_CALL(cuEventElapsedTime(milliseconds, start, end));
}

cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t *handle, cudaEvent_t event) {
    FR_CALL(cuIpcGetEventHandle((CUipcEventHandle *)handle, event));
}

cudaError_t cudaIpcOpenEventHandle(cudaEvent_t *out, cudaIpcEventHandle_t handle) {
    CUipcEventHandle of_driver;
    memcpy(&of_driver, &handle, sizeof handle);
    FR_CALL(cuIpcOpenEventHandle(out, of_driver));
}
