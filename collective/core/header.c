/* header.c - the header of every message between the ranks of a group: little-endian, fixed size, checked.
 *
 *      0  magic "WFTC"      4  version   5  type   6  kind   7  dtype   8  op   9  plan  10  plan version
 *     12  group            16  epoch    20  rank (sender)   24  root   28  lanes  32  message  36  status
 *     40  sequence         48  count    56  chunk elements  64  piece bytes (of unequal pieces)
 *     72  cuts: hash of the unequal piece lengths and of the measured links; 0: none
 *
 * op: the reduction; for other kinds the public call that posted the operation (enum weft_coll_label). root:
 * for kinds without a root the subject, a tensor (weft_coll_args.subject). A data message carries the call of
 * its sender. The receiver compares it with its own call and reports a difference, so calls that differ are
 * neither summed nor waited for. */
#include "collective/core/header.h"

#include <stdio.h>
#include <string.h>

#define MAGIC 0x43544657u
#define VERSION 1u

void coll_header_write(uint8_t out[COLL_HEADER_BYTES], const struct coll_header *header)
{
    memset(out, 0, COLL_HEADER_BYTES);
    put_le32(out, MAGIC);
    out[4] = VERSION;
    out[5] = header->type;
    out[6] = header->kind;
    out[7] = header->dtype;
    out[8] = header->op;
    out[9] = header->plan;
    out[10] = (uint8_t)header->plan_version;
    out[11] = (uint8_t)(header->plan_version >> 8);
    put_le32(out + 12, header->group);
    put_le32(out + 16, header->epoch);
    put_le32(out + 20, header->rank);
    put_le32(out + 24, header->root);
    put_le32(out + 28, header->lanes);
    put_le32(out + 32, header->message);
    put_le32(out + 36, (uint32_t)header->status);
    put_le64(out + 40, header->sequence);
    put_le64(out + 48, header->count);
    put_le64(out + 56, header->chunk);
    put_le64(out + 64, header->piece_bytes);
    put_le64(out + 72, header->cuts);
}

bool coll_header_read(const uint8_t *data, size_t bytes, struct coll_header *header_out)
{
    if (bytes != COLL_HEADER_BYTES || get_le32(data) != MAGIC || data[4] != VERSION) return false;
    if (data[5] < COLL_MESSAGE_DATA || data[5] > COLL_MESSAGE_RETUNE_COMMIT) return false;
    *header_out = (struct coll_header){
        .type = data[5],
        .kind = data[6],
        .dtype = data[7],
        .op = data[8],
        .plan = data[9],
        .plan_version = (uint16_t)(data[10] | data[11] << 8),
        .group = get_le32(data + 12),
        .epoch = get_le32(data + 16),
        .rank = get_le32(data + 20),
        .root = get_le32(data + 24),
        .lanes = get_le32(data + 28),
        .message = get_le32(data + 32),
        .status = (int32_t)get_le32(data + 36),
        .sequence = get_le64(data + 40),
        .count = get_le64(data + 48),
        .chunk = get_le64(data + 56),
        .piece_bytes = get_le64(data + 64),
        .cuts = get_le64(data + 72),
    };
    return true;
}

const char coll_header_count[] = "the count";
const char coll_header_cuts[] = "the counts of the pieces, or what was measured of the links";

static const char *different_subjects(const struct coll_header *a, const struct coll_header *b)
{
    if ((a->root | b->root) & WEFT_SUBJECT_BATCH) return "the calls that were put together in it";
    /* pushes of tensors, by one rank in the agreed order and by the other in that of its calls */
    if (a->root != 0 && b->root != 0 && coll_header_has_any_subject(a) != coll_header_has_any_subject(b))
        return "the tensor, or in the option client.push_order";
    return "the tensor";
}

const char *coll_header_difference(const struct coll_header *a, const struct coll_header *b)
{
    if (a->kind != b->kind) return "the operation";
    const bool has_subject = !coll_has_root(a->kind);
    if (has_subject && a->root != b->root &&
        !(coll_header_has_any_subject(a) && coll_header_has_any_subject(b)))
        return different_subjects(a, b);
    if (a->dtype != b->dtype) return "the element type";
    if (a->op != b->op && !coll_is_reduction(a->kind)) return "the call that it belongs to";
    if (a->count != b->count) return coll_header_count;
    if (a->cuts != b->cuts) return coll_header_cuts;
    if (a->op != b->op) return "the reduction";
    if (!has_subject && a->root != b->root) return "the root";
    if (a->plan_version != b->plan_version) return "the version of the table of plans";
    if (a->plan != b->plan) return "the plan (collective.plan, weft_set_plan)";
    if (a->chunk != b->chunk || a->lanes != b->lanes)
        return "the chunk size or messages in flight of the group (collective.chunk_bytes, "
               "collective.inflight)";
    if (a->sequence != b->sequence) return "the number of the operation";
    return NULL;
}

