/* shm_ring.h - the way from one endpoint to one other: a segment in shared memory with one writer and one
 * reader.
 *
 *   offset 0      the reader's lines   what it has taken, written often and read seldom; and the other way round: does it
 *                                      look here by itself, has it ended
 *          128    the writer's lines   has it left; does it wait for room; whose memory is it in
 *          384    shared lines         who copies which part of a payload that both copy
 *          512    cells                64 bytes each: what happened, and small messages whole
 *          8192   bytes                headers and payloads that do not fit into their cell, 64-byte aligned, never wrapped
 *
 * The reader owns (makes, touches first) the segment, so what was published outlives its writer. A cell is
 * published by its turn (the number of the cell, counted from 1), which is stored last; the reader looks at
 * one line and finds the rest there. The two never write the same line, except for the bytes handed over and
 * the shared lines.
 *
 * Whoever goes to sleep or waits for room says so first and looks again afterwards; the other writes first
 * and then looks whether somebody said so: with a full fence between the two steps on both sides one of them
 * sees the other.
 *
 * The other side is not trusted: a cell is copied once and judged from the copy; counters of the other
 * side are checked against what is possible; positions in the bytes are computed here, never read. */
#ifndef WEFT_TRANSPORT_SHM_RING_H
#define WEFT_TRANSPORT_SHM_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    RING_CELL_BYTES = 64,
    RING_CELLS = 120,
    RING_HEAD_BYTES = 512,
    RING_DATA_BYTES = 24576,
    RING_SEGMENT_BYTES = RING_HEAD_BYTES + RING_CELLS * RING_CELL_BYTES + RING_DATA_BYTES, /* 32 KiB */
    RING_TAKEN_CELLS = RING_CELLS / 4, /* the reader tells what it has taken after so much of it */
    RING_TAKEN_BYTES = RING_DATA_BYTES / 4,
    RING_WINDOWS = 1024, /* windows of one endpoint; see shm_window.c */
    RING_BODY_BYTES = 48,
    RING_SPLITS = 16,
};

enum ring_state { RING_OPEN = 0, RING_LEFT = 1, RING_ENDED = 2 };

enum ring_kind {
    RING_HELLO = 1,    /* a: what the writer can do (enum shm_ability) */
    RING_INLINE,       /* a: tag; header and payload in the body */
    RING_EAGER,        /* a: tag; payload_bytes; header, then payload (aligned to 64) in the bytes */
    RING_ANNOUNCE,     /* a: tag; the payload stays where it is until the receiver has named a buffer */
    RING_PUT,          /* a: tag; as an announcement, into a window of the reader */
    RING_GET,          /* a: the writer's operation; out of a window of the reader */
    RING_DONE,         /* a: the reader's operation is over, with a status */
    RING_GRANT,        /* a: the reader's operation: write into my memory, then say DONE to mine */
    RING_STAGE,        /* a: the reader's operation: send it in pieces to mine */
    RING_PIECE,        /* a: the reader's operation: the next bytes, in a staging slot or behind this cell */
    RING_PIECE_TAKEN,  /* a: staging slots of the reader, a bit each, that are free again */
    RING_SPLIT,        /* a: the reader's operation: let us both copy it; see shm_split.c */
    RING_KINDS,
};

#define RING_NO_OFFSET UINT64_MAX /* an arena offset: not in the arena */

struct ring_cell {
    uint32_t seq;
    uint8_t kind;
    uint8_t inline_bytes; /* payload in the body, behind the header (INLINE) */
    uint16_t header_bytes;
    uint64_t a;
    union {
        uint8_t bytes[RING_BODY_BYTES];
        struct {
            uint64_t bytes;
        } eager;
        struct {
            uint64_t op, bytes, address, offset; /* offset: in the writer's arena, or RING_NO_OFFSET */
        } announce;
        struct {
            uint64_t op, bytes, at, offset; /* at: in the window */
            uint32_t window, generation, notify;
        } put;
        struct {
            uint64_t bytes, at, offset; /* offset: of the destination, in the writer's arena */
            uint32_t window, generation;
        } get;
        struct {
            int32_t status;
        } done;
        struct {
            uint64_t op, offset;
        } grant;
        struct {
            uint64_t op;
        } stage;
        struct {
            uint64_t op, address, chunk;
            uint32_t slot, epoch;
        } split;
        struct {
            uint64_t bytes, offset; /* offset: in the writer's arena, or RING_NO_OFFSET: behind this cell */
            uint32_t slot;
        } piece;
    } body;
};
_Static_assert(sizeof(struct ring_cell) == RING_CELL_BYTES, "a cell is one line");

/* Its first eight bytes, which a reader takes by one load. */
struct ring_head {
    uint32_t seq;
    uint8_t kind, inline_bytes;
    uint16_t header_bytes;
};
_Static_assert(sizeof(struct ring_head) == 8 && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "the bytes as in struct ring_cell");

