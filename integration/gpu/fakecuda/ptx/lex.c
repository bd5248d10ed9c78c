/* The words, numbers and marks of PTX text ("Source Format", "Tokens" and "Constants" in the PTX
 * ISA), and what all readers of it need: failing with a message, and arrays that grow. */
#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

/* fc_ptx_fail ends the load with a message. */
void fc_ptx_fail(struct fc_ptx_parser *p, const char *format, ...)
{
    char reason[200];
    va_list args;
    va_start(args, format);
    vsnprintf(reason, sizeof reason, format, args);
    va_end(args);
    if (p->errn > 0)
        snprintf(p->err, p->errn, "line %u: %s", p->line, reason);
    longjmp(p->failed, 1);
}

/* fc_ptx_grow returns v with room for more than n elements. */
void *fc_ptx_grow(struct fc_ptx_parser *p, void *v, size_t n, size_t *cap, size_t size)
{
    if (n < *cap)
        return v;
    size_t more = *cap ? 2 * *cap : 32;
    void *grown = realloc(v, more * size);
    if (!grown) {
        p->code = FC_PTX_OUT_OF_MEMORY;
        fc_ptx_fail(p, "out of memory");
    }
    *cap = more;
    return grown;
}

/* skip passes white space and comments. */
static void skip(struct fc_ptx_parser *p)
{
    for (;;) {
        const char *s = p->pos;
        if (*s == '\n') {
            p->line++;
            p->pos++;
        } else if (isspace((unsigned char)*s)) {
            p->pos++;
        } else if (s[0] == '/' && s[1] == '/') {
            p->pos += strcspn(s, "\n");
        } else if (s[0] == '/' && s[1] == '*') {
            const char *end = strstr(s + 2, "*/");
            if (!end)
                fc_ptx_fail(p, "a comment has no end");
            for (; s < end; s++)
                p->line += *s == '\n';
            p->pos = end + 2;
        } else {
            return;
        }
    }
}

static bool word_character(char c) { return isalnum((unsigned char)c) || c == '_' || c == '$'; }

static int digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : 99;
}

/* number reads an integer constant, or the bits of a float as 0f or 0d and its hexadecimal digits. */
static void number(struct fc_ptx_parser *p)
{
    const char *s = p->pos;
    unsigned base = 10;
    char second = *s == '0' ? s[1] | 0x20 : 0;
    if (second == 'x')
        base = 16, s += 2;
    else if (second == 'b')
        base = 2, s += 2;
    else if (second == 'f' || second == 'd')
        base = 16, s += 2, p->tok.float_bytes = second == 'f' ? 4 : 8;
    else if (*s == '0')
        base = 8;
    const char *first = s;
    uint64_t value = 0;
    for (; (unsigned)digit(*s) < base; s++) {
        if (value > (UINT64_MAX - (unsigned)digit(*s)) / base)
            fc_ptx_fail(p, "a constant is larger than 64 bits");
        value = value * base + (unsigned)digit(*s);
    }
    size_t digits = (size_t)(s - first);
    if (!p->tok.float_bytes && (*s == 'U' || *s == 'u'))
        s++;
    if (digits == 0 || word_character(*s) || (p->tok.float_bytes && digits != 2u * p->tok.float_bytes))
        fc_ptx_fail(p, "a constant is malformed: '%.*s'", (int)(s + 1 - p->pos), p->pos);
    p->tok.kind = FC_PTX_NUMBER;
    p->tok.value = value;
    p->tok.name = (struct fc_ptx_name){p->pos, (size_t)(s - p->pos)};
    p->pos = s;
}

/* word reads a name; after a dot also the colons that are part of modifiers such as L1::no_allocate. */
static void word(struct fc_ptx_parser *p, enum fc_ptx_token_kind kind)
{
    const char *s = p->pos + 1;
    const char *first = kind == FC_PTX_DOT ? s : p->pos;
    while (word_character(*s) || (kind == FC_PTX_DOT && s[0] == ':' && s[1] == ':') ||
           (kind == FC_PTX_DOT && s[0] == ':' && s[-1] == ':'))
        s++;
    p->tok.kind = kind;
    p->tok.name = (struct fc_ptx_name){first, (size_t)(s - first)};
    p->pos = s;
}

