/* coordinator.h - inside the coordinator: its structs, shared by coordinator*.c. The face is server.h. */
#ifndef WEFT_SERVER_COORDINATOR_COORDINATOR_H
#define WEFT_SERVER_COORDINATOR_COORDINATOR_H

#include "compress/compress.h"
#include "server/server.h"

#define COORDINATOR_LABEL_BYTES 320 /* "rank 3 (host, pid 41)", a host of 255 bytes at most */
#define COORDINATOR_EPOCH 1       /* the first membership */

enum coordinator_state {
    COORDINATOR_JOINING = 1,    /* until every expected member has sent Endpoints */
    COORDINATOR_CONNECTING = 2, /* Roster sent; until everybody is Ready */
    COORDINATOR_RUNNING = 3,    /* Go sent */
    COORDINATOR_ENDED = 4,      /* in order, lost or aborted */
};

enum coordinator_member_state {
    MEMBER_WELCOMED = 1, /* has its index; owes Endpoints */
    MEMBER_ADDRESSED = 2,
    MEMBER_READY = 3,
    MEMBER_LEFT = 4, /* in order */
    MEMBER_LOST = 5,
};

struct coordinator_member {
    uint32_t member; /* position in coordinator->members */
    Weft__Control__Role role;
    uint32_t index; /* rank, or shard number */
    enum coordinator_member_state state;
    char label[COORDINATOR_LABEL_BYTES];
    char host[WEFT_LIMIT_NAME_BYTES + 1];
    bool has_device; /* it has one */
    bool supports_states; /* a shard that knows STATE_PULL and STATE_INIT */
    bool supports_free;  /* a shard that knows TensorFree */
    uint64_t pid, incarnation;
    uint32_t endpoint_first, endpoint_count;
    ProtobufCBinaryData *addresses; /* owned, (endpoint_count,) from Endpoints on */
    uint64_t connection;            /* 0: none any more */
    uint64_t last_received_ns;
    uint32_t declared_count; /* workers: the next ordinal due */
    uint32_t agreed_epoch;   /* workers: it has stopped and may go on as this epoch */
    uint64_t committed;      /* and knows this step to be good */
    uint64_t codec_steps;    /* the most that its codecs have counted */
    uint32_t rank_order;          /* workers: their order; ranks follow it without gaps */
    bool newcomer;           /* workers: waits to be let in at the end of a step */
    uint32_t joined;         /* workers: 0, or it is out of data; larger: later */
    uint32_t liveness_wait_seq;   /* workers: it has asked whether all live, and this roll call will say;
                                   * 0: it has not */
    uint32_t liveness_replied_seq;  /* workers: the last one it has answered */
};

enum coordinator_connection_state {
    CONNECTION_NEW = 1,
    CONNECTION_MEMBER,
    CONNECTION_OBSERVER,
    CONNECTION_CLOSING
};

struct coordinator_connection {
    uint64_t id;
    enum coordinator_connection_state state;
    uint64_t opened_ns, last_received_ns;
    uint8_t nonce[WEFT_NONCE_BYTES];
    struct coordinator_member *member; /* when MEMBER */
};

/* One endpoint of a shard, as placement sees it. */
struct coordinator_endpoint {
    uint32_t id;
    uint32_t shard;
    uint64_t load_bytes;
    uint64_t coded_bytes; /* of tensors whose codecs meet here when they are chosen (codec "auto") */
};

struct coordinator_tensor {
    Weft__Control__Declare declare; /* strings and dims owned; codec in its canonical form */
    struct weft_codec_spec codec;   /* resolved for the shape; of codec "auto": dense */
    uint32_t candidates;            /* codecs to choose from; codec "auto", else 0 */
    uint32_t first_rank;            /* who declared it first */
    uint32_t declared_count;        /* workers that have */
    bool placed, announced;
    uint64_t elems;
    uint32_t chunk_count;
    Weft__Control__Chunk *chunks; /* owned */
    bool *shard_reply_pending;             /* owned, (shards,): DeclaredOk is due */
    uint32_t replies_pending;
    uint32_t coded_endpoint;          /* index + 1 of the endpoint whose coded_bytes count it; 0: none */
    bool *freed_by;               /* owned, (workers,): they have sent TensorFree; NULL: none has */
    uint32_t freed_count;         /* of those; all of them: the tensor is freed */
};

struct weft_coordinator {
    struct weft_env *env;
    struct weft_coordinator_options options;
    char *job, *secret, *host; /* owned copies; options point at them */
    enum coordinator_state state;
    uint64_t report_ns; /* time of the next log line that names the missing members */
    uint64_t created_ns, job_id, transport_nonce, next_incarnation;
    uint32_t next_endpoint;

    struct coordinator_connection **connections; /* owned, rising ids */
    size_t connection_count, connection_capacity;

    struct coordinator_member **members; /* owned, in the order of joining */
    uint32_t member_count, member_capacity, next_rank_order, workers_at_start;
    uint64_t codec_steps; /* of the membership in force */
    bool has_grown;           /* newcomers have come in: who rested meanwhile does not know them, nor they it */
    struct coordinator_member **workers, **shards; /* by index; NULL: not there yet */
    uint32_t worker_count, shard_count, worker_left_count;
    uint32_t epoch;          /* of the membership; above the one in force while the others agree to go on */
    uint32_t epoch_in_force;
    uint64_t shrink_began_ns;
    uint64_t committed;      /* the last step that was found good on all, for ever */
    uint32_t join_count;     /* numbers members' `joined` */
    uint32_t liveness_seq;           /* number of the last roll call */
    bool liveness_is_running;          /* not all have answered it */

