/* Modules: the directives around functions ("PTX Module Directives", "Kernel Entry Point and Function
 * Directives", "Performance-Tuning Directives" in the PTX ISA), and the memory of what was read. */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

static void free_func(struct fc_ptx_func *f)
{
    if (!f)
        return;
    free(f->name);
    free(f->code);
    free(f->frame);
    free(f->params.v);
    free(f->shared.v);
    free(f);
}

void fc_ptx_free(struct fc_ptx_module *m)
{
    if (!m)
        return;
    while (m->funcs) {
        struct fc_ptx_func *next = m->funcs->next;
        free_func(m->funcs);
        m->funcs = next;
    }
    free(m->dynamic.v);
    free(m->text);
    free(m);
}

struct fc_ptx_func *fc_ptx_func(struct fc_ptx_module *m, const char *name)
{
    struct fc_ptx_func *f = m->funcs;
    while (f && strcmp(f->name, name))
        f = f->next;
    return f;
}

void fc_ptx_limit(struct fc_ptx_module *m, uint64_t instructions) { m->limit = instructions < INT64_MAX ? instructions : INT64_MAX; }

/* fc_ptx_declare reads a variable, .align N .TYPE NAME or .TYPE NAME[N], and places it at *end or later. A
 * parameter may say what it points to. Without a size in its brackets it is as large as the launch says. */
void fc_ptx_declare(struct fc_ptx_parser *p, struct fc_ptx_symbols *into, uint32_t *end, uint32_t most, bool is_param)
{
    uint64_t align = 0;
    if (fc_ptx_accept_dot(p, "align"))
        align = fc_ptx_number(p, 128);
    struct fc_ptx_type type = fc_ptx_expect_type(p);
    if (type.kind == 'p')
        fc_ptx_fail(p, "a predicate cannot be in memory");
    if (is_param && fc_ptx_accept_dot(p, "ptr")) {
        while (p->tok.kind == FC_PTX_DOT) {
            if (fc_ptx_accept_dot(p, "align"))
                fc_ptx_number(p, UINT32_MAX);
            else if (!fc_ptx_accept_dot(p, "global") && !fc_ptx_accept_dot(p, "shared") && !fc_ptx_accept_dot(p, "const"))
                fc_ptx_fail(p, "an unknown attribute of a pointer: '.%.*s'", (int)p->tok.name.n, p->tok.name.at);
        }
    }
    struct fc_ptx_symbol s = {.name = fc_ptx_word(p, "a variable's name"), .bytes = type.bytes};
    if (fc_ptx_accept(p, '[')) {
        bool sized = p->tok.kind == FC_PTX_NUMBER || is_param || end;
        s.bytes = sized ? (uint32_t)fc_ptx_number(p, most / type.bytes) * type.bytes : 0;
        fc_ptx_expect(p, ']');
    }
    if (fc_ptx_find(into, s.name))
        fc_ptx_fail(p, "'%.*s' is declared twice", (int)s.name.n, s.name.at);
    align = align ? align : type.bytes;
    if (align & (align - 1))
        fc_ptx_fail(p, "an alignment that is no power of 2");
    if (end) {
        uint64_t at = (*end + align - 1) & ~(align - 1);
        if (at + s.bytes > most)
            fc_ptx_fail(p, "more than %u bytes of variables", most);
        s.offset = (uint32_t)at;
        *end = (uint32_t)at + s.bytes;
    } else {
        s.offset = FC_PTX_SHARED_MAX; /* shared memory of the launch follows all that functions can have */
    }
    into->v = fc_ptx_grow(p, into->v, into->n, &into->cap, sizeof *into->v);
    into->v[into->n++] = s;
}

/* threads reads the sizes of a block, of one to three dimensions. */
static void threads(struct fc_ptx_parser *p, uint32_t size[3])
{
    size[0] = size[1] = size[2] = 1;
    int i = 0;
    do
        size[i++] = (uint32_t)fc_ptx_number(p, 1024);
    while (i < 3 && fc_ptx_accept(p, ','));
    if (!size[0] || !size[1] || !size[2])
        fc_ptx_fail(p, "a block of no threads");
}

/* tuning reads the directives between parameters and body. */
static void tuning(struct fc_ptx_parser *p, struct fc_ptx_func *f)
{
    while (p->tok.kind == FC_PTX_DOT) {
        uint32_t size[3];
        if (fc_ptx_accept_dot(p, "reqntid")) {
            threads(p, f->required);
        } else if (fc_ptx_accept_dot(p, "maxntid")) {
            threads(p, size);
            f->most = size[0] * size[1] * size[2];
        } else if (fc_ptx_accept_dot(p, "minnctapersm") || fc_ptx_accept_dot(p, "maxnreg")) {
            fc_ptx_number(p, UINT32_MAX);
        } else {
            fc_ptx_fail(p, "unknown directive '.%.*s'", (int)p->tok.name.n, p->tok.name.at);
        }
    }
}

