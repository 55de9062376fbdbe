/* call.c - see call.h. */
#include "tests/collective/call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GUARD_BYTES 32u
#define GUARD 0xa5

void call_name(const struct call *c, char *out, size_t out_bytes)
{
    snprintf(out, out_bytes, "%s %s %s %s, ranks %u, root %u, count %llu, seed %llu", weft_plan_name(c->plan),
             weft_coll_kind_name(c->kind), weft_dtype_name(c->dtype), weft_op_name(c->op), c->ranks, c->root,
             (unsigned long long)c->count, (unsigned long long)c->seed);
}

size_t posted_bytes(const struct call *call)
{
    uint64_t elems = 0;
    for (uint32_t rank = 0; rank < call->ranks; rank++) {
        uint64_t both = call_in_elems(call, rank) + call_out_elems(call, rank);
        if (both > elems) elems = both;
    }
    return elems * weft_dtype_bytes(call->dtype) + 3 * GUARD_BYTES + 16;
}

void posted_prepare(struct posted *p, const struct call *call, uint32_t rank, bool in_place)
{
    posted_prepare_at(p, call, rank, in_place, malloc(posted_bytes(call)));
    p->borrowed = false;
}

void posted_prepare_at(struct posted *p, const struct call *call, uint32_t rank, bool in_place,
                       uint8_t *memory)
{
    memset(p, 0, sizeof *p);
    p->call = *call;
    p->rank = rank;
    bool never = call->kind == WEFT_COLL_BROADCAST || call->kind == WEFT_COLL_BARRIER;
    p->in_place = in_place && !never;
    size_t elem = weft_dtype_bytes(call->dtype), in_bytes = call_in_elems(call, rank) * elem,
           out_bytes = call_out_elems(call, rank) * elem;
    size_t whole = in_bytes > out_bytes ? in_bytes : out_bytes;
    size_t first = p->in_place ? whole : in_bytes, second = p->in_place ? 0 : out_bytes;
    first = (first + 7) & ~(size_t)7;
    p->memory = memory;
    p->borrowed = true;
    memset(p->memory, GUARD, first + second + 3 * GUARD_BYTES + 8);
    p->in = p->memory + GUARD_BYTES;
    p->out = p->in + first + GUARD_BYTES;
    if (p->in_place) {
        p->out = p->in;
        bool root = rank == call->root;
        if (call->kind == WEFT_COLL_ALL_GATHER || (call->kind == WEFT_COLL_GATHER && root))
            p->in += rank * in_bytes;
        if (call->kind == WEFT_COLL_REDUCE_SCATTER || (call->kind == WEFT_COLL_SCATTER && root))
            p->out += rank * out_bytes;
    }
    for (uint64_t i = 0; i < call_in_elems(call, rank); i++) reference_input(call, rank, i, p->in + i * elem);
    if (call->kind == WEFT_COLL_BROADCAST && rank == call->root)
        for (uint64_t i = 0; i < call->count; i++) reference_input(call, rank, i, p->out + i * elem);
}

enum weft_status posted_start(struct posted *p, struct weft_group *group, uint64_t deadline_ns)
{
    struct weft_coll_args args = {.kind = p->call.kind,
                                  .in = p->in,
                                  .out = p->out,
                                  .count = p->call.count,
                                  .dtype = p->call.dtype,
                                  .op = p->call.op,
                                  .factor = call_factor(p->rank),
                                  .root = p->call.root,
                                  .plan = p->call.plan,
                                  .deadline_ns = deadline_ns};
    return weft_coll_post(group, &args, outcome_done, &p->outcome, &p->coll, NULL);
}

bool posted_check(const struct posted *p, char *why, size_t why_bytes)
{
    size_t elem = weft_dtype_bytes(p->call.dtype);
    for (uint64_t i = 0; i < call_out_elems(&p->call, p->rank); i++) {
        uint8_t expected[8];
        reference_output(&p->call, p->rank, i, expected);
        if (memcmp(expected, p->out + i * elem, elem) == 0) continue;
        unsigned long long got = 0, want = 0;
        memcpy(&got, p->out + i * elem, elem);
        memcpy(&want, expected, elem);
        snprintf(why, why_bytes, "rank %u element %llu: bits %llx, expected %llx", p->rank,
                 (unsigned long long)i, got, want);
        return false;
    }
    if (p->in_place) return true;
    for (uint64_t i = 0; i < call_in_elems(&p->call, p->rank); i++) {
        uint8_t expected[8];
        reference_input(&p->call, p->rank, i, expected);
        if (memcmp(expected, p->in + i * elem, elem) == 0) continue;
        snprintf(why, why_bytes, "rank %u: input element %llu was changed", p->rank, (unsigned long long)i);
        return false;
    }
    size_t out_bytes = call_out_elems(&p->call, p->rank) * elem;
    for (size_t g = 0; g < GUARD_BYTES; g++) {
        if (p->out[out_bytes + g] == GUARD && p->out[-1 - (ptrdiff_t)g] == GUARD) continue;
        snprintf(why, why_bytes, "rank %u: bytes beside the output were written", p->rank);
        return false;
    }
    return true;
}

void posted_release(struct posted *p)
{
    if (!p->borrowed) free(p->memory);
}
