/* codec.h - members and ops tables of codecs and combiners, and the decoders of both sides (one decoder for
 * both gives equal bits). Private to the module.
 *
 *     codec.c      order of the worker's calls, then ->ops     cast_codec.c, powersgd_codec.c, topk_codec.c,
 *                  quantise_codec.c,
 *                                                                lowbit_codec.c, randomk_codec.c
 *     combiner.c   order of the combiner's calls, then ->ops   tree_combiner.c, union_combiner.c,
 *                  integer_combiner.c
 *
 * codec.c and combiner.c check the order of calls, so an implementation may rely on it: encode(k) is
 * called once per step and round, and again only after WEFT_IN_PROGRESS. */
#ifndef WEFT_COMPRESS_CODEC_H
#define WEFT_COMPRESS_CODEC_H

#include "compress/compress.h"

/* ---- worker ---- */

/* State across steps: a counter and up to two arrays, owned by the codec. */
struct codec_state {
    uint64_t *steps; /* NULL: none */
    float *values[2];
    size_t counts[2];
    bool on_device[2];
    size_t residual_count;     /* number of arrays in units of the gradient (the first ones): rescale
                                * multiplies them */
};

struct codec_ops {
    /* On a device also WEFT_IN_PROGRESS: one part is queued (device.h); called again after it ran. */
    enum weft_status (*encode)(struct weft_codec *codec, uint32_t round, const float *grad, float grad_scale,
                               void *out, size_t *bytes_out);
    /* An earlier encode(round) of this step again; NULL: the bytes that codec_send stored. */
    enum weft_status (*encode_again)(struct weft_codec *codec, uint32_t round, const float *grad,
                                     float grad_scale, void *out, size_t *bytes_out);
    enum weft_status (*take)(struct weft_codec *codec, uint32_t round, const void *aggregate, size_t bytes,
                             uint32_t ranks);
    /* take of a sum before sum_to_aggregate; NULL: that, then take */
    enum weft_status (*take_sum)(struct weft_codec *codec, uint32_t round, const float *sum, size_t bytes);
    enum weft_status (*finish)(struct weft_codec *codec, float scale, float *out);
    void (*commit)(struct weft_codec *codec);   /* after the residual's; NULL: nothing else to do */
    void (*materialise)(struct weft_codec *codec);   /* forms a lazy `residual`; NULL: it is always formed */
    /* adds its counter and second array; NULL: none */
    void (*state)(struct weft_codec *codec, struct codec_state *state);
    void (*free)(struct weft_codec *codec);     /* its own memory, not the base's; also of an incomplete
                                                 * one */
};

/* First member of every worker codec. */
struct weft_codec {
    const struct codec_ops *ops;
    struct weft_env *env;
    struct weft_codec_spec spec;
    struct weft_shape shape;
    size_t elems, piece;   /* contributions are those of pieces of so many elements
                            * (weft_codec_set_pieces); at first all */
    size_t malformed_elem;        /* first element of the piece that the last take refused; written by take */
    struct {
        const void *data; /* of the round's contribution, in memory of the codec; written by codec_send */
        size_t bytes;
    } sent[WEFT_CODEC_ROUNDS_MAX];
    uint32_t rounds;
    uint32_t ranks;        /* that contribute; 0: not known */
    uint32_t worker;       /* with `tensor`: key of the rounding (weft_codec_set_stream) */
    uint64_t tensor;
    struct codec_device *device; /* owned; NULL: in host memory. Else residual and shadow are its, too
                                  * (device.h) */
    float *residual, *shadow; /* owned (elems,): e, and p or e' of the open step; commit swaps them. NULL:
                               * a codec without */
    uint32_t progress; /* calls of this step: 2k + 1 after encode(k), 2k + 2 after take(k); 0: no open
                        * step; written by codec.c */
};

/* Commit: swaps state and shadow. */
static inline void codec_swap(float **a, float **b)
{
    float *const kept = *a;
    *a = *b;
    *b = kept;
}

/* Magnitudes of states and residuals are below 2^120. */
#define CODEC_MAGNITUDE_LIMIT 0x1p120
#define CODEC_MAGNITUDE_LIMIT_BITS WEFT_RESIDUAL_LIMIT_BITS

/* Forms a lazy residual; call before `residual` is read. */
void codec_residual_materialise(const struct weft_codec *codec);
/* Allocates residual (zero) and shadow; false: no memory, weft_codec_free then frees the rest. */
bool codec_residual_open(struct weft_codec *codec, size_t elems);

/* Each allocates and sets all but the common members; NULL: no memory. */
struct weft_codec *cast_codec_create(struct weft_env *env, const struct weft_codec_spec *spec,
                                     const struct weft_shape *shape);

struct weft_codec *lowbit_codec_create(struct weft_env *env, const struct weft_codec_spec *spec,
                                       const struct weft_shape *shape);
struct weft_codec *powersgd_codec_create(struct weft_env *env, const struct weft_codec_spec *spec,
                                         const struct weft_shape *shape);
