/* codecbench.c - see codecbench.h. */
#include "tools/bench/codec/codecbench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "collective/collective.h"
#include "tools/bench/kernels/kernelbench.h"
#include "tools/bench/lib/samples.h"

enum { RANKS_MAX = 64, ROUNDS_MAX = 1000, VARIANTS = 4 };

struct bench {
    struct weft_codec_spec spec;
    struct weft_shape shape;
    size_t elems;
    uint32_t ranks;
    struct weft_codec *codecs[RANKS_MAX];
    struct weft_combiner *combiner;
    uint8_t *contributions[RANKS_MAX];
    size_t bytes[RANKS_MAX];
    float *common, *noise[VARIANTS], *grad, *out; /* (elems,) */
    /* mean: of the gradients of this step; residual: sum of the means of all steps minus the sum of the
     * results */
    double *mean, *residual_sum;
    double encode_s, combine_s, decode_s; /* of this step */
    size_t contribution_bytes[WEFT_CODEC_ROUNDS_MAX];
};

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A sum of uniform numbers approximates a normal distribution. */
static void fill_normal(float *out, size_t count, uint64_t seed)
{
    for (size_t i = 0; i < count; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        const int32_t sum =
            (int32_t)(seed >> 48) + (int32_t)(seed >> 32 & 0xffff) + (int32_t)(seed >> 16 & 0xffff) - 98302;
        out[i] = (float)sum * 0x1p-16f;
    }
}

/* The part common to all ranks and steps: a matrix of rank 2 with few large rows and columns, as gradients of
 * a layer have. */
static void fill_common(float *out, size_t rows, size_t cols, float *scratch)
{
    fill_normal(scratch, 2 * (rows + cols) <= rows * cols ? 2 * (rows + cols) : rows * cols, 77);
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < cols; j++) {
            const size_t size = rows * cols;
            const float a = scratch[i % size], b = scratch[(rows + i) % size];
            const float c = scratch[(2 * rows + j) % size], d = scratch[(2 * rows + cols + j) % size];
            out[i * cols + j] = 2 * (a * a * a * c * c * c + 0.5f * b * d);
        }
}

/* The gradient of a rank in this step: the common part plus noise of its own. */
static void make_grad(struct bench *b, uint32_t rank, uint32_t step)
{
    const float *noise = b->noise[(rank + step) % VARIANTS];
    const size_t turn = ((size_t)rank * 7919 + (size_t)step * 104729) % b->elems;
    for (size_t i = 0; i < b->elems; i++) {
        const size_t from = i + turn < b->elems ? i + turn : i + turn - b->elems;
        b->grad[i] = b->common[i] + 0.5f * noise[from];
    }
}

static bool open_bench(struct bench *b)
{
    struct weft_env *env = weft_env_system();
    bool fine = true;
    size_t capacity = 0;
    for (uint32_t round = 0; round < weft_codec_rounds(&b->spec); round++) {
        const size_t bytes = weft_codec_contribution_bytes_max(&b->spec, &b->shape, round);
        if (bytes > capacity) capacity = bytes;
    }
    float **const vectors[] = {&b->common,   &b->noise[0], &b->noise[1], &b->noise[2],
                               &b->noise[3], &b->grad,     &b->out};
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
        *vectors[i] = weft_alloc_array(env, b->elems, sizeof(float));
        fine &= *vectors[i] != NULL;
    }
    b->mean = weft_alloc_array(env, b->elems, sizeof(double));
    b->residual_sum = weft_alloc_zero(env, b->elems * sizeof(double));
    for (uint32_t r = 0; r < b->ranks && fine; r++) {
        b->contributions[r] = weft_alloc_zero(env, capacity);
        fine = b->contributions[r] && weft_codec_create(env, &b->spec, &b->shape, &b->codecs[r]) == WEFT_OK;
        if (fine) weft_codec_set_stream(b->codecs[r], 0, r);
    }
    fine = fine && b->mean && b->residual_sum &&
           weft_combiner_create(env, &b->spec, &b->shape, b->ranks, &b->combiner) == WEFT_OK;
    for (uint32_t i = 0; i < VARIANTS && fine; i++) fill_normal(b->noise[i], b->elems, i + 1);
    if (fine) fill_common(b->common, b->shape.dims[0], b->shape.dims[1], b->grad);
    return fine;
}

