/* health.h - health of the NVIDIA GPUs of this host: memory errors, remapped rows, PCI Express replays, Xids.
 *
 *     libnvidia-ml.so.1 --dlopen, in a child process--> struct gpu_health --> `weft doctor`, metrics
 *     kernel log ------"NVRM: Xid (PCI:...): N"-------^
 *
 * NVML is loaded at run time (WEFT_NVML names another file), and a child process calls it, because its calls
 * may block for ever if a GPU has failed. Nothing is changed on the device. */
#ifndef WEFT_TOOLS_GPU_HEALTH_H
#define WEFT_TOOLS_GPU_HEALTH_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { GPU_COUNT_MAX = 32, GPU_XIDS_MAX = 64, GPU_DEADLINE_MS = 5000 };

/* Values that a device does not report are GPU_UNKNOWN. */
#define GPU_UNKNOWN UINT64_MAX

enum gpu_counter {
    GPU_ECC_CORRECTED, /* memory errors since the driver was loaded */
    GPU_ECC_UNCORRECTED,
    GPU_ROWS_CORRECTED, /* rows remapped after corrected errors, since manufacture */
    GPU_ROWS_UNCORRECTED,
    GPU_REMAP_PENDING, /* 1: a row waits for its remapping at the next reset */
    GPU_REMAP_FAILED,  /* 1: a row could not be remapped */
    GPU_PCIE_REPLAYS,
    GPU_COUNTER_COUNT,
};

struct gpu_device {
    char name[64], pci[32]; /* PCI: "0000:3b:00.0", lower case */
    bool is_lost;           /* NVML finds no handle of it, or reports it lost */
    uint64_t counters[GPU_COUNTER_COUNT];
};

/* Xid errors of one number on one device since the boot. */
struct gpu_xid {
    char pci[32]; /* "0000:3b:00" */
    uint32_t xid;
    uint64_t count;
};

struct gpu_health {
    uint32_t count, xid_count;
    struct gpu_device devices[GPU_COUNT_MAX];
    struct gpu_xid xids[GPU_XIDS_MAX];
    bool has_nvml;  /* false: `text` has the reason */
    bool is_silent; /* NVML did not answer before the deadline */
    bool has_log;   /* the kernel log could be read */
    char text[160];
};

/* Reads all of it. Blocks for at most deadline_ms. `root`: see tools/doctor/machine.h; the kernel log is
 * root/dev/kmsg, and NVML is read only if root is "". */
void gpu_health_read(struct gpu_health *health, const char *root, uint32_t deadline_ms);
/* The same without a child process; for that process. */
void gpu_nvml_read(struct gpu_health *health);
/* Counts the Xid errors of the lines of a kernel log. */
void gpu_xid_scan(struct gpu_health *health, const char *line);

/* Metrics in the text format of Prometheus, for the textfile collector of node_exporter. */
void gpu_metrics_print(const struct gpu_health *health, FILE *out);

#endif
