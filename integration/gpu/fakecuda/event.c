/* Events. The counters of one that other processes may open are in memory that they share. */
#include "fakecuda.h"
#include <sys/mman.h>
#include <time.h>

#define DISABLE_TIMING 2u
#define INTERPROCESS 4u

#define SHARED_EVENT 0x100u /* in place of the types of handles of an allocation */

/* How often it was recorded, and which of these records a stream has reached. */
struct counters {
    _Atomic uint64_t recorded, done;
};

struct event {
    int refs;
    uint64_t handle;
    CUcontext context;
    unsigned flags;
    struct counters own, *counters;
    struct fc_physical *shared;
    struct timespec at;
};

static uint64_t recorded(const struct event *e) { return atomic_load(&e->counters->recorded); }
static bool is_done(const struct event *e, uint64_t number) { return atomic_load(&e->counters->done) >= number; }

static void unref(struct event *e) {
    if (--e->refs > 0) return;
    if (e->shared != NULL) {
        munmap(e->counters, FC_PAGE);
        fc_physical_unref(e->shared);
    }
    free(e);
}

/* Waits a moment for an event, of this process or of another. With fc_lock held. */
static void wait_a_moment(const struct event *e) {
    const struct timespec pause = {0, 50000};
    if (e->shared == NULL) {
        pthread_cond_wait(&fc_progress, &fc_lock);
        return;
    }
    pthread_mutex_unlock(&fc_lock);
    nanosleep(&pause, NULL);
    pthread_mutex_lock(&fc_lock);
}

static struct event *get(CUevent event) { return fc_handle_get(FC_KIND_EVENT, (uint64_t)event); }

/* Makes an event that owns shared, which may be NULL. */
static CUresult make(CUevent *event, unsigned flags, struct fc_physical *shared) {
    void *page = shared != NULL ? mmap(NULL, FC_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, shared->fd, 0) : NULL;
    struct event *e = calloc(1, sizeof *e);
    if (e == NULL || page == MAP_FAILED) {
        if (shared != NULL) fc_physical_unref(shared);
        free(e);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (shared != NULL && !shared->imported)
        memset(page, 0, sizeof(struct counters)); /* fresh memory may not be zero */
    pthread_mutex_lock(&fc_lock);
    *e = (struct event){.refs = 1, .context = fc_current(), .flags = flags, .shared = shared};
    e->counters = shared != NULL ? page : &e->own;
    e->handle = fc_handle_new(FC_KIND_EVENT, e);
    *event = (CUevent)e->handle;
    pthread_mutex_unlock(&fc_lock);
    fc_count(FC_EVENTS, 1);
    return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent *event, unsigned int flags) {
    FC_ENTER(FC_CONTEXT);
    struct fc_physical *shared = NULL;
    if (event == NULL || (flags & ~7u) != 0) return CUDA_ERROR_INVALID_VALUE;
    if ((flags & INTERPROCESS) == 0) return make(event, flags, NULL);
    if ((flags & DISABLE_TIMING) == 0) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = fc_physical_new(fc_current()->device, sizeof(struct counters), false, SHARED_EVENT, &shared);
    return result == CUDA_SUCCESS ? make(event, flags, shared) : result;
}

CUresult cuIpcGetEventHandle(CUipcEventHandle *handle, CUevent event) {
    FC_ENTER(FC_CONTEXT);
    if (handle == NULL) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fc_lock);
    const struct event *e = get(event);
    const bool ours = e != NULL && e->shared != NULL && !e->shared->imported;
    if (ours) fc_name_of(e->shared, handle->reserved);
    pthread_mutex_unlock(&fc_lock);
    if (ours) fc_count(FC_EXPORTS, 1);
    return ours ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuIpcOpenEventHandle(CUevent *event, CUipcEventHandle handle) {
    FC_ENTER(FC_CONTEXT);
    struct fc_physical *shared;
    if (event == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = fc_open_name(handle.reserved, false, &shared);
    if (result != CUDA_SUCCESS) return result;
    if (shared->handle_types == SHARED_EVENT) return make(event, DISABLE_TIMING | INTERPROCESS, shared);
    fc_physical_unref(shared);
    return CUDA_ERROR_INVALID_HANDLE;
}

static void destroy(struct event *e) {
    fc_handle_end(e->handle);
    unref(e);
    fc_count(FC_EVENTS, -1);
}

CUresult cuEventDestroy_v2(CUevent event) {
    FC_ENTER(FC_CONTEXT);
    pthread_mutex_lock(&fc_lock);
    struct event *e = get(event);
    if (e != NULL) destroy(e);
    pthread_mutex_unlock(&fc_lock);
    return e != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

void fc_events_end(CUcontext context) {
    struct event *e;
    uint64_t handle;
    for (size_t at = 0; (e = fc_handle_next(FC_KIND_EVENT, &at, &handle)) != NULL;) {
        if (e->context == context) destroy(e);
    }
}

struct about_event {
    struct fc_operation op;
    struct event *event;
    uint64_t number;
};

static CUresult run_record(struct fc_operation *op) {
    (void)op;
    return CUDA_SUCCESS;
}

static void end_record(struct fc_operation *op) {
    struct about_event *r = (struct about_event *)op;
    if (!is_done(r->event, r->number)) atomic_store(&r->event->counters->done, r->number);
    clock_gettime(CLOCK_MONOTONIC, &r->event->at);
    unref(r->event);
    free(r);
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
    FC_ENTER(FC_CONTEXT);
    CUresult result = CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&fc_lock);
    struct event *e = get(event);
    struct fc_stream *s = fc_stream_get(stream);
    if (e != NULL && s != NULL && e->context == s->context) {
        struct about_event *r = fc_operation_new(sizeof *r, run_record);
        r->op.end = end_record;
        r->event = e;
        r->number = atomic_fetch_add(&e->counters->recorded, 1) + 1;
        e->refs++;
        fc_submit(s, r);
        result = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&fc_lock);
    return result;
}

static CUresult run_wait(struct fc_operation *op) {
    const struct about_event *w = (struct about_event *)op;
    pthread_mutex_lock(&fc_lock);
    while (!is_done(w->event, w->number) && atomic_load(&op->stream->context->device->sticky) == 0)
        wait_a_moment(w->event);
    pthread_mutex_unlock(&fc_lock);
    return CUDA_SUCCESS;
}

static void end_wait(struct fc_operation *op) {
    unref(((struct about_event *)op)->event);
    free(op);
}

/* It waits for the record that was last when it was called, and for none if there was none. */
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
    FC_ENTER(FC_CONTEXT);
    CUresult result = CUDA_ERROR_INVALID_HANDLE;
    if (flags > 1) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fc_lock);
    struct event *e = get(event);
    struct fc_stream *s = fc_stream_get(stream);
    if (e != NULL && s != NULL) {
        struct about_event *w = fc_operation_new(sizeof *w, run_wait);
        w->op.end = end_wait;
        w->event = e;
        w->number = recorded(e);
        e->refs++;
        fc_submit(s, w);
        result = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&fc_lock);
    return result;
}

