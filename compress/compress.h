/* compress.h - codecs: a gradient as bytes on the wire, with a residual for the rest.
 *
 * A codec works in *rounds*. In round k every worker encodes a contribution, the contributions are
 * combined into one aggregate (by a shard, or by an all-reduce), and every worker takes the aggregate in:
 *
 *     worker:   encode(0) -> bytes ... take(0, aggregate) -> encode(1) -> ... take(last) -> finish(mean)
 *     combiner: add(rank 0), add(rank 1) ... close -> aggregate
 *
 *   dense, f16, bf16   one round, elements                       combined by the tree T
 *   topk               one round, index blocks + values          combined as a sparse union, in T's order
 *   powersgd           two rounds an iteration: P = M Q; then, against the orthogonalised sum P^, Q = M^T P^
 *                      combined by the tree T; the combiner of the even rounds orthogonalises once
 *
 *   int8, int4         two rounds: one exponent per 256 elements, combined as their maximum; then integer
 *                      codes under
 *                      the shared exponents, combined as exact integer sums (compress/quantise.h has the
 *                      bytes)
 *   sign, e4m3, e5m2   one round, codes under each worker's own scales (compress/lowbit.h), widened and
 *                      summed by T
 *   randomk            two rounds: the step number, combined as the largest; then the k values it draws,
 *                      combined by the tree T
 *
 * The bytes (little-endian; contributions and aggregates of a codec have one format):
 *
 *   dense      count f32
 *   f16        i32 exponent (-126..113), count f16; value = f16 * 2^exponent. The writer puts the largest
 *              magnitude
 *              into [2^14, 2^15), so no finite sum overflows and small gradients keep their bits
 *   bf16       count bf16
 *   powersgd   even rounds: P, rank * rows f32; odd: Q, rank * cols f32; rank-major: one vector after the
 *              other
 *   topk       an index stream (compress/index_block.c gives its format), then one f32 per index. A
 *              contribution has
 *              exactly k indices (during a warm-up up to the k of its beginning), an aggregate at most
 *              min(count, ranks * k); an aggregate that would be longer so is u32 0xffffffff, count f32
 *              (dense)
 *
 *   sign, e4m3, e5m2   contributions: compress/lowbit.h; aggregate: count bf16
 *   randomk    round 0: u64 step; round 1: k f32, in rising order of the elements drawn (compress/randomk.h)
 *
 * f16, bf16, sign, e4m3 and e5m2 contributions are widened and summed by T in f32; the aggregate is rounded
 * once to the 16-bit type (bf16). The sparse union sums each index by T over the ranks, those that did not
 * send it left out (x alone, not x + 0). Structure is checked, values are not: a peer that sends NaN gets NaN
 * summed, but none of it enters residual or Q.
 *
 * The aggregate is always the SUM over workers (P^ of an even round is a basis and has no scale); finish
 * multiplies by `scale` (1/ranks or 1/sum of weights), so the same bytes serve every averaging rule. Bits:
 * given the same contributions in the same rank order (and the same residual of its own), every combiner
 * gives the same bytes, and every worker the same gradient, whatever moved the bytes.
 *
 * State is transactional: encode of a step works on shadow state; weft_codec_commit at the end of the step
 * makes it real; weft_codec_abandon restores the state before the step (the worker's contribution is back:
 * the gradient itself is not kept, the caller computes it again). A second encode(k) in one step returns the
 * stored bytes. (dense, f16 and bf16 keep no state: there the gradient must be unchanged.) A non-finite
 * gradient, or one that is non-finite after scale and residual: encode(0) returns WEFT_ERR_INVALID, state
 * untouched; PowerSGD and top-k count magnitudes from 2^120 as non-finite.
 *
 * Memory is taken at create, nothing is allocated in a step. A codec keeps, in f32 elements of the tensor n:
 * dense 1; f16, bf16 1/2; powersgd 2, rank (2 rows + 4 cols) and rank (rows + cols) an iteration; topk about
 * 4 and 10 k, with momentum 2 more; int8, int4 about 3.5; sign, e4m3, e5m2 2.5 to 2.8; randomk 2 and 3 k. A
 * combiner keeps log2(ranks) + 1 vectors, or for topk lists of about 4 ranks k pairs, or for int8 and int4
 * about 2.
 *
 * Calls out of order (take before encode, encode(1) before take(0), add before begin or beyond ranks)
 * return WEFT_ERR_STATE and change nothing. No I/O, no clock; one codec object is
 * used by one thread at a time. */
