/* Memory by cuMemAlloc, what is known of an address, and legacy IPC: a handle names the process and its descriptor. */
#include "fakecuda.h"

CUresult cuMemGetInfo_v2(size_t *unused, size_t *total) {
    FC_ENTER(FC_CONTEXT);
    if (unused == NULL || total == NULL) return CUDA_ERROR_INVALID_VALUE;
    long long left = fc_memory_bytes() - atomic_load(&fc_current()->device->used_bytes);
    *total = (size_t)fc_memory_bytes();
    *unused = left > 0 ? (size_t)left : 0;
    return CUDA_SUCCESS;
}

static CUresult allocate(struct fc_device *device, size_t size, CUdeviceptr *out) {
    struct fc_physical *p;
    CUresult result = fc_physical_new(device, size, false, 0, &p);
    if (result != CUDA_SUCCESS) return result;
    pthread_rwlock_wrlock(&fc_space_lock);
    struct fc_range *range = fc_range_new(FC_ALLOCATED, size, FC_GRANULE);
    struct fc_mapping *m = range != NULL ? fc_map(range, range->addr, size, p, 0) : NULL;
    if (m != NULL) {
        range->device = device;
        m->access[device->ordinal] = 3;
        *out = range->addr;
        fc_count(FC_ALLOCATIONS, 1);
        fc_count(FC_ALLOCATED_BYTES, (long long)size);
    } else if (range != NULL) {
        fc_range_end(range);
    }
    pthread_rwlock_unlock(&fc_space_lock);
    fc_physical_unref(p);
    return m != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t size) {
    FC_ENTER(FC_CONTEXT);
    if (dptr == NULL || size == 0) return CUDA_ERROR_INVALID_VALUE;
    return allocate(fc_current()->device, size, dptr);
}

/* The driver waits for the device before it frees. */
CUresult cuMemFree_v2(CUdeviceptr dptr) {
    FC_ENTER(FC_CONTEXT);
    if (dptr == 0) return CUDA_SUCCESS;
    pthread_mutex_lock(&fc_lock);
    CUresult result = fc_drain(fc_current());
    pthread_rwlock_wrlock(&fc_space_lock);
    struct fc_range *range = fc_range_at(dptr);
    if (result == CUDA_SUCCESS && (range == NULL || range->kind != FC_ALLOCATED || range->addr != dptr))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) fc_release_range(range);
    pthread_rwlock_unlock(&fc_space_lock);
    pthread_mutex_unlock(&fc_lock);
    return result;
}

