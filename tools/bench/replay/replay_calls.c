/* replay_calls.c - see replay_calls.h. The record is not trusted: every number is checked before its use. */
#include "tools/bench/replay/replay_calls.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const replay_kind_names[REPLAY_KINDS] = {
    "all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "gather",
    "scatter",    "all_to_all",     "barrier",    "send",      "recv",
};

static bool holds_pieces(enum replay_kind kind)
{
    return kind == REPLAY_REDUCE_SCATTER || kind == REPLAY_ALL_GATHER || kind == REPLAY_GATHER ||
           kind == REPLAY_SCATTER || kind == REPLAY_ALL_TO_ALL;
}

static bool reduces(enum replay_kind kind)
{
    return kind == REPLAY_ALL_REDUCE || kind == REPLAY_REDUCE_SCATTER || kind == REPLAY_REDUCE;
}

static bool kind_named(const char *name, enum replay_kind *out)
{
    for (int kind = 0; kind < REPLAY_KINDS; kind++) {
        *out = (enum replay_kind)kind;
        if (strcmp(name, replay_kind_names[kind]) == 0) return true;
    }
    return false;
}

static enum weft_op op_named(const char *name)
{
    for (int op = 1; op < WEFT_OP_COUNT; op++) {
        if (strcmp(name, weft_op_name((enum weft_op)op)) == 0) return (enum weft_op)op;
    }
    return (enum weft_op)0;
}

static bool sum_of(const uint64_t *lengths, uint32_t count, uint64_t max, uint64_t *sum_out)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (lengths[i] > max - sum) return false;
        sum += lengths[i];
    }
    *sum_out = sum;
    return true;
}

/* Unequal pieces: checks the number of lengths for this kind of call on this rank, and their sum. */
static bool extract_lengths(const struct flight_operation *operation, struct replay_call *call,
                            size_t element, uint64_t *lengths)
{
    bool rooted = call->kind == REPLAY_GATHER || call->kind == REPLAY_SCATTER,
         exchanges = call->kind == REPLAY_ALL_TO_ALL;
    uint32_t in = rooted && call->root != operation->rank ? 1 : operation->ranks,
             out = exchanges ? operation->ranks : 0;
    uint64_t sums[2];
    if (!holds_pieces(call->kind) || operation->lengths_in != in || operation->lengths_out != out)
        return false;
    memcpy(lengths, operation->lengths, ((size_t)in + out) * sizeof *lengths);
    if (!sum_of(lengths, in, REPLAY_BYTES_MAX / element, &sums[0]) ||
        !sum_of(lengths + in, out, REPLAY_BYTES_MAX / element, &sums[1]))
        return false;
    call->unequal = rooted;
    call->lengths = in == 1 && rooted && call->root != operation->rank ? NULL : lengths;
    call->lengths_out = exchanges ? lengths + in : NULL;
    call->count = rooted ? lengths[in == 1 ? 0 : operation->rank] : call->count;
    call->bytes = (sums[0] > sums[1] ? sums[0] : sums[1]) * element;
    return true;
}

/* The name of the first invalid field; NULL: none. `lengths` has space for those of the operation. */
static const char *extract_call(const struct flight_operation *operation, enum replay_kind kind,
                                uint32_t group, struct replay_call *call, uint64_t *lengths)
{
    const struct flight_call *recorded = &operation->call;
    *call = (struct replay_call){.kind = kind,
                                 .group = group,
                                 .dtype = weft_dtype_parse(recorded->dtype),
                                 .op = op_named(recorded->op),
                                 .root = recorded->root,
                                 .sequence = operation->sequence,
                                 .count = recorded->count,
                                 .posted_ns = operation->posted_ns,
                                 .ended_ns = operation->ended_ns};
    size_t element = weft_dtype_bytes(call->dtype);
    bool pair = kind == REPLAY_SEND || kind == REPLAY_RECV;
    if (call->ended_ns < call->posted_ns) return "ended_ns";
    if (call->root >= operation->ranks || (pair && call->root == operation->rank)) return "root";
    if (kind == REPLAY_BARRIER) return NULL;
    if (element == 0) return "dtype";
    if (reduces(kind) && call->op == 0) return "op";
    if (operation->lengths) return extract_lengths(operation, call, element, lengths) ? NULL : "lengths";
    uint64_t pieces = holds_pieces(kind) ? operation->ranks : 1;
    if (call->count > REPLAY_BYTES_MAX / element / pieces) return "count";
    call->bytes = call->count * element * pieces;
    return NULL;
}

/* ---- groups ---- */

/* The group of the job is the one with the smallest id among those of all its ranks in order: ids rise and
 * are never reused. */
