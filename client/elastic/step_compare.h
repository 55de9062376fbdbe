/* step_compare.h - the comparisons of weft_step_end. Caller's thread. */
#ifndef WEFT_CLIENT_ELASTIC_STEP_COMPARE_H
#define WEFT_CLIENT_ELASTIC_STEP_COMPARE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/base.h"
#include "weft/weft.h"

struct client_compare {
    struct weft_request request;
    uint64_t *mine;  /* (words,) of this rank, then (ranks, words) of all; owned. The engine's while the
                      * request is open */
    size_t capacity; /* of `mine`, in words */
    uint32_t words;
    bool late;                        /* of the running comparison */
    struct weft_command when_reduced; /* late: the all-reduces have completed */
};

/* Starts the comparison of the tensors pushed in the open step. `late`: at once; else after its all-reduces.
 * A difference fails the session with WEFT_ERR_MISMATCH and the names of rank and tensor. WEFT_ERR_DEADLINE:
 * an all-reduce is late, nothing was started. Call client_compare_pushed_result after it has ended. */
enum weft_status client_compare_pushed(struct weft_session *session, bool late);
bool client_compare_pushed_has_ended(struct weft_session *session);
enum weft_status client_compare_pushed_result(struct weft_session *session);
/* Waits for the condition; its time counts for the tensors whose results arrive meanwhile (step.c). */
enum weft_status client_wait_for_results(struct weft_session *session, bool (*condition)(void *context),
                                         uint64_t until_ns);
/* Compares the weights of a good step, every client.hash_every steps. Blocks for one exchange.
 * WEFT_ERR_DIVERGED fails the session. */
enum weft_status client_compare_weights(struct weft_session *session);

#endif
