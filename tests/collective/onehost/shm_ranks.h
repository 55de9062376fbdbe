/* shm_ranks.h - ranks over the shared memory transport, in this process: each with an endpoint and a loop
 * of its own, stepped in turn by one thread, or each by its own. */
#ifndef WEFT_TESTS_COLLECTIVE_ONEHOST_SHM_RANKS_H
#define WEFT_TESTS_COLLECTIVE_ONEHOST_SHM_RANKS_H

#include "collective/collective.h"

#define SHM_RANKS_MAX 33

/* Ranks of one process reach each other's memory at another address than its owner. The thread sanitizer
 * goes by addresses: it sees what two peers store in a third one's buffer, and not what orders it. Under
 * it threads keep their buffers in ordinary memory, into which the owner alone stores. */
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SHM_RANKS_PLAIN_ONLY 1
#endif
#endif
#ifndef SHM_RANKS_PLAIN_ONLY
#define SHM_RANKS_PLAIN_ONLY 0
#endif

struct shm_ranks {
    uint32_t ranks;
    struct weft_loop *loops[SHM_RANKS_MAX];
    struct weft_transport *transports[SHM_RANKS_MAX];
    struct weft_group *groups[SHM_RANKS_MAX];
    struct weft_group *shares[SHM_RANKS_MAX]; /* borrowed: groups made from now on share what these keep;
                                               * NULL: none */
    struct weft_env *env; /* borrowed: of groups made from now on; NULL: the system's */
    bool opens_onehost_later; /* groups made from now on */
    struct weft_recorder *recorders[SHM_RANKS_MAX]; /* borrowed, for groups made from now on; NULL: none */
};

/* Open endpoints, connect all, one group of all. tune: of the transport ("maps=off"), by rank 0 only if
 * `rank_0_only`. */
void shm_ranks_open(struct shm_ranks *shm_ranks, uint32_t ranks, const char *tune, bool rank_0_only,
                    uint64_t deadline_ns);
void shm_ranks_group(struct shm_ranks *shm_ranks, uint32_t group_id, uint64_t deadline_ns);
/* Step all loops but that of rank `except` until *done, at most some seconds; false: too late. */
bool shm_ranks_run(struct shm_ranks *shm_ranks, const bool *done, uint32_t except);
void shm_ranks_close(struct shm_ranks *shm_ranks);

#endif
