/* fuzz_gpu_xid.c - lines of a kernel log: counts stay within the table, addresses have PCI's characters. */
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"
#include "tools/gpu/health.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct gpu_health health;
    char line[512] = "NVRM: Xid (PCI:";
    const size_t used = bytes > 0 && (data[0] & 1) ? strlen(line) : 0;
    const size_t limit = sizeof line - 1 - used, copied = bytes < limit ? bytes : limit;
    memset(&health, 0, sizeof health);
    if (copied > 0) memcpy(line + used, data, copied);
    line[used + copied] = 0;
    for (int i = 0; i < 3; i++) gpu_xid_scan(&health, line);
    if (health.xid_count > 1) abort();
    for (uint32_t i = 0; i < health.xid_count; i++)
        if (health.xids[i].count != 3 ||
            strspn(health.xids[i].pci, "0123456789abcdef:.") != strlen(health.xids[i].pci))
            abort();
    return 0;
}
