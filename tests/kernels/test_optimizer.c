/* test_optimizer.c - update rules: texts read and refused, steps against a second implementation in f64
 * written from the papers, and bits that do not depend on where a tensor is cut. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "kernels/kernels.h"
#include "tests/kernels/sample.h"

static struct weft_optimizer parsed(const char *text)
{
    struct weft_optimizer made;
    struct weft_error error = {0};
    if (weft_optimizer_parse(text, &made, &error) != WEFT_OK) fail_msg("'%s': %s", text, error.text);
    return made;
}

static void test_accepts(void **state)
{
    struct weft_optimizer o = parsed("");
    assert_int_equal(o.kind, WEFT_OPTIMIZER_NONE);
    assert_int_equal(parsed("none").kind, WEFT_OPTIMIZER_NONE);
    o = parsed("sum");
    assert_true(o.kind == WEFT_OPTIMIZER_NONE && o.is_sum && weft_optimizer_grad_scale(&o, 3) == 1);
    o = parsed("none");
    assert_true(!o.is_sum && weft_optimizer_grad_scale(&o, 4) == 0.25f);
    o = parsed("sgd");
    assert_true(o.kind == WEFT_OPTIMIZER_SGD && o.momentum == 0 && o.weight_decay == 0 && !o.nesterov);
    o = parsed("sgd:nesterov=1,momentum=0.9,weight_decay=1e-4");
    assert_true(o.kind == WEFT_OPTIMIZER_SGD && o.momentum == 0.9f && o.weight_decay == 1e-4f && o.nesterov);
    o = parsed("adam");
    assert_true(o.kind == WEFT_OPTIMIZER_ADAM && o.beta1 == 0.9f && o.beta2 == 0.999f && o.eps == 1e-8f &&
                o.weight_decay == 0);
    o = parsed("adamw:beta2=0.95,eps=1e-6");
    assert_true(o.kind == WEFT_OPTIMIZER_ADAMW && o.beta1 == 0.9f && o.beta2 == 0.95f && o.eps == 1e-6f &&
                o.weight_decay == 0.01f);
    o = parsed("adagrad:weight_decay=0.5");
    assert_true(o.kind == WEFT_OPTIMIZER_ADAGRAD && o.eps == 1e-10f && o.weight_decay == 0.5f);
    o = parsed("ftrl:l1=0.1");
    assert_true(o.kind == WEFT_OPTIMIZER_FTRL && o.beta == 1 && o.l1 == 0.1f && o.l2 == 0);
    o = parsed("lamb:beta2=0.99");
    assert_true(o.kind == WEFT_OPTIMIZER_LAMB && o.beta1 == 0.9f && o.beta2 == 0.99f && o.eps == 1e-6f &&
                o.weight_decay == 0.01f);
    assert_true(weft_optimizer_is_whole(&o) && weft_optimizer_states(&o) == 2);
    assert_int_equal(weft_optimizer_states(&(struct weft_optimizer){.kind = WEFT_OPTIMIZER_SGD}), 0);
    const struct weft_optimizer with_momentum = parsed("sgd:momentum=0.1");
    assert_int_equal(weft_optimizer_states(&with_momentum), 1);
}

static void test_refuses(void **state)
{
    static const char *const bad[] = {"rmsprop",
                                      "sgd:",
                                      "sgd,",
                                      "sgdx",
                                      "none:momentum=1",
                                      "sum:momentum=1",
                                      "sgd:momentum",
                                      "sgd:momentum=",
                                      "sgd:momentum=1",
                                      "sgd:momentum=0.99999999999",
                                      "sgd:momentum=-0.1",
                                      "sgd:momentum=nan",
                                      "sgd:momentum=0x1p-1",
                                      "sgd:momentum=0.9,momentum=0.9",
                                      "sgd:momentum=0.9,",
                                      "sgd:momentum=0.9 ",
                                      "sgd:nesterov=1",
                                      "sgd:momentum=0.5,nesterov=2",
                                      "sgd:weight_decay=inf",
                                      "sgd:lr=0.1",
                                      "sgd:momentum=0.9.1",
                                      "sgd:momentum=0,9",
                                      "sgd:beta1=0.9",
                                      "adam:momentum=0.9",
                                      "adam:beta1=1",
                                      "adam:eps=0",
                                      "adam:eps=1e-99",
                                      "adamw:beta2=-1",
                                      "adagrad:beta1=0.5",
                                      "ftrl:beta=0",
                                      "ftrl:weight_decay=1",
                                      "ftrl:l1=-1",
                                      "lamb:momentum=0.9",
                                      "lamb:eps=0",
                                      "lambda",
                                      "Adam"};
    struct weft_error error = {0};
    struct weft_optimizer o;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        o = (struct weft_optimizer){.weight_decay = 7};
        error = (struct weft_error){0};
        if (weft_optimizer_parse(bad[i], &o, &error) != WEFT_ERR_INVALID)
            fail_msg("'%s' was accepted", bad[i]);
        assert_true(o.weight_decay == 7 && error.text[0] != 0);
    }
    error = (struct weft_error){0};
    weft_optimizer_parse("sgd:lr=0.1", &o, &error);
    assert_string_equal(error.text, "optimizer option 'lr=0.1' is not known: give options as in "
                                    "'sgd:momentum=0.9,weight_decay=1e-4,nesterov=1'");
    error = (struct weft_error){0};
    weft_optimizer_parse("adam:eps=0", &o, &error);
    assert_string_equal(error.text,
                        "optimizer option 'eps=0' is out of range: eps is a number above 0 up to 1e6");
}

enum { COUNT = 203, STEPS = 40 };
static const char *const texts[] = {"sgd:weight_decay=0.01",
                                    "sgd:momentum=0.9,nesterov=1",
                                    "adam",
                                    "adam:weight_decay=0.02,beta1=0.5",
                                    "adamw:weight_decay=0.1",
                                    "adagrad",
                                    "adagrad:weight_decay=0.1",
                                    "ftrl",
                                    "ftrl:l1=0.3,l2=0.2,beta=0.5"};
enum { TEXTS = sizeof texts / sizeof texts[0] };

/* In f64, from the papers' own lines; s and t are the two states. */
static void reference(const struct weft_optimizer *o, double lr, int step, double *w, double *s, double *t,
                      double g)
{
    const double b1 = (double)o->beta1, b2 = (double)o->beta2, decay = (double)o->weight_decay,
                 momentum = (double)o->momentum;
    if (o->kind == WEFT_OPTIMIZER_FTRL) {
        const double sigma = (sqrt(*t + g * g) - sqrt(*t)) / lr;
        *s += g - sigma * *w;
        *t += g * g;
        const double l1 = (double)o->l1;
        *w = fabs(*s) <= l1 ? 0
                            : -(*s - copysign(l1, *s)) / (((double)o->beta + sqrt(*t)) / lr + (double)o->l2);
        return;
    }
    if (o->kind == WEFT_OPTIMIZER_ADAMW) *w *= 1 - lr * decay;
    else g += decay * *w;
    if (o->kind == WEFT_OPTIMIZER_SGD) {
        *s = momentum * *s + g;
        *w -= lr * (o->nesterov ? g + momentum * *s : momentum != 0 ? *s : g);
    } else if (o->kind == WEFT_OPTIMIZER_ADAGRAD) {
        *s += g * g;
        *w -= lr * g / (sqrt(*s) + (double)o->eps);
    } else {
        *s = b1 * *s + (1 - b1) * g;
        *t = b2 * *t + (1 - b2) * g * g;
        *w -= lr * (*s / (1 - pow(b1, step))) / (sqrt(*t / (1 - pow(b2, step))) + (double)o->eps);
    }
}