    struct coordinator_tensor **tensors; /* owned, by ordinal */
    uint32_t tensor_count, tensor_capacity;
    struct coordinator_endpoint *endpoints; /* owned; from the roster on */
    uint32_t endpoint_count;

    bool cost_known; /* rank 0 has said what links cost, for Go */
    Weft__Control__LinkCost cost; /* its ring: owned; its runs: */
    uint8_t runs[WEFT_RUNS_BYTES];

    enum weft_status end_status;
    struct weft_error end; /* its sentence */
};

/* coordinator.c */
void coordinator_send(struct weft_coordinator *coordinator, const struct coordinator_member *member,
                      const Weft__Control__Control *message);
/* To all members that have a connection and have not left; `except` may be NULL. */
void coordinator_broadcast(struct weft_coordinator *coordinator, const Weft__Control__Control *message,
                           const struct coordinator_member *except);
/* End the job: Abort to everybody (except the one who knows already), `ended` once. */
void coordinator_abort(struct weft_coordinator *coordinator, const struct coordinator_member *except,
                       enum weft_status status, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* A member is gone or has broken the protocol: MemberLost to everybody else, `ended` once. */
void coordinator_member_lost(struct weft_coordinator *coordinator, struct coordinator_member *member,
                             const char *why);

/* Fill in what others learn of a member; it points into the member. */
void coordinator_describe(const struct coordinator_member *member, Weft__Control__Member *entry);
/* The membership in force, and how to reach it, to one who is new in it, or to all (NULL). */
enum weft_status coordinator_send_roster(struct weft_coordinator *coordinator,
                                         const struct coordinator_member *to);

/* coordinator/shrink.c */
/* Can the job go on without this worker, which is lost? Then the others have been asked to agree. */
bool coordinator_shrink_begin(struct weft_coordinator *coordinator, const struct coordinator_member *lost);
void coordinator_shrink(struct weft_coordinator *coordinator, struct coordinator_member *worker,
                        const Weft__Control__Shrink *shrink);
void coordinator_shrink_check(struct weft_coordinator *coordinator); /* one fewer to wait for */
/* The worker is out of data: the others go on without it, until all have said so; then all go on. */
void coordinator_join(struct weft_coordinator *coordinator, struct coordinator_member *worker,
                      const Weft__Control__Join *join);
/* A member of the job that rests since it has joined; NULL: none. */
const struct coordinator_member *coordinator_find_joined(const struct weft_coordinator *coordinator);
/* With shards: those that are left rest, and nobody knows how many steps the shards are beyond theirs. */
bool coordinator_shards_are_ahead(const struct weft_coordinator *coordinator);
#define COORDINATOR_SHARDS_AHEAD_TEXT "the ranks that are left rest, and the shards may be steps beyond them"
/* A newcomer can be reached: the others let it in at the end of a step. Nothing to do when nobody waits. */
void coordinator_grow(struct weft_coordinator *coordinator);
uint32_t coordinator_waiting_count(const struct weft_coordinator *coordinator); /* newcomers */
void coordinator_shrink_tick(struct weft_coordinator *coordinator, uint64_t now_ns);
/* workers that have neither left nor been lost */
uint32_t coordinator_active_count(const struct weft_coordinator *coordinator);
bool coordinator_member_is_active(const struct coordinator_member *member);          /* one of those */

/* liveness_check.c: do all live? */
/* Of this moment; what else it says is the caller's. */
void coordinator_send_heartbeat(struct weft_coordinator *coordinator, const struct coordinator_member *member,
                                Weft__Control__Heartbeat *heartbeat);
void coordinator_heartbeat(struct weft_coordinator *coordinator, struct coordinator_member *member,
                           const Weft__Control__Heartbeat *heartbeat);
void coordinator_liveness_check(struct weft_coordinator *coordinator); /* one fewer to wait for */
/* members have been lost, or have come */
void coordinator_liveness_cancel(struct weft_coordinator *coordinator);

/* wait_reason.c: who has not done what, by name ("rank 3 (hostb, pid 41) has not joined"); empty: nobody */
/* of those the job begins with */
void coordinator_describe_missing(const struct weft_coordinator *coordinator, char *out, size_t out_bytes);
/* of those who are to agree on the next membership */
void coordinator_describe_undecided(const struct weft_coordinator *coordinator, const char *what, char *out,
                                    size_t out_bytes);
/* Answers a Heartbeat that asks for the missing members. member: the sender; NULL: the sender is an
 * observer. */
void coordinator_send_wait_reason(struct weft_coordinator *coordinator, uint64_t connection,
                                  const struct coordinator_member *member);
/* Logs the missing members of a job that has not begun: after 1.5 s, then every 10 s. */
void coordinator_log_wait_reason(struct weft_coordinator *coordinator, uint64_t now_ns);

/* declare.c */
enum weft_status coordinator_placement_init(struct weft_coordinator *coordinator); /* at the roster */
void coordinator_declare(struct weft_coordinator *coordinator, struct coordinator_member *worker,
                         const Weft__Control__Declare *declare);
void coordinator_check_left(struct weft_coordinator *coordinator);
/* tensor_free.c */
void coordinator_tensor_free(struct weft_coordinator *coordinator, struct coordinator_member *worker,
                             uint32_t ordinal);
void coordinator_declared_ok(struct weft_coordinator *coordinator, struct coordinator_member *shard,
                             uint32_t tensor);
void coordinator_weight_hash(struct weft_coordinator *coordinator, struct coordinator_member *worker,
                             const Weft__Control__WeightHash *hash);
void coordinator_tensors_free(struct weft_coordinator *coordinator);

#endif
