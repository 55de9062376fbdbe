/* verbs_internal.h - what the files of the device half say to each other. */
#ifndef WEFT_TRANSPORT_VERBS_DEVICE_VERBS_INTERNAL_H
#define WEFT_TRANSPORT_VERBS_DEVICE_VERBS_INTERNAL_H

#include "transport/verbs/device/verbs_device.h"

/* Ids of our own; the message half's are below. */
#define VERBS_ID_RECEIVE UINT64_MAX
/* the last work request of a broken queue pair: flushed after all others */
#define VERBS_ID_MARKER (UINT64_MAX - 1)

/* verbs_rail.c */
/* false: errno says why; EOVERFLOW: the device's limit */
bool verbs_queue_reserve(struct verbs_rail *rail, uint32_t completions);
bool verbs_receives_fill(struct verbs_rail *rail);
struct verbs_queue_pair *verbs_queue_pair_find(const struct verbs_rail *rail, uint32_t number);
void verbs_queue_pair_enter(struct verbs_queue_pair *queue_pair);
void verbs_queue_pair_remove(struct verbs_queue_pair *queue_pair);

/* verbs_queue_pair.c: a signalled work request has completed. */
void verbs_queue_pair_retire(struct verbs_queue_pair *queue_pair);

#endif
