/* stream.h - the protocol of two endpoints over queue pairs, as a pure state machine.
 *
 * A driver reports events to the stream (an immediate arrived, works were acknowledged, a queue pair
 * broke, a link message arrived). The stream requests actions (create, join or fence a queue pair, post
 * works, send a link message). So the protocol runs in a simulation over thousands of seeds
 * (tests/transport/verbs/sim_verbs_stream.c), with queue pairs that break at every step and lost
 * acknowledgements.
 *
 * A *lane* is one reliable queue pair on one rail (device). When it breaks, the next *epoch* of the lane
 * is another queue pair. The *link* is the authenticated, ordered control connection of the pair.
 *
 *    sender                                                   receiver
 *    MESSAGE (payload inside) ── WRITE_IMM into the ring ──►  copied out, credit back
 *    ANNOUNCE ─────────────────── WRITE_IMM into the ring ──►  arrived(); the receiver names a buffer
 *             ◄── GRANT (address, keys) ── WRITE_IMM ───────
 *    chunks ═══ WRITE, WRITE, WRITE ... over all lanes ═════►  into the buffer, in any order
 *           ─── WRITE_IMM of 0 bytes, one per lane ────────►  "n chunks of that grant", to be counted
 *
 * Guarantees
 * - Order: when an immediate is received, every earlier write of the same lane is visible. Nothing else is
 *   assumed: no order among writes or lanes, no polled memory.
 * - Records (messages, announcements, grants) carry a sequence number over all lanes and are handled in
 *   that order.
 * - A write may have been executed although its acknowledgement was lost. After a lane breaks, nothing is
 *   replayed until *both* sides have fenced their queue pair of that epoch and have sent each other the
 *   number of immediates received on it, the watermark. Immediates of a lane arrive in order, so works up
 *   to the watermark are done and later ones are replayed on any lane. This is exactly once. A late write
 *   of the old epoch cannot reach a buffer that was freed.
 * - A send completes when the peer has every chunk (acknowledged, or below the watermark). A receive
 *   completes when its last chunk is counted. With a lost peer both complete only when all lanes are
 *   fenced.
 * - Small payloads travel in the message up to a budget of unconsumed bytes. Beyond it they are announced:
 *   memory is bounded and nothing is dropped.
 *
 * Life of a lane (epoch e at both ends; OFFER, READY, BROKEN travel over the link)
 *
 *      IDLE ─make, OFFER─► OFFERED ─(OFFER arrived) join, READY─► JOINED ─(READY arrived)─► UP
 *        ▲                     └───────────── it breaks, or BROKEN arrived ──────────────┘
 *        │                                            ▼
 *        └── epoch e+1, replay ◄─(BROKEN arrived)─ FENCED ◄─fenced, BROKEN(watermark)─ FENCING
 *
 * One thread; nothing blocks. Input of the peer is checked; an impossible value sets `failure`. */
#ifndef WEFT_TRANSPORT_VERBS_STREAM_STREAM_H
#define WEFT_TRANSPORT_VERBS_STREAM_STREAM_H

#include "transport/transport.h"
#include "transport/verbs/stream/stream_wire.h"

enum {
    STREAM_RECORDS_MAX = 128,      /* records in flight per direction */
    STREAM_EAGER_BUDGET_LEAST = 16384, /* budget before the peer's HELLO */
    STREAM_BATCH = 32,             /* works per doorbell */
};

/* Keys of one range: each lane has its own device and key. */
struct stream_keys {
    uint32_t key[STREAM_LANES_MAX];
};

enum stream_work_kind { STREAM_WORK_WRITE = 1, STREAM_WORK_WRITE_IMM, STREAM_WORK_READ };

struct stream_work {
    enum stream_work_kind kind;
    bool signalled;     /* the completion is reported by stream_acked */
    bool is_direct;     /* only the device may read `local` */
    uint32_t imm, bytes;
    uint32_t local_key, remote_key;
    void *local;        /* NULL: no bytes */
    uint64_t remote;
    uint64_t index;     /* number on this lane and epoch, from 0 */
};

struct stream;
struct stream_send;
struct stream_receive;

/* A message or an announcement, valid during the call. */
struct stream_arrival {
    uint64_t tag;
    uint32_t header_bytes;
    const uint8_t *header;
    uint64_t payload_bytes;
    const uint8_t *payload; /* eager payload; NULL: announced, or no payload */
    bool announced;
    uint64_t id;            /* announced: for stream_accept, stream_discard */
};

