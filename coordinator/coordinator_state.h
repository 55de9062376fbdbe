/* coordinator_state.h - the coordinator's structs and the functions that its sources share. Public header:
 * coordinator.h. */
#ifndef WEFT_COORDINATOR_COORDINATOR_STATE_H
#define WEFT_COORDINATOR_COORDINATOR_STATE_H

#include "compress/compress.h"
#include "coordinator/coordinator.h"
#include "coordinator/health/host_health.h"

#define COORDINATOR_LABEL_BYTES 320 /* "rank 3 (host, pid 41)", with a host name of at most 255 bytes */
#define COORDINATOR_EPOCH 1         /* the epoch of the first membership */

enum coordinator_state {
    COORDINATOR_JOINING = 1,    /* until every expected member has sent Endpoints */
    COORDINATOR_CONNECTING = 2, /* Roster sent; until every member has sent Ready */
    COORDINATOR_RUNNING = 3,    /* Go sent */
    COORDINATOR_ENDED = 4,      /* the job finished, lost a member or was aborted */
};

enum coordinator_member_state {
    MEMBER_WELCOMED = 1, /* has its index; Endpoints have not arrived */
    MEMBER_ADDRESSED = 2,
    MEMBER_READY = 3,
    MEMBER_LEFT = 4, /* sent Leave when that was due */
    MEMBER_LOST = 5,
};

/* What a member has reported about its operations (Heartbeat.progress). */
struct coordinator_progress {
    uint64_t operations, open_ns, usual_ns;
    uint64_t received_ns; /* 0: no report */
    uint32_t waits_for;   /* rank + 1; 0: unknown */
    bool is_stalled;
    bool has_answered; /* since the last ask_progress */
    char call[104];
};

/* A worker's part of the snapshot that is being made (snapshot_parts.c). */
enum coordinator_part_state {
    PART_NONE = 0,
    PART_ARMING, /* until SnapArmed */
    PART_ARMED,  /* until SnapPart */
    PART_READY,
    PART_MOVING, /* SnapWanted is sent */
    PART_STORED,
};
struct coordinator_part {
    enum coordinator_part_state state;
    bool is_storing;  /* SnapData has arrived; the driver stores it */
    bool is_fetching; /* a SnapFetch is open; of the restored snapshot */
    uint32_t rank;
    uint64_t bytes, offset; /* offset: bytes that are stored */
};

/* Of a member in a job with a store (takeover/records.h). */
struct coordinator_member_record {
    uint8_t resume_key[WEFT_RESUME_KEY_BYTES], process[WEFT_PROCESS_IDENTITY_BYTES];
    size_t process_bytes; /* 0: unknown */
    char candidate[WEFT_LIMIT_NAME_BYTES + 1];
    bool is_marked;     /* the store has an earlier state */
    bool is_awaited;    /* it has not continued its session with this coordinator; gets nothing */
    uint32_t announced; /* workers: tensors whose Declared was sent by this coordinator: last one + 1 */
};

/* Of a member when a further shard joins (shard_add.c). */
struct coordinator_member_addition {
    bool is_supported; /* it supports ShardAdded */
    bool has_answered; /* it is connected to the shard that joins */
    bool is_entering;  /* this is the shard, and it has not confirmed all tensors: it gets no slot */
};

/* Load of a shard: bytes of contributions, and the time that the shard worked on them (rebalance_load.c). */
struct coordinator_load {
    double bytes, ns;                            /* of about the last 30 s */
    uint64_t pushed_bytes, work_ns, reported_ns; /* of the newest report */
};

struct coordinator_reign;
struct coordinator_records {
    struct coordinator_reign *reign;                 /* owned by the driver; NULL: no store */
    bool is_marked, job_is_marked, slots_are_marked, snapshots_are_marked; /* is_marked: anything is */
    bool has_begun;                                  /* the job runs, or has run: records are written */
    bool has_ended;                                  /* the job, as the store has it, or will */
    bool is_restored;                                /* this coordinator continues the job of another one */
    bool is_fenced;
    bool shrunk_is_marked;
    uint8_t *shrunk; /* owned, (shrunk_bytes,): record of the membership in force; NULL: none, or no memory */
    size_t shrunk_bytes;
};

