/* trail.c - compares operations that can complete on one rank before another rank calls them.
 *
 *     rank 0: broadcast from root 0, sends, completes with WEFT_OK ──► no further operation ──► leaves
 *     rank 1: broadcast from root 1, sends, completes with WEFT_OK ──► no further operation ──► leaves
 *
 * Each rank keeps a digest of its operations with a root and a description of the last one. A LEAVE
 * message carries both, and the number of sends and recvs between its sender and its receiver. The rank
 * that leaves later compares them with its own. Operations without a root need no digest: they complete on
 * no rank before all ranks have called them. */
#include "collective/host.h"

#include <stdio.h>
#include <string.h>

void trail_add(struct weft_group *group, const struct coll_header *called)
{
    struct trail *trail = &group->trail;
    if (called->sequence < trail->next) return; /* counted on the fast path, which then fell back */
    uint64_t digest = trail->next > 0 ? trail->last.digest : WEFT_FNV_BASIS;
    digest = weft_fnv(digest, called->sequence);
    digest = weft_fnv(digest, called->kind | (uint64_t)called->dtype << 8 | (uint64_t)called->op << 16 |
                                  (uint64_t)called->root << 32);
    trail->last = (struct trail_end){.digest = weft_fnv(digest, called->count) | 1,
                                     .count = called->count,
                                     .sequence = called->sequence,
                                     .root = called->root,
                                     .kind = called->kind,
                                     .dtype = called->dtype,
                                     .op = called->op};
    trail->next = called->sequence + 1;
}

void trail_pair(struct weft_group *group, enum weft_coll_kind kind, uint32_t rank)
{
    struct note *note = roster_note(group, rank);
    if (kind == WEFT_COLL_SEND) group->sends_last = true;
    if (!note) group->pairs_unknown = true;
    else if (kind == WEFT_COLL_SEND) note->by_message.sent++;
    else note->by_message.received++;
}

void trail_unpair(struct weft_group *group, uint32_t rank)
{
    struct note *note = roster_note(group, rank);
    if (note && note->by_message.received > 0) note->by_message.received--;
}

/* Sends to that rank and recvs from it, by memory and by messages. */
static struct coll_pair_counts pair_counts(const struct weft_group *group, uint32_t rank)
{
    struct coll_pair_counts counts =
        group->host ? host_pair_counts(group->host->pairs, rank) : (struct coll_pair_counts){0, 0};
    const struct note note = roster_noted(group, rank);
    return (struct coll_pair_counts){counts.sent + note.by_message.sent,
                                     counts.received + note.by_message.received};
}

bool trail_sent_more(const struct weft_group *group, uint32_t rank)
{
    const struct note note = roster_noted(group, rank);
    return note.pairs_known && !group->pairs_unknown &&
           (uint32_t)pair_counts(group, rank).received != (uint32_t)note.with_us.sent;
}

void trail_write(const struct weft_group *group, uint32_t rank, struct coll_header *header)
{
    const struct coll_pair_counts counts = pair_counts(group, rank);
    const struct trail_end *last = &group->trail.last;
    header->kind = last->kind;
    header->dtype = last->dtype;
    header->op = last->op;
    header->root = last->root;
    header->chunk = last->sequence;
    header->piece_bytes = last->count;
    header->cuts = last->digest;
    header->message = (uint32_t)counts.sent;
    header->status = (int32_t)(uint32_t)counts.received;
    header->lanes = group->pairs_unknown ? TRAIL_NO_PAIRS : TRAIL_VERSION;
}

void trail_read(struct note *note, const struct coll_header *header)
{
    note->trail_known = header->lanes == TRAIL_VERSION || header->lanes == TRAIL_NO_PAIRS;
    note->pairs_known = header->lanes == TRAIL_VERSION;
    note->with_us = (struct coll_pair_counts){header->message, (uint32_t)header->status};
    note->trail = (struct trail_end){.digest = header->cuts,
                                     .count = header->piece_bytes,
                                     .sequence = header->chunk,
                                     .root = header->root,
                                     .kind = header->kind,
                                     .dtype = header->dtype,
                                     .op = header->op};
}

