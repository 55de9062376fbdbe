/* nvml.c - reads the devices by NVML, whose interface in use is declared here: weft builds without it. */
#include <ctype.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "tools/gpu/health.h"

enum { NVML_OK = 0 };

/* nvmlValueType_t */
enum { TYPE_DOUBLE = 0, TYPE_U32 = 1, TYPE_ULONG = 2, TYPE_U64 = 3, TYPE_I64 = 4, TYPE_I32 = 5 };

struct nvml_field {
    unsigned id, scope;
    long long timestamp, latency_us;
    unsigned type;
    int answer;
    union {
        double real;
        unsigned u32;
        unsigned long ulong;
        unsigned long long u64;
        long long i64;
        int i32;
    } value;
};
_Static_assert(sizeof(struct nvml_field) == 40, "nvmlFieldValue_t");

struct nvml_pci {
    char legacy_id[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char id[32];
};
_Static_assert(sizeof(struct nvml_pci) == 68, "nvmlPciInfo_t");

#define CALLS(CALL)                                                    \
    CALL(init, "nvmlInit_v2", (void))                                  \
    CALL(shut_down, "nvmlShutdown", (void))                            \
    CALL(count, "nvmlDeviceGetCount_v2", (unsigned *))                 \
    CALL(handle, "nvmlDeviceGetHandleByIndex_v2", (unsigned, void **)) \
    CALL(name, "nvmlDeviceGetName", (void *, char *, unsigned))        \
    CALL(pci, "nvmlDeviceGetPciInfo_v3", (void *, struct nvml_pci *))  \
    CALL(fields, "nvmlDeviceGetFieldValues", (void *, int, struct nvml_field *))

struct nvml {
#define POINTER(name, symbol, arguments) int(*name) arguments;
    CALLS(POINTER)
#undef POINTER
    const char *(*error_text)(int);
};

/* NVML's field of each counter. */
static const unsigned fields_of[GPU_COUNTER_COUNT] = {
    [GPU_ECC_CORRECTED] = 3,      [GPU_ECC_UNCORRECTED] = 4, [GPU_ROWS_CORRECTED] = 142,
    [GPU_ROWS_UNCORRECTED] = 143, [GPU_REMAP_PENDING] = 144, [GPU_REMAP_FAILED] = 145,
    [GPU_PCIE_REPLAYS] = 94,
};

static uint64_t field_number(const struct nvml_field *field)
{
    if (field->answer != NVML_OK) return GPU_UNKNOWN;
    switch (field->type) {
    case TYPE_U32: return field->value.u32;
    case TYPE_ULONG: return field->value.ulong;
    case TYPE_U64: return field->value.u64;
    case TYPE_I64: return field->value.i64 < 0 ? GPU_UNKNOWN : (uint64_t)field->value.i64;
    case TYPE_I32: return field->value.i32 < 0 ? GPU_UNKNOWN : (uint64_t)field->value.i32;
    default: return GPU_UNKNOWN;
    }
}

/* The id as sysfs writes it: "00000000:3B:00.0" becomes "0000:3b:00.0". */
static void set_pci(struct gpu_device *device, const struct nvml_pci *pci)
{
    const char *id = pci->id;
    const char *colon = memchr(id, ':', sizeof pci->id);
    if (colon && colon - id > 4) id = colon - 4;
    const size_t bytes = sizeof pci->id - (size_t)(id - pci->id);
    snprintf(device->pci, sizeof device->pci, "%.*s", (int)bytes, id);
    for (char *at = device->pci; *at; at++) *at = (char)tolower((unsigned char)*at);
}

static void read_device(const struct nvml *nvml, unsigned number, struct gpu_device *device)
{
    struct nvml_field fields[GPU_COUNTER_COUNT] = {{0}};
    struct nvml_pci pci = {{0}};
    void *handle = NULL;
    for (int i = 0; i < GPU_COUNTER_COUNT; i++) device->counters[i] = GPU_UNKNOWN;
    snprintf(device->name, sizeof device->name, "GPU %u", number);
    device->is_lost = nvml->handle(number, &handle) != NVML_OK;
    if (device->is_lost) return;
    char name[sizeof device->name];
    if (nvml->name(handle, name, sizeof name) == NVML_OK)
        snprintf(device->name, sizeof device->name, "%.*s", (int)sizeof name - 1, name);
    if (nvml->pci(handle, &pci) == NVML_OK) set_pci(device, &pci);
    for (int i = 0; i < GPU_COUNTER_COUNT; i++) fields[i].id = fields_of[i];
    if (nvml->fields(handle, GPU_COUNTER_COUNT, fields) != NVML_OK) {
        device->is_lost = true; /* a device that answers reports each field on its own */
        return;
    }
    for (int i = 0; i < GPU_COUNTER_COUNT; i++) device->counters[i] = field_number(&fields[i]);
}

static const char *bind(struct nvml *nvml, void *library)
{
#define BIND(name, symbol, arguments) \
    if (!(*(void **)&nvml->name = dlsym(library, symbol))) return symbol;
    CALLS(BIND)
#undef BIND
    *(void **)&nvml->error_text = dlsym(library, "nvmlErrorString");
    return nvml->error_text ? NULL : "nvmlErrorString";
}

void gpu_nvml_read(struct gpu_health *health)
{
    const char *named = getenv("WEFT_NVML");
    const char *file = named && named[0] ? named : "libnvidia-ml.so.1";
    struct nvml nvml;
    unsigned count = 0;
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        snprintf(health->text, sizeof health->text, "%.80s cannot be loaded", file);
        return;
    }
    const char *missing = bind(&nvml, library);
    int answer = missing ? NVML_OK : nvml.init();
    if (!missing && answer == NVML_OK) {
        answer = nvml.count(&count);
        health->has_nvml = answer == NVML_OK;
        health->count = count < GPU_COUNT_MAX ? count : GPU_COUNT_MAX;
        for (unsigned i = 0; health->has_nvml && i < health->count; i++)
            read_device(&nvml, i, &health->devices[i]);
        nvml.shut_down();
    }
    if (missing) snprintf(health->text, sizeof health->text, "%.80s has no %s", file, missing);
    else if (answer != NVML_OK)
        snprintf(health->text, sizeof health->text, "NVML answers: %.120s", nvml.error_text(answer));
    dlclose(library);
}