/* Properties of the process of a member, from its Hello. */
struct coordinator_abilities {
    struct weft_wire_range wire; /* versions that it speaks */
    uint64_t deadline_ms;        /* of a worker's operations; 0: unknown */
    bool has_device;        /* the process has a GPU */
    bool supports_states;   /* a shard that supports STATE_PULL and STATE_INIT */
    bool reads_chunk_runs;  /* Declared.runs */
    bool supports_groups;   /* a shard that supports message groups */
    bool supports_free;     /* a shard that supports TensorFree */
    bool supports_progress; /* it answers ask_progress */
    bool has_snapshots;     /* a shard with a folder for snapshots; a worker that sends parts */
    bool supports_moves;    /* a shard that supports SlotCopy and SlotQuiet */
    bool supports_rollback; /* a shard that supports Abort.rollback_step */
    char zone[WEFT_LIMIT_NAME_BYTES + 1]; /* failure domain of a shard; "": unknown */
};
/* The newest figures of a member. */
struct coordinator_figures {
    Weft__Control__Report report; /* its newest figures; `open` points at report_open */
    char *report_open;            /* owned; NULL: none */
    uint32_t link_members[WEFT_LIMIT_REPORT_LINKS]; /* by number, that it has sent most bytes to */
    uint64_t link_bytes[WEFT_LIMIT_REPORT_LINKS];
    uint32_t link_count;
    uint64_t reported_ns;         /* when they arrived */
    bool has_report;
    struct weft_histogram step_seen, exposed_seen, failover_seen; /* of the newest report */
    struct weft_histogram *operations_seen; /* (WEFT_OPERATION_KINDS,) owned; NULL: none was reported */
    struct weft_codec_figures codec_seen;
};
/* A worker's place in the agreements on the membership. */
struct coordinator_agreement {
    uint32_t agreed_epoch;         /* last epoch that it agreed to in Shrink */
    uint64_t committed;            /* its last step known to be good on all ranks */
    uint64_t codec_steps;          /* largest step count among its codecs */
    uint32_t rank_order;           /* sort key of ranks; the keys may have gaps */
    uint32_t joined;               /* 0: has data; else number of its Join, in order of arrival */
    uint32_t join_epoch;           /* epoch in force at its last Join */
    uint32_t liveness_wait_seq;    /* number of the liveness check whose result it requested; 0: none */
    uint32_t liveness_replied_seq; /* number of the last liveness check that it replied to */
};
struct coordinator_member {
    uint32_t member; /* index in coordinator->membership.members */
    Weft__Control__Role role;
    uint32_t index; /* rank, or shard number */
    enum coordinator_member_state state;
    char label[COORDINATOR_LABEL_BYTES];
    char host[WEFT_LIMIT_NAME_BYTES + 1];
    struct coordinator_abilities abilities;
    struct coordinator_member_addition addition;
    bool is_draining;       /* a shard that is to leave: it gets no slots */
    bool may_leave;         /* it leads and copies no slot, and Finished has been sent */
    struct coordinator_part part;
    struct coordinator_progress progress;
    uint64_t pid, incarnation;
    uint32_t endpoint_first, endpoint_count;
    struct coordinator_member_record record;
    ProtobufCBinaryData *addresses; /* owned, (endpoint_count,); NULL before Endpoints */
    uint64_t connection;            /* id of its connection; 0: closed */
    uint64_t last_received_ns;
    struct coordinator_figures figures;
    struct coordinator_load load;
    uint32_t declared_count;       /* workers: tensors declared so far = next ordinal */
    bool newcomer;                 /* not a rank yet, admitted at the end of a step; or a further shard that
                                    * has not entered (shard_add.c) */
    struct coordinator_agreement agreement;
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
    char peer[64];                     /* address, for the log */
    struct coordinator_member *member; /* state CONNECTION_MEMBER only; borrowed */
};

/* One endpoint of a shard, with the load that placement has given it. */
struct coordinator_endpoint {
    uint32_t id;
    uint32_t shard;
    uint32_t slot_cursor; /* counts the chunks placed here: they use the endpoint's slots in turn */
    uint64_t load_bytes;
    uint64_t coded_bytes; /* bytes of tensors with codec "auto" whose codec would combine here */
};

struct coordinator_tensor {
    Weft__Control__Declare declare; /* strings and dims are owned; codec in its canonical form */
    struct weft_codec_spec codec;   /* resolved for the shape; dense for codec "auto" */
    uint32_t candidates;            /* number of codecs to choose from; 0 unless codec "auto" */
    uint32_t first_rank;            /* rank of the first worker that declared it */
    uint32_t declared_count;        /* workers that have declared it */
    bool placed, announced;
    bool is_marked;    /* the store has an earlier state */
    bool has_answer;   /* of a shard, in `restored` */
    uint64_t restored; /* 1 + its last closed step in the snapshot that the shards restored; 0: none */
    uint64_t elems;
    uint32_t chunk_count;
    Weft__Control__Chunk *chunks; /* owned */
    bool *shard_reply_pending;    /* owned, (shards,): DeclaredOk has not arrived from this shard */
    uint32_t replies_pending;
    uint32_t coded_endpoint; /* index + 1 of the endpoint whose coded_bytes include it; 0: none */
    bool *freed_by;          /* owned, (workers,): this worker has sent TensorFree; NULL: no worker has */
    uint32_t freed_count;    /* number of true entries; while above 0 the tensor has no name */
    bool is_freed;           /* all workers have sent TensorFree; the entry stays, without chunks */
};

/* A set of chunks with one leader and one set of copies. A term only rises (slot_map.c). */
struct coordinator_slot {
    uint32_t term;
    uint32_t leader; /* index in coordinator->endpoints */
    uint32_t copy;   /* the same, of the copy that is in sync, plus one; 0: none */
    uint32_t chunks; /* chunks that belong to it */
    uint64_t bytes;  /* of all chunks */
};
/* The request that the leader of a slot has, under the slot's term (move.c). */
enum coordinator_move_kind { MOVE_NONE = 0, MOVE_COPY = 1, MOVE_HAND_OVER = 2 };
struct coordinator_move {
    enum coordinator_move_kind kind;
    uint32_t to;    /* MOVE_COPY: index in coordinator->endpoints */
    uint64_t bytes; /* copied so far */
    uint64_t requested_ns, progress_ns;
    uint64_t not_before_ns; /* MOVE_NONE: the last one failed, and no other begins before */
    bool is_former;         /* MOVE_NONE: the former coordinator may have begun one */
    bool leads_next;        /* the copy, when it is there, is to lead (rebalance.c) */
};
struct coordinator_slots {
    struct coordinator_slot *all;   /* (count,) owned */
    struct coordinator_move *moves; /* (count,) owned */
    uint64_t moved_bytes;           /* of all moves that have ended */
    uint64_t diverged;              /* copies that were dropped because their bits differed from the
                                     * leader's */
    uint32_t count;                 /* 0: a job without copies */
    uint32_t version;               /* of the last Map sent */
    bool is_rebalancing;            /* rebalance.c */
    uint32_t *speeds; /* owned, (speed_count,) of the shards by index, when the rebalancing began, in
                       * thousandths; NULL: it is by bytes */
    uint32_t speed_count;
};

