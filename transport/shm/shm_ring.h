/* shm_ring.h - one direction between two endpoints: a shared segment with one writer and one reader.
 *
 *   offset 0      reader's lines   cells and bytes taken; whether the reader polls; whether it has closed
 *          128    writer's lines   whether the writer has closed or waits for space; which memory it accesses
 *          384    split words      progress of payloads that both sides copy
 *          512    cells            64 bytes each: events, and messages that fit
 *          8192   bytes            headers and payloads beyond their cell, 64-byte aligned, never wrapped
 *
 * The reader creates and first touches the segment, so its contents survive the writer. The writer
 * publishes a cell by storing its sequence number (from 1) last; the reader polls that one line. No line
 * has two writers, except the bytes and the split words.
 *
 * A side that sleeps or waits for space stores its flag, then checks again. The other side writes, then
 * reads the flag. A full fence between the two steps on both sides ensures that one of them sees the
 * other's store.
 *
 * The peer is not trusted: a cell is copied once and the copy is checked; counters of the peer are checked
 * for range; positions in the bytes are computed locally. */
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
    RING_TAKEN_CELLS = RING_CELLS / 4, /* the reader reports its progress after so much */
    RING_TAKEN_BYTES = RING_DATA_BYTES / 4,
    RING_WINDOWS = 1024, /* windows per endpoint; see shm_window.c */
    RING_BODY_BYTES = 48,
    RING_SPLITS = 16,
};

enum ring_state { RING_OPEN = 0, RING_LEFT = 1, RING_ENDED = 2 };

enum ring_kind {
    RING_HELLO = 1,    /* a: abilities of the writer (enum shm_ability); its bits 32 to 63: the writer's bound
                        * of eager bytes of this peer that wait with it */
    RING_INLINE,       /* a: tag; header and payload in the body */
    RING_EAGER,        /* a: tag; payload_bytes; header, then payload (aligned to 64) in the bytes */
    RING_ANNOUNCE,     /* a: tag; the payload waits until the receiver names a buffer */
    RING_PUT,          /* a: tag; an announcement into a window of the reader */
    RING_GET,          /* a: operation of the writer; reads a window of the reader */
    RING_DONE,         /* a: operation of the reader, which is complete with a status */
    RING_GRANT,        /* a: operation of the reader: write into my memory, then send DONE to mine */
    RING_STAGE,        /* a: operation of the reader: send its payload in pieces to mine */
    RING_PIECE,        /* a: operation of the reader: its next bytes, in a staging slot or behind this cell */
    RING_PIECE_TAKEN,  /* a: staging slots of the reader, one bit each, that are free */
    RING_SPLIT,        /* a: operation of the reader, copied by both sides; see shm_split.c */
    RING_KINDS,
};

#define RING_NO_OFFSET UINT64_MAX /* arena offset of memory outside the arena */

struct ring_cell {
    uint32_t seq;
    uint8_t kind;
    uint8_t inline_bytes; /* payload bytes in the body, after the header (INLINE) */
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
            uint64_t op, bytes, at, offset; /* at: offset in the window */
            uint32_t window, generation, notify;
        } put;
        struct {
            uint64_t bytes, at, offset; /* offset: destination in the writer's arena */
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

/* The first eight bytes of a cell, read by one load. */
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
        _Atomic uint64_t credit_taken; /* cost of eager messages consumed; see shm_message.c */
        _Alignas(64) _Atomic uint32_t is_polling; /* the reader polls the cells: no doorbell is needed */
        _Atomic uint32_t state;        /* enum ring_state */
    } reader;
    struct { /* written by the writer */
        _Alignas(64) _Atomic uint32_t state;
        _Atomic uint32_t is_waiting;  /* the writer waits for space; the reader reports it */
        /* What the writer accesses in the reader's memory: 1 + window, SHM_INSIDE_GRANT, or 0. A line of
         * its own, because the reader polls `is_waiting`. */
        _Alignas(64) _Atomic uint32_t inside;
        /* windows of the reader that the writer holds mapped */
        _Alignas(64) _Atomic uint64_t maps[RING_WINDOWS / 64];
    } writer;
    struct { /* written by both; neighbours lie in different lines */
        _Alignas(64) _Atomic uint64_t taken[8];
    } splits[RING_SPLITS / 8]; /* payloads that both sides copy; see shm_split.c */
    _Alignas(64) struct ring_cell cells[RING_CELLS];
    uint8_t data[RING_DATA_BYTES];
};
_Static_assert(sizeof(struct ring_shared) == RING_SEGMENT_BYTES, "the layout above");

