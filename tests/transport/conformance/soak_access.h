/* soak_access.h - the one-sided part of the soak: windows opened, written, read back and closed at any
 * time, by members that end meanwhile. */
#ifndef WEFT_TESTS_TRANSPORT_SOAK_ACCESS_H
#define WEFT_TESTS_TRANSPORT_SOAK_ACCESS_H

#include "tests/transport/conformance/endpoint_set.h"

#define SOAK_STUCK_NS WEFT_SECONDS(60)
/* rounds before it counts as stuck: on a busy machine a minute may have a dozen rounds only */
#define SOAK_STUCK_ROUNDS 1000

struct soak_accesses {
    struct endpoint_set *endpoint_set;
    uint64_t (*random_below)(uint64_t limit);
    struct weft_list going, quarantine;
    uint64_t next_tag;
    int alive, quarantined;
    uint64_t started, cancelled; /* a window was closed over a put or a get */
    uint64_t rounds;             /* of soak_accesses_progress */
};

void soak_accesses_init(struct soak_accesses *accesses, struct endpoint_set *endpoint_set,
                        uint64_t (*random_below)(uint64_t limit));
/* `user` (which sees the owner as `peer`) accesses memory of `owner`; no effect if the flavour has no
 * windows. */
void soak_access_start(struct soak_accesses *accesses, int owner, int user, struct weft_peer *peer);
void soak_accesses_progress(struct soak_accesses *accesses);
/* The endpoint `id` was freed: fails if one of its operations has not completed once. */
void soak_accesses_check(struct soak_accesses *accesses, uint32_t id);
/* After the last endpoint was freed. */
void soak_accesses_fini(struct soak_accesses *accesses);

#endif
