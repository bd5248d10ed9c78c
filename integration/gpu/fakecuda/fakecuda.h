/* What the files of the fake driver share.
 *
 * Locks: fc_lock guards objects (handles, streams, events, contexts, host memory). fc_space_lock guards what lies at
 * device addresses; a copy holds it for reading, a change of mappings for writing. Take fc_lock first. */
#ifndef FAKECUDA_H
#define FAKECUDA_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "fakecuda_api.h"

#pragma GCC visibility push(hidden)

#define FC_MAX_DEVICES 16
#define FC_PAGE 4096ul
#define FC_GRANULE (2ul << 20)

extern pthread_mutex_t fc_lock;
extern pthread_cond_t fc_progress; /* with fc_lock: some stream got on, or a device was lost */

/* env.c: the environment. */
long long fc_env(const char *name, long long otherwise);
int fc_version(void);

/* stats.c: counters that a test reads from a file, also of a process that was killed. */
#define FC_STATS_LIST(X)                       \
    X(FC_CALLS, "calls")                       \
    X(FC_FAULTS, "faults")                     \
    X(FC_CONTEXTS, "contexts")                 \
    X(FC_ALLOCATIONS, "allocations")           \
    X(FC_ALLOCATED_BYTES, "allocated_bytes")   \
    X(FC_VMM_HANDLES, "vmm_handles")           \
    X(FC_RESERVATIONS, "reservations")         \
    X(FC_MAPPINGS, "mappings")                 \
    X(FC_IPC_IMPORTS, "ipc_imports")           \
    X(FC_EXPORTS, "exports")                   \
    X(FC_DESCRIPTORS, "descriptors")           \
    X(FC_REGISTRATIONS, "registrations")       \
    X(FC_REGISTERED_BYTES, "registered_bytes") \
    X(FC_STREAMS, "streams")                   \
    X(FC_EVENTS, "events")                     \
    X(FC_MODULES, "modules")                   \
    X(FC_OPERATIONS, "operations")             \
    X(FC_PENDING, "pending")                   \
    X(FC_COPIES, "copies")                     \
    X(FC_COPIED_BYTES, "copied_bytes")         \
    X(FC_PAGEABLE_COPIES, "pageable_copies")   \
    X(FC_BATCHES, "batches")                   \
    X(FC_BATCH_COPIES, "batch_copies")         \
    X(FC_EARLY_READS, "early_reads")           \
    X(FC_LAUNCHES, "launches")
#define FC_STAT_NUMBER(number, name) number,
enum fc_stat { FC_STATS_LIST(FC_STAT_NUMBER) FC_STATS };
void fc_stats_open(void);
void fc_count(enum fc_stat stat, long long change);
void fc_called(const char *entry);

/* fault.c: what a test has gone wrong. */
#define FC_STALL (-1) /* of an operation: it never ends */
void fc_fault_init(void);
CUresult fc_fault(const char *entry);
int fc_fault_of_operation(void);
long fc_delay_us(void);
/* In table.c: whether the fake has an entry of that name, with or without its version. */
bool fc_same_entry(const char *symbol, const char *name);
bool fc_is_entry(const char *name);

/* device.c and context.c. A context is its device's primary one; there are no others. */
struct fc_stream;
struct CUctx_st {
    struct fc_device *device;
    int retained;
    unsigned flags;
    struct fc_stream *legacy, *per_thread;
};
struct fc_device {
    int ordinal, physical;
    CUuuid uuid;
    char bus_id[16];
    atomic_llong used_bytes;
    atomic_int sticky; /* a CUresult: the device is lost to this process */
    struct CUctx_st primary;
};
int fc_devices(void);
struct fc_device *fc_device(int ordinal);
struct fc_device *fc_device_of_uuid(const char uuid[16]);
int fc_attribute(const struct fc_device *device, int attribute);
bool fc_peers(const struct fc_device *a, const struct fc_device *b);
long long fc_memory_bytes(void);
void fc_lose(struct fc_device *device, CUresult code);

/* What entries do first: faults, cuInit, the current context, a lost device. */
enum fc_need { FC_NOTHING, FC_INIT, FC_CONTEXT };
CUresult fc_enter(const char *entry, enum fc_need need);
#define FC_ENTER(need)                               \
    do {                                             \
        CUresult entered = fc_enter(__func__, need); \
        if (entered != CUDA_SUCCESS) return entered; \
    } while (0)
/* In an entry that came after 12.4: an older driver does not have it, and its caller has not asked. */
#define FC_SINCE(version)                                        \
    do {                                                         \
        if (fc_version() < version) return CUDA_ERROR_NOT_FOUND; \
    } while (0)
CUcontext fc_current(void);

/* handle.c: handles with a kind and a generation, so that a stale one is refused. With fc_lock held. */
enum fc_kind { FC_KIND_STREAM = 1, FC_KIND_EVENT, FC_KIND_MODULE, FC_KIND_FUNCTION, FC_KIND_MEMORY };
uint64_t fc_handle_new(enum fc_kind kind, void *object);
void *fc_handle_get(enum fc_kind kind, uint64_t handle);
void fc_handle_end(uint64_t handle);
void *fc_handle_next(enum fc_kind kind, size_t *at, uint64_t *handle); /* all of a kind: start with *at = 0 */