/* What is mapped at the address: for memory by cuMemMap one mapping, not the reservation. */
CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr dptr) {
    FC_ENTER(FC_CONTEXT);
    pthread_rwlock_rdlock(&fc_space_lock);
    const struct fc_mapping *m = fc_mapping_at(dptr);
    if (m != NULL && base != NULL) *base = m->addr;
    if (m != NULL && size != NULL) *size = m->size;
    pthread_rwlock_unlock(&fc_space_lock);
    return m != NULL ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* What the attributes of an address are answered from. Memory of the host has no range or mapping here. */
struct known {
    const struct fc_range *range;
    const struct fc_mapping *mapping;
    struct fc_device *device;
    uint64_t host_base;
    size_t host_size;
};

static bool find(CUdeviceptr ptr, struct known *k) {
    *k = (struct known){.range = fc_range_at(ptr), .mapping = fc_mapping_at(ptr)};
    if (k->range == NULL) return fc_host_range(ptr, &k->host_base, &k->host_size, &k->device);
    k->device = k->mapping != NULL ? k->mapping->physical->device : fc_device(0);
    return true;
}

#define PUT(type, value)                      \
    do {                                      \
        const type answer = (value);          \
        memcpy(data, &answer, sizeof answer); \
        return CUDA_SUCCESS;                  \
    } while (0)

/* Numbers are those of CUpointer_attribute. */
static CUresult answer_for(const struct known *k, int attribute, CUdeviceptr ptr, void *data) {
    const bool device = k->range != NULL;
    switch (attribute) {
    case 1: PUT(CUcontext, device && k->range->kind == FC_RESERVED ? NULL : &k->device->primary);
    case 2: PUT(unsigned, device ? 2 : 1);
    case 3: PUT(CUdeviceptr, ptr);
    case 4:
        if (device) return CUDA_ERROR_INVALID_VALUE;
        PUT(CUdeviceptr, ptr);
    case 6: PUT(unsigned, 0);
    case 7: PUT(unsigned long long, device ? k->range->buffer_id : k->host_base);
    case 8: PUT(bool, false);
    case 9: PUT(int, k->device->ordinal);
    case 10: PUT(bool, device && k->range->kind == FC_ALLOCATED);
    case 11: PUT(CUdeviceptr, device ? k->range->addr : k->host_base);
    case 12: PUT(size_t, device ? k->range->size : k->host_size);
    case 13: PUT(bool, !device || k->mapping != NULL);
    case 14: PUT(unsigned long long, k->mapping != NULL ? k->mapping->physical->handle_types : 0);
    case 15: PUT(bool, device &&fc_attribute(k->device, 116) != 0);
    case 16: PUT(unsigned, k->mapping != NULL ? k->mapping->access[k->device->ordinal] : device ? 0 : 3);
    case 17: PUT(void *, NULL);
    case 18: PUT(size_t, k->mapping != NULL ? k->mapping->size : k->host_size);
    case 19: PUT(CUdeviceptr, k->mapping != NULL ? k->mapping->addr : k->host_base);
    case 20: PUT(unsigned long long, k->mapping != NULL ? k->mapping->physical->id : 0);
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr) {
    FC_ENTER(FC_CONTEXT);
    struct known k;
    if (data == NULL) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fc_lock);
    pthread_rwlock_rdlock(&fc_space_lock);
    CUresult result = find(ptr, &k) ? answer_for(&k, (int)attribute, ptr, data) : CUDA_ERROR_INVALID_VALUE;
    pthread_rwlock_unlock(&fc_space_lock);
    pthread_mutex_unlock(&fc_lock);
    return result;
}

static size_t size_of_attribute(int attribute) {
    switch (attribute) {
    case 8:
    case 10:
    case 13:
    case 15: return sizeof(bool);
    case 2:
    case 6:
    case 9:
    case 16: return sizeof(unsigned);
    default: return 8;
    }
}

/* An address that is unknown is no error here: each answer is nothing, the ordinal -2. */
CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute *attributes, void **data, CUdeviceptr ptr) {
    FC_ENTER(FC_CONTEXT);
    struct known k;
    if (count == 0 || attributes == NULL || data == NULL) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fc_lock);
    pthread_rwlock_rdlock(&fc_space_lock);
    const bool found = find(ptr, &k);
    for (unsigned i = 0; i < count; i++) {
        const int a = (int)attributes[i], unknown = -2;
        if (found && answer_for(&k, a, ptr, data[i]) == CUDA_SUCCESS) continue;
        memset(data[i], 0, size_of_attribute(a));
        if (a == 9) memcpy(data[i], &unknown, sizeof unknown);
    }
    pthread_rwlock_unlock(&fc_space_lock);
    pthread_mutex_unlock(&fc_lock);
    return CUDA_SUCCESS;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr dptr) {
    FC_ENTER(FC_CONTEXT);
    if (handle == NULL) return CUDA_ERROR_INVALID_VALUE;
    pthread_rwlock_rdlock(&fc_space_lock);
    const struct fc_mapping *m = fc_mapping_at(dptr);
    const bool ours = m != NULL && m->range->kind == FC_ALLOCATED;
    if (ours) fc_name_of(m->physical, handle->reserved);
    pthread_rwlock_unlock(&fc_space_lock);
    if (ours) fc_count(FC_EXPORTS, 1);
    return ours ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* A handle that is open already is the same address once more. With fc_space_lock held. */
static bool open_again(const struct fc_physical *p, CUdeviceptr *out) {
    struct fc_mapping *m;
    for (size_t at = 0; (m = fc_mapping_next(&at)) != NULL;) {
        if (m->range->kind != FC_IMPORTED || m->physical->id != p->id) continue;
        m->range->opened++;
        *out = m->addr;
        return true;
    }
    return false;
}

/* With fc_space_lock held. */
static CUresult open_first(struct fc_physical *p, struct fc_device *device, CUdeviceptr *out) {
    struct fc_range *range = fc_range_new(FC_IMPORTED, p->size, FC_GRANULE);
    struct fc_mapping *m = range != NULL ? fc_map(range, range->addr, p->size, p, 0) : NULL;
    if (m == NULL) {
        if (range != NULL) fc_range_end(range);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    range->device = device;
    range->opened = 1;
    m->access[device->ordinal] = 3;
    m->access[p->device->ordinal] = 3;
    *out = range->addr;
    fc_count(FC_IPC_IMPORTS, 1);
    return CUDA_SUCCESS;
}

static CUresult open_handle(CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned flags) {
    struct fc_device *device = fc_current()->device;
    struct fc_physical *p;
    if (pdptr == NULL || flags != 1) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = fc_open_name(handle.reserved, false, &p);
    if (result != CUDA_SUCCESS) return result;
    pthread_rwlock_wrlock(&fc_space_lock);
    if (p->handle_types != 0) result = CUDA_ERROR_INVALID_VALUE; /* an event */
    else if (!fc_peers(p->device, device)) result = CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    else if (!open_again(p, pdptr)) result = open_first(p, device, pdptr);
    pthread_rwlock_unlock(&fc_space_lock);
    fc_physical_unref(p);
    return result;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int flags) {
    FC_ENTER(FC_CONTEXT);
    return open_handle(pdptr, handle, flags);
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int flags) {
    FC_ENTER(FC_CONTEXT);
    return open_handle(pdptr, handle, flags);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr dptr) {
    FC_ENTER(FC_CONTEXT);
    pthread_mutex_lock(&fc_lock);
    CUresult result = fc_drain(fc_current());
    pthread_rwlock_wrlock(&fc_space_lock);
    struct fc_range *range = fc_range_at(dptr);
    if (result == CUDA_SUCCESS && (range == NULL || range->kind != FC_IMPORTED || range->addr != dptr))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS && --range->opened == 0) fc_release_range(range);
    pthread_rwlock_unlock(&fc_space_lock);
    pthread_mutex_unlock(&fc_lock);
    return result;
}