struct ring_shared {
    struct { /* written by the reader */
        _Alignas(64) _Atomic uint64_t cells_taken;
        _Atomic uint64_t bytes_taken;
        _Atomic uint64_t credit_taken; /* eager bytes given to somebody; see shm_message.c */
        _Alignas(64) _Atomic uint32_t is_polling; /* the reader looks at the cells by itself: no need to
                                                   * ring its bell */
        _Atomic uint32_t state;        /* enum ring_state */
    } reader;
    struct { /* written by the writer */
        _Alignas(64) _Atomic uint32_t state;
        _Atomic uint32_t is_waiting;  /* for room: tell it when there is some */
        /* In the reader's memory: 1 + window, SHM_INSIDE_GRANT, or 0. Alone: the reader looks at `waits`
         * again and again. */
        _Alignas(64) _Atomic uint32_t inside;
        _Alignas(64) _Atomic uint64_t maps[RING_WINDOWS / 64]; /* windows of the reader it holds mapped */
    } writer;
    struct { /* written by both; one after the other in different lines */
        _Alignas(64) _Atomic uint64_t taken[8];
    } splits[RING_SPLITS / 8]; /* payloads from writer to reader that both copy; see shm_split.c */
    _Alignas(64) struct ring_cell cells[RING_CELLS];
    uint8_t data[RING_DATA_BYTES];
};
_Static_assert(sizeof(struct ring_shared) == RING_SEGMENT_BYTES, "the layout above");

static inline uint64_t ring_align(uint64_t bytes) { return (bytes + 63) & ~(uint64_t)63; }

/* ---- the writer's end ---- */

struct ring_writer {
    struct ring_shared *shared;
    uint64_t cells, bytes; /* written so far */
    uint64_t cells_taken, bytes_taken, credit_taken; /* as last seen */
    uint32_t at;           /* cells % RING_CELLS */
    bool is_waiting;            /* has said so */
};

/* Read what the reader has taken. false: it claims the impossible. */
bool ring_writer_refresh(struct ring_writer *writer);
/* Is there room for one cell, by what is known? */
static inline bool ring_writer_has_cell(const struct ring_writer *writer)
{
    return writer->cells - writer->cells_taken < RING_CELLS;
}
/* Is there room for one cell and `data_bytes` behind it? `*broken_out` becomes true when the reader claims
 * the impossible. */
bool ring_writer_room(struct ring_writer *writer, size_t data_bytes, bool *broken_out);
/* Ask to be told about room. true: there is some already. */
bool ring_writer_wait(struct ring_writer *writer, size_t data_bytes, bool *broken_out);
/* The next cell to fill, all but its turn; valid until ring_writer_publish. */
static inline struct ring_cell *ring_writer_cell(struct ring_writer *writer)
{
    return &writer->shared->cells[writer->at];
}
/* Where its `data_bytes` go. */
void *ring_writer_data(struct ring_writer *writer, size_t data_bytes);
/* Hand the cell over. Then a full fence, and the bell if the reader does not look by itself: see
 * shm_doorbell.c. */
static inline void ring_writer_publish(struct ring_writer *writer)
{
    uint32_t seq = (uint32_t)++writer->cells;
    _Atomic uint32_t *word = (_Atomic uint32_t *)&writer->shared->cells[writer->at].seq;
    atomic_store_explicit(word, seq, memory_order_release);
    if (++writer->at == RING_CELLS) writer->at = 0;
}

/* ---- the reader's end ---- */

struct ring_reader {
    struct ring_shared *shared;
    uint64_t cells, bytes;           /* taken so far */
    uint64_t cells_reported, bytes_reported; /* of which the writer knows */
    uint32_t at;
};

static inline bool ring_reader_ready(const struct ring_reader *reader)
{
    const _Atomic uint32_t *word = (const _Atomic uint32_t *)&reader->shared->cells[reader->at].seq;
    return atomic_load_explicit(word, memory_order_acquire) == (uint32_t)(reader->cells + 1);
}
/* When ready: what kind of cell it is, by one load. */
static inline struct ring_head ring_reader_head(const struct ring_reader *reader)
{
    const _Atomic uint64_t *word = (const _Atomic uint64_t *)(const void *)&reader->shared->cells[reader->at];
    uint64_t bits = atomic_load_explicit(word, memory_order_relaxed);
    return (struct ring_head){(uint32_t)bits, (uint8_t)(bits >> 32), (uint8_t)(bits >> 40),
                              (uint16_t)(bits >> 48)};
}
/* When ready: a copy of the next cell. */
void ring_reader_copy(const struct ring_reader *reader, struct ring_cell *cell_out);
/* The bytes behind it; `data_bytes` is what the copy says. NULL: more than there can be. */
const uint8_t *ring_reader_data(const struct ring_reader *reader, size_t data_bytes);
/* Bytes behind a cell lie in one piece: what would cross the end starts at the beginning. Both ends count
 * the gap. */
static inline uint64_t ring_data_start(uint64_t position, size_t data_bytes)
{
    uint64_t at = position % RING_DATA_BYTES;
    return at + data_bytes > RING_DATA_BYTES ? position + (RING_DATA_BYTES - at) : position;
}
/* It is dealt with: go on. */
static inline void ring_reader_next(struct ring_reader *reader, size_t data_bytes)
{
    if (data_bytes > 0) reader->bytes = ring_data_start(reader->bytes, data_bytes) + ring_align(data_bytes);
    reader->cells++;
    if (++reader->at == RING_CELLS) reader->at = 0;
}
/* Should the writer be told now (much was taken, or it waits and something was taken)? */
static inline bool ring_reader_should_report(const struct ring_reader *reader)
{
    uint64_t cells = reader->cells - reader->cells_reported;
    if (cells == 0) return false;
    if (cells >= RING_TAKEN_CELLS || reader->bytes - reader->bytes_reported >= RING_TAKEN_BYTES) return true;
    return atomic_load_explicit(&reader->shared->writer.is_waiting, memory_order_relaxed) != 0;
}
/* Tell it. true: it waits for room; ring its bell. */
bool ring_reader_report(struct ring_reader *reader);

#endif
