/* The few calls of NVML that torch makes for expandable segments: it asks whether a GPU is part of a fabric. None is. */
#include <stddef.h>
#include <string.h>

enum { NOT_SUPPORTED = 3, INVALID_ARGUMENT = 2, SUCCESS = 0 };
typedef int result_t;
typedef const char *device_t;

result_t nvmlInit_v2(void);
result_t nvmlShutdown(void);
result_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus, device_t *device);
result_t nvmlDeviceGetGpuFabricInfoV(device_t device, void *info);
result_t nvmlDeviceGetNvLinkRemoteDeviceType(device_t device, unsigned link, void *type);
result_t nvmlDeviceGetNvLinkRemotePciInfo_v2(device_t device, unsigned link, void *info);
result_t nvmlDeviceGetComputeRunningProcesses(device_t device, unsigned *count, void *infos);
result_t nvmlSystemGetCudaDriverVersion_v2(int *version);

result_t nvmlInit_v2(void) { return SUCCESS; }

result_t nvmlShutdown(void) { return SUCCESS; }

result_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus, device_t *device) {
    if (bus == NULL || device == NULL) return INVALID_ARGUMENT;
    *device = "a GPU";
    return SUCCESS;
}

/* The version has the size of the whole in its lower three bytes. All else is 0: the state is "not supported". */
result_t nvmlDeviceGetGpuFabricInfoV(device_t device, void *info) {
    unsigned version;
    (void)device;
    if (info == NULL) return INVALID_ARGUMENT;
    memcpy(&version, info, sizeof version);
    if ((version & 0xffffff) < 32 || (version & 0xffffff) > 256) return INVALID_ARGUMENT;
    memset((char *)info + sizeof version, 0, (version & 0xffffff) - sizeof version);
    return SUCCESS;
}

result_t nvmlDeviceGetNvLinkRemoteDeviceType(device_t device, unsigned link, void *type) {
    (void)device, (void)link, (void)type;
    return NOT_SUPPORTED;
}

result_t nvmlDeviceGetNvLinkRemotePciInfo_v2(device_t device, unsigned link, void *info) {
    (void)device, (void)link, (void)info;
    return NOT_SUPPORTED;
}

result_t nvmlDeviceGetComputeRunningProcesses(device_t device, unsigned *count, void *infos) {
    (void)device, (void)infos;
    if (count == NULL) return INVALID_ARGUMENT;
    *count = 0;
    return SUCCESS;
}

result_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
    (void)version;
    return NOT_SUPPORTED;
}
