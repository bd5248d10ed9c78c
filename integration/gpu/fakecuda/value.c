/* Functions of the host in a stream, and values that a stream writes or waits for. */
#include "fakecuda.h"
#include <time.h>

struct host_function {
    struct fc_operation op;
    CUhostFn function;
    void *data;
};

/* It may call no entry of the driver. */
static CUresult run_host_function(struct fc_operation *op) {
    const struct host_function *h = (struct host_function *)op;
    fc_in_host_function = true;
    h->function(h->data);
    fc_in_host_function = false;
    return CUDA_SUCCESS;
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *data) {
    FC_ENTER(FC_CONTEXT);
    if (function == NULL) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fc_lock);
    struct fc_stream *s = fc_stream_get(stream);
    if (s != NULL) {
        struct host_function *h = fc_operation_new(sizeof *h, run_host_function);
        h->function = function;
        h->data = data;
        fc_submit(s, h);
    }
    pthread_mutex_unlock(&fc_lock);
    return s != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

enum { GEQ, EQ, AND, NOR };

struct value {
    struct fc_operation op;
    uint64_t addr, value;
    unsigned flags;
    bool wide;
};

/* Reads the value where it is, in device memory or in pinned memory of the host. False: the address is gone. */
static bool read_value(const struct value *v, uint64_t *out) {
    const bool device = fc_is_device_address(v->addr);
    if (device) pthread_rwlock_rdlock(&fc_space_lock);
    const void *at = device ? fc_bytes(v->op.stream->context->device, v->addr, 8u >> !v->wide, false) : (void *)v->addr;
    if (at != NULL)
        *out = v->wide ? __atomic_load_n((const uint64_t *)at, __ATOMIC_ACQUIRE)
                       : __atomic_load_n((const uint32_t *)at, __ATOMIC_ACQUIRE);
    if (device) pthread_rwlock_unlock(&fc_space_lock);
    return at != NULL;
}

/* GEQ is cyclic. */
static bool is_reached(const struct value *v, uint64_t now) {
    switch (v->flags & 3) {
    case GEQ: return v->wide ? (int64_t)(now - v->value) >= 0 : (int32_t)((uint32_t)now - (uint32_t)v->value) >= 0;
    case EQ: return now == v->value;
    case AND: return (now & v->value) != 0;
    default: return (v->wide ? ~(now | v->value) : (uint32_t)~(now | v->value)) != 0;
    }
}

static CUresult run_wait_value(struct fc_operation *op) {
    const struct value *v = (struct value *)op;
    const struct timespec pause = {0, 50000};
    uint64_t now;
    while (atomic_load(&op->stream->context->device->sticky) == 0) {
        if (!read_value(v, &now)) return CUDA_ERROR_ILLEGAL_ADDRESS;
        if (is_reached(v, now)) break;
        nanosleep(&pause, NULL);
    }
    return CUDA_SUCCESS;
}

static CUresult run_write_value(struct fc_operation *op) {
    const struct value *v = (struct value *)op;
    const bool device = fc_is_device_address(v->addr);
    if (device) pthread_rwlock_rdlock(&fc_space_lock);
    void *at = device ? fc_bytes(op->stream->context->device, v->addr, 8u >> !v->wide, true) : (void *)v->addr;
    if (at != NULL && v->wide) __atomic_store_n((uint64_t *)at, v->value, __ATOMIC_RELEASE);
    else if (at != NULL) __atomic_store_n((uint32_t *)at, (uint32_t)v->value, __ATOMIC_RELEASE);
    if (device) pthread_rwlock_unlock(&fc_space_lock);
    return at != NULL ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
}

static CUresult submit_value(CUstream stream, struct value with, CUresult (*run)(struct fc_operation *), bool write) {
    const struct fc_device *device = fc_current()->device;
    const size_t size = with.wide ? 8 : 4;
    const unsigned known = write ? 1u : 3u | 1u << 30;
    if (fc_attribute(device, with.wide ? 122 : 92) == 0) return CUDA_ERROR_NOT_SUPPORTED;
    if (with.addr == 0 || with.addr % size != 0 || (with.flags & ~known) != 0) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fc_lock);
    struct fc_stream *s = fc_stream_get(stream);
    pthread_rwlock_rdlock(&fc_space_lock);
    const bool reachable = fc_is_device_address(with.addr) ? fc_bytes(device, with.addr, size, write) != NULL
                                                           : fc_host_kind(with.addr, size) == FC_HOST_PINNED;
    pthread_rwlock_unlock(&fc_space_lock);
    if (s == NULL) result = CUDA_ERROR_INVALID_HANDLE;
    else if (reachable) {
        struct value *v = fc_operation_new(sizeof *v, run);
        with.op = v->op;
        *v = with;
        fc_submit(s, v);
        result = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&fc_lock);
    return result;
}

#define VALUE_ENTRY(name, type, is_wide, run, write)                                                               \
    CUresult name(CUstream stream, CUdeviceptr addr, type value, unsigned int flags) {                             \
        FC_ENTER(FC_CONTEXT);                                                                                      \
        return submit_value(stream, (struct value){.addr = addr, .value = value, .flags = flags, .wide = is_wide}, \
                            run, write);                                                                           \
    }
VALUE_ENTRY(cuStreamWriteValue64_v2, cuuint64_t, true, run_write_value, true)
VALUE_ENTRY(cuStreamWaitValue64_v2, cuuint64_t, true, run_wait_value, false)
VALUE_ENTRY(cuStreamWriteValue32_v2, cuuint32_t, false, run_write_value, true)
VALUE_ENTRY(cuStreamWaitValue32_v2, cuuint32_t, false, run_wait_value, false)
