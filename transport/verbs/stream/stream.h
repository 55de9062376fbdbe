/* stream.h - everything two endpoints say to each other over queue pairs, as a pure state machine.
 *
 * No verbs in here: a driver tells the stream what happened (an immediate came, works were acknowledged, a
 * queue pair broke, the link brought a message) and the stream tells the driver what to do (make, join or
 * fence a queue pair, post these works, say this over the link). So the whole of it runs in a simulation over
 * thousands of seeds (tests/transport/verbs/sim_verbs_stream.c), where queue pairs break at every step and
 * acknowledgements get lost.
 *
 *   a *lane* is one reliable queue pair between the two, on one rail (device); when it breaks, the next
 *   *epoch* of the same lane is another queue pair. The *link* is the authenticated, ordered control
 *   connection of the pair.
 *
 *      sender                                                   receiver
 *      MESSAGE (payload inside) ── WRITE_IMM into the ring ──►  copied out, credit back
 *      ANNOUNCE ─────────────────── WRITE_IMM into the ring ──►  arrived(); somebody names a buffer
 *               ◄── GRANT (address, keys) ── WRITE_IMM ───────  its slot is clear to send
 *      chunks ═══ WRITE, WRITE, WRITE ... over all lanes ═════►  land in the buffer, in any order
 *             ─── WRITE_IMM of 0 bytes, one per lane ────────►  "n chunks of that grant": only this makes them count
 *
 * What is promised, and why it holds
 *   - The only order used is: when an immediate is received, every earlier write of the same lane has landed.
 *     No order among writes, none between lanes; memory is never polled.
 *   - Records (messages, announcements, grants) carry a sequence number over all lanes and are handled in
 *     that order.
 *   - A write may have landed although its acknowledgement was lost. So when a lane breaks nothing is
 *     replayed until *both* sides have fenced their queue pair of that epoch (nothing can land through it any
 *     more) and have told each other over the link how many immediates they had received on it: the
 *     watermark. Immediates of one lane arrive in order, so works up to the watermark are done and everything
 *     behind it is replayed, on whatever lane is up. That is exactly once, and a late write of the old epoch
 *     cannot land in a buffer that was given back.
 *   - A send completes when the peer is known to hold every chunk (acknowledged, or below the watermark); a
 *     receive when its chunks have been counted to the last; with a lost peer both only when all lanes are
 *     fenced.
 *   - Small payloads travel inside the message up to a budget of bytes that the peer's user has not taken
 *     yet; beyond that they are announced like large ones: memory stays bounded, nothing is dropped.
 *
 * Life of a lane (epoch e at both ends; OFFER, READY, BROKEN travel over the link)
 *
 *      IDLE ─make, OFFER─► OFFERED ─(OFFER came) join, READY─► JOINED ─(READY came)─► UP
 *        ▲                     └───────────── it breaks, or BROKEN came ─────────────┘
 *        │                                            ▼
 *        └── epoch e+1, replay ◄─(BROKEN came)─ FENCED ◄─fenced, BROKEN(watermark)─ FENCING
 *
 * One thread; nothing here blocks. What the peer sends is checked: anything impossible sets `failure`. */
#ifndef WEFT_TRANSPORT_VERBS_STREAM_STREAM_H
#define WEFT_TRANSPORT_VERBS_STREAM_STREAM_H

#include "transport/transport.h"
#include "transport/verbs/stream/stream_wire.h"

enum {
    STREAM_RECORDS_MAX = 128,      /* records on their way in one direction */
    STREAM_EAGER_BUDGET_LEAST = 16384, /* what a peer grants whose HELLO has not come yet */
    STREAM_BATCH = 32,             /* works posted with one doorbell */
};

/* Local or remote registration of one range: each lane has its own device and so its own key. */
struct stream_keys {
    uint32_t key[STREAM_LANES_MAX];
};

enum stream_work_kind { STREAM_WORK_WRITE = 1, STREAM_WORK_WRITE_IMM, STREAM_WORK_READ };

struct stream_work {
    enum stream_work_kind kind;
    bool signalled;     /* its completion is wanted: stream_acked */
    uint32_t imm, bytes;
    uint32_t local_key, remote_key;
    void *local;        /* NULL: no bytes */
    uint64_t remote;
    uint64_t index;     /* its number on this lane in this epoch, from 0 */
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
    const uint8_t *payload; /* it travelled along; NULL: announced (or no payload at all) */
    bool announced;
    uint64_t id;            /* announced: for stream_accept, stream_discard */
};

