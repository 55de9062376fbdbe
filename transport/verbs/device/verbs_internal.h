/* verbs_internal.h - shared by the files of the device part. */
#ifndef WEFT_TRANSPORT_VERBS_DEVICE_VERBS_INTERNAL_H
#define WEFT_TRANSPORT_VERBS_DEVICE_VERBS_INTERNAL_H

#include "transport/verbs/device/verbs_device.h"

/* Reserved ids; those of the message part are smaller. */
#define VERBS_ID_RECEIVE UINT64_MAX
/* last work request of a broken queue pair: flushed after all others */
#define VERBS_ID_MARKER (UINT64_MAX - 1)

/* verbs_rail.c */
/* false: errno is the reason; EOVERFLOW: limit of the device */
bool verbs_queue_reserve(struct verbs_rail *rail, uint32_t completions);
bool verbs_receives_fill(struct verbs_rail *rail);
struct verbs_queue_pair *verbs_queue_pair_find(const struct verbs_rail *rail, uint32_t number);
void verbs_queue_pair_enter(struct verbs_queue_pair *queue_pair);
void verbs_queue_pair_remove(struct verbs_queue_pair *queue_pair);

/* verbs_queue_pair.c: a signalled work request has completed. */
void verbs_queue_pair_retire(struct verbs_queue_pair *queue_pair);

#endif
