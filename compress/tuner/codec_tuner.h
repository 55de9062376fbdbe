/* tuner/codec_tuner.h - chooses the codec of each tensor: dense, a cast, or one with a residual.
 *
 * Pure: no clock, no link, no rank. The caller supplies measurements (link, cost of each codec, ready time of
 * each gradient). One rank decides and publishes the decision. Equal inputs give equal decisions.
 *
 *     candidates    "auto:topk,bf16" as text -> specs, dense first             codec_tuner_candidates.c
 *     traffic       costs -> bytes of an exchange through shards               codec_tuner_traffic.c
 *     model         inputs and choices -> time of a step; the best choices     codec_tuner_model.c
 *     decision      repeated decisions with hysteresis                         codec_tuner.c
 *
 * The model of a step. Gradients become ready one after the other while the step computes. Each is encoded,
 * is sent after its predecessors, waits for its latencies, and is decoded:
 *
 *     encoded[i] = max(encoded[i-1], ready[i]) + encode          one engine encodes all
 *     sent[i]    = max(sent[i-1], encoded[i]) + wire bytes / bandwidth
 *     decoded[i] = max(decoded[i-1], sent[i] + hops * latency + return bytes / bandwidth) + decode
 *     step       = max(compute, last decoded, engine's own work)
 *
 * Codec work without a spare core delays later gradients and the computation (`steal`). An exchange that
 * computation hides gains nothing by a codec: of choices that differ by less than 0.5 %, the earlier
 * candidate wins, so dense is chosen. */
#ifndef WEFT_COMPRESS_TUNER_CODEC_TUNER_H
#define WEFT_COMPRESS_TUNER_CODEC_TUNER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/base.h"
#include "compress/compress.h"

/* ---- candidates ---- */
#define WEFT_CODEC_CANDIDATES_MAX 8

struct weft_codec_candidates {
    uint32_t count;
    struct weft_codec_spec specs[WEFT_CODEC_CANDIDATES_MAX]; /* [0] is dense */
    uint8_t kinds[WEFT_CODEC_CANDIDATES_MAX]; /* position in the text: identifies a codec across tensors of
                                               * all shapes */
};

/* True for "auto" and "auto:...". */
bool weft_codec_candidates_requested(const char *text);
/* "auto"                        dense and bf16: no codec with a residual unless it is named
 * "auto:topk:ratio=0.01,bf16"   dense and the named codecs, the preferred one first; options as in their own
 *                               specs
 * "auto:lossy"                  dense, bf16, int8, powersgd:rank=4; no top-k, which adaptive
 *                               optimizers learn from too slowly
 * WEFT_ERR_INVALID with a sentence: an unknown codec or option, a duplicate, too many; then nothing is
 * written. */
enum weft_status weft_codec_candidates_parse(const char *text, struct weft_codec_candidates *candidates,
                                  struct weft_error *error);
/* Resolves the candidates for one shape, without those that become dense or repeat an earlier one. */
void weft_codec_candidates_resolve(struct weft_codec_candidates *candidates, const struct weft_shape *shape);

/* ---- figures ---- */
/* One exchange of one tensor by one candidate. Negative or not finite: the candidate is excluded. */
struct weft_codec_cost {
    double encode_ns,
        decode_ns;     /* work of this rank before its first byte is sent, and after the last one arrived */
    double wire_bytes; /* through the busier direction of a rank's link, all rounds */
    double hops;       /* messages in sequence */
    double return_bytes; /* bytes that return in the other direction after wire_bytes were sent: they delay
                          * this exchange and not the next. 0 if both directions are busy at the same time */
};

struct weft_codec_tuner_tensor {
    double ready_ns;                     /* since the step began, without codec time */
    uint32_t candidate_count;            /* 1..WEFT_CODEC_CANDIDATES_MAX */
    const struct weft_codec_cost *costs; /* (candidate_count,) borrowed */
    const uint8_t *kinds; /* (candidate_count,) borrowed; the first is 0; equal kinds are one codec across
                           * tensors. NULL: a candidate's kind is its index */
};

