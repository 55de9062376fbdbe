/* inspect.h - inside `weft inspect`: the flight records of a job's processes and the diagnosis of the job.
 *
 *   flight_file.c   one file, not trusted -> struct flight
 *   diagnose.c      all flights of a job -> per group: operation in progress, culprits, waits
 *   inspect.c       command line, tables, JSON */
#ifndef WEFT_TOOLS_INSPECT_INSPECT_H
#define WEFT_TOOLS_INSPECT_INSPECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define FLIGHT_FILE_BYTES_MAX (256u << 20)
#define FLIGHT_RANKS_MAX (1u << 20)
#define FLIGHT_NO_PEER UINT32_MAX
#define FLIGHT_NO_SEQUENCE UINT64_MAX /* of sends and recvs, which have no order among the other operations */

/* The arguments of a call; equal on all ranks, otherwise the calls mismatch. */
struct flight_call {
    char kind[24], dtype[12], op[16], plan[24];
    uint64_t count;
    uint32_t root;
};

struct flight_operation {
    struct flight_call call;
    uint32_t group, epoch, rank, ranks;
    /* digest of the members; with id and epoch it identifies the group, because groups without a common rank
     * may share an id */
    uint32_t members;
    uint32_t peer; /* FLIGHT_NO_PEER: it waits for no rank */
    uint64_t sequence, steps, posted_ns, started_ns, ended_ns;
    char phase[16], status[32];
    /* owned; (lengths_in + lengths_out,) elements of unequal pieces; NULL: not in the record */
    uint64_t *lengths;
    uint32_t lengths_in, lengths_out; /* each at most `ranks` */
};

struct flight {
    char path[256], job[256], host[256], status[32], text[512];
    uint32_t rank, ranks; /* in the job */
    int64_t pid;
    uint64_t now_ns;                     /* time of the record, on the clock of its operations */
    struct flight_operation *operations; /* owned; (operation_count,), oldest first */
    uint32_t operation_count;
};

/* False: the sentence is in `why`, and nothing is to be freed. Free with flight_free. */
bool flight_read(const char *path, struct flight *flight_out, char *why, size_t why_bytes);
/* The same from a stream into a zeroed flight; the caller limits its length. */
bool flight_parse(FILE *file, struct flight *flight_out, char *why, size_t why_bytes);
void flight_free(struct flight *flight);
/* "all_reduce of 100 f32, sum, plan ring" */
void flight_call_text(const struct flight_call *call, char *out, size_t out_bytes);
bool flight_call_equal(const struct flight_call *a, const struct flight_call *b);

/* ---- diagnosis ---- */
enum diagnosis_state {
    DIAGNOSIS_DONE,       /* completed the operation in question */
    DIAGNOSIS_WAITING,    /* posted it and has not completed it */
    DIAGNOSIS_FAILED,     /* it failed there */
    DIAGNOSIS_NOT_CALLED, /* its last operation is an earlier one */
    DIAGNOSIS_UNKNOWN,    /* later operations have overwritten its record */
};

struct diagnosis_member {
    const struct flight *flight;
    uint32_t rank;         /* in the group */
    uint64_t called_count; /* operations it has called, exclusive end of its sequence numbers */
    enum diagnosis_state state;
    const struct flight_operation *operation; /* the operation in question, or its last one; never NULL */
    bool is_culprit, is_mismatched;           /* is_mismatched: its call differs from that of most ranks */
};

struct diagnosis_group {
    uint32_t group, epoch, digest, ranks; /* digest: of the members, from the records */
    struct diagnosis_member *members;     /* (member_count,) by rank: the ranks that left a record */
    uint32_t member_count;
    bool has_unfinished;     /* some operation has not succeeded on every rank */
    uint64_t sequence;       /* of the operation in question */
    struct flight_call call; /* the call of most ranks */
    bool mismatch;
    /* one line: the culprits and the evidence; "" if has_unfinished is false */
    char diagnosis_text[1024];
};

struct diagnosis {
    struct diagnosis_group *groups;
    uint32_t group_count;
};

#define DIAGNOSIS_GROUPS_MAX 1024u
/* False: no memory, or more than DIAGNOSIS_GROUPS_MAX groups. */
bool diagnose_flights(const struct flight *flights, uint32_t count, struct diagnosis *diagnosis_out);
void diagnosis_free(struct diagnosis *diagnosis);
/* Writes the ranks of the group without a record, "rank 3" or "ranks 0-4, 7"; returns their number. */
uint32_t diagnosis_list_missing(const struct diagnosis_group *group, char *out, size_t out_bytes);
const char *diagnosis_state_name(enum diagnosis_state state);

#endif
