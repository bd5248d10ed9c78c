/* Memory of the host: registered, or the driver's own. Its device address is its own, as on x86-64. */
#include "fakecuda.h"
#include <sys/mman.h>

struct pinned {
    uint64_t addr;
    size_t size;
    unsigned flags;
    bool own;
    CUcontext context;
};

static struct pinned *pinned;
static size_t pinned_count, pinned_room;
static long long pinned_bytes;

#define MOST_AT_ONCE (512ull << 30) /* one registration of this size fails on real drivers */

/* The index of the first one beyond addr. With fc_lock held, as all below. */
static size_t beyond(uint64_t addr) {
    size_t low = 0, high = pinned_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (pinned[middle].addr <= addr) low = middle + 1;
        else high = middle;
    }
    return low;
}

static struct pinned *find(uint64_t addr) {
    size_t at = beyond(addr);
    return at > 0 && addr - pinned[at - 1].addr < pinned[at - 1].size ? &pinned[at - 1] : NULL;
}

/* Whether any byte of it is pinned. */
static bool touches(uint64_t addr, size_t size) {
    size_t at = beyond(addr);
    return find(addr) != NULL || (at < pinned_count && pinned[at].addr - addr < size);
}

static CUresult add(struct pinned one) {
    const long long limit = fc_env("FAKECUDA_PIN_BYTES", __LONG_LONG_MAX__);
    if (one.size >= MOST_AT_ONCE || (long long)one.size > limit - pinned_bytes) return CUDA_ERROR_OUT_OF_MEMORY;
    if (pinned_count == pinned_room) {
        size_t room = pinned_room == 0 ? 16 : 2 * pinned_room;
        struct pinned *grown = realloc(pinned, room * sizeof *grown);
        if (grown == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
        pinned = grown;
        pinned_room = room;
    }
    size_t at = beyond(one.addr);
    memmove(pinned + at + 1, pinned + at, (pinned_count - at) * sizeof *pinned);
    pinned[at] = one;
    pinned_count++;
    pinned_bytes += (long long)one.size;
    fc_count(FC_REGISTRATIONS, 1);
    fc_count(FC_REGISTERED_BYTES, (long long)one.size);
    return CUDA_SUCCESS;
}

static void take_out(struct pinned *p) {
    pinned_bytes -= (long long)p->size;
    fc_count(FC_REGISTRATIONS, -1);
    fc_count(FC_REGISTERED_BYTES, -(long long)p->size);
    if (p->own) munmap((void *)p->addr, p->size);
    memmove(p, p + 1, (size_t)(pinned + pinned_count - p - 1) * sizeof *p);
    pinned_count--;
}

enum fc_host fc_host_kind(uint64_t addr, size_t size) {
    const struct pinned *p = find(addr);
    if (p != NULL && size <= p->addr + p->size - addr) return FC_HOST_PINNED;
    return touches(addr, size) ? FC_HOST_CROSSING : FC_HOST_PAGEABLE;
}

bool fc_host_range(uint64_t addr, uint64_t *base, size_t *size, struct fc_device **device) {
    const struct pinned *p = find(addr);
    if (p == NULL) return false;
    *base = p->addr;
    *size = p->size;
    *device = p->context->device;
    return true;
}

void fc_host_forget(CUcontext context) {
    pthread_mutex_lock(&fc_lock);
    for (size_t at = pinned_count; at-- > 0;) {
        if (pinned[at].context == context) take_out(&pinned[at]);
    }
    pthread_mutex_unlock(&fc_lock);
}

struct fc_span *fc_host_spans(size_t *count) {
    pthread_mutex_lock(&fc_lock);
    struct fc_span *spans = calloc(pinned_count + 1, sizeof *spans);
    *count = spans != NULL ? pinned_count : 0;
    for (size_t i = 0; i < *count; i++) spans[i] = (struct fc_span){pinned[i].addr, pinned[i].size};
    pthread_mutex_unlock(&fc_lock);
    return spans;
}

static bool is_mapped(uint64_t addr, size_t size) {
    const uint64_t start = addr & ~(FC_PAGE - 1);
    unsigned char resident[512];
    for (uint64_t at = start; at < addr + size; at += sizeof resident * FC_PAGE) {
        size_t n = addr + size - at < sizeof resident * FC_PAGE ? addr + size - at : sizeof resident * FC_PAGE;
        if (mincore((void *)at, n, resident) != 0) return false;
    }
    return true;
}

static CUresult register_it(void *p, size_t size, unsigned flags) {
    const struct fc_device *device = fc_current()->device;
    const uint64_t addr = (uint64_t)p;
    if (p == NULL || size == 0 || addr + size < addr || (flags & ~15u) != 0) return CUDA_ERROR_INVALID_VALUE;
    if ((flags & 4) != 0) return CUDA_ERROR_NOT_PERMITTED;
    if (fc_attribute(device, 99) == 0 || ((flags & 8) != 0 && fc_attribute(device, 113) == 0))
        return CUDA_ERROR_NOT_SUPPORTED;
    if (fc_is_device_address(addr) || !is_mapped(addr, size)) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fc_lock);
    CUresult result = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    if (!touches(addr, size))
        result = add((struct pinned){.addr = addr, .size = size, .flags = flags, .context = fc_current()});
    pthread_mutex_unlock(&fc_lock);
    return result;
}

