/* Device addresses. They lie in a region that nobody may touch, so that a host access faults; the bytes are a second
 * mapping of the same memory, at the same distance from every device address, so that a copy may cross mappings. */
#include "fakecuda.h"
#include <sys/mman.h>

pthread_rwlock_t fc_space_lock = PTHREAD_RWLOCK_INITIALIZER;

static uint64_t base, limit, cursor;
static uint64_t distance; /* from a device address to its bytes */
static uint64_t last_buffer;

/* Pointers in the order of their addresses. Both kinds begin with theirs. */
struct sorted {
    void **list;
    size_t count, room;
};
static struct sorted ranges, mappings;

static uint64_t addr_of(const struct sorted *s, size_t at) { return *(const uint64_t *)s->list[at]; }

/* The index of the first one beyond addr. */
static size_t beyond(const struct sorted *s, uint64_t addr) {
    size_t low = 0, high = s->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (addr_of(s, middle) <= addr) low = middle + 1;
        else high = middle;
    }
    return low;
}

static bool insert(struct sorted *s, void *one) {
    size_t at = beyond(s, *(const uint64_t *)one);
    if (s->count == s->room) {
        size_t room = s->room == 0 ? 64 : 2 * s->room;
        void **grown = realloc(s->list, room * sizeof *grown);
        if (grown == NULL) return false;
        s->list = grown;
        s->room = room;
    }
    memmove(s->list + at + 1, s->list + at, (s->count - at) * sizeof *s->list);
    s->list[at] = one;
    s->count++;
    return true;
}

static void take_out(struct sorted *s, const void *one) {
    size_t at = beyond(s, *(const uint64_t *)one) - 1;
    memmove(s->list + at, s->list + at + 1, (s->count - at - 1) * sizeof *s->list);
    s->count--;
}

bool fc_space_init(void) {
    size_t size = (size_t)fc_env("FAKECUDA_VA_BYTES", 256ll << 30);
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    char *device = mmap(NULL, size, PROT_NONE, flags, -1, 0);
    char *bytes = mmap(NULL, size, PROT_NONE, flags, -1, 0);
    if (device == MAP_FAILED || bytes == MAP_FAILED) return false;
    base = (uint64_t)device;
    limit = base + size;
    cursor = base;
    distance = (uint64_t)bytes - base;
    return true;
}

bool fc_is_device_address(uint64_t addr) { return addr >= base && addr < limit; }

static uint64_t up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

/* The first gap from start on, with room after it that stays empty, so that a copy over an end is caught. */
static uint64_t gap(uint64_t start, size_t footprint, size_t align) {
    uint64_t addr = up(start, align);
    for (size_t at = beyond(&ranges, start); addr + footprint <= limit; at++) {
        if (at > 0) {
            const struct fc_range *before = ranges.list[at - 1];
            if (before->addr + before->footprint > addr) addr = up(before->addr + before->footprint, align);
        }
        if (at == ranges.count || addr + footprint <= addr_of(&ranges, at)) return addr + footprint <= limit ? addr : 0;
    }
    return 0;
}

/* Addresses are not used again soon, so that a stale one is found out. */
struct fc_range *fc_range_new(enum fc_range_kind kind, size_t size, size_t align) {
    if (size == 0 || size > limit - base) return NULL;
    if (align < FC_GRANULE) align = FC_GRANULE;
    size_t footprint = up(size, FC_GRANULE) + FC_GRANULE;
    uint64_t addr = gap(cursor, footprint, align);
    if (addr == 0) addr = gap(base, footprint, align);
    struct fc_range *r = addr != 0 ? calloc(1, sizeof *r) : NULL;
    if (r == NULL) return NULL;
    *r =
        (struct fc_range){.addr = addr, .size = size, .footprint = footprint, .kind = kind, .buffer_id = ++last_buffer};
    if (!insert(&ranges, r)) {
        free(r);
        return NULL;
    }
    cursor = addr + footprint;
    return r;
}

void fc_range_end(struct fc_range *range) {
    take_out(&ranges, range);
    free(range);
}

struct fc_range *fc_range_at(uint64_t addr) {
    size_t at = beyond(&ranges, addr);
    struct fc_range *r = at > 0 ? ranges.list[at - 1] : NULL;
    return r != NULL && addr - r->addr < r->size ? r : NULL;
}

struct fc_range *fc_range_next(size_t *at) { return *at < ranges.count ? ranges.list[(*at)++] : NULL; }

struct fc_mapping *fc_map(struct fc_range *range, uint64_t addr, size_t size, struct fc_physical *p, size_t offset) {
    struct fc_mapping *m = calloc(1, sizeof *m);
    if (m == NULL) return NULL;
    *m = (struct fc_mapping){.addr = addr, .size = size, .range = range, .physical = p};
    void *bytes = (void *)(addr + distance);
    if (mmap(bytes, up(size, FC_PAGE), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, p->fd, (off_t)offset) ==
            MAP_FAILED ||
        !insert(&mappings, m)) {
        free(m);
        return NULL;
    }
    fc_physical_ref(p);
    fc_count(FC_MAPPINGS, 1);
    return m;
}

void fc_unmap(struct fc_mapping *m) {
    mmap((void *)(m->addr + distance), up(m->size, FC_PAGE), PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    take_out(&mappings, m);
    fc_physical_unref(m->physical);
    fc_count(FC_MAPPINGS, -1);
    free(m);
}

struct fc_mapping *fc_mapping_at(uint64_t addr) {
    size_t at = beyond(&mappings, addr);
    struct fc_mapping *m = at > 0 ? mappings.list[at - 1] : NULL;
    return m != NULL && addr - m->addr < m->size ? m : NULL;
}

struct fc_mapping *fc_mapping_next(size_t *at) { return *at < mappings.count ? mappings.list[(*at)++] : NULL; }

void *fc_bytes(const struct fc_device *device, uint64_t addr, size_t size, bool write) {
    const unsigned needed = write ? 3 : 1;
    if (!fc_is_device_address(addr) || size > limit - addr) return NULL;
    size_t at = beyond(&mappings, addr);
    for (uint64_t reached = addr; at > 0 && at <= mappings.count; at++) {
        const struct fc_mapping *m = mappings.list[at - 1];
        if (reached < m->addr || reached - m->addr >= m->size) return NULL;
        if (device != NULL && (m->access[device->ordinal] & needed) != needed) return NULL;
        reached = m->addr + m->size;
        if (reached >= addr + size) return (void *)(addr + distance);
    }
    return NULL;
}

void fc_release_range(struct fc_range *range) {
    const uint64_t end = range->addr + range->size;
    size_t at = beyond(&mappings, range->addr);
    if (at > 0) at--;
    for (struct fc_mapping *m; (m = fc_mapping_next(&at)) != NULL && m->addr < end;) {
        if (m->range != range) continue;
        fc_unmap(m);
        at--;
    }
    switch (range->kind) {
    case FC_ALLOCATED:
        fc_count(FC_ALLOCATIONS, -1);
        fc_count(FC_ALLOCATED_BYTES, -(long long)range->size);
        break;
    case FC_IMPORTED: fc_count(FC_IPC_IMPORTS, -1); break;
    case FC_RESERVED: fc_count(FC_RESERVATIONS, -1); break;
    }
    fc_range_end(range);
}

void *fakecuda_view(CUdeviceptr addr, size_t size_bytes) {
    pthread_rwlock_rdlock(&fc_space_lock);
    void *bytes = fc_bytes(NULL, addr, size_bytes, true);
    pthread_rwlock_unlock(&fc_space_lock);
    return bytes;
}
