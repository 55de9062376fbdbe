/* call_digest.c - compares operations that can complete on one rank before another rank calls them.
 *
 *     rank 0: broadcast from root 0, sends, completes with WEFT_OK ──► no further operation ──► leaves
 *     rank 1: broadcast from root 1, sends, completes with WEFT_OK ──► no further operation ──► leaves
 *
 * Each rank keeps a digest of its operations with a root and a description of the last one. A LEAVE
 * message carries both, and the number of sends and recvs between its sender and its receiver. The rank
 * that leaves later compares them with its own. Operations without a root need no digest: they complete on
 * no rank before all ranks have called them. After an all_to_all with counts a rank waits until the others
 * leave, too: its peer compares the lengths of their two pieces alone. */

#include "collective/core/control/call_digest.h"

#include "collective/core/control/peer_table.h"
#include "collective/core/group.h"

#include <string.h>

void call_digest_add(struct weft_group *group, const struct coll_header *called)
{
    struct call_digest *call_digest = &group->checks.call_digest;
    if (called->sequence < call_digest->next) return; /* counted by the fast path before it fell back */
    uint64_t digest = call_digest->next > 0 ? call_digest->last.digest : WEFT_FNV_BASIS;
    digest = weft_fnv(digest, called->sequence);
    digest = weft_fnv(digest, called->kind | (uint64_t)called->dtype << 8 | (uint64_t)called->op << 16 |
                                  (uint64_t)called->root << 32);
    call_digest->last = (struct call_digest_state){.digest = weft_fnv(digest, called->count) | 1,
                                                   .count = called->count,
                                                   .sequence = called->sequence,
                                                   .root = called->root,
                                                   .kind = called->kind,
                                                   .dtype = called->dtype,
                                                   .op = called->op};
    call_digest->next = called->sequence + 1;
}

void sendrecv_count_add(struct weft_group *group, enum weft_coll_kind kind, uint32_t rank)
{
    struct peer_state *peer_state = peer_state_get(group, rank);
    if (kind == WEFT_COLL_SEND) group->checks.last_op_is_unverified = true;
    if (!peer_state) group->checks.pair_counts_lost = true;
    else if (kind == WEFT_COLL_SEND) peer_state->message_counts.sent++;
    else peer_state->message_counts.received++;
}

void sendrecv_count_remove(struct weft_group *group, uint32_t rank)
{
    struct peer_state *peer_state = peer_state_get(group, rank);
    if (peer_state && peer_state->message_counts.received > 0) peer_state->message_counts.received--;
}

/* Sends to the rank and recvs from it, on the one-host path and by messages. */
static struct coll_sendrecv_counts counts_with_peer(const struct weft_group *group, uint32_t rank)
{
    const struct coll_sendrecv_counts counts = coll_path.sendrecv_counts(group, rank);
    const struct peer_state peer_state = peer_state_of(group, rank);
    return (struct coll_sendrecv_counts){counts.sent + peer_state.message_counts.sent,
                                         counts.received + peer_state.message_counts.received};
}

bool peer_has_unreceived_sends(const struct weft_group *group, uint32_t rank)
{
    const struct peer_state peer_state = peer_state_of(group, rank);
    return peer_state.pair_counts_known && !group->checks.pair_counts_lost &&
           (uint32_t)counts_with_peer(group, rank).received != (uint32_t)peer_state.pair_counts.sent;
}

void call_digest_write(const struct weft_group *group, uint32_t rank, struct coll_header *header)
{
    const struct coll_sendrecv_counts counts = counts_with_peer(group, rank);
    const struct call_digest_state *last = &group->checks.call_digest.last;
    header->kind = last->kind;
    header->dtype = last->dtype;
    header->op = last->op;
    header->root = last->root;
    header->chunk = last->sequence;
    header->piece_bytes = last->count;
    header->cuts = last->digest;
    header->message = (uint32_t)counts.sent;
    header->status = (int32_t)(uint32_t)counts.received;
    header->lanes = group->checks.pair_counts_lost ? CALL_DIGEST_NO_PAIR_COUNTS : CALL_DIGEST_VERSION;
}

void call_digest_read(struct peer_state *peer_state, const struct coll_header *header)
{
    peer_state->call_digest_known =
        header->lanes == CALL_DIGEST_VERSION || header->lanes == CALL_DIGEST_NO_PAIR_COUNTS;
    peer_state->pair_counts_known = header->lanes == CALL_DIGEST_VERSION;
    peer_state->pair_counts = (struct coll_sendrecv_counts){header->message, (uint32_t)header->status};
    peer_state->call_digest = (struct call_digest_state){.digest = header->cuts,
                                                         .count = header->piece_bytes,
                                                         .sequence = header->chunk,
                                                         .root = header->root,
                                                         .kind = header->kind,
                                                         .dtype = header->dtype,
                                                         .op = header->op};
}

