/* What the files of the PTX interpreter share. */
#ifndef PTX_INTERNAL_H
#define PTX_INTERNAL_H

#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../fakecuda_ptx.h"

#pragma GCC visibility push(hidden)

/* CUresult codes that the interpreter returns. */
enum {
    FC_PTX_INVALID_VALUE = 1,
    FC_PTX_OUT_OF_MEMORY = 2,
    FC_PTX_INVALID_PTX = 218,
    FC_PTX_UNSUPPORTED_VERSION = 222,
    FC_PTX_ILLEGAL_ADDRESS = 700,
    FC_PTX_LAUNCH_TIMEOUT = 702,
    FC_PTX_MISALIGNED_ADDRESS = 716,
};

/* Integer operations, in each width. A, B and C are operands, which are zero-extended to 64
 * bits, as all registers are; results must be so too. U and S are the types of the width,
 * U2 is the unsigned type of twice the width. */
#define FC_PTX_INT_OPS(X, W, U, S, U2)                                              \
    X(ADD, W, (U)(A + B))                                                       \
    X(SUB, W, (U)(A - B))                                                       \
    X(MULLO, W, (U)(A * B))                                                     \
    X(MULHI_U, W, (U)(((unsigned __int128)A * B) >> W))                         \
    X(MULHI_S, W, (U)(((__int128)(S)A * (S)B) >> W))                            \
    X(MULWIDE_U, W, (U2)(A * B))                                                \
    X(MULWIDE_S, W, (U2)((__int128)(S)A * (S)B))                                \
    X(MADLO, W, (U)(A * B + C))                                                 \
    X(MADHI_U, W, (U)((((unsigned __int128)A * B) >> W) + C))                   \
    X(MADHI_S, W, (U)((uint64_t)(((__int128)(S)A * (S)B) >> W) + C))            \
    X(MADWIDE_U, W, (U2)(A * B + C))                                            \
    X(MADWIDE_S, W, (U2)((uint64_t)((__int128)(S)A * (S)B) + C))                \
    X(DIV_U, W, B ? A / B : (U)-1)                                              \
    X(DIV_S, W, !B ? (U)-1 : (S)B == -1 ? (U)(0 - A) : (U)((S)A / (S)B))        \
    X(REM_U, W, B ? A % B : A)                                                  \
    X(REM_S, W, !B ? A : (S)B == -1 ? 0 : (U)((S)A % (S)B))                     \
    X(MIN_U, W, A < B ? A : B)                                                  \
    X(MIN_S, W, (S)A < (S)B ? A : B)                                            \
    X(MAX_U, W, A > B ? A : B)                                                  \
    X(MAX_S, W, (S)A > (S)B ? A : B)                                            \
    X(NOT, W, (U)~A)                                                            \
    X(NEG, W, (U)(0 - A))                                                       \
    X(ABS, W, (S)A < 0 ? (U)(0 - A) : A)                                        \
    X(SHL, W, B < W ? (U)(A << B) : 0)                                          \
    X(SHR_U, W, B < W ? A >> B : 0)                                             \
    X(SHR_S, W, (U)((S)A >> (B < W ? B : W - 1)))                               \
    X(LT_S, W, (S)A < (S)B)                                                     \
    X(LE_S, W, (S)A <= (S)B)                                                    \
    X(GT_S, W, (S)A > (S)B)                                                     \
    X(GE_S, W, (S)A >= (S)B)

/* Operations that are the same in each width. */
#define FC_PTX_PLAIN_OPS(X)    \
    X(MOV, A)              \
    X(AND, (A & B))        \
    X(OR, (A | B))         \
    X(XOR, (A ^ B))        \
    X(SELP, (C ? A : B))   \
    X(EQ, (A == B))        \
    X(NE, (A != B))        \
    X(LT_U, (A < B))       \
    X(LE_U, (A <= B))      \
    X(GT_U, (A > B))       \
    X(GE_U, (A >= B))

/* Kinds count the integer operations; an operation's number is its kind and its width. */
enum fc_ptx_kind {
#define X(name, W, expr) FC_PTX_KIND_##name,
    FC_PTX_INT_OPS(X, , , , )
#undef X
    FC_PTX_KINDS
};

enum fc_ptx_op {
#define X(name, expr) FC_PTX_##name,
    FC_PTX_PLAIN_OPS(X)
#undef X
    FC_PTX_SETP_BOOL, /* a comparison joined with a predicate */
    FC_PTX_CVT,
    FC_PTX_PACK,
    FC_PTX_UNPACK,
    FC_PTX_LD_PARAM,
    FC_PTX_LD_SHARED,
    FC_PTX_ST_SHARED,
    FC_PTX_LD_GLOBAL,
    FC_PTX_ST_GLOBAL,
    FC_PTX_BRA,
    FC_PTX_BAR,
    FC_PTX_RET,
    FC_PTX_FIRST_INT,
    FC_PTX_OPS = FC_PTX_FIRST_INT + 3 * FC_PTX_KINDS
};

