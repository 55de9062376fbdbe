/* world.h - hosts of one simulation, all connected, for tests of groups. */
#ifndef WEFT_TESTS_WORLD_H
#define WEFT_TESTS_WORLD_H

#include "collective/collective.h"

#define WORLD_HOSTS_MAX 128 /* for callers with fixed tables; a world may have more */

struct world {
    struct weft_env *outer;
    struct weft_sim *sim;
    uint32_t hosts;
    uint64_t seed;
    size_t eager_bytes; /* longest payload that travels with its header; 0: the default */
    struct weft_loop **loops; /* (hosts,) each */
    struct weft_transport **transports;
    struct weft_env **envs;
};

/* NULL on failure (only when `outer` runs out of memory). tweak may be NULL. */
struct world *world_create(struct weft_env *outer, uint32_t hosts, uint64_t seed,
                           void (*tweak)(struct weft_sim_options *options));
struct world *world_create_eager(struct weft_env *outer, uint32_t hosts, uint64_t seed,
                                 void (*tweak)(struct weft_sim_options *options), size_t eager_bytes);
/* Groups must have been freed before. */
void world_free(struct world *world);

/* One group over hosts[0..ranks): rank i lives on hosts[i] (NULL: rank i on host i). groups_out (ranks,). */
enum weft_status world_group(struct world *world, const uint32_t *hosts, uint32_t ranks, uint32_t group_id,
                             const struct weft_group_options *options, struct weft_group **groups_out);
/* at most virtual_ns longer */
enum weft_status world_run(struct world *world, const bool *done, uint64_t virtual_ns);
double world_seconds(const struct world *world);

/* One posted operation and its result. */
struct outcome {
    bool ended;
    enum weft_status status;
    char text[512];
    uint32_t *pending; /* counted down when it ends */
    bool *all_done;    /* set when pending reaches 0 */
    uint32_t times;    /* done must run once */
};
void outcome_done(void *context, enum weft_status status, const char *text); /* a weft_coll_done_fn */

#endif
