/* Modules and launches. The interpreter of PTX is in files of its own; a build without them refuses every module. */
#include "fakecuda.h"
#include "fakecuda_ptx.h"
#include <stdio.h>

#define MAX_PARAMS 32

__attribute__((weak)) int fc_ptx_load(const char *text, size_t n, struct fc_ptx_module **out, char *err, size_t errn) {
    (void)text, (void)n, (void)out;
    snprintf(err, errn, "this build of the fake driver has no interpreter of PTX");
    return CUDA_ERROR_INVALID_PTX;
}
__attribute__((weak)) struct fc_ptx_func *fc_ptx_func(struct fc_ptx_module *m, const char *name) {
    (void)m, (void)name;
    return NULL;
}
__attribute__((weak)) size_t fc_ptx_param_bytes(const struct fc_ptx_func *f, size_t index) {
    (void)f, (void)index;
    return 0;
}
__attribute__((weak)) int fc_ptx_accepts(const struct fc_ptx_func *f, const unsigned grid[3], const unsigned block[3],
                                         unsigned shared_bytes) {
    (void)f, (void)grid, (void)block, (void)shared_bytes;
    return 0;
}
__attribute__((weak)) int fc_ptx_launch(struct fc_ptx_func *f, const unsigned grid[3], const unsigned block[3],
                                        unsigned shared_bytes, void **params, const struct fc_ptx_memory *mem) {
    (void)f, (void)grid, (void)block, (void)shared_bytes, (void)params, (void)mem;
    return CUDA_ERROR_INVALID_PTX;
}
__attribute__((weak)) void fc_ptx_free(struct fc_ptx_module *m) { (void)m; }

struct module {
    int refs;
    CUcontext context;
    struct fc_ptx_module *ptx;
};
struct function {
    struct module *module;
    struct fc_ptx_func *ptx;
    size_t params, sizes[MAX_PARAMS];
};

static void unref(struct module *m) {
    if (--m->refs > 0) return;
    fc_ptx_free(m->ptx);
    free(m);
}

/* The PTX that each release of the driver knows: 12.4 has 8.4, 12.5 and 12.6 have 8.5, and so on; 13.0 has 9.0. */
static int newest_ptx(void) {
    const int major = fc_version() / 1000, minor = fc_version() % 1000 / 10;
    return (major - 4) * 10 + (major == 12 && minor > 5 ? minor - 1 : minor);
}

/* A directive that is at the start of its line, which it is not in a comment. */
static const char *directive(const char *text, const char *name) {
    for (const char *at = text; (at = strstr(at, name)) != NULL; at++) {
        if (at == text || at[-1] == '\n') return at;
    }
    return NULL;
}

static CUresult check_text(const char *text) {
    const struct fc_device *device = fc_current()->device;
    const char *version = directive(text, ".version"), *target = directive(text, ".target");
    int major, minor, sm;
    if (strncmp(text, "\177ELF", 4) == 0 || version == NULL) return CUDA_ERROR_NO_BINARY_FOR_GPU;
    if (sscanf(version, ".version %d.%d", &major, &minor) != 2) return CUDA_ERROR_INVALID_PTX;
    if (major * 10 + minor > newest_ptx()) return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
    if (target == NULL || sscanf(target, ".target sm_%d", &sm) != 1) return CUDA_ERROR_INVALID_PTX;
    return sm <= fc_attribute(device, 75) * 10 + fc_attribute(device, 76) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_PTX;
}

static CUresult load(CUmodule *out, const char *image, char *log, size_t log_size) {
    struct fc_ptx_module *ptx = NULL;
    if (out == NULL || image == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = check_text(image);
    if (result == CUDA_SUCCESS) result = (CUresult)fc_ptx_load(image, strlen(image), &ptx, log, log_size);
    if (result != CUDA_SUCCESS) return result;
    struct module *m = calloc(1, sizeof *m);
    if (m == NULL) abort();
    *m = (struct module){.refs = 1, .context = fc_current(), .ptx = ptx};
    pthread_mutex_lock(&fc_lock);
    *out = (CUmodule)fc_handle_new(FC_KIND_MODULE, m);
    pthread_mutex_unlock(&fc_lock);
    fc_count(FC_MODULES, 1);
    return CUDA_SUCCESS;
}

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    FC_ENTER(FC_CONTEXT);
    char log[256];
    return load(module, image, log, sizeof log);
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count, CUjit_option *options,
                            void **values) {
    FC_ENTER(FC_CONTEXT);
    char log[1024] = "", *wanted = NULL;
    size_t size = 0;
    if (count > 0 && (options == NULL || values == NULL)) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = load(module, image, log, sizeof log);
    for (unsigned i = 0; i < count; i++) {
        if (options[i] == CU_JIT_ERROR_LOG_BUFFER) wanted = values[i];
        if (options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES) size = (size_t)values[i];
    }
    if (wanted != NULL && size > 0) snprintf(wanted, size, "%s", log);
    return result;
}

static void forget_functions(const struct module *m) {
    struct function *f;
    uint64_t handle;
    for (size_t at = 0; (f = fc_handle_next(FC_KIND_FUNCTION, &at, &handle)) != NULL;) {
        if (f->module != m) continue;
        fc_handle_end(handle);
        free(f);
    }
}

static void unload(struct module *m, uint64_t handle) {
    forget_functions(m);
    fc_handle_end(handle);
    unref(m);
    fc_count(FC_MODULES, -1);
}

