/* The body of a function: declarations of registers and shared memory, labels and guards; operands
 * ("Instruction Operands" in the PTX ISA), and the slots of a thread's frame that stand for them. */
#include <string.h>

#include "internal.h"

struct fc_ptx_symbol *fc_ptx_find(struct fc_ptx_symbols *in, struct fc_ptx_name name)
{
    for (size_t i = 0; i < in->n; i++)
        if (fc_ptx_same(in->v[i].name, name))
            return &in->v[i];
    return NULL;
}

/* numbered returns which of a range of registers a name is, -1 if none. */
static int64_t numbered(const struct fc_ptx_reg *r, struct fc_ptx_name name)
{
    size_t digits = name.n - r->name.n;
    if (name.n <= r->name.n || digits > 5 || memcmp(name.at, r->name.at, r->name.n))
        return -1;
    const char *s = name.at + r->name.n;
    if (digits > 1 && *s == '0')
        return -1;
    int64_t value = 0;
    for (; digits > 0; digits--, s++) {
        if (*s < '0' || *s > '9')
            return -1;
        value = value * 10 + (*s - '0');
    }
    return value < (int64_t)r->count ? value : -1;
}

/* fc_ptx_find_reg returns how a register was declared and its slot, NULL if it was not. */
const struct fc_ptx_reg *fc_ptx_find_reg(const struct fc_ptx_parser *p, struct fc_ptx_name name, uint16_t *slot)
{
    for (size_t i = 0; i < p->nregs; i++) {
        const struct fc_ptx_reg *r = &p->regs[i];
        int64_t index = r->count ? numbered(r, name) : fc_ptx_same(r->name, name) ? 0 : -1;
        if (index >= 0) {
            *slot = (uint16_t)(r->slot + index);
            return r;
        }
    }
    return NULL;
}

uint16_t fc_ptx_new_slot(struct fc_ptx_parser *p, uint64_t value)
{
    struct fc_ptx_func *f = p->func;
    if (f->nslots >= FC_PTX_SLOTS_MAX)
        fc_ptx_fail(p, "more than %d registers and constants", FC_PTX_SLOTS_MAX);
    f->frame = fc_ptx_grow(p, f->frame, f->nslots, &f->slots_cap, sizeof *f->frame);
    f->frame[f->nslots] = value;
    return (uint16_t)f->nslots++;
}

/* fc_ptx_constant returns a slot that always has this value. */
uint16_t fc_ptx_constant(struct fc_ptx_parser *p, uint64_t value)
{
    for (size_t i = 0; i < p->nconstants; i++)
        if (p->func->frame[p->constants[i]] == value)
            return p->constants[i];
    uint16_t slot = fc_ptx_new_slot(p, value);
    p->constants = fc_ptx_grow(p, p->constants, p->nconstants, &p->constants_cap, sizeof *p->constants);
    return p->constants[p->nconstants++] = slot;
}

/* fits reports whether a register of one type may stand where an instruction wants another. Type b
 * stands for all of its size; integers and floats do not stand for each other. */
static bool fits(struct fc_ptx_type want, struct fc_ptx_type have, bool wide)
{
    if (want.kind == 'p' || have.kind == 'p')
        return want.kind == have.kind;
    bool floats = want.kind == 'f' || have.kind == 'f';
    if (floats && want.kind != have.kind && want.kind != 'b' && have.kind != 'b')
        return false;
    return wide && !floats ? have.bytes >= want.bytes : have.bytes == want.bytes;
}

static const struct fc_ptx_reg *reg(struct fc_ptx_parser *p, struct fc_ptx_type type, bool wide, uint16_t *slot)
{
    struct fc_ptx_name name = fc_ptx_word(p, "a register");
    const struct fc_ptx_reg *r = fc_ptx_find_reg(p, name, slot);
    if (!r)
        fc_ptx_fail(p, "unknown register '%.*s'", (int)name.n, name.at);
    if (!fits(type, r->type, wide))
        fc_ptx_fail(p, "register '%.*s' has another type than the instruction", (int)name.n, name.at);
    return r;
}

/* fc_ptx_result reads the register that an instruction writes, or _ for none. */
uint16_t fc_ptx_result(struct fc_ptx_parser *p, struct fc_ptx_type type, bool wide, uint8_t *bytes)
{
    uint16_t slot = FC_PTX_SLOT_SINK;
    const struct fc_ptx_reg *r = NULL;
    if (p->tok.kind == FC_PTX_NAME && fc_ptx_is(p->tok.name, "_"))
        fc_ptx_next(p);
    else
        r = reg(p, type, wide, &slot);
    if (bytes)
        *bytes = r ? r->type.bytes : 8;
    return slot;
}

