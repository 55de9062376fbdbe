/* replay_calls.c - see replay_calls.h. The record is untrusted, and every number is looked at before it is used. */
#include "tools/replay_calls.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const replay_kind_names[REPLAY_KINDS] = {
    "all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "gather", "scatter", "all_to_all", "barrier", "send", "recv",
};

static bool holds_pieces(enum replay_kind kind)
{
    return kind == REPLAY_REDUCE_SCATTER || kind == REPLAY_ALL_GATHER || kind == REPLAY_GATHER || kind == REPLAY_SCATTER ||
           kind == REPLAY_ALL_TO_ALL;
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

/* The field that cannot be, or NULL. */
static const char *take_call(const struct flight_operation *operation, enum replay_kind kind, struct replay_call *call)
{
    const struct flight_call *said = &operation->call;
    *call = (struct replay_call){.kind = kind, .dtype = weft_dtype_parse(said->dtype), .op = op_named(said->op), .root = said->root,
                                 .sequence = operation->sequence, .count = said->count, .posted_ns = operation->posted_ns,
                                 .ended_ns = operation->ended_ns};
    size_t element = weft_dtype_bytes(call->dtype);
    bool pair = kind == REPLAY_SEND || kind == REPLAY_RECV;
    if (call->ended_ns < call->posted_ns) return "ended_ns";
    if (call->root >= operation->ranks || (pair && call->root == operation->rank)) return "root";
    if (kind == REPLAY_BARRIER) return NULL;
    if (element == 0) return "dtype";
    if (reduces(kind) && call->op == 0) return "op";
    uint64_t pieces = holds_pieces(kind) ? operation->ranks : 1;
    if (call->count > REPLAY_BYTES_MAX / element / pieces) return "count";
    call->bytes = call->count * element * pieces;
    return NULL;
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

bool replay_calls_take(const struct flight *flight, struct replay_calls *calls_out, char *why, size_t why_bytes)
{
    struct replay_calls calls = {.ranks = flight->ranks, .rank = flight->rank};
    calls.calls = calloc(flight->operation_count ? flight->operation_count : 1, sizeof *calls.calls);
    if (!calls.calls) return snprintf(why, why_bytes, "no memory for its %" PRIu32 " operations", flight->operation_count), false;
    for (uint32_t i = 0; i < flight->operation_count; i++) {
        const struct flight_operation *operation = &flight->operations[i];
        enum replay_kind kind;
        bool ours = operation->ranks == flight->ranks && operation->rank == flight->rank && operation->ended_ns > 0;
        if (!ours || strcmp(operation->phase, "done") != 0 || !kind_named(operation->call.kind, &kind)) {
            calls.skipped++;
            continue;
        }
        struct replay_call *call = &calls.calls[calls.count++];
        const char *wrong = take_call(operation, kind, call);
        if (wrong) {
            snprintf(why, why_bytes, "the field '%s' of its operation %" PRIu32 " cannot be", wrong, i);
            replay_calls_free(&calls);
            return false;
        }
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
    calls->calls = NULL;
    calls->count = 0;
}
