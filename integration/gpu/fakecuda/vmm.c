/* Memory by cuMemCreate: the reservations that it is mapped into, and how another process gets it, by a descriptor or
 * by a fabric handle, which here is a name. */
#include "fakecuda.h"
#include <fcntl.h>
#include <unistd.h>

/* With fc_lock held. */
static struct fc_physical *get(CUmemGenericAllocationHandle handle) { return fc_handle_get(FC_KIND_MEMORY, handle); }

static CUresult check(const CUmemAllocationProp *prop, struct fc_device **device) {
    if (prop == NULL || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
    if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
    *device = fc_device(prop->location.id);
    if (*device == NULL) return CUDA_ERROR_INVALID_DEVICE;
    return fc_attribute(*device, 102) != 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

/* A device may have fabric handles and this process no right to them (IMEX). */
static CUresult check_types(const struct fc_device *device, unsigned types) {
    const unsigned known = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC;
    if ((types & ~known) != 0) return CUDA_ERROR_NOT_SUPPORTED;
    if ((types & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0 && fc_attribute(device, 103) == 0)
        return CUDA_ERROR_NOT_SUPPORTED;
    if ((types & CU_MEM_HANDLE_TYPE_FABRIC) == 0) return CUDA_SUCCESS;
    if (fc_attribute(device, 128) == 0) return CUDA_ERROR_NOT_SUPPORTED;
    return fc_env("FAKECUDA_IMEX", 1) != 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_PERMITTED;
}

/* Gives one handle, for which the caller's reference stands. With fc_lock held. */
static CUresult hand_out(struct fc_physical *p, CUmemGenericAllocationHandle *handle) {
    if (p->handles == 0) {
        p->handle = fc_handle_new(FC_KIND_MEMORY, p);
        if (p->handle == 0) return CUDA_ERROR_OUT_OF_MEMORY;
        fc_count(FC_VMM_HANDLES, 1);
    }
    p->handles++;
    *handle = p->handle;
    return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                       CUmemAllocationGranularity_flags option) {
    FC_ENTER(FC_INIT);
    struct fc_device *device;
    if (granularity == NULL || (unsigned)option > 1) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = check(prop, &device);
    if (result == CUDA_SUCCESS) *granularity = FC_GRANULE;
    return result;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                     unsigned long long flags) {
    FC_ENTER(FC_INIT);
    struct fc_device *device;
    struct fc_physical *p;
    if (handle == NULL || flags != 0 || size == 0 || size % FC_GRANULE != 0) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = check(prop, &device);
    if (result == CUDA_SUCCESS) result = check_types(device, (unsigned)prop->requestedHandleTypes);
    if (result == CUDA_SUCCESS) result = (CUresult)atomic_load(&device->sticky);
    if (result == CUDA_SUCCESS) result = fc_physical_new(device, size, true, (unsigned)prop->requestedHandleTypes, &p);
    if (result != CUDA_SUCCESS) return result;
    pthread_mutex_lock(&fc_lock);
    result = hand_out(p, handle);
    pthread_mutex_unlock(&fc_lock);
    if (result != CUDA_SUCCESS) fc_physical_unref(p);
    return result;
}

/* The memory stays while it is mapped. */
CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    FC_ENTER(FC_INIT);
    pthread_mutex_lock(&fc_lock);
    struct fc_physical *p = get(handle);
    if (p != NULL && --p->handles == 0) {
        fc_handle_end(handle);
        fc_count(FC_VMM_HANDLES, -1);
    }
    pthread_mutex_unlock(&fc_lock);
    if (p == NULL) return CUDA_ERROR_INVALID_VALUE;
    fc_physical_unref(p);
    return CUDA_SUCCESS;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr) {
    FC_ENTER(FC_INIT);
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    if (handle == NULL) return result;
    pthread_mutex_lock(&fc_lock);
    pthread_rwlock_rdlock(&fc_space_lock);
    const struct fc_mapping *m = fc_mapping_at((uint64_t)addr);
    if (m != NULL && m->range->kind == FC_RESERVED) {
        result = hand_out(m->physical, handle);
        if (result == CUDA_SUCCESS) fc_physical_ref(m->physical);
    }
    pthread_rwlock_unlock(&fc_space_lock);
    pthread_mutex_unlock(&fc_lock);
    return result;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle) {
    FC_ENTER(FC_INIT);
    pthread_mutex_lock(&fc_lock);
    const struct fc_physical *p = get(handle);
    if (p != NULL && prop != NULL) {
        memset(prop, 0, sizeof *prop);
        prop->type = CU_MEM_ALLOCATION_TYPE_PINNED;
        prop->requestedHandleTypes = (CUmemAllocationHandleType)p->handle_types;
        prop->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        prop->location.id = p->device->ordinal;
    }
    pthread_mutex_unlock(&fc_lock);
    return p != NULL && prop != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr hint,
                             unsigned long long flags) {
    FC_ENTER(FC_INIT);
    (void)hint;
    if (ptr == NULL || flags != 0 || size == 0 || size % FC_GRANULE != 0) return CUDA_ERROR_INVALID_VALUE;
    if ((alignment & (alignment - 1)) != 0) return CUDA_ERROR_INVALID_VALUE;
    pthread_rwlock_wrlock(&fc_space_lock);
    const struct fc_range *range = fc_range_new(FC_RESERVED, size, alignment);
    if (range != NULL) *ptr = range->addr;
    pthread_rwlock_unlock(&fc_space_lock);
    if (range != NULL) fc_count(FC_RESERVATIONS, 1);
    return range != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* The first mapping that lies in [addr, end), or NULL. With fc_space_lock held. */
static struct fc_mapping *first_in(uint64_t addr, uint64_t end) {
    for (; addr < end; addr += FC_GRANULE) {
        struct fc_mapping *m = fc_mapping_at(addr);
        if (m != NULL) return m;
    }
    return NULL;
}

CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size) {
    FC_ENTER(FC_INIT);
    pthread_rwlock_wrlock(&fc_space_lock);
    struct fc_range *range = fc_range_at(ptr);
    const bool free_it = range != NULL && range->kind == FC_RESERVED && range->addr == ptr && range->size == size &&
                         first_in(ptr, ptr + size) == NULL;
    if (free_it) fc_release_range(range);
    pthread_rwlock_unlock(&fc_space_lock);
    return free_it ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
    FC_ENTER(FC_INIT);
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    if (flags != 0 || offset != 0 || size == 0 || ptr % FC_GRANULE != 0 || size % FC_GRANULE != 0) return result;
    pthread_mutex_lock(&fc_lock);
    pthread_rwlock_wrlock(&fc_space_lock);
    struct fc_physical *p = get(handle);
    struct fc_range *range = fc_range_at(ptr);
    if (p != NULL && range != NULL && range->kind == FC_RESERVED && size <= p->size &&
        size <= range->addr + range->size - ptr && first_in(ptr, ptr + size) == NULL) {
        result = fc_map(range, ptr, size, p, 0) != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_rwlock_unlock(&fc_space_lock);
    pthread_mutex_unlock(&fc_lock);
    return result;
}

/* Whether whole mappings fill [ptr, ptr+size). With fc_space_lock held. */
static bool whole(CUdeviceptr ptr, size_t size) {
    uint64_t at = ptr;
    while (at < ptr + size) {
        const struct fc_mapping *m = fc_mapping_at(at);
        if (m == NULL || m->addr != at || m->range->kind != FC_RESERVED) return false;
        at = m->addr + m->size;
    }
    return size > 0 && at == ptr + size;
}

/* This does not wait for the device: to unmap what is in use loses it. */
CUresult cuMemUnmap(CUdeviceptr ptr, size_t size) {
    FC_ENTER(FC_INIT);
    pthread_rwlock_wrlock(&fc_space_lock);
    const bool all = whole(ptr, size);
    for (struct fc_mapping *m; all && (m = first_in(ptr, ptr + size)) != NULL;) fc_unmap(m);
    pthread_rwlock_unlock(&fc_space_lock);
    return all ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count) {
    FC_ENTER(FC_INIT);
    CUresult result = CUDA_SUCCESS;
    if (desc == NULL || count == 0) return CUDA_ERROR_INVALID_VALUE;
    pthread_rwlock_wrlock(&fc_space_lock);
    if (!whole(ptr, size)) result = CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
        const struct fc_device *device = fc_device(desc[i].location.id);
        const unsigned flags = (unsigned)desc[i].flags;
        if (desc[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE || (flags != 0 && flags != 1 && flags != 3))
            result = CUDA_ERROR_INVALID_VALUE;
        else if (device == NULL) result = CUDA_ERROR_INVALID_DEVICE;
        for (uint64_t at = ptr; at < ptr + size && result == CUDA_SUCCESS;) {
            struct fc_mapping *m = fc_mapping_at(at);
            if (!fc_peers(m->physical->device, device)) result = CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
            else m->access[device->ordinal] = flags;
            at += m->size;
        }
    }
    pthread_rwlock_unlock(&fc_space_lock);
    return result;
}

CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr) {
    FC_ENTER(FC_INIT);
    if (flags == NULL || location == NULL || fc_device(location->id) == NULL) return CUDA_ERROR_INVALID_VALUE;
    pthread_rwlock_rdlock(&fc_space_lock);
    const struct fc_mapping *m = fc_mapping_at(ptr);
    if (m != NULL) *flags = m->access[location->id];
    pthread_rwlock_unlock(&fc_space_lock);
    return m != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* With fc_lock held. */
static CUresult export_it(const struct fc_physical *p, unsigned type, void *out) {
    if ((p->handle_types & type) == 0 || (type & (type - 1)) != 0) return CUDA_ERROR_INVALID_VALUE;
    if (type == CU_MEM_HANDLE_TYPE_FABRIC) {
        fc_name_of(p, out);
        return CUDA_SUCCESS;
    }
    int fd = fcntl(p->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
    *(int *)out = fd;
    return CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                                      unsigned long long flags) {
    FC_ENTER(FC_INIT);
    if (out == NULL || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fc_lock);
    const struct fc_physical *p = fc_handle_get(FC_KIND_MEMORY, handle);
    CUresult result = p != NULL ? export_it(p, (unsigned)type, out) : CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&fc_lock);
    if (result == CUDA_SUCCESS) fc_count(FC_EXPORTS, 1);
    return result;
}

/* The caller's descriptor stays the caller's. */
static CUresult import_descriptor(int fd, struct fc_physical **p) {
    int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (own < 0) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = fc_physical_of(own, p);
    if (result == CUDA_SUCCESS && (*p)->vmm && ((*p)->handle_types & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0)
        return result;
    if (result != CUDA_SUCCESS) {
        close(own);
        return result;
    }
    fc_physical_unref(*p);
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *os_handle,
                                        CUmemAllocationHandleType type) {
    FC_ENTER(FC_INIT);
    struct fc_physical *p = NULL;
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    if (handle == NULL) return result;
    if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) result = import_descriptor((int)(intptr_t)os_handle, &p);
    else if (type == CU_MEM_HANDLE_TYPE_FABRIC && os_handle != NULL) result = fc_open_name(os_handle, true, &p);
    if (result != CUDA_SUCCESS) return result;
    pthread_mutex_lock(&fc_lock);
    p->handle = fc_handle_new(FC_KIND_MEMORY, p);
    p->handles = p->handle != 0;
    *handle = p->handle;
    pthread_mutex_unlock(&fc_lock);
    if (p->handle == 0) {
        fc_physical_unref(p);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    fc_count(FC_VMM_HANDLES, 1);
    return CUDA_SUCCESS;
}
