/* slow_decoder.h - independent decoder of docs/wire.md for the tests: one byte at a time, no tables shared
 * with proto/, no protobuf library, no xxhash. If it differs from the real code, one of the three is wrong.
 */
#ifndef WEFT_TESTS_PROTO_SLOW_DECODER_H
#define WEFT_TESTS_PROTO_SLOW_DECODER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Section 1. Integers of the table by name; floats as bits. */
struct slow_header {
    uint64_t kind, codec, dtype, round, job, incarnation, worker, epoch, tensor, chunk, step, payload_bytes,
        text_bytes, term, flags, skips, good;
    int64_t status, loss_exponent;
    uint32_t lr_bits, weight_bits, weight_sum_bits;
};
/* 0: valid, -1: malformed, -2: another version. */
int slow_header_decode(const uint8_t *data, size_t bytes, struct slow_header *out);
uint32_t slow_xxh32(const uint8_t *data, size_t bytes);

/* Section 2. The message as text, fields in ascending number, one per line, nested ones indented by two
 * blanks: declare
 *       ordinal 3
 *       name "fc1"
 * Returns false for bytes that the section calls malformed. `out` is terminated. */
bool slow_control_decode(const uint8_t *data, size_t bytes, char *out, size_t out_bytes);

/* Section 4. Indices of the stream at the start of `data`; -1: malformed. *consumed_out: its bytes. */
long slow_index_decode(const uint8_t *data, size_t bytes, uint64_t elem_count, uint32_t *indices_out,
                       size_t indices_room, size_t *consumed_out);

#endif