struct weft_codec_tuner_input {
    double latency_ns, bytes_per_second; /* of the worst link of the group, one direction */
    double compute_ns;                   /* of a step, without waits and codecs */
    double steal;   /* 0: spare cores; 1: codec work delays the computation by its full time */
    double step_ns; /* measured since the last decision; 0: unknown */
    const struct weft_codec_tuner_tensor *tensors; /* (tensor_count,) */
    const uint32_t *order; /* (tensor_count,) indices in exchange order; NULL: 0, 1, ... */
};

/* wire_bytes, return_bytes and hops of an exchange through shards; the rest of the cost stays as it is.
 * `contribution_bytes`: of each round; NULL: the upper bounds. `pieces` are sent independently: 1 for a
 * codec that is not split, else the chunks. A message above eager_bytes takes three latencies.
 * codec_tuner_traffic.c */
void weft_codec_server_traffic(const struct weft_codec_spec *resolved, const struct weft_shape *shape,
                               const size_t *contribution_bytes, uint32_t workers, uint32_t shards,
                               uint32_t pieces, size_t eager_bytes, struct weft_codec_cost *cost);

/* ---- the model ---- */
/* Nanoseconds of a step with these choices (count,); infinity if one is excluded. */
double weft_codec_tuner_step_ns(const struct weft_codec_tuner_input *figures, const uint8_t *choices,
                                uint32_t count);
/* Time of one exchange that no computation hides: for reports. */
double weft_codec_tuner_exchange_ns(const struct weft_codec_tuner_input *figures,
                                    const struct weft_codec_cost *cost);
/* Bytes of scratch for the next call. */
size_t weft_codec_tuner_scratch_bytes(uint32_t count);
/* The tensor's candidate of this kind; 0 (dense) if it has none. */
uint32_t weft_codec_tuner_candidate_of_kind(const struct weft_codec_tuner_tensor *tensor, uint32_t kind);
/* Improves `choices`: never worse than before, nor than one kind of candidate for all tensors. `refused`:
 * (count,) bit masks of excluded candidates; NULL: none. Returns the step's nanoseconds. Time: O(count *
 * candidates). */
double weft_codec_tuner_improve(const struct weft_codec_tuner_input *figures, const uint8_t *refused,
                                uint8_t *choices, uint32_t count, void *scratch);

/* ---- the tuner ---- */
struct weft_codec_tuner_options {
    double margin;          /* minimum gain of a change, as a share of the step; default 0.02 */
    uint32_t confirmations;         /* decisions in a row that confirm a change; each revision requires one
                                     * more; default 3 */
    uint32_t revisions_max; /* number of changes after which the choice is final; default 32 */
};
void weft_codec_tuner_options_init(struct weft_codec_tuner_options *options);

enum weft_codec_decision {
    WEFT_CODEC_DECISION_KEEP = 0,
    WEFT_CODEC_DECISION_CHANGE =
        1, /* another choice is faster, or as fast with earlier candidates */
    WEFT_CODEC_DECISION_REVERT = 2, /* the last change made the step slower: restored */
};

/* All tensors begin dense. One thread at a time. */
struct weft_codec_tuner;
enum weft_status weft_codec_tuner_create(
    struct weft_env *env, const struct weft_codec_tuner_options *options, uint32_t tensor_count,
    struct weft_codec_tuner **tuner_out); /* options NULL: defaults. WEFT_ERR_NO_MEMORY */
void weft_codec_tuner_free(struct weft_codec_tuner *tuner);
/* The first decision is immediate. A later change needs `confirmations` decisions in a row; the measured
 * step after a change is compared with the one before. If the measured step exceeds the model's by
 * MODEL_ERROR_FACTOR, one candidate for all tensors is tried. Invalid inputs change nothing. */
enum weft_codec_decision weft_codec_tuner_update(struct weft_codec_tuner *tuner,
                                                 const struct weft_codec_tuner_input *figures);
const uint8_t *weft_codec_tuner_choices(const struct weft_codec_tuner *tuner); /* (tensor_count,) */
uint32_t weft_codec_tuner_revision(
    const struct weft_codec_tuner *tuner); /* 0: all dense; rises by one with each change */

#endif