/* A further shard that joins the job that runs (shard_add.c). */
struct coordinator_addition {
    struct coordinator_member *shard; /* borrowed; NULL: none joins */
    uint64_t began_ns;
    uint32_t epoch; /* of its Roster; 0: not sent */
    uint32_t count; /* shards that have entered since the job began */
};

/* An operation that takes much longer than usual (stall.c). */
struct coordinator_stall {
    uint64_t asked_ns; /* when all members were asked for their progress; 0: no worker is stalled */
    uint64_t began_ns; /* of the operation */
    char text[480];    /* which rank, link or host; "": not known yet */
};

enum coordinator_snapshot_state {
    SNAPSHOT_IDLE = 0,    /* until due */
    SNAPSHOT_ARMING = 1,  /* Snap sent; until SnapArmed of every shard */
    SNAPSHOT_ARMED = 2,   /* until a worker has ended the step */
    SNAPSHOT_WRITING = 3, /* until the last SnapPieces of every shard */
    SNAPSHOT_COMMITTING = 4,
};

/* Numbers of workers in the snapshot. */
struct coordinator_parts {
    uint32_t arming, pending, moving; /* without SnapArmed; not stored; with a request for bytes */
};

/* Snapshots that have failed since the start of this coordinator, for the status of the job. */
struct coordinator_snapshot_failures {
    uint64_t count, step;                     /* step of the last one; 0: none was named yet */
    char text[COORDINATOR_LABEL_BYTES + 320]; /* why the last one has failed */
};

/* The snapshot that is being made (snapshot.c). */
struct coordinator_snapshot {
    enum coordinator_snapshot_state state;
    uint32_t id, attempts, pending; /* tries to name a step; shards that have not answered */
    uint64_t step, newest;          /* newest: largest step that a worker has pushed */
    uint64_t due_ns, deadline_ns;   /* IDLE: when the next one begins; WRITING: when it is abandoned */
    uint64_t complete;              /* step of the last committed one; 0: none */
    uint64_t complete_ns;           /* when this coordinator committed it; 0: it has not */
    struct coordinator_snapshot_failures failures;
    uint32_t former_id;             /* of the former coordinator's last Snap; 0: none */
    bool is_late, has_passed;       /* ARMING: a shard was late; a worker has ended the step */
    uint64_t *answered;             /* owned, bits by shard: it has answered in this state */
    struct coordinator_parts parts;
};

/* The job begins again from a snapshot (shards/rollback.c). */
struct coordinator_rollback {
    bool is_due;
    uint64_t step;                            /* step of the snapshot; 0: the job does not begin again */
    uint32_t shards;                          /* number of shards with which it begins */
    char text[COORDINATOR_LABEL_BYTES + 300]; /* text on the loss that is the reason */
};

/* Members and connections. */
struct coordinator_membership {
    struct coordinator_connection **connections; /* owned, sorted by id */
    size_t connection_count, connection_capacity;
    struct coordinator_member **members; /* owned, in the order of joining */
    uint32_t member_count, member_capacity, next_rank_order, workers_at_start;
    bool has_grown;       /* a worker was admitted since the start: workers that had joined do not have
                           * its address */
    struct coordinator_member **workers, **shards; /* by index; NULL: has not joined */
    uint32_t worker_count, shard_count, worker_left_count;
    uint64_t next_incarnation;
    uint32_t next_endpoint;
};
/* Agreements of the workers. */
struct coordinator_epochs {
    uint32_t epoch;           /* newest epoch proposed; equal to epoch_in_force unless an agreement is under
                               * way */
    uint32_t epoch_in_force;
    uint64_t shrink_began_ns;
    uint64_t committed;       /* the last step known to be good on all ranks */
    uint64_t codec_steps;     /* largest step count of any codec in the membership in force */
    uint32_t join_count;      /* number of the last Join */
    uint32_t liveness_seq;    /* number of the last liveness check */
    bool liveness_is_running; /* a worker has not replied to it yet */
};
/* Times over all workers, including lost ones. */
struct coordinator_job_times {
    struct weft_histogram step, exposed, failover;
    struct weft_operation_times operations[WEFT_OPERATION_KINDS]; /* the same, by kind */
    uint32_t operation_count;
    struct weft_codec_figures codec;
};
/* Declared tensors, and where their chunks are. */
struct coordinator_tensor_table {
    struct coordinator_tensor **tensors; /* owned, by ordinal */
    uint32_t tensor_count, tensor_capacity;
    uint32_t *names; /* owned, (name_slots,): 1 + ordinal, or 0 (tensor_names.c) */
    uint32_t name_slots;
    struct coordinator_endpoint *endpoints; /* owned; NULL before the roster */
    uint32_t endpoint_count;
};
/* The process, and when it was created or suspended. */
struct coordinator_process {
    char address[280];            /* where it listens, for the log; "": no sockets; written by the driver */
    uint64_t report_ns;           /* when the missing members are logged next */
    uint64_t paused_ns, pause_ns; /* end of the last stop of this process, and its length; 0: none */
    uint64_t created_ns;
};
struct weft_coordinator {
    struct weft_env *env;
    struct weft_coordinator_options options;
    char *job, *secret, *host; /* owned copies; options point at them */
    struct coordinator_process process;
    enum coordinator_state state;
    uint64_t job_id, transport_nonce;
    uint32_t wire_version; /* of the job; 0: before the roster (version/job_version.c) */