/* physical.c: memory, apart from addresses: a sealed file in memory, with a last page that says what it is. */
struct fc_physical {
    atomic_int refs;
    int fd;
    size_t size;
    uint64_t id;
    struct fc_device *device;
    unsigned handle_types;
    bool vmm, imported;
    int handles; /* of cuMemCreate, import and retain, not yet released; with fc_lock */
    uint64_t handle;
};
CUresult fc_physical_new(struct fc_device *device, size_t size, bool vmm, unsigned handle_types,
                         struct fc_physical **out);
CUresult fc_physical_of(int fd, struct fc_physical **out); /* owns fd unless it fails */
struct fc_physical *fc_physical_ref(struct fc_physical *p);
void fc_physical_unref(struct fc_physical *p);
/* A name by which another process finds the memory while this one keeps it. */
void fc_name_of(const struct fc_physical *p, char name[64]);
/* fc_open_name gives CUDA_ERROR_INVALID_CONTEXT for a name of this very process. */
CUresult fc_open_name(const char name[64], bool vmm, struct fc_physical **out);

/* space.c: device addresses. The caller holds fc_space_lock as said. */
extern pthread_rwlock_t fc_space_lock;
enum fc_range_kind { FC_ALLOCATED, FC_IMPORTED, FC_RESERVED };
struct fc_range {
    uint64_t addr;
    size_t size, footprint;
    enum fc_range_kind kind;
    struct fc_device *device;
    uint64_t buffer_id;
    int opened; /* how often an import was opened */
};
struct fc_mapping {
    uint64_t addr;
    size_t size;
    struct fc_physical *physical;
    struct fc_range *range;
    unsigned access[FC_MAX_DEVICES]; /* by ordinal: 0, 1 read, 3 read and write */
};
bool fc_space_init(void);
bool fc_is_device_address(uint64_t addr);
struct fc_range *fc_range_new(enum fc_range_kind kind, size_t size, size_t align); /* NULL: no room */
void fc_range_end(struct fc_range *range);
struct fc_range *fc_range_at(uint64_t addr);
struct fc_range *fc_range_next(size_t *at);
struct fc_mapping *fc_map(struct fc_range *range, uint64_t addr, size_t size, struct fc_physical *p, size_t offset);
void fc_unmap(struct fc_mapping *m);
struct fc_mapping *fc_mapping_at(uint64_t addr);
struct fc_mapping *fc_mapping_next(size_t *at); /* by address: start with *at = 0 */
/* The bytes of device memory that device may read or write, or NULL. */
void *fc_bytes(const struct fc_device *device, uint64_t addr, size_t size, bool write);
void fc_release_range(struct fc_range *range); /* unmaps all of it */

/* host.c: memory of the host. */
enum fc_host { FC_HOST_PAGEABLE, FC_HOST_PINNED, FC_HOST_CROSSING };
enum fc_host fc_host_kind(uint64_t addr, size_t size);                                      /* with fc_lock */
bool fc_host_range(uint64_t addr, uint64_t *base, size_t *size, struct fc_device **device); /* with fc_lock */
void fc_host_forget(CUcontext context);                                                     /* takes fc_lock */
struct fc_span {
    uint64_t addr;
    size_t size;
};
struct fc_span *fc_host_spans(size_t *count); /* a copy, by address; takes fc_lock */

/* stream.c: a thread per stream takes operations in order. */
struct fc_operation {
    struct fc_operation *next;
    struct fc_stream *stream;
    uint64_t number;
    int fault;
    CUresult (*run)(struct fc_operation *); /* without locks; an error loses the device */
    void (*end)(struct fc_operation *);     /* with fc_lock, also when it was not run; it frees. NULL: free() */
    bool inner;                             /* order between streams: no fault, no delay */
    bool counted;                           /* as pending */
};
struct fc_stream {
    struct fc_stream *next; /* of all that have a thread */
    int refs;
    CUcontext context;
    uint64_t handle;
    unsigned flags;
    int priority;
    pthread_cond_t work;
    struct fc_operation *first, *last;
    uint64_t submitted, completed;
    bool dying;
};
struct fc_stream *fc_stream_get(CUstream stream); /* with fc_lock; NULL: no such stream */
void *fc_operation_new(size_t size, CUresult (*run)(struct fc_operation *));
void fc_submit(struct fc_stream *stream, void *operation);                                /* with fc_lock */
void fc_submit_wait(struct fc_stream *stream, struct fc_stream *target, uint64_t number); /* with fc_lock */
CUresult fc_wait(struct fc_stream *stream, uint64_t number); /* with fc_lock, which it gives up meanwhile */
bool fc_wait_for_progress(const struct fc_operation *op);    /* the same; false: the device is lost */
CUresult fc_drain(CUcontext context);                        /* the same */
void fc_streams_end(CUcontext context);                      /* with fc_lock */
extern __thread bool fc_in_host_function;

/* event.c, kernel.c: what ends with a context. With fc_lock held. */
void fc_events_end(CUcontext context);
void fc_modules_end(CUcontext context);

/* copy.c */
struct fc_copy {
    uint64_t dst, src;
    size_t size;
    void *early; /* the source as it was at submission */
    bool dst_pageable, src_pageable;
};
CUresult fc_copy_check(const struct fc_device *device, struct fc_copy *copy); /* with fc_lock */
CUresult fc_copy_early(const struct fc_device *device, struct fc_copy *copy); /* with fc_lock */
CUresult fc_copy_run(const struct fc_device *device, const struct fc_copy *copy);

#pragma GCC visibility pop

#endif
