/* spec.c - codec specs: text to spec and back, resolution for one shape.
 *
 * Every rank and shard parses the same text and resolves it against the same shape, and must get the same
 * result, so the result does not depend on locale, machine or build. Numbers are decimal with at most 15
 * significant digits, which a double holds exactly enough to give the same text back. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "compress/codec.h"
#include "compress/lowbit.h"
#include "compress/quantise.h"
#include "compress/sparse.h"

enum { RANK_MAX = 64, ITERATIONS_MAX = WEFT_CODEC_ROUNDS_MAX / 2, DIGITS_MAX = 15 };

static const char *const codec_names[] = {
    [WEFT_CODEC_DENSE] = "dense",       [WEFT_CODEC_F16] = "f16",   [WEFT_CODEC_BF16] = "bf16",
    [WEFT_CODEC_POWERSGD] = "powersgd", [WEFT_CODEC_TOPK] = "topk", [WEFT_CODEC_INT8] = "int8",
    [WEFT_CODEC_INT4] = "int4",         [WEFT_CODEC_SIGN] = "sign", [WEFT_CODEC_E4M3] = "e4m3",
    [WEFT_CODEC_E5M2] = "e5m2",         [WEFT_CODEC_RANDOMK] = "randomk",
};
enum { CODEC_COUNT = sizeof codec_names / sizeof codec_names[0] };

static bool is_integer(enum weft_codec_id id)
{
    return id == WEFT_CODEC_INT8 || id == WEFT_CODEC_INT4;
}

/* Which options a codec has. */
static bool has_seed(enum weft_codec_id id)
{
    return id == WEFT_CODEC_POWERSGD || is_integer(id) || id == WEFT_CODEC_RANDOMK;
}

static bool has_ratio(enum weft_codec_id id)
{
    return id == WEFT_CODEC_TOPK || id == WEFT_CODEC_RANDOMK;
}

static bool has_min_count(enum weft_codec_id id)
{
    return has_ratio(id) || is_integer(id) || is_lowbit(id);
}

static struct weft_codec_spec default_spec(enum weft_codec_id id)
{
    struct weft_codec_spec spec = {.id = id};
    if (id == WEFT_CODEC_POWERSGD) {
        spec.rank = 4;
        spec.iterations = 1;
        spec.min_ratio = 2.0;
    }
    if (has_seed(id)) spec.seed = 1;
    if (has_ratio(id)) spec.ratio = 0.01;
    if (has_min_count(id)) spec.min_count = 1024;
    if (id == WEFT_CODEC_TOPK) spec.masking = 1;
    if (id == WEFT_CODEC_RANDOMK) spec.feedback = 1.0;
    return spec;
}

/* ---- numbers, without the locale ---- */

/* The shortest decimal that parses to the same double. */
static void format_decimal(double value, char *out, size_t out_bytes)
{
    for (int precision = 1; precision <= DIGITS_MAX; precision++) {
        double back;
        snprintf(out, out_bytes, "%.*g", precision, value);
        for (char *c = out; *c; c++)
            if (*c == ',') *c = '.'; /* a locale with a decimal comma */
        if (weft_decimal_parse(out, strlen(out), &back) && back == value) return;
    }
}

/* ---- parse ---- */

#define OF(codec) (1u << WEFT_CODEC_##codec)
#define HAVE_RATIO (OF(TOPK) | OF(RANDOMK))
#define HAVE_SEED (OF(POWERSGD) | OF(INT8) | OF(INT4) | OF(RANDOMK))
#define HAVE_MIN_COUNT (HAVE_RATIO | OF(INT8) | OF(INT4) | OF(E4M3) | OF(E5M2) | OF(SIGN))
#define WHOLE(groups_, name_, field_, member_, min_, max_) \
    {.name = name_, .type = WEFT_KEY_WHOLE, .groups = groups_, .min = min_, .max = max_, \
     WEFT_KEY_AT(field_, struct weft_codec_spec, member_)}
#define FLAG(groups_, name_, member_) \
    {.name = name_, .type = WEFT_KEY_CHOICE, .groups = groups_, .choices = "0|1", \
     WEFT_KEY_AT(WEFT_FIELD_U32, struct weft_codec_spec, member_)}
#define DECIMAL(groups_, name_, member_) \
    .name = name_, .type = WEFT_KEY_DECIMAL, .groups = groups_, \
    WEFT_KEY_AT(WEFT_FIELD_F64, struct weft_codec_spec, member_)