/* fc_ptx_source reads a register or a constant, which is cut to the type's size as on a device. */
uint16_t fc_ptx_source(struct fc_ptx_parser *p, struct fc_ptx_type type, bool wide)
{
    bool minus = fc_ptx_accept(p, '-');
    if (!minus && p->tok.kind != FC_PTX_NUMBER) {
        uint16_t slot;
        reg(p, type, wide, &slot);
        return slot;
    }
    uint8_t float_bytes = p->tok.float_bytes;
    uint64_t value = p->tok.value;
    bool is_float = type.kind == 'f' || (float_bytes && type.kind == 'b');
    if (p->tok.kind != FC_PTX_NUMBER || (is_float ? minus || float_bytes != type.bytes : float_bytes != 0))
        fc_ptx_fail(p, "a constant of another type than the instruction: '%.*s'", (int)p->tok.name.n, p->tok.name.at);
    fc_ptx_next(p);
    if (type.kind == 'p')
        return fc_ptx_constant(p, value != 0);
    value = minus ? 0 - value : value;
    return fc_ptx_constant(p, type.bytes == 8 ? value : value & ((1ull << 8 * type.bytes) - 1));
}

/* fc_ptx_special reads a special register, if one is next that no declared register hides. */
bool fc_ptx_special(struct fc_ptx_parser *p, uint16_t *slot)
{
    static const struct {
        const char *name;
        int slot, dimensions;
    } specials[] = {
        {"%tid", FC_PTX_SLOT_TID, 3},       {"%ntid", FC_PTX_SLOT_NTID, 3},     {"%ctaid", FC_PTX_SLOT_CTAID, 3},
        {"%nctaid", FC_PTX_SLOT_NCTAID, 3}, {"%laneid", FC_PTX_SLOT_LANEID, 0},
    };
    if (p->tok.kind != FC_PTX_NAME || fc_ptx_find_reg(p, p->tok.name, slot))
        return false;
    for (size_t i = 0; i < sizeof specials / sizeof *specials; i++) {
        if (!fc_ptx_is(p->tok.name, specials[i].name))
            continue;
        fc_ptx_next(p);
        int dimension = 0;
        if (specials[i].dimensions) {
            struct fc_ptx_name name = p->tok.name;
            if (p->tok.kind != FC_PTX_DOT || name.n != 1 || *name.at < 'x' || *name.at > 'z')
                fc_ptx_fail(p, "%s wants .x, .y or .z", specials[i].name);
            dimension = *name.at - 'x';
            fc_ptx_next(p);
        }
        *slot = (uint16_t)(specials[i].slot + dimension);
        return true;
    }
    return false;
}

/* fc_ptx_predicate reads a predicate, and whether ! stands before it. */
uint16_t fc_ptx_predicate(struct fc_ptx_parser *p, bool *negated)
{
    uint16_t slot;
    *negated = fc_ptx_accept(p, '!');
    reg(p, (struct fc_ptx_type){'p', 0}, false, &slot);
    return slot;
}

/* fc_ptx_address reads [REGISTER], [NAME], [REGISTER+NUMBER] and so on. Names are looked for in one list, then
 * in another. */
void fc_ptx_address(struct fc_ptx_parser *p, struct fc_ptx_insn *in, struct fc_ptx_symbols *first, struct fc_ptx_symbols *second,
                    const char *register_types)
{
    fc_ptx_expect(p, '[');
    uint16_t slot;
    const struct fc_ptx_reg *r = p->tok.kind == FC_PTX_NAME ? fc_ptx_find_reg(p, p->tok.name, &slot) : NULL;
    struct fc_ptx_name name = fc_ptx_word(p, "a register or a name");
    if (r) {
        char type[] = {r->type.kind == 'b' ? 'u' : r->type.kind, (char)('0' + r->type.bytes), 0};
        if (type[0] == 's')
            type[0] = 'u';
        if (!strstr(register_types, type))
            fc_ptx_fail(p, "register '%.*s' cannot be an address here", (int)name.n, name.at);
        in->a = slot;
    } else {
        struct fc_ptx_symbol *s = first ? fc_ptx_find(first, name) : NULL;
        if (!s && second)
            s = fc_ptx_find(second, name);
        if (!s)
            fc_ptx_fail(p, "nothing named '%.*s' in this space", (int)name.n, name.at);
        in->a = fc_ptx_constant(p, s->offset);
    }
    if (fc_ptx_accept(p, '+')) {
        bool minus = fc_ptx_accept(p, '-');
        int64_t value = (int64_t)fc_ptx_number(p, INT32_MAX);
        in->offset = minus ? -value : value;
    }
    fc_ptx_expect(p, ']');
}

/* A register that nobody wrote has a value that nobody counts on. It looks like an aligned address. */
static uint64_t poison(struct fc_ptx_type type)
{
    const uint64_t value = 0xdeadbeefcafef000ull;
    return type.kind == 'p' ? 1 : type.bytes == 8 ? value : value & ((1ull << 8 * type.bytes) - 1);
}

