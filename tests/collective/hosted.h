/* hosted.h - ranks over the shared memory transport, in this process: each with an endpoint and a loop of its own, stepped
 * in turn by one thread, or each by its own. */
#ifndef WEFT_TESTS_HOSTED_H
#define WEFT_TESTS_HOSTED_H

#include "collective/collective.h"

#define HOSTED_MAX 33

/* Ranks of one process reach each other's memory at another address than its owner. The thread sanitizer goes by addresses: it sees what two
 * peers store in a third one's buffer, and not what orders it. Under it threads keep their buffers in ordinary memory, into
 * which the owner alone stores. */
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define HOSTED_PLAIN_ONLY 1
#endif
#endif
#ifndef HOSTED_PLAIN_ONLY
#define HOSTED_PLAIN_ONLY 0
#endif

struct hosted {
    uint32_t ranks;
    struct weft_loop *loops[HOSTED_MAX];
    struct weft_transport *transports[HOSTED_MAX];
    struct weft_group *groups[HOSTED_MAX];
    struct weft_group *shares[HOSTED_MAX]; /* borrowed: groups made from now on share what these keep; NULL: none */
    struct weft_env *env; /* borrowed: of groups made from now on; NULL: the system's */
    bool meets_later; /* groups made from now on */
    struct weft_recorder *recorders[HOSTED_MAX]; /* borrowed, for groups made from now on; NULL: none */
};

/* Open endpoints, connect all, one group of all. tune: of the transport ("maps=off"), by rank 0 only if `first_only`. */
void hosted_open(struct hosted *hosted, uint32_t ranks, const char *tune, bool first_only, uint64_t deadline_ns);
void hosted_group(struct hosted *hosted, uint32_t group_id, uint64_t deadline_ns);
/* Step all loops but that of rank `except` until *done, at most some seconds; false: too late. */
bool hosted_run(struct hosted *hosted, const bool *done, uint32_t except);
void hosted_close(struct hosted *hosted);

#endif
