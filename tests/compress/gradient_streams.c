/* gradient_streams.c - the bytes that every codec makes of real gradients, as files, to see what a lossless
 * compressor finds in them (docs/compression.md has the table):
 *
 *     build/tests/compress/gradient_streams DIR && for f in DIR/ *; do zstd -q -b1 -i1 "$f"; done
 *
 * One worker of the Fashion-MNIST example, 784-512-512-10, batch 128, SGD with Nesterov momentum 0.9;
 * after 20 and 400 steps the gradient of the first layer (512 x 784) and of the second (512 x 512). The
 * codecs have run all the time, so their residuals are as in training. Files: STEP-LAYER-CODEC-PART. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "compress/compress.h"
#include "examples/fashion_mnist/batches.h"
#include "examples/fashion_mnist/mlp.h"
#include "kernels/kernels.h"

enum { LAYERS = 3, WATCHED = 2, BATCH = 128, HIDDEN = 512, STEPS = 401 };

static const char *const codecs[] = {
    "dense",           "f16", "bf16", "int8", "int4", "e4m3", "sign", "powersgd:rank=4", "topk:ratio=0.01",
    "topk:ratio=0.001"};
enum { CODECS = sizeof codecs / sizeof codecs[0] };

static struct weft_codec *workers[WATCHED][CODECS];
static struct weft_combiner *combiners[WATCHED][CODECS];

static void need(bool condition, const char *what)
{
    if (condition) return;
    fprintf(stderr, "gradient_streams: %s\n", what);
    exit(1);
}

static void write_file(const char *directory, uint32_t step, uint32_t layer, const char *codec,
                       const char *part, const void *data, size_t bytes)
{
    char path[1200];
    snprintf(path, sizeof path, "%s/%u-%u-%s-%s", directory, step, layer, codec, part);
    FILE *file = fopen(path, "wb");
    need(file && fwrite(data, 1, bytes, file) == bytes && fclose(file) == 0, path);
}

/* A step of one codec on its own; its contributions go to files when it is time. */
static void step_codec(const char *directory, uint32_t step, bool dump, uint32_t layer, uint32_t which,
                       const struct weft_shape *shape, const float *grad, uint8_t *wire, float *out)
{
    struct weft_codec_spec spec;
    char part[16];
    need(weft_codec_parse(codecs[which], &spec, NULL) == WEFT_OK, codecs[which]);
    for (uint32_t round = 0; round < weft_codec_rounds(&spec); round++) {
        const void *aggregate;
        size_t bytes;
        need(weft_codec_encode(workers[layer][which], round, grad, 1.0f, wire, &bytes) == WEFT_OK, "encode");
        snprintf(part, sizeof part, "round%u", round);
        if (dump && spec.id == WEFT_CODEC_TOPK) { /* indices and values apart */
            const size_t values =
                (size_t)((double)weft_shape_elems(shape) * spec.ratio + 0.999999) * sizeof(float);
            write_file(directory, step, layer, codecs[which], "indices", wire, bytes - values);
            write_file(directory, step, layer, codecs[which], "values", wire + bytes - values, values);
        } else if (dump) {
            write_file(directory, step, layer, codecs[which], part, wire, bytes);
        }
        weft_combiner_begin(combiners[layer][which], round);
        need(weft_combiner_add(combiners[layer][which], wire, bytes) == WEFT_OK, "add");
        need(weft_combiner_close(combiners[layer][which], &aggregate, &bytes) == WEFT_OK, "close");
        need(weft_codec_take(workers[layer][which], round, aggregate, bytes, 1) == WEFT_OK, "take");
    }
    need(weft_codec_finish(workers[layer][which], 1.0f, out) == WEFT_OK, "finish");
    weft_codec_commit(workers[layer][which]);
}

int main(int argc, char **argv)
{
    static const uint32_t sizes[LAYERS + 1] = {IMAGE_PIXELS, HIDDEN, HIDDEN, CLASS_COUNT};
    static float x[BATCH * IMAGE_PIXELS];
    static uint8_t labels[BATCH];
    const struct weft_sgd sgd = {.lr = 0.05f, .momentum = 0.9f, .nesterov = true};
    struct dataset train;
    struct batches batches;
    struct mlp mlp;
    float *velocity[LAYERS][2];
    char error[1400] = "";
    need(argc == 2, "usage: gradient_streams DIRECTORY");
    mkdir(argv[1], 0777);
    need(dataset_load(&train, "/usr/share/datasets/fashion-mnist", "train", error, sizeof error), error);
    need(mlp_create(&mlp, sizes, LAYERS, BATCH) && batches_create(&batches, &train, 1), "no memory");
    float *out = malloc(IMAGE_PIXELS * HIDDEN * sizeof *out);
    uint8_t *wire = malloc(IMAGE_PIXELS * HIDDEN * 8);
    for (uint32_t l = 0; l < LAYERS; l++) {
        struct mlp_layer *layer = &mlp.layers[l];
        const struct weft_shape shape = {2, {layer->out, layer->in}};
        const size_t count = (size_t)layer->in * layer->out;
        layer->weights = calloc(count, sizeof(float));
        layer->weights_grad = calloc(count, sizeof(float));
        layer->bias = calloc(layer->out, sizeof(float));
        layer->bias_grad = calloc(layer->out, sizeof(float));
        velocity[l][0] = calloc(count, sizeof(float));
        velocity[l][1] = calloc(layer->out, sizeof(float));
        for (uint32_t c = 0; c < CODECS && l < WATCHED; c++) {
            struct weft_codec_spec spec;
            need(weft_codec_parse(codecs[c], &spec, NULL) == WEFT_OK, codecs[c]);
            need(weft_codec_create(weft_env_system(), &spec, &shape, &workers[l][c]) == WEFT_OK, codecs[c]);
            need(weft_combiner_create(weft_env_system(), &spec, &shape, 1, &combiners[l][c]) == WEFT_OK,
                 codecs[c]);
        }
    }
    mlp_init(&mlp, 1);
    for (uint32_t step = 0; step < STEPS; step++) {
        const bool dump = step == 20 || step == STEPS - 1;
        batches_fill(&batches, (uint64_t)step * BATCH, BATCH, x, labels);
        mlp_forward(&mlp, x, BATCH);
        mlp_loss(&mlp, labels, BATCH, true, NULL);
        for (uint32_t l = LAYERS; l-- > 0;)
            mlp_backward(&mlp, l, x, BATCH);
        for (uint32_t l = 0; l < LAYERS; l++) {
            struct mlp_layer *layer = &mlp.layers[l];
            const struct weft_shape shape = {2, {layer->out, layer->in}};
            for (uint32_t c = 0; c < CODECS && l < WATCHED; c++)
                step_codec(argv[1], step, dump, l, c, &shape, layer->weights_grad, wire, out);
            weft_kernels()->sgd_f32(layer->weights, velocity[l][0], layer->weights_grad, 1.0f, &sgd,
                                    (size_t)layer->in * layer->out);
            weft_kernels()->sgd_f32(layer->bias, velocity[l][1], layer->bias_grad, 1.0f, &sgd, layer->out);
        }
    }
    return 0;
}
