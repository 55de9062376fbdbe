/* compare_hosts.c - findings that must be equal on all hosts of a job, compared between two; see
 * rdma_port.h. */
#include <string.h>

#include "tools/doctor/rdma_port.h"

/* The first finding with this id among [first, end). */
static const struct doctor_finding *find(const struct doctor_report *report, const char *id, size_t first,
                                         size_t end)
{
    for (size_t i = first; i < end; i++)
        if (strcmp(report->findings[i].id, id) == 0) return &report->findings[i];
    return NULL;
}

/* The part of the text that must be equal: of an MTU, what follows the name of the device. */
static const char *essence(const struct doctor_finding *finding)
{
    const char *colon = strcmp(finding->id, "rdma-mtu") == 0 ? strrchr(finding->text, ':') : NULL;
    return colon ? colon + 1 : finding->text;
}

void doctor_compare_hosts(struct doctor_report *report, const char *target, size_t own_count, size_t first)
{
    static const char *const ids[] = {"rdma-pkey", "rdma-mtu", "rdma-class"};
    const size_t end = report->count;
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) {
        const struct doctor_finding *here = find(report, ids[i], 0, own_count),
                                    *there = find(report, ids[i], first, end);
        if (!here || !there || strcmp(essence(here), essence(there)) == 0) continue;
        const struct doctor_finding own = *here, other = *there; /* the report may move */
        doctor_add_finding(report, DOCTOR_WARN, "rdma-differs", target,
                           "set the same on all hosts of a job; docs/infiniband.md describes each",
                           "%s: here %s; there %s", ids[i], own.text, other.text);
    }
}
