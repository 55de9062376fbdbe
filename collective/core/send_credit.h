/* send_credit.h - limits the bytes that operations with an urgency have in flight, so that an urgent one that
 * is posted later does not wait behind a long queue in the transport.
 *
 *     send of an operation ──► credit left? ──yes──► transport ──► completion returns the credit
 *                                  │ no                                  │
 *                                  ▼                                     ▼
 *                              the step waits ◄──── most urgent first ── wakes the operations that wait
 *
 * Operations without an urgency are neither limited nor counted. */
#ifndef WEFT_COLLECTIVE_CORE_SEND_CREDIT_H
#define WEFT_COLLECTIVE_CORE_SEND_CREDIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct slot;
struct weft_coll;
struct weft_group;

struct peer_credit {
    uint64_t in_flight; /* bytes */
    uint64_t moved_ns;  /* time of the last post or completion of a send to the peer */
};

struct send_credit {
    bool is_least;              /* no credit but the first send to each peer; for tests */
    uint32_t held_count;        /* operations with a held send */
    uint64_t longest_bytes;     /* of a message */
    uint64_t latency_ns;        /* least time of a short operation, from its post to its end; 0: unknown */
    uint64_t retry_ns;          /* time at which held operations are tried again; WEFT_NEVER: none is held */
    struct peer_credit peers[]; /* (ranks,) */
};

/* Before a post with an urgency. Without memory sends are not limited. */
void send_credit_open(struct weft_group *group);
void send_credit_close(struct weft_group *group);
/* Returns whether a send of `bytes` to the peer must wait. The operation is then marked ready when it may be
 * tried again. */
bool send_credit_holds(struct weft_coll *coll, uint32_t peer, size_t bytes);
/* The slot's send is with the transport. */
void send_credit_take(struct slot *slot, size_t bytes);
/* The slot's send has completed. */
void send_credit_return(struct slot *slot);
/* Marks held operations ready if it is time; returns the time of the next call, WEFT_NEVER if none is
 * held. The group's timer calls it. */
uint64_t send_credit_retry(struct weft_group *group, uint64_t now_ns);
/* The operation has ended. */
void send_credit_op_ended(const struct weft_coll *coll);

#endif
