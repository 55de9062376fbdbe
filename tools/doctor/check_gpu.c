/* check_gpu.c - findings about the health of the GPUs; see tools/gpu/health.h. */
#include <inttypes.h>
#include <stdlib.h>

#include "tools/doctor/machine.h"
#include "tools/gpu/health.h"
#include "tools/gpu/xid.h"

#define DRAIN_ADVICE "end the work on this GPU and reset it; replace it if the error returns"

static void check_device(struct doctor_report *report, const struct gpu_device *device, uint32_t number)
{
    char subject[64];
    const uint64_t *counters = device->counters;
    snprintf(subject, sizeof subject, "GPU %u", number);
    if (device->is_lost) {
        doctor_add_finding(report, DOCTOR_BROKEN, "gpu-lost", subject,
                           "restart the host; check power, cables and `dmesg | grep Xid`",
                           "the driver has lost this GPU");
        return;
    }
    const uint64_t errors = counters[GPU_ECC_UNCORRECTED];
    if (errors != GPU_UNKNOWN && errors > 0)
        doctor_add_finding(report, DOCTOR_BROKEN, "gpu-ecc", subject, DRAIN_ADVICE,
                           "%" PRIu64 " uncorrected memory errors since the driver was loaded (%s)", errors,
                           device->name);
    else
        doctor_add_finding(report, DOCTOR_OK, "gpu-ecc", subject, NULL, "%s at %s: %s", device->name,
                           device->pci, errors == GPU_UNKNOWN ? "no ECC" : "no uncorrected memory errors");
    if (counters[GPU_REMAP_FAILED] == 1)
        doctor_add_finding(report, DOCTOR_BROKEN, "gpu-remap", subject, "replace this GPU",
                           "a memory row could not be remapped (%s)", device->name);
    else if (counters[GPU_REMAP_PENDING] == 1)
        doctor_add_finding(report, DOCTOR_WARN, "gpu-remap", subject,
                           "reset this GPU when its job has ended: nvidia-smi --gpu-reset",
                           "a memory row waits for its remapping (%s)", device->name);
}

static void check_xid(struct doctor_report *report, const struct gpu_xid *seen)
{
    const struct xid_entry *entry = xid_find(seen->xid);
    const enum xid_action action = entry ? entry->action : XID_WATCH;
    static const char *const advice[] = {
        [XID_IGNORE] = "nothing: look at the application that used it",
        [XID_WATCH] = "watch how often it repeats: `weft doctor --gpu-metrics`",
        [XID_DRAIN_LATER] = "finish the step, move the work to another GPU, then reset this one",
        [XID_DRAIN_NOW] = DRAIN_ADVICE,
    };
    static const enum doctor_level levels[] = {
        [XID_IGNORE] = DOCTOR_NOTE,
        [XID_WATCH] = DOCTOR_NOTE,
        [XID_DRAIN_LATER] = DOCTOR_WARN,
        [XID_DRAIN_NOW] = DOCTOR_BROKEN,
    };
    doctor_add_finding(report, levels[action], "gpu-xid", seen->pci, advice[action],
                       "Xid %u, %" PRIu64 " times since the boot: %s", seen->xid, seen->count,
                       entry ? entry->meaning : "not in the table of weft; the kernel log has its text");
}

void doctor_check_gpu_health(struct doctor_report *report, const struct gpu_health *health)
{
    if (!health->has_nvml)
        doctor_add_finding(report, health->is_silent ? DOCTOR_BROKEN : DOCTOR_NOTE, "gpu-nvml", "nvidia",
                           health->is_silent ? "a GPU has probably failed: see `dmesg | grep Xid`"
                                             : "install libnvidia-ml of the driver's version",
                           "the health of the GPUs cannot be read: %s", health->text);
    for (uint32_t i = 0; i < health->count; i++) check_device(report, &health->devices[i], i);
    for (uint32_t i = 0; i < health->xid_count; i++) check_xid(report, &health->xids[i]);
    if (!health->has_log)
        doctor_add_finding(report, DOCTOR_NOTE, "gpu-xid", "kernel log",
                           "run `weft doctor` as root, or set kernel.dmesg_restrict=0",
                           "this user may not read the kernel log, which has the Xid errors");
}

void doctor_check_gpus(struct doctor_report *report, const char *root)
{
    const char *nvml = getenv("WEFT_NVML");
    const bool has_driver = machine_exists(root, "/proc/driver/nvidia/version");
    if (!has_driver && (root[0] || !nvml || !nvml[0])) return; /* `gpu-memory` reports it */
    struct gpu_health *health = malloc(sizeof *health);
    if (!health) return;
    gpu_health_read(health, root, GPU_DEADLINE_MS);
    doctor_check_gpu_health(report, health);
    free(health);
}
