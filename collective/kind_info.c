/* kind_info.c - the table of kinds (kind_info.h). */
#include "collective/kind_info.h"

#include <string.h>

const struct coll_kind_info coll_kind_info[WEFT_COLL_KIND_COUNT] = {
    [0] = {.name = "?"},
    [WEFT_COLL_ALL_REDUCE] = {.name = "all_reduce",
                              .is_reduction = true,
                              .has_dtype = true,
                              .is_retunable = true,
                              .in = COLL_EXTENT_COUNT,
                              .out = COLL_EXTENT_COUNT},
    [WEFT_COLL_REDUCE_SCATTER] = {.name = "reduce_scatter",
                                  .is_reduction = true,
                                  .has_pieces = true,
                                  .has_dtype = true,
                                  .is_retunable = true,
                                  .in_place = COLL_IN_PLACE_OUT_IS_PIECE,
                                  .in = COLL_EXTENT_PIECES,
                                  .out = COLL_EXTENT_PIECE},
    [WEFT_COLL_ALL_GATHER] = {.name = "all_gather",
                              .has_pieces = true,
                              .has_dtype = true,
                              .is_retunable = true,
                              .in_place = COLL_IN_PLACE_IN_IS_PIECE,
                              .in = COLL_EXTENT_PIECE,
                              .out = COLL_EXTENT_PIECES},
    [WEFT_COLL_BROADCAST] = {.name = "broadcast",
                             .has_root = true,
                             .has_one_buffer = true,
                             .root_reads_out = true,
                             .has_dtype = true,
                             .is_retunable = true,
                             .out = COLL_EXTENT_COUNT,
                             .root_out = COLL_EXTENT_COUNT},
    [WEFT_COLL_BARRIER] = {.name = "barrier"},
    [WEFT_COLL_ALL_GATHER_BYTES] = {.name = "all_gather_bytes",
                                    .has_byte_pieces = true,
                                    .in = COLL_EXTENT_COUNT,
                                    .out = COLL_EXTENT_BYTES_MAX},
    [WEFT_COLL_REDUCE] = {.name = "reduce",
                          .is_reduction = true,
                          .has_root = true,
                          .has_dtype = true,
                          .is_retunable = true,
                          .in = COLL_EXTENT_COUNT,
                          .root_in = COLL_EXTENT_COUNT,
                          .root_out = COLL_EXTENT_COUNT},
    [WEFT_COLL_GATHER] = {.name = "gather",
                          .has_root = true,
                          .has_pieces = true,
                          .has_root_counts = true,
                          .has_dtype = true,
                          .is_retunable = true,
                          .in_place = COLL_IN_PLACE_IN_IS_PIECE,
                          .in = COLL_EXTENT_COUNT,
                          .root_in = COLL_EXTENT_PIECE,
                          .root_out = COLL_EXTENT_PIECES},
    [WEFT_COLL_SCATTER] = {.name = "scatter",
                           .has_root = true,
                           .has_pieces = true,
                           .has_root_counts = true,
                           .has_dtype = true,
                           .is_retunable = true,
                           .in_place = COLL_IN_PLACE_OUT_IS_PIECE,
                           .out = COLL_EXTENT_COUNT,
                           .root_in = COLL_EXTENT_PIECES,
                           .root_out = COLL_EXTENT_PIECE},
    [WEFT_COLL_ALL_TO_ALL] = {.name = "all_to_all",
                              .has_pieces = true,
                              .has_counts_out = true,
                              .has_dtype = true,
                              .is_retunable = true,
                              .in = COLL_EXTENT_PIECES,
                              .out = COLL_EXTENT_OUT_PIECES},
    [WEFT_COLL_SEND] = {.name = "send",
                        .is_sendrecv = true,
                        .has_one_buffer = true,
                        .has_dtype = true,
                        .in = COLL_EXTENT_COUNT},
    [WEFT_COLL_RECV] = {.name = "recv",
                        .is_sendrecv = true,
                        .has_one_buffer = true,
                        .has_dtype = true,
                        .out = COLL_EXTENT_COUNT},
    [WEFT_COLL_EXCHANGE_BYTES] = {.name = "exchange_bytes",
                                  .has_byte_pieces = true,
                                  .in = COLL_EXTENT_BYTES_MAX,
                                  .out = COLL_EXTENT_BYTES_MAX},
};

const char *weft_coll_kind_name(enum weft_coll_kind kind)
{
    return coll_kind_info_of((uint32_t)kind)->name;
}

enum weft_coll_kind weft_coll_kind_parse(const char *name, size_t bytes)
{
    for (int kind = 1; kind < WEFT_COLL_KIND_COUNT; kind++) {
        const char *known = coll_kind_info[kind].name;
        if (strlen(known) == bytes && memcmp(known, name, bytes) == 0) return (enum weft_coll_kind)kind;
    }
    return (enum weft_coll_kind)0;
}
