/* tuner/codec_tuner.h - which codec each tensor of a job should use: dense, a cast, or one that keeps a
 * residual.
 *
 * Pure: no clock, no link, no rank. Whoever owns a job brings figures (what the link does, what each codec
 * costs, when each gradient is ready) and asks; one rank asks, and the answer is published to the others.
 * Equal figures in equal order give equal answers.
 *
 *     candidates    "auto:topk,bf16" as text -> specs, dense first                  codec_tuner_candidates.c
 *     traffic       bytes of an exchange through shards -> a cost's                   codec_tuner_traffic.c
 *     model         figures and choices -> how long a step takes; the best choices    codec_tuner_model.c
 *     judge         the model asked again and again, with hysteresis                  judge.c
 *
 * The model of a step. Gradients become ready one after the other while the step computes. Each is encoded,
 * goes over the link behind those before it, waits for its latencies, and is decoded:
 *
 *     encoded[i] = max(encoded[i-1], ready[i]) + encode          one engine works for all of them
 *     sent[i]    = max(sent[i-1], encoded[i]) + wire bytes / bandwidth
 *     decoded[i] = max(decoded[i-1], sent[i] + hops * latency + return bytes / bandwidth) + decode
 *     step       = max(compute, last decoded, engine's own work)
 *
 * Codec work for which the host has no spare processor delays the gradients behind it and the computation
 * (`steal`). So an exchange that is hidden behind computation gains nothing by a codec, and dense is then
 * what is chosen: of choices that differ by less than half a percent, the one that stands earlier among the
 * candidates. */
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
    uint8_t kinds[WEFT_CODEC_CANDIDATES_MAX]; /* places in the text: the same codec's in tensors of all
                                               * shapes */
};

/* Does the text leave the choice to the judge ("auto", or "auto:" and more)? */
bool weft_codec_candidates_requested(const char *text);
/* "auto"                        dense and bf16: nothing that needs a residual unless it is asked for
 * "auto:topk:ratio=0.01,bf16"   dense and what is named, the most wanted first; options as in its own spec
 * "auto:lossy"                  dense, bf16, int8, powersgd:rank=4, topk:ratio=0.01
 * WEFT_ERR_INVALID with a sentence: an unknown codec or option, one twice, more than there is room for; then
 * nothing is written. */
enum weft_status weft_codec_candidates_parse(const char *text, struct weft_codec_candidates *candidates,
                                  struct weft_error *error);
/* What is left of them for one shape: each resolved, and those that become dense or repeat an earlier one
 * left out. */
void weft_codec_candidates_resolve(struct weft_codec_candidates *candidates, const struct weft_shape *shape);

/* ---- figures ---- */
/* One exchange of one tensor by one candidate. Negative or not finite: this candidate is not to be chosen. */
struct weft_codec_cost {
    double encode_ns,
        decode_ns;     /* work of this rank before its first byte leaves, and all that comes after */
    double wire_bytes; /* through the busier direction of a rank's link, all rounds */
    double hops;       /* messages that wait for one another */
    double return_bytes; /* that come back through the other direction when those are out: they delay this
                          * exchange, and not the next one. 0 where both directions are busy at the same
                          * time */
};

struct weft_codec_tuner_tensor {
    double ready_ns;                     /* since the step began, not counting time taken by codecs */
    uint32_t candidate_count;            /* 1..WEFT_CODEC_CANDIDATES_MAX */
    const struct weft_codec_cost *costs; /* (candidate_count,) borrowed */
    const uint8_t *kinds; /* (candidate_count,) borrowed; the first is 0; what is called "for all tensors
                           * alike" is one kind. NULL: a candidate's kind is its index */
};

struct weft_codec_tuner_input {
    double latency_ns, bytes_per_second; /* of the worst link of the group, one direction */
    double compute_ns;                   /* of a step, without waiting and without codecs */
    double steal;   /* 0: processors to spare; 1: codec work takes its time from the computation */
    double step_ns; /* as measured since the last look; 0: unknown */
    const struct weft_codec_tuner_tensor *tensors; /* (tensor_count,) */
    const uint32_t *order; /* (tensor_count,) indices in the order of their exchanges; NULL: as they stand */
};