    struct weft_log_limit refusals;              /* any process that reaches the port can cause them */
    struct coordinator_membership membership;
    struct coordinator_epochs epochs;
    struct coordinator_job_times times;
    struct coordinator_stall stall;
    struct coordinator_snapshot snapshot;
    struct coordinator_host_health host_health;

    struct coordinator_tensor_table table;
    struct coordinator_slots slots;
    struct coordinator_addition addition;
    struct coordinator_rollback rollback;

    struct {
        Weft__Control__LinkCost cost; /* forwarded in Go; its byte fields are owned */
        bool cost_known;              /* rank 0 has sent its link costs in Ready */
    } link;

    struct coordinator_records records;

    enum weft_status end_status;
    struct weft_error end; /* why the job ended */
};

/* coordinator.c */
void coordinator_send(struct weft_coordinator *coordinator, const struct coordinator_member *member,
                      const Weft__Control__Control *message);
/* Sends of one message to many members begin, so that it is packed once. NULL: they end. */
void coordinator_send_same(struct weft_coordinator *coordinator, const Weft__Control__Control *message);
/* Sends to every member that has a connection, has not left and is not a newcomer. `except` may be NULL. */
void coordinator_broadcast(struct weft_coordinator *coordinator, const Weft__Control__Control *message,
                           const struct coordinator_member *except);
/* Ends the job: sends Abort to every member but `except`, then calls `ended`. No effect on a job that has
 * ended. */
