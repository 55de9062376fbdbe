/* compress_fixture.h - what the codec tests share: an allocator that counts and fails on demand, and one
 * step of a whole fleet in memory: every worker encodes, one combiner combines, every worker takes and
 * finishes. */
#ifndef WEFT_TESTS_COMPRESS_FIXTURE_H
#define WEFT_TESTS_COMPRESS_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "compress/codec.h"
#include "kernels/kernels.h"
#include "tests/kernels/sample.h"

/* ---- an env whose Nth allocation fails ---- */
struct counting_env {
    struct weft_env env;
    long live, calls, fail_at; /* fail_at 0: never; 1: the first */
};

static inline void *counting_alloc(struct weft_env *env, size_t bytes)
{
    struct counting_env *self = env->context;
    self->calls++;
    if (self->fail_at != 0 && self->calls == self->fail_at) return NULL;
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    assert_non_null(memory);
    memset(memory, 0xa5, bytes); /* contents are undefined: not zero */
    self->live++;
    return memory;
}

static inline void counting_free(struct weft_env *env, void *memory)
{
    struct counting_env *self = env->context;
    if (!memory) return;
    self->live--;
    free(memory);
}

static inline struct weft_env *counting_env_init(struct counting_env *self)
{
    *self = (struct counting_env){.env = *weft_env_system()};
    self->env.alloc = counting_alloc;
    self->env.free = counting_free;
    self->env.context = self;
    return &self->env;
}

/* ---- a fleet ---- */
enum { FLEET_MAX = 16 };

struct fleet {
    struct counting_env memory;
    struct weft_codec_spec spec;
    struct weft_shape shape;
    size_t elems;
    uint32_t ranks;
    struct weft_codec *codecs[FLEET_MAX];
    struct weft_combiner *combiner;
    uint8_t *contributions[FLEET_MAX]; /* of the last round */
    size_t contribution_bytes[FLEET_MAX];
    uint8_t *aggregate; /* of the last round, a copy */
    size_t aggregate_bytes;
};

static inline struct weft_codec_spec spec_of(const char *text)
{
    struct weft_codec_spec spec;
    struct weft_error error = {0};
    assert_int_equal(weft_codec_parse(text, &spec, &error), WEFT_OK);
    return spec;
}

static inline struct weft_shape shape_of(uint64_t rows, uint64_t cols)
{
    return cols == 0 ? (struct weft_shape){.dim_count = 1, .dims = {rows}}
                     : (struct weft_shape){.dim_count = 2, .dims = {rows, cols}};
}

static inline void fleet_open(struct fleet *fleet, const char *text, struct weft_shape shape, uint32_t ranks)
{
    const struct weft_codec_spec wanted = spec_of(text);
    size_t contribution_max = 0, aggregate_max = 0;
    *fleet = (struct fleet){.shape = shape, .ranks = ranks, .elems = weft_shape_elems(&shape)};
    struct weft_env *env = counting_env_init(&fleet->memory);
    fleet->spec = weft_codec_resolve(&wanted, &shape);
    for (uint32_t round = 0; round < weft_codec_rounds(&fleet->spec); round++) {
        const size_t one = weft_codec_contribution_bytes_max(&fleet->spec, &shape, round);
        const size_t all = weft_codec_aggregate_bytes_max(&fleet->spec, &shape, round, ranks);
        contribution_max = one > contribution_max ? one : contribution_max;
        aggregate_max = all > aggregate_max ? all : aggregate_max;
    }
    for (uint32_t r = 0; r < ranks; r++) {
        assert_int_equal(weft_codec_create(env, &fleet->spec, &shape, &fleet->codecs[r]), WEFT_OK);
        fleet->contributions[r] = malloc(contribution_max);
    }
    fleet->aggregate = malloc(aggregate_max);
    assert_int_equal(weft_combiner_create(env, &fleet->spec, &shape, ranks, &fleet->combiner), WEFT_OK);
}

static inline void fleet_close(struct fleet *fleet)
{
    for (uint32_t r = 0; r < fleet->ranks; r++) {
        weft_codec_free(fleet->codecs[r]);
        free(fleet->contributions[r]);
    }
    weft_combiner_free(fleet->combiner);
    free(fleet->aggregate);
    assert_int_equal(fleet->memory.live, 0);
}

static inline void fleet_encode(struct fleet *fleet, uint32_t round, const float *const *grads)
{
    for (uint32_t r = 0; r < fleet->ranks; r++) {
        assert_int_equal(weft_codec_encode(fleet->codecs[r], round, grads ? grads[r] : NULL, 1.0f,
                                           fleet->contributions[r], &fleet->contribution_bytes[r]),
                         WEFT_OK);
        assert_true(fleet->contribution_bytes[r] <=
                    weft_codec_contribution_bytes_max(&fleet->spec, &fleet->shape, round));
    }
}