/* wire_bytes, return_bytes and hops of an exchange through shards; the rest of the cost stays as it is.
 * `contribution_bytes`: of each round, NULL: the most they can be. `pieces` of the tensor travel on their
 * own: 1 for a codec that is not cut, else the chunks. What is longer than eager_bytes makes three trips.
 * codec_tuner_traffic.c */
void weft_codec_server_traffic(const struct weft_codec_spec *resolved, const struct weft_shape *shape,
                               const size_t *contribution_bytes, uint32_t workers, uint32_t shards,
                               uint32_t pieces, size_t eager_bytes, struct weft_codec_cost *cost);

/* ---- the model ---- */
/* Nanoseconds of a step with these choices (count,); infinity when one of them is not to be chosen. */
double weft_codec_tuner_step_ns(const struct weft_codec_tuner_input *figures, const uint8_t *choices,
                                uint32_t count);
/* One exchange that nothing hides: what a report says a choice saves. */
double weft_codec_tuner_exchange_ns(const struct weft_codec_tuner_input *figures,
                                    const struct weft_codec_cost *cost);
/* Bytes of scratch for the next call. */
size_t weft_codec_tuner_scratch_bytes(uint32_t count);
/* The tensor's candidate of this kind; 0, dense, where it has none. */
uint32_t weft_codec_tuner_candidate_of_kind(const struct weft_codec_tuner_tensor *tensor, uint32_t kind);
/* `choices` become better ones, if there are any: never worse than they were, nor than any kind of
 * candidate taken for all tensors alike. `refused`: (count,) bit masks of candidates that may not be
 * taken; NULL: none. Returns the step's nanoseconds. count * candidates operations a few times over: about
 * a millisecond for a thousand tensors. */
double weft_codec_tuner_improve(const struct weft_codec_tuner_input *figures, const uint8_t *refused,
                                uint8_t *choices, uint32_t count, void *scratch);

/* ---- the judge ---- */
struct weft_codec_tuner_options {
    double margin;          /* share of the step that a change must gain; default 0.02 */
    uint32_t confirmations;         /* looks in a row that must say so; each revision asks for one more;
                                     * default 3 */
    uint32_t revisions_max; /* then the choice stands for good; default 32 */
};
void weft_codec_tuner_options_init(struct weft_codec_tuner_options *options);

enum weft_codec_decision {
    WEFT_CODEC_DECISION_KEEP = 0,
    WEFT_CODEC_DECISION_CHANGE =
        1, /* another choice would be faster, or as fast and plainer (earlier among the candidates) */
    WEFT_CODEC_DECISION_REVERT = 2, /* the last change has made the step slower than it was: back */
};

/* All tensors begin dense. One thread at a time. */
struct weft_codec_tuner;
enum weft_status weft_codec_tuner_create(
    struct weft_env *env, const struct weft_codec_tuner_options *options, uint32_t tensor_count,
    struct weft_codec_tuner **tuner_out); /* options NULL: defaults. WEFT_ERR_NO_MEMORY */
void weft_codec_tuner_free(struct weft_codec_tuner *tuner);
/* The first look decides at once. Later ones want the same gain several times in a row before they change
 * anything, and compare the measured step after a change with the one before. Where the measured step is
 * much longer than the model's, a candidate for all tensors is tried, too. Figures without a bandwidth or
 * with nonsense in them decide nothing. */
enum weft_codec_decision weft_codec_tuner_update(struct weft_codec_tuner *tuner,
                                                 const struct weft_codec_tuner_input *figures);
const uint8_t *weft_codec_tuner_choices(const struct weft_codec_tuner *tuner); /* (tensor_count,) */
uint32_t weft_codec_tuner_revision(
    const struct weft_codec_tuner *tuner); /* 0: all dense, never changed; rises by one with each */

#endif
