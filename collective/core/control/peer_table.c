/* peer_table.c - the other ranks of a group: their peers, and the state that the group keeps of each.
 *
 * Groups with the same ranks in the same order share one peer table: the peers and the measurements between
 * them (onehost/copy_method.c) do not depend on the group. The peer states (has left, has replied) belong to
 * one group. Most groups end before the first event, so the states are allocated with it. */
#include "collective/core/control/peer_table.h"

#include "collective/core/group.h"
#include "collective/core/op_pool.h"

#include <string.h>

static bool are_equal(const struct peer_table *a, const struct peer_table *b)
{
    return a->ranks == b->ranks && memcmp(a->peers, b->peers, a->ranks * sizeof a->peers[0]) == 0;
}

/* Takes ownership of `candidate`. Returns the table of an older group if it is equal. */
static struct peer_table *find_or_add(struct weft_group *group, struct peer_table *candidate)
{
    for (struct peer_table *peer_table = group->ops.op_pool->peer_tables; peer_table;
         peer_table = peer_table->next) {
        if (!are_equal(peer_table, candidate)) continue;
        weft_free_bytes(group->env, candidate);
        return peer_table;
    }
    candidate->next = group->ops.op_pool->peer_tables;
    return group->ops.op_pool->peer_tables = candidate;
}

enum weft_status peer_table_acquire(struct weft_group *group, const uint32_t *endpoint_ids,
                                    struct weft_error *error)
{
    struct peer_table *peer_table =
        weft_alloc_zero(group->env, sizeof *peer_table + group->ranks * sizeof peer_table->peers[0]);
    if (!peer_table)
        return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for a group of %u ranks", group->ranks);
    peer_table->ranks = group->ranks;
    for (uint32_t rank = 0; rank < group->ranks; rank++) {
        if (rank == group->rank ||
            (peer_table->peers[rank] = weft_transport_peer(group->transport, endpoint_ids[rank])))
            continue;
        weft_free_bytes(group->env, peer_table);
        return weft_error_set(
            error, WEFT_ERR_INVALID,
            "rank %u (endpoint %u) is not connected: connect all ranks before the group is made", rank,
            endpoint_ids[rank]);
    }
    group->peer_table = find_or_add(group, peer_table);
    group->peer_table->groups++;
    return WEFT_OK;
}

void peer_table_release(struct weft_group *group)
{
    struct peer_table *peer_table = group->peer_table;
    weft_free_bytes(group->env, group->peer_states);
    group->peer_states = NULL;
    group->peer_table = NULL;
    if (!peer_table || --peer_table->groups > 0) return;
    struct peer_table **at = &group->ops.op_pool->peer_tables;
    while (*at != peer_table) at = &(*at)->next;
    *at = peer_table->next;
    weft_free_bytes(group->env, peer_table->method_table);
    weft_free_bytes(group->env, peer_table);
}

struct peer_state *peer_state_get(struct weft_group *group, uint32_t rank)
{
    if (!group->peer_states)
        group->peer_states = weft_alloc_zero(group->env, group->ranks * sizeof *group->peer_states);
    return group->peer_states ? &group->peer_states[rank] : NULL;
}
