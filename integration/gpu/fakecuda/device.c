/* What machine the fake is, by the environment: its version, its devices and their attributes. */
#include "fakecuda.h"
#include <stdio.h>

#define NEWEST 13050

static struct fc_device devices[FC_MAX_DEVICES];
static int device_count;
static pthread_once_t once = PTHREAD_ONCE_INIT;

long long fc_env(const char *name, long long otherwise) {
    const char *text = getenv(name);
    char *end;
    if (text == NULL || *text == 0) return otherwise;
    long long value = strtoll(text, &end, 0);
    return *end == 0 ? value : otherwise;
}

int fc_version(void) {
    static atomic_int version;
    int v = atomic_load(&version);
    if (v == 0) {
        v = (int)fc_env("FAKECUDA_VERSION", NEWEST); /* "newest" is no number */
        atomic_store(&version, v);
    }
    return v;
}

/* The UUID of a device is the same in every process, whatever its ordinal is there. */
static void describe(struct fc_device *d, int ordinal, int physical) {
    static const unsigned char head[14] = "fakecuda-gpu\xc0\xda";
    d->ordinal = ordinal;
    d->physical = physical;
    memcpy(d->uuid.bytes, head, sizeof head);
    d->uuid.bytes[14] = (char)(physical >> 8);
    d->uuid.bytes[15] = (char)physical;
    snprintf(d->bus_id, sizeof d->bus_id, "0000:%02X:00.0", (physical + 1) & 0xff);
    d->primary.device = d;
}

/* CUDA_VISIBLE_DEVICES ends at the first index that is none, as with the real driver. */
static void find_devices(void) {
    int present = (int)fc_env("FAKECUDA_DEVICES", 1);
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (present > FC_MAX_DEVICES) present = FC_MAX_DEVICES;
    if (visible == NULL) {
        for (; device_count < present; device_count++) describe(&devices[device_count], device_count, device_count);
        return;
    }
    for (const char *at = visible; *at != 0 && device_count < FC_MAX_DEVICES;) {
        char *end;
        long index = strtol(at, &end, 10);
        if (end == at || index < 0 || index >= present) return;
        describe(&devices[device_count], device_count, (int)index);
        device_count++;
        at = *end == ',' ? end + 1 : end;
        if (*end != ',' && *end != 0) return;
    }
}

int fc_devices(void) {
    pthread_once(&once, find_devices);
    return device_count;
}

struct fc_device *fc_device(int ordinal) { return ordinal >= 0 && ordinal < fc_devices() ? &devices[ordinal] : NULL; }

struct fc_device *fc_device_of_uuid(const char uuid[16]) {
    for (int i = 0; i < fc_devices(); i++) {
        if (memcmp(devices[i].uuid.bytes, uuid, 16) == 0) return &devices[i];
    }
    return NULL;
}

long long fc_memory_bytes(void) { return fc_env("FAKECUDA_MEM_BYTES", 16ll << 30); }

bool fc_peers(const struct fc_device *a, const struct fc_device *b) {
    return a == b || fc_env("FAKECUDA_PEERS", 0) != 0;
}

/* Numbers are those of CUdevice_attribute. What is not listed is 0. */
static const struct {
    int attribute, value;
} defaults[] = {
    {1, 1024},    {2, 1024},   {3, 1024},        {4, 64},     {5, 2147483647}, {6, 65535}, {7, 65535},     {8, 49152},
    {9, 65536},   {10, 32},    {11, 2147483647}, {12, 65536}, {13, 1980000},   {14, 512},  {15, 1},        {16, 132},
    {19, 1},      {30, 512},   {31, 1},          {32, 1},     {36, 2619000},   {37, 5120}, {38, 52428800}, {39, 2048},
    {40, 3},      {41, 1},     {51, 32},         {75, 9},     {76, 0},         {78, 1},    {79, 1},        {80, 1},
    {81, 233472}, {82, 65536}, {83, 1},          {86, 0},     {90, 1},         {91, 1},    {92, 1},        {93, 1},
    {94, 1},      {95, 1},     {97, 232448},     {98, 1},     {99, 1},         {102, 1},   {103, 1},       {106, 32},
    {110, 1},     {111, 1024}, {113, 1},         {116, 1},    {122, 1},        {123, 1},   {125, 1},       {134, 0},
};

