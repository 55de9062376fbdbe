/* trainer.h - the state of a rank, shared by the training loop and the checkpoint. */
#ifndef GPT_TRAINER_H
#define GPT_TRAINER_H

#include <stdbool.h>
#include <stdint.h>
#include <weft/weft.h>

#include "model.h"
#include "options.h"
#include "text.h"

struct trainer {
    struct gpt_options options;
    struct weft_session *session;
    uint32_t rank, ranks, samples;  /* samples of this rank in a step */
    uint32_t first;                 /* index of its first sample */
    struct gpt gpt;
    struct text text;
    uint8_t *batch;                 /* (samples, length + 1) */
    struct weft_tensor *tensors[GPT_PARTS_MAX]; /* of the parts of the model */
    struct weft_request requests[GPT_PARTS_MAX];
    uint64_t saved_step, saved_ranks; /* of the newest checkpoint; 0: none */
};

/* Prints what failed, with weft's sentence. Returns false. */
bool trainer_fail(const struct trainer *trainer, const char *what);

double trainer_seconds(void); /* of a monotonic clock */
/* The forward pass of a step's samples; waits for each layer's results. */
bool trainer_forward(struct trainer *trainer, uint64_t number, double *loss_out);
/* The backward pass of one layer. */
void trainer_backward_layer(struct trainer *trainer, uint32_t layer);
/* Runs one step. *loss_out: of this rank's samples, before the update. */
bool trainer_step(struct trainer *trainer, uint64_t number, double *loss_out);

/* measure.c: --measure, instead of training. Prints a table on rank 0. */
bool measure_run(struct trainer *trainer);

/* checkpoint.c: collective over all ranks. A job that is killed at any moment leaves one complete
 * checkpoint. */
bool checkpoint_save(struct trainer *trainer);
/* Before the first step, with the first weights in the masters: replaces them, and passes them to weft.
 * Without a checkpoint the first weights stay. */
bool checkpoint_load(struct trainer *trainer);

#endif