#ifndef WEFT_COMPRESS_H
#define WEFT_COMPRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/base.h"

#define WEFT_TENSOR_DIMS_MAX 8
#define WEFT_CODEC_ROUNDS_MAX 16

/* Pinned: on the wire. */
enum weft_codec_id {
    WEFT_CODEC_DENSE = 0, /* f32 */
    WEFT_CODEC_F16 = 1,
    WEFT_CODEC_BF16 = 2,
    WEFT_CODEC_POWERSGD = 3,
    WEFT_CODEC_TOPK = 4,
    WEFT_CODEC_INT8 = 5,
    WEFT_CODEC_INT4 = 6,
    WEFT_CODEC_SIGN = 7,
    WEFT_CODEC_E4M3 = 8,
    WEFT_CODEC_E5M2 = 9,
    WEFT_CODEC_RANDOMK = 10,
};

/* A parsed text spec: "dense", "f16", "bf16", "powersgd:rank=4,iterations=2,stacked=1,min_ratio=2,seed=1",
 * "topk:ratio=0.01", "int8:seed=1,min_count=1024", "int4", "sign:min_count=1024", "e4m3", "e5m2",
 * "randomk:ratio=0.01,seed=1". */
struct weft_codec_spec {
    enum weft_codec_id id;
    uint32_t rank;        /* powersgd, 1..64, default 4 */
    uint32_t iterations;  /* powersgd, 1..8, default 1: power iterations of one step, two rounds each */
    uint32_t stacked;     /* powersgd, 0 or 1, default 0: the first dimension counts equal matrices, which
                           * share every message */
    uint32_t zero;        /* no padding: equal specs are equal bytes */
    uint32_t nesterov;    /* topk, 0 or 1, default 0: Nesterov's form of the momentum */
    double min_ratio;     /* powersgd, 1..1e6: compress iff (rows+cols)*rank*min_ratio < rows*cols; default
                           * 2 */
    uint64_t seed;        /* powersgd: of the first Q; int8, int4: of the rounding; randomk: of the draw;
                           * the same on every rank; default 1 */
    double ratio;         /* topk, randomk: kept share of elements, 0 < ratio <= 1, default 0.01; k =
                           * clamp(ceil(n*ratio),1,n) */
    double momentum;      /* topk, 0 <= m < 1, default 0: momentum correction; the optimiser then has none
                           * (topk_codec.c) */
    double clip;          /* topk, 0: none, or up to 1e30: the gradient's norm is at most clip /
                           * sqrt(ranks) before it is added */
    uint64_t warmup_steps;/* topk, default 0: steps in which the ratio falls from 0.25 by quarters to
                           * `ratio` */
    double feedback;      /* randomk, 0 to 1, default 1: share of the residual that the next step uses
                           * (randomk_codec.c) */
    uint32_t masking;     /* topk, 0 or 1, default 1: the momentum of what was sent starts again from zero */
    uint32_t global;      /* topk, 0 or 1, default 0: a combiner sends the k largest of the sum and keeps
                           * the rest as its residual */
    uint64_t min_count;   /* all but dense, f16, bf16, powersgd: tensors with fewer elements go dense;
                           * default 1024 */
};
/* Unknown names, options, values: WEFT_ERR_INVALID and a sentence that lists what is allowed. */
enum weft_status weft_codec_parse(const char *text, struct weft_codec_spec *spec_out,
                                  struct weft_error *error);
