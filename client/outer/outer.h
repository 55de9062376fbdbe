/* outer.h - low-communication training: local steps, and an outer step on the sum of their updates (DiLoCo).
 *
 *     weights   of this rank; the trainer's inner optimizer changes them at every inner step
 *     anchor    the weights that all ranks share: the result of the last outer step, equal bits on all ranks
 *     delta     anchor - weights; its mean over the ranks is the gradient of the outer optimizer
 *
 * Parts form fragments. A fragment is exchanged once in `every` inner steps, at its own offset; at most one
 * exchange is open. An exchange is one step of the session. The step handles a lost rank, a value
 * that is not finite and a mismatch: it then changes no anchor. */
#ifndef WEFT_CLIENT_OUTER_OUTER_H
#define WEFT_CLIENT_OUTER_OUTER_H

#include "client/session/session.h"
#include "kernels/optimizer.h"

enum { OUTER_FRAGMENTS_MAX = 1024, OUTER_PARTS_MAX = 65536 };
#define OUTER_NO_FRAGMENT UINT32_MAX

struct outer_part {
    struct weft_tensor *tensor;               /* "outer/NAME", optimizer none */
    float *weights;                           /* (elems,), the caller's */
    float *anchor;                            /* (elems,) */
    float *states[WEFT_OPTIMIZER_STATES_MAX]; /* of the outer optimizer, (elems,) each */
    uint64_t elems;
    uint32_t fragment;
    uint64_t offset; /* elements before this part in its fragment */
    struct weft_request request;
    bool is_pushed; /* the status of request is not yet read */
};

struct weft_outer {
    struct weft_session *session;
    struct weft_optimizer optimizer;
    float lr;
    char codec[256];
    uint64_t every, overlap; /* inner steps */
    uint32_t fragments;
    struct outer_part *parts; /* (part_count,) of part_capacity */
    uint32_t part_count, part_capacity;
    uint64_t names_hash; /* of the names and lengths, in order */

    bool has_begun;
    float *delta;      /* of the open fragment; of weft_alloc */
    float *start;      /* the weights when the exchange began; NULL without overlap */
    uint64_t steps;    /* inner steps so far */
    uint64_t began_at; /* inner step at which the open exchange began */
    uint32_t open;     /* fragment of the open exchange, or OUTER_NO_FRAGMENT */
    uint32_t next;     /* the search for a due fragment begins here */
    bool due[OUTER_FRAGMENTS_MAX];
    uint64_t updates[OUTER_FRAGMENTS_MAX]; /* outer steps of each fragment */
};

/* Refuses a call on NULL, in a failed session, or before weft_outer_begin. */
enum weft_status outer_usable(struct weft_outer *outer, const char *call);
/* Ends the open exchange, if any. WEFT_OK, or the status of weft_step_end. */
enum weft_status outer_finish(struct weft_outer *outer);

#endif