struct stream_ops {
    /* Make the queue pair of this epoch and describe it to the peer (at most STREAM_BLOB_BYTES_MAX). */
    enum weft_status (*lane_make)(void *context, uint32_t lane, uint32_t epoch, uint8_t *blob_out,
                                  uint32_t *bytes_out);
    /* Connect it with the peer's: from now on it receives; it may send when the stream posts.
     * WEFT_IN_PROGRESS: it will, stream_lane_joined (or stream_lane_broke) says when. */
    enum weft_status (*lane_join)(void *context, uint32_t lane, uint32_t epoch, const uint8_t *blob,
                                  uint32_t bytes);
    /* Stop it for good. When nothing can land through it any more and every completion it had produced has
     * been told, the driver calls stream_lane_fenced: not from inside this call. */
    void (*lane_fence)(void *context, uint32_t lane, uint32_t epoch);
    /* Post in this order. An error breaks the lane. */
    enum weft_status (*post)(void *context, uint32_t lane, const struct stream_work *works, uint32_t count);
    /* Over the link; reliable and in order. WEFT_OK, or WEFT_ERR_AGAIN: offered again at the next pump. */
    enum weft_status (*control)(void *context, const void *bytes, uint32_t count);
    void (*arrived)(void *context, const struct stream_arrival *incoming);
    void (*left)(void *context); /* the peer takes its leave: everything it had to say has arrived */
    /* The operation is over, its memory is the owner's again. */
    void (*sent)(void *context, struct stream_send *send, enum weft_status status);
    void (*received)(void *context, struct stream_receive *receive, enum weft_status status);
    void (*ended)(void *context); /* after stream_end: all of the above have been told, no lane is left */
};

struct stream_options {
    uint32_t lane_count;     /* the smaller of both sides' counts */
    uint32_t lane_count_made; /* set by stream_create: as asked for */
    uint32_t lane_depth;     /* works in flight on one lane, >= 16 */
    uint32_t signal_every;   /* at least one of so many works is signalled; <= lane_depth / 2 */
    uint32_t chunk_bytes;    /* the smaller of both sides' */
    uint32_t eager_budget;   /* bytes of small payloads the peer's user may leave lying; a multiple of 64 */
    uint32_t ring_bytes;     /* of ring and of staging, a multiple of 64, <= 4 MiB */
    uint8_t *ring;           /* the peer writes its records here */
    uint8_t *staging;        /* our records start from here */
    struct stream_keys ring_keys, staging_keys; /* remote key of the ring, local key of the staging */
    uint64_t retry_ns;       /* from a break to the next attempt, doubled each time; default 10 ms */
    uint64_t lost_ns;        /* so long without any lane, or with lanes that break again and again and get
                              * nothing through: the peer is lost; default 10 s */
};
void stream_options_init(struct stream_options *options);

/* ---- operations: memory of the owner, his again when told ---- */

enum stream_record_intent {
    STREAM_INTENT_NONE = 0,
    STREAM_INTENT_MESSAGE,
    STREAM_INTENT_ANNOUNCE,
    STREAM_INTENT_GRANT,
    STREAM_INTENT_DISCARD
};

/* A record that waits for room in the ring. */
struct stream_outgoing {
    struct weft_list link;
    enum stream_record_intent intent;
};

/* Bytes that move in chunks. */
struct stream_transfer {
    struct weft_list link;   /* in stream->moving while chunks are to be posted for the first time */
    bool read;               /* from the peer's memory into ours */
    uint32_t grant;          /* STREAM_NO_GRANT: a put; the peer counts nothing */
    uint32_t chunk_count, chunk_next, confirmed, replay_count;
    uint32_t open;           /* entries of lanes that name it */
    bool refused;            /* a put or get whose window is closed: it is given up */
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
    bool notify;                     /* a put: send the header as a message when the bytes are there */
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
    enum weft_status failed; /* the owner's: it was discarded because of this */
};

/* ---- inside ---- */

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

/* One posted work that is not known to be done. */
struct stream_entry {
    uint8_t kind;
    uint32_t number; /* chunk; RUN, OWED: how many chunks it counts */
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
    uint64_t peer_received; /* his watermark of this epoch */
    uint32_t peer_blob_bytes;
    uint8_t peer_blob[STREAM_BLOB_BYTES_MAX];
    uint64_t posted, acked; /* works: entries[acked..posted) are open */
    uint64_t imm_acked;     /* immediates among the acked */
    uint64_t imm_received;  /* our watermark */
    uint32_t unsignalled;
    struct stream_transfer *run; /* chunks posted here and not yet closed by an immediate belong to it */
    uint32_t run_count;
    struct stream_transfer *unconfirmed; /* chunks that have landed, but whose immediate is not known to
                                          * have been received */
    uint32_t unconfirmed_count;
    struct stream_entry *entries; /* (lane_depth,) */
    char cause[120];
};