/* The canonical text (equal specs give equal text); options that are newer than their codec appear where
 * they differ from their default. `out` of WEFT_CODEC_TEXT_BYTES is enough. */
#define WEFT_CODEC_TEXT_BYTES 256
void weft_codec_format(const struct weft_codec_spec *spec, char *out, size_t out_bytes);

/* Shape of a tensor, row-major. A matrix view for low rank: rows = dims[0], cols = the rest. */
struct weft_shape {
    uint32_t dim_count;
    uint64_t dims[WEFT_TENSOR_DIMS_MAX];
};
uint64_t weft_shape_elems(const struct weft_shape *shape); /* product; 0 on overflow or a zero dimension */

/* Resolves the spec for a shape: small and 1-D tensors become WEFT_CODEC_DENSE. Equal arguments give equal
 * results on all ranks and shards. Resolving twice changes nothing; create returns WEFT_ERR_INVALID for a
 * spec that does not fit its shape. */
struct weft_codec_spec weft_codec_resolve(const struct weft_codec_spec *spec, const struct weft_shape *shape);

uint32_t weft_codec_rounds(const struct weft_codec_spec *spec);
/* Upper bounds, never underestimates: of one contribution, and of an aggregate over `ranks`. */
size_t weft_codec_contribution_bytes_max(const struct weft_codec_spec *spec, const struct weft_shape *shape,
                                         uint32_t round);
size_t weft_codec_aggregate_bytes_max(const struct weft_codec_spec *spec, const struct weft_shape *shape,
                                      uint32_t round, uint32_t ranks);

/* ---- the worker's side ---- */
struct weft_codec;
enum weft_status weft_codec_create(struct weft_env *env, const struct weft_codec_spec *resolved,
                                   const struct weft_shape *shape, struct weft_codec **codec_out);
void weft_codec_free(struct weft_codec *codec);

/* The same with state and arithmetic on a device: grad of encode and `out` of finish are device memory; the
 * bytes are the same. Work is queued on `stream`, and the calls do not wait for it:
 *   encode   returns WEFT_IN_PROGRESS until the bytes are on the host: call it again with the same arguments,
 *            or when weft_codec_pending no longer returns WEFT_IN_PROGRESS; `grad` must not change until then
 *   finish   queues; `out` is valid for later work on the stream; the codec may be freed before that
 * save, load, rescale and norm wait for the device, up to 30 s; free up to 1 s, and not for a device that
 * hangs: its memory is then leaked. Saved bytes equal those of a codec in host memory: weft_codec_save and
 * _load move a codec between host and device.
 *
 * dense, randomk, and topk with clip are not available on a device: WEFT_ERR_UNSUPPORTED, as for a device
 * that cannot run the kernels. */
struct weft_memory_ops;
struct weft_device_kernels;
struct weft_codec_device {
    const struct weft_memory_ops *memory; /* of the kind of device */
    const struct weft_device_kernels *kernels;
    int number;                           /* of the device */
    uint32_t ranks;                       /* largest number of contributing ranks: bounds the aggregates */
    void *stream;                         /* on the device; shared; outlives the codec */
    void (*leave)(void *context, int before); /* restores `before` as the thread's current device; NULL:
                                               * memory->leave */
    void *context;
    struct weft_codec_batcher *batcher;   /* borrowed, of all codecs on the stream; outlives them. NULL: each
                                           * codec launches its own kernels */
    bool *hangs;                          /* borrowed, of all codecs there: the last one to be freed waited
                                           * in vain. NULL is fine */
    bool is_forked_child;                            /* of the child after a fork: nothing of the device
                                                      * may be touched */
};
enum weft_status weft_codec_create_on(struct weft_env *env, const struct weft_codec_spec *resolved,
                                      const struct weft_shape *shape, const struct weft_codec_device *device,
                                      struct weft_codec **codec_out, struct weft_error *error);