static void entry(struct fc_ptx_parser *p)
{
    struct fc_ptx_func *f = p->func = calloc(1, sizeof *f);
    struct fc_ptx_name name = fc_ptx_word(p, "a function's name");
    if (f)
        f->name = strndup(name.at, name.n);
    if (!f || !f->name) {
        p->code = FC_PTX_OUT_OF_MEMORY;
        fc_ptx_fail(p, "out of memory");
    }
    if (fc_ptx_func(p->module, f->name))
        fc_ptx_fail(p, "'%s' is defined twice", f->name);
    f->module = p->module;
    if (fc_ptx_accept(p, '(') && !fc_ptx_accept(p, ')')) {
        do {
            if (!fc_ptx_accept_dot(p, "param"))
                fc_ptx_fail(p, "'.param' expected, not '%.*s'", (int)p->tok.name.n, p->tok.name.at);
            fc_ptx_declare(p, &f->params, &f->param_bytes, FC_PTX_PARAM_SPACE, true);
        } while (fc_ptx_accept(p, ','));
        fc_ptx_expect(p, ')');
    }
    tuning(p, f);
    fc_ptx_expect(p, '{');
    fc_ptx_body(p);
    fc_ptx_expect(p, '}');
    f->next = p->module->funcs;
    p->module->funcs = f;
    p->func = NULL;
}

/* header reads .version, .target and .address_size. */
static void header(struct fc_ptx_parser *p)
{
    fc_ptx_next(p);
    if (!fc_ptx_accept_dot(p, "version"))
        fc_ptx_fail(p, "the text does not begin with '.version'");
    uint64_t major = fc_ptx_number(p, 1000);
    struct fc_ptx_name minor = p->tok.name;
    if (p->tok.kind != FC_PTX_DOT || minor.n != 1 || minor.at[0] < '0' || minor.at[0] > '9')
        fc_ptx_fail(p, "a version is two numbers");
    if (major > 9 || (major == 9 && minor.at[0] > '5')) {
        p->code = FC_PTX_UNSUPPORTED_VERSION;
        fc_ptx_fail(p, "version %u.%c is newer than 9.5", (unsigned)major, minor.at[0]);
    }
    fc_ptx_next(p);
    if (!fc_ptx_accept_dot(p, "target"))
        fc_ptx_fail(p, "'.target' expected after '.version'");
    do {
        struct fc_ptx_name target = fc_ptx_word(p, "a target");
        if (target.n < 5 || memcmp(target.at, "sm_", 3))
            fc_ptx_fail(p, "unknown target '%.*s'", (int)target.n, target.at);
    } while (fc_ptx_accept(p, ','));
    if (!fc_ptx_accept_dot(p, "address_size") || fc_ptx_number(p, 64) != 64)
        fc_ptx_fail(p, "'.address_size 64' expected after '.target'");
}

static void module(struct fc_ptx_parser *p)
{
    header(p);
    while (p->tok.kind != FC_PTX_END) {
        if (fc_ptx_accept_dot(p, "extern")) {
            if (!fc_ptx_accept_dot(p, "shared"))
                fc_ptx_fail(p, "only shared memory may be '.extern' here");
            fc_ptx_declare(p, &p->module->dynamic, NULL, FC_PTX_SHARED_MAX, false);
            fc_ptx_expect(p, ';');
            continue;
        }
        if (!fc_ptx_accept_dot(p, "visible"))
            fc_ptx_accept_dot(p, "weak");
        if (!fc_ptx_accept_dot(p, "entry"))
            fc_ptx_fail(p, "unknown directive '%.*s'", (int)p->tok.name.n, p->tok.name.at);
        entry(p);
    }
}

int fc_ptx_load(const char *text, size_t n, struct fc_ptx_module **out, char *err, size_t errn)
{
    *out = NULL;
    if (errn > 0)
        err[0] = 0;
    struct fc_ptx_parser *p = calloc(1, sizeof *p);
    struct fc_ptx_module *m = calloc(1, sizeof *m);
    if (m)
        m->text = strndup(text, n);
    if (!p || !m || !m->text) {
        free(p);
        fc_ptx_free(m);
        return FC_PTX_OUT_OF_MEMORY;
    }
    m->limit = 1ull << 36;
    p->module = m;
    p->line = 1;
    p->pos = m->text;
    p->err = err;
    p->errn = errn;
    p->code = FC_PTX_INVALID_PTX;
    if (!setjmp(p->failed)) {
        module(p);
        p->code = 0;
        *out = m;
    } else {
        free_func(p->func);
        fc_ptx_free(m);
    }
    int code = p->code;
    free(p->regs);
    free(p->labels);
    free(p->branches);
    free(p->constants);
    free(p);
    return code;
}