struct stream_ops {
    /* Creates the queue pair of this epoch and writes its blob for the peer (at most
     * STREAM_BLOB_BYTES_MAX). */
    enum weft_status (*lane_make)(void *context, uint32_t lane, uint32_t epoch, uint8_t *blob_out,
                                  uint32_t *bytes_out);
    /* Connects it with the peer's blob. It then receives, and sends when the stream posts.
     * WEFT_IN_PROGRESS: stream_lane_joined or stream_lane_broke follows. */
    enum weft_status (*lane_join)(void *context, uint32_t lane, uint32_t epoch, const uint8_t *blob,
                                  uint32_t bytes);
    /* Stops it for good. The driver calls stream_lane_fenced, not inside this call, when nothing can be
     * written through it and all its completions were reported. */
    void (*lane_fence)(void *context, uint32_t lane, uint32_t epoch);
    /* Posts in this order. An error breaks the lane. */
    enum weft_status (*post)(void *context, uint32_t lane, const struct stream_work *works, uint32_t count);
    /* Sends over the link, reliable and in order. WEFT_OK, or WEFT_ERR_AGAIN: repeated at the next pump. */
    enum weft_status (*control)(void *context, const void *bytes, uint32_t count);
    void (*arrived)(void *context, const struct stream_arrival *incoming);
    void (*left)(void *context); /* the peer closes: everything it sent has arrived */
    /* The operation is complete; the caller owns its memory again. */
    void (*sent)(void *context, struct stream_send *send, enum weft_status status);
    void (*received)(void *context, struct stream_receive *receive, enum weft_status status);
    void (*ended)(void *context); /* after stream_end: all operations are complete and no lane is left */
};

struct stream_options {
    uint32_t lane_count;     /* the smaller of both sides */
    uint32_t lane_count_made; /* requested count; set by stream_create */
    uint32_t lane_depth;     /* works in flight on one lane, >= 16 */
    uint32_t signal_every;   /* at least one of so many works is signalled; <= lane_depth / 2 */
    uint32_t chunk_bytes;    /* the smaller of both sides */
    uint32_t eager_budget;   /* unconsumed eager bytes of the peer; a multiple of 64 */
    uint32_t ring_bytes;     /* of ring and staging, a multiple of 64, <= 4 MiB */
    uint8_t *ring;           /* the peer writes its records here */
    uint8_t *staging;        /* local records are built here */
    struct stream_keys ring_keys, staging_keys; /* remote key of the ring, local key of the staging */
    uint64_t retry_ns;       /* from a break to the next attempt, doubled each time; default 10 ms */
    /* time without any working lane, or with lanes that break without progress, until the peer is lost;
     * default 10 s */
    uint64_t lost_ns;
};
void stream_options_init(struct stream_options *options);

/* ---- operations: memory of the caller, until reported complete ---- */

enum stream_record_intent {
    STREAM_INTENT_NONE = 0,
    STREAM_INTENT_MESSAGE,
    STREAM_INTENT_ANNOUNCE,
    STREAM_INTENT_GRANT,
    STREAM_INTENT_DISCARD
};

/* A record that waits for space in the ring. */
struct stream_outgoing {
    struct weft_list link;
    enum stream_record_intent intent;
};

/* A transfer in chunks. */
struct stream_transfer {
    struct weft_list link;   /* in stream->moving while chunks remain to be posted */
    bool read;               /* from the peer's memory into ours */
    uint32_t grant;          /* STREAM_NO_GRANT: a put, which the peer does not count */
    uint32_t chunk_count, chunk_next, confirmed, replay_count;
    uint32_t open;           /* lane entries that refer to it */
    bool refused;            /* a put or get of a closed window: given up */
    bool is_direct;          /* the processor does not access `local` */
    uint8_t *local;
    uint64_t bytes, remote;
    struct stream_keys local_keys, remote_keys;
};

struct stream_send {
    struct stream_outgoing outgoing; /* first */
    struct stream_transfer transfer;
    struct weft_list link;           /* in stream->sends */
    bool has_id, eager;
    uint32_t table_at;
    uint64_t id, tag, payload_bytes;
    const void *payload;
    uint32_t header_bytes;
    bool notify;                     /* put: send the header as a message after the bytes */
    uint8_t header[WEFT_TRANSPORT_HEADER_BYTES_MAX];
};

struct stream_receive {
    struct stream_outgoing outgoing; /* first */
    struct weft_list link;           /* in stream->receives */
    uint64_t id, bytes;
    void *buffer;
    struct stream_keys keys;         /* remote keys of the buffer */
    uint32_t grant, chunks_left;
    bool granted, discarded;
    enum weft_status failed; /* status of the receive: why it was discarded */
};

