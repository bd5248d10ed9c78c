/* Copies and fills one at a time, and batches of copies in both ABIs. */
#include "fakecuda.h"

/* With fc_lock held. */
static bool check_end(const struct fc_device *device, uint64_t addr, size_t size, bool write, bool *pageable) {
    if (fc_is_device_address(addr)) {
        pthread_rwlock_rdlock(&fc_space_lock);
        const bool mapped = fc_bytes(device, addr, size, write) != NULL;
        pthread_rwlock_unlock(&fc_space_lock);
        return mapped;
    }
    const enum fc_host kind = fc_host_kind(addr, size);
    *pageable = kind == FC_HOST_PAGEABLE;
    return addr != 0 && kind != FC_HOST_CROSSING;
}

CUresult fc_copy_check(const struct fc_device *device, struct fc_copy *copy) {
    const bool right = check_end(device, copy->dst, copy->size, true, &copy->dst_pageable) &&
                       check_end(device, copy->src, copy->size, false, &copy->src_pageable);
    if (right && (copy->dst_pageable || copy->src_pageable)) fc_count(FC_PAGEABLE_COPIES, 1);
    return right ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* The bytes at an address, with fc_space_lock held. Memory of the host was looked at when the copy was submitted. */
static void *resolve(const struct fc_device *device, uint64_t addr, size_t size, bool write) {
    return fc_is_device_address(addr) ? fc_bytes(device, addr, size, write) : (void *)addr;
}

CUresult fc_copy_early(const struct fc_device *device, struct fc_copy *copy) {
    copy->early = malloc(copy->size);
    pthread_rwlock_rdlock(&fc_space_lock);
    const void *src = resolve(device, copy->src, copy->size, false);
    if (src != NULL && copy->early != NULL) memcpy(copy->early, src, copy->size);
    pthread_rwlock_unlock(&fc_space_lock);
    return copy->early == NULL ? CUDA_ERROR_OUT_OF_MEMORY : src == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult fc_copy_run(const struct fc_device *device, const struct fc_copy *copy) {
    pthread_rwlock_rdlock(&fc_space_lock);
    const void *src = copy->early != NULL ? copy->early : resolve(device, copy->src, copy->size, false);
    void *dst = resolve(device, copy->dst, copy->size, true);
    if (src != NULL && dst != NULL) memmove(dst, src, copy->size);
    pthread_rwlock_unlock(&fc_space_lock);
    if (src == NULL || dst == NULL) return CUDA_ERROR_ILLEGAL_ADDRESS;
    fc_count(FC_COPIES, 1);
    fc_count(FC_COPIED_BYTES, (long long)copy->size);
    return CUDA_SUCCESS;
}

struct one_copy {
    struct fc_operation op;
    struct fc_copy copy;
};

static CUresult run_copy(struct fc_operation *op) {
    return fc_copy_run(op->stream->context->device, &((struct one_copy *)op)->copy);
}

static void end_copy(struct fc_operation *op) {
    free(((struct one_copy *)op)->copy.early);
    free(op);
}

enum end { ANY, DEVICE, HOST };

/* A device address is one of device memory or of pinned memory; an address of the host is none of the device's. */
static bool fits(uint64_t addr, size_t size, enum end end) {
    const bool device = fc_is_device_address(addr);
    if (end == HOST) return !device;
    return end == ANY || device || fc_host_kind(addr, size) == FC_HOST_PINNED;
}

/* Pageable memory is staged: what is copied from it is read before the call returns, what is copied to it is there. */
static CUresult submit(CUstream stream, uint64_t dst, enum end to, uint64_t src, enum end from, size_t size,
                       bool wait) {
    if (size == 0) return CUDA_SUCCESS;
    CUresult result = CUDA_ERROR_INVALID_HANDLE;
    struct fc_copy copy = {.dst = dst, .src = src, .size = size};
    pthread_mutex_lock(&fc_lock);
    struct fc_stream *s = fc_stream_get(stream);
    if (s != NULL)
        result = fits(dst, size, to) && fits(src, size, from) ? fc_copy_check(s->context->device, &copy)
                                                              : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS && copy.src_pageable) result = fc_copy_early(s->context->device, &copy);
    if (result == CUDA_SUCCESS) {
        struct one_copy *o = fc_operation_new(sizeof *o, run_copy);
        o->op.end = end_copy;
        o->copy = copy;
        fc_submit(s, o);
        if (wait || copy.dst_pageable) result = fc_wait(s, s->submitted);
    }
    pthread_mutex_unlock(&fc_lock);
    return result;
}

CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t size) {
    FC_ENTER(FC_CONTEXT);
    return submit(NULL, dst, ANY, src, ANY, size, true);
}

CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t size, CUstream stream) {
    FC_ENTER(FC_CONTEXT);
    return submit(stream, dst, ANY, src, ANY, size, false);
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr dst, const void *src, size_t size) {
    FC_ENTER(FC_CONTEXT);
    return submit(NULL, dst, DEVICE, (uint64_t)src, HOST, size, true);
}

CUresult cuMemcpyDtoH_v2(void *dst, CUdeviceptr src, size_t size) {
    FC_ENTER(FC_CONTEXT);
    return submit(NULL, (uint64_t)dst, HOST, src, DEVICE, size, true);
}

CUresult cuMemcpyDtoD_v2(CUdeviceptr dst, CUdeviceptr src, size_t size) {
    FC_ENTER(FC_CONTEXT);
    return submit(NULL, dst, DEVICE, src, DEVICE, size, true);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t size, CUstream stream) {
    FC_ENTER(FC_CONTEXT);
    return submit(stream, dst, DEVICE, (uint64_t)src, HOST, size, false);
}

CUresult cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t size, CUstream stream) {
    FC_ENTER(FC_CONTEXT);
    return submit(stream, (uint64_t)dst, HOST, src, DEVICE, size, false);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t size, CUstream stream) {
    FC_ENTER(FC_CONTEXT);
    return submit(stream, dst, DEVICE, src, DEVICE, size, false);
}

struct fill {
    struct fc_operation op;
    uint64_t addr;
    size_t count;
    uint32_t value;
    bool wide; /* 4 bytes each */
};

static CUresult run_fill(struct fc_operation *op) {
    const struct fill *f = (struct fill *)op;
    pthread_rwlock_rdlock(&fc_space_lock);
    void *at = resolve(op->stream->context->device, f->addr, f->wide ? 4 * f->count : f->count, true);
    if (at != NULL && !f->wide) memset(at, (int)f->value, f->count);
    for (size_t i = 0; at != NULL && f->wide && i < f->count; i++) ((uint32_t *)at)[i] = f->value;
    pthread_rwlock_unlock(&fc_space_lock);
    return at != NULL ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
}

static CUresult submit_fill(CUstream stream, struct fill with, bool wait) {
    const size_t width = with.wide ? 4 : 1;
    bool pageable = false;
    if (with.count == 0) return CUDA_SUCCESS;
    if (with.addr % width != 0 || with.count > SIZE_MAX / width) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&fc_lock);
    struct fc_stream *s = fc_stream_get(stream);
    if (s != NULL)
        result = check_end(s->context->device, with.addr, width * with.count, true, &pageable) && !pageable
                     ? CUDA_SUCCESS
                     : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        struct fill *f = fc_operation_new(sizeof *f, run_fill);
        with.op = f->op;
        *f = with;
        fc_submit(s, f);
        if (wait) result = fc_wait(s, s->submitted);
    }
    pthread_mutex_unlock(&fc_lock);
    return result;
}

CUresult cuMemsetD8_v2(CUdeviceptr dst, unsigned char value, size_t count) {
    FC_ENTER(FC_CONTEXT);
    return submit_fill(NULL, (struct fill){.addr = dst, .count = count, .value = value}, true);
}

CUresult cuMemsetD32_v2(CUdeviceptr dst, unsigned int value, size_t count) {
    FC_ENTER(FC_CONTEXT);
    return submit_fill(NULL, (struct fill){.addr = dst, .count = count, .value = value, .wide = true}, true);
}

CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t count, CUstream stream) {
    FC_ENTER(FC_CONTEXT);
    return submit_fill(stream, (struct fill){.addr = dst, .count = count, .value = value}, false);
}

CUresult cuMemsetD32Async(CUdeviceptr dst, unsigned int value, size_t count, CUstream stream) {
    FC_ENTER(FC_CONTEXT);
    return submit_fill(stream, (struct fill){.addr = dst, .count = count, .value = value, .wide = true}, false);
}

struct batch {
    struct fc_operation op;
    size_t count;
    struct fc_copy copies[];
};

/* Copies have no order within a batch: here the last one goes first. */
static CUresult run_batch(struct fc_operation *op) {
    const struct batch *b = (struct batch *)op;
    for (size_t i = b->count; i-- > 0;) {
        CUresult result = fc_copy_run(op->stream->context->device, &b->copies[i]);
        if (result != CUDA_SUCCESS) return result;
    }
    fc_count(FC_BATCHES, 1);
    fc_count(FC_BATCH_COPIES, (long long)b->count);
    return CUDA_SUCCESS;
}

static void end_batch(struct fc_operation *op) {
    struct batch *b = (struct batch *)op;
    for (size_t i = 0; i < b->count; i++) free(b->copies[i].early);
    free(b);
}

