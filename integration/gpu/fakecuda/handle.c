/* Handles. The real driver's are pointers, and a stale one is a crash; here it is refused. */
#include "fakecuda.h"

struct slot {
    void *object;
    enum fc_kind kind;
    unsigned generation;
};

static struct slot *slots;
static size_t slot_count, first_free;

/* A handle is never a small number: 0, 1 and 2 are streams of their own. */
static uint64_t name(size_t at) {
    return (uint64_t)slots[at].kind << 44 | (uint64_t)(slots[at].generation & 0xffff) << 28 | (uint64_t)(at + 1) << 4;
}

uint64_t fc_handle_new(enum fc_kind kind, void *object) {
    size_t at = first_free;
    while (at < slot_count && slots[at].object != NULL) at++;
    if (at == slot_count) {
        size_t more = slot_count == 0 ? 256 : 2 * slot_count;
        struct slot *grown = realloc(slots, more * sizeof *slots);
        if (grown == NULL) return 0;
        memset(grown + slot_count, 0, (more - slot_count) * sizeof *slots);
        slots = grown;
        slot_count = more;
    }
    slots[at].object = object;
    slots[at].kind = kind;
    slots[at].generation++;
    first_free = at + 1;
    return name(at);
}

static struct slot *find(uint64_t handle) {
    size_t at = (handle >> 4 & 0xffffff) - 1;
    return at < slot_count && slots[at].object != NULL && name(at) == handle ? &slots[at] : NULL;
}

void *fc_handle_get(enum fc_kind kind, uint64_t handle) {
    struct slot *s = find(handle);
    return s != NULL && s->kind == kind ? s->object : NULL;
}

void fc_handle_end(uint64_t handle) {
    struct slot *s = find(handle);
    if (s == NULL) return;
    s->object = NULL;
    if ((size_t)(s - slots) < first_free) first_free = (size_t)(s - slots);
}

void *fc_handle_next(enum fc_kind kind, size_t *at, uint64_t *handle) {
    for (; *at < slot_count; ++*at) {
        if (slots[*at].object == NULL || slots[*at].kind != kind) continue;
        *handle = name(*at);
        return slots[(*at)++].object;
    }
    return NULL;
}
