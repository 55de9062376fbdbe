/* options.h - the command line of the trainer. */
#ifndef FASHION_MNIST_OPTIONS_H
#define FASHION_MNIST_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

struct trainer_options {
    const char *mode;       /* "server", "all_reduce" or NULL: server when the job has shards */
    const char *codec;      /* as weft_tensor_options.codec */
    const char *data;       /* directory of the data set */
    const char *csv, *json; /* reports of rank 0, or NULL */
    const char *hash_steps; /* rank R writes weight hashes to FILE.R; or NULL */
    double epochs;
    double seconds;         /* stop after so much training; 0: no limit */
    double eval_seconds;    /* evaluate after so much training; 0: by steps */
    double lr, lr_final, warmup; /* peak; share of the peak at the end; share of the steps to climb */
    double momentum, weight_decay;
    uint64_t seed, steps, chunk_bytes; /* steps 0: as many as the epochs have; chunk_bytes 0: weft's
                                        * default */
    uint32_t batch, hidden, eval_every; /* eval_every 0: four times an epoch */
};

/* 0: go on; otherwise the exit status plus one (help was printed: 1; a wrong option: 3). */
int trainer_options_parse(struct trainer_options *options, int argc, char **argv);

#endif