static const struct weft_key keys[] = {
    WHOLE(OF(POWERSGD), "rank", WEFT_FIELD_U32, rank, 1, RANK_MAX),
    WHOLE(OF(POWERSGD), "iterations", WEFT_FIELD_U32, iterations, 1, ITERATIONS_MAX),
    FLAG(OF(POWERSGD), "stacked", stacked),
    {DECIMAL(OF(POWERSGD), "min_ratio", min_ratio), .low = 1, .high = 1e6},
    WHOLE(HAVE_SEED, "seed", WEFT_FIELD_U64, seed, 0, UINT64_MAX),
    {DECIMAL(HAVE_RATIO, "ratio", ratio), .high = 1, .above_low = true},
    {DECIMAL(OF(RANDOMK), "feedback", feedback), .high = 1},
    WHOLE(HAVE_MIN_COUNT, "min_count", WEFT_FIELD_U64, min_count, 0, UINT64_MAX),
    {DECIMAL(OF(TOPK), "momentum", momentum), .high = 1, .below_high = true},
    {DECIMAL(OF(TOPK), "clip", clip), .high = 1e30},
    WHOLE(OF(TOPK), "warmup_steps", WEFT_FIELD_U64, warmup_steps, 0, UINT64_MAX),
    FLAG(OF(TOPK), "nesterov", nesterov),
    FLAG(OF(TOPK), "masking", masking),
    FLAG(OF(TOPK), "global", global),
    {0},
};

static const char *options_of(enum weft_codec_id id)
{
    if (id == WEFT_CODEC_POWERSGD)
        return "rank=1..64, iterations=1..8, stacked=0|1, min_ratio=1..1000000, seed=0..18446744073709551615";
    if (id == WEFT_CODEC_TOPK)
        return "ratio above 0 up to 1, momentum=0.. below 1, nesterov=0|1, masking=0|1, global=0|1, "
               "clip=0..1e30, warmup_steps=0..,"
               " min_count=0..";
    if (id == WEFT_CODEC_RANDOMK)
        return "ratio above 0 up to 1, feedback=0..1, seed=0..18446744073709551615, "
               "min_count=0..18446744073709551615";
    if (is_lowbit(id)) return "min_count=0..18446744073709551615";
    if (is_integer(id)) return "seed=0..18446744073709551615, min_count=0..18446744073709551615";
    return "none";
}

enum weft_status weft_codec_parse(const char *text, struct weft_codec_spec *spec_out,
                                  struct weft_error *error)
{
    const size_t name_length = strcspn(text, ":");
    struct weft_codec_spec spec;
    int id = 0;
    while (id < CODEC_COUNT &&
           (strlen(codec_names[id]) != name_length || memcmp(codec_names[id], text, name_length) != 0))
        id++;
    if (id == CODEC_COUNT)
        return weft_error_set(error, WEFT_ERR_INVALID,
                              "codec \"%.*s\" is unknown; use dense, f16, bf16, powersgd, topk, randomk, "
                              "int8, int4, e4m3, e5m2 or sign, for example \"powersgd:rank=4\"",
                              (int)(name_length < 60 ? name_length : 60), text);
    spec = default_spec((enum weft_codec_id)id);

    const char *at = text + name_length + (text[name_length] == ':');
    struct weft_key_value item;
    bool more = true;
    while (more) {
        more = weft_key_value_next(&at, "", &item);
        if (!more && !(at > text && strchr(":,", at[-1]))) break;
        if (!more) item = (struct weft_key_value){.item = "", .name = ""}; /* the text ends in ':' or ',' */
        const enum weft_key_result result = weft_key_value_set(keys, 1u << spec.id, &item, &spec);
        if (result == WEFT_KEY_STORED) continue;
        return weft_error_set(error, WEFT_ERR_INVALID, "codec \"%s\": %s \"%.*s\"; options of it: %s",
                              codec_names[id],
                              result == WEFT_KEY_REFUSED && item.value ? "bad value in" : "unknown option",
                              (int)(item.item_bytes < 60 ? item.item_bytes : 60), item.item,
                              options_of(spec.id));
    }
    *spec_out = spec;
    return WEFT_OK;
}

static void format_topk(const struct weft_codec_spec *spec, const char *ratio, char *out, size_t out_bytes)
{
    char momentum[48] = "", clip[48] = "", warmup[48] = "", number[32];
    if (spec->momentum > 0) {
        format_decimal(spec->momentum, number, sizeof number);
        snprintf(momentum, sizeof momentum, ",momentum=%s", number);
    }
    if (spec->clip > 0) {
        format_decimal(spec->clip, number, sizeof number);
        snprintf(clip, sizeof clip, ",clip=%s", number);
    }
    if (spec->warmup_steps > 0) snprintf(warmup, sizeof warmup, ",warmup_steps=%" PRIu64, spec->warmup_steps);
    snprintf(out, out_bytes, "topk:ratio=%s,min_count=%" PRIu64 "%s%s%s%s%s%s", ratio, spec->min_count,
             momentum, spec->nesterov ? ",nesterov=1" : "", spec->masking ? "" : ",masking=0",
             spec->global ? ",global=1" : "", clip, warmup);
}