/* Encodes of small tensors share one launch and one copy, matrices of one shape one launch of each kernel
 * (device/device_batch.h). Queues on `stream`. The first such codec allocates about 3 MiB of the device, and
 * as much of the host. NULL: no memory. */
struct weft_codec_batcher *weft_codec_batcher_create(struct weft_env *env,
                                                     const struct weft_memory_ops *memory, void *stream);
/* After all its codecs, with the device current. hangs: the device may still write, so its memory is kept.
 * NULL is allowed. */
void weft_codec_batcher_free(struct weft_codec_batcher *batcher, bool hangs);
/* NULL: in host memory */
const struct weft_codec_device *weft_codec_device_of(const struct weft_codec *codec);
/* State of the encode in progress on the device: WEFT_OK, WEFT_IN_PROGRESS, or the device's error. The first
 * call queues the kernels of an encode that shares a launch. */
enum weft_status weft_codec_pending(struct weft_codec *codec);
/* Queues what an encode in progress or a begun finish has not queued yet: what the caller queues on the
 * stream from here on runs after it. An error of the device. */
enum weft_status weft_codec_settle(struct weft_codec *codec);
/* Text of the device's last error, or "". */
const char *weft_codec_device_error(const struct weft_codec *codec);
/* In the child after a fork: weft_codec_free then does not touch the device. NULL is allowed. */
void weft_codec_after_fork(struct weft_codec *codec);

/* ---- pieces: one tensor, combined in several places ----
 *
 * A codec that works element by element, or in blocks of WEFT_CODEC_PIECE elements, may have its
 * contributions cut: the bytes of a piece of the elements are what a tensor of those elements alone would
 * be coded to, so that a combiner for so many elements (weft_codec_of_piece) sums them, and the pieces'
 * aggregates one behind the other are what take() takes. Numbers stay the whole tensor's: the residual,
 * what is drawn by element, and whether all of a gradient is finite. */
#define WEFT_CODEC_PIECE 256u
/* bf16, int8, int4, e4m3, e5m2. Not codecs of the whole tensor (f16: one exponent; powersgd, topk,
 * randomk), nor sign: its contribution is about 1/28 of dense. */
bool weft_codec_can_split(const struct weft_codec_spec *resolved);
/* Spec of a combiner of one piece, of any length. */
struct weft_codec_spec weft_codec_of_piece(const struct weft_codec_spec *resolved);
/* From now on pieces have `elems` elements, a multiple of WEFT_CODEC_PIECE, and the last one the rest.
 * Between steps (WEFT_ERR_STATE); WEFT_ERR_INVALID for another length, WEFT_ERR_UNSUPPORTED for a codec
 * that is not cut, or is on a device. */
enum weft_status weft_codec_set_pieces(struct weft_codec *codec, uint64_t elems);
/* After a take that answered WEFT_ERR_MALFORMED: the first element of the malformed piece. */
uint64_t weft_codec_malformed_elem(const struct weft_codec *codec);

/* encode(round): round 0 reads grad (elems,) f32, multiplied by `grad_scale` (the sample weight; 1 leaves
 * it untouched), adds the residual; later rounds use the result of take() (grad is ignored, may be NULL).
 * Writes the contribution into out (>= contribution_bytes_max), its length to *bytes_out. */
enum weft_status weft_codec_encode(struct weft_codec *codec, uint32_t round, const float *grad,
                                   float grad_scale, void *out, size_t *bytes_out);
/* take(round): the aggregate of that round, UNTRUSTED bytes: WEFT_ERR_MALFORMED changes nothing. */
enum weft_status weft_codec_take(struct weft_codec *codec, uint32_t round, const void *aggregate,
                                 size_t bytes, uint32_t ranks);
