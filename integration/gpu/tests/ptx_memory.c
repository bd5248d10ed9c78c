/* Device memory for tests of the PTX interpreter: a few regions, with a rule for each byte. A byte may be
 * written once, so that copying something twice is found too. */
#include <stddef.h>
#include <stdint.h>

enum { MAY_READ = 1, MAY_WRITE_ONCE = 2, MAY_WRITE = 4 };

struct region {
    uint64_t address, size_bytes;
    uint8_t *bytes, *may;
};

struct memory {
    uint64_t regions, fault_address, fault_is_write, reads, writes;
    struct region region[4];
};

void *ptx_memory_translate(void *ctx, uint64_t addr, size_t n, int write);

void *ptx_memory_translate(void *ctx, uint64_t addr, size_t n, int write)
{
    struct memory *m = ctx;
    for (uint64_t i = 0; i < m->regions; i++) {
        struct region *r = &m->region[i];
        uint64_t at = addr - r->address;
        if (addr < r->address || at > r->size_bytes || n > r->size_bytes - at)
            continue;
        uint8_t allowed = write ? MAY_WRITE_ONCE | MAY_WRITE : MAY_READ;
        size_t k = 0;
        while (k < n && r->may[at + k] & allowed)
            k++;
        if (k < n)
            break;
        for (k = 0; write && k < n; k++)
            r->may[at + k] &= (uint8_t)~MAY_WRITE_ONCE;
        write ? m->writes++ : m->reads++;
        return r->bytes + at;
    }
    m->fault_address = addr;
    m->fault_is_write = write != 0;
    return NULL;
}
