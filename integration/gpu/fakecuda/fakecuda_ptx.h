/* An interpreter of PTX for the fake driver. It runs the very text that a device's driver
 * would compile, one thread at a time. Results are CUresult codes; 0 is success.
 *
 * Everything it does not know is refused when a module is loaded, never while it runs.
 * ptx/opcode.c and ptx/opdata.c say what it knows. A loaded module does not change, so any
 * number of threads may launch its functions at the same time. */
#ifndef FAKECUDA_PTX_H
#define FAKECUDA_PTX_H

#include <stddef.h>
#include <stdint.h>

struct fc_ptx_module;
struct fc_ptx_func;

/* The device's memory. translate returns where the n bytes at a device address are in this
 * process, or NULL if a kernel may not read them (or write them, if write is not 0). */
struct fc_ptx_memory {
    void *ctx;
    void *(*translate)(void *ctx, uint64_t addr, size_t n, int write);
};

/* fc_ptx_load reads a module's text, which ends after n bytes or at a zero byte. It returns
 * CUDA_ERROR_INVALID_PTX (218) for text that is wrong, CUDA_ERROR_UNSUPPORTED_PTX_VERSION
 * (222) for text newer than it knows, with the line and the reason in err. */
int fc_ptx_load(const char *text, size_t n, struct fc_ptx_module **out, char *err, size_t errn);

/* fc_ptx_func returns the entry of that name, NULL if there is none. It lives as long as its
 * module. */
struct fc_ptx_func *fc_ptx_func(struct fc_ptx_module *, const char *name);

/* fc_ptx_launch runs a grid to its end. It returns CUDA_ERROR_INVALID_VALUE (1) for a grid that
 * no device takes, CUDA_ERROR_ILLEGAL_ADDRESS (700), CUDA_ERROR_MISALIGNED_ADDRESS (716), and
 * CUDA_ERROR_LAUNCH_TIMEOUT (702) for what would never end on a device: a barrier that
 * not all threads reach, or more instructions than the limit. */
int fc_ptx_launch(struct fc_ptx_func *, const unsigned grid[3], const unsigned block[3],
          unsigned shared_bytes, void **params, const struct fc_ptx_memory *mem);

void fc_ptx_free(struct fc_ptx_module *);

/* fc_ptx_param_bytes returns the size of a parameter, 0 if there are fewer: a driver copies
 * parameters before it queues a launch. */
size_t fc_ptx_param_bytes(const struct fc_ptx_func *, size_t index);

/* fc_ptx_accepts reports whether a launch has a shape that the entry and every device takes. If it
 * has not, fc_ptx_launch returns CUDA_ERROR_INVALID_VALUE; a driver says so before it queues it. */
int fc_ptx_accepts(const struct fc_ptx_func *, const unsigned grid[3], const unsigned block[3], unsigned shared_bytes);

/* fc_ptx_limit sets about how many instructions one launch may execute before it ends with
 * CUDA_ERROR_LAUNCH_TIMEOUT. Without it they are 2^36. No launch may run meanwhile. */
void fc_ptx_limit(struct fc_ptx_module *, uint64_t instructions);

#endif
