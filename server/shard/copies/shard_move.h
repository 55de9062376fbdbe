/* shard_move.h - a slot gets a further copy, or another leader, while the job runs.
 *
 *     coordinator: copy slot S to engine E   shard_move.c          the leader's side: parts, acknowledgements
 *     COPY, COPIED                           shard_receive_copy.c  the new copy's side
 *     coordinator: hand slot S over          shard_handover.c      the leader's side
 *
 * Part of shard_engine.h. A move belongs to one term of its slot: any Map with a newer term ends it. */
#ifndef WEFT_SERVER_SHARD_COPIES_SHARD_MOVE_H
#define WEFT_SERVER_SHARD_COPIES_SHARD_MOVE_H

/* A slot that this engine copies to another one (shard_move.c). */
struct shard_move {
    struct weft_shard_engine *engine;
    struct weft_list link; /* replication.moves */
    uint32_t slot, term, to;
    uint32_t chunks, copied; /* of the slot; those of which `to` has all parts and all changes */
    uint32_t reported;       /* `chunks` of the last report + 1; 0: no report */
    uint64_t bytes;          /* acknowledged */
    uint64_t reported_ns;
    struct weft_list parts, changes; /* struct shard_chunk_move.link: a part, a change is to be sent */
    enum weft_status failed;         /* WEFT_OK, or why the copy cannot be made; Map ends it */
    bool is_early;                   /* mutant: reported before all parts were acknowledged */
};

/* One chunk of it. */
struct shard_chunk_move {
    struct shard_move *move; /* NULL: it has ended; a send in flight remains */
    struct shard_chunk *chunk;
    struct weft_list link; /* move->parts or move->changes */
    struct weft_completion sent;
    uint64_t step;        /* closed_step when the first part was sent */
    uint16_t skips;       /* the same */
    uint8_t part;         /* number of the next part */
    bool is_started;      /* chunk->sends counts it: no close until the last part is acknowledged */
    bool awaits_ack;      /* of the last part that was sent */
    bool is_sending;      /* a send in flight reads the chunk's memory */
    bool is_copied;       /* `to` has all parts: it gets each change */
    bool is_due;          /* `to` has not acknowledged the change in chunk->hold */
    bool is_changed;      /* a step was skipped since the first part: they are sent again */
    uint8_t flags, round; /* of the part that awaits_ack */
    size_t bytes;         /* the same */
    uint32_t epoch_least; /* the new copy is in this epoch or a later one: no part is sent before */
};

static inline bool shard_move_is_in_use(const struct shard_chunk_move *move)
{
    return move && (move->is_due || move->is_sending);
}
/* The parts that are under way are of the chunk as it is in the engine's epoch. */
static inline bool shard_move_is_started(const struct shard_chunk_move *move)
{
    return move && move->is_started;
}
static inline bool shard_move_holds(const struct shard_chunk_move *move)
{
    return move && move->is_due;
}

/* ---- shard_move.c: the leader ---- */
/* The new copy must hold the change in chunk->hold, too. false: there is none, or it has not all parts. */
bool shard_move_change(struct shard_chunk *chunk);
void shard_move_pump(struct weft_shard_engine *engine);
void shard_move_acked(struct shard_chunk *chunk, uint32_t peer_id, const struct weft_wire_header *header);
/* The slot has a new term. end_chunk: a change that the new copy has not acknowledged becomes due to the
 * slot's copy, which may be the same engine. end: after its chunks. */
void shard_move_end_chunk(struct shard_chunk *chunk);
void shard_move_end(struct weft_shard_engine *engine, uint32_t slot);
void shard_move_tensor_added(struct shard_tensor *tensor);
void shard_move_tensor_released(struct shard_tensor *tensor);
void shard_move_fini(struct weft_shard_engine *engine);

/* ---- shard_receive_copy.c: the new copy ---- */
/* What to do with a message of a leader (shard_copy.c). */
void shard_move_on_timer(struct weft_timer *timer); /* a chunk may start */
enum shard_copy_next { SHARD_COPY_DROP, SHARD_COPY_WAIT, SHARD_COPY_ANSWER, SHARD_COPY_RECEIVE };
enum shard_copy_next shard_receive_copy_judge(struct shard_chunk *chunk,
                                              const struct weft_wire_header *request,
                                              enum weft_status *status_out);
/* false: not now. */
bool shard_receive_copy(struct shard_chunk *chunk, struct weft_arrival *arrival);
/* This engine neither leads the chunk nor copies it: its memory is released when it is unused. */
void shard_copy_leave(struct shard_chunk *chunk);
void shard_copy_pump_leaving(struct weft_shard_engine *engine);

/* ---- shard_handover.c: the leader ---- */
void shard_handover_pump(struct weft_shard_engine *engine);

#endif
