/* Faults on order: entry[@device]:calls:what, several divided by commas or lines, from FAKECUDA_FAULT and from the file
 * FAKECUDA_CONTROL, which is read again when it changed. A wrong order ends the process: a test whose fault never
 * comes would prove nothing. */
#include "fakecuda.h"
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_RULES 256
#define EXIT_STATUS 86

enum what { ANSWER, STICKY, LATER, STALL, HANG, SEGV, EXIT };

struct rule {
    char entry[48];
    int physical; /* of the current context; -1: any */
    long from, to, seen;
    enum what what;
    int code;
};

struct rules {
    struct rule list[MAX_RULES];
    int count;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct rules of_environment, of_control;
static const char *control;
static struct stat last_read;
static atomic_bool armed;
static atomic_long delay_us;
static __thread int of_operation;

static _Noreturn void wrong(const char *item) {
    fprintf(stderr,
            "fakecuda: a fault is entry[@device]:N|N+|*:CODE|sticky=CODE|async=CODE|stall|hang|segv|exit, not %s\n",
            item);
    abort();
}

static bool parse_calls(const char *text, struct rule *r) {
    char *end;
    r->from = strcmp(text, "*") == 0 ? 1 : strtol(text, &end, 10);
    r->to = r->from;
    if (strcmp(text, "*") == 0) r->to = __LONG_MAX__;
    else if (strcmp(end, "+") == 0) r->to = __LONG_MAX__;
    else if (*end != 0) return false;
    return r->from > 0;
}

static bool parse_what(const char *text, struct rule *r) {
    static const struct {
        const char *name;
        enum what what;
    } words[] = {{"stall", STALL}, {"hang", HANG}, {"segv", SEGV}, {"exit", EXIT}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strcmp(text, words[i].name) != 0) continue;
        r->what = words[i].what;
        return true;
    }
    r->what = strncmp(text, "sticky=", 7) == 0 ? STICKY : strncmp(text, "async=", 6) == 0 ? LATER : ANSWER;
    const char *number = r->what == ANSWER ? text : strchr(text, '=') + 1;
    char *end;
    r->code = (int)strtol(number, &end, 10);
    return end != number && *end == 0 && r->code > 0;
}

static void parse_item(char *item, struct rules *rules) {
    char whole[128], *rest = item, *entry, *calls;
    snprintf(whole, sizeof whole, "%s", item);
    if (strncmp(item, "delay=", 6) == 0) {
        atomic_store(&delay_us, strtol(item + 6, NULL, 10));
        return;
    }
    if (rules->count == MAX_RULES) wrong(whole);
    struct rule *r = &rules->list[rules->count];
    memset(r, 0, sizeof *r);
    r->physical = -1;
    entry = strsep(&rest, ":");
    calls = strsep(&rest, ":");
    if (calls == NULL || rest == NULL) wrong(whole);
    char *at = strchr(entry, '@');
    if (at != NULL) {
        *at = 0;
        r->physical = atoi(at + 1);
    }
    snprintf(r->entry, sizeof r->entry, "%s", entry);
    if (!fc_is_entry(entry) || !parse_calls(calls, r) || !parse_what(rest, r)) wrong(whole);
    rules->count++;
}

static void parse(char *text, struct rules *rules) {
    rules->count = 0;
    for (char *item; (item = strsep(&text, ", \n")) != NULL;) {
        if (*item != 0) parse_item(item, rules);
    }
}

static bool is_same(const struct stat *a, const struct stat *b) {
    return a->st_ino == b->st_ino && a->st_size == b->st_size && a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
           a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

/* With lock held. */
static void read_control(void) {
    struct stat now;
    char text[16384];
    if (control == NULL || (stat(control, &now) == 0 && is_same(&now, &last_read))) return;
    atomic_store(&delay_us, (long)fc_env("FAKECUDA_DELAY_US", 0));
    of_control.count = 0;
    memset(&last_read, 0, sizeof last_read);
    int fd = open(control, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    ssize_t n = fstat(fd, &last_read) == 0 ? read(fd, text, sizeof text - 1) : -1;
    text[n > 0 ? n : 0] = 0;
    parse(text, &of_control);
    close(fd);
}

void fc_fault_init(void) {
    static char text[16384];
    const char *order = getenv("FAKECUDA_FAULT");
    pthread_mutex_lock(&lock);
    atomic_store(&delay_us, (long)fc_env("FAKECUDA_DELAY_US", 0));
    control = getenv("FAKECUDA_CONTROL");
    if (control != NULL && *control == 0) control = NULL;
    if (order != NULL) {
        snprintf(text, sizeof text, "%s", order);
        parse(text, &of_environment);
    }
    atomic_store(&armed, control != NULL || of_environment.count > 0);
    pthread_mutex_unlock(&lock);
}

long fc_delay_us(void) { return atomic_load(&delay_us); }

/* A call counts in each rule that it fits; the first one whose turn it is decides. With lock held. */
static const struct rule *due(struct rules *rules, const char *entry, const struct rule *found) {
    for (int i = 0; i < rules->count; i++) {
        struct rule *r = &rules->list[i];
        if (!fc_same_entry(entry, r->entry)) continue;
        if (r->physical >= 0 && (fc_current() == NULL || fc_current()->device->physical != r->physical)) continue;
        r->seen++;
        if (found == NULL && r->seen >= r->from && r->seen <= r->to) found = r;
    }
    return found;
}

static CUresult act(const struct rule *r) {
    fc_count(FC_FAULTS, 1);
    switch (r->what) {
    case STICKY:
        if (fc_current() != NULL) fc_lose(fc_current()->device, (CUresult)r->code);
        return (CUresult)r->code;
    case LATER: of_operation = r->code; return CUDA_SUCCESS;
    case STALL: of_operation = FC_STALL; return CUDA_SUCCESS;
    case HANG:
        for (;;) pause();
    case SEGV: *(volatile int *)NULL = 1; __builtin_unreachable();
    case EXIT: _exit(EXIT_STATUS);
    case ANSWER: break;
    }
    return (CUresult)r->code;
}

CUresult fc_fault(const char *entry) {
    struct rule copy;
    of_operation = 0;
    if (!atomic_load(&armed)) return CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    read_control();
    const struct rule *r = due(&of_environment, entry, NULL);
    r = due(&of_control, entry, r);
    if (r != NULL) copy = *r;
    pthread_mutex_unlock(&lock);
    return r != NULL ? act(&copy) : CUDA_SUCCESS;
}

/* What is to become of the next operation that this thread submits in the call that it is in. */
int fc_fault_of_operation(void) {
    int fault = of_operation;
    of_operation = 0;
    return fault;
}
