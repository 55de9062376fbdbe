/* batches.h - the images of each worker: one shuffled endless stream, divided among the workers.
 *
 * The order of images depends on the seed alone. Step s of a job with R workers and B images each reads
 * positions [s*B*R, (s+1)*B*R) of the stream; worker r takes the r-th B of them. So 2 workers with 128 images
 * and 4 workers with 64 read the same images in the same steps, and every batch is full. */
#ifndef FASHION_MNIST_BATCHES_H
#define FASHION_MNIST_BATCHES_H

#include <stdint.h>

#include "idx.h"

struct batches {
    const struct dataset *dataset; /* borrowed */
    uint64_t seed, epoch;          /* epoch whose order is in `order`; UINT64_MAX: none yet */
    uint32_t *order;               /* owned: (dataset->count,) */
};

bool batches_create(struct batches *batches, const struct dataset *dataset, uint64_t seed);
void batches_free(struct batches *batches);
/* Images at stream positions [first, first + count): x (count, IMAGE_PIXELS), labels (count,). */
void batches_fill(struct batches *batches, uint64_t first, uint32_t count, float *x, uint8_t *labels);
/* Images in the order of the data set, normalised in the same way. */
void images_fill(const struct dataset *dataset, uint32_t first, uint32_t count, float *x);

#endif