static inline void fleet_combine(struct fleet *fleet, uint32_t round)
{
    const void *data;
    weft_combiner_begin(fleet->combiner, round);
    for (uint32_t r = 0; r < fleet->ranks; r++)
        assert_int_equal(
            weft_combiner_add(fleet->combiner, fleet->contributions[r], fleet->contribution_bytes[r]),
            WEFT_OK);
    assert_int_equal(weft_combiner_close(fleet->combiner, &data, &fleet->aggregate_bytes), WEFT_OK);
    assert_true(fleet->aggregate_bytes <=
                weft_codec_aggregate_bytes_max(&fleet->spec, &fleet->shape, round, fleet->ranks));
    memcpy(fleet->aggregate, data, fleet->aggregate_bytes);
}

static inline void fleet_take(struct fleet *fleet, uint32_t round)
{
    for (uint32_t r = 0; r < fleet->ranks; r++)
        assert_int_equal(
            weft_codec_take(fleet->codecs[r], round, fleet->aggregate, fleet->aggregate_bytes, fleet->ranks),
            WEFT_OK);
}

/* One whole step without the commit: out gets the result, and all ranks and the combiner agree on its bits.
 * Nothing is allocated on the way. */
static inline void fleet_step(struct fleet *fleet, const float *const *grads, float scale, float *out)
{
    const long calls = fleet->memory.calls;
    float *other = malloc(fleet->elems * sizeof *other);
    for (uint32_t round = 0; round < weft_codec_rounds(&fleet->spec); round++) {
        fleet_encode(fleet, round, round == 0 ? grads : NULL);
        fleet_combine(fleet, round);
        fleet_take(fleet, round);
    }
    assert_int_equal(weft_combiner_finish(fleet->combiner, scale, out), WEFT_OK);
    for (uint32_t r = 0; r < fleet->ranks; r++) {
        assert_int_equal(weft_codec_finish(fleet->codecs[r], scale, other), WEFT_OK);
        assert_memory_equal(other, out, fleet->elems * sizeof *out);
    }
    assert_int_equal(fleet->memory.calls, calls);
    free(other);
}

static inline void fleet_commit(struct fleet *fleet)
{
    for (uint32_t r = 0; r < fleet->ranks; r++)
        weft_codec_commit(fleet->codecs[r]);
}

/* What the rank's codec still owes (elems,), as a checkpoint has it: behind the head of its state. */
static inline void codec_residual(const struct weft_codec *codec, size_t elems, float *residual_out)
{
    uint8_t *saved = malloc(weft_codec_state_bytes(codec));
    assert_int_equal(weft_codec_save(codec, saved), WEFT_OK);
    memcpy(residual_out, saved + CODEC_STATE_HEAD_BYTES, elems * sizeof *residual_out);
    free(saved);
}

static inline void fleet_residual(const struct fleet *fleet, uint32_t rank, float *residual_out)
{
    codec_residual(fleet->codecs[rank], fleet->elems, residual_out);
}

/* One codec and a combiner for `ranks` over a vector of `elems` normal numbers: what the tests of damaged
 * bytes begin with. The contribution of round 0 is in `good`. */
struct lone {
    struct weft_codec_spec spec;
    struct weft_codec *codec;
    struct weft_combiner *combiner;
    uint8_t *good; /* holds any contribution */
    size_t bytes;  /* of `good` */
    float *grad;
};

static inline void lone_open(struct lone *lone, const char *text, size_t elems, uint32_t ranks, uint64_t seed)
{
    const struct weft_shape shape = shape_of(elems, 0);
    struct sample sample = {sample_seed(seed)};
    size_t bytes_max = 0;
    *lone = (struct lone){.spec = spec_of(text), .grad = malloc(elems * sizeof(float))};
    for (uint32_t round = 0; round < weft_codec_rounds(&lone->spec); round++) {
        const size_t bytes = weft_codec_contribution_bytes_max(&lone->spec, &shape, round);
        bytes_max = bytes > bytes_max ? bytes : bytes_max;
    }
    lone->good = malloc(bytes_max);
    sample_fill(&sample, SAMPLE_NORMAL, lone->grad, elems);
    assert_int_equal(weft_codec_create(weft_env_system(), &lone->spec, &shape, &lone->codec), WEFT_OK);
    assert_int_equal(weft_combiner_create(weft_env_system(), &lone->spec, &shape, ranks, &lone->combiner),
                     WEFT_OK);
    assert_int_equal(weft_codec_encode(lone->codec, 0, lone->grad, 1, lone->good, &lone->bytes), WEFT_OK);
    weft_combiner_begin(lone->combiner, 0);
}

static inline void lone_close(struct lone *lone)
{
    weft_codec_free(lone->codec);
    weft_combiner_free(lone->combiner);
    free(lone->good);
    free(lone->grad);
}

#endif
