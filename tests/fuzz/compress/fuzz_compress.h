/* fuzz_compress.h - shared by the codec targets: codecs, small tensors, synthetic gradients. The first byte
 * of an input selects codec and round, the rest is the untrusted message. */
#ifndef WEFT_TESTS_FUZZ_COMPRESS_H
#define WEFT_TESTS_FUZZ_COMPRESS_H

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "compress/compress.h"
#include "tests/fuzz/fuzz.h"

enum {
    FUZZ_ROWS = 12,
    FUZZ_COLS = 20,
    FUZZ_ELEMS = FUZZ_ROWS * FUZZ_COLS,
    FUZZ_RANKS = 3,
    FUZZ_BYTES = 4096
};

struct fuzz_case {
    struct weft_codec_spec spec;
    struct weft_shape shape;
    uint32_t round;
};

static inline struct fuzz_case fuzz_case_of(uint8_t choice)
{
    static const struct {
        const char *text;
        uint32_t round;
    } cases[] = {{"dense", 0},
                 {"f16", 0},
                 {"bf16", 0},
                 {"powersgd:rank=2,min_ratio=1", 0},
                 {"powersgd:rank=2,min_ratio=1", 1},
                 {"topk:ratio=0.1,min_count=0", 0},
                 {"topk:ratio=0.004,min_count=0", 0},
                 {"topk:ratio=1,min_count=0", 0},
                 {"int8:min_count=0", 0},
                 {"int8:min_count=0", 1},
                 {"int4:min_count=0", 0},
                 {"int4:min_count=0", 1},
                 {"sign:min_count=0", 0},
                 {"e4m3:min_count=0", 0},
                 {"e5m2:min_count=0", 0},
                 {"randomk:ratio=0.1,min_count=0", 0},
                 {"randomk:ratio=0.1,min_count=0", 1},
                 {"topk:ratio=0.05,min_count=0,momentum=0.9,clip=3,warmup_steps=5", 0},
                 {"topk:ratio=0.1,min_count=0,global=1", 0},
                 {"powersgd:rank=2,iterations=2,min_ratio=1", 2},
                 {"powersgd:rank=2,iterations=2,min_ratio=1", 1}};
    const unsigned which = choice % (sizeof cases / sizeof cases[0]);
    struct fuzz_case chosen = {.shape = {.dim_count = 2, .dims = {FUZZ_ROWS, FUZZ_COLS}},
                               .round = cases[which].round};
    if (weft_codec_parse(cases[which].text, &chosen.spec, NULL) != WEFT_OK) abort();
    if (weft_codec_resolve(&chosen.spec, &chosen.shape).id != chosen.spec.id) abort();
    return chosen;
}

static inline void fuzz_gradient(uint32_t rank, float *out)
{
    for (uint32_t i = 0; i < FUZZ_ELEMS; i++)
        out[i] = (float)((i * 37 + rank * 101) % 64) / 16.0f - 2.0f;
}

static inline void fuzz_expect(bool condition)
{
    if (!condition) abort();
}

/* FUZZ_RANKS workers and a combiner, ready to encode contributions of `round`. */
struct fuzz_fleet {
    struct weft_codec *codecs[FUZZ_RANKS];
    struct weft_combiner *combiner;
    uint8_t contributions[FUZZ_RANKS][FUZZ_BYTES];
    size_t bytes[FUZZ_RANKS];
};

static inline void fuzz_fleet_open(struct fuzz_fleet *fleet, const struct fuzz_case *chosen)
{
    struct weft_env *env = weft_env_system();
    float grad[FUZZ_ELEMS];
    fuzz_expect(weft_combiner_create(env, &chosen->spec, &chosen->shape, FUZZ_RANKS, &fleet->combiner) ==
                WEFT_OK);
    for (uint32_t r = 0; r < FUZZ_RANKS; r++) {
        fuzz_expect(weft_codec_contribution_bytes_max(&chosen->spec, &chosen->shape, chosen->round) <=
                    FUZZ_BYTES);
        fuzz_expect(weft_codec_create(env, &chosen->spec, &chosen->shape, &fleet->codecs[r]) == WEFT_OK);
        fuzz_gradient(r, grad);
        fuzz_expect(weft_codec_encode(fleet->codecs[r], 0, grad, 1.0f, fleet->contributions[r],
                                      &fleet->bytes[r]) == WEFT_OK);
    }
    for (uint32_t round = 0; round < chosen->round; round++) {
        const void *data;
        size_t bytes;
        weft_combiner_begin(fleet->combiner, round);
        for (uint32_t r = 0; r < FUZZ_RANKS; r++)
            fuzz_expect(weft_combiner_add(fleet->combiner, fleet->contributions[r], fleet->bytes[r]) ==
                        WEFT_OK);
        fuzz_expect(weft_combiner_close(fleet->combiner, &data, &bytes) == WEFT_OK);
        for (uint32_t r = 0; r < FUZZ_RANKS; r++) {
            fuzz_expect(weft_codec_take(fleet->codecs[r], round, data, bytes, FUZZ_RANKS) == WEFT_OK);
            fuzz_expect(weft_codec_encode(fleet->codecs[r], round + 1, NULL, 1.0f, fleet->contributions[r],
                                          &fleet->bytes[r]) == WEFT_OK);
        }
    }
    weft_combiner_begin(fleet->combiner, chosen->round);
}

static inline void fuzz_fleet_close(struct fuzz_fleet *fleet)
{
    weft_combiner_free(fleet->combiner);
    for (uint32_t r = 0; r < FUZZ_RANKS; r++)
        weft_codec_free(fleet->codecs[r]);
}

#endif
