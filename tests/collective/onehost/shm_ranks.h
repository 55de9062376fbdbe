/* shm_ranks.h - ranks over the shared memory transport in one process, each with its own endpoint and loop.
 * One thread steps all loops, or each rank has a thread. */
#ifndef WEFT_TESTS_COLLECTIVE_ONEHOST_SHM_RANKS_H
#define WEFT_TESTS_COLLECTIVE_ONEHOST_SHM_RANKS_H

#include "base/os/sanitizer.h"
#include "collective/collective.h"

#define SHM_RANKS_MAX 33

/* In one process, ranks access a peer's memory at another address than its owner. The thread sanitizer
 * compares addresses: it sees the stores of two peers into a third one's buffer, but not what orders them.
 * Under it, threads use unmapped memory, to which only the owner stores. */
#define SHM_RANKS_PLAIN_ONLY WEFT_THREAD_SANITIZER

struct shm_ranks {
    uint32_t ranks;
    struct weft_loop *loops[SHM_RANKS_MAX];
    struct weft_transport *transports[SHM_RANKS_MAX];
    struct weft_group *groups[SHM_RANKS_MAX];
    /* borrowed: groups made from now on share their pools; NULL: none */
    struct weft_group *shares[SHM_RANKS_MAX];
    struct weft_env *env;     /* borrowed, for groups made from now on; NULL: the system's */
    bool opens_onehost_later; /* for groups made from now on */
    struct weft_recorder *recorders[SHM_RANKS_MAX]; /* borrowed, for groups made from now on; NULL: none */
};

/* Opens and connects the endpoints and makes one group. tune: of the transport ("maps=off"); rank_0_only:
 * rank 0 only. */
void shm_ranks_open(struct shm_ranks *shm_ranks, uint32_t ranks, const char *tune, bool rank_0_only,
                    uint64_t deadline_ns);
void shm_ranks_group(struct shm_ranks *shm_ranks, uint32_t group_id, uint64_t deadline_ns);
/* Steps all loops except that of rank `except` until *done. false: timed out after some seconds. */
bool shm_ranks_run(struct shm_ranks *shm_ranks, const bool *done, uint32_t except);
void shm_ranks_close(struct shm_ranks *shm_ranks);

#endif