CUresult cuMemHostRegister(void *p, size_t size, unsigned int flags) {
    FC_ENTER(FC_CONTEXT);
    return register_it(p, size, flags);
}

CUresult cuMemHostRegister_v2(void *p, size_t size, unsigned int flags) {
    FC_ENTER(FC_CONTEXT);
    return register_it(p, size, flags);
}

/* Waits for the device, so that no copy loses its memory. */
static CUresult remove_pinned(void *p, bool own, CUresult unknown) {
    pthread_mutex_lock(&fc_lock);
    CUresult result = fc_drain(fc_current());
    struct pinned *one = find((uint64_t)p);
    if (result == CUDA_SUCCESS && (one == NULL || one->addr != (uint64_t)p || one->own != own)) result = unknown;
    if (result == CUDA_SUCCESS) take_out(one);
    pthread_mutex_unlock(&fc_lock);
    return result;
}

CUresult cuMemHostUnregister(void *p) {
    FC_ENTER(FC_CONTEXT);
    return remove_pinned(p, false, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

CUresult cuMemFreeHost(void *p) {
    FC_ENTER(FC_CONTEXT);
    return remove_pinned(p, true, CUDA_ERROR_INVALID_VALUE);
}

static CUresult allocate(void **pp, size_t size, unsigned flags) {
    if (pp == NULL || size == 0 || (flags & ~7u) != 0) return CUDA_ERROR_INVALID_VALUE;
    size = (size + FC_PAGE - 1) & ~(FC_PAGE - 1);
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&fc_lock);
    CUresult result =
        add((struct pinned){.addr = (uint64_t)p, .size = size, .flags = flags, .own = true, .context = fc_current()});
    pthread_mutex_unlock(&fc_lock);
    if (result != CUDA_SUCCESS) munmap(p, size);
    else *pp = p;
    return result;
}

CUresult cuMemHostAlloc(void **pp, size_t size, unsigned int flags) {
    FC_ENTER(FC_CONTEXT);
    return allocate(pp, size, flags);
}

CUresult cuMemAllocHost_v2(void **pp, size_t size) {
    FC_ENTER(FC_CONTEXT);
    return allocate(pp, size, 0);
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *dptr, void *p, unsigned int flags) {
    FC_ENTER(FC_CONTEXT);
    if (dptr == NULL || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fc_lock);
    const bool known = find((uint64_t)p) != NULL;
    pthread_mutex_unlock(&fc_lock);
    if (known) *dptr = (CUdeviceptr)p;
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemHostGetFlags(unsigned int *flags, void *p) {
    FC_ENTER(FC_CONTEXT);
    if (flags == NULL) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fc_lock);
    const struct pinned *one = find((uint64_t)p);
    if (one != NULL) *flags = one->flags;
    pthread_mutex_unlock(&fc_lock);
    return one != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