/* One instruction. Operands are slots of a thread's frame: registers, constants and special
 * registers are alike. */
struct fc_ptx_insn {
    uint16_t op;
    uint16_t guard; /* slot of the guard; it is FC_PTX_SLOT_TRUE without one */
    uint8_t skip;   /* the guard's value that skips the instruction */
    uint8_t bytes;  /* memory: size of an element; cvt, pack: size of the source */
    uint8_t count;  /* memory, pack: elements; cvt: size of the result */
    uint8_t flags;
    uint16_t d, a, b, c;
    uint16_t e[4];  /* memory, pack: the elements; setp: combined predicate, second result */
    int64_t offset; /* memory: added to the address; bra: target; bar: number */
};

/* Flags of instructions. */
enum {
    FC_PTX_SIGNED = 1,    /* ld, cvt: the source is signed */
    FC_PTX_RESULT_SIGNED = 2, /* cvt: the result is signed */
    FC_PTX_BOOL_OR = 4,   /* setp: joined by or, or xor; else by and */
    FC_PTX_BOOL_XOR = 8,
    FC_PTX_BOOL_NOT = 16,     /* setp: the predicate to join is negated */
};

/* Slots that every frame has. Three follow for each of tid, ntid, ctaid and nctaid. */
enum {
    FC_PTX_SLOT_TRUE,
    FC_PTX_SLOT_SINK, /* written, never read */
    FC_PTX_SLOT_TID,
    FC_PTX_SLOT_NTID = FC_PTX_SLOT_TID + 3,
    FC_PTX_SLOT_CTAID = FC_PTX_SLOT_NTID + 3,
    FC_PTX_SLOT_NCTAID = FC_PTX_SLOT_CTAID + 3,
    FC_PTX_SLOT_LANEID = FC_PTX_SLOT_NCTAID + 3,
    FC_PTX_SLOTS_FIXED,
    FC_PTX_SLOTS_MAX = 60000,
};

/* The space of parameters is this large on a device; what lies past them is not theirs. */
enum { FC_PTX_PARAM_SPACE = 4352, FC_PTX_SHARED_MAX = 48 << 10 };

/* A type: kind is 'b', 'u', 's', 'f' or 'p' (predicate, of no bytes). */
struct fc_ptx_type {
    char kind;
    uint8_t bytes;
};

/* A piece of the text. */
struct fc_ptx_name {
    const char *at;
    size_t n;
};

/* A name of a parameter or of shared memory. */
struct fc_ptx_symbol {
    struct fc_ptx_name name;
    uint32_t offset, bytes;
};

struct fc_ptx_symbols {
    struct fc_ptx_symbol *v;
    size_t n, cap;
};

struct fc_ptx_func {
    struct fc_ptx_func *next;
    struct fc_ptx_module *module;
    char *name;
    struct fc_ptx_insn *code;
    size_t ninsns, insns_cap;
    uint64_t *frame; /* what a thread's frame begins with */
    size_t nslots, slots_cap;
    struct fc_ptx_symbols params, shared;
    uint32_t param_bytes, shared_bytes;
    uint32_t required[3], most; /* .reqntid, if required[0] is not 0; .maxntid, if not 0 */
    bool has_barrier;
};

struct fc_ptx_module {
    char *text;
    struct fc_ptx_func *funcs;
    struct fc_ptx_symbols dynamic; /* .extern .shared */
    uint64_t limit;
};

/* Reading of the text. */

enum fc_ptx_token_kind {
    FC_PTX_END,
    FC_PTX_NAME,   /* a word, with the % that it may begin with */
    FC_PTX_DOT,    /* a word that follows a dot: directive, modifier or type */
    FC_PTX_NUMBER, /* its bits are in value */
    FC_PTX_STRING,
    FC_PTX_MARK, /* one character, which is in value */
};

struct fc_ptx_token {
    enum fc_ptx_token_kind kind;
    struct fc_ptx_name name; /* without the dot */
    uint64_t value;
    uint8_t float_bytes; /* of a number in the notation of floats, else 0 */
};

/* A register, or count of them that have a number after their name. */
struct fc_ptx_reg {
    struct fc_ptx_name name;
    uint32_t count; /* 0 for a single one */
    uint16_t slot;
    struct fc_ptx_type type;
};

struct fc_ptx_label {
    struct fc_ptx_name name;
    size_t at; /* the instruction it stands before, or that branches to it */
};

struct fc_ptx_parser {
    jmp_buf failed;
    int code;
    char *err;
    size_t errn;
    unsigned line;
    const char *pos;
    struct fc_ptx_token tok;
    struct fc_ptx_module *module;
    struct fc_ptx_func *func;
    struct fc_ptx_reg *regs;
    struct fc_ptx_label *labels, *branches;
    uint16_t *constants; /* slots that hold constants */
    size_t nregs, regs_cap, nlabels, labels_cap, nbranches, branches_cap, nconstants, constants_cap;
};

