/* cuInit, the primary contexts and the context of each thread; and what every entry does first. */
#include "fakecuda.h"
#include <sys/resource.h>

pthread_mutex_t fc_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t fc_progress = PTHREAD_COND_INITIALIZER;

#define DEPTH 32
static __thread CUcontext stack[DEPTH]; /* the last one is current */
static __thread int depth;

static atomic_bool initialised, forked;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool has_space;

/* The driver does not live on in a forked child. */
static void after_fork(void) { atomic_store(&forked, true); }

/* Each allocation is a descriptor here, which it is not in the real driver: so the limit must not be what an
 * interactive shell has. */
static void start(void) {
    struct rlimit files;
    pthread_atfork(NULL, NULL, after_fork);
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    fc_stats_open();
    fc_fault_init();
    has_space = fc_space_init();
}

CUcontext fc_current(void) { return depth > 0 ? stack[depth - 1] : NULL; }

static bool is_context(CUcontext ctx) {
    for (int i = 0; i < fc_devices(); i++) {
        if (ctx == &fc_device(i)->primary) return true;
    }
    return false;
}

/* Whether a retained context; one that was released may still be current on some thread. */
static bool is_alive(CUcontext ctx) {
    pthread_mutex_lock(&fc_lock);
    bool alive = ctx->retained > 0;
    pthread_mutex_unlock(&fc_lock);
    return alive;
}

CUresult fc_enter(const char *entry, enum fc_need need) {
    pthread_once(&once, start);
    fc_count(FC_CALLS, 1);
    fc_called(entry);
    CUresult fault = fc_fault(entry);
    if (fault != CUDA_SUCCESS) return fault;
    if (need == FC_NOTHING) return CUDA_SUCCESS;
    if (fc_in_host_function) return CUDA_ERROR_NOT_PERMITTED;
    if (!atomic_load(&initialised) || atomic_load(&forked)) return CUDA_ERROR_NOT_INITIALIZED;
    CUcontext ctx = fc_current();
    if (ctx == NULL) return need == FC_CONTEXT ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
    if (need == FC_CONTEXT && !is_alive(ctx)) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return need == FC_CONTEXT ? (CUresult)atomic_load(&ctx->device->sticky) : CUDA_SUCCESS;
}

/* The first error stays. Whoever waits for the device hears of it. */
void fc_lose(struct fc_device *device, CUresult code) {
    int none = CUDA_SUCCESS;
    atomic_compare_exchange_strong(&device->sticky, &none, (int)code);
    pthread_mutex_lock(&fc_lock);
    pthread_cond_broadcast(&fc_progress);
    pthread_mutex_unlock(&fc_lock);
}

CUresult cuInit(unsigned int flags) {
    FC_ENTER(FC_NOTHING);
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (atomic_load(&forked)) return CUDA_ERROR_NOT_INITIALIZED;
    if (fc_devices() == 0) return CUDA_ERROR_NO_DEVICE;
    if (!has_space) return CUDA_ERROR_OUT_OF_MEMORY;
    atomic_store(&initialised, true);
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev) {
    FC_ENTER(FC_INIT);
    struct fc_device *d = fc_device(dev);
    if (pctx == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (d == NULL) return CUDA_ERROR_INVALID_DEVICE;
    if (atomic_load(&d->sticky) != 0) return (CUresult)atomic_load(&d->sticky);
    pthread_mutex_lock(&fc_lock);
    if (d->primary.retained++ == 0) fc_count(FC_CONTEXTS, 1);
    pthread_mutex_unlock(&fc_lock);
    *pctx = &d->primary;
    return CUDA_SUCCESS;
}

/* All that was made in a context ends with it, except memory by cuMemCreate and its addresses. */
static void destroy(struct fc_device *d) {
    struct fc_range *range;
    fc_drain(&d->primary);
    fc_modules_end(&d->primary);
    fc_events_end(&d->primary);
    fc_streams_end(&d->primary);
    pthread_rwlock_wrlock(&fc_space_lock);
    for (size_t at = 0; (range = fc_range_next(&at)) != NULL;) {
        if (range->kind == FC_RESERVED || range->device != d) continue;
        fc_release_range(range);
        at = 0;
    }
    pthread_rwlock_unlock(&fc_space_lock);
}

static CUresult release(CUdevice dev) {
    struct fc_device *d = fc_device(dev);
    if (d == NULL) return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&fc_lock);
    bool retained = d->primary.retained > 0, last = d->primary.retained == 1;
    if (last) {
        destroy(d);
        fc_count(FC_CONTEXTS, -1);
    }
    if (retained) d->primary.retained--;
    pthread_mutex_unlock(&fc_lock);
    if (last) fc_host_forget(&d->primary);
    return retained ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice dev) {
    FC_ENTER(FC_INIT);
    return release(dev);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev) {
    FC_ENTER(FC_INIT);
    return release(dev);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active) {
    FC_ENTER(FC_INIT);
    if (flags == NULL || active == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (fc_device(dev) == NULL) return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&fc_lock);
    *flags = fc_device(dev)->primary.flags;
    *active = fc_device(dev)->primary.retained > 0;
    pthread_mutex_unlock(&fc_lock);
    return CUDA_SUCCESS;
}

static CUresult set_flags(CUdevice dev, unsigned flags) {
    if (fc_device(dev) == NULL) return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&fc_lock);
    fc_device(dev)->primary.flags = flags;
    pthread_mutex_unlock(&fc_lock);
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxSetFlags(CUdevice dev, unsigned int flags) {
    FC_ENTER(FC_INIT);
    return set_flags(dev, flags);
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags) {
    FC_ENTER(FC_INIT);
    return set_flags(dev, flags);
}

CUresult cuCtxSetCurrent(CUcontext ctx) {
    FC_ENTER(FC_INIT);
    if (ctx == NULL) {
        if (depth > 0) depth--;
        return CUDA_SUCCESS;
    }
    if (!is_context(ctx) || !is_alive(ctx)) return CUDA_ERROR_INVALID_CONTEXT;
    if (depth == 0) depth = 1;
    stack[depth - 1] = ctx;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *pctx) {
    FC_ENTER(FC_INIT);
    if (pctx == NULL) return CUDA_ERROR_INVALID_VALUE;
    *pctx = fc_current();
    return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext ctx) {
    FC_ENTER(FC_INIT);
    if (ctx == NULL || !is_context(ctx) || !is_alive(ctx)) return CUDA_ERROR_INVALID_CONTEXT;
    if (depth == DEPTH) return CUDA_ERROR_OUT_OF_MEMORY;
    stack[depth++] = ctx;
    return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext *pctx) {
    FC_ENTER(FC_INIT);
    if (depth == 0) return CUDA_ERROR_INVALID_CONTEXT;
    CUcontext popped = stack[--depth];
    if (pctx != NULL) *pctx = popped;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device) {
    FC_ENTER(FC_CONTEXT);
    if (device == NULL) return CUDA_ERROR_INVALID_VALUE;
    *device = fc_current()->device->ordinal;
    return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void) {
    FC_ENTER(FC_CONTEXT);
    pthread_mutex_lock(&fc_lock);
    CUresult result = fc_drain(fc_current());
    pthread_mutex_unlock(&fc_lock);
    return result;
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    FC_ENTER(FC_CONTEXT);
    if (least != NULL) *least = 0;
    if (greatest != NULL) *greatest = -5;
    return CUDA_SUCCESS;
}
