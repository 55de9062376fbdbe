/* metrics.c - the health of this host's GPUs as metrics. A value that is not reported has no sample. */
#include <inttypes.h>

#include "tools/gpu/health.h"
#include "tools/gpu/xid.h"

static const struct metric {
    enum gpu_counter counter;
    const char *name, *type, *help;
} metrics[] = {
    {GPU_ECC_CORRECTED, "weft_gpu_ecc_corrected_total", "counter",
     "Corrected memory errors since the driver was loaded."},
    {GPU_ECC_UNCORRECTED, "weft_gpu_ecc_uncorrected_total", "counter",
     "Uncorrected memory errors since the driver was loaded."},
    {GPU_ROWS_CORRECTED, "weft_gpu_rows_remapped_corrected", "gauge",
     "Memory rows remapped after corrected errors."},
    {GPU_ROWS_UNCORRECTED, "weft_gpu_rows_remapped_uncorrected", "gauge",
     "Memory rows remapped after uncorrected errors."},
    {GPU_REMAP_PENDING, "weft_gpu_row_remap_pending", "gauge",
     "1: a memory row waits for its remapping at the next reset."},
    {GPU_REMAP_FAILED, "weft_gpu_row_remap_failed", "gauge", "1: a memory row could not be remapped."},
    {GPU_PCIE_REPLAYS, "weft_gpu_pcie_replays_total", "counter", "Repeated PCI Express packets."},
};

static void head(FILE *out, const char *name, const char *type, const char *help)
{
    fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* A label value without quotes and escapes. */
static void print_clean(FILE *out, const char *text)
{
    for (; *text; text++)
        putc(*text == '"' || *text == '\\' || (unsigned char)*text < 32 ? '\'' : *text, out);
}

void gpu_metrics_print(const struct gpu_health *health, FILE *out)
{
    head(out, "weft_gpu_nvml_up", "gauge", "1: NVML answers on this host.");
    fprintf(out, "weft_gpu_nvml_up %d\n", health->has_nvml ? 1 : 0);
    head(out, "weft_gpu_up", "gauge", "1: the device answers; 0: it is lost.");
    for (uint32_t i = 0; i < health->count; i++) {
        fprintf(out, "weft_gpu_up{gpu=\"%u\",pci=\"%s\",name=\"", i, health->devices[i].pci);
        print_clean(out, health->devices[i].name);
        fprintf(out, "\"} %d\n", health->devices[i].is_lost ? 0 : 1);
    }
    for (size_t m = 0; m < sizeof metrics / sizeof *metrics; m++) {
        head(out, metrics[m].name, metrics[m].type, metrics[m].help);
        for (uint32_t i = 0; i < health->count; i++) {
            const uint64_t value = health->devices[i].counters[metrics[m].counter];
            if (value == GPU_UNKNOWN) continue;
            fprintf(out, "%s{gpu=\"%u\",pci=\"%s\"} %" PRIu64 "\n", metrics[m].name, i,
                    health->devices[i].pci, value);
        }
    }
    if (!health->has_log) return;
    head(out, "weft_gpu_xid_total", "counter", "Xid errors in the kernel log since the boot.");
    for (uint32_t i = 0; i < health->xid_count; i++) {
        const struct gpu_xid *seen = &health->xids[i];
        const struct xid_entry *entry = xid_find(seen->xid);
        fprintf(out, "weft_gpu_xid_total{pci=\"%s\",xid=\"%u\",action=\"%s\"} %" PRIu64 "\n", seen->pci,
                seen->xid, entry ? xid_action_name(entry->action) : "unknown", seen->count);
    }
}
