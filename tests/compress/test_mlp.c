/* test_mlp.c - a network trained through every codec ends within a stored threshold of its loss without
 * a codec.
 *
 * Two layers with tanh, the labels those of a wider network drawn at random; 4 workers, each with examples
 * of its own, small batches, plain gradient descent. Error feedback must earn its threshold: with a
 * residual that is discarded after every step (abandon instead of commit) the lossiest codecs miss it, and
 * the test sees that they do. Data, weights and order are drawn from a counter, so a codec's loss differs
 * between machines by no more than libm's last bits do. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "compress_fixture.h"

enum {
    WORKERS = 4,
    EXAMPLES = 160,
    BATCH = 16,
    STEPS = 600,
    INPUTS = 40,
    HIDDEN = 48,
    CLASSES = 8,
    TEACHER = 24
};
#define RATE 0.35

static float inputs[WORKERS][EXAMPLES][INPUTS];
static int labels[WORKERS][EXAMPLES];
static float grads[2][WORKERS][HIDDEN * INPUTS]; /* of each layer's matrix; the second is shorter */
static float weights[2][HIDDEN * INPUTS];
static const size_t counts[2] = {HIDDEN * INPUTS, CLASSES * HIDDEN};

static void draw_data(void)
{
    struct sample sample = {sample_seed(44)};
    static float first[TEACHER][INPUTS], second[CLASSES][TEACHER];
    sample_fill(&sample, SAMPLE_NORMAL, &first[0][0], TEACHER * INPUTS);
    sample_fill(&sample, SAMPLE_NORMAL, &second[0][0], CLASSES * TEACHER);
    for (int w = 0; w < WORKERS; w++)
        for (int x = 0; x < EXAMPLES; x++) {
            double best = -INFINITY, hidden[TEACHER];
            for (int i = 0; i < INPUTS; i++) inputs[w][x][i] = sample_normal(&sample) + 0.3f * (float)(w - 1);
            for (int t = 0; t < TEACHER; t++) {
                hidden[t] = 0;
                for (int i = 0; i < INPUTS; i++)
                    hidden[t] += (double)first[t][i] * (double)inputs[w][x][i] / 4;
                hidden[t] = tanh(hidden[t]);
            }
            for (int c = 0; c < CLASSES; c++) {
                double logit = 0;
                for (int t = 0; t < TEACHER; t++) logit += (double)second[c][t] * hidden[t];
                if (logit > best) best = logit, labels[w][x] = c;
            }
        }
}

/* Adds the gradient of one example to those of its worker; returns its loss. `share` 0: the loss alone. */
static double example(int w, int x, double share)
{
    double hidden[HIDDEN], logits[CLASSES], back[HIDDEN] = {0}, sum = 0;
    const float *in = inputs[w][x];
    for (int h = 0; h < HIDDEN; h++) {
        hidden[h] = 0;
        for (int i = 0; i < INPUTS; i++) hidden[h] += (double)weights[0][h * INPUTS + i] * (double)in[i];
        hidden[h] = tanh(hidden[h]);
    }
    for (int c = 0; c < CLASSES; c++) {
        logits[c] = 0;
        for (int h = 0; h < HIDDEN; h++) logits[c] += (double)weights[1][c * HIDDEN + h] * hidden[h];
        sum += exp(logits[c]);
    }
    for (int c = 0; c < CLASSES && share > 0; c++) {
        const double slope = (exp(logits[c]) / sum - (c == labels[w][x])) * share;
        for (int h = 0; h < HIDDEN; h++) {
            grads[1][w][c * HIDDEN + h] += (float)(slope * hidden[h]);
            back[h] += slope * (double)weights[1][c * HIDDEN + h];
        }
    }
    for (int h = 0; h < HIDDEN && share > 0; h++) {
        const double slope = back[h] * (1 - hidden[h] * hidden[h]);
        for (int i = 0; i < INPUTS; i++) grads[0][w][h * INPUTS + i] += (float)(slope * (double)in[i]);
    }
    return log(sum) - logits[labels[w][x]];
}