/* fc_ptx_next reads the next token. */
void fc_ptx_next(struct fc_ptx_parser *p)
{
    skip(p);
    p->tok = (struct fc_ptx_token){.kind = FC_PTX_END, .name = {p->pos, 0}};
    char c = *p->pos, after = c ? p->pos[1] : 0;
    if (c == 0)
        return;
    if (c >= '0' && c <= '9') {
        number(p);
    } else if (isalpha((unsigned char)c) || ((c == '%' || c == '_' || c == '$') && word_character(after)) || c == '_') {
        word(p, FC_PTX_NAME);
    } else if (c == '.' && (isalnum((unsigned char)after) || after == '_')) {
        word(p, FC_PTX_DOT);
    } else if (c == '"') {
        size_t n = strcspn(p->pos + 1, "\"\n");
        if (p->pos[1 + n] != '"')
            fc_ptx_fail(p, "a string has no end");
        p->tok.kind = FC_PTX_STRING;
        p->pos += n + 2;
    } else if (strchr("{}()[],;:+-!@|<>=", c)) {
        p->tok.kind = FC_PTX_MARK;
        p->tok.value = (unsigned char)c;
        p->tok.name = (struct fc_ptx_name){p->pos++, 1};
    } else {
        fc_ptx_fail(p, "an unknown character, 0x%02x", (unsigned char)c);
    }
}

bool fc_ptx_is(struct fc_ptx_name name, const char *word) { return name.n == strlen(word) && !memcmp(name.at, word, name.n); }

bool fc_ptx_same(struct fc_ptx_name a, struct fc_ptx_name b) { return a.n == b.n && !memcmp(a.at, b.at, a.n); }

bool fc_ptx_at(const struct fc_ptx_parser *p, char mark)
{
    return p->tok.kind == FC_PTX_MARK && p->tok.value == (unsigned char)mark;
}

bool fc_ptx_accept(struct fc_ptx_parser *p, char mark)
{
    if (!fc_ptx_at(p, mark))
        return false;
    fc_ptx_next(p);
    return true;
}

bool fc_ptx_accept_dot(struct fc_ptx_parser *p, const char *dotted)
{
    if (p->tok.kind != FC_PTX_DOT || !fc_ptx_is(p->tok.name, dotted))
        return false;
    fc_ptx_next(p);
    return true;
}

void fc_ptx_expect(struct fc_ptx_parser *p, char mark)
{
    if (!fc_ptx_accept(p, mark))
        fc_ptx_fail(p, "'%c' expected, not '%.*s'", mark, (int)p->tok.name.n, p->tok.name.at);
}

uint64_t fc_ptx_number(struct fc_ptx_parser *p, uint64_t most)
{
    uint64_t value = p->tok.value;
    if (p->tok.kind != FC_PTX_NUMBER || p->tok.float_bytes || value > most)
        fc_ptx_fail(p, "a number up to %llu expected, not '%.*s'", (unsigned long long)most, (int)p->tok.name.n, p->tok.name.at);
    fc_ptx_next(p);
    return value;
}

struct fc_ptx_name fc_ptx_word(struct fc_ptx_parser *p, const char *what)
{
    struct fc_ptx_name name = p->tok.name;
    if (p->tok.kind != FC_PTX_NAME)
        fc_ptx_fail(p, "%s expected, not '%.*s'", what, (int)name.n, name.at);
    fc_ptx_next(p);
    return name;
}

/* fc_ptx_type_of reports whether a name is that of a type, and which. */
bool fc_ptx_type_of(struct fc_ptx_name name, struct fc_ptx_type *type)
{
    if (fc_ptx_is(name, "pred")) {
        *type = (struct fc_ptx_type){'p', 0};
        return true;
    }
    static const char names[][4] = {"b8", "b16", "b32", "b64", "u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64", "f32", "f64"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (fc_ptx_is(name, names[i])) {
            *type = (struct fc_ptx_type){names[i][0], (uint8_t)(atoi(names[i] + 1) / 8)};
            return true;
        }
    }
    return false;
}

struct fc_ptx_type fc_ptx_expect_type(struct fc_ptx_parser *p)
{
    struct fc_ptx_type type;
    if (p->tok.kind != FC_PTX_DOT || !fc_ptx_type_of(p->tok.name, &type))
        fc_ptx_fail(p, "a type expected, not '%.*s'", (int)p->tok.name.n, p->tok.name.at);
    fc_ptx_next(p);
    return type;
}
