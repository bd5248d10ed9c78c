/* The instructions: which there are, and which modifiers, types and operands they take ("Instruction Set" in
 * the PTX ISA). What ptxas refuses is refused here; what is not here is refused too. */
#include <string.h>

#include "internal.h"

static const struct fc_ptx_type u32 = {'u', 4}, pred = {'p', 0};

static void emit(struct fc_ptx_text *t)
{
    struct fc_ptx_func *f = t->p->func;
    f->code = fc_ptx_grow(t->p, f->code, f->ninsns, &f->insns_cap, sizeof *f->code);
    f->code[f->ninsns++] = t->in;
}

/* fc_ptx_take removes a modifier and reports whether it was there. */
bool fc_ptx_take(struct fc_ptx_text *t, const char *mod)
{
    for (int i = 0; i < t->nmods; i++) {
        if (fc_ptx_is(t->mods[i], mod)) {
            memmove(&t->mods[i], &t->mods[i + 1], (size_t)(--t->nmods - i) * sizeof *t->mods);
            return true;
        }
    }
    return false;
}

/* fc_ptx_take_one removes one of several modifiers and returns its number, -1 if there is none. */
int fc_ptx_take_one(struct fc_ptx_text *t, const char *const *mods)
{
    for (int i = 0; mods[i]; i++)
        if (fc_ptx_take(t, mods[i]))
            return i;
    return -1;
}

/* fc_ptx_take_type removes the first type. It must be of the kinds, and not smaller than least. */
struct fc_ptx_type fc_ptx_take_type(struct fc_ptx_text *t, const char *kinds, int least)
{
    struct fc_ptx_type type;
    for (int i = 0; i < t->nmods; i++) {
        struct fc_ptx_name mod = t->mods[i];
        if (!fc_ptx_type_of(mod, &type))
            continue;
        if (!strchr(kinds, type.kind) || (type.kind != 'p' && type.bytes < least))
            fc_ptx_fail(t->p, "'%.*s' does not take the type '.%.*s'", (int)t->opcode.n, t->opcode.at, (int)mod.n, mod.at);
        memmove(&t->mods[i], &t->mods[i + 1], (size_t)(--t->nmods - i) * sizeof *t->mods);
        return type;
    }
    fc_ptx_fail(t->p, "'%.*s' lacks a type", (int)t->opcode.n, t->opcode.at);
}

/* fc_ptx_all_taken fails if modifiers are left that nobody asked for. */
void fc_ptx_all_taken(struct fc_ptx_text *t)
{
    if (t->nmods)
        fc_ptx_fail(t->p, "'%.*s' does not take '.%.*s'", (int)t->opcode.n, t->opcode.at, (int)t->mods[0].n, t->mods[0].at);
}

/* in_width is the operation of a kind for integers of a size. */
static uint16_t in_width(int kind, uint8_t bytes)
{
    return (uint16_t)(FC_PTX_FIRST_INT + kind + (bytes == 8 ? 2 : bytes == 4 ? 1 : 0) * FC_PTX_KINDS);
}

uint16_t fc_ptx_next_source(struct fc_ptx_text *t, struct fc_ptx_type type)
{
    fc_ptx_expect(t->p, ',');
    return fc_ptx_source(t->p, type, false);
}

/* add, sub, min, max, div, rem: d, a, b. neg, abs: d, a. */
static void arithmetic(struct fc_ptx_text *t, const struct fc_ptx_opcode *row)
{
    struct fc_ptx_type type = fc_ptx_take_type(t, row->types, 2);
    bool unary = row->op == FC_PTX_KIND_NEG || row->op == FC_PTX_KIND_ABS;
    t->in.op = in_width(type.kind == 's' ? row->op_signed : row->op, type.bytes);
    t->in.d = fc_ptx_result(t->p, type, false, NULL);
    t->in.a = fc_ptx_next_source(t, type);
    if (!unary)
        t->in.b = fc_ptx_next_source(t, type);
}

/* mul and mad with .lo, .hi or .wide, whose result has twice the size. The row is for .lo; the others follow. */
static void multiply(struct fc_ptx_text *t, const struct fc_ptx_opcode *row)
{
    static const char *const halves[] = {"lo", "hi", "wide", NULL};
    int half = fc_ptx_take_one(t, halves);
    struct fc_ptx_type type = fc_ptx_take_type(t, row->types, 2), result = type;
    if (half < 0 || (half == 2 && type.bytes == 8))
        fc_ptx_fail(t->p, "'%.*s' wants .lo, .hi or, below 64 bits, .wide", (int)t->opcode.n, t->opcode.at);
    if (half == 2)
        result.bytes *= 2;
    t->in.op = in_width(row->op + (half == 0 ? 0 : half * 2 - 1 + (type.kind == 's')), type.bytes);
    t->in.d = fc_ptx_result(t->p, result, false, NULL);
    t->in.a = fc_ptx_next_source(t, type);
    t->in.b = fc_ptx_next_source(t, type);
    if (row->op == FC_PTX_KIND_MADLO)
        t->in.c = fc_ptx_next_source(t, result);
}