static void find_job(const struct flight *flight, struct replay_calls *calls)
{
    calls->groups[0] = (struct replay_group){.id = UINT32_MAX, .ranks = flight->ranks, .rank = flight->rank};
    calls->group_count = 1;
    for (uint32_t i = 0; i < flight->operation_count; i++) {
        const struct flight_operation *o = &flight->operations[i];
        if (o->ranks != flight->ranks || o->rank != flight->rank || o->group >= calls->groups[0].id) continue;
        calls->groups[0] = (struct replay_group){
            .id = o->group, .epoch = o->epoch, .members = o->members, .ranks = o->ranks, .rank = o->rank};
    }
}

/* Finds or adds the group in the table. False: the table is full, or the group is not of this job. */
static bool group_of(struct replay_calls *calls, const struct flight_operation *o, uint32_t *group_out)
{
    for (uint32_t i = 0; i < calls->group_count; i++) {
        const struct replay_group *group = &calls->groups[i];
        if (group->id != o->group || group->epoch != o->epoch || group->members != o->members ||
            group->ranks != o->ranks)
            continue;
        *group_out = i;
        return group->rank == o->rank;
    }
    if (o->ranks > calls->ranks || calls->group_count == REPLAY_GROUPS_MAX) return false;
    *group_out = calls->group_count++;
    calls->groups[*group_out] = (struct replay_group){
        .id = o->group, .epoch = o->epoch, .members = o->members, .ranks = o->ranks, .rank = o->rank};
    return true;
}

static int by_time(const void *left, const void *right)
{
    const struct replay_call *a = left, *b = right;
    if (a->posted_ns != b->posted_ns) return a->posted_ns < b->posted_ns ? -1 : 1;
    return a->sequence < b->sequence ? -1 : a->sequence > b->sequence;
}

static void find_gaps(struct replay_calls *calls)
{
    for (uint32_t i = 1; i < calls->count; i++) {
        struct replay_call *call = &calls->calls[i];
        uint64_t last_ns = calls->calls[i - 1].posted_ns;
        for (uint32_t back = 1; back <= REPLAY_WINDOW && back <= i; back++) {
            uint64_t ended_ns = calls->calls[i - back].ended_ns;
            if (ended_ns <= call->posted_ns && ended_ns > last_ns) last_ns = ended_ns;
        }
        call->gap_ns = call->posted_ns - last_ns;
    }
}

static bool grow(const struct flight *flight, struct replay_calls *calls)
{
    size_t lengths = 1;
    for (uint32_t i = 0; i < flight->operation_count; i++)
        lengths += (size_t)flight->operations[i].lengths_in + flight->operations[i].lengths_out;
    calls->calls = calloc(flight->operation_count ? flight->operation_count : 1, sizeof *calls->calls);
    calls->lengths = calloc(lengths, sizeof *calls->lengths);
    if (calls->calls && calls->lengths) return true;
    replay_calls_free(calls);
    return false;
}

bool replay_calls_extract(const struct flight *flight, struct replay_calls *calls_out, char *why,
                          size_t why_bytes)
{
    struct replay_calls calls = {.ranks = flight->ranks, .rank = flight->rank};
    if (!grow(flight, &calls))
        return snprintf(why, why_bytes, "no memory for its %" PRIu32 " operations", flight->operation_count),
               false;
    uint64_t *lengths = calls.lengths;
    find_job(flight, &calls);
    for (uint32_t i = 0; i < flight->operation_count; i++) {
        const struct flight_operation *operation = &flight->operations[i];
        enum replay_kind kind;
        uint32_t group;
        bool ended = operation->ended_ns > 0 && strcmp(operation->phase, "done") == 0;
        if (!ended || !kind_named(operation->call.kind, &kind) || !group_of(&calls, operation, &group)) {
            calls.skipped++;
            continue;
        }
        struct replay_call *call = &calls.calls[calls.count++];
        const char *wrong = extract_call(operation, kind, group, call, lengths);
        if (wrong) {
            snprintf(why, why_bytes, "the field '%s' of its operation %" PRIu32 " cannot be", wrong, i);
            replay_calls_free(&calls);
            return false;
        }
        lengths += operation->lengths_in + operation->lengths_out;
        if (call->bytes > calls.bytes_max) calls.bytes_max = call->bytes;
    }
    qsort(calls.calls, calls.count, sizeof *calls.calls, by_time);
    find_gaps(&calls);
    *calls_out = calls;
    return true;
}

void replay_calls_free(struct replay_calls *calls)
{
    free(calls->calls);
    free(calls->lengths);
    calls->calls = NULL;
    calls->lengths = NULL;
    calls->count = 0;
}