CUresult cuEventQuery(CUevent event) {
    FC_ENTER(FC_CONTEXT);
    pthread_mutex_lock(&fc_lock);
    const struct event *e = get(event);
    const bool done = e != NULL && is_done(e, recorded(e));
    pthread_mutex_unlock(&fc_lock);
    return e == NULL ? CUDA_ERROR_INVALID_HANDLE : done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent event) {
    FC_ENTER(FC_CONTEXT);
    CUresult result = CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&fc_lock);
    struct event *e = get(event);
    if (e != NULL) {
        const uint64_t number = recorded(e);
        e->refs++;
        while (!is_done(e, number) && atomic_load(&e->context->device->sticky) == 0) wait_a_moment(e);
        result = (CUresult)atomic_load(&e->context->device->sticky);
        unref(e);
    }
    pthread_mutex_unlock(&fc_lock);
    return result;
}

static CUresult elapsed(float *ms, CUevent start, CUevent end) {
    CUresult result = CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&fc_lock);
    const struct event *a = get(start), *b = get(end);
    if (a != NULL && b != NULL && ms != NULL && (a->flags & DISABLE_TIMING) == 0 && (b->flags & DISABLE_TIMING) == 0 &&
        recorded(a) > 0 && recorded(b) > 0) {
        result = is_done(a, recorded(a)) && is_done(b, recorded(b)) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
        *ms = (float)((double)(b->at.tv_sec - a->at.tv_sec) * 1e3 + (double)(b->at.tv_nsec - a->at.tv_nsec) / 1e6);
    }
    pthread_mutex_unlock(&fc_lock);
    return result;
}

CUresult cuEventElapsedTime(float *ms, CUevent start, CUevent end) {
    FC_ENTER(FC_CONTEXT);
    return elapsed(ms, start, end);
}

CUresult cuEventElapsedTime_v2(float *ms, CUevent start, CUevent end) {
    FC_ENTER(FC_CONTEXT);
    FC_SINCE(12080);
    return elapsed(ms, start, end);
}
