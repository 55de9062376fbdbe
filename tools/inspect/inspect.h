/* inspect.h - inside `weft inspect`: the flight records of a job's processes, and what they say together.
 *
 *   flight_file.c   one file, untrusted -> struct flight
 *   judge.c         all flights of a job -> for each group: the operation it stands at, who is behind, who waits for whom
 *   inspect.c       the command line, the table, the JSON */
#ifndef WEFT_TOOLS_INSPECT_H
#define WEFT_TOOLS_INSPECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define FLIGHT_FILE_BYTES_MAX (256u << 20)
#define FLIGHT_RANKS_MAX (1u << 20)
#define FLIGHT_NO_PEER UINT32_MAX
/* of sends and recvs: they may come anywhere among the other operations */
#define FLIGHT_NO_SEQUENCE UINT64_MAX

/* What a call says: equal on all ranks, or they do not belong together. */
struct flight_call {
    char kind[24], dtype[12], op[16], plan[24];
    uint64_t count;
    uint32_t root;
};

struct flight_operation {
    struct flight_call call;
    uint32_t group, epoch, rank, ranks;
    uint32_t members;            /* with group and epoch it names the group: those without a common rank
                                  * may share an id */
    uint32_t peer;               /* FLIGHT_NO_PEER: it waits for nobody */
    uint64_t sequence, steps, posted_ns, started_ns, ended_ns;
    char phase[16], status[32];
    uint64_t *lengths;           /* owned; (lengths_in + lengths_out,) elements of unequal pieces; NULL:
                                  * not on record */
    uint32_t lengths_in, lengths_out; /* each at most `ranks` */
};

struct flight {
    char path[256], job[256], host[256], status[32], text[512];
    uint32_t rank, ranks;        /* in the job */
    int64_t pid;
    uint64_t now_ns;             /* when it was written, on the clock of its operations */
    struct flight_operation *operations; /* owned; oldest first */
    uint32_t operation_count;
};

/* false: a sentence is in why, nothing is left. Free with flight_free. */
bool flight_read(const char *path, struct flight *flight_out, char *why, size_t why_bytes);
/* The same from a stream, into a zeroed flight; whoever opens it sees to its length. */
bool flight_parse(FILE *file, struct flight *flight_out, char *why, size_t why_bytes);
void flight_free(struct flight *flight);
/* "all_reduce of 100 f32, sum, plan ring" */
void flight_call_text(const struct flight_call *call, char *out, size_t out_bytes);
bool flight_call_equal(const struct flight_call *a, const struct flight_call *b);

/* ---- what they say together ---- */
enum diagnosis_state {
    DIAGNOSIS_DONE,      /* has ended the operation in question well */
    DIAGNOSIS_WAITING,   /* is in it */
    DIAGNOSIS_FAILED,    /* it ended there with an error */
    DIAGNOSIS_NOT_CALLED,/* its last operation is an earlier one */
    DIAGNOSIS_UNKNOWN,   /* its record of it has been overwritten by later ones */
};

struct diagnosis_member {
    const struct flight *flight;
    uint32_t rank;               /* in the group */
    uint64_t called_count;             /* operations it has called */
    enum diagnosis_state state;
    const struct flight_operation *operation; /* the one in question, or its last one; never NULL */
    bool is_culprit, is_mismatched;        /* among the culprits; called differently from most */
};

struct diagnosis_group {
    uint32_t group, epoch, digest, ranks; /* digest: of who is in it, as the records say */
    struct diagnosis_member *members;/* (member_count,) by rank: those that left a record */
    uint32_t member_count;
    bool has_unfinished;                /* some operation has not ended well */
    uint64_t sequence;           /* the operation in question: the oldest that has not, or the first that
                                  * differs */
    struct flight_call call;     /* as most called it */
    bool mismatch;
    char diagnosis_text[1024];          /* one line: who is behind, and why; "" without trouble */
};

struct diagnosis {
    struct diagnosis_group *groups;
    uint32_t group_count;
};

#define DIAGNOSIS_GROUPS_MAX 1024u
/* false: no memory, or more groups than that. */
bool diagnose_flights(const struct flight *flights, uint32_t count, struct diagnosis *judge_out);
void diagnosis_free(struct diagnosis *diagnosis);
/* "rank 3", "ranks 0-4, 7": the ranks of the group of which there is no record; their number. */
uint32_t diagnosis_list_missing(const struct diagnosis_group *group, char *out, size_t out_bytes);
const char *diagnosis_state_name(enum diagnosis_state state);

#endif
