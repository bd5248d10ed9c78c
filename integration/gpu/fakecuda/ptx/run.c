/* Running a thread. A thread's frame is an array of slots; an instruction reads and writes slots. */
#include <string.h>

#include "internal.h"

/* read_as returns the first bytes of what is at an address, zero-extended. The machine is little-endian, as
 * devices are. */
static inline uint64_t read_as(const uint8_t *from, unsigned bytes)
{
    uint64_t value = 0;
    switch (bytes) {
    case 1:
        return *from;
    case 2:
        memcpy(&value, from, 2);
        return value;
    case 4:
        memcpy(&value, from, 4);
        return value;
    default:
        memcpy(&value, from, 8);
        return value;
    }
}

static inline void write_as(uint8_t *to, uint64_t value, unsigned bytes)
{
    switch (bytes) {
    case 1:
        *to = (uint8_t)value;
        return;
    case 2:
        memcpy(to, &value, 2);
        return;
    case 4:
        memcpy(to, &value, 4);
        return;
    default:
        memcpy(to, &value, 8);
    }
}

static inline uint64_t cut(uint64_t value, unsigned bytes) { return bytes >= 8 ? value : value & ((1ull << 8 * bytes) - 1); }

/* extend returns the low bytes of a value, with its sign if it has one. */
static inline uint64_t extend(uint64_t value, unsigned bytes, bool is_signed)
{
    unsigned unused = 64 - 8 * bytes;
    return is_signed ? (uint64_t)((int64_t)(value << unused) >> unused) : cut(value, bytes);
}

static void load(const struct fc_ptx_insn *in, uint64_t *R, const uint8_t *from)
{
    for (unsigned k = 0; k < in->count; k++, from += in->bytes) {
        uint64_t value = read_as(from, in->bytes);
        R[in->e[k]] = in->flags & FC_PTX_SIGNED ? cut(extend(value, in->bytes, true), in->c) : value;
    }
}

static void store(const struct fc_ptx_insn *in, const uint64_t *R, uint8_t *to)
{
    for (unsigned k = 0; k < in->count; k++, to += in->bytes)
        write_as(to, R[in->e[k]], in->bytes);
}

static uint64_t convert(const struct fc_ptx_insn *in, uint64_t value)
{
    value = extend(value, in->bytes, in->flags & FC_PTX_SIGNED);
    value = extend(value, in->count, in->flags & FC_PTX_RESULT_SIGNED);
    return cut(value, in->c);
}

/* compare returns whether a comparison, in the order eq, ne, lt, le, gt, ge, holds. */
static bool compare(int cmp, uint64_t a, uint64_t b, unsigned signed_bytes)
{
    if (signed_bytes) { /* the order of signed numbers is that of unsigned ones with the sign turned */
        a = extend(a, signed_bytes, true) ^ 1ull << 63;
        b = extend(b, signed_bytes, true) ^ 1ull << 63;
    }
    return cmp == 0 ? a == b : cmp == 1 ? a != b : cmp == 2 ? a < b : cmp == 3 ? a <= b : cmp == 4 ? a > b : a >= b;
}

static void setp_bool(const struct fc_ptx_insn *in, uint64_t *R)
{
    bool holds = compare(in->count, R[in->a], R[in->b], in->bytes);
    bool other = (R[in->e[0]] != 0) ^ ((in->flags & FC_PTX_BOOL_NOT) != 0);
    for (int k = 0; k < 2; k++, holds = !holds)
        R[k ? in->e[1] : in->d] = in->flags & FC_PTX_BOOL_OR    ? holds | other
                                  : in->flags & FC_PTX_BOOL_XOR ? holds ^ other
                                                                : holds & other;
}

/* A thread's access to memory: its size is count elements, and its address must be a multiple of that. */
static inline bool misaligned(const struct fc_ptx_insn *in, uint64_t at) { return at & ((unsigned)in->bytes * in->count - 1); }

/* shared returns where a shared address is in this process. The function's own variables begin at 0, what the
 * launch adds at FC_PTX_SHARED_MAX. */
