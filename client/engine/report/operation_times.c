/* operation_times.c - the entries of a report (operation_times.h). */
#include "client/engine/report/operation_times.h"

void client_operation_times_report(struct client_operation_times *times, Weft__Control__Report *report)
{
    report->operations = times->listed;
    report->n_operations = 0;
    for (uint32_t kind = 0; kind < WEFT_COLL_KIND_COUNT; kind++) {
        Weft__Control__OperationTimes *entry = &times->entries[kind];
        if (weft_histogram_count(&times->kinds[kind]) == 0) continue;
        times->reported[kind] = times->kinds[kind];
        weft__control__operation_times__init(entry);
        entry->kind = (char *)(kind == CLIENT_OPERATION_PUSH_PULL ? "push_pull" : weft_coll_kind_name(kind));
        entry->buckets = times->reported[kind].counts;
        entry->n_buckets = WEFT_HISTOGRAM_BOUNDS + 1;
        entry->ns = times->reported[kind].sum;
        times->listed[report->n_operations++] = entry;
    }
}
