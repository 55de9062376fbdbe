/* roster.c - the other ranks of a group: their peers, once for all groups of the same ranks in the same order; and what a group
 * notes of each of them, from the first note on.
 *
 * A mesh has several groups over the same ranks, a library makes one of all ranks for itself: what is known of the ranks, and what was
 * measured between them (host_way.c), does not depend on the group. Notes are of a group: who has left it, who has answered. Most groups
 * never note anything before they end. */
#include "collective/host.h"

#include <string.h>

static bool same(const struct roster *a, const struct roster *b)
{
    return a->ranks == b->ranks && memcmp(a->peers, b->peers, a->ranks * sizeof a->peers[0]) == 0;
}

/* Takes `fresh`; of an older group, if it has the same. */
static struct roster *shared(struct weft_group *group, struct roster *fresh)
{
    for (struct roster *roster = group->records->rosters; roster; roster = roster->next) {
        if (!same(roster, fresh)) continue;
        weft_free_bytes(group->env, fresh);
        return roster;
    }
    fresh->next = group->records->rosters;
    return group->records->rosters = fresh;
}

enum weft_status roster_take(struct weft_group *group, const uint32_t *endpoint_ids, struct weft_error *error)
{
    struct roster *roster = weft_alloc_zero(group->env, sizeof *roster + group->ranks * sizeof roster->peers[0]);
    if (!roster) return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for a group of %u ranks", group->ranks);
    roster->ranks = group->ranks;
    for (uint32_t rank = 0; rank < group->ranks; rank++) {
        if (rank == group->rank || (roster->peers[rank] = weft_transport_peer(group->transport, endpoint_ids[rank]))) continue;
        weft_free_bytes(group->env, roster);
        return weft_error_set(error, WEFT_ERR_INVALID, "rank %u (endpoint %u) is not connected: connect all ranks before the group is made", rank,
                              endpoint_ids[rank]);
    }
    group->roster = shared(group, roster);
    group->roster->groups++;
    return WEFT_OK;
}

void roster_leave(struct weft_group *group)
{
    struct roster *roster = group->roster;
    weft_free_bytes(group->env, group->notes);
    group->notes = NULL;
    group->roster = NULL;
    if (!roster || --roster->groups > 0) return;
    struct roster **at = &group->records->rosters;
    while (*at != roster) at = &(*at)->next;
    *at = roster->next;
    weft_free_bytes(group->env, roster->ways);
    weft_free_bytes(group->env, roster);
}

struct note *roster_note(struct weft_group *group, uint32_t rank)
{
    if (!group->notes) group->notes = weft_alloc_zero(group->env, group->ranks * sizeof *group->notes);
    return group->notes ? &group->notes[rank] : NULL;
}