/* ---- private ---- */

enum stream_lane_state {
    STREAM_LANE_IDLE = 0,
    STREAM_LANE_OFFERED,
    STREAM_LANE_JOINED,
    STREAM_LANE_UP,
    STREAM_LANE_FENCING,
    STREAM_LANE_FENCED
};

enum stream_entry_kind {
    STREAM_ENTRY_RECORD = 1,
    STREAM_ENTRY_CHUNK,
    STREAM_ENTRY_RUN,
    STREAM_ENTRY_UNCOUNTED,
    STREAM_ENTRY_CREDIT,
    STREAM_ENTRY_READ
};

/* A posted work that may not be done. */
struct stream_entry {
    uint8_t kind;
    uint32_t number; /* chunk; RUN, UNCOUNTED: number of chunks */
    union {
        uint64_t sequence;
        struct stream_transfer *transfer;
    } of;
};

struct stream_lane {
    enum stream_lane_state state;
    uint32_t epoch;
    uint64_t retry_ns;
    uint32_t failures;
    bool peer_offered, peer_ready, peer_broken;
    uint64_t peer_received; /* the peer's watermark of this epoch */
    uint32_t peer_blob_bytes;
    uint8_t peer_blob[STREAM_BLOB_BYTES_MAX];
    uint64_t posted, acked; /* works: entries[acked..posted) are open */
    uint64_t imm_acked;     /* immediates among the acknowledged works */
    uint64_t imm_received;  /* the local watermark */
    uint32_t unsignalled;
    struct stream_transfer *run; /* transfer of the chunks posted here without a closing immediate */
    uint32_t run_count;
    /* transfer of chunks that are written, but whose immediate may be lost */
    struct stream_transfer *unconfirmed;
    uint32_t unconfirmed_count;
    struct stream_entry *entries; /* (lane_depth,) */
    char cause[120];
};

struct stream_replay {
    struct stream_transfer *transfer;
    uint32_t chunk;
    uint32_t uncounted; /* not 0: written chunks that the peer has not counted */
};

struct stream_record_out {
    uint32_t offset, bytes, charged;
    bool posted;
};

struct stream_record_in {
    uint32_t offset;
    bool arrived;
};

/* Objects that the peer names by number: announced sends, grants. */
struct stream_table {
    void **items;
    uint32_t *free_items;
    uint32_t capacity, free_count, limit;
};

enum stream_phase { STREAM_RUNNING = 0, STREAM_ENDING, STREAM_ENDED };

/* Received in the peer's HELLO. */
struct stream_peer_hello {
    /* received in the peer's HELLO */
    bool hello_sent, hello_received;
    uint64_t peer_ring;
    struct stream_keys peer_ring_keys;
    uint32_t peer_ring_bytes, peer_eager_budget;
};
/* Lanes to the peer. */
struct stream_lane_set {
    struct stream_lane lanes[STREAM_LANES_MAX];
    uint32_t next_lane;
    uint64_t down_since_ns; /* WEFT_NEVER: a lane is up */
    uint64_t no_progress_since_ns; /* time of the first of these breaks */
    /* breaks of lanes with open works since the last progress on any lane */
    uint32_t breaks_without_progress;
};
/* Outgoing records. */
struct stream_sending {
    /* outgoing records */
    struct weft_list waiting; /* struct stream_outgoing */
    struct stream_record_out out[STREAM_RECORDS_MAX];
    uint64_t out_next, out_done; /* sequence numbers; out_done: the peer has consumed lower ones */
    uint32_t out_unposted;
    /* ring_size: the smaller of the local staging and the peer's ring */
    uint32_t ring_head, ring_used, ring_size;
    uint64_t eager_sent, eager_taken; /* bytes, each message rounded up to 64 */
};
/* Incoming records. */
struct stream_receiving {
    /* incoming records */
    struct stream_record_in in[STREAM_RECORDS_MAX];
    uint64_t in_next, in_reported;  /* in_reported: records below it were reported as consumed */
    uint32_t in_bytes_unreported;
    uint64_t taken, taken_reported; /* eager bytes consumed; reported */
    uint64_t payload_untaken;     /* eager bytes not consumed */
};
/* Works that another lane repeats. */
struct stream_replays {
    struct stream_replay *replays; /* ring of (lane_count * lane_depth,) */
    uint32_t replay_first, replay_count;
};
/* Messages that the link has not accepted. */
struct stream_control_queue {
    /* messages that the link has not accepted */
    uint8_t *control_queue;
    uint32_t control_queued;
};
/* The end of the stream in order. */
struct stream_departure {
    bool leaving, leave_received, left_reported, leave_acked;
    uint64_t leave_records;
};