/* take(round) of a round that is combined by WEFT_COMBINE_SUM_F32: the f32 sum of all contributions by T,
 * finite, before weft_codec_sum_to_aggregate, which this call includes. On a device it runs there, with the
 * same bits. `sum` is overwritten. */
enum weft_status weft_codec_take_sum(struct weft_codec *codec, uint32_t round, float *sum, size_t bytes,
                                     uint32_t ranks);
/* After the last take: out (elems,) f32 = decoded sum * scale. */
enum weft_status weft_codec_finish(struct weft_codec *codec, float scale, float *out);
/* The same, but the kernels of a device may be queued only by weft_codec_settle, which the caller calls
 * before anything else of this codec: codecs of one shape whose finishes begin together share a launch. */
enum weft_status weft_codec_finish_begin(struct weft_codec *codec, float scale, float *out);
/* After the last take, or without any encode in this step (then nothing happens). */
void weft_codec_commit(struct weft_codec *codec);
void weft_codec_abandon(struct weft_codec *codec);
/* sqrt(sum of squares) of the residual: a live metric; 0 for codecs without one. */
double weft_codec_residual_norm(const struct weft_codec *codec);
/* Copies the residual to out (elems,), in units of grad_scale * gradient, for a tensor that changes its
 * codec: the next contribution adds it. A codec without a residual gives zeros. Between steps
 * (WEFT_ERR_STATE). The codec does not change. */
enum weft_status weft_codec_residual_copy(const struct weft_codec *codec, float *out);

/* ---- state across a restart: residual, warm start, step counter ---- */
size_t weft_codec_state_bytes(const struct weft_codec *codec);
/* Between steps only (else WEFT_ERR_STATE): state_bytes bytes into out. */
enum weft_status weft_codec_save(const struct weft_codec *codec, void *out);
/* Into a codec of the same spec and shape, between steps. Bytes from a file, UNTRUSTED: WEFT_ERR_MALFORMED
 * for a wrong size, codec, shape or a value no codec would have kept; the codec is then as it was. The
 * number of workers is then the saved one; weft_codec_set_ranks sets the present one. */
enum weft_status weft_codec_load(struct weft_codec *codec, const void *data, size_t bytes);

/* ---- what changes between steps (docs/compression.md has the rules) ---- */
/* Number of contributing workers. From P to P' (both known) residual and momentum are multiplied by P'/P:
 * the mean residual of the remaining workers stays. A new worker has none; a worker that left takes its
 * share away. Between steps only (else WEFT_ERR_STATE); 0: WEFT_ERR_INVALID. Statuses of rescale. */
enum weft_status weft_codec_set_ranks(struct weft_codec *codec, uint32_t ranks);
/* Tensor and worker whose gradients it encodes: int8 and int4 draw their rounding from (seed, step,
 * tensor, worker, element). `tensor`: any number that identifies the tensor in each run. Both are 0 at
 * create and not part of a saved state. Between steps only (else WEFT_ERR_STATE). */
enum weft_status weft_codec_set_stream(struct weft_codec *codec, uint64_t tensor, uint32_t worker);
/* Number of committed steps (0: not counted). set_steps raises it to `steps`: for a worker that rested or
 * is new. Between steps only (else WEFT_ERR_STATE). */
uint64_t weft_codec_steps(const struct weft_codec *codec);
enum weft_status weft_codec_set_steps(struct weft_codec *codec, uint64_t steps);
/* Multiplies residual and momentum by `factor`: for callers that encode lr * gradient, or gradients in a
 * new unit (a loss scale that grad_scale does not divide out). Between steps only (else WEFT_ERR_STATE).
 * WEFT_ERR_INVALID, nothing changed: factor is not above 0, not finite, or would bring a value to 2^120. */
enum weft_status weft_codec_rescale(struct weft_codec *codec, float factor);