static void format_randomk(const struct weft_codec_spec *spec, const char *ratio, char *out, size_t out_bytes)
{
    char feedback[48] = "", number[32];
    if (spec->feedback != 1.0) {
        format_decimal(spec->feedback, number, sizeof number);
        snprintf(feedback, sizeof feedback, ",feedback=%s", number);
    }
    snprintf(out, out_bytes, "randomk:ratio=%s%s,seed=%" PRIu64 ",min_count=%" PRIu64, ratio, feedback,
             spec->seed, spec->min_count);
}

void weft_codec_format(const struct weft_codec_spec *spec, char *out, size_t out_bytes)
{
    char number[32], iterations[32] = "";
    WEFT_ASSERT((unsigned)spec->id < CODEC_COUNT);
    switch (spec->id) {
    case WEFT_CODEC_POWERSGD:
        format_decimal(spec->min_ratio, number, sizeof number);
        if (spec->iterations > 1)
            snprintf(iterations, sizeof iterations, ",iterations=%" PRIu32, spec->iterations);
        snprintf(out, out_bytes, "powersgd:rank=%" PRIu32 "%s%s,min_ratio=%s,seed=%" PRIu64, spec->rank,
                 iterations, spec->stacked ? ",stacked=1" : "", number, spec->seed);
        break;
    case WEFT_CODEC_TOPK:
        format_decimal(spec->ratio, number, sizeof number);
        format_topk(spec, number, out, out_bytes);
        break;
    case WEFT_CODEC_RANDOMK:
        format_decimal(spec->ratio, number, sizeof number);
        format_randomk(spec, number, out, out_bytes);
        break;
    case WEFT_CODEC_SIGN:
    case WEFT_CODEC_E4M3:
    case WEFT_CODEC_E5M2:
        snprintf(out, out_bytes, "%s:min_count=%" PRIu64, codec_names[spec->id], spec->min_count);
        break;
    case WEFT_CODEC_INT8:
    case WEFT_CODEC_INT4:
        snprintf(out, out_bytes, "%s:seed=%" PRIu64 ",min_count=%" PRIu64, codec_names[spec->id], spec->seed,
                 spec->min_count);
        break;
    default: snprintf(out, out_bytes, "%s", codec_names[spec->id]); break;
    }
}

/* ---- shapes ---- */

uint64_t weft_shape_elems(const struct weft_shape *shape)
{
    uint64_t elems = 1;
    if (shape->dim_count == 0 || shape->dim_count > WEFT_TENSOR_DIMS_MAX) return 0;
    for (uint32_t d = 0; d < shape->dim_count; d++) {
        if (shape->dims[d] == 0 || elems > UINT64_MAX / shape->dims[d]) return 0;
        elems *= shape->dims[d];
    }
    return elems;
}

size_t matrix_count(const struct weft_codec_spec *spec, const struct weft_shape *shape)
{
    return spec->stacked ? shape->dims[0] : 1;
}

size_t matrix_rows(const struct weft_codec_spec *spec, const struct weft_shape *shape)
{
    return shape->dims[spec->stacked ? 1 : 0];
}

size_t matrix_cols(const struct weft_codec_spec *spec, const struct weft_shape *shape)
{
    size_t cols = 1;
    for (uint32_t d = spec->stacked ? 2 : 1; d < shape->dim_count; d++)
        cols *= shape->dims[d];
    return cols;
}

size_t powersgd_count(const struct weft_codec_spec *spec, const struct weft_shape *shape, uint32_t round)
{
    return matrix_count(spec, shape) * spec->rank *
           (round % 2 == 0 ? matrix_rows(spec, shape) : matrix_cols(spec, shape));
}

size_t topk_count(const struct weft_codec_spec *spec, size_t elems)
{
    const double wanted = ceil((double)elems * spec->ratio);
    if (!(wanted >= 1.0)) return 1;
    return wanted >= (double)elems ? elems : (size_t)wanted;
}

/* Deep gradient compression begins with a quarter of the elements and takes a quarter of that, and so on,
 * in equal parts of the warm-up, until the ratio is reached. */
