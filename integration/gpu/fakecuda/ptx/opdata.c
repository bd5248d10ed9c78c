/* The instructions that move data: mov, cvt, cvta, ld and st ("Data Movement and Conversion Instructions" in
 * the PTX ISA). */
#include "internal.h"

/* elements reads {a, b} or {a, b, c, d}, or one element without braces, which then is all there is. */
static void elements(struct fc_ptx_text *t, struct fc_ptx_type type, int count, bool result, bool wide, uint8_t *bytes)
{
    bool vector = count > 1;
    if (vector)
        fc_ptx_expect(t->p, '{');
    for (int i = 0; i < count; i++) {
        uint8_t have = 8;
        if (i > 0)
            fc_ptx_expect(t->p, ',');
        if (result)
            t->in.e[i] = fc_ptx_result(t->p, type, wide, &have);
        else
            t->in.e[i] = fc_ptx_source(t->p, type, wide);
        if (bytes && i > 0 && have != *bytes && type.kind == 's')
            fc_ptx_fail(t->p, "registers of different sizes");
        if (bytes)
            *bytes = have;
    }
    if (vector)
        fc_ptx_expect(t->p, '}');
}

/* pieces reads the vector of a mov that packs or unpacks: its elements share the size of the type. */
static void pieces(struct fc_ptx_text *t, struct fc_ptx_type type, bool result)
{
    int count = 1;
    for (const char *s = t->p->pos; *s && *s != '}'; s++)
        count += *s == ',';
    if (type.kind != 'b' || (count != 2 && count != 4) || type.bytes / count < 2)
        fc_ptx_fail(t->p, "'mov' cannot divide its type so");
    t->in.bytes = (uint8_t)(type.bytes / count);
    t->in.count = (uint8_t)count;
    elements(t, (struct fc_ptx_type){'b', t->in.bytes}, count, result, false, NULL);
}

void fc_ptx_move(struct fc_ptx_text *t, const struct fc_ptx_opcode *row)
{
    struct fc_ptx_type type = fc_ptx_take_type(t, row->types, 2);
    t->in.op = FC_PTX_MOV;
    if (fc_ptx_at(t->p, '{')) {
        pieces(t, type, true);
        t->in.op = FC_PTX_UNPACK;
        t->in.a = fc_ptx_next_source(t, type);
        return;
    }
    t->in.d = fc_ptx_result(t->p, type, false, NULL);
    fc_ptx_expect(t->p, ',');
    struct fc_ptx_symbol *s = NULL;
    if (t->p->tok.kind == FC_PTX_NAME && !(s = fc_ptx_find(&t->p->func->shared, t->p->tok.name)))
        s = fc_ptx_find(&t->p->module->dynamic, t->p->tok.name);
    if (fc_ptx_at(t->p, '{')) {
        pieces(t, type, false);
        t->in.op = FC_PTX_PACK;
    } else if (s && type.bytes >= 4 && type.kind != 'f') {
        fc_ptx_next(t->p);
        t->in.a = fc_ptx_constant(t->p, s->offset);
    } else if (fc_ptx_special(t->p, &t->in.a)) {
        if (type.bytes > 4 || type.kind == 'f' || type.kind == 'p')
            fc_ptx_fail(t->p, "a special register has 32 bits");
        t->in.op = FC_PTX_CVT;
        t->in.bytes = t->in.count = type.bytes;
        t->in.c = type.bytes;
    } else {
        t->in.a = fc_ptx_source(t->p, type, false);
    }
}

void fc_ptx_convert(struct fc_ptx_text *t, const struct fc_ptx_opcode *row)
{
    struct fc_ptx_type to = fc_ptx_take_type(t, row->types, 1), from = fc_ptx_take_type(t, row->types, 1);
    uint8_t bytes;
    t->in.op = FC_PTX_CVT;
    t->in.bytes = from.bytes;
    t->in.count = to.bytes;
    t->in.flags = (from.kind == 's' ? FC_PTX_SIGNED : 0) | (to.kind == 's' ? FC_PTX_RESULT_SIGNED : 0);
    t->in.d = fc_ptx_result(t->p, to, true, &bytes);
    t->in.c = bytes;
    fc_ptx_expect(t->p, ',');
    if (!fc_ptx_special(t->p, &t->in.a))
        t->in.a = fc_ptx_source(t->p, from, true);
    else if (from.bytes > 4)
        fc_ptx_fail(t->p, "a special register has 32 bits");
}