/* registers reads .TYPE NAME, NAME<COUNT> and so on, to the semicolon. */
static void registers(struct fc_ptx_parser *p)
{
    struct fc_ptx_type type = fc_ptx_expect_type(p);
    do {
        struct fc_ptx_reg r = {.name = fc_ptx_word(p, "a register's name"), .type = type};
        uint16_t slot;
        if (fc_ptx_find_reg(p, r.name, &slot))
            fc_ptx_fail(p, "'%.*s' is declared twice", (int)r.name.n, r.name.at);
        if (fc_ptx_accept(p, '<')) {
            r.count = (uint32_t)fc_ptx_number(p, FC_PTX_SLOTS_MAX);
            fc_ptx_expect(p, '>');
            if (!r.count)
                fc_ptx_fail(p, "no registers '%.*s'", (int)r.name.n, r.name.at);
            for (size_t i = 0; i < p->nregs; i++)
                if (p->regs[i].count && fc_ptx_same(p->regs[i].name, r.name))
                    fc_ptx_fail(p, "'%.*s' is declared twice", (int)r.name.n, r.name.at);
        }
        r.slot = fc_ptx_new_slot(p, poison(type));
        for (uint32_t i = 1; i < r.count; i++)
            fc_ptx_new_slot(p, poison(type));
        p->regs = fc_ptx_grow(p, p->regs, p->nregs, &p->regs_cap, sizeof *p->regs);
        p->regs[p->nregs++] = r;
    } while (fc_ptx_accept(p, ','));
    fc_ptx_expect(p, ';');
}

/* directive reads what begins with a dot. Where the text came from has no meaning here. */
static void directive(struct fc_ptx_parser *p)
{
    if (fc_ptx_accept_dot(p, "reg")) {
        registers(p);
    } else if (fc_ptx_accept_dot(p, "shared")) {
        fc_ptx_declare(p, &p->func->shared, &p->func->shared_bytes, FC_PTX_SHARED_MAX, false);
        fc_ptx_expect(p, ';');
    } else if (fc_ptx_accept_dot(p, "pragma")) {
        if (p->tok.kind != FC_PTX_STRING)
            fc_ptx_fail(p, "a pragma is a string");
        fc_ptx_next(p);
        fc_ptx_expect(p, ';');
    } else if (fc_ptx_accept_dot(p, "loc")) {
        for (int i = 0; i < 3; i++)
            fc_ptx_number(p, UINT32_MAX);
    } else {
        fc_ptx_fail(p, "unknown directive '.%.*s'", (int)p->tok.name.n, p->tok.name.at);
    }
}

static struct fc_ptx_label *find_label(const struct fc_ptx_parser *p, struct fc_ptx_name name)
{
    for (size_t i = 0; i < p->nlabels; i++)
        if (fc_ptx_same(p->labels[i].name, name))
            return &p->labels[i];
    return NULL;
}

static void label(struct fc_ptx_parser *p, struct fc_ptx_name name)
{
    if (find_label(p, name))
        fc_ptx_fail(p, "label '%.*s' is defined twice", (int)name.n, name.at);
    p->labels = fc_ptx_grow(p, p->labels, p->nlabels, &p->labels_cap, sizeof *p->labels);
    p->labels[p->nlabels++] = (struct fc_ptx_label){name, p->func->ninsns};
}

/* statement reads a label, or an instruction and its guard, @PREDICATE or @!PREDICATE. */
static void statement(struct fc_ptx_parser *p)
{
    struct fc_ptx_insn in = {.guard = FC_PTX_SLOT_TRUE};
    bool guarded = fc_ptx_accept(p, '@');
    if (guarded) {
        bool negated;
        in.guard = fc_ptx_predicate(p, &negated);
        in.skip = negated;
    }
    struct fc_ptx_name name = fc_ptx_word(p, "an instruction");
    if (!guarded && fc_ptx_accept(p, ':'))
        label(p, name);
    else
        fc_ptx_instruction(p, name, in);
}

/* fc_ptx_body reads a function's body up to its closing brace. */
void fc_ptx_body(struct fc_ptx_parser *p)
{
    struct fc_ptx_func *f = p->func;
    p->nregs = p->nlabels = p->nbranches = p->nconstants = 0;
    for (int i = 0; i < FC_PTX_SLOTS_FIXED; i++)
        fc_ptx_new_slot(p, i == FC_PTX_SLOT_TRUE);
    while (!fc_ptx_at(p, '}')) {
        if (p->tok.kind == FC_PTX_DOT)
            directive(p);
        else if (!fc_ptx_accept(p, ';'))
            statement(p);
    }
    for (size_t i = 0; i < p->nbranches; i++) {
        struct fc_ptx_label *to = find_label(p, p->branches[i].name);
        if (!to)
            fc_ptx_fail(p, "label '%.*s' is not defined", (int)p->branches[i].name.n, p->branches[i].name.at);
        f->code[p->branches[i].at].offset = (int64_t)to->at;
    }
    f->code = fc_ptx_grow(p, f->code, f->ninsns, &f->insns_cap, sizeof *f->code);
    f->code[f->ninsns++] = (struct fc_ptx_insn){.op = FC_PTX_RET, .guard = FC_PTX_SLOT_TRUE};
}