/* Name of the public call that posted the operation as part of its work. NULL: the user called the
 * operation. */
static const char *label_of(const struct coll_header *header)
{
    static const char *const labels[WEFT_COLL_LABEL_COUNT] = {NULL,
                                                              "split",
                                                              "mesh_create or mesh_comm",
                                                              "tensor_init",
                                                              "tensor_share",
                                                              "state_load",
                                                              "step_begin",
                                                              "step_begin (to choose codecs)",
                                                              "step_end",
                                                              "tensor_free",
                                                              "step_begin (to publish the order of tensors, "
                                                              "as client.learn_order demands)",
                                                              "nccl_open",
                                                              "step_end (to compare weights, every "
                                                              "client.hash_every steps)"};
    if (coll_is_reduction(header->kind) || header->kind == WEFT_COLL_SEND ||
        header->op >= WEFT_COLL_LABEL_COUNT)
        return NULL;
    return labels[header->op];
}

/* The library sums the weights of a weighted mean: this is no call of the user
 * (client/call/weighted_average.c). */
static bool may_be_weights(const struct coll_header *header)
{
    return header->kind == WEFT_COLL_ALL_REDUCE && header->dtype == WEFT_F64 && header->count == 2 &&
           header->op == WEFT_SUM;
}

/* So it does for the vote of an elastic job (client/elastic/step.c). */
static bool may_be_vote(const struct coll_header *header)
{
    return header->kind == WEFT_COLL_ALL_REDUCE && header->dtype == WEFT_U32 && header->count == 1 &&
           header->op == WEFT_MAX;
}

static const char *origin_of(const struct coll_header *header)
{
    if (may_be_weights(header)) return " (a weighted all_reduce begins with it)";
    return may_be_vote(header) ? " (step_end of an elastic job votes with it)" : "";
}

static void describe_operation(const struct coll_header *header, char *out, size_t out_bytes)
{
    const char *kind = weft_coll_kind_name(header->kind), *plan = weft_plan_name(header->plan);
    unsigned long long count = header->count;
    switch (header->kind) {
    case WEFT_COLL_ALL_REDUCE:
    case WEFT_COLL_REDUCE_SCATTER:
        snprintf(out, out_bytes, "%s of %llu %s, %s, plan %s%s", kind, count, weft_dtype_name(header->dtype),
                 weft_op_name(header->op), plan, origin_of(header));
        break;
    case WEFT_COLL_REDUCE:
        snprintf(out, out_bytes, "%s of %llu %s, %s, root %u, plan %s", kind, count,
                 weft_dtype_name(header->dtype), weft_op_name(header->op), header->root, plan);
        break;
    case WEFT_COLL_BROADCAST:
        snprintf(out, out_bytes, "%s of %llu %s from rank %u", kind, count, weft_dtype_name(header->dtype),
                 header->root);
        break;
    case WEFT_COLL_ALL_GATHER:
    case WEFT_COLL_ALL_TO_ALL:
        if (header->kind == WEFT_COLL_ALL_TO_ALL && count == 0 && header->cuts != 0)
            snprintf(out, out_bytes, "%s of %s with counts, plan %s", kind, weft_dtype_name(header->dtype),
                     plan);
        else
            snprintf(out, out_bytes, "%s of %llu %s, plan %s", kind, count, weft_dtype_name(header->dtype),
                     plan);
        break;
    case WEFT_COLL_ALL_GATHER_BYTES:
    case WEFT_COLL_EXCHANGE_BYTES:
        snprintf(out, out_bytes, "%s of up to %llu bytes", kind, count);
        break;
    case WEFT_COLL_GATHER:
    case WEFT_COLL_SCATTER:
        if (header->cuts != 0)
            snprintf(out, out_bytes, "%s of %s with counts, root %u", kind, weft_dtype_name(header->dtype),
                     header->root);
        else
            snprintf(out, out_bytes, "%s of %llu %s, root %u", kind, count, weft_dtype_name(header->dtype),
                     header->root);
        break;
    case WEFT_COLL_SEND:
        snprintf(out, out_bytes, "message of %llu %s", count, weft_dtype_name(header->dtype));
        break;
    default:
        snprintf(out, out_bytes, "%s", kind);
    }
}

void coll_header_describe(const struct coll_header *header, char *out, size_t out_bytes)
{
    char operation[160];
    const char *label = label_of(header);
    describe_operation(header, operation, sizeof operation);
    if (label) snprintf(out, out_bytes, "%s (%s)", label, operation);
    else snprintf(out, out_bytes, "%s", operation);
}
