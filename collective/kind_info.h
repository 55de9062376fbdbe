/* kind_info.h - the properties of each kind of operation, in one table.
 *
 * Checks, plans, costs and the client read the table instead of a switch of their own. A new kind needs a
 * line in kind_info.c and its steps in a plan. */
#ifndef WEFT_COLLECTIVE_KIND_INFO_H
#define WEFT_COLLECTIVE_KIND_INFO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The numbers are on the wire. */
enum weft_coll_kind {
    WEFT_COLL_ALL_REDUCE = 1,
    WEFT_COLL_REDUCE_SCATTER = 2,
    WEFT_COLL_ALL_GATHER = 3,
    WEFT_COLL_BROADCAST = 4,
    WEFT_COLL_BARRIER = 5,
    /* all_gather of pieces whose lengths only the sender knows; compressed all_reduce */
    WEFT_COLL_ALL_GATHER_BYTES = 6,
    WEFT_COLL_REDUCE = 7,
    WEFT_COLL_GATHER = 8,
    WEFT_COLL_SCATTER = 9,
    WEFT_COLL_ALL_TO_ALL = 10,
    WEFT_COLL_SEND = 11, /* sends and recvs of two ranks match in post order */
    WEFT_COLL_RECV = 12,
    /* all_to_all of pieces whose lengths only the sender knows; sparse all_reduce */
    WEFT_COLL_EXCHANGE_BYTES = 13,
};
#define WEFT_COLL_KIND_COUNT 14

/* Elements of one buffer of a call. */
enum coll_extent {
    COLL_EXTENT_NONE = 0,   /* the buffer is ignored */
    COLL_EXTENT_COUNT,      /* count */
    COLL_EXTENT_PIECE,      /* counts[rank], or count */
    COLL_EXTENT_PIECES,     /* the sum of counts, or ranks * count */
    COLL_EXTENT_OUT_PIECES, /* the sum of counts_out, or ranks * count */
    COLL_EXTENT_BYTES_MAX,  /* piece_bytes_max */
};

/* Permitted overlap of `in` and `out`. */
enum coll_in_place {
    COLL_IN_PLACE_SAME = 0,     /* in == out */
    COLL_IN_PLACE_IN_IS_PIECE,  /* `in` is this rank's piece of `out` */
    COLL_IN_PLACE_OUT_IS_PIECE, /* `out` is this rank's piece of `in` */
};

struct coll_kind_info {
    const char *name;
    bool is_reduction;    /* has an op; its result is a sum */
    bool has_root;        /* args.root is the root */
    bool is_sendrecv;     /* args.root is the other rank */
    bool has_byte_pieces; /* pieces in bytes, whose lengths only the sender knows */
    bool has_pieces;      /* one piece of elements for each rank; counts may give each its length */
    bool has_root_counts; /* counts is valid at the root only, so all ranks set `unequal` */
    bool has_counts_out;  /* counts and counts_out go together */
    bool has_one_buffer;  /* error texts call it "the buffer" */
    bool root_reads_out;  /* broadcast: `out` of the root is the input */
    bool has_dtype;       /* args.dtype is valid */
    bool is_retunable;    /* its plan may change while the job runs (core/retune.h) */
    enum coll_in_place in_place;
    enum coll_extent in, out;           /* on all ranks, or on the ranks but the root */
    enum coll_extent root_in, root_out; /* on the root; only with has_root */
};
extern const struct coll_kind_info coll_kind_info[WEFT_COLL_KIND_COUNT];

/* kind may be UNTRUSTED. A number without a kind returns the entry 0: name "?", all else 0. */
static inline const struct coll_kind_info *coll_kind_info_of(uint32_t kind)
{
    return &coll_kind_info[kind < WEFT_COLL_KIND_COUNT ? kind : 0];
}

static inline bool coll_is_reduction(uint32_t kind) { return coll_kind_info_of(kind)->is_reduction; }
static inline bool coll_has_root(uint32_t kind) { return coll_kind_info_of(kind)->has_root; }
static inline bool coll_is_sendrecv(uint32_t kind) { return coll_kind_info_of(kind)->is_sendrecv; }
static inline bool coll_has_byte_pieces(uint32_t kind) { return coll_kind_info_of(kind)->has_byte_pieces; }
/* A kind that trainers call. False: a kind of codecs, or no kind. */
static inline bool coll_is_public(uint32_t kind)
{
    return coll_kind_info_of(kind) != coll_kind_info && !coll_has_byte_pieces(kind);
}
/* A range of the buffer is an operation of its own. */
static inline bool coll_can_be_cut(uint32_t kind)
{
    return coll_kind_info_of(kind)->has_dtype && !coll_kind_info_of(kind)->has_pieces;
}

/* Returns "all_reduce" ..., or "?"; static text. */
const char *weft_coll_kind_name(enum weft_coll_kind kind);
/* The kind of that name of `bytes` bytes; 0: no kind has it. */
enum weft_coll_kind weft_coll_kind_parse(const char *name, size_t bytes);

#endif
