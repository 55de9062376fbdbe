/* wire.c - the header of every message between the ranks of a group: little-endian, fixed, checked.
 *
 *      0  magic "WFTC"      4  version   5  type   6  kind   7  dtype   8  op   9  plan  10  zero (2)
 *     12  group            16  epoch    20  rank (sender)   24  root   28  lanes  32  message  36  status
 *     40  sequence         48  count    56  chunk elements  64  piece bytes (all_gather_bytes)
 *     72  zero (8, for a later version's use)
 *
 * A data message says how its sender called the operation. The receiver compares: that is how calls that
 * do not match are found and named, instead of being summed or waited for. */
#include "collective/internal.h"

#include <stdio.h>
#include <string.h>

#define MAGIC 0x43544657u
#define VERSION 1u

static void put32(uint8_t *out, uint32_t value)
{
    for (int i = 0; i < 4; i++) out[i] = (uint8_t)(value >> (8 * i));
}
static void put64(uint8_t *out, uint64_t value)
{
    for (int i = 0; i < 8; i++) out[i] = (uint8_t)(value >> (8 * i));
}
static uint32_t get32(const uint8_t *in)
{
    uint32_t value = 0;
    for (int i = 0; i < 4; i++) value |= (uint32_t)in[i] << (8 * i);
    return value;
}
static uint64_t get64(const uint8_t *in) { return get32(in) | (uint64_t)get32(in + 4) << 32; }

void coll_header_write(uint8_t out[COLL_HEADER_BYTES], const struct coll_header *header)
{
    memset(out, 0, COLL_HEADER_BYTES);
    put32(out, MAGIC);
    out[4] = VERSION;
    out[5] = header->type;
    out[6] = header->kind;
    out[7] = header->dtype;
    out[8] = header->op;
    out[9] = header->plan;
    put32(out + 12, header->group);
    put32(out + 16, header->epoch);
    put32(out + 20, header->rank);
    put32(out + 24, header->root);
    put32(out + 28, header->lanes);
    put32(out + 32, header->message);
    put32(out + 36, (uint32_t)header->status);
    put64(out + 40, header->sequence);
    put64(out + 48, header->count);
    put64(out + 56, header->chunk);
    put64(out + 64, header->piece_bytes);
}

bool coll_header_read(const uint8_t *data, size_t bytes, struct coll_header *header_out)
{
    if (bytes != COLL_HEADER_BYTES || get32(data) != MAGIC || data[4] != VERSION) return false;
    if (data[5] < COLL_MESSAGE_DATA || data[5] > COLL_MESSAGE_LEAVE) return false;
    *header_out = (struct coll_header){
        .type = data[5], .kind = data[6], .dtype = data[7], .op = data[8], .plan = data[9],
        .group = get32(data + 12), .epoch = get32(data + 16), .rank = get32(data + 20), .root = get32(data + 24),
        .lanes = get32(data + 28), .message = get32(data + 32), .status = (int32_t)get32(data + 36),
        .sequence = get64(data + 40), .count = get64(data + 48), .chunk = get64(data + 56), .piece_bytes = get64(data + 64),
    };
    return true;
}

const char *coll_header_difference(const struct coll_header *a, const struct coll_header *b)
{
    if (a->kind != b->kind) return "the operation";
    if (a->dtype != b->dtype) return "the element type";
    if (a->count != b->count) return "the count";
    if (a->op != b->op) return "the reduction";
    if (a->root != b->root) return "the root";
    if (a->plan != b->plan) return "the plan";
    if (a->chunk != b->chunk || a->lanes != b->lanes) return "the chunk size or messages in flight of the group";
    if (a->sequence != b->sequence) return "the number of the operation";
    return NULL;
}

void coll_header_describe(const struct coll_header *header, char *out, size_t out_bytes)
{
    const char *kind = weft_coll_kind_name(header->kind), *plan = weft_plan_name(header->plan);
    unsigned long long count = header->count;
    switch (header->kind) {
    case WEFT_COLL_ALL_REDUCE:
    case WEFT_COLL_REDUCE_SCATTER:
        snprintf(out, out_bytes, "%s of %llu %s, %s, plan %s", kind, count, weft_dtype_name(header->dtype), weft_op_name(header->op), plan);
        break;
    case WEFT_COLL_BROADCAST:
        snprintf(out, out_bytes, "%s of %llu %s from rank %u", kind, count, weft_dtype_name(header->dtype), header->root);
        break;
    case WEFT_COLL_ALL_GATHER:
        snprintf(out, out_bytes, "%s of %llu %s, plan %s", kind, count, weft_dtype_name(header->dtype), plan);
        break;
    case WEFT_COLL_ALL_GATHER_BYTES:
        snprintf(out, out_bytes, "%s of up to %llu bytes", kind, count);
        break;
    default:
        snprintf(out, out_bytes, "%s", kind);
    }
}
