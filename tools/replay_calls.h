/* replay_calls.h - what `weft bench replay` makes of a flight record: the calls of one rank, in their order. */
#ifndef WEFT_TOOLS_REPLAY_CALLS_H
#define WEFT_TOOLS_REPLAY_CALLS_H

#include <stdbool.h>
#include <stdint.h>

#include "tools/inspect/inspect.h"
#include "weft/types.h"

enum replay_kind {
    REPLAY_ALL_REDUCE, REPLAY_REDUCE_SCATTER, REPLAY_ALL_GATHER, REPLAY_BROADCAST, REPLAY_REDUCE, REPLAY_GATHER, REPLAY_SCATTER,
    REPLAY_ALL_TO_ALL, REPLAY_BARRIER, REPLAY_SEND, REPLAY_RECV, REPLAY_KINDS,
};
extern const char *const replay_kind_names[REPLAY_KINDS];

#define REPLAY_BYTES_MAX (1ull << 36) /* of all ranks' pieces in one call */
#define REPLAY_WINDOW 64u             /* calls in flight at once */

struct replay_call {
    enum replay_kind kind;
    enum weft_dtype dtype;
    enum weft_op op;
    uint32_t root;        /* of send and recv: the other rank */
    uint64_t sequence, count;
    uint64_t bytes;       /* of the longest buffer of any rank */
    uint64_t posted_ns, ended_ns;
    uint64_t gap_ns;      /* between this call and the last thing before it: a call, or the end of one that had been waited for */
};

struct replay_calls {
    struct replay_call *calls; /* owned; (count,) by time */
    uint32_t count, ranks, rank;
    uint32_t skipped;          /* operations of other groups, that did not end well, or that no caller starts */
    uint64_t bytes_max;
};

/* False: a sentence is in `why`, nothing is left. */
bool replay_calls_take(const struct flight *flight, struct replay_calls *calls_out, char *why, size_t why_bytes);
void replay_calls_free(struct replay_calls *calls);

#endif
