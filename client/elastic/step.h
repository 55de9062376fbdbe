/* step.h - the open step: its hyper-parameters, and the record by which all ranks compare them. */
#ifndef WEFT_CLIENT_ELASTIC_STEP_H
#define WEFT_CLIENT_ELASTIC_STEP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "client/engine/request.h"

/* What each rank says about the step, 24 bytes on the wire: three i64 elements of an all_gather. */
struct client_step_record {
    uint64_t step;
    float lr, weight;
    uint64_t revision; /* of the choice of codecs in force (tensor/codec_tuner.h) */
};
_Static_assert(sizeof(struct client_step_record) == 24, "travels as three i64");

struct client_step {
    /* caller's */
    _Atomic bool open;                   /* waiting threads read it too */
    uint64_t number;                     /* of the open or last step */
    float lr, weight;
    uint64_t began_ns;
    _Atomic uint64_t exposed_ns;         /* summed over threads that waited */
    _Atomic uint64_t exposed_peers_ns;   /* of that, while an operation lacked a rank */
    bool recorded;                       /* this step exchanges records */
    bool compared;                       /* step_end has started the comparison of pushed tensors, and may
                                          * be called again */
    struct weft_request request;         /* of the record's all_gather */
    struct weft_request vote;            /* elastic jobs: at the end, and whether somebody new waits */
    uint32_t grow_epoch;                 /* what it says of that, and hears */
    /* engine's while the request is open */
    struct client_step_record mine;
    struct client_step_record *all;      /* (all_capacity,) owned */
    uint32_t all_capacity;
    bool records_agree;                          /* all records are there and agree */
    float grad_scale;                    /* 1 / sum of weights */
    bool weights_one;
};


#endif
