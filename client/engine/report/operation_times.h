/* operation_times.h - times of the operations that the engine completes, by kind, for the report of this
 * rank. Operations that the thread of the caller completes itself are not among them: their calls read no
 * clock. */
#ifndef WEFT_CLIENT_ENGINE_REPORT_OPERATION_TIMES_H
#define WEFT_CLIENT_ENGINE_REPORT_OPERATION_TIMES_H

#include <stdint.h>

#include "base/base.h"
#include "base/os/timestamp.h"
#include "collective/kind_info.h"
#include "proto/proto.h"

#define CLIENT_OPERATION_PUSH_PULL 0u /* of a tensor; the other indices are enum weft_coll_kind */

struct client_operation_times {
    struct weft_timestamp timestamp;
    struct weft_histogram kinds[WEFT_COLL_KIND_COUNT];
    /* of the report under way */
    Weft__Control__OperationTimes entries[WEFT_COLL_KIND_COUNT], *listed[WEFT_COLL_KIND_COUNT];
    struct weft_histogram reported[WEFT_COLL_KIND_COUNT];
};

/* The owner of the loop. kind: below WEFT_COLL_KIND_COUNT. */
static inline void client_operation_times_add(struct client_operation_times *times, struct weft_env *env,
                                              uint32_t kind, uint64_t started_ns)
{
    weft_histogram_add(&times->kinds[kind],
                       weft_elapsed_ns(started_ns, weft_timestamp_ns(&times->timestamp, env)));
}

/* Enters the kinds that have operations. The entries stay valid until the next call. */
void client_operation_times_report(struct client_operation_times *times, Weft__Control__Report *report);

#endif