static void test_against_f64(void **state)
{
    static float w[COUNT], first[COUNT], second[COUNT], grad[COUNT];
    static double w64[COUNT], first64[COUNT], second64[COUNT];
    float *const states[] = {first, second};
    for (int k = 0; k < TEXTS; k++) {
        const struct weft_optimizer o = parsed(texts[k]);
        struct sample sample = {sample_seed(45)};
        sample_fill(&sample, SAMPLE_NORMAL, w, COUNT);
        memset(first, 0, sizeof first);
        memset(second, 0, sizeof second);
        memset(first64, 0, sizeof first64);
        memset(second64, 0, sizeof second64);
        for (size_t i = 0; i < COUNT; i++)
            w64[i] = (double)w[i];
        for (int step = 1; step <= STEPS; step++) {
            sample_fill(&sample, SAMPLE_NORMAL, grad, COUNT);
            weft_optimizer_step(&o, 0.05f, (uint64_t)step, w, states, grad, 0.5f, COUNT);
            for (size_t i = 0; i < COUNT; i++)
                reference(&o, (double)0.05f, step, &w64[i], &first64[i], &second64[i],
                          (double)(grad[i] * 0.5f));
        }
        for (size_t i = 0; i < COUNT; i++)
            if (fabs((double)w[i] - w64[i]) > 3e-5 * (1 + fabs(w64[i])))
                fail_msg("%s: weight %zu is %.9g, in f64 %.9g", texts[k], i, (double)w[i], w64[i]);
    }
}