struct stream_replay {
    struct stream_transfer *transfer;
    uint32_t chunk;
    uint32_t uncounted; /* not 0: so many chunks have landed and only want to be counted */
};

struct stream_record_out {
    uint32_t offset, bytes, charged;
    bool posted;
};

struct stream_record_in {
    uint32_t offset;
    bool arrived;
};

/* Things the peer names by number: announced sends, grants. */
struct stream_table {
    void **items;
    uint32_t *free_items;
    uint32_t capacity, free_count, limit;
};

enum stream_phase { STREAM_RUNNING = 0, STREAM_ENDING, STREAM_ENDED };

struct stream {
    struct weft_env *env;
    const struct stream_ops *ops;
    void *context;
    struct stream_options options;
    enum stream_phase phase;
    enum weft_status end_status;
    enum weft_status failure; /* not WEFT_OK: the driver ends this peer */
    char failure_text[200];

    /* from the peer's HELLO */
    bool hello_sent, hello_received;
    uint64_t peer_ring;
    struct stream_keys peer_ring_keys;
    uint32_t peer_ring_bytes, peer_eager_budget;

    struct stream_lane lanes[STREAM_LANES_MAX];
    uint32_t next_lane;
    uint64_t down_since_ns; /* WEFT_NEVER: some lane is up */
    uint64_t no_progress_since_ns; /* first of the breaks below */
    uint32_t breaks_without_progress;   /* of lanes with open works, since anything got through on any lane */

    /* records out */
    struct weft_list waiting; /* struct stream_outgoing */
    struct stream_record_out out[STREAM_RECORDS_MAX];
    uint64_t out_next, out_done; /* sequence numbers; out_done: the peer has consumed those below */
    uint32_t out_unposted;
    uint32_t ring_head, ring_used, ring_size; /* size: the smaller of our staging and his ring */
    uint64_t eager_sent, eager_taken; /* bytes, each message rounded up to 64 */

    /* records in */
    struct stream_record_in in[STREAM_RECORDS_MAX];
    uint64_t in_next, in_reported;  /* told: the peer knows that we have consumed those below */
    uint32_t in_bytes_unreported;
    uint64_t taken, taken_reported; /* eager bytes that our user has taken */
    uint64_t payload_untaken;     /* bytes of eager payloads that he has not */
    uint64_t duplicate_count, copied_bytes;
    uint64_t id_count;

    struct weft_list sends, receives, moving;
    struct weft_list ungranted; /* struct stream_outgoing of receives that wait for a grant's number */
    struct stream_table announced, grants;
    struct stream_replay *replays; /* ring of (lane_count * lane_depth,) */
    uint32_t replay_first, replay_count;

    /* control messages that the link did not take yet */
    uint8_t *control_queue;
    uint32_t control_queued;

    bool credit_again;          /* a credit was lost with its lane */
    bool leaving, leave_received, left_reported, leave_acked;
    uint64_t leave_records;
};

/* ---- calls of the driver ---- */

/* NULL: no memory. Ring and staging stay the driver's. Nothing happens before stream_start. */
struct stream *stream_create(struct weft_env *env, const struct stream_options *options,
                             const struct stream_ops *ops, void *context);
void stream_free(struct stream *stream); /* after ended(), or before stream_start */
void stream_start(struct stream *stream); /* the link is up */

/* The link brought this. */
void stream_control(struct stream *stream, const void *bytes, uint32_t count);
/* An immediate was received on this lane's queue pair of this epoch. */
void stream_imm(struct stream *stream, uint32_t lane, uint32_t epoch, uint32_t imm);
/* All works of this lane and epoch up to and with `index` are acknowledged. */
void stream_acked(struct stream *stream, uint32_t lane, uint32_t epoch, uint64_t index);
/* The queue pair does not work any more; `cause` names device and reason. */
/* Just before stream_lane_broke, when this very work was refused by the peer's device (a wrong or
 * withdrawn key): true if it belongs to a put or get. That one ends with WEFT_ERR_CANCELLED; everything
 * else of the lane goes on elsewhere. */
bool stream_work_refused(struct stream *stream, uint32_t lane, uint32_t epoch, uint64_t index);
void stream_lane_broke(struct stream *stream, uint32_t lane, uint32_t epoch, const char *cause);
void stream_lane_fenced(struct stream *stream, uint32_t lane, uint32_t epoch);
void stream_lane_joined(struct stream *stream, uint32_t lane, uint32_t epoch);

/* Time passes: attempts to rebuild, the end of patience. */
void stream_tick(struct stream *stream, uint64_t now_ns);
uint64_t stream_next_ns(const struct stream *stream); /* WEFT_NEVER: no tick is needed */
/* Post what can be posted. After events and new operations; true when something was done. */
bool stream_pump(struct stream *stream);

