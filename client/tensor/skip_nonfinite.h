/* skip_nonfinite.h - steps with a mean that is not finite are skipped on all ranks. Caller's thread; see
 * also tensor.h. */
#ifndef WEFT_CLIENT_TENSOR_SKIP_NONFINITE_H
#define WEFT_CLIENT_TENSOR_SKIP_NONFINITE_H

#include <stdatomic.h>
#include <stdint.h>

#include "weft/weft.h"

/* The rank has no usable gradient (weft_step_options.skip). */
#define CLIENT_SKIP_REQUESTED UINT64_MAX
/* The rank's sample weight is 0, and its gradients are finite. */
#define CLIENT_SKIP_WEIGHTLESS (UINT64_MAX - 1)

/* The check of the open step. */
struct client_skip {
    uint32_t tensors;                   /* tensors whose mean is checked; the caller's thread */
    _Atomic bool found;                 /* a mean is not finite; equal on all ranks. Written by the engine
                                         * until the step ends */
    _Atomic uint64_t first;             /* lowest tensor id + 1 whose mean is not finite; 0: none */
    _Atomic uint64_t grad_is_nonfinite; /* lowest tensor id + 1 whose gradient on this rank is not finite; 0:
                                         * none; CLIENT_SKIP_REQUESTED or _WEIGHTLESS in what the
                                         * ranks gather */
    uint16_t count;                     /* skipped steps, modulo WEFT_WIRE_SKIPS; every request to a shard
                                         * carries it */
    uint64_t mine, *all;                /* grad_is_nonfinite of this rank; of all ranks, (all_capacity,)
                                         * owned */
    uint32_t all_capacity;
    struct weft_request request;
};

bool client_skip_has_nonfinite(const struct weft_session *session);
void client_skip_begin(struct weft_session *session);
/* After all requests of a step with a mean that is not finite: gathers which ranks have the gradient.
 * Blocks up to the deadline. */
enum weft_status client_skip_gather(struct weft_session *session);
/* WEFT_ERR_SKIPPED with its sentence. If an update cannot be undone, the session fails. */
enum weft_status client_skip_step(struct weft_session *session);

#endif