static void describe(const struct call_digest_state *state, uint64_t posted, char *out, size_t out_bytes)
{
    const struct coll_header header = {.kind = state->kind,
                                       .dtype = state->dtype,
                                       .op = state->op,
                                       .root = state->root,
                                       .count = state->count,
                                       .plan = WEFT_PLAN_AUTO,
                                       .sequence = state->sequence};
    char call[160];
    if (state->digest == 0) {
        snprintf(out, out_bytes, "%llu operations, none with a root", (unsigned long long)posted);
        return;
    }
    coll_header_describe(&header, call, sizeof call);
    snprintf(out, out_bytes, "%llu operations, with operation %llu a %s", (unsigned long long)posted,
             (unsigned long long)state->sequence, call);
}

static bool digests_agree(const struct weft_group *group, const struct peer_state *peer_state)
{
    return !peer_state->call_digest_known ||
           (peer_state->left_after_seq == group->ops.sequence &&
            peer_state->call_digest.digest == group->checks.call_digest.last.digest);
}

static enum weft_status report_difference(const struct weft_group *group, uint32_t rank,
                                          const struct peer_state *peer_state, struct weft_error *error)
{
    char theirs[128], mine[128], their_call[220], my_call[220];
    group_describe(group, rank, theirs, sizeof theirs);
    group_describe(group, group->rank, mine, sizeof mine);
    describe(&peer_state->call_digest, peer_state->left_after_seq, their_call, sizeof their_call);
    describe(&group->checks.call_digest.last, group->ops.sequence, my_call, sizeof my_call);
    return (enum weft_status)weft_error_set(
        error, WEFT_ERR_MISMATCH,
        "operations differ, as ranks leave: %.60s called %.150s; %.60s called %.150s%s", theirs, their_call,
        mine, my_call,
        strcmp(their_call, my_call) == 0 ? "; an earlier one differs in its root or count" : "");
}

bool weft_group_has_unverified_calls(const struct weft_group *group)
{
    if (group->checks.last_op_is_unverified || coll_path.has_unreceived_sends(group)) return true;
    return group->ranks > 1 && group->ops.sequence > 0 &&
           group->checks.call_digest.next == group->ops.sequence;
}

/* Finds a send that completed by a copy and that the peer never received. */
static enum weft_status compare_pairs(const struct weft_group *group, uint32_t rank,
                                      const struct peer_state *peer_state, struct weft_error *error)
{
    const struct coll_sendrecv_counts own = counts_with_peer(group, rank);
    const uint32_t lost_here = (uint32_t)peer_state->pair_counts.sent - (uint32_t)own.received,
                   lost_there = (uint32_t)own.sent - (uint32_t)peer_state->pair_counts.received;
    char theirs[128], mine[128];
    if (!peer_state->pair_counts_known || group->checks.pair_counts_lost ||
        (lost_here == 0 && lost_there == 0))
        return WEFT_OK;
    group_describe(group, rank, theirs, sizeof theirs);
    group_describe(group, group->rank, mine, sizeof mine);
    return (enum weft_status)weft_error_set(
        error, WEFT_ERR_MISMATCH,
        "sends and recvs differ, as ranks leave: %.100s called %u sends to %.100s, which called %u recvs "
        "from it",
        lost_there ? mine : theirs,
        (unsigned)(lost_there ? (uint32_t)own.sent : (uint32_t)peer_state->pair_counts.sent),
        lost_there ? theirs : mine,
        (unsigned)(lost_there ? (uint32_t)peer_state->pair_counts.received : (uint32_t)own.received));
}

enum weft_status weft_group_compare_leavers(const struct weft_group *group, struct weft_error *error)
{
    bool all = true;
    if (group->failure.fail_status < 0)
        return (enum weft_status)weft_error_set(error, group->failure.fail_status, "%s",
                                                group->failure.fail_text);
    for (uint32_t rank = 0; rank < group->ranks; rank++) {
        const struct peer_state peer_state = peer_state_of(group, rank);
        if (rank == group->rank) continue;
        if (peer_state.has_left && !digests_agree(group, &peer_state))
            return report_difference(group, rank, &peer_state, error);
        if (peer_state.has_left) WEFT_TRY(compare_pairs(group, rank, &peer_state, error));
        all &= peer_state.has_left;
    }
    return all || group->departures.lost ? WEFT_OK : WEFT_IN_PROGRESS;
}
