/* replay_calls.h - the calls of one rank in a flight record, in their order, for `weft bench replay`. */
#ifndef WEFT_TOOLS_BENCH_REPLAY_REPLAY_CALLS_H
#define WEFT_TOOLS_BENCH_REPLAY_REPLAY_CALLS_H

#include <stdbool.h>
#include <stdint.h>

#include "tools/inspect/inspect.h"
#include "weft/types.h"

enum replay_kind {
    REPLAY_ALL_REDUCE,
    REPLAY_REDUCE_SCATTER,
    REPLAY_ALL_GATHER,
    REPLAY_BROADCAST,
    REPLAY_REDUCE,
    REPLAY_GATHER,
    REPLAY_SCATTER,
    REPLAY_ALL_TO_ALL,
    REPLAY_BARRIER,
    REPLAY_SEND,
    REPLAY_RECV,
    REPLAY_KINDS,
};
extern const char *const replay_kind_names[REPLAY_KINDS];

#define REPLAY_BYTES_MAX (1ull << 36) /* limit of the pieces of all ranks in one call */
#define REPLAY_WINDOW 64u             /* calls in flight at once */

#define REPLAY_GROUPS_MAX 64u /* groups of one rank; calls of further groups are left out */

/* A group as the records of its members name it; equal on all of them except for `rank`. */
struct replay_group {
    uint32_t id, epoch, members, ranks;
    uint32_t rank; /* our rank in it */
};

struct replay_call {
    enum replay_kind kind;
    uint32_t group; /* index into replay_calls.groups */
    enum weft_dtype dtype;
    enum weft_op op;
    uint32_t root; /* of send and recv: the other rank */
    uint64_t sequence, count;
    /* of unequal pieces, in the form of weft_call.counts on this rank; NULL: equal pieces */
    const uint64_t *lengths, *lengths_out;
    bool unequal;
    /* of the longest buffer of any rank; of unequal gathers and scatters that of this rank */
    uint64_t bytes;
    uint64_t posted_ns, ended_ns;
    /* between this call and the event before it: a call, or the end of a call that was waited for */
    uint64_t gap_ns;
};

struct replay_calls {
    struct replay_call *calls; /* owned; (count,) by time */
    uint64_t *lengths;         /* owned; the calls point into it */
    /* (group_count,); [0]: all ranks of the job in their order */
    struct replay_group groups[REPLAY_GROUPS_MAX];
    uint32_t group_count;
    uint32_t count, ranks, rank;
    /* operations that failed, that no caller starts, of groups larger than the job, or beyond the limits */
    uint32_t skipped;
    uint64_t bytes_max;
};

/* False: the sentence is in `why`, and nothing is to be freed. */
bool replay_calls_extract(const struct flight *flight, struct replay_calls *calls_out, char *why,
                          size_t why_bytes);
void replay_calls_free(struct replay_calls *calls);

#endif
