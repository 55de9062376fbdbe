/* topology.h - which ranks share a host, and the cost of the links between hosts. */
#ifndef WEFT_CLIENT_SESSION_TOPOLOGY_H
#define WEFT_CLIENT_SESSION_TOPOLOGY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/base.h"
#include "collective/collective.h"
#include "proto/proto.h"

struct weft_session;

/* Ranks by host, of all workers or of the ranks of one group. */
struct client_hosts {
    _Atomic uint32_t user_count;
    struct client_hosts *previous; /* of earlier epochs: the group of an epoch may point there until the
                                    * next group exists */
    uint64_t *keys;                /* (ranks,) owned; hash of the host's name, by rank. NULL: of some of
                                    * the ranks */
    struct weft_plan_hosts plan;   /* points into memory[] */
    uint32_t memory[];
};

/* zeroed, one user; NULL: no memory */
struct client_hosts *client_hosts_alloc(struct weft_session *session, uint32_t ranks);
/* Sets session->hosts from the roster and the newcomers. On an error session->hosts is unchanged. */
enum weft_status client_hosts_create(struct weft_session *session, const Weft__Control__Roster *roster,
                                     struct weft_error *error);
/* Sets ring order and speeds of session->hosts from Go. Once for each membership, before its first
 * operation. */
enum weft_status client_hosts_apply_links(struct weft_session *session, struct weft_error *error);
/* The same for a subset: `hosts` has its arrays in `memory`. members: (ranks,) ranks of the session.
 * False: no memory. */
bool client_hosts_apply_links_subset(struct weft_session *session, const uint32_t *members, uint32_t ranks,
                                     uint32_t *memory, struct weft_plan_hosts *hosts);
void client_hosts_free(struct weft_session *session); /* of all epochs; the groups are freed */

/* Rank 0: the cost of the worst link among the workers, from the file collective.links. Blocks for a file.
 * *known_out false: no table is configured. The caller frees cost_out->ring.data and cost_out->runs.data. */
enum weft_status client_link_cost_read(struct weft_session *session, const Weft__Control__Roster *roster,
                                       Weft__Control__LinkCost *cost_out, bool *known_out,
                                       struct weft_error *error);
enum weft_status client_link_cost_set(struct weft_session *session, const Weft__Control__LinkCost *cost);

#endif