/* Fill tag, header, payload, payload_bytes, and transfer.local_keys if it is larger than eager_bytes.
 * WEFT_OK (sent() follows) or WEFT_ERR_NO_MEMORY. */
enum weft_status stream_send_message(struct stream *stream, struct stream_send *send, uint32_t eager_bytes);
/* True: a payload of that size would travel inside the message now, so it needs no registration. */
bool stream_takes_eager(const struct stream *stream, uint32_t header_bytes, uint64_t payload_bytes,
                        uint32_t eager_bytes);
/* Fill transfer (read, local, bytes, remote and both keys), and notify, tag, header for a put with
 * notification. */
void stream_send_access(struct stream *stream, struct stream_send *send);
/* An announced message: fill id, bytes, buffer, keys; received() follows. bytes may be 0. */
void stream_accept(struct stream *stream, struct stream_receive *receive);
/* Fill id; received() follows when the record is gone and says nothing to anybody. */
void stream_discard(struct stream *stream, struct stream_receive *receive);
/* Our user has taken (or dropped) an eager message of that size. */
void stream_eager_taken(struct stream *stream, uint32_t header_bytes, uint64_t payload_bytes);

/* Tell the peer that nothing follows; left() at his side. `answer`: to his own leave; then end the stream. */
void stream_leave(struct stream *stream, bool answer);
static inline bool stream_leave_is_acked(const struct stream *stream) { return stream->leave_acked; }
/* Fence everything and end all operations with `status`; ended() follows, possibly from inside this call. */
void stream_end(struct stream *stream, enum weft_status status);
/* Before stream_end, when the connection is given up: the peer is told why. */
void stream_report_lost(struct stream *stream, const char *text);
uint32_t stream_lanes_up(const struct stream *stream);
/* Why lanes are down or get nothing through; NULL when they do. */
const char *stream_trouble(const struct stream *stream);
uint64_t stream_memory(const struct stream *stream); /* bytes it holds itself, without ring and staging */

/* ---- between the files of the machine ---- */

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
/* one entry less names it */
void stream_transfer_closed(struct stream *stream, struct stream_transfer *transfer);
bool stream_run_over(const struct stream_lane *lane); /* nothing of its transfer is left to post */
void stream_on_grant(struct stream *stream, uint64_t id, uint32_t grant, uint64_t address,
                     const struct stream_keys *keys);
void stream_on_refusal(struct stream *stream, uint64_t id);
void stream_notify(struct stream *stream, struct stream_send *send); /* its bytes are there: say so */
void stream_on_chunks(struct stream *stream, uint32_t grant, uint32_t count);
void stream_confirm(struct stream *stream, struct stream_transfer *transfer, uint32_t count);
void stream_replay_add(struct stream *stream, struct stream_transfer *transfer, uint32_t chunk,
                       uint32_t uncounted);

/* stream_lane.c, for posting: fill the next entry and its work; the caller has checked for room. */
struct stream_work *stream_lane_work(struct stream *stream, uint32_t lane, struct stream_work *works,
                                     uint32_t *count, enum stream_work_kind kind, struct stream_entry entry);
static inline uint32_t stream_lane_room(const struct stream *stream, const struct stream_lane *lane)
{
    return stream->options.lane_depth - (uint32_t)(lane->posted - lane->acked);
}

/* Deliberately broken variants, for the test that the simulation notices them (tests/transport/meson.build
 * builds one program for each). In the library this is 0 and costs nothing. */
#ifndef STREAM_MUTANT
#define STREAM_MUTANT 0
#endif
enum {
    STREAM_MUTANT_NO_WATERMARK = 1, /* everything not acknowledged is replayed, landed or not */
    STREAM_MUTANT_NO_FENCE,         /* the watermark is told before the queue pair is fenced */
    STREAM_MUTANT_EARLY_SENT,       /* a send ends when its last chunk is posted */
    STREAM_MUTANT_NO_CREDIT,        /* records are sent without asking whether there is room */
    STREAM_MUTANT_IMM_FIRST,        /* the immediate goes before the chunks it stands for */
    STREAM_MUTANT_NO_REPLAY,        /* chunks behind the watermark are forgotten */
    STREAM_MUTANT_END_UNFENCED,     /* a lost peer's operations end before the fence */
    STREAM_MUTANT_ANY_ORDER,        /* records are handled as they come, over all lanes */
    STREAM_MUTANT_LATE_WRITES,      /* (in the model) a fence does not stop writes that are on their way */
    STREAM_MUTANT_NOT_UNCOUNTED,         /* chunks acknowledged before their lane broke are taken for
                                          * counted */
    STREAM_MUTANT_LAST,
};

#endif