/* and, or, xor, not. */
static void logic(struct fc_ptx_text *t, const struct fc_ptx_opcode *row)
{
    struct fc_ptx_type type = fc_ptx_take_type(t, row->types, 2);
    bool invert = row->op == FC_PTX_KIND_NOT;
    t->in.d = fc_ptx_result(t->p, type, false, NULL);
    t->in.a = fc_ptx_next_source(t, type);
    t->in.b = FC_PTX_SLOT_TRUE;
    if (!invert)
        t->in.b = fc_ptx_next_source(t, type);
    t->in.op = !invert ? (uint16_t)row->op : type.kind == 'p' ? FC_PTX_XOR : in_width(row->op, type.bytes);
}

/* shl, shr. The amount has 32 bits. */
static void shift(struct fc_ptx_text *t, const struct fc_ptx_opcode *row)
{
    struct fc_ptx_type type = fc_ptx_take_type(t, row->types, 2);
    t->in.op = in_width(type.kind == 's' ? row->op_signed : row->op, type.bytes);
    t->in.d = fc_ptx_result(t->p, type, false, NULL);
    t->in.a = fc_ptx_next_source(t, type);
    t->in.b = fc_ptx_next_source(t, u32);
}

/* setp.CMP.type p, a, b and setp.CMP.BOOL.type p|q, a, b, {!}c. */
static void set_predicate(struct fc_ptx_text *t, const struct fc_ptx_opcode *row)
{
    static const char *const comparisons[] = {"eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", NULL};
    static const char *const joins[] = {"and", "or", "xor", NULL};
    int cmp = fc_ptx_take_one(t, comparisons), join = fc_ptx_take_one(t, joins);
    struct fc_ptx_type type = fc_ptx_take_type(t, row->types, 2);
    if (cmp < 0 || (type.kind == 'b' && cmp > 1) || (type.kind == 's' && cmp > 5))
        fc_ptx_fail(t->p, "'setp' lacks a comparison that its type has");
    cmp = cmp > 5 ? cmp - 4 : cmp;
    bool is_signed = type.kind == 's' && cmp > 1;
    t->in.op = is_signed ? in_width(FC_PTX_KIND_LT_S + cmp - 2, type.bytes) : (uint16_t)(FC_PTX_EQ + cmp);
    t->in.d = fc_ptx_result(t->p, pred, false, NULL);
    t->in.e[1] = FC_PTX_SLOT_SINK;
    bool second = fc_ptx_accept(t->p, '|');
    if (second)
        t->in.e[1] = fc_ptx_result(t->p, pred, false, NULL);
    t->in.a = fc_ptx_next_source(t, type);
    t->in.b = fc_ptx_next_source(t, type);
    if (!second && join < 0)
        return;
    /* Its result is the comparison joined with a predicate, and the opposite of the comparison joined with it. */
    t->in.count = (uint8_t)cmp;
    t->in.bytes = is_signed ? type.bytes : 0;
    t->in.op = FC_PTX_SETP_BOOL;
    t->in.flags = join == 1 ? FC_PTX_BOOL_OR : join == 2 ? FC_PTX_BOOL_XOR : 0;
    t->in.e[0] = FC_PTX_SLOT_TRUE;
    if (join >= 0) {
        bool negated;
        fc_ptx_expect(t->p, ',');
        t->in.e[0] = fc_ptx_predicate(t->p, &negated);
        t->in.flags |= negated ? FC_PTX_BOOL_NOT : 0;
    }
}

static void select_one(struct fc_ptx_text *t, const struct fc_ptx_opcode *row)
{
    struct fc_ptx_type type = fc_ptx_take_type(t, row->types, 2);
    bool negated;
    t->in.d = fc_ptx_result(t->p, type, false, NULL);
    uint16_t a = fc_ptx_next_source(t, type), b = fc_ptx_next_source(t, type);
    fc_ptx_expect(t->p, ',');
    t->in.c = fc_ptx_predicate(t->p, &negated);
    t->in.op = FC_PTX_SELP;
    t->in.a = negated ? b : a;
    t->in.b = negated ? a : b;
}

