/* fastpath.h - small calls that complete on the caller's thread, inside the call (fastpath.c). */
#ifndef WEFT_CLIENT_CALL_FASTPATH_H
#define WEFT_CLIENT_CALL_FASTPATH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/base.h"
#include "collective/collective.h"
#include "weft/weft.h"

struct client_request;
struct client_simple_call;
struct weft_session;

/* The last simple call of a kind that completed inline: an equal call needs no argument checks. */
struct client_prepared_call {
    uint64_t prepared_id; /* weft_coll_prepared_id; 0: none */
    uint64_t count;
    enum weft_dtype dtype;
    enum weft_op op;
    uint32_t root;
};

struct client_fastpath {
    _Atomic(const struct client_request *) fallen_back; /* the last call that fell back to the queue */
    uint32_t calls_since_step;            /* calls since a caller stepped the loop; the owner of the loop */
    _Atomic uint32_t queued_calls_left;   /* next calls that go to the engine at once */
    _Atomic bool waits_at_once;           /* the last call that stayed open was waited for at once; false:
                                           * not known yet */
    _Atomic(struct client_request *) deferred; /* a recv whose start is not posted; written by the owner of
                                                * the loop */
    struct weft_pollable pollable;        /* posts the deferred recv when the loop is stepped */
    uint32_t deferred_open;               /* open requests that were deferred; the owner of the loop */
    struct weft_timestamp timestamp;      /* start time of sends and recvs; the owner of the loop */
    _Atomic uint32_t calls_without_shm;   /* next calls of the group of all workers that skip the fast path */
    struct client_prepared_call prepared[WEFT_COLL_KIND_COUNT]; /* by kind; the caller's thread */
};

/* a larger call moves its data through slices, not with its descriptor */
#define CLIENT_INLINE_ELEMS_MAX (256u << 10)

void client_fastpath_init(struct weft_session *session); /* before the engine runs */
/* Caller's thread: tries to complete the request. true: it is done, or open. false: nothing has happened. */
bool client_call_try_inline(struct client_request *request);
/* Caller's thread: the same for a call equal to the prepared one of its kind, without checks. */
bool client_call_try_prepared(struct weft_session *session, const struct client_simple_call *call,
                              struct weft_request *user_request);
/* Posts the deferred recv. The thread that owns the loop. false: none was deferred. */
bool client_fastpath_post_deferred(struct weft_session *session);
/* caller's thread, before it waits for the request */
void client_fastpath_wait_begins(struct client_request *request);
void client_fastpath_completed(struct client_request *request);   /* the thread that owns the loop */

#endif