static uint8_t *shared(const struct fc_ptx_block *b, const struct fc_ptx_insn *in, uint64_t at)
{
    uint64_t n = (unsigned)in->bytes * in->count;
    if (at < b->func->shared_bytes && n <= b->func->shared_bytes - at)
        return b->shared + at;
    if (at >= FC_PTX_SHARED_MAX && at - FC_PTX_SHARED_MAX < b->dynamic_bytes && n <= b->dynamic_bytes - (at - FC_PTX_SHARED_MAX))
        return b->shared + b->func->shared_bytes + (at - FC_PTX_SHARED_MAX);
    return NULL;
}

/* access_memory does the loads and stores; it returns 0 or the error of the launch. */
static inline int access_memory(const struct fc_ptx_block *b, const struct fc_ptx_insn *in, uint64_t *R)
{
    uint64_t at = R[in->a] + (uint64_t)in->offset;
    size_t n = (size_t)in->bytes * in->count;
    bool writes = in->op == FC_PTX_ST_GLOBAL || in->op == FC_PTX_ST_SHARED;
    uint8_t *where;
    if (misaligned(in, at))
        return FC_PTX_MISALIGNED_ADDRESS;
    if (in->op == FC_PTX_LD_GLOBAL || in->op == FC_PTX_ST_GLOBAL)
        where = b->mem->translate(b->mem->ctx, at, n, writes);
    else if (in->op == FC_PTX_LD_PARAM)
        where = at <= FC_PTX_PARAM_SPACE - n ? (uint8_t *)b->params + at : NULL;
    else
        where = shared(b, in, at);
    if (!where)
        return FC_PTX_ILLEGAL_ADDRESS;
    if (writes)
        store(in, R, where);
    else
        load(in, R, where);
    return 0;
}

#define A R[in->a]
#define B R[in->b]
#define C R[in->c]
#define PLAIN(name, expr)     \
    case FC_PTX_##name:       \
        R[in->d] = (expr);    \
        break;
#define INT(name, W, expr)                                                       \
    case FC_PTX_FIRST_INT + FC_PTX_KIND_##name + (W / 32) * FC_PTX_KINDS:        \
        R[in->d] = (expr);                                                       \
        break;

/* fc_ptx_run runs a thread from *pc on. */
int fc_ptx_run(struct fc_ptx_block *b, uint64_t *R, uint32_t *pc)
{
    const struct fc_ptx_insn *code = b->func->code, *in = code + *pc;
    for (;; in++) {
        if (R[in->guard] == in->skip)
            continue;
        switch (in->op) {
            FC_PTX_PLAIN_OPS(PLAIN)
            FC_PTX_INT_OPS(INT, 16, uint16_t, int16_t, uint32_t)
            FC_PTX_INT_OPS(INT, 32, uint32_t, int32_t, uint64_t)
            FC_PTX_INT_OPS(INT, 64, uint64_t, int64_t, uint64_t)
        case FC_PTX_SETP_BOOL:
            setp_bool(in, R);
            break;
        case FC_PTX_CVT:
            R[in->d] = convert(in, A);
            break;
        case FC_PTX_PACK:
            R[in->d] = 0;
            for (unsigned k = 0; k < in->count; k++)
                R[in->d] |= R[in->e[k]] << 8 * in->bytes * k;
            break;
        case FC_PTX_UNPACK:
            for (unsigned k = 0; k < in->count; k++)
                R[in->e[k]] = cut(A >> 8 * in->bytes * k, in->bytes);
            break;
        case FC_PTX_LD_PARAM:
        case FC_PTX_LD_SHARED:
        case FC_PTX_ST_SHARED:
        case FC_PTX_LD_GLOBAL:
        case FC_PTX_ST_GLOBAL: {
            int code_of_error = access_memory(b, in, R);
            if (code_of_error)
                return code_of_error;
            break;
        }
        case FC_PTX_BRA: /* only a way back can be taken without end */
            if (in->offset <= in - code && (b->left -= in - code - in->offset + 1) < 0)
                return FC_PTX_LAUNCH_TIMEOUT;
            in = code + in->offset - 1;
            break;
        case FC_PTX_BAR:
            *pc = (uint32_t)(in - code);
            return FC_PTX_WAITS;
        case FC_PTX_RET:
            return 0;
        }
    }
}
