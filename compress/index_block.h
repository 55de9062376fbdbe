/* index_block.h - reading an index stream in batches, in constant memory. Private to the module. */
#ifndef WEFT_COMPRESS_INDEX_BLOCK_H
#define WEFT_COMPRESS_INDEX_BLOCK_H

#include "compress/compress.h"

struct index_reader {
    const uint8_t *at, *end;   /* borrowed */
    uint64_t window;           /* bits read ahead, the next one lowest; zero above window_bits */
    uint32_t window_bits;
    uint64_t elem_count, block_count, block; /* block: the next to open */
    uint64_t position, block_end;            /* smallest valid next index; end of the open block */
    uint32_t left_in_block, low_bits;
    uint64_t left;             /* indices left */
};

/* WEFT_ERR_MALFORMED when the count is above index_count_max. *index_count_out: what the stream promises. */
enum weft_status index_reader_begin(struct index_reader *reader, const void *data, size_t bytes,
                                    uint64_t elem_count, uint64_t index_count_max, uint64_t *index_count_out);

/* The next up to `capacity` indices, rising over all calls. *count_out 0: the end, and every promise of the
 * stream was kept; reader->at is then the first byte behind it. */
enum weft_status index_reader_read(struct index_reader *reader, uint32_t *indices_out, uint32_t capacity,
                                   uint32_t *count_out);

#endif