/* FAKECUDA_ATTR="128=1,1:134=1": attributes of all devices, and of the device whose index comes first. */
int fc_attribute(const struct fc_device *device, int attribute) {
    const char *at = getenv("FAKECUDA_ATTR");
    int value = 0;
    for (size_t i = 0; i < sizeof defaults / sizeof *defaults; i++) {
        if (defaults[i].attribute == attribute) value = defaults[i].value;
    }
    if (attribute == 33) value = device->physical + 1; /* the PCI bus */
    while (at != NULL && *at != 0) {
        int physical, number, set;
        bool all = sscanf(at, "%d=%d", &number, &set) == 2;
        bool one = !all && sscanf(at, "%d:%d=%d", &physical, &number, &set) == 3 && physical == device->physical;
        if ((all || one) && number == attribute) value = set;
        at = strchr(at, ',');
        if (at != NULL) at++;
    }
    return value;
}

CUresult cuDriverGetVersion(int *version) {
    FC_ENTER(FC_NOTHING);
    if (version == NULL) return CUDA_ERROR_INVALID_VALUE;
    *version = fc_version();
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count) {
    FC_ENTER(FC_INIT);
    if (count == NULL) return CUDA_ERROR_INVALID_VALUE;
    *count = fc_devices();
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    FC_ENTER(FC_INIT);
    if (device == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (fc_device(ordinal) == NULL) return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *text, int len, CUdevice dev) {
    FC_ENTER(FC_INIT);
    if (text == NULL || len <= 0) return CUDA_ERROR_INVALID_VALUE;
    if (fc_device(dev) == NULL) return CUDA_ERROR_INVALID_DEVICE;
    snprintf(text, (size_t)len, "Fake GPU");
    return CUDA_SUCCESS;
}

static CUresult get_uuid(CUuuid *uuid, CUdevice dev) {
    if (uuid == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (fc_device(dev) == NULL) return CUDA_ERROR_INVALID_DEVICE;
    *uuid = fc_device(dev)->uuid;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice dev) {
    FC_ENTER(FC_INIT);
    return get_uuid(uuid, dev);
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev) {
    FC_ENTER(FC_INIT);
    return get_uuid(uuid, dev);
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice dev) {
    FC_ENTER(FC_INIT);
    if (value == NULL || (int)attribute < 1 || attribute >= CU_DEVICE_ATTRIBUTE_MAX) return CUDA_ERROR_INVALID_VALUE;
    if (fc_device(dev) == NULL) return CUDA_ERROR_INVALID_DEVICE;
    *value = fc_attribute(fc_device(dev), (int)attribute);
    return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev) {
    FC_ENTER(FC_INIT);
    if (bytes == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (fc_device(dev) == NULL) return CUDA_ERROR_INVALID_DEVICE;
    *bytes = (size_t)fc_memory_bytes();
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char *text, int len, CUdevice dev) {
    FC_ENTER(FC_INIT);
    if (text == NULL || len <= 0) return CUDA_ERROR_INVALID_VALUE;
    if (fc_device(dev) == NULL) return CUDA_ERROR_INVALID_DEVICE;
    snprintf(text, (size_t)len, "%s", fc_device(dev)->bus_id);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetByPCIBusId(CUdevice *dev, const char *text) {
    FC_ENTER(FC_INIT);
    if (dev == NULL || text == NULL) return CUDA_ERROR_INVALID_VALUE;
    for (int i = 0; i < fc_devices(); i++) {
        if (strcmp(devices[i].bus_id, text) != 0 && strcmp(devices[i].bus_id + 5, text) != 0) continue;
        *dev = i;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice dev, CUdevice peer) {
    FC_ENTER(FC_INIT);
    if (can == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (fc_device(dev) == NULL || fc_device(peer) == NULL) return CUDA_ERROR_INVALID_DEVICE;
    *can = dev != peer && fc_peers(fc_device(dev), fc_device(peer));
    return CUDA_SUCCESS;
}
