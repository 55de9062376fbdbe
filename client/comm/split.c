/* split.c - weft_split: partitions the ranks of a group by colour, ordered by key.
 *
 * All ranks exchange (colour, key, next_group_id). Each then computes the same groups and ids from the same
 * table. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/comm/comm.h"
#include "client/comm/comms.h"
#include "client/engine/group.h"
#include "client/session/failure.h"
#include "client/session/session.h"

struct split_entry {
    int64_t colour, key, next_id;
};
#define SPLIT_ENTRY_WORDS 3u
#define GROUP_ID_MAX 0xffffffll

static int by_key(const void *a, const void *b)
{
    const struct split_entry *x = *(const struct split_entry *const *)a,
                             *y = *(const struct split_entry *const *)b;
    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    return x < y ? -1 : x > y; /* by rank in the parent */
}

/* Counts the colours, and those below `own`. */
static void count_colours(const struct split_entry *all, uint32_t ranks, int64_t own, uint32_t *count_out,
                          uint32_t *below_out)
{
    uint32_t count = 0, below = 0;
    for (uint32_t r = 0; r < ranks; r++) {
        bool seen = all[r].colour < 0;
        for (uint32_t before = 0; before < r && !seen; before++) seen = all[before].colour == all[r].colour;
        if (seen) continue;
        count++;
        below += all[r].colour < own;
    }
    *count_out = count;
    *below_out = below;
}

/* Ranks in the job of this rank's group, sorted. NULL: no memory. */
static uint32_t *members_of(struct weft_session *session, const struct weft_comm *parent,
                            const struct split_entry *all, uint32_t ranks, int64_t colour,
                            uint32_t *count_out)
{
    const struct split_entry **part = weft_alloc_array(session->env, ranks, sizeof *part);
    uint32_t *members = weft_alloc_array(session->env, ranks, sizeof *members);
    uint32_t count = 0;
    if (!part || !members) {
        weft_free_bytes(session->env, part);
        weft_free_bytes(session->env, members);
        return NULL;
    }
    for (uint32_t r = 0; r < ranks; r++)
        if (all[r].colour == colour) part[count++] = &all[r];
    qsort(part, count, sizeof *part, by_key);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t rank = (uint32_t)(part[i] - all);
        members[i] = parent ? parent->members[rank] : rank;
    }
    weft_free_bytes(session->env, part);
    *count_out = count;
    return members;
}

/* First id of the groups of this split, equal on all ranks of the parent. */
static enum weft_status first_id(struct weft_session *session, const struct split_entry *all, uint32_t ranks,
                                 uint32_t wanted, uint32_t *id_out)
{
    int64_t first = 0;
    for (uint32_t r = 0; r < ranks; r++)
        if (all[r].next_id > first) first = all[r].next_id;
    if (first <= 0 || first + wanted > GROUP_ID_MAX)
        return client_error(
            session, WEFT_ERR_LIMIT,
            "split: %u more groups would exceed the %lld that a job can make; restart the job", wanted,
            (long long)GROUP_ID_MAX);
    *id_out = (uint32_t)first;
    session->comms->next_group_id = (uint32_t)first + wanted;
    return WEFT_OK;
}

enum weft_status weft_split(struct weft_session *session, struct weft_comm *parent, int colour, int key,
                            struct weft_comm **comm_out)
{
    if (!session) return client_null_argument("split", "session");
    WEFT_TRY(client_comm_check_create(session, "split"));
    if (!comm_out) return client_error(session, WEFT_ERR_INVALID, "split: comm_out is NULL");
    if (parent && parent->session != session)
        return client_error(session, WEFT_ERR_INVALID, "split: the group belongs to another session");
    const struct split_entry mine = {colour < 0 ? -1 : colour, key, session->comms->next_group_id};
    const int64_t *words;
    uint32_t ranks = parent ? parent->ranks : session->ranks, colours, below, first = 0, count = 0;
    WEFT_TRY(client_comm_exchange(session, parent, WEFT_COLL_LABEL_SPLIT, &mine.colour, SPLIT_ENTRY_WORDS,
                                  &words));
    const struct split_entry *all = (const struct split_entry *)words;
    count_colours(all, ranks, mine.colour, &colours, &below);
    WEFT_TRY(first_id(session, all, ranks, colours, &first));
    session->comms->split_count++;

    struct weft_comm *comm = NULL;
    enum weft_status status = WEFT_OK;
    if (colour >= 0) {
        char name[64];
        snprintf(name, sizeof name, "split %u, colour %d", session->comms->split_count, colour);
        uint32_t *members = members_of(session, parent, all, ranks, colour, &count);
        if (!members)
            status =
                client_error(session, WEFT_ERR_NO_MEMORY, "split: no memory for a group of %u ranks", ranks);
        else status = client_comm_create(session, members, count, first + below, name, &comm);
    }
    status = client_comm_check_all(session, parent, WEFT_COLL_LABEL_SPLIT, status);
    if (status < 0) {
        weft_comm_free(comm);
        return status;
    }
    *comm_out = comm;
    return WEFT_OK;
}