static void close_bench(struct bench *b)
{
    struct weft_env *env = weft_env_system();
    for (uint32_t r = 0; r < b->ranks; r++) {
        weft_free_bytes(env, b->contributions[r]);
        weft_codec_free(b->codecs[r]);
    }
    weft_combiner_free(b->combiner);
    for (uint32_t i = 0; i < VARIANTS; i++) weft_free_bytes(env, b->noise[i]);
    weft_free_bytes(env, b->common);
    weft_free_bytes(env, b->grad);
    weft_free_bytes(env, b->out);
    weft_free_bytes(env, b->mean);
    weft_free_bytes(env, b->residual_sum);
}

/* One round of the codec over all ranks; the work of rank 0 is timed. */
static enum weft_status run_round(struct bench *b, uint32_t round, uint32_t step)
{
    const void *aggregate;
    size_t bytes;
    /* rank 0 is last, so that its gradient is in the cache as after a computation */
    for (uint32_t rank = b->ranks; rank-- > 0;) {
        if (round == 0) {
            make_grad(b, rank, step);
            for (size_t i = 0; i < b->elems; i++) b->mean[i] += (double)b->grad[i] / b->ranks;
        }
        const double begin = now_s();
        WEFT_TRY(weft_codec_encode(b->codecs[rank], round, b->grad, 1.0f, b->contributions[rank],
                                   &b->bytes[rank]));
        if (rank == 0) b->encode_s += now_s() - begin;
    }
    b->contribution_bytes[round] = b->bytes[0];
    double begin = now_s();
    weft_combiner_begin(b->combiner, round);
    for (uint32_t rank = 0; rank < b->ranks; rank++)
        WEFT_TRY(weft_combiner_add(b->combiner, b->contributions[rank], b->bytes[rank]));
    WEFT_TRY(weft_combiner_close(b->combiner, &aggregate, &bytes));
    b->combine_s += now_s() - begin;
    for (uint32_t rank = 0; rank < b->ranks; rank++) {
        begin = now_s();
        WEFT_TRY(weft_codec_take(b->codecs[rank], round, aggregate, bytes, b->ranks));
        if (rank == 0) b->decode_s += now_s() - begin;
    }
    return WEFT_OK;
}

static enum weft_status run_step(struct bench *b, uint32_t step)
{
    b->encode_s = b->combine_s = b->decode_s = 0;
    memset(b->mean, 0, b->elems * sizeof *b->mean);
    for (uint32_t round = 0; round < weft_codec_rounds(&b->spec); round++)
        WEFT_TRY(run_round(b, round, step));
    const double begin = now_s();
    WEFT_TRY(weft_codec_finish(b->codecs[0], 1.0f / (float)b->ranks, b->out));
    b->decode_s += now_s() - begin;
    for (uint32_t rank = 0; rank < b->ranks; rank++) weft_codec_commit(b->codecs[rank]);
    return WEFT_OK;
}

/* |missing| / |given|: `given` of one step, `missing` since the first step. */
static double relative_error(const struct bench *b, double steps)
{
    double missing = 0, given = 0;
    for (size_t i = 0; i < b->elems; i++) {
        missing += b->residual_sum[i] * b->residual_sum[i];
        given += steps * b->mean[i] * steps * b->mean[i];
    }
    return given > 0 ? sqrt(missing / given) : 0;
}

static enum weft_status measure_error(struct bench *b, struct codecbench_row *row)
{
    for (uint32_t step = 0; step < CODECBENCH_STEPS; step++) {
        WEFT_TRY(run_step(b, step));
        for (size_t i = 0; i < b->elems; i++) b->residual_sum[i] += b->mean[i] - (double)b->out[i];
        if (step == 0) row->error = relative_error(b, 1);
    }
    row->error_steps = relative_error(b, CODECBENCH_STEPS);
    return WEFT_OK;
}