struct stream {
    struct weft_env *env;
    const struct stream_ops *ops;
    void *context;
    struct stream_options options;
    enum stream_phase phase;
    enum weft_status end_status;
    enum weft_status failure; /* not WEFT_OK: the driver ends this peer */
    char failure_text[200];

    struct stream_peer_hello hello;

    struct stream_lane_set lane_set;

    struct stream_sending outgoing;

    struct stream_receiving incoming;
    uint64_t duplicate_count, copied_bytes;
    uint64_t id_count;

    struct weft_list sends, receives, moving;
    struct weft_list ungranted; /* struct stream_outgoing of receives that wait for a grant number */
    struct stream_table announced, grants;
    struct stream_replays replay;

    struct stream_control_queue control;

    bool credit_again;          /* a credit was lost with its lane */
    struct stream_departure departure;
};

/* ---- calls of the driver ---- */

/* NULL: no memory. Ring and staging belong to the driver. Nothing happens before stream_start. */
struct stream *stream_create(struct weft_env *env, const struct stream_options *options,
                             const struct stream_ops *ops, void *context);
void stream_free(struct stream *stream); /* after ended(), or before stream_start */
void stream_start(struct stream *stream); /* the link is connected */

/* A message arrived over the link. */
void stream_control(struct stream *stream, const void *bytes, uint32_t count);
/* An immediate arrived on the queue pair of this lane and epoch. */
void stream_imm(struct stream *stream, uint32_t lane, uint32_t epoch, uint32_t imm);
/* All works of this lane and epoch up to `index`, inclusive, are acknowledged. */
void stream_acked(struct stream *stream, uint32_t lane, uint32_t epoch, uint64_t index);
/* The queue pair is broken; `cause` names device and reason. */
/* Call before stream_lane_broke if the peer's device refused this work (a wrong or withdrawn key). True:
 * it belongs to a put or get, which ends with WEFT_ERR_CANCELLED; everything else of the lane continues on
 * other lanes. */
bool stream_work_refused(struct stream *stream, uint32_t lane, uint32_t epoch, uint64_t index);
void stream_lane_broke(struct stream *stream, uint32_t lane, uint32_t epoch, const char *cause);
void stream_lane_fenced(struct stream *stream, uint32_t lane, uint32_t epoch);
void stream_lane_joined(struct stream *stream, uint32_t lane, uint32_t epoch);

/* Time events: rebuild attempts and timeouts. */
void stream_tick(struct stream *stream, uint64_t now_ns);
uint64_t stream_next_ns(const struct stream *stream); /* WEFT_NEVER: no tick needed */
/* Posts what can be posted, after events and new operations. True if anything was done. */
bool stream_pump(struct stream *stream);

/* Set tag, header, payload, payload_bytes, and transfer.local_keys if it is larger than eager_bytes.
 * WEFT_OK: sent() follows; or WEFT_ERR_NO_MEMORY. */
enum weft_status stream_send_message(struct stream *stream, struct stream_send *send, uint32_t eager_bytes);
/* True: a payload of that size would travel in the message now and needs no registration. */
bool stream_takes_eager(const struct stream *stream, uint32_t header_bytes, uint64_t payload_bytes,
                        uint32_t eager_bytes);
/* Set transfer (read, local, bytes, remote and both keys); for a put with notification also notify, tag,
 * header. */
void stream_send_access(struct stream *stream, struct stream_send *send);
/* An announced message: set id, bytes, buffer, keys; received() follows. bytes may be 0. */
void stream_accept(struct stream *stream, struct stream_receive *receive);
/* Set id; received() follows when the record is sent. */
void stream_discard(struct stream *stream, struct stream_receive *receive);
/* The user has consumed or dropped an eager message of that size. */
void stream_eager_taken(struct stream *stream, uint32_t header_bytes, uint64_t payload_bytes);

/* Informs the peer that nothing follows; left() runs there. `answer`: reply to the peer's leave; then end
 * the stream. */
