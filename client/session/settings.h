/* settings.h - the resolved settings of a session: caller's options over environment over file over
 * default. */
#ifndef WEFT_CLIENT_SESSION_SETTINGS_H
#define WEFT_CLIENT_SESSION_SETTINGS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/base.h"
#include "collective/collective.h"

struct weft_options;

struct client_settings {
    struct weft_config *config; /* owned */
    char *host;                 /* of the coordinator; owned */
    uint16_t port;
    const char *job, *lanes, *devices; /* in `config` */
    char *secret;                      /* owned; NULL: none */
    int rank;                          /* requested rank; -1: any */
    struct weft_launcher launcher;     /* name NULL: none found */
    uint32_t workers;                  /* ranks by the launcher or WEFT_RANKS; 0: unknown */
    const char *workers_source;        /* launcher or variable that gives it; static */
    /* The ports where rank 0's library may listen; count 0: another process coordinates, at `port`. */
    uint16_t ports[WEFT_LAUNCHER_PORTS];
    uint32_t port_count;
    uint32_t wire_newest; /* job.wire_version */
    const char *store;    /* server.store, in `config`; "": none */
    uint64_t deadline_ns;
    uint64_t report_period_ns;         /* 0: no reports */
    enum weft_plan_id plans[WEFT_COLL_KIND_COUNT]; /* of collective.plan and WEFT_PLAN_<OPERATION> */
    bool learns_order;          /* client.learn_order, with agrees_push_order */
    bool agrees_push_order;     /* client.push_order is "agreed" */
    uint32_t client_hash_every; /* steps between two comparisons of the ranks' weights; 0: never */
    uint32_t hash_every;        /* compressed server modes: steps between two weight hashes; 0: never */
};

enum weft_status client_settings_resolve(struct weft_env *env, const struct weft_options *options,
                                        struct client_settings *settings_out, struct weft_error *error);
void client_settings_free(struct weft_env *env, struct client_settings *settings);

#endif
