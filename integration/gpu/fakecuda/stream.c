/* Streams: a thread for each takes its operations in order. The legacy stream is in order with all that are not
 * CU_STREAM_NON_BLOCKING. */
#include "fakecuda.h"
#include <errno.h>
#include <signal.h>
#include <time.h>

#define NON_BLOCKING 1u

__thread bool fc_in_host_function;
static struct fc_stream *all; /* with fc_lock */

static void unref(struct fc_stream *s) {
    if (--s->refs > 0) return;
    pthread_cond_destroy(&s->work);
    free(s);
}

bool fc_wait_for_progress(const struct fc_operation *op) {
    if (atomic_load(&op->stream->context->device->sticky) != 0) return false;
    pthread_cond_wait(&fc_progress, &fc_lock);
    return true;
}

static void delay(void) {
    const long us = fc_delay_us();
    struct timespec left = {us / 1000000, us % 1000000 * 1000};
    while (us > 0 && nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
}

/* On a lost device nothing runs any more, and operations end as they are reached. */
static CUresult perform(struct fc_operation *op) {
    if (!op->inner) delay();
    if (op->fault == FC_STALL) {
        pthread_mutex_lock(&fc_lock);
        while (fc_wait_for_progress(op)) {
        }
        pthread_mutex_unlock(&fc_lock);
    }
    if (atomic_load(&op->stream->context->device->sticky) != 0) return CUDA_SUCCESS;
    return op->fault > 0 ? (CUresult)op->fault : op->run(op);
}

static void finish(struct fc_stream *s, struct fc_operation *op) {
    const uint64_t number = op->number;
    if (op->counted) fc_count(FC_PENDING, -1);
    if (op->end != NULL) op->end(op);
    else free(op);
    s->completed = number;
    pthread_cond_broadcast(&fc_progress);
}

static void *serve(void *argument) {
    struct fc_stream *s = argument;
    pthread_mutex_lock(&fc_lock);
    while (s->first != NULL || !s->dying) {
        struct fc_operation *op = s->first;
        if (op == NULL) {
            pthread_cond_wait(&s->work, &fc_lock);
            continue;
        }
        s->first = op->next;
        if (s->first == NULL) s->last = NULL;
        pthread_mutex_unlock(&fc_lock);
        CUresult result = perform(op);
        if (result != CUDA_SUCCESS) fc_lose(s->context->device, result);
        pthread_mutex_lock(&fc_lock);
        finish(s, op);
    }
    for (struct fc_stream **at = &all; *at != NULL; at = &(*at)->next) {
        if (*at != s) continue;
        *at = s->next;
        break;
    }
    unref(s);
    pthread_mutex_unlock(&fc_lock);
    return NULL;
}

/* The thread takes no signals: they are the program's. */
static struct fc_stream *start(CUcontext context, unsigned flags, int priority) {
    struct fc_stream *s = calloc(1, sizeof *s);
    pthread_t thread;
    sigset_t every, before;
    if (s == NULL) return NULL;
    *s = (struct fc_stream){.refs = 1, .context = context, .flags = flags, .priority = priority};
    pthread_cond_init(&s->work, NULL);
    sigfillset(&every);
    pthread_sigmask(SIG_BLOCK, &every, &before);
    int failed = pthread_create(&thread, NULL, serve, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed != 0) {
        unref(s);
        return NULL;
    }
    pthread_detach(thread);
    s->next = all;
    all = s;
    return s;
}

/* 0 and 1 are the legacy stream, 2 is the default one of a thread. Here a context has one for all threads. */
struct fc_stream *fc_stream_get(CUstream stream) {
    CUcontext context = fc_current();
    if ((uintptr_t)stream > 2) return fc_handle_get(FC_KIND_STREAM, (uint64_t)stream);
    struct fc_stream **s = (uintptr_t)stream == 2 ? &context->per_thread : &context->legacy;
    if (*s == NULL) *s = start(context, 0, 0);
    return *s;
}

void *fc_operation_new(size_t size, CUresult (*run)(struct fc_operation *)) {
    struct fc_operation *op = calloc(1, size);
    if (op == NULL) abort();
    op->run = run;
    return op;
}

static void append(struct fc_stream *s, struct fc_operation *op) {
    op->stream = s;
    op->number = ++s->submitted;
    op->next = NULL;
    if (s->last != NULL) s->last->next = op;
    else s->first = op;
    s->last = op;
    pthread_cond_signal(&s->work);
}

struct order {
    struct fc_operation op;
    struct fc_stream *target;
    uint64_t number;
};

static CUresult run_order(struct fc_operation *op) {
    const struct order *o = (struct order *)op;
    pthread_mutex_lock(&fc_lock);
    while (o->target->completed < o->number && fc_wait_for_progress(op)) {
    }
    pthread_mutex_unlock(&fc_lock);
    return CUDA_SUCCESS;
}

static void end_order(struct fc_operation *op) {
    unref(((struct order *)op)->target);
    free(op);
}

void fc_submit_wait(struct fc_stream *s, struct fc_stream *target, uint64_t number) {
    if (s == target || target->completed >= number) return;
    struct order *o = fc_operation_new(sizeof *o, run_order);
    o->op.inner = true;
    o->op.end = end_order;
    o->target = target;
    o->number = number;
    target->refs++;
    append(s, &o->op);
}

void fc_submit(struct fc_stream *s, void *operation) {
    struct fc_operation *op = operation;
    struct fc_stream *legacy = s->context->legacy;
    op->fault = fc_fault_of_operation();
    op->counted = true;
    for (struct fc_stream *other = all; s == legacy && other != NULL; other = other->next) {
        if (other->context == s->context && (other->flags & NON_BLOCKING) == 0)
            fc_submit_wait(s, other, other->submitted);
    }
    if (s != legacy && legacy != NULL && (s->flags & NON_BLOCKING) == 0) fc_submit_wait(s, legacy, legacy->submitted);
    append(s, op);
    fc_count(FC_OPERATIONS, 1);
    fc_count(FC_PENDING, 1);
}

CUresult fc_wait(struct fc_stream *s, uint64_t number) {
    s->refs++;
    while (s->completed < number) pthread_cond_wait(&fc_progress, &fc_lock);
    CUresult result = (CUresult)atomic_load(&s->context->device->sticky);
    unref(s);
    return result;
}

CUresult fc_drain(CUcontext context) {
    for (struct fc_stream *s = all; s != NULL;) {
        if (s->context == context && s->completed < s->submitted) {
            fc_wait(s, s->submitted);
            s = all; /* others came and went meanwhile */
        } else {
            s = s->next;
        }
    }
    return (CUresult)atomic_load(&context->device->sticky);
}

static void let_go(struct fc_stream *s) {
    if (s->handle != 0) {
        fc_handle_end(s->handle);
        fc_count(FC_STREAMS, -1);
    }
    s->handle = 0;
    s->dying = true;
    pthread_cond_signal(&s->work);
}

void fc_streams_end(CUcontext context) {
    for (struct fc_stream *s = all; s != NULL; s = s->next) {
        if (s->context == context) let_go(s);
    }
    context->legacy = context->per_thread = NULL;
}

static CUresult create(CUstream *stream, unsigned flags, int priority) {
    if (stream == NULL || (flags & ~NON_BLOCKING) != 0) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fc_lock);
    struct fc_stream *s = start(fc_current(), flags, priority < -5 ? -5 : priority > 0 ? 0 : priority);
    if (s != NULL) {
        s->handle = fc_handle_new(FC_KIND_STREAM, s);
        *stream = (CUstream)s->handle;
        fc_count(FC_STREAMS, 1);
    }
    pthread_mutex_unlock(&fc_lock);
    return s != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuStreamCreate(CUstream *stream, unsigned int flags) {
    FC_ENTER(FC_CONTEXT);
    return create(stream, flags, 0);
}

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority) {
    FC_ENTER(FC_CONTEXT);
    return create(stream, flags, priority);
}

