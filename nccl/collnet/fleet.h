/* fleet.h - inside the CollNet table: sums of one communicator through the shards of a fleet.
 *
 *   progress thread: fleet_post -> queue --> thread of the fleet: step, declare, push_pull --> shards
 *                    fleet_call_test <------ weft_test of the call's request
 *
 * The ranks are the workers of the fleet's job (libweft's public calls), so a node sends n bytes and receives
 * n. Opening a step, closing one and declaring a tensor wait for the other ranks, which NCCL's threads must
 * not. A thread of the fleet does that; it sleeps while no call is queued.
 *
 * A call uses the next tensor of its type and count (fleet_sizes.c). Which one depends on the sequence of
 * calls alone, so it is equal on all ranks. A step stays open until a call needs a tensor for the second time
 * or a new one.
 *
 * The thread and the communicator each hold the fleet. It is freed after both have ended, because joining and
 * leaving a job may take longer than NCCL's calls may wait. */
#ifndef WEFT_NCCL_COLLNET_FLEET_H
#define WEFT_NCCL_COLLNET_FLEET_H

#include "nccl/collnet/fleet_sizes.h"
#include "nccl/net/net.h"
#include "weft/weft.h"

enum { FLEET_CALLS = 64 }; /* open at once; not below COLL_REQUESTS */

enum fleet_state { FLEET_JOINS, FLEET_READY, FLEET_FAILED };

struct fleet_call {
    struct weft_list link; /* in free_calls or queue; in none while the transfer runs */
    struct weft_request request;
    const void *in;
    void *out;
    struct fleet_place place;
    bool is_started;         /* the request is valid */
    enum weft_status status; /* of a call that is not started: WEFT_IN_PROGRESS, or why it never starts */
};

struct fleet {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* the queue has grown, or the communicator has ended */
    unsigned holders;       /* thread and communicator */
    bool ends;              /* the communicator has ended */
    bool is_listening;      /* a process listens at the coordinator's address */
    enum fleet_state state; /* FLEET_FAILED also after an error of the session */
    enum weft_status status;
    char text[NET_TEXT_BYTES]; /* of FLEET_FAILED */
    char coordinator[NET_TEXT_BYTES];
    uint32_t rank, ranks;
    struct weft_session *session; /* NULL before FLEET_READY */
    struct fleet_sizes sizes;     /* the communicator's */
    struct fleet_call calls[FLEET_CALLS];
    struct weft_list free_calls, queue;
    struct fleet_call *current; /* the thread prepares it; NULL: none, or the communicator has ended */
    uint64_t call_count, bytes;
    /* the thread's */
    struct weft_tensor *tensors[FLEET_SIZES_MAX][FLEET_TENSORS_PER_SIZE];
    bool is_used[FLEET_SIZES_MAX][FLEET_TENSORS_PER_SIZE]; /* in the open step */
    bool has_step;
};

/* Joins the job at `coordinator` ("host:port") on a thread of its own. NULL: no memory or no thread. */
struct fleet *fleet_join(const char *coordinator, uint32_t rank, uint32_t ranks);
/* Waits until it has joined or failed, at most until limit_ns. On an error *error has the sentence. */
enum weft_status fleet_wait(struct fleet *fleet, uint64_t limit_ns, struct weft_error *error);
/* Do shards do this reduction? */
static inline bool fleet_sums(enum weft_dtype dtype, enum weft_op op)
{
    return op == WEFT_SUM && (dtype == WEFT_F32 || dtype == WEFT_F16 || dtype == WEFT_BF16);
}
/* Queues a call; never blocks. At most FLEET_CALLS are open. All ranks make the same calls in one order. */
struct fleet_call *fleet_post(struct fleet *fleet, const void *in, void *out, struct fleet_place place);
/* The final status, or WEFT_IN_PROGRESS. */
enum weft_status fleet_call_test(struct fleet *fleet, struct fleet_call *call);
/* Returns a call that has completed. */
void fleet_call_release(struct fleet *fleet, struct fleet_call *call);
/* Sentence of the error that ended the fleet. */
void fleet_error_text(struct fleet *fleet, char *out, size_t bytes);
/* Ends all calls, also those of the other ranks; they then complete with an error. Does not block. */
void fleet_abort(struct fleet *fleet);
/* The communicator has ended; calls may be open. Waits for the thread, at most until limit_ns. NULL does
 * nothing. */
void fleet_leave(struct fleet *fleet, uint64_t limit_ns);

#endif
