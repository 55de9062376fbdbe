/* test_fashion_mnist.c - the parts of the trainer that need no job: the reader, the order of images, the
 * gradients. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "batches.h"
#include "idx.h"
#include "mlp.h"

static char directory[64];

static int make_directory(void **state)
{
    strcpy(directory, "/tmp/test_fashion_mnist_XXXXXX");
    return mkdtemp(directory) ? 0 : -1;
}

static int remove_directory(void **state)
{
    char command[100];
    snprintf(command, sizeof(command), "rm -rf '%s'", directory);
    return system(command);
}

/* ---- the reader ---- */

static void write_file(const char *name, const uint8_t *bytes, size_t count)
{
    char path[160];
    snprintf(path, sizeof(path), "%s/%s", directory, name);
    gzFile file = gzopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(gzwrite(file, bytes, (unsigned)count), (int)count);
    assert_int_equal(gzclose(file), Z_OK);
}

/* A well-formed pair of `count` images; then `change` may spoil the raw bytes. */
static void write_pair(uint32_t count, int spoiled_file, size_t offset, uint8_t value, long cut)
{
    size_t image_bytes = 16 + (size_t)count * IMAGE_PIXELS, label_bytes = 8 + count;
    uint8_t *images = calloc(1, image_bytes + 1), *labels = calloc(1, label_bytes + 1);
    memcpy(images, (uint8_t[]){0, 0, 8, 3, 0, 0, 0, (uint8_t)count, 0, 0, 0, 28, 0, 0, 0, 28}, 16);
    memcpy(labels, (uint8_t[]){0, 0, 8, 1, 0, 0, 0, (uint8_t)count}, 8);
    for (uint32_t i = 0; i < count; i++) labels[8 + i] = (uint8_t)(i % CLASS_COUNT);
    if (spoiled_file == 1) images[offset] = value;
    if (spoiled_file == 2) labels[offset] = value;
    write_file("train-images-idx3-ubyte.gz", images, image_bytes + (size_t)(spoiled_file == 1 ? cut : 0));
    write_file("train-labels-idx1-ubyte.gz", labels, label_bytes + (size_t)(spoiled_file == 2 ? cut : 0));
    free(images);
    free(labels);
}

static void expect_refusal(const char *part)
{
    struct dataset dataset = {0};
    char error[1400] = "";
    assert_false(dataset_load(&dataset, directory, "train", error, sizeof(error)));
    if (!strstr(error, part)) fail_msg("'%s' is not in: %s", part, error);
    assert_non_null(strstr(error, "train-"));
    assert_null(dataset.pixels);
}

static void well_formed_files_are_read(void **state)
{
    struct dataset dataset;
    char error[1400];
    write_pair(20, 1, 16 + 5, 77, 0);
    assert_true(dataset_load(&dataset, directory, "train", error, sizeof(error)));
    assert_int_equal(dataset.count, 20);
    assert_int_equal(dataset.pixels[5], 77);
    assert_int_equal(dataset.labels[19], 9);
    dataset_free(&dataset);
}

static void spoiled_files_are_refused(void **state)
{
    write_pair(20, 1, 3, 1, 0);
    expect_refusal("IDX magic");
    write_pair(20, 1, 4, 200, 0); /* 3,355,443,220 images */
    expect_refusal("items");
    write_pair(20, 1, 7, 0, 0);
    expect_refusal("0 items");
    write_pair(20, 1, 11, 29, 0);
    expect_refusal("29 x 28");
    write_pair(20, 1, 0, 0, -1);
    expect_refusal("too early");
    write_pair(20, 1, 0, 0, -(long)(20 * IMAGE_PIXELS) - 10); /* inside the header */
    expect_refusal("too early");
    write_pair(20, 1, 0, 0, 1);
    expect_refusal("longer");
    write_pair(20, 2, 7, 21, 1);
    expect_refusal("21 labels for 20 images");
    write_pair(20, 2, 8 + 3, 10, 0);
    expect_refusal("label 3");

    char path[160];
    snprintf(path, sizeof(path), "%s/train-labels-idx1-ubyte.gz", directory);
    write_pair(20, 0, 0, 0, 0);
    assert_int_equal(truncate(path, 20), 0); /* the compressed stream ends */
    expect_refusal("too early");
    unlink(path);
    expect_refusal("data set not found");
}

/* ---- the order of images ---- */

