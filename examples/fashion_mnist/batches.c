/* batches.c - see batches.h. */
#include "batches.h"

#include <stdlib.h>

#include "mlp.h"

/* Mean and standard deviation of the training pixels on the scale 0..1. */
#define PIXEL_MEAN 0.2860f
#define PIXEL_DEVIATION 0.3530f

bool batches_create(struct batches *batches, const struct dataset *dataset, uint64_t seed)
{
    *batches = (struct batches){.dataset = dataset, .seed = seed, .epoch = UINT64_MAX};
    batches->order = malloc(dataset->count * sizeof(uint32_t));
    return batches->order != NULL;
}

void batches_free(struct batches *batches)
{
    free(batches->order);
    *batches = (struct batches){0};
}

/* Fisher-Yates. Each epoch has its own generator, so any epoch can be generated alone. */
static void shuffle(struct batches *batches, uint64_t epoch)
{
    uint64_t state = batches->seed ^ (epoch + 1) * 0xd1342543de82ef95u;
    uint32_t count = batches->dataset->count;
    for (uint32_t i = 0; i < count; i++) batches->order[i] = i;
    for (uint32_t i = count - 1; i > 0; i--) {
        uint32_t j = (uint32_t)(random_next(&state) % (i + 1));
        uint32_t kept = batches->order[i];
        batches->order[i] = batches->order[j];
        batches->order[j] = kept;
    }
    batches->epoch = epoch;
}

static void normalise(const uint8_t *pixels, float *x)
{
    for (uint32_t k = 0; k < IMAGE_PIXELS; k++)
        x[k] = ((float)pixels[k] * (1.0f / 255.0f) - PIXEL_MEAN) * (1.0f / PIXEL_DEVIATION);
}

void batches_fill(struct batches *batches, uint64_t first, uint32_t count, float *x, uint8_t *labels)
{
    const struct dataset *dataset = batches->dataset;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t epoch = (first + i) / dataset->count;
        if (epoch != batches->epoch) shuffle(batches, epoch);
        uint32_t image = batches->order[(first + i) % dataset->count];
        normalise(dataset->pixels + (size_t)image * IMAGE_PIXELS, x + (size_t)i * IMAGE_PIXELS);
        labels[i] = dataset->labels[image];
    }
}

void images_fill(const struct dataset *dataset, uint32_t first, uint32_t count, float *x)
{
    for (uint32_t i = 0; i < count; i++) {
        normalise(dataset->pixels + (size_t)(first + i) * IMAGE_PIXELS, x + (size_t)i * IMAGE_PIXELS);
    }
}