struct weft_codec *quantise_codec_create(struct weft_env *env, const struct weft_codec_spec *spec,
                                         const struct weft_shape *shape);
struct weft_codec *randomk_codec_create(struct weft_env *env, const struct weft_codec_spec *spec,
                                        const struct weft_shape *shape);
struct weft_codec *topk_codec_create(struct weft_env *env, const struct weft_codec_spec *spec,
                                     const struct weft_shape *shape);

/* Ends an encode: copies the contribution to `out` and keeps where it lies, for a retry in the same step. */
enum weft_status codec_send(struct weft_codec *codec, uint32_t round, const void *data, size_t bytes,
                            void *out, size_t *bytes_out);

/* ---- combiner ---- */
struct combiner_ops {
    void (*begin)(struct weft_combiner *combiner);
    enum weft_status (*add)(struct weft_combiner *combiner, const void *data, size_t bytes);
    void (*close)(struct weft_combiner *combiner, const void **data_out, size_t *bytes_out);
    void (*finish)(struct weft_combiner *combiner, float scale, float *out);
    float *(*residual)(const struct weft_combiner *combiner); /* (elems,); NULL: none */
    /* compress.h, weft_combiner_step_* */
    size_t (*step_bytes_max)(const struct weft_combiner *combiner, uint32_t ranks);
    size_t (*step_save)(const struct weft_combiner *combiner, uint8_t *out);
    enum weft_status (*step_check)(const struct weft_combiner *combiner, const uint8_t *data, size_t bytes);
    void (*step_load)(struct weft_combiner *combiner, const uint8_t *data, size_t bytes,
                      const void **data_out, size_t *bytes_out);
    void (*free)(struct weft_combiner *combiner);
};

/* First member of every combiner. */
struct weft_combiner {
    const struct combiner_ops *ops;
    struct weft_env *env;
    struct weft_codec_spec spec;
    struct weft_shape shape;
    size_t elems;
    uint32_t ranks, rounds;
    uint32_t round, added;
    bool open;             /* between begin and close */
    uint32_t closed_count; /* rounds closed, 0.. */
};

struct weft_combiner *tree_combiner_create(struct weft_env *env, const struct weft_codec_spec *spec,
                                           const struct weft_shape *shape, uint32_t ranks);

struct weft_combiner *integer_combiner_create(struct weft_env *env, const struct weft_codec_spec *spec,
                                              const struct weft_shape *shape, uint32_t ranks);
/* The same for any vector of contributions with k_least to k_most indices; whole but for spec and shape. */
struct weft_combiner *union_combiner_open(struct weft_env *env, uint64_t elems, uint64_t k_least,
                                          uint64_t k_most, uint32_t ranks);
struct weft_combiner *union_combiner_create(struct weft_env *env, const struct weft_codec_spec *spec,
                                            const struct weft_shape *shape, uint32_t ranks);

/* ---- dense, f16, bf16: elements (cast_format.c) ---- */
size_t cast_bytes(enum weft_codec_id id, size_t count);
/* Exponent of elements whose largest magnitude has the bits max_bits, times `factor`; 0 except f16. False:
 * not all finite. */
bool cast_exponent(enum weft_codec_id id, uint32_t max_bits, float factor, int32_t *exponent_out);
/* False when an element is not finite: `out` is then undefined. */
bool cast_pack(enum weft_codec_id id, void *out, const float *in, float factor, size_t count);
/* A sum, unbounded: Inf and NaN are kept. */
void cast_pack_sum(enum weft_codec_id id, void *out, const float *in, size_t count);
/* The same under the exponent of elements whose largest magnitude has the bits peak_bits. */
void cast_pack_peak(enum weft_codec_id id, void *out, const float *in, uint32_t peak_bits, size_t count);
bool cast_well_formed(enum weft_codec_id id, const void *data, size_t bytes, size_t count);
void cast_unpack(enum weft_codec_id id, float *out, const void *data, float factor, size_t count);

/* ---- shapes ---- */
/* powersgd: how many matrices of which shape. */
size_t matrix_count(const struct weft_codec_spec *spec, const struct weft_shape *shape);
size_t matrix_rows(const struct weft_codec_spec *spec, const struct weft_shape *shape);
size_t matrix_cols(const struct weft_codec_spec *spec, const struct weft_shape *shape);
/* Elements of the factors that round `round` sends: P of every matrix in even rounds, Q in odd ones. */
size_t powersgd_count(const struct weft_codec_spec *spec, const struct weft_shape *shape, uint32_t round);
/* Elements that topk and randomk send; topk's after the warm-up. */
size_t topk_count(const struct weft_codec_spec *spec, size_t elems);
/* In step `steps` (counted from 0), and the most in any step. */
size_t topk_count_at(const struct weft_codec_spec *spec, size_t elems, uint64_t steps);
size_t topk_count_max(const struct weft_codec_spec *spec, size_t elems);

/* ---- a saved state (codec_state.c) ---- */
enum { CODEC_STATE_HEAD_BYTES = 32 }; /* the residual follows */

#endif