CUresult cuModuleUnload(CUmodule module) {
    FC_ENTER(FC_CONTEXT);
    pthread_mutex_lock(&fc_lock);
    struct module *m = fc_handle_get(FC_KIND_MODULE, (uint64_t)module);
    if (m != NULL) unload(m, (uint64_t)module);
    pthread_mutex_unlock(&fc_lock);
    return m != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

void fc_modules_end(CUcontext context) {
    struct module *m;
    uint64_t handle;
    for (size_t at = 0; (m = fc_handle_next(FC_KIND_MODULE, &at, &handle)) != NULL;) {
        if (m->context == context) unload(m, handle);
    }
}

/* Launches need the sizes of a kernel's parameters, since they copy them at once. */
static bool read_params(struct function *f) {
    while (f->params < MAX_PARAMS && (f->sizes[f->params] = fc_ptx_param_bytes(f->ptx, f->params)) > 0) f->params++;
    return fc_ptx_param_bytes(f->ptx, f->params) == 0;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    FC_ENTER(FC_CONTEXT);
    if (function == NULL || name == NULL) return CUDA_ERROR_INVALID_VALUE;
    struct function *f = calloc(1, sizeof *f);
    if (f == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&fc_lock);
    f->module = fc_handle_get(FC_KIND_MODULE, (uint64_t)module);
    if (f->module != NULL) {
        f->ptx = fc_ptx_func(f->module->ptx, name);
        result = f->ptx != NULL && read_params(f) ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
    }
    if (result == CUDA_SUCCESS) *function = (CUfunction)fc_handle_new(FC_KIND_FUNCTION, f);
    else free(f);
    pthread_mutex_unlock(&fc_lock);
    return result;
}

struct launch {
    struct fc_operation op;
    struct module *module;
    struct fc_ptx_func *ptx;
    unsigned grid[3], block[3], shared_bytes;
    size_t params;
    void *values; /* 8-byte aligned, one after another */
    size_t offsets[MAX_PARAMS];
};

struct reach {
    const struct fc_device *device;
    struct fc_span *spans;
    size_t count;
};

/* A kernel reaches device memory and what the host has pinned. */
static void *translate(void *ctx, uint64_t addr, size_t n, int write) {
    const struct reach *r = ctx;
    if (fc_is_device_address(addr)) return fc_bytes(r->device, addr, n, write != 0);
    for (size_t i = 0; i < r->count; i++) {
        if (addr - r->spans[i].addr < r->spans[i].size)
            return n <= r->spans[i].addr + r->spans[i].size - addr ? (void *)addr : NULL;
    }
    return NULL;
}

static CUresult run_launch(struct fc_operation *op) {
    struct launch *l = (struct launch *)op;
    void *params[MAX_PARAMS];
    struct reach reach = {.device = op->stream->context->device};
    const struct fc_ptx_memory memory = {&reach, translate};
    for (size_t i = 0; i < l->params; i++) params[i] = (char *)l->values + l->offsets[i];
    reach.spans = fc_host_spans(&reach.count);
    pthread_rwlock_rdlock(&fc_space_lock);
    CUresult result = (CUresult)fc_ptx_launch(l->ptx, l->grid, l->block, l->shared_bytes, params, &memory);
    pthread_rwlock_unlock(&fc_space_lock);
    free(reach.spans);
    fc_count(FC_LAUNCHES, 1);
    return result;
}

static void end_launch(struct fc_operation *op) {
    struct launch *l = (struct launch *)op;
    unref(l->module);
    free(l->values);
    free(l);
}

/* Copies the parameters as they are now. */
static struct launch *make_launch(const struct function *f, void **params) {
    struct launch *l = fc_operation_new(sizeof *l, run_launch);
    size_t size = 0;
    for (size_t i = 0; i < f->params; i++) size += (f->sizes[i] + 7) & ~7ul;
    l->op.end = end_launch;
    l->module = f->module;
    l->module->refs++;
    l->ptx = f->ptx;
    l->params = f->params;
    l->values = calloc(1, size + 1);
    if (l->values == NULL) abort();
    for (size_t i = 0, at = 0; i < f->params; at += (f->sizes[i] + 7) & ~7ul, i++) {
        l->offsets[i] = at;
        memcpy((char *)l->values + at, params[i], f->sizes[i]);
    }
    return l;
}

CUresult cuLaunchKernel(CUfunction function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
                        unsigned int by, unsigned int bz, unsigned int shared_bytes, CUstream stream, void **params,
                        void **extra) {
    FC_ENTER(FC_CONTEXT);
    const unsigned grid[3] = {gx, gy, gz}, block[3] = {bx, by, bz};
    if (extra != NULL) return CUDA_ERROR_NOT_SUPPORTED;
    CUresult result = CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&fc_lock);
    const struct function *f = fc_handle_get(FC_KIND_FUNCTION, (uint64_t)function);
    struct fc_stream *s = fc_stream_get(stream);
    if (f != NULL && s != NULL && s->context == f->module->context) {
        const bool right = fc_ptx_accepts(f->ptx, grid, block, shared_bytes) && (f->params == 0 || params != NULL);
        result = right ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    }
    if (result == CUDA_SUCCESS) {
        struct launch *l = make_launch(f, params);
        memcpy(l->grid, grid, sizeof grid);
        memcpy(l->block, block, sizeof block);
        l->shared_bytes = shared_bytes;
        fc_submit(s, l);
    }
    pthread_mutex_unlock(&fc_lock);
    return result;
}
