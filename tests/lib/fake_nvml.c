/* fake_nvml.c - an NVML without a GPU, for tests: three devices. FAKE_NVML selects what it does:
 *   healthy    device 0 has no errors, 1 has corrected errors and a pending row, 2 has no ECC
 *   failed     device 0 has uncorrected errors, 1 a failed row, 2 is lost
 *   refuses    nvmlInit_v2 fails
 *   blocks     a call never returns
 *   dies       the process ends in a call */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, NOT_SUPPORTED = 3, DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15 };
enum { TYPE_U32 = 1, TYPE_U64 = 3 };

struct field {
    unsigned id, scope;
    long long timestamp, latency_us;
    unsigned type;
    int answer;
    union {
        unsigned u32;
        unsigned long long u64;
    } value;
};

struct pci {
    char legacy_id[16];
    unsigned numbers[5];
    char id[32];
};

static int numbers[3] = {0, 1, 2};

static int is(const char *mode)
{
    const char *now = getenv("FAKE_NVML");
    return now && strcmp(now, mode) == 0;
}

int nvmlInit_v2(void)
{
    return is("refuses") ? DRIVER_NOT_LOADED : OK;
}

int nvmlShutdown(void)
{
    return OK;
}

const char *nvmlErrorString(int answer)
{
    return answer == DRIVER_NOT_LOADED ? "Driver Not Loaded" : "Unknown Error";
}

int nvmlDeviceGetCount_v2(unsigned *count_out)
{
    if (is("blocks"))
        for (;;) pause();
    if (is("dies")) raise(SIGKILL);
    *count_out = 3;
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned number, void **handle_out)
{
    if (is("failed") && number == 2) return GPU_IS_LOST;
    *handle_out = &numbers[number];
    return OK;
}

int nvmlDeviceGetName(void *handle, char *name, unsigned bytes)
{
    strncpy(name, "Fake \"H100\"", bytes);
    return OK;
}

int nvmlDeviceGetPciInfo_v3(void *handle, struct pci *out)
{
    strcpy(out->id, "00000000:3B:00.0");
    out->id[10] = (char)('A' + *(int *)handle);
    return OK;
}

static unsigned long long value_of(int number, unsigned id)
{
    const int failed = is("failed");
    switch (id) {
    case 3: return number == 1 ? 7 : 0;
    case 4: return failed && number == 0 ? 2 : 0;
    case 142: return number;
    case 143: return failed ? 1 : 0;
    case 144: return !failed && number == 1;
    case 145: return failed && number == 1;
    case 94: return 5000000000ull; /* more than 32 bits */
    default: abort();
    }
}

int nvmlDeviceGetFieldValues(void *handle, int count, struct field *fields)
{
    const int number = *(int *)handle;
    for (int i = 0; i < count; i++) {
        const unsigned long long value = value_of(number, fields[i].id);
        fields[i].answer = number == 2 && fields[i].id <= 4 ? NOT_SUPPORTED : OK;
        fields[i].type = fields[i].id == 94 ? TYPE_U64 : TYPE_U32;
        if (fields[i].id == 94) fields[i].value.u64 = value;
        else fields[i].value.u32 = (unsigned)value;
    }
    return OK;
}
