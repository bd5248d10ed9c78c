/* Counters. FAKECUDA_STATS=path has each process keep them in path.PID: 32 bytes a counter, 24 of them its name.
 * FAKECUDA_CALLED=path has it add the name of each entry to path.PID when it is called for the first time. */
#include "fakecuda.h"
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

struct counter {
    char name[24];
    atomic_llong value;
};

#define NAME(number, name) name,
static const char *const names[] = {FC_STATS_LIST(NAME)};

static struct counter own[FC_STATS];
static struct counter *_Atomic counters = own;

/* With the file gone wrong, the counters are in memory only: a test that needs them will miss the file. */
void fc_stats_open(void) {
    const char *prefix = getenv("FAKECUDA_STATS");
    char path[4096];
    if (prefix == NULL || *prefix == 0) return;
    snprintf(path, sizeof path, "%s.%d", prefix, (int)getpid());
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0) return;
    struct counter *shared = MAP_FAILED;
    if (ftruncate(fd, sizeof own) == 0) shared = mmap(NULL, sizeof own, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (shared == MAP_FAILED) return;
    for (int i = 0; i < FC_STATS; i++) {
        snprintf(shared[i].name, sizeof shared[i].name, "%s", names[i]);
        atomic_store(&shared[i].value, atomic_load(&own[i].value));
    }
    atomic_store(&counters, shared);
}

void fc_count(enum fc_stat stat, long long change) { atomic_fetch_add(&atomic_load(&counters)[stat].value, change); }

/* The names are __func__ of the entries, so each has one address. An entry that is called first by two threads at one time may
 * be written twice. */
void fc_called(const char *entry) {
    static const char *_Atomic seen[256];
    char path[4096], line[64];
    const char *prefix = getenv("FAKECUDA_CALLED");
    if (prefix == NULL || *prefix == 0) return;
    for (size_t i = 0; i < sizeof seen / sizeof *seen; i++) {
        const char *none = NULL;
        if (atomic_load(&seen[i]) == entry) return;
        if (atomic_compare_exchange_strong(&seen[i], &none, entry)) break;
    }
    snprintf(path, sizeof path, "%s.%d", prefix, (int)getpid());
    int n = snprintf(line, sizeof line, "%s\n", entry);
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd < 0) return;
    if (write(fd, line, (size_t)n) != n) abort();
    close(fd);
}
