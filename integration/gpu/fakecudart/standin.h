/* Functions that refuse: what they are asked for is not there. With FAKECUDART_TRACE=1 they say that they were called. */
#include <stdio.h>
#include <stdlib.h>

static inline long refuse(const char *name) {
    const char *trace = getenv("FAKECUDART_TRACE");
    if (trace != NULL && *trace == '1') fprintf(stderr, "fakecudart: %s is not there\n", name);
    return 801; /* cudaErrorNotSupported, and an error to the other libraries */
}

#define REFUSES(name)  \
    long name(void);   \
    long name(void) { return refuse(#name); }
#define TEXT(name)          \
    const char *name(void); \
    const char *name(void) { return refuse(#name) != 0 ? "not there" : ""; }