/* lex.c */
_Noreturn void fc_ptx_fail(struct fc_ptx_parser *, const char *format, ...) __attribute__((format(printf, 2, 3)));
void *fc_ptx_grow(struct fc_ptx_parser *, void *v, size_t n, size_t *cap, size_t size);
void fc_ptx_next(struct fc_ptx_parser *);
bool fc_ptx_is(struct fc_ptx_name, const char *);
bool fc_ptx_same(struct fc_ptx_name, struct fc_ptx_name);
bool fc_ptx_at(const struct fc_ptx_parser *, char mark);
bool fc_ptx_accept(struct fc_ptx_parser *, char mark);
bool fc_ptx_accept_dot(struct fc_ptx_parser *, const char *word);
void fc_ptx_expect(struct fc_ptx_parser *, char mark);
uint64_t fc_ptx_number(struct fc_ptx_parser *, uint64_t most);
struct fc_ptx_name fc_ptx_word(struct fc_ptx_parser *, const char *what);
bool fc_ptx_type_of(struct fc_ptx_name, struct fc_ptx_type *);
struct fc_ptx_type fc_ptx_expect_type(struct fc_ptx_parser *);

/* module.c */
void fc_ptx_declare(struct fc_ptx_parser *, struct fc_ptx_symbols *, uint32_t *end, uint32_t most, bool is_param);

/* body.c: operands of an instruction. A wide operand may be a register larger than its type. */
struct fc_ptx_symbol *fc_ptx_find(struct fc_ptx_symbols *, struct fc_ptx_name);
const struct fc_ptx_reg *fc_ptx_find_reg(const struct fc_ptx_parser *, struct fc_ptx_name, uint16_t *slot);
uint16_t fc_ptx_new_slot(struct fc_ptx_parser *, uint64_t value);
uint16_t fc_ptx_constant(struct fc_ptx_parser *, uint64_t value);
uint16_t fc_ptx_result(struct fc_ptx_parser *, struct fc_ptx_type, bool wide, uint8_t *bytes);
uint16_t fc_ptx_source(struct fc_ptx_parser *, struct fc_ptx_type, bool wide);
bool fc_ptx_special(struct fc_ptx_parser *, uint16_t *slot);
uint16_t fc_ptx_predicate(struct fc_ptx_parser *, bool *negated);
void fc_ptx_address(struct fc_ptx_parser *, struct fc_ptx_insn *, struct fc_ptx_symbols *first, struct fc_ptx_symbols *second,
                    const char *register_types);

void fc_ptx_body(struct fc_ptx_parser *);

enum { FC_PTX_MODIFIERS_MAX = 8 };

/* What is known of the instruction that is being read. */
struct fc_ptx_text {
    struct fc_ptx_parser *p;
    struct fc_ptx_name opcode, mods[FC_PTX_MODIFIERS_MAX];
    int nmods;
    struct fc_ptx_insn in;
};

/* One row of the table of instructions. The operation is plain, or a kind for unsigned and signed integers. */
struct fc_ptx_opcode {
    const char *name;
    void (*read)(struct fc_ptx_text *, const struct fc_ptx_opcode *);
    const char *types; /* kinds of types that it takes */
    int op, op_signed;
};

/* opcode.c */
bool fc_ptx_take(struct fc_ptx_text *, const char *mod);
int fc_ptx_take_one(struct fc_ptx_text *, const char *const *mods);
struct fc_ptx_type fc_ptx_take_type(struct fc_ptx_text *, const char *kinds, int least);
void fc_ptx_all_taken(struct fc_ptx_text *);
uint16_t fc_ptx_next_source(struct fc_ptx_text *, struct fc_ptx_type);
void fc_ptx_instruction(struct fc_ptx_parser *, struct fc_ptx_name opcode, struct fc_ptx_insn);

/* opdata.c */
void fc_ptx_move(struct fc_ptx_text *, const struct fc_ptx_opcode *);
void fc_ptx_convert(struct fc_ptx_text *, const struct fc_ptx_opcode *);
void fc_ptx_convert_address(struct fc_ptx_text *, const struct fc_ptx_opcode *);
void fc_ptx_load_op(struct fc_ptx_text *, const struct fc_ptx_opcode *);
void fc_ptx_store_op(struct fc_ptx_text *, const struct fc_ptx_opcode *);

/* run.c: runs a thread until it ends, which is 0, fails, or waits at a barrier, which is FC_PTX_WAITS. */
enum { FC_PTX_WAITS = -1 };

struct fc_ptx_block {
    const struct fc_ptx_func *func;
    const struct fc_ptx_memory *mem;
    const uint8_t *params; /* FC_PTX_PARAM_SPACE bytes */
    uint8_t *shared;       /* of the function's own, then what the launch adds */
    uint32_t dynamic_bytes;
    int64_t left; /* instructions */
};

int fc_ptx_run(struct fc_ptx_block *, uint64_t *frame, uint32_t *pc);

#pragma GCC visibility pop
#endif