static void branch(struct fc_ptx_text *t, const struct fc_ptx_opcode *row)
{
    struct fc_ptx_parser *p = t->p;
    fc_ptx_take(t, "uni");
    t->in.op = (uint16_t)row->op;
    p->branches = fc_ptx_grow(p, p->branches, p->nbranches, &p->branches_cap, sizeof *p->branches);
    p->branches[p->nbranches].at = p->func->ninsns;
    p->branches[p->nbranches++].name = fc_ptx_word(p, "a label");
}

static void barrier(struct fc_ptx_text *t, const struct fc_ptx_opcode *row)
{
    fc_ptx_take(t, "cta");
    if (!fc_ptx_take(t, "sync"))
        fc_ptx_fail(t->p, "'%.*s' is known with .sync", (int)t->opcode.n, t->opcode.at);
    fc_ptx_take(t, "aligned");
    t->in.op = (uint16_t)row->op;
    t->in.offset = (int64_t)fc_ptx_number(t->p, 15);
    t->p->func->has_barrier = true;
}

static void end(struct fc_ptx_text *t, const struct fc_ptx_opcode *row)
{
    fc_ptx_take(t, "uni");
    t->in.op = (uint16_t)row->op;
}

#define KIND(name) FC_PTX_KIND_##name
static const struct fc_ptx_opcode opcodes[] = {
    {"add", arithmetic, "us", KIND(ADD), KIND(ADD)},
    {"sub", arithmetic, "us", KIND(SUB), KIND(SUB)},
    {"min", arithmetic, "us", KIND(MIN_U), KIND(MIN_S)},
    {"max", arithmetic, "us", KIND(MAX_U), KIND(MAX_S)},
    {"div", arithmetic, "us", KIND(DIV_U), KIND(DIV_S)},
    {"rem", arithmetic, "us", KIND(REM_U), KIND(REM_S)},
    {"neg", arithmetic, "s", KIND(NEG), KIND(NEG)},
    {"abs", arithmetic, "s", KIND(ABS), KIND(ABS)},
    {"mul", multiply, "us", KIND(MULLO), 0},
    {"mad", multiply, "us", KIND(MADLO), 0},
    {"and", logic, "bp", FC_PTX_AND, 0},
    {"or", logic, "bp", FC_PTX_OR, 0},
    {"xor", logic, "bp", FC_PTX_XOR, 0},
    {"not", logic, "bp", KIND(NOT), 0},
    {"shl", shift, "b", KIND(SHL), 0},
    {"shr", shift, "bus", KIND(SHR_U), KIND(SHR_S)},
    {"setp", set_predicate, "bus", 0, 0},
    {"selp", select_one, "busf", 0, 0},
    {"mov", fc_ptx_move, "busfp", 0, 0},
    {"cvt", fc_ptx_convert, "us", 0, 0},
    {"cvta", fc_ptx_convert_address, "u", 0, 0},
    {"ld", fc_ptx_load_op, "busf", 0, 0},
    {"st", fc_ptx_store_op, "busf", 0, 0},
    {"bra", branch, "", FC_PTX_BRA, 0},
    {"bar", barrier, "", FC_PTX_BAR, 0},
    {"barrier", barrier, "", FC_PTX_BAR, 0},
    {"ret", end, "", FC_PTX_RET, 0},
    {"exit", end, "", FC_PTX_RET, 0},
};

/* fc_ptx_instruction reads modifiers, operands and the semicolon of an instruction and adds it to the function. */
void fc_ptx_instruction(struct fc_ptx_parser *p, struct fc_ptx_name opcode, struct fc_ptx_insn in)
{
    struct fc_ptx_text t = {.p = p, .opcode = opcode, .in = in};
    for (; p->tok.kind == FC_PTX_DOT; fc_ptx_next(p)) {
        if (t.nmods == FC_PTX_MODIFIERS_MAX)
            fc_ptx_fail(p, "too many modifiers");
        t.mods[t.nmods++] = p->tok.name;
    }
    for (size_t i = 0; i < sizeof opcodes / sizeof *opcodes; i++) {
        if (!fc_ptx_is(opcode, opcodes[i].name))
            continue;
        opcodes[i].read(&t, &opcodes[i]);
        fc_ptx_all_taken(&t);
        fc_ptx_expect(p, ';');
        emit(&t);
        return;
    }
    fc_ptx_fail(p, "unknown instruction '%.*s'", (int)opcode.n, opcode.at);
}