/* ---- the combiner's side: a shard, or the owner step of an all-reduce ---- */
struct weft_combiner;
enum weft_status weft_combiner_create(struct weft_env *env, const struct weft_codec_spec *resolved,
                                      const struct weft_shape *shape, uint32_t ranks,
                                      struct weft_combiner **combiner_out);
void weft_combiner_free(struct weft_combiner *combiner);
/* Start round `round` (below weft_codec_rounds, a number from a peer is checked before); forgets an
 * unfinished one. */
void weft_combiner_begin(struct weft_combiner *combiner, uint32_t round);
/* Contributions in rank order 0,1,2...; UNTRUSTED bytes: WEFT_ERR_MALFORMED adds nothing. Does not keep
 * `data`. */
enum weft_status weft_combiner_add(struct weft_combiner *combiner, const void *data, size_t bytes);
/* The aggregate; *data_out is valid until the next begin. WEFT_ERR_STATE unless all ranks were added. */
enum weft_status weft_combiner_close(struct weft_combiner *combiner, const void **data_out,
                                     size_t *bytes_out);
/* After the last round's close: the decoded sum * scale (elems,), bit-equal to what every worker's finish
 * gives. */
enum weft_status weft_combiner_finish(struct weft_combiner *combiner, float scale, float *out);
/* f16, after close: the bits of the largest magnitude of the sum. */
uint32_t weft_combiner_peak(const struct weft_combiner *combiner);
/* f16, after close: the aggregate again, under the exponent of a tensor with this peak, of which the sum
 * is a slice. Valid until the next begin or repack. */
void weft_combiner_repack(struct weft_combiner *combiner, uint32_t peak_bits, const void **data_out,
                          size_t *bytes_out);

/* ---- a second combiner that follows the first: a copy of a shard ----
 *
 * What closed a step, in step_save's bytes: the aggregate, and what finish needs of earlier rounds; with a
 * residual the sum before the choice, from which the second makes the same choice. After step_load both have
 * the same aggregate, finish and residual, bit for bit. */
/* Of a combiner like this one for `ranks` ranks. */
size_t weft_combiner_step_bytes_max(const struct weft_combiner *combiner, uint32_t ranks);
/* After the last round's close, before the next begin. Returns the bytes written. Any thread. */
size_t weft_combiner_step_save(const struct weft_combiner *combiner, void *out);
/* UNTRUSTED bytes: WEFT_ERR_MALFORMED unless step_load can read them. */
enum weft_status weft_combiner_step_check(const struct weft_combiner *combiner, const void *data,
                                          size_t bytes);
/* In place of the rounds of a step; a round that is open is discarded. Precondition: step_check accepted the
 * bytes. The aggregate of the last round is valid until the next begin. */
void weft_combiner_step_load(struct weft_combiner *combiner, const void *data, size_t bytes,
                             const void **aggregate_out, size_t *aggregate_bytes_out);

/* State of a combiner with a residual (topk with global=1): the part that its aggregates left out. It
 * changes at close, so a step is closed once; 0 bytes: no state. Between rounds only (else
 * WEFT_ERR_STATE). Load: UNTRUSTED, WEFT_ERR_MALFORMED changes nothing; the state of a combiner for
 * another number of ranks is multiplied by the new number over the old, which keeps the mean. */
/* (elems,), the residual itself; NULL: none */
float *weft_combiner_residual(const struct weft_combiner *combiner);
/* 2^120: magnitudes of residuals are below this limit */
#define WEFT_RESIDUAL_LIMIT_BITS 0x7b800000u
size_t weft_combiner_state_bytes(const struct weft_combiner *combiner);
enum weft_status weft_combiner_save(const struct weft_combiner *combiner, void *out);
enum weft_status weft_combiner_load(struct weft_combiner *combiner, const void *data, size_t bytes);