/* cvta.to.global: device memory has the same address in all spaces that are known here. */
void fc_ptx_convert_address(struct fc_ptx_text *t, const struct fc_ptx_opcode *row)
{
    struct fc_ptx_type type = fc_ptx_take_type(t, row->types, 8);
    fc_ptx_take(t, "to");
    if (!fc_ptx_take(t, "global"))
        fc_ptx_fail(t->p, "'cvta' is known for global memory");
    t->in.op = FC_PTX_MOV;
    t->in.d = fc_ptx_result(t->p, type, false, NULL);
    t->in.a = fc_ptx_next_source(t, type);
}

/* memory reads the modifiers that ld and st share, and returns their space: 0 global, 1 shared, 2 parameters. */
static int memory(struct fc_ptx_text *t, const struct fc_ptx_opcode *row, bool loads, const char *const *caches,
                  struct fc_ptx_type *type)
{
    static const char *const spaces[] = {"global", "shared", "param", NULL};
    static const char *const vectors[] = {"v2", "v4", NULL};
    bool is_volatile = fc_ptx_take(t, "volatile"), weak = fc_ptx_take(t, "weak"), nc = loads && fc_ptx_take(t, "nc");
    int space = fc_ptx_take_one(t, spaces), cache = fc_ptx_take_one(t, caches), vector = fc_ptx_take_one(t, vectors);
    *type = fc_ptx_take_type(t, row->types, 1);
    t->in.bytes = type->bytes;
    t->in.count = vector == 0 ? 2 : vector == 1 ? 4 : 1;
    t->in.flags = type->kind == 's' ? FC_PTX_SIGNED : 0;
    if (t->in.bytes * t->in.count > 16)
        fc_ptx_fail(t->p, "a vector of more than 16 bytes");
    if (is_volatile && (weak || nc || cache >= 0))
        fc_ptx_fail(t->p, "'.volatile' goes with no hint");
    if (space != 0 && (nc || cache >= 0))
        fc_ptx_fail(t->p, "a cache hint is for global memory");
    fc_ptx_all_taken(t);
    return space < 0 ? 0 : space;
}

static void address(struct fc_ptx_text *t, int space)
{
    if (space == 0)
        fc_ptx_address(t->p, &t->in, NULL, NULL, "u8");
    else if (space == 1)
        fc_ptx_address(t->p, &t->in, &t->p->func->shared, &t->p->module->dynamic, "u8 u4");
    else
        fc_ptx_address(t->p, &t->in, &t->p->func->params, NULL, "");
}

void fc_ptx_load_op(struct fc_ptx_text *t, const struct fc_ptx_opcode *row)
{
    static const char *const caches[] = {"ca", "cg", "cs", "lu", "cv", NULL};
    static const uint16_t ops[] = {FC_PTX_LD_GLOBAL, FC_PTX_LD_SHARED, FC_PTX_LD_PARAM};
    struct fc_ptx_type type;
    uint8_t bytes = 8;
    int space = memory(t, row, true, caches, &type);
    t->in.op = ops[space];
    elements(t, type, t->in.count, true, true, &bytes);
    t->in.c = bytes;
    fc_ptx_expect(t->p, ',');
    address(t, space);
}

void fc_ptx_store_op(struct fc_ptx_text *t, const struct fc_ptx_opcode *row)
{
    static const char *const caches[] = {"wb", "cg", "cs", "wt", NULL};
    struct fc_ptx_type type;
    int space = memory(t, row, false, caches, &type);
    if (space == 2)
        fc_ptx_fail(t->p, "parameters are read only");
    t->in.op = space == 0 ? FC_PTX_ST_GLOBAL : FC_PTX_ST_SHARED;
    address(t, space);
    fc_ptx_expect(t->p, ',');
    elements(t, type, t->in.count, false, true, NULL);
}