void stream_leave(struct stream *stream, bool answer);
static inline bool stream_leave_is_acked(const struct stream *stream)
{
    return stream->departure.leave_acked;
}
/* Fences all lanes and ends all operations with `status`; ended() follows, possibly inside this call. */
void stream_end(struct stream *stream, enum weft_status status);
/* Call before stream_end if the connection is given up: sends the reason to the peer. */
void stream_report_lost(struct stream *stream, const char *text);
/* True: every record of a complete operation is posted on a lane that works, or the stream has ended. */
bool stream_is_flushed(const struct stream *stream);
uint32_t stream_lanes_up(const struct stream *stream);
/* Why lanes are down or make no progress; NULL if they work. */
const char *stream_trouble(const struct stream *stream);
uint64_t stream_memory(const struct stream *stream); /* bytes held, without ring and staging */

/* ---- between the files of the stream ---- */

/* stream.c */
void stream_fail(struct stream *stream, enum weft_status status, const char *text);
void stream_send_control(struct stream *stream, const void *bytes, uint32_t count);
bool stream_table_put(struct weft_env *env, struct stream_table *table, void *item, uint32_t *at_out);
void stream_table_take(struct stream_table *table, uint32_t at);
void stream_check_end(struct stream *stream);

/* stream_lane.c */
void stream_on_lane_offer(struct stream *stream, const struct stream_control *control);
void stream_on_lane_ready(struct stream *stream, const struct stream_control *control);
void stream_on_lane_broken(struct stream *stream, const struct stream_control *control);
void stream_lane_stop(struct stream *stream, uint32_t lane, const char *cause);

/* stream_record.c */
bool stream_records_stage(struct stream *stream);
void stream_records_post(struct stream *stream, uint32_t lane, struct stream_work *works, uint32_t *count);
void stream_on_record(struct stream *stream, uint32_t sequence, uint32_t offset);
void stream_grants_hand_out(struct stream *stream);
void stream_credit_imm(struct stream *stream, uint32_t imm);

/* stream_transfer.c */
void stream_transfer_start(struct stream *stream, struct stream_transfer *transfer);
void stream_transfers_post(struct stream *stream, uint32_t lane, struct stream_work *works, uint32_t *count,
                           uint32_t limit);
void stream_run_close(struct stream *stream, uint32_t lane, struct stream_work *works, uint32_t *count);
/* one entry less refers to it */
void stream_transfer_closed(struct stream *stream, struct stream_transfer *transfer);
bool stream_run_is_posted(const struct stream_lane *lane); /* its transfer has nothing left to post */
void stream_on_grant(struct stream *stream, uint64_t id, uint32_t grant, uint64_t address,
                     const struct stream_keys *keys);
void stream_on_refusal(struct stream *stream, uint64_t id);
/* its bytes have arrived: send the notification */
void stream_notify(struct stream *stream, struct stream_send *send);
void stream_on_chunks(struct stream *stream, uint32_t grant, uint32_t count);
void stream_confirm(struct stream *stream, struct stream_transfer *transfer, uint32_t count);
void stream_replay_add(struct stream *stream, struct stream_transfer *transfer, uint32_t chunk,
                       uint32_t uncounted);

/* stream_lane.c, for posting: fills the next entry and its work; the caller has checked for space. */
struct stream_work *stream_lane_work(struct stream *stream, uint32_t lane, struct stream_work *works,
                                     uint32_t *count, enum stream_work_kind kind, struct stream_entry entry);
static inline uint32_t stream_lane_space(const struct stream *stream, const struct stream_lane *lane)
{
    return stream->options.lane_depth - (uint32_t)(lane->posted - lane->acked);
}

/* Deliberately broken variants, to test that the simulation detects them (tests/transport/meson.build
 * builds one program for each). 0 in the library. */
#ifndef STREAM_MUTANT
#define STREAM_MUTANT 0
#endif
enum {
    STREAM_MUTANT_NO_WATERMARK = 1, /* replays everything not acknowledged, whether written or not */
    STREAM_MUTANT_NO_FENCE,         /* sends the watermark before the queue pair is fenced */
    STREAM_MUTANT_EARLY_SENT,       /* a send ends when its last chunk is posted */
    STREAM_MUTANT_NO_CREDIT,        /* sends records without checking for space */
    STREAM_MUTANT_IMM_FIRST,        /* posts the immediate before its chunks */
    STREAM_MUTANT_NO_REPLAY,        /* forgets chunks behind the watermark */
    STREAM_MUTANT_END_UNFENCED,     /* ends the operations of a lost peer before the fence */
    STREAM_MUTANT_ANY_ORDER,        /* handles records in arrival order over all lanes */
    STREAM_MUTANT_LATE_WRITES,      /* (in the model) a fence does not stop writes in flight */
    STREAM_MUTANT_NOT_UNCOUNTED,         /* treats chunks acknowledged before their lane broke as counted */
    STREAM_MUTANT_LAST,
};

#endif