/* The same in f64, norms and all, beyond one block of the norms; a tensor of zeros, and one whose step is
 * zero, go at lr. */
static void test_lamb(void **state)
{
    enum { LAMB_COUNT = 2 * WEFT_LAMB_BLOCK + 1000 };
    static float w[LAMB_COUNT], first[LAMB_COUNT], second[LAMB_COUNT], grad[LAMB_COUNT];
    static double w64[LAMB_COUNT], first64[LAMB_COUNT], second64[LAMB_COUNT], d64[LAMB_COUNT];
    const struct weft_optimizer o = parsed("lamb:weight_decay=0.1");
    struct sample sample = {sample_seed(47)};
    sample_fill(&sample, SAMPLE_NORMAL, w, LAMB_COUNT);
    for (size_t i = 0; i < LAMB_COUNT; i++)
        w64[i] = (double)w[i];
    for (int step = 1; step <= 10; step++) {
        double of_weights = 0, of_directions = 0;
        sample_fill(&sample, SAMPLE_NORMAL, grad, LAMB_COUNT);
        weft_optimizer_step(&o, 0.05f, (uint64_t)step, w, (float *const[]){first, second}, grad, 0.5f,
                            LAMB_COUNT);
        for (size_t i = 0; i < LAMB_COUNT; i++) {
            const double g = (double)(grad[i] * 0.5f), b1 = (double)o.beta1, b2 = (double)o.beta2;
            first64[i] = b1 * first64[i] + (1 - b1) * g;
            second64[i] = b2 * second64[i] + (1 - b2) * g * g;
            d64[i] =
                first64[i] / (1 - pow(b1, step)) / (sqrt(second64[i] / (1 - pow(b2, step))) + (double)o.eps) +
                (double)o.weight_decay * w64[i];
            of_weights += w64[i] * w64[i];
            of_directions += d64[i] * d64[i];
        }
        for (size_t i = 0; i < LAMB_COUNT; i++)
            w64[i] -= (double)0.05f * sqrt(of_weights) / sqrt(of_directions) * d64[i];
    }
    for (size_t i = 0; i < LAMB_COUNT; i++)
        if (fabs((double)w[i] - w64[i]) > 3e-5 * (1 + fabs(w64[i])))
            fail_msg("weight %zu is %.9g, in f64 %.9g", i, (double)w[i], w64[i]);

    const struct weft_optimizer plain = parsed("lamb:weight_decay=0");
    float zeros[3] = {0}, m[3] = {0}, v[3] = {0}, ones[3] = {1, 1, 1};
    weft_optimizer_step(&plain, 0.5f, 1, zeros, (float *const[]){m, v}, ones, 1.0f, 3);
    assert_true(fabsf(zeros[0] + 0.5f) < 1e-5f); /* |w| = 0: the ratio is 1, the direction 1 */
    float still[3] = {0}, v2[3] = {0}, none[3] = {0}, weights[3] = {1, 2, 3};
    weft_optimizer_step(&plain, 0.5f, 1, weights, (float *const[]){still, v2}, none, 1.0f, 3);
    assert_true(weights[0] == 1 && weights[1] == 2 && weights[2] == 3);
}

/* Whole, and in unequal pieces at unaligned places: the same bits; and the same from every variant. */
static void test_cut_anywhere(void **state)
{
    static float grad[COUNT], whole[3][COUNT], cut[3][COUNT];
    static const size_t ends[] = {1, 17, 40, 41, 128, 199, COUNT};
    for (int k = 0; k < TEXTS; k++) {
        const struct weft_optimizer o = parsed(texts[k]);
        struct sample sample = {sample_seed(46)};
        memset(whole, 0, sizeof whole);
        sample_fill(&sample, SAMPLE_NORMAL, whole[0], COUNT);
        memcpy(cut, whole, sizeof cut);
        for (uint64_t step = 1; step <= 5; step++) {
            sample_fill(&sample, SAMPLE_NORMAL, grad, COUNT);
            weft_optimizer_step(&o, 0.1f, step, whole[0], (float *const[]){whole[1], whole[2]}, grad, 0.25f,
                                COUNT);
            for (size_t at = 0, piece = 0; at < COUNT; at = ends[piece++])
                weft_optimizer_step(&o, 0.1f, step, cut[0] + at, (float *const[]){cut[1] + at, cut[2] + at},
                                    grad + at, 0.25f, ends[piece] - at);
        }
        assert_memory_equal(cut, whole, sizeof whole);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accepts),     cmocka_unit_test(test_refuses),
        cmocka_unit_test(test_against_f64), cmocka_unit_test(test_cut_anywhere),
        cmocka_unit_test(test_lamb),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
