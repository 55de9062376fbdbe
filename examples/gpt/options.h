/* options.h - the command line of the GPT trainer. */
#ifndef GPT_OPTIONS_H
#define GPT_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

enum gpt_overlap {
    GPT_AFTER,    /* push after the backward pass */
    GPT_BACKWARD, /* push a layer when its gradients are complete */
    GPT_FORWARD,  /* the same, and wait for a layer's results in the next forward pass */
};

struct gpt_options {
    const char *text, *codec, *mode;  /* mode: "server", "all_reduce" or NULL: server if the job has shards */
    const char *checkpoint;           /* folder; NULL: none */
    const char *precision;            /* "f32", "bf16" */
    const char *overlap_name;         /* of --overlap */
    enum gpt_overlap overlap;
    bool resume;
    uint64_t blocks, width, heads, length, batch, steps, stop, every, seed;
    uint64_t pace;                    /* us; 0: compute */
    uint64_t measure;                 /* steps of a block of --measure; 0: train */
    double lr, weight_decay;
};

/* 0: continue; else the exit status plus one (1: help was printed; 3: a wrong option). */
int gpt_options_parse(struct gpt_options *options, int argc, char **argv);

#endif