/* How an all-reduce combines a round without a combiner. */
enum weft_combine_kind {
    WEFT_COMBINE_SUM_F32 = 1, /* contributions are f32 vectors of equal length: all_reduce sum by T, then
                                 weft_codec_sum_to_aggregate on every rank */
    WEFT_COMBINE_GATHER = 2,  /* all_gather the contributions, then a local combiner; or slices, or regions */
};
enum weft_combine_kind weft_codec_combine_kind(const struct weft_codec_spec *spec, uint32_t round);
/* In place: turn the f32 sum of the contributions into the aggregate a combiner would have given
 * (PowerSGD, even rounds: orthogonalise; else nothing). Deterministic, same bits on every rank. */
void weft_codec_sum_to_aggregate(const struct weft_codec_spec *spec, const struct weft_shape *shape,
                                 uint32_t round, float *sum);

/* ---- a sparse sum in regions of the ranks (compress/split/region.c): a rank's bytes do not grow with the
 * ranks ----
 *
 *     cut: own contribution -> a piece for each rank;   exchange;   weft_regions_combiner: add the pieces of
 *                                                       ranks 0, 1, ...
 *     for the own region, close;   all_gather of the regions' sums;   join -> an aggregate for
 *                                  weft_codec_take
 *
 * The decoded gradient has the bits of one combiner. Memory is allocated at create. */
struct weft_regions;
/* Whether each rank has a region: topk, 2 ranks or more, 64 elements or more for each. */
bool weft_regions_possible(const struct weft_codec_spec *resolved, const struct weft_shape *shape,
                           uint32_t ranks);
size_t weft_regions_piece_bytes_max(const struct weft_codec_spec *resolved, const struct weft_shape *shape,
                                    uint32_t ranks);
size_t weft_regions_sum_bytes_max(const struct weft_codec_spec *resolved, const struct weft_shape *shape,
                                  uint32_t ranks);
/* WEFT_ERR_INVALID where they are not possible, or rank >= ranks. */
enum weft_status weft_regions_create(struct weft_env *env, const struct weft_codec_spec *resolved,
                                     const struct weft_shape *shape, uint32_t ranks, uint32_t rank,
                                     struct weft_regions **regions_out);
void weft_regions_free(struct weft_regions *regions);
/* Piece r goes to pieces_out + r * stride (stride >= piece_bytes_max), its length, never 0, to
 * lengths_out[r]. */
enum weft_status weft_regions_split(struct weft_regions *regions, const void *contribution, size_t bytes,
                                    uint8_t *pieces_out, size_t stride, uint64_t *lengths_out);
/* Of the own region; borrowed. Round 0 only, no finish. Pieces are UNTRUSTED as contributions are. */
struct weft_combiner *weft_regions_combiner(struct weft_regions *regions);
/* Sum r lies at sums + r * stride, `sums` and stride multiples of 4. UNTRUSTED: WEFT_ERR_MALFORMED. The
 * aggregate is valid until the next call. */
enum weft_status weft_regions_join(struct weft_regions *regions, const uint8_t *sums, size_t stride,
                                   const uint64_t *lengths, const void **aggregate_out, size_t *bytes_out);

/* ---- index coding (compress/index_block.c): sorted indices in blocks of 65,536, documented in docs/wire.md
 * ---- */
size_t weft_index_bytes_max(uint64_t elem_count, uint64_t index_count);
size_t weft_index_encode(const uint32_t *indices, uint64_t index_count, uint64_t elem_count, uint8_t *out);
/* UNTRUSTED: checks every bound; rising order guaranteed in the result. *consumed_out: bytes used. */
enum weft_status weft_index_decode(const uint8_t *data, size_t bytes, uint64_t elem_count,
                                   uint32_t *indices_out, uint64_t index_count_max, uint64_t *index_count_out,
                                   size_t *consumed_out);

#include "compress/tuner/codec_tuner.h" /* which codec pays */
#include "compress/split/chunking.h"   /* chunks of a tensor at shards */
#include "compress/split/slice.h" /* slices of a contribution in an all_reduce */

#endif
