/* mode_pair.h - a tensor declared twice, through shards and between the workers, whose results must be the
 * same bits. */
#ifndef TEST_CLIENT_MODE_PAIR_H
#define TEST_CLIENT_MODE_PAIR_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "weft/weft.h"

/* In a worker (fleet.h): prints the failed call, and the worker returns 1. */
#define MUST(session, call)                                                                              \
    do {                                                                                                 \
        enum weft_status status_ = (call);                                                               \
        if (status_ < 0) {                                                                               \
            fprintf(stderr, "%s: %s: %s\n", #call, weft_status_name(status_), weft_error_text(session)); \
            return 1;                                                                                    \
        }                                                                                                \
    } while (0)

struct mode_pair {
    struct weft_tensor *tensor[2]; /* server, all-reduce */
    struct weft_request request[2];
    uint64_t elems;
    float *grad, *out[2];
};

struct mode_plan {
    const char *name, *codec, *optimizer;
    uint32_t dim_count;
    uint64_t dims[2];
    uint64_t chunk_bytes; /* 0: as weft cuts */
    uint32_t chunks;      /* how many the shards hold; 0: not looked at */
};

/* Rank 0's initial weights are mode_pseudo(7, 0, i), those of the other ranks -1. 0: success. */
int mode_pair_declare(struct weft_session *session, const struct mode_plan *plan, struct mode_pair *pair);
/* false: a sentence is printed. */
bool mode_pair_equal(const struct mode_pair *pair, const char *name, uint32_t rank, uint32_t step);
/* Small integers over a power of two would hide rounding: these do not. */
float mode_pseudo(uint32_t rank, uint32_t step, uint64_t i);

#endif
