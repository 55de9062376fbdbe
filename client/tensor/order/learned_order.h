/* learned_order.h - of tensors with one priority, the one that the next forward pass needs first is first.
 *
 *     steps 1 to 3 of an epoch    rank 0 records the order of pushes and of waits in weft_tensor_wait
 *     begin of step 4             rank 0's order is broadcast; the step does not wait for it
 *     begin of step 5             all ranks apply it, until the epoch ends
 *
 * Order of need: the tensors that were waited for, in the order of the waits, then the others, the last
 * pushed one first. If more neighbours were pushed in the order of their declaration than against it, the
 * trainer pushes in a loop, which shows no need: these keep the order of declaration. Caller's thread. */
#ifndef WEFT_CLIENT_TENSOR_ORDER_LEARNED_ORDER_H
#define WEFT_CLIENT_TENSOR_ORDER_LEARNED_ORDER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "weft/weft.h"

struct weft_session;
struct weft_tensor;

struct client_learned_order {
    uint32_t epoch;         /* of `steps`; another one starts anew */
    uint32_t steps;         /* steps begun in the epoch, up to the one that applies the order */
    uint32_t pushes;        /* tensors pushed in the open step */
    _Atomic uint64_t waits; /* tensors that weft_tensor_wait was called for, all steps */
    uint32_t *positions;    /* (count,) owned: of the tensors in all-reduce mode as declared */
    uint32_t count;
    bool is_posted;              /* the broadcast was started, and its result is not applied */
    struct weft_request request; /* the broadcast */
};

/* Record of one tensor. */
struct client_tensor_need {
    uint32_t position; /* the lowest is needed first; equal on all ranks; the tensor's id at first */
    uint32_t pushed;   /* place among the pushes of its last step; 0: none, or without a gradient */
    _Atomic uint32_t waited_serial; /* started_serial of the operation that was waited for last */
    _Atomic uint64_t waited;        /* place among all waits; 0: none */
};

/* weft_step_begin, before the step opens. Blocks at most until the last step's broadcast is complete. */
enum weft_status client_learned_order_step_begin(struct weft_session *session);
/* The tensor, in all-reduce mode, is pushed in the open step. */
void client_learned_order_pushed(struct weft_tensor *tensor);
/* weft_tensor_wait is called. Any thread. */
void client_learned_order_waited(struct weft_tensor *tensor);
void client_learned_order_free(struct weft_session *session); /* the engine has ended */

#endif