static void every_epoch_shows_every_image_once(void **state)
{
    enum { COUNT = 500, BATCH = 64 };
    struct dataset dataset = {
        .count = COUNT, .pixels = calloc(COUNT, IMAGE_PIXELS), .labels = calloc(COUNT, 1)};
    for (uint32_t i = 0; i < COUNT; i++) {
        dataset.pixels[(size_t)i * IMAGE_PIXELS] = (uint8_t)(i % 250);
        dataset.labels[i] = (uint8_t)(i / 250);
    }
    struct batches batches;
    assert_true(batches_create(&batches, &dataset, 7));
    float *x = calloc(BATCH, IMAGE_PIXELS * sizeof(float));
    uint8_t labels[BATCH];
    int seen[COUNT] = {0};
    for (uint64_t at = 0; at < 2 * COUNT; at += BATCH) { /* batches cross the boundary of the epochs */
        uint32_t count = 2 * COUNT - at < BATCH ? (uint32_t)(2 * COUNT - at) : BATCH;
        batches_fill(&batches, at, count, x, labels);
        for (uint32_t i = 0; i < count; i++) {
            int image =
                (int)lroundf((x[(size_t)i * IMAGE_PIXELS] * 0.3530f + 0.2860f) * 255.0f) + 250 * labels[i];
            assert_true(image >= 0 && image < COUNT);
            seen[image]++;
            if (at + i + 1 != COUNT) continue;
            for (int k = 0; k < COUNT; k++) assert_int_equal(seen[k], 1);
        }
    }
    for (int k = 0; k < COUNT; k++) assert_int_equal(seen[k], 2);

    /* any cut gives the same images: 1 x 64 equals 2 x 32 */
    float *half = calloc(BATCH, IMAGE_PIXELS * sizeof(float));
    batches_fill(&batches, 128, BATCH, x, labels);
    batches_fill(&batches, 160, BATCH / 2, half, labels);
    assert_memory_equal(x + 32 * IMAGE_PIXELS, half, 32 * IMAGE_PIXELS * sizeof(float));
    free(half);
    free(x);
    batches_free(&batches);
    dataset_free(&dataset);
}

/* ---- the model: gradients against differences of the loss ---- */

static void gradients_are_those_of_the_loss(void **state)
{
    enum { LAYERS = 3, BATCH = 5 };
    static const uint32_t sizes[LAYERS + 1] = {7, 6, 5, 4};
    struct mlp mlp;
    assert_true(mlp_create(&mlp, sizes, LAYERS, BATCH));
    uint64_t random = 3;
    for (uint32_t l = 0; l < LAYERS; l++) {
        struct mlp_layer *layer = &mlp.layers[l];
        layer->weights = calloc((size_t)layer->in * layer->out, sizeof(float));
        layer->weights_grad = calloc((size_t)layer->in * layer->out, sizeof(float));
        layer->bias = calloc(layer->out, sizeof(float));
        layer->bias_grad = calloc(layer->out, sizeof(float));
    }
    mlp_init(&mlp, 11);
    float x[BATCH * 7];
    uint8_t labels[BATCH];
    for (int i = 0; i < BATCH * 7; i++) x[i] = (float)(random_next(&random) % 2000) / 1000.0f - 1;
    for (int i = 0; i < BATCH; i++) labels[i] = (uint8_t)(random_next(&random) % 4);

    mlp_forward(&mlp, x, BATCH);
    mlp_loss(&mlp, labels, BATCH, true, NULL);
    for (uint32_t l = LAYERS; l-- > 0;) mlp_backward(&mlp, l, x, BATCH);
    for (uint32_t l = 0; l < LAYERS; l++) {
        struct mlp_layer *layer = &mlp.layers[l];
        for (uint32_t part = 0; part < 2; part++) {
            float *values = part ? layer->bias : layer->weights,
                  *grads = part ? layer->bias_grad : layer->weights_grad;
            uint32_t count = part ? layer->out : layer->in * layer->out;
            for (uint32_t i = 0; i < count; i++) {
                const float kept = values[i], distance = 1e-3f;
                values[i] = kept + distance;
                mlp_forward(&mlp, x, BATCH);
                double above = mlp_loss(&mlp, labels, BATCH, false, NULL) / BATCH;
                values[i] = kept - distance;
                mlp_forward(&mlp, x, BATCH);
                double below = mlp_loss(&mlp, labels, BATCH, false, NULL) / BATCH;
                values[i] = kept;
                double slope = (above - below) / (2 * distance);
                if (fabs(slope - grads[i]) > 2e-3)
                    fail_msg("layer %u part %u element %u: %g, not %g", l, part, i, (double)grads[i], slope);
            }
        }
    }
    for (uint32_t l = 0; l < LAYERS; l++) {
        free(mlp.layers[l].weights);
        free(mlp.layers[l].weights_grad);
        free(mlp.layers[l].bias);
        free(mlp.layers[l].bias_grad);
    }
    mlp_free(&mlp);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(well_formed_files_are_read),
        cmocka_unit_test(spoiled_files_are_refused),
        cmocka_unit_test(every_epoch_shows_every_image_once),
        cmocka_unit_test(gradients_are_those_of_the_loss),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