static double mean_loss(void)
{
    double loss = 0;
    for (int w = 0; w < WORKERS; w++)
        for (int x = 0; x < EXAMPLES; x++) loss += example(w, x, 0);
    return loss / (WORKERS * EXAMPLES);
}

static void draw_weights(void)
{
    struct sample sample = {sample_seed(45)};
    for (int layer = 0; layer < 2; layer++)
        for (size_t i = 0; i < counts[layer]; i++) weights[layer][i] = 0.15f * sample_normal(&sample);
}

/* The loss over all examples after STEPS steps. `forgets`: the residual of a codec is discarded after every
 * step. */
static double train(const char *codec, bool forgets)
{
    static float out[HIDDEN * INPUTS];
    struct fleet fleets[2];
    draw_weights();
    fleet_open(&fleets[0], codec, shape_of(HIDDEN, INPUTS), WORKERS);
    fleet_open(&fleets[1], codec, shape_of(CLASSES, HIDDEN), WORKERS);
    for (int step = 0; step < STEPS; step++) {
        memset(grads, 0, sizeof grads);
        for (int w = 0; w < WORKERS; w++)
            for (int b = 0; b < BATCH; b++) example(w, (step * BATCH + b) % EXAMPLES, 1.0 / BATCH);
        for (int layer = 0; layer < 2; layer++) {
            const float *list[WORKERS];
            for (int w = 0; w < WORKERS; w++) list[w] = grads[layer][w];
            fleet_step(&fleets[layer], list, 1.0f / WORKERS, out);
            for (uint32_t w = 0; w < WORKERS && forgets; w++) weft_codec_abandon(fleets[layer].codecs[w]);
            if (!forgets) fleet_commit(&fleets[layer]);
            for (size_t i = 0; i < counts[layer]; i++) weights[layer][i] -= (float)(RATE * (double)out[i]);
        }
    }
    fleet_close(&fleets[0]);
    fleet_close(&fleets[1]);
    return mean_loss();
}

static const struct {
    const char *codec;
    double most;   /* of the loss that dense reaches in the same steps */
    bool needs_it; /* error feedback: without, it misses the threshold */
} rows[] = {
    {"bf16", 1.02, false},
    {"f16", 1.02, false},
    {"powersgd:rank=2,min_ratio=1", 1.1, true},
    {"powersgd:rank=4,min_ratio=1", 1.1, true},
    {"topk:ratio=0.01,min_count=0", 1.1, true},
    {"int8:min_count=0", 1.02, false},
    {"int4:min_count=0", 1.1, false},
    {"e4m3:min_count=0", 1.02, false},
    {"e5m2:min_count=0", 1.02, false},
    {"sign:min_count=0", 1.1, true},
    {"randomk:ratio=0.05,min_count=0", 1.1, true},
};

static void test_final_loss(void **state)
{
    draw_data();
    draw_weights();
    const double nothing = mean_loss(), dense = train("dense", false);
    print_message("loss %.4f at the start, %.4f dense after %d steps\n", nothing, dense, STEPS);
    assert_true(dense < 0.5 * nothing);
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        const double loss = train(rows[r].codec, false),
                     without = rows[r].needs_it ? train(rows[r].codec, true) : 0;
        print_message("%-32s %.4f, %.3f of dense (at most %.3f)", rows[r].codec, loss, loss / dense,
                      rows[r].most);
        if (rows[r].needs_it) print_message("; without error feedback %.3f", without / dense);
        print_message("\n");
        if (!(loss <= rows[r].most * dense)) fail_msg("%s: loss %g, dense %g", rows[r].codec, loss, dense);
        if (rows[r].needs_it && !(without > rows[r].most * dense))
            fail_msg("%s: the threshold is met without error feedback", rows[r].codec);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_final_loss)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