static inline uint64_t ring_align(uint64_t bytes) { return (bytes + 63) & ~(uint64_t)63; }

/* ---- the writer's end ---- */

struct ring_writer {
    struct ring_shared *shared;
    uint64_t cells, bytes; /* written so far */
    uint64_t cells_taken, bytes_taken, credit_taken; /* as last read */
    uint32_t at;           /* cells % RING_CELLS */
    bool is_waiting;            /* the shared flag is set */
};

/* Reads the reader's counters. False: they are impossible. */
bool ring_writer_refresh(struct ring_writer *writer);
/* Whether one cell is free, by the counters last read. */
static inline bool ring_writer_has_cell(const struct ring_writer *writer)
{
    return writer->cells - writer->cells_taken < RING_CELLS;
}
/* Whether one cell and `data_bytes` are free. Sets *broken_out if the reader's counters are impossible. */
bool ring_writer_space(struct ring_writer *writer, size_t data_bytes, bool *broken_out);
/* Requests a report of space. True: there is space already. */
bool ring_writer_wait(struct ring_writer *writer, size_t data_bytes, bool *broken_out);
/* The next cell to fill, except `seq`; valid until ring_writer_publish. */
static inline struct ring_cell *ring_writer_cell(struct ring_writer *writer)
{
    return &writer->shared->cells[writer->at];
}
/* Destination of its `data_bytes`. */
void *ring_writer_data(struct ring_writer *writer, size_t data_bytes);
/* Publishes the cell. The caller then issues a full fence and rings if the reader does not poll: see
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
    uint64_t cells_reported, bytes_reported; /* as reported to the writer */
    uint32_t at;
};

static inline bool ring_reader_ready(const struct ring_reader *reader)
{
    const _Atomic uint32_t *word = (const _Atomic uint32_t *)&reader->shared->cells[reader->at].seq;
    return atomic_load_explicit(word, memory_order_acquire) == (uint32_t)(reader->cells + 1);
}
/* If ready: kind and sizes of the cell, by one load. */
static inline struct ring_head ring_reader_head(const struct ring_reader *reader)
{
    const _Atomic uint64_t *word = (const _Atomic uint64_t *)(const void *)&reader->shared->cells[reader->at];
    uint64_t bits = atomic_load_explicit(word, memory_order_relaxed);
    return (struct ring_head){(uint32_t)bits, (uint8_t)(bits >> 32), (uint8_t)(bits >> 40),
                              (uint16_t)(bits >> 48)};
}
/* If ready: copies the next cell. */
void ring_reader_copy(const struct ring_reader *reader, struct ring_cell *cell_out);
/* The bytes behind the cell; `data_bytes` from the copy. NULL: more than the ring can hold. */
const uint8_t *ring_reader_data(const struct ring_reader *reader, size_t data_bytes);
/* The bytes of a cell are contiguous: a block that would cross the end starts at offset 0. Both ends count
 * the gap. */
static inline uint64_t ring_data_start(uint64_t position, size_t data_bytes)
{
    uint64_t at = position % RING_DATA_BYTES;
    return at + data_bytes > RING_DATA_BYTES ? position + (RING_DATA_BYTES - at) : position;
}
/* Consumes the cell. */
static inline void ring_reader_next(struct ring_reader *reader, size_t data_bytes)
{
    if (data_bytes > 0) reader->bytes = ring_data_start(reader->bytes, data_bytes) + ring_align(data_bytes);
    reader->cells++;
    if (++reader->at == RING_CELLS) reader->at = 0;
}
/* Whether to report now: a quarter of the ring was consumed, or the writer waits and something was
 * consumed. */
static inline bool ring_reader_should_report(const struct ring_reader *reader)
{
    uint64_t cells = reader->cells - reader->cells_reported;
    if (cells == 0) return false;
    if (cells >= RING_TAKEN_CELLS || reader->bytes - reader->bytes_reported >= RING_TAKEN_BYTES) return true;
    return atomic_load_explicit(&reader->shared->writer.is_waiting, memory_order_relaxed) != 0;
}
/* Reports to the writer. True: the writer waits; ring its doorbell. */
bool ring_reader_report(struct ring_reader *reader);

#endif
