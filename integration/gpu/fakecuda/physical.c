/* Device memory without its address: a file in memory. Its last page says what it is, so that another process knows an
 * export from any other descriptor; seals keep its size, so that no mapping of it can fault. The kernel keeps the
 * memory as long as any process has it open or mapped, as the real driver does. */
#include "fakecuda.h"
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
#define MAGIC "fakecuda memory"

struct label {
    char magic[16];
    uint64_t id;
    uint64_t size;
    char uuid[16];
    uint32_t handle_types;
    uint32_t vmm;
};

/* What another process opens: 64 bytes. */
struct name {
    char magic[16];
    uint64_t id;
    int32_t pid, fd;
    char uuid[16];
};
_Static_assert(sizeof(struct name) <= 64, "a name fits a handle");

static size_t pages(size_t size) { return (size + FC_PAGE - 1) & ~(FC_PAGE - 1); }

static bool read_label(int fd, struct label *label) {
    struct stat file;
    if (fstat(fd, &file) != 0 || !S_ISREG(file.st_mode) || file.st_size < (off_t)(2 * FC_PAGE)) return false;
    if (fcntl(fd, F_GET_SEALS) != SEALS) return false;
    if (pread(fd, label, sizeof *label, file.st_size - (off_t)FC_PAGE) != sizeof *label) return false;
    return memcmp(label->magic, MAGIC, sizeof MAGIC) == 0 && label->size > 0 &&
           pages(label->size) + FC_PAGE == (size_t)file.st_size;
}

static bool write_label(int fd, const struct label *label) {
    off_t at = (off_t)pages(label->size);
    return ftruncate(fd, at + (off_t)FC_PAGE) == 0 && pwrite(fd, label, sizeof *label, at) == sizeof *label &&
           fcntl(fd, F_ADD_SEALS, SEALS) == 0;
}

/* Fresh memory of a device is not zero. */
static void poison(int fd, size_t size) {
    char filling[65536];
    memset(filling, 0xa5, sizeof filling);
    for (size_t at = 0; at < size; at += sizeof filling) {
        size_t n = size - at < sizeof filling ? size - at : sizeof filling;
        if (pwrite(fd, filling, n, (off_t)at) < 0) return;
    }
}

static struct fc_physical *make(int fd, const struct label *label, struct fc_device *device, bool imported) {
    struct fc_physical *p = calloc(1, sizeof *p);
    if (p == NULL) return NULL;
    atomic_store(&p->refs, 1);
    p->fd = fd;
    p->size = label->size;
    p->id = label->id;
    p->device = device;
    p->handle_types = label->handle_types;
    p->vmm = label->vmm != 0;
    p->imported = imported;
    fc_count(FC_DESCRIPTORS, 1);
    return p;
}

CUresult fc_physical_new(struct fc_device *device, size_t size, bool vmm, unsigned handle_types,
                         struct fc_physical **out) {
    long long footprint = (long long)pages(size);
    if (atomic_fetch_add(&device->used_bytes, footprint) + footprint > fc_memory_bytes()) {
        atomic_fetch_sub(&device->used_bytes, footprint);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct label label = {.magic = MAGIC, .size = size, .handle_types = handle_types, .vmm = vmm};
    memcpy(label.uuid, device->uuid.bytes, sizeof label.uuid);
    int fd = memfd_create("fakecuda", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd >= 0 && getrandom(&label.id, sizeof label.id, 0) == sizeof label.id && write_label(fd, &label)) {
        if (fc_env("FAKECUDA_POISON", 0) != 0) poison(fd, size);
        *out = make(fd, &label, device, false);
        if (*out != NULL) return CUDA_SUCCESS;
    }
    if (fd >= 0) close(fd);
    atomic_fetch_sub(&device->used_bytes, footprint);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult fc_physical_of(int fd, struct fc_physical **out) {
    struct label label;
    if (!read_label(fd, &label)) return CUDA_ERROR_INVALID_VALUE;
    struct fc_device *device = fc_device_of_uuid(label.uuid);
    if (device == NULL) return CUDA_ERROR_INVALID_DEVICE;
    *out = make(fd, &label, device, true);
    return *out != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

struct fc_physical *fc_physical_ref(struct fc_physical *p) {
    atomic_fetch_add(&p->refs, 1);
    return p;
}

void fc_physical_unref(struct fc_physical *p) {
    if (atomic_fetch_sub(&p->refs, 1) > 1) return;
    if (!p->imported) atomic_fetch_sub(&p->device->used_bytes, (long long)pages(p->size));
    close(p->fd);
    fc_count(FC_DESCRIPTORS, -1);
    free(p);
}

void fc_name_of(const struct fc_physical *p, char text[64]) {
    struct name name = {.magic = MAGIC, .id = p->id, .pid = (int32_t)getpid(), .fd = p->fd};
    memcpy(name.uuid, p->device->uuid.bytes, sizeof name.uuid);
    memset(text, 0, 64);
    memcpy(text, &name, sizeof name);
}

/* A name outlives the memory: its process may be dead, and its descriptor another file. Then it cannot be mapped. */
CUresult fc_open_name(const char text[64], bool vmm, struct fc_physical **out) {
    struct name name;
    struct label label;
    char path[64], target[32] = "";
    memcpy(&name, text, sizeof name);
    if (memcmp(name.magic, MAGIC, sizeof MAGIC) != 0) return CUDA_ERROR_INVALID_VALUE;
    if (name.pid == (int32_t)getpid() && !vmm) return CUDA_ERROR_INVALID_CONTEXT;
    if (fc_device_of_uuid(name.uuid) == NULL) return CUDA_ERROR_INVALID_DEVICE;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)name.pid, (int)name.fd);
    if (readlink(path, target, sizeof target - 1) < 0 || strncmp(target, "/memfd:fakecuda", 15) != 0)
        return CUDA_ERROR_MAP_FAILED;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return CUDA_ERROR_MAP_FAILED;
    CUresult result = CUDA_ERROR_MAP_FAILED;
    if (read_label(fd, &label) && label.id == name.id && label.vmm == (uint32_t)vmm) result = fc_physical_of(fd, out);
    if (result != CUDA_SUCCESS) close(fd);
    return result;
}