size_t topk_count_at(const struct weft_codec_spec *spec, size_t elems, uint64_t steps)
{
    struct weft_codec_spec then = *spec;
    uint32_t stages = 0;
    for (double share = 0.25; share > spec->ratio; share *= 0.25)
        stages++;
    if (steps >= spec->warmup_steps || stages == 0) return topk_count(spec, elems);
    const double done = (double)steps / (double)spec->warmup_steps; /* below 1 */
    then.ratio = ldexp(1.0, -2 * ((int)(done * stages) + 1));
    return topk_count(&then, elems);
}

size_t topk_count_max(const struct weft_codec_spec *spec, size_t elems)
{
    return topk_count_at(spec, elems, 0);
}

struct weft_codec_spec weft_codec_resolve(const struct weft_codec_spec *spec, const struct weft_shape *shape)
{
    const uint64_t elems = weft_shape_elems(shape);
    bool worth = true;
    if (elems == 0) {
        worth = false;
    } else if (spec->id == WEFT_CODEC_POWERSGD) {
        if (shape->dim_count < 2 + spec->stacked) return default_spec(WEFT_CODEC_DENSE);
        const double rows = (double)matrix_rows(spec, shape), cols = (double)matrix_cols(spec, shape);
        worth = spec->rank >= 1 && spec->rank <= RANK_MAX && spec->iterations >= 1
            && spec->iterations <= ITERATIONS_MAX
            && (rows + cols) * spec->rank * spec->min_ratio < rows * cols;
    } else if (has_ratio(spec->id)) {
        worth = elems >= spec->min_count && elems < UINT32_MAX; /* indices and their number are 32 bits */
    } else if (has_min_count(spec->id)) {
        worth = elems >= spec->min_count;
    }
    return worth ? *spec : default_spec(WEFT_CODEC_DENSE);
}

uint32_t weft_codec_rounds(const struct weft_codec_spec *spec)
{
    if (spec->id == WEFT_CODEC_POWERSGD) return 2 * spec->iterations;
    return spec->id == WEFT_CODEC_RANDOMK || is_integer(spec->id) ? 2 : 1;
}

/* ---- sizes ---- */

static size_t elements_bytes(const struct weft_codec_spec *spec, const struct weft_shape *shape,
                             uint32_t round)
{
    if (spec->id == WEFT_CODEC_POWERSGD)
        return powersgd_count(spec, shape, round) * sizeof(float);
    if (spec->id == WEFT_CODEC_RANDOMK)
        return round == 0 ? sizeof(uint64_t) : topk_count(spec, weft_shape_elems(shape)) * sizeof(float);
    if (is_lowbit(spec->id)) return cast_bytes(WEFT_CODEC_BF16, weft_shape_elems(shape)); /* the aggregate */
    return cast_bytes(spec->id, weft_shape_elems(shape));
}

size_t weft_codec_contribution_bytes_max(const struct weft_codec_spec *spec, const struct weft_shape *shape,
                                         uint32_t round)
{
    if (is_integer(spec->id)) return quantise_contribution_bytes(spec->id, weft_shape_elems(shape), round);
    if (is_lowbit(spec->id)) return lowbit_bytes(spec->id, weft_shape_elems(shape));
    return weft_codec_aggregate_bytes_max(spec, shape, round, 1);
}

size_t weft_codec_aggregate_bytes_max(const struct weft_codec_spec *spec, const struct weft_shape *shape,
                                      uint32_t round, uint32_t ranks)
{
    if (is_integer(spec->id))
        return quantise_aggregate_bytes(spec->id, weft_shape_elems(shape), round, ranks);
    if (spec->id != WEFT_CODEC_TOPK) return elements_bytes(spec, shape, round);
    const uint64_t elems = weft_shape_elems(shape), one = topk_count_max(spec, elems);
    /* the union of all ranks' indices */
    const uint64_t all = spec->global ? one : one > elems / ranks ? elems : one * ranks;
    const size_t sparse = weft_index_bytes_max(elems, all) + all * sizeof(float),
                 dense = sparse_dense_bytes(elems);
    return ranks > 1 && sparse > dense ? dense : sparse;
}

enum weft_combine_kind weft_codec_combine_kind(const struct weft_codec_spec *spec, uint32_t round)
{
    const bool is_randomk = spec->id == WEFT_CODEC_RANDOMK && round == 1;
    return is_randomk || spec->id == WEFT_CODEC_DENSE || spec->id == WEFT_CODEC_POWERSGD
               ? WEFT_COMBINE_SUM_F32
               : WEFT_COMBINE_GATHER;
}
