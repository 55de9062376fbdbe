/* options.h - the command line of the trainer. */
#ifndef FASHION_MNIST_OPTIONS_H
#define FASHION_MNIST_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

struct trainer_options {
    const char *mode;                   /* "server", "all_reduce" or NULL: server if the job has shards */
    const char *codec;                  /* as weft_tensor_options.codec */
    const char *data;                   /* directory of the data set */
    const char *csv, *json;             /* reports of rank 0, or NULL */
    const char *hash_steps;             /* rank R writes weight hashes to FILE.R; or NULL */
    double epochs;
    double seconds;                     /* seconds of training; 0: no limit */
    double eval_seconds;                /* seconds of training between evaluations; 0: by steps */
    double lr, lr_final, warmup;        /* peak; end as a share of the peak; share of the steps that rise */
    double momentum, weight_decay;
    uint64_t seed, steps, chunk_bytes;  /* steps 0: as many as the epochs have; chunk_bytes 0: the default of
                                         * weft */
    uint32_t batch, hidden, eval_every; /* eval_every 0: four times an epoch */
};

/* 0: continue; else the exit status plus one (1: help was printed; 3: a wrong option). */
int trainer_options_parse(struct trainer_options *options, int argc, char **argv);

#endif