void coordinator_abort(struct weft_coordinator *coordinator, const struct coordinator_member *except,
                       enum weft_status status, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* This member is lost, with the reason in an Abort to it. */
void coordinator_expel(struct weft_coordinator *coordinator, struct coordinator_member *member,
                       enum weft_status status, const char *why);
/* The member is lost or has broken the protocol. Broadcasts MemberLost. If the other workers cannot go on
 * without it (coordinator_shrink_begin), the job ends and `ended` is called. */
void coordinator_member_lost(struct weft_coordinator *coordinator, struct coordinator_member *member,
                             const char *why);
/* body has pointers to `text`. epoch: in which the others go on; 0: the job ends. */
void coordinator_fill_lost(Weft__Control__MemberLost *body, const struct coordinator_member *lost, char *text,
                           uint32_t epoch);
static inline bool coordinator_member_is_worker(const struct coordinator_member *member)
{
    return member->role == WEFT__CONTROL__ROLE__ROLE_WORKER;
}

/* members/admission.c: memory for one more member. */
bool coordinator_members_reserve(struct weft_coordinator *coordinator);
/* takeover/welcome_back.c */
/* A restored job runs. */
void coordinator_continue(struct weft_coordinator *coordinator);
/* A member of a restored job: adds its connection, which has no socket yet. */
enum weft_status coordinator_adopt(struct weft_coordinator *coordinator, uint64_t id,
                                   struct coordinator_member *member);
/* A member continues its session with this coordinator: sends what it may not have received. has_begun: it
 * has received Go. epoch: of the last membership that it has received. */
void coordinator_welcome_back(struct weft_coordinator *coordinator, uint64_t id, bool has_begun,
                              uint32_t epoch);
/* True if a member of a restored job has neither resumed nor been lost. */
bool coordinator_any_is_awaited(const struct weft_coordinator *coordinator);
/* The shard begins in the job that runs: sends Map, Go, and Declared of the tensors that it is to confirm. */
void coordinator_shard_begin(struct weft_coordinator *coordinator, const struct coordinator_member *shard);
/* members/begin.c */
/* Keeps the link cost that rank 0 has sent. */
void coordinator_keep_cost(struct weft_coordinator *coordinator, const Weft__Control__LinkCost *sent);

/* Fills in the roster entry of a member. The entry points into the member. */
void coordinator_describe(const struct coordinator_member *member, Weft__Control__Member *entry);
/* Sends the membership in force with addresses to `to`, or to all members if `to` is NULL. A shard that joins
 * later gets no shards that are lost or have left. */
enum weft_status coordinator_send_roster(struct weft_coordinator *coordinator,
                                         const struct coordinator_member *to);

/* version/job_version.c */
/* Versions that the process of the coordinator speaks. */
struct weft_wire_range coordinator_wire_range(const struct weft_coordinator *coordinator);
/* Versions of a new member. A coordinator of version 1 does not read more than that version. */
struct weft_wire_range coordinator_wire_of(const struct weft_coordinator *coordinator,
                                           const Weft__Control__Hello *hello);
/* Can the job have a member with the versions of Hello, which the coordinator speaks, too? false: `why` is
 * the sentence. */
bool coordinator_wire_admits(const struct weft_coordinator *coordinator, const Weft__Control__Hello *hello,
                             struct weft_error *why);
/* All members have joined: sets the version of the job. */
void coordinator_wire_choose(struct weft_coordinator *coordinator);
/* The job's version for Roster and the store; 0: this coordinator speaks version 1 only, which has no such
 * field. */
uint32_t coordinator_wire_written(const struct weft_coordinator *coordinator);
/* WEFT_ERR_VERSION if the job's version is below `needed`; the sentence names the oldest member. */
enum weft_status coordinator_wire_check(const struct weft_coordinator *coordinator, uint32_t needed,
                                        const char *what, struct weft_error *error);

/* shrink.c */
/* Returns whether the job can go on without the lost worker. If it can, this opens a new epoch that the other
 * workers must agree to. */
bool coordinator_shrink_begin(struct weft_coordinator *coordinator, const struct coordinator_member *lost);
void coordinator_shrink(struct weft_coordinator *coordinator, struct coordinator_member *worker,
                        const Weft__Control__Shrink *shrink);
/* call after the set of workers to wait for has shrunk */
void coordinator_shrink_check(struct weft_coordinator *coordinator);
/* The worker is out of data. The other workers go on without it; when every worker has joined, all go on
 * together. */
void coordinator_join(struct weft_coordinator *coordinator, struct coordinator_member *worker,
                      const Weft__Control__Join *join);
/* An active worker that has joined; NULL: none. */
const struct coordinator_member *coordinator_find_joined(const struct weft_coordinator *coordinator);
/* True if there are shards and every active worker has joined. The shards may then have applied steps that no
 * remaining worker has seen. */
bool coordinator_shards_are_ahead(const struct weft_coordinator *coordinator);
#define COORDINATOR_SHARDS_AHEAD_TEXT "the ranks that are left rest, and the shards may be steps beyond them"
/* Asks the other workers to admit a newcomer at the end of a step. No effect without an addressed newcomer.
 */
void coordinator_grow(struct weft_coordinator *coordinator);
/* Send Joined or Grow of the proposed epoch. to: NULL: all members. */
void coordinator_send_joined(struct weft_coordinator *coordinator, const struct coordinator_member *to,
                             const struct coordinator_member *joined);
void coordinator_send_grow(struct weft_coordinator *coordinator, const struct coordinator_member *to,
                           char *text);
/* newcomers that are not lost */
uint32_t coordinator_waiting_count(const struct weft_coordinator *coordinator);
void coordinator_shrink_tick(struct weft_coordinator *coordinator, uint64_t now_ns);
/* active workers */
uint32_t coordinator_active_count(const struct weft_coordinator *coordinator);
/* a worker with a rank that has neither left nor been lost */
bool coordinator_member_is_active(const struct coordinator_member *member);

/* liveness_check.c: are all members of the job still alive? */
/* Sends the caller's heartbeat with the present time. */
void coordinator_send_heartbeat(struct weft_coordinator *coordinator, const struct coordinator_member *member,
                                Weft__Control__Heartbeat *heartbeat);
void coordinator_heartbeat(struct weft_coordinator *coordinator, struct coordinator_member *member,
                           const Weft__Control__Heartbeat *heartbeat);
/* Repeats the request of a check that is running. */
void coordinator_liveness_repeat(struct weft_coordinator *coordinator,
                                 const struct coordinator_member *member);
/* call after the set of workers to wait for has shrunk */
void coordinator_liveness_check(struct weft_coordinator *coordinator);
/* call when the membership changes */
void coordinator_liveness_cancel(struct weft_coordinator *coordinator);

/* stall.c */
/* A member has reported its progress. */
void coordinator_stall_progress(struct weft_coordinator *coordinator, struct coordinator_member *member,
                                const Weft__Control__Progress *progress);
void coordinator_stall_tick(struct weft_coordinator *coordinator, uint64_t now_ns);
/* How long the operation of a reported stall has been open; 0: no stall. */
uint64_t coordinator_stall_ns(const struct weft_coordinator *coordinator, uint64_t now_ns);

/* coordinator_status.c */
const char *coordinator_state_name(enum coordinator_state state);

/* snapshot.c */
enum weft_status coordinator_snapshot_init(struct weft_coordinator *coordinator);
/* Acts on SnapArmed, SnapPassed and SnapPieces of a shard, and on SnapArmed of a worker. */
void coordinator_snapshot_message(struct weft_coordinator *coordinator, struct coordinator_member *member,
                                  const Weft__Control__Control *message);
void coordinator_snapshot_tick(struct weft_coordinator *coordinator, uint64_t now_ns);
/* Continues from the record of the former coordinator, whose snapshot under way is abandoned. */
void coordinator_snapshot_restore(struct weft_coordinator *coordinator,
                                  const Weft__Control__StoredSnapshots *stored);
/* A member of the former coordinator has resumed: it drops the snapshot that was under way. */
void coordinator_snapshot_repeat(struct weft_coordinator *coordinator,
                                 const struct coordinator_member *member);
/* Call before Finished: all workers have left, and the armed step may have been the last one. */
void coordinator_snapshot_finish(struct weft_coordinator *coordinator);
/* A shard is lost or has joined, and the job continues: a snapshot under way has failed. */
void coordinator_snapshot_shards_changed(struct weft_coordinator *coordinator, const char *why);

/* A worker has ended the step. */
void coordinator_snapshot_passed(struct weft_coordinator *coordinator);
/* The snapshot has failed, and the job continues. */
void coordinator_snapshot_abandon(struct weft_coordinator *coordinator, const char *why);
/* Call when fewer members are waited for: continues if there is none. */
void coordinator_snapshot_check(struct weft_coordinator *coordinator);

/* shards/rollback.c */
/* After the loss of a shard with the only copy of chunks: the job begins again from its last snapshot, now or
 * soon. false: it does not; the reason is appended to why_out if the option is set. */
bool coordinator_rolls_back(struct weft_coordinator *coordinator, const struct coordinator_member *lost,
                            const char *why, char *why_out, size_t why_bytes);
/* Begins the job again if that is due and no manifest or shard is awaited. */
void coordinator_rollback_continue(struct weft_coordinator *coordinator);
/* If shards do not join a job that begins again, begins it without them. */
void coordinator_rollback_tick(struct weft_coordinator *coordinator, uint64_t now_ns);

/* snapshot_parts.c */
/* A new snapshot: every worker that sends a part has to arm it. */
void coordinator_parts_begin(struct weft_coordinator *coordinator);
void coordinator_parts_end(struct weft_coordinator *coordinator);
/* Sends Snap to the workers of the snapshot. */
void coordinator_parts_send(struct weft_coordinator *coordinator, const Weft__Control__Control *snap);
/* SnapArmed of a worker; false: it was not due. */
bool coordinator_parts_answer(struct weft_coordinator *coordinator, struct coordinator_member *worker);
/* Requests bytes of parts that are ready. */
void coordinator_parts_pump(struct weft_coordinator *coordinator);
/* Acts on SnapPart, SnapData and SnapFetch of a worker. */
void coordinator_parts_message(struct weft_coordinator *coordinator, struct coordinator_member *worker,
                               const Weft__Control__Control *message);
/* What a snapshot waits for at its deadline. */
void coordinator_parts_describe(const struct weft_coordinator *coordinator, char *out, size_t out_bytes);
/* committed: the last step whose good end the worker has seen. */
void coordinator_snapshot_worker_left(struct weft_coordinator *coordinator, struct coordinator_member *worker,
                                      uint64_t committed);
/* Ranks have new numbers: a snapshot with workers' parts has failed. */
void coordinator_snapshot_membership_changed(struct weft_coordinator *coordinator);

/* coordinator_report.c */
void coordinator_report(struct weft_coordinator *coordinator, struct coordinator_member *member,
                        const Weft__Control__Report *report);

/* wait_reason.c: which members block progress, by name ("rank 3 (hostb, pid 41) has not joined"). "" if none
 * does. */
/* before the job begins */
void coordinator_describe_missing(const struct weft_coordinator *coordinator, char *out, size_t out_bytes);
/* while the coordinator waits for the end of the job */
void coordinator_describe_active(const struct weft_coordinator *coordinator, char *out, size_t out_bytes);
/* while a membership is being agreed on */
void coordinator_describe_undecided(const struct weft_coordinator *coordinator, const char *what, char *out,
                                    size_t out_bytes);
/* Replies to a Heartbeat with wait_reason = true. member: the sender; NULL: the sender is an observer. */
void coordinator_send_wait_reason(struct weft_coordinator *coordinator, uint64_t connection,
                                  const struct coordinator_member *member);
/* Logs the missing members of a job that has not begun: first after 1.5 s, then every 10 s. */
void coordinator_log_wait_reason(struct weft_coordinator *coordinator, uint64_t now_ns);

/* tensor_names.c */
/* Memory for the name of one more tensor. */
enum weft_status coordinator_names_reserve(struct weft_coordinator *coordinator);
void coordinator_names_add(struct weft_coordinator *coordinator, uint32_t ordinal); /* after reserve */
/* A tensor that one worker has freed has no name: all workers agreed to free it, but their messages arrive
 * one by one. */
bool coordinator_name_is_taken(const struct weft_coordinator *coordinator, const char *name);

/* slot_map.c */
/* After coordinator_placement_init. WEFT_ERR_UNSUPPORTED: a slot has no place for its copy. */
enum weft_status coordinator_slots_init(struct weft_coordinator *coordinator, struct weft_error *error);
void coordinator_slots_free(struct weft_coordinator *coordinator);
/* Fills in the slots of a Map: those of which `changed` is true, all if it is NULL. They point into the
 * returned memory, which the caller frees; NULL: no memory. */
void *coordinator_slots_describe(const struct weft_coordinator *coordinator, const bool *changed,
                                 Weft__Control__Map *map_out);
/* Restores the slots of a record. WEFT_ERR_MALFORMED: they do not fit the endpoints. */
enum weft_status coordinator_slots_restore(struct weft_coordinator *coordinator,
                                           const Weft__Control__Map *map);
/* Sends all slots to a member, or to all if `to` is NULL. No effect in a job without copies. */
void coordinator_slots_send(struct weft_coordinator *coordinator, const struct coordinator_member *to);
/* Sends all slots, and each loss of a shard, to one member. */
void coordinator_slots_repeat(struct weft_coordinator *coordinator, const struct coordinator_member *member);
/* A Map without slots: the shard, which has none, is lost. */
void coordinator_slots_send_lost(struct weft_coordinator *coordinator, const struct coordinator_member *lost,
                                 const char *text);
/* Shards that were lost when the former coordinator ended still have slots: fails them over. */
void coordinator_slots_check_lost(struct weft_coordinator *coordinator);
/* The slot of a chunk that is placed on the endpoint, which leads one. 0 in a job without copies. */
uint32_t coordinator_slot_choose(struct weft_coordinator *coordinator, struct coordinator_endpoint *home);
/* New chunks may be placed on the endpoint: it leads a slot, or the job has no copies. */
bool coordinator_slot_can_choose(const struct weft_coordinator *coordinator,
                                 const struct coordinator_endpoint *home);
/* A chunk of the slot is placed, or freed. */
void coordinator_slot_add_chunk(struct weft_coordinator *coordinator, uint32_t slot, uint64_t bytes);
void coordinator_slot_remove_chunk(struct weft_coordinator *coordinator, uint32_t slot, uint64_t bytes);
/* The shard of an endpoint; `to` may have the copy of a slot that `leader` leads. Indices. */
struct coordinator_member *coordinator_shard_of(const struct weft_coordinator *coordinator,
                                                uint32_t endpoint);
bool coordinator_can_copy(const struct weft_coordinator *coordinator, uint32_t leader, uint32_t to);
/* The same for two shards. */
bool coordinator_can_copy_shard(const struct weft_coordinator *coordinator,
                                const struct coordinator_member *one, const struct coordinator_member *other);
/* The slots of which `changed` is true, (count,), have a new term: all members get the Map. lost: NULL, or a
 * shard that is lost or has left; text: a sentence about it. Aborts the job without memory. */
void coordinator_slots_changed(struct weft_coordinator *coordinator, const bool *changed,
                               const struct coordinator_member *lost, const char *text);
/* Slots with chunks whose loss would end the job. */
uint32_t coordinator_slots_without_copy(const struct weft_coordinator *coordinator);
/* shard_add.c */
/* Whether the shard may join the job that runs. WEFT_OK, or the reason. */
enum weft_status coordinator_add_check(const struct weft_coordinator *coordinator,
                                       const Weft__Control__Hello *hello, struct weft_error *error);
/* It was accepted as a newcomer. */
void coordinator_add_begin(struct weft_coordinator *coordinator, struct coordinator_member *shard);
/* It has sent Endpoints, or Ready. */
void coordinator_add_addressed(struct weft_coordinator *coordinator);
void coordinator_add_ready(struct weft_coordinator *coordinator);
/* ShardKnown of a member. */
void coordinator_add_known(struct weft_coordinator *coordinator, struct coordinator_member *member,
                           const Weft__Control__ShardKnown *known);
/* Call when fewer answers are waited for: continues if all have arrived. */
void coordinator_add_continue(struct weft_coordinator *coordinator);
/* The shard that joins is lost. */
void coordinator_add_lost(struct weft_coordinator *coordinator, const char *why);
void coordinator_add_tick(struct weft_coordinator *coordinator, uint64_t now_ns);

/* move.c */
/* SlotCopied or SlotQuiet of a shard. */
void coordinator_move_message(struct weft_coordinator *coordinator, struct coordinator_member *shard,
                              const Weft__Control__Control *message);
/* Begins the moves that the slots need, repeats requests, ends late moves. */
void coordinator_moves_tick(struct weft_coordinator *coordinator, uint64_t now_ns);
/* A shard requests to leave. The copies become leaders of its slots, and other shards get new copies. The
 * shard gets Finished when it has no slot, or the reason why it cannot leave. */
void coordinator_drain(struct weft_coordinator *coordinator, struct coordinator_member *shard);
/* The shard drains, and leads and copies no slot. */
bool coordinator_drain_is_done(const struct weft_coordinator *coordinator,
                               const struct coordinator_member *shard);
/* An operator requests that the shard leaves. NULL: it begins; or the reason why it cannot. */
const char *coordinator_drain_requested(struct weft_coordinator *coordinator, uint32_t shard);
/* The shard has left: all members get a Map. */
void coordinator_drained(struct weft_coordinator *coordinator, struct coordinator_member *shard);
/* rebalance.c */
/* Starts to move slots until all endpoints have equal bytes; by_load: bytes in proportion to the speed of
 * the shard. Returns NULL, or the reason why no slot can move. */
const char *coordinator_rebalance_begin(struct weft_coordinator *coordinator, bool by_load);
/* NULL: slots can move. */
const char *coordinator_rebalance_refusal(const struct weft_coordinator *coordinator);
/* rebalance_load.c */
#define COORDINATOR_SPEED_FULL 1000u
/* A report of a shard. */
void coordinator_load_report(struct coordinator_member *shard, const Weft__Control__Report *report,
                             uint64_t now_ns);
/* Writes the speeds of shards in thousandths of the fastest one, (count,). Speeds of 750 and more become
 * 1,000. A shard without figures has the speed 1,000. */
void coordinator_load_speeds(const struct coordinator_load *loads, uint32_t count, uint32_t *speeds_out);
/* Computes the speeds for the next moves. Returns false if there is no memory. */
bool coordinator_load_begin(struct weft_coordinator *coordinator, bool by_load);
/* Returns the speed of the shard that has the endpoint (index). */
uint32_t coordinator_load_speed(const struct weft_coordinator *coordinator, uint32_t endpoint);
struct coordinator_plan {
    Weft__Control__RebalanceMove *moves, **pointers; /* (count,) owned */
    size_t count;
};
/* Computes the moves of coordinator_rebalance_begin, and moves no slot. Returns NULL, or the reason why no
 * slot can move. The caller frees the plan in both cases. */
const char *coordinator_rebalance_plan(struct weft_coordinator *coordinator, bool by_load,
                                       struct coordinator_plan *plan_out);
void coordinator_plan_free(struct weft_coordinator *coordinator, struct coordinator_plan *plan);
/* What makes the bytes more even. */
struct coordinator_balance_step {
    enum coordinator_move_kind kind; /* MOVE_NONE: no slot can move now */
    uint32_t slot, to;               /* MOVE_COPY: index in coordinator->endpoints */
    bool leads;                      /* MOVE_COPY: the new copy leads next */
    bool is_blocked;                 /* MOVE_NONE: a step is possible later */
};
struct coordinator_balance_step coordinator_rebalance_step(const struct weft_coordinator *coordinator,
                                                           uint64_t now_ns);
/* Spreads the slots without chunks at once. true: those of which changed[] is true now have a new term. */
bool coordinator_rebalance_empty(struct weft_coordinator *coordinator, bool *changed);
/* The endpoint may get a copy of a slot that `leader` leads (move.c). Indices. */
bool coordinator_move_can_receive(const struct weft_coordinator *coordinator, uint32_t leader, uint32_t to);
/* moves under way */
uint32_t coordinator_moves_count(const struct weft_coordinator *coordinator);
/* The shard is lost. true: copies take its slots over, and all members have been notified. false: the job
 * cannot go on; why_out: "", or the reason. */
bool coordinator_slots_fail_over(struct weft_coordinator *coordinator, const struct coordinator_member *lost,
                                 const char *why, char *why_out, size_t why_bytes);

/* declare.c */
/* Returns whether pushes show the shards the steps of the job: a tensor has consistency bsp, and none has
 * ssp or asp. */
bool coordinator_shards_see_steps(const struct weft_coordinator *coordinator);
/* A tensor that all workers have declared, as the store has it. Ordinals rise. */
enum weft_status coordinator_tensor_restore(struct weft_coordinator *coordinator,
                                            const Weft__Control__StoredTensor *stored);
/* Requests the answers again that a shard may not have sent, and the releases that it may not have got. */
void coordinator_declare_repeat(struct weft_coordinator *coordinator, const struct coordinator_member *shard);
/* Announces tensors whose missing answers were those of lost shards. */
void coordinator_declare_check(struct weft_coordinator *coordinator);
/* Memory for the answers of one more shard. WEFT_ERR_NO_MEMORY: nothing has changed. */
enum weft_status coordinator_declare_reserve_shard(struct weft_coordinator *coordinator);
/* The shard is to confirm all tensors. */
void coordinator_declare_expect_shard(struct weft_coordinator *coordinator,
                                      const struct coordinator_member *shard);
/* The shard has not confirmed all tensors. */
bool coordinator_declare_is_awaited(const struct weft_coordinator *coordinator,
                                    const struct coordinator_member *shard);
/* Endpoints of one more shard. WEFT_ERR_NO_MEMORY: nothing has changed. */
enum weft_status coordinator_placement_add(struct weft_coordinator *coordinator,
                                           const struct coordinator_member *shard);
/* The shard's DeclaredOk will not arrive. */
void coordinator_declare_forget_shard(struct weft_coordinator *coordinator, uint32_t shard);
/* when the roster is sent */
enum weft_status coordinator_placement_init(struct weft_coordinator *coordinator);
void coordinator_declare(struct weft_coordinator *coordinator, struct coordinator_member *worker,
                         const Weft__Control__Declare *declare);
void coordinator_check_left(struct weft_coordinator *coordinator);
/* tensor_free.c */
/* Sends TensorFree of a tensor that all workers have freed. */
void coordinator_tensor_send_free(struct weft_coordinator *coordinator,
                                  const struct coordinator_member *shard,
                                  const struct coordinator_tensor *tensor);
void coordinator_tensor_free(struct weft_coordinator *coordinator, struct coordinator_member *worker,
                             uint32_t ordinal);
/* Elastic jobs: the membership ends. Tensors that some of its workers have not freed stay. */
void coordinator_tensor_frees_cancel(struct weft_coordinator *coordinator);
/* Sends TensorFree of all freed tensors to a worker of a restored job, which may have missed one. */
void coordinator_tensor_frees_repeat(struct weft_coordinator *coordinator,
                                     const struct coordinator_member *worker);
/* Returns the first tensor from `ordinal` on that is not freed, or the number of tensors. */
uint32_t coordinator_next_live_tensor(const struct weft_coordinator *coordinator, uint32_t ordinal);
void coordinator_declared_ok(struct weft_coordinator *coordinator, struct coordinator_member *shard,
                             const Weft__Control__DeclaredOk *ok);
void coordinator_weight_hash(struct weft_coordinator *coordinator, struct coordinator_member *worker,
                             const Weft__Control__WeightHash *hash);
void coordinator_tensors_free(struct weft_coordinator *coordinator);

#endif
