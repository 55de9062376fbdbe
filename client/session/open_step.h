/* open_step.h - state of the open step. The caller's thread writes it (elastic/step.c); waits and calls read
 * it.
 *
 * The record is what each rank sends to the others about the step: three i64 elements of an all_gather. */
#ifndef WEFT_CLIENT_SESSION_OPEN_STEP_H
#define WEFT_CLIENT_SESSION_OPEN_STEP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/base.h"
#include "weft/weft.h"

/* `parameters` is 0 for the default options of a step, as in the records of older releases. */
#define CLIENT_RECORD_SKIPS 0x80000000u
#define CLIENT_SKIP_RANK_NONE UINT32_MAX
struct client_step_record {
    uint64_t step;
    float lr, weight;
    uint32_t revision;   /* of the codec choices in force (tensor/codec_tuner.h) */
    uint32_t parameters; /* 31 bits: hash of the options that are equal on all ranks (step_options.c);
                          * CLIENT_RECORD_SKIPS: this rank has no usable gradient */
};
_Static_assert(sizeof(struct client_step_record) == 24, "travels as three i64");

/* The exchange of records; written by the engine while `request` is open. */
struct client_step_records {
    bool are_exchanged;          /* in this step; written by the caller's thread */
    struct weft_request request; /* all_gather of the records */
    struct client_step_record mine;
    struct client_step_record *all; /* (capacity,) owned */
    uint32_t capacity;
    bool agree; /* the records of all ranks have arrived and agree */
};

struct client_step {
    _Atomic bool open;                 /* between weft_step_begin and weft_step_end; other waiting threads
                                        * read it */
    _Atomic bool is_delivering;        /* weft_step_end has closed the step; its results may still arrive */
    _Atomic uint32_t open_reductions;  /* open requests of tensors in all-reduce mode */
    bool deliver_late;                 /* option of the step: weft_step_end does not wait for results */
    _Atomic uint64_t wait_mark_ns;     /* a call waits for all results since then, or since the last of
                                        * them; 0: none */
    _Atomic uint32_t open_deliveries;  /* open requests of tensors; the engine decrements it before
                                        * open_requests */
    uint64_t number;                   /* of the open step, else of the last one */
    float lr, weight;
    uint32_t group_count;              /* > 0: tensors have a group_lr (tensor.h) */
    bool has_decays;                   /* and a group_decay */
    float loss_scale;                  /* a power of two */
    float clip_norm;                   /* 0: gradients are not clipped */
    double *norm_out;                  /* the caller's; NULL: none */
    uint64_t began_ns;
    _Atomic uint64_t exposed_ns;       /* waited in this step, summed over the threads that waited */
    _Atomic uint64_t exposed_peers_ns; /* part of exposed_ns in which an operation waited for a late rank */
    bool compared;                     /* step_end has started the comparison of pushed tensors */
    struct weft_request vote;          /* elastic jobs: the vote at the end of the step */
    uint32_t grow_epoch;               /* in the vote: the epoch that newcomers wait for; 0: none */
    struct weft_command *after_reductions; /* the engine's: posted when open_reductions becomes 0; NULL:
                                            * none */
    struct client_step_records records;
    /* from the records of all ranks; written by the engine */
    float grad_scale;                  /* 1 / sum of weights */
    bool skips;                        /* a rank has no usable gradient, or all weights are 0 */
    uint32_t skip_rank;                /* the first such rank; CLIENT_SKIP_RANK_NONE: all weights are 0 */
};

/* This rank has no usable gradient in the step (weft_step_options.skip). */
static inline bool client_step_skips_here(const struct client_step *step)
{
    return step->records.mine.parameters & CLIENT_RECORD_SKIPS;
}
/* The step is open, or its results are still arriving. Any thread. */
static inline bool client_step_is_unfinished(const struct client_step *step)
{
    return step->open || step->is_delivering;
}

#endif