/* What was submitted is still done. */
CUresult cuStreamDestroy_v2(CUstream stream) {
    FC_ENTER(FC_CONTEXT);
    pthread_mutex_lock(&fc_lock);
    struct fc_stream *s = (uintptr_t)stream > 2 ? fc_stream_get(stream) : NULL;
    if (s != NULL) let_go(s);
    pthread_mutex_unlock(&fc_lock);
    return s != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuStreamQuery(CUstream stream) {
    FC_ENTER(FC_CONTEXT);
    pthread_mutex_lock(&fc_lock);
    struct fc_stream *s = fc_stream_get(stream);
    bool busy = s != NULL && s->completed < s->submitted;
    for (struct fc_stream *other = all; s != NULL && s == s->context->legacy && other != NULL; other = other->next) {
        if (other->context == s->context && (other->flags & NON_BLOCKING) == 0)
            busy |= other->completed < other->submitted;
    }
    pthread_mutex_unlock(&fc_lock);
    return s == NULL ? CUDA_ERROR_INVALID_HANDLE : busy ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

static CUresult run_nothing(struct fc_operation *op) {
    (void)op;
    return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream stream) {
    FC_ENTER(FC_CONTEXT);
    CUresult result = CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&fc_lock);
    struct fc_stream *s = fc_stream_get(stream);
    if (s != NULL && s == s->context->legacy) {
        struct fc_operation *op = fc_operation_new(sizeof *op, run_nothing);
        op->inner = true;
        fc_submit(s, op);
    }
    if (s != NULL) result = fc_wait(s, s->submitted);
    pthread_mutex_unlock(&fc_lock);
    return result;
}

/* What a stream is asked for: each answer is a field of it. */
#define GETTER(entry, type, what)                                                 \
    CUresult entry(CUstream stream, type *out) {                                  \
        FC_ENTER(FC_CONTEXT);                                                     \
        pthread_mutex_lock(&fc_lock);                                             \
        const struct fc_stream *s = fc_stream_get(stream);                        \
        if (s != NULL && out != NULL) *out = what;                                \
        pthread_mutex_unlock(&fc_lock);                                           \
        return s != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;              \
    }

GETTER(cuStreamGetPriority, int, s->priority)
GETTER(cuStreamGetFlags, unsigned int, s->flags)
GETTER(cuStreamGetCtx, CUcontext, s->context)
GETTER(cuStreamIsCapturing, CUstreamCaptureStatus, CU_STREAM_CAPTURE_STATUS_NONE)

/* Nothing is ever captured, so a mode forbids nothing: it is kept for the thread that set it. */
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
    static __thread CUstreamCaptureMode of_thread = CU_STREAM_CAPTURE_MODE_GLOBAL;
    FC_ENTER(FC_INIT);
    if (mode == NULL || (unsigned)*mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
    const CUstreamCaptureMode before = of_thread;
    of_thread = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}
