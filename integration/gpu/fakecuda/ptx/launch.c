/* Launches: blocks one after another, and the threads of a block one after another, each until it ends or
 * waits at a barrier. Once all that have not ended wait, they go on. */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

/* What every device of ours takes ("Technical Specifications per Compute Capability" in the CUDA programming
 * guide). A launch of another block than .reqntid, or a larger one than .maxntid, fails as well. */
int fc_ptx_accepts(const struct fc_ptx_func *f, const unsigned grid[3], const unsigned block[3], unsigned shared_bytes)
{
    static const unsigned most_blocks[] = {0x7fffffff, 0xffff, 0xffff}, most_threads[] = {1024, 1024, 64};
    unsigned threads = 1;
    for (int i = 0; i < 3; i++) {
        if (!grid[i] || grid[i] > most_blocks[i] || !block[i] || block[i] > most_threads[i])
            return false;
        threads *= block[i];
    }
    if (threads > 1024 || (f->most && threads > f->most) || shared_bytes > FC_PTX_SHARED_MAX - f->shared_bytes)
        return false;
    return !f->required[0] || !memcmp(f->required, block, sizeof f->required);
}

size_t fc_ptx_param_bytes(const struct fc_ptx_func *f, size_t index) { return index < f->params.n ? f->params.v[index].bytes : 0; }

/* A launch under way. Without barriers all threads use one frame, one after another. */
struct launch {
    struct fc_ptx_block b;
    const unsigned *grid, *block;
    unsigned threads;
    uint64_t *frames;
    uint32_t *pcs; /* where each thread of the block goes on; ENDED if nowhere */
    uint8_t params[FC_PTX_PARAM_SPACE];
};

enum { ENDED = UINT32_MAX };

/* begin makes a thread's frame. */
static void begin(const struct launch *l, uint64_t *frame, const unsigned at[3], unsigned thread)
{
    memcpy(frame, l->b.func->frame, l->b.func->nslots * sizeof *frame);
    frame[FC_PTX_SLOT_TID] = thread % l->block[0];
    frame[FC_PTX_SLOT_TID + 1] = thread / l->block[0] % l->block[1];
    frame[FC_PTX_SLOT_TID + 2] = thread / l->block[0] / l->block[1];
    for (int i = 0; i < 3; i++) {
        frame[FC_PTX_SLOT_NTID + i] = l->block[i];
        frame[FC_PTX_SLOT_CTAID + i] = at[i];
        frame[FC_PTX_SLOT_NCTAID + i] = l->grid[i];
    }
    frame[FC_PTX_SLOT_LANEID] = thread % 32;
}

static int run_without_barriers(struct launch *l, const unsigned at[3])
{
    for (unsigned i = 0; i < l->threads; i++) {
        uint32_t pc = 0;
        begin(l, l->frames, at, i);
        if ((l->b.left -= (int64_t)l->b.func->ninsns) < 0)
            return FC_PTX_LAUNCH_TIMEOUT;
        int code = fc_ptx_run(&l->b, l->frames, &pc);
        if (code)
            return code;
    }
    return 0;
}

/* phase runs the threads that have not ended up to their next barrier, which must be the same one. */
static int phase(struct launch *l, size_t nslots, unsigned *waiting)
{
    const struct fc_ptx_insn *code = l->b.func->code;
    int64_t barrier = -1;
    *waiting = 0;
    for (unsigned i = 0; i < l->threads; i++) {
        if (l->pcs[i] == ENDED)
            continue;
        if ((l->b.left -= (int64_t)l->b.func->ninsns) < 0)
            return FC_PTX_LAUNCH_TIMEOUT;
        int result = fc_ptx_run(&l->b, l->frames + i * nslots, &l->pcs[i]);
        if (result > 0)
            return result;
        if (result == 0) {
            l->pcs[i] = ENDED;
            continue;
        }
        int64_t number = code[l->pcs[i]++].offset;
        if (*waiting && number != barrier)
            return FC_PTX_LAUNCH_TIMEOUT; /* each waits for the other's threads */
        barrier = number;
        ++*waiting;
    }
    return 0;
}

static int run_block(struct launch *l, const unsigned at[3])
{
    const struct fc_ptx_func *f = l->b.func;
    if (l->b.shared)
        memset(l->b.shared, 0xa5, f->shared_bytes + l->b.dynamic_bytes);
    if (!f->has_barrier)
        return run_without_barriers(l, at);
    for (unsigned i = 0; i < l->threads; i++) {
        begin(l, l->frames + i * f->nslots, at, i);
        l->pcs[i] = 0;
    }
    unsigned waiting;
    int code;
    do
        code = phase(l, f->nslots, &waiting);
    while (!code && waiting);
    return code;
}

static int run_grid(struct launch *l)
{
    unsigned at[3];
    for (at[2] = 0; at[2] < l->grid[2]; at[2]++)
        for (at[1] = 0; at[1] < l->grid[1]; at[1]++)
            for (at[0] = 0; at[0] < l->grid[0]; at[0]++) {
                int code = run_block(l, at);
                if (code)
                    return code;
            }
    return 0;
}

int fc_ptx_launch(struct fc_ptx_func *f, const unsigned grid[3], const unsigned block[3], unsigned shared_bytes, void **params,
                  const struct fc_ptx_memory *mem)
{
    if (!fc_ptx_accepts(f, grid, block, shared_bytes) || (f->params.n && !params))
        return FC_PTX_INVALID_VALUE;
    struct launch l = {.b = {.func = f, .mem = mem, .dynamic_bytes = shared_bytes, .left = (int64_t)f->module->limit}};
    l.grid = grid;
    l.block = block;
    l.threads = block[0] * block[1] * block[2];
    l.b.params = l.params;
    memset(l.params, 0xa5, sizeof l.params);
    for (size_t i = 0; i < f->params.n; i++)
        memcpy(l.params + f->params.v[i].offset, params[i], f->params.v[i].bytes);
    size_t frames = f->has_barrier ? l.threads : 1, shared = f->shared_bytes + shared_bytes;
    l.frames = malloc(frames * f->nslots * sizeof *l.frames);
    l.pcs = calloc(frames, sizeof *l.pcs);
    l.b.shared = shared ? malloc(shared) : NULL;
    int code = FC_PTX_OUT_OF_MEMORY;
    if (l.frames && l.pcs && (l.b.shared || !shared))
        code = run_grid(&l);
    free(l.frames);
    free(l.pcs);
    free(l.b.shared);
    return code;
}
