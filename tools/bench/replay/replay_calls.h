/* replay_calls.h - what `weft bench replay` makes of a flight record: the calls of one rank, in their
 * order. */
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

#define REPLAY_BYTES_MAX (1ull << 36) /* of all ranks' pieces in one call */
#define REPLAY_WINDOW 64u             /* calls in flight at once */

#define REPLAY_GROUPS_MAX 64u         /* that one rank takes part in; calls of further ones are left out */

/* A group as its members' records name it: the same on all of them but for `rank`. */
struct replay_group {
    uint32_t id, epoch, members, ranks;
    uint32_t rank; /* ours, in it */
};

struct replay_call {
    enum replay_kind kind;
    uint32_t group;       /* of replay_calls.groups */
    enum weft_dtype dtype;
    enum weft_op op;
    uint32_t root;        /* of send and recv: the other rank */
    uint64_t sequence, count;
    const uint64_t *lengths, *lengths_out; /* of unequal pieces, of this rank's record as weft_call.counts
                                            * wants them; NULL: equal ones */
    bool unequal;
    uint64_t bytes;       /* of the longest buffer of any rank; of unequal gathers and scatters this rank's
                           * own */
    uint64_t posted_ns, ended_ns;
    uint64_t gap_ns;      /* between this call and the last thing before it: a call, or the end of one that
                           * had been waited for */
};

struct replay_calls {
    struct replay_call *calls; /* owned; (count,) by time */
    uint64_t *lengths;         /* owned; what the calls point into */
    struct replay_group groups[REPLAY_GROUPS_MAX]; /* (group_count,); 0: all ranks of the job, by their
                                                    * numbers */
    uint32_t group_count;
    uint32_t count, ranks, rank;
    uint32_t skipped;          /* operations that did not end well, that no caller starts, of larger groups
                                * than the job, of too many */
    uint64_t bytes_max;
};

/* False: a sentence is in `why`, nothing is left. */
bool replay_calls_extract(const struct flight *flight, struct replay_calls *calls_out, char *why,
                          size_t why_bytes);
void replay_calls_free(struct replay_calls *calls);

#endif