static void describe(const struct trail_end *end, uint64_t posted, char *out, size_t out_bytes)
{
    const struct coll_header header = {.kind = end->kind,
                                       .dtype = end->dtype,
                                       .op = end->op,
                                       .root = end->root,
                                       .count = end->count,
                                       .plan = WEFT_PLAN_AUTO,
                                       .sequence = end->sequence};
    char call[160];
    if (end->digest == 0) {
        snprintf(out, out_bytes, "%llu operations, none with a root", (unsigned long long)posted);
        return;
    }
    coll_header_describe(&header, call, sizeof call);
    snprintf(out, out_bytes, "%llu operations, with operation %llu a %s", (unsigned long long)posted,
             (unsigned long long)end->sequence, call);
}

static bool agrees(const struct weft_group *group, const struct note *note)
{
    return !note->trail_known ||
           (note->left_after == group->sequence && note->trail.digest == group->trail.last.digest);
}

static enum weft_status differ(const struct weft_group *group, uint32_t rank, const struct note *note,
                               struct weft_error *error)
{
    char theirs[128], mine[128], their_call[220], my_call[220];
    group_describe(group, rank, theirs, sizeof theirs);
    group_describe(group, group->rank, mine, sizeof mine);
    describe(&note->trail, note->left_after, their_call, sizeof their_call);
    describe(&group->trail.last, group->sequence, my_call, sizeof my_call);
    return (enum weft_status)weft_error_set(
        error, WEFT_ERR_MISMATCH,
        "operations differ, as ranks leave: %.60s called %.150s; %.60s called %.150s%s", theirs, their_call,
        mine, my_call,
        strcmp(their_call, my_call) == 0 ? "; an earlier one differs in its root or count" : "");
}

bool weft_group_has_unverified_calls(const struct weft_group *group)
{
    if (group->sends_last || (group->host && host_pairs_untaken(group->host))) return true;
    return group->ranks > 1 && group->sequence > 0 && group->trail.next == group->sequence;
}

/* Finds a send that completed when it was copied and that the peer never received. */
static enum weft_status compare_pairs(const struct weft_group *group, uint32_t rank, const struct note *note,
                                      struct weft_error *error)
{
    const struct coll_pair_counts own = pair_counts(group, rank);
    const uint32_t lost_here = (uint32_t)note->with_us.sent - (uint32_t)own.received,
                   lost_there = (uint32_t)own.sent - (uint32_t)note->with_us.received;
    char theirs[128], mine[128];
    if (!note->pairs_known || group->pairs_unknown || (lost_here == 0 && lost_there == 0)) return WEFT_OK;
    group_describe(group, rank, theirs, sizeof theirs);
    group_describe(group, group->rank, mine, sizeof mine);
    return (enum weft_status)weft_error_set(
        error, WEFT_ERR_MISMATCH,
        "sends and recvs differ, as ranks leave: %.100s called %u sends to %.100s, which called %u recvs "
        "from it",
        lost_there ? mine : theirs,
        (unsigned)(lost_there ? (uint32_t)own.sent : (uint32_t)note->with_us.sent),
        lost_there ? theirs : mine,
        (unsigned)(lost_there ? (uint32_t)note->with_us.received : (uint32_t)own.received));
}

enum weft_status weft_group_compare_left(const struct weft_group *group, struct weft_error *error)
{
    bool all = true;
    if (group->fail_status < 0)
        return (enum weft_status)weft_error_set(error, group->fail_status, "%s", group->fail_text);
    for (uint32_t rank = 0; rank < group->ranks; rank++) {
        const struct note note = roster_noted(group, rank);
        if (rank == group->rank) continue;
        if (note.left && !agrees(group, &note)) return differ(group, rank, &note, error);
        if (note.left) WEFT_TRY(compare_pairs(group, rank, &note, error));
        all &= note.left;
    }
    return all || group->lost ? WEFT_OK : WEFT_IN_PROGRESS;
}