/* What both entries are given. */
struct call {
    const CUdeviceptr *dsts, *srcs;
    const size_t *sizes;
    size_t count;
    const CUmemcpyAttributes *attrs;
    const size_t *attr_idxs;
    size_t num_attrs;
    CUstream stream;
};

static bool is_right(const struct call *c) {
    if (c->dsts == NULL || c->srcs == NULL || c->sizes == NULL || c->count == 0) return false;
    if (c->attrs == NULL || c->attr_idxs == NULL || c->num_attrs == 0 || c->num_attrs > c->count) return false;
    if ((uintptr_t)c->stream <= 1 || c->attr_idxs[0] != 0) return false;
    for (size_t i = 0; i < c->num_attrs; i++) {
        if (i > 0 && c->attr_idxs[i] <= c->attr_idxs[i - 1]) return false;
        if (c->attr_idxs[i] >= c->count || (c->attrs[i].flags & ~1u) != 0) return false;
        if ((unsigned)c->attrs[i].srcAccessOrder < 1 || (unsigned)c->attrs[i].srcAccessOrder > 3) return false;
    }
    return true;
}

/* Sources that are read in the call: always by order DURING_API_CALL, by ANY with FAKECUDA_EARLY=1. Pageable sources
 * are, too, except by ANY since 13.3, where they are read later. */
static bool reads_early(const struct fc_copy *copy, unsigned order) {
    if (order == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL) return true;
    if (order == CU_MEMCPY_SRC_ACCESS_ORDER_ANY && fc_env("FAKECUDA_EARLY", 0) != 0) return true;
    return copy->src_pageable && !(order == CU_MEMCPY_SRC_ACCESS_ORDER_ANY && fc_version() >= 13030);
}

/* With fc_lock held. Gives the index of the copy that is wrong. */
static CUresult prepare(const struct call *c, const struct fc_device *device, struct batch *b, bool *wait,
                        size_t *wrong) {
    size_t attr = 0;
    for (size_t i = 0; i < c->count; i++) {
        struct fc_copy *copy = &b->copies[i];
        if (attr + 1 < c->num_attrs && c->attr_idxs[attr + 1] == i) attr++;
        *copy = (struct fc_copy){.dst = c->dsts[i], .src = c->srcs[i], .size = c->sizes[i]};
        b->count = i + 1;
        CUresult result = copy->size > 0 ? fc_copy_check(device, copy) : CUDA_ERROR_INVALID_VALUE;
        if (result == CUDA_SUCCESS && reads_early(copy, (unsigned)c->attrs[attr].srcAccessOrder)) {
            result = fc_copy_early(device, copy);
            fc_count(FC_EARLY_READS, 1);
        }
        *wrong = i;
        if (result != CUDA_SUCCESS) return result;
        if (copy->dst_pageable) *wait = true;
    }
    return CUDA_SUCCESS;
}

static CUresult submit_batch(const struct call *c, size_t *fail_idx) {
    size_t wrong = SIZE_MAX;
    bool wait = false;
    if (fail_idx != NULL) *fail_idx = SIZE_MAX;
    if (!is_right(c)) return CUDA_ERROR_INVALID_VALUE;
    struct batch *b = fc_operation_new(sizeof *b + c->count * sizeof *b->copies, run_batch);
    b->op.end = end_batch;
    pthread_mutex_lock(&fc_lock);
    struct fc_stream *s = fc_stream_get(c->stream);
    CUresult result = s != NULL ? prepare(c, s->context->device, b, &wait, &wrong) : CUDA_ERROR_INVALID_HANDLE;
    if (result == CUDA_SUCCESS) fc_submit(s, b);
    else if (fail_idx != NULL) *fail_idx = wrong;
    if (result != CUDA_SUCCESS) end_batch(&b->op);
    else if (wait) result = fc_wait(s, s->submitted);
    pthread_mutex_unlock(&fc_lock);
    return result;
}

CUresult cuMemcpyBatchAsync(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
                            CUmemcpyAttributes *attrs, size_t *attr_idxs, size_t num_attrs, size_t *fail_idx,
                            CUstream stream) {
    FC_ENTER(FC_CONTEXT);
    FC_SINCE(12080);
    return submit_batch(&(struct call){dsts, srcs, sizes, count, attrs, attr_idxs, num_attrs, stream}, fail_idx);
}

CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
                               CUmemcpyAttributes *attrs, size_t *attr_idxs, size_t num_attrs, CUstream stream) {
    FC_ENTER(FC_CONTEXT);
    FC_SINCE(13000);
    return submit_batch(&(struct call){dsts, srcs, sizes, count, attrs, attr_idxs, num_attrs, stream}, NULL);
}
