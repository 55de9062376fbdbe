/* test_gpt_model.c - the model of examples/gpt: its gradients beside finite differences, the order in which
 * they are complete, bf16 working weights, and the samples of a step. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model.h"
#include "text.h"

enum { LENGTH = 6, SAMPLES = 2 };

static void create(struct gpt *gpt, bool bf16)
{
    const struct gpt_shape shape = {.blocks = 2, .width = 8, .heads = 2, .length = LENGTH, .bf16 = bf16};
    assert_true(gpt_create(gpt, &shape, SAMPLES));
    for (uint32_t i = 0; i < gpt->part_count; i++) {
        gpt->parts[i].master = calloc(gpt->parts[i].count, sizeof(float));
        gpt->parts[i].grad = calloc(gpt->parts[i].count, sizeof(float));
    }
    gpt_init(gpt, 7);
    /* larger weights: the differences of the loss are above its rounding */
    for (uint32_t i = 0; i < gpt->part_count; i++)
        for (uint64_t k = 0; gpt->parts[i].cols && k < gpt->parts[i].count; k++)
            gpt->parts[i].master[k] *= 20;
    for (uint32_t layer = 0; layer <= 3; layer++) gpt_refresh(gpt, layer);
}

static void destroy(struct gpt *gpt)
{
    for (uint32_t i = 0; i < gpt->part_count; i++) {
        free(gpt->parts[i].master);
        free(gpt->parts[i].grad);
    }
    gpt_free(gpt);
}

static const uint8_t sentence[SAMPLES * (LENGTH + 1) + 1] = "abcabcabacbacb";

static double loss_of(struct gpt *gpt)
{
    double loss = 0;
    gpt_begin(gpt, sentence, SAMPLES);
    for (uint32_t layer = 0; layer <= 3; layer++) loss = gpt_forward(gpt, layer);
    return loss;
}

static void test_gradients(void **state)
{
    struct gpt gpt;
    create(&gpt, false);
    loss_of(&gpt);
    for (uint32_t layer = 4; layer-- > 0;) gpt_backward(&gpt, layer);
    for (uint32_t i = 0; i < gpt.part_count; i++) {
        struct gpt_part *part = &gpt.parts[i];
        float most = 0;
        for (uint64_t k = 0; k < part->count; k++) most = fmaxf(most, fabsf(part->grad[k]));
        assert_true(most > 0);
        for (uint64_t k = 0; k < part->count; k += part->count / 7) {
            const float at = part->master[k], by = 4e-3f;
            part->master[k] = at + by;
            const double above = loss_of(&gpt);
            part->master[k] = at - by;
            const double below = loss_of(&gpt);
            part->master[k] = at;
            const double wanted = (above - below) / (2.0 * by);
            if (fabs(wanted - part->grad[k]) > 2e-3 + 0.02 * most)
                fail_msg("%s[%u]: gradient %g, finite difference %g", part->name, (unsigned)k, part->grad[k],
                         wanted);
        }
    }
    destroy(&gpt);
}

/* The trainer pushes a layer behind its backward pass: the library may then write the masters. */
static void test_layer_is_complete(void **state)
{
    struct gpt whole, early;
    create(&whole, false);
    create(&early, false);
    loss_of(&whole);
    loss_of(&early);
    for (uint32_t layer = 4; layer-- > 0;) {
        gpt_backward(&whole, layer);
        gpt_backward(&early, layer);
        for (uint32_t i = 0; i < early.part_count; i++) {
            if (early.parts[i].layer != layer) continue;
            assert_memory_equal(early.parts[i].grad, whole.parts[i].grad,
                                early.parts[i].count * sizeof(float));
            memset(early.parts[i].master, 0xff, early.parts[i].count * sizeof(float)); /* NaN */
        }
    }
    for (uint32_t i = 0; i < early.part_count; i++)
        assert_memory_equal(early.parts[i].grad, whole.parts[i].grad, early.parts[i].count * sizeof(float));
    destroy(&whole);
    destroy(&early);
}

static void test_bf16(void **state)
{
    struct gpt full, half;
    create(&full, false);
    create(&half, true);
    const double exact = loss_of(&full), rounded = loss_of(&half);
    assert_true(rounded != exact);
    assert_true(fabs(rounded - exact) < 0.05 * exact);
    for (uint32_t layer = 4; layer-- > 0;) gpt_backward(&half, layer);
    /* the masters are not read until gpt_refresh */
    for (uint32_t i = 0; i < half.part_count; i++)
        memset(half.parts[i].master, 0xff, half.parts[i].count * sizeof(float));
    assert_true(loss_of(&half) == rounded);
    destroy(&full);
    destroy(&half);
}

static void test_samples(void **state)
{
    uint8_t bytes[2000], whole[8 * (LENGTH + 1)], part[4 * (LENGTH + 1)], other[8 * (LENGTH + 1)];
    uint64_t random = 3;
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (uint8_t)random_next(&random);
    const struct text text = {.bytes = bytes, .count = sizeof bytes, .held_out = 100};
    text_batch(&text, 1, 5, 0, 8, LENGTH, whole);
    text_batch(&text, 1, 5, 4, 4, LENGTH, part);
    assert_memory_equal(part, whole + 4 * (LENGTH + 1), sizeof part);
    text_batch(&text, 1, 6, 0, 8, LENGTH, other);
    assert_memory_not_equal(other, whole, sizeof whole);
    text_held_out(&text, 0, 2, LENGTH, part);
    assert_memory_equal(part, bytes + sizeof bytes - 100, LENGTH + 1);
    assert_memory_equal(part + LENGTH + 1, bytes + sizeof bytes - 100 + LENGTH, LENGTH + 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients),
        cmocka_unit_test(test_layer_is_complete),
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_samples),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