/* Bytes read plus written per second by the faster of two copies of the gradient into the result. */
static double copy_rate(struct bench *b)
{
    const size_t bytes = b->elems * sizeof(float) / 64 * 64;
    double begin = now_s();
    memcpy(b->out, b->common, bytes);
    const double plain = now_s() - begin;
    begin = now_s();
    kernelbench_stream_copy(b->out, b->common, bytes);
    const double streamed = now_s() - begin;
    return 2.0 * (double)bytes / (plain < streamed ? plain : streamed);
}

static enum weft_status measure_time(struct bench *b, uint32_t rounds, struct codecbench_row *row)
{
    double encode[ROUNDS_MAX], combine[ROUNDS_MAX], decode[ROUNDS_MAX], copy[ROUNDS_MAX], rate[ROUNDS_MAX];
    for (uint32_t i = 0; i < rounds; i++) {
        copy[i] = copy_rate(b);
        WEFT_TRY(run_step(b, CODECBENCH_STEPS + i));
        encode[i] = b->encode_s;
        combine[i] = b->combine_s;
        decode[i] = b->decode_s;
        rate[i] = (double)b->elems * sizeof(float) / (encode[i] + combine[i] + decode[i]);
    }
    row->encode_s = bench_summarise(encode, rounds).p50;
    row->combine_s = bench_summarise(combine, rounds).p50;
    row->decode_s = bench_summarise(decode, rounds).p50;
    row->gbps = 1e-9 * bench_summarise(rate, rounds).p50;
    row->copy_gbps = 1e-9 * bench_summarise(copy, rounds).p50;
    return WEFT_OK;
}

/* Dense counts as free of work, although its ranks also sum. */
static void set_break_even(const struct bench *b, struct codecbench_row *row)
{
    struct weft_codec_spec dense = {.id = WEFT_CODEC_DENSE};
    struct weft_coll_traffic plain, coded;
    weft_coll_codec_traffic(&dense, &b->shape, b->ranks, NULL, &plain);
    weft_coll_codec_traffic(&b->spec, &b->shape, b->ranks, b->contribution_bytes, &coded);
    row->dense_moved = plain.bytes;
    row->moved = coded.bytes;
    for (uint32_t round = 0; round < weft_codec_rounds(&b->spec); round++)
        row->contribution_bytes += b->contribution_bytes[round];
    row->ratio = (double)row->bytes / (double)row->contribution_bytes;
    const double work_s = row->encode_s + row->combine_s + row->decode_s, saved = plain.bytes - coded.bytes;
    row->pays_below = saved <= 0 ? 0 : saved / work_s;
}

/* The largest power of two not above the square root: the rows of a nearly square matrix. */
static void shape_of(uint64_t elems, struct weft_shape *shape)
{
    uint64_t rows = 1;
    while (4 * rows * rows <= elems) rows *= 2;
    *shape = (struct weft_shape){.dim_count = 2, .dims = {rows, elems / rows}};
}

bool codecbench_run(const struct codecbench_case *wanted, struct codecbench_row *row, const char **sentence)
{
    struct bench b = {.ranks = wanted->ranks < RANKS_MAX ? wanted->ranks : RANKS_MAX};
    const uint32_t rounds = wanted->rounds < ROUNDS_MAX ? wanted->rounds : ROUNDS_MAX;
    shape_of(wanted->bytes / sizeof(float), &b.shape);
    b.elems = weft_shape_elems(&b.shape);
    b.spec = weft_codec_resolve(wanted->spec, &b.shape);
    *row = (struct codecbench_row){
        .spec = b.spec, .rows = b.shape.dims[0], .cols = b.shape.dims[1], .bytes = b.elems * sizeof(float)};
    *sentence = "no memory";
    enum weft_status status = open_bench(&b) ? WEFT_OK : WEFT_ERR_NO_MEMORY;
    if (status == WEFT_OK) status = measure_error(&b, row);
    if (status == WEFT_OK) status = measure_time(&b, rounds, row);
    if (status == WEFT_OK) set_break_even(&b, row);
    else if (status != WEFT_ERR_NO_MEMORY) *sentence = weft_status_text(status);
    close_bench(&b);
    return status == WEFT_OK;
}
