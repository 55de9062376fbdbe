/* test_spec.c - codec specs: what is read, refused, printed, and what a spec becomes for a shape. */
#include "tests/compress/compress_fixture.h"

static void test_defaults_and_text(void **state)
{
    static const char *const pairs[][2] = {
        {"dense", "dense"},
        {"f16", "f16"},
        {"bf16", "bf16"},
        {"powersgd", "powersgd:rank=4,min_ratio=2,seed=1"},
        {"int8", "int8:seed=1,min_count=1024"},
        {"sign", "sign:min_count=1024"},
        {"e4m3:min_count=5", "e4m3:min_count=5"},
        {"e5m2", "e5m2:min_count=1024"},
        {"randomk:seed=9", "randomk:ratio=0.01,seed=9,min_count=1024"},
        {"randomk:feedback=.9", "randomk:ratio=0.01,feedback=0.9,seed=1,min_count=1024"},
        {"randomk:feedback=1", "randomk:ratio=0.01,seed=1,min_count=1024"},
        {"randomk:feedback=0", "randomk:ratio=0.01,feedback=0,seed=1,min_count=1024"},
        {"int4:min_count=0,seed=7", "int4:seed=7,min_count=0"},
        {"powersgd:rank=2", "powersgd:rank=2,min_ratio=2,seed=1"},
        {"powersgd:stacked=1", "powersgd:rank=4,stacked=1,min_ratio=2,seed=1"},
        {"powersgd:seed=18446744073709551615,min_ratio=1.50,rank=64,iterations=8",
         "powersgd:rank=64,iterations=8,min_ratio=1.5,seed=18446744073709551615"},
        {"topk", "topk:ratio=0.01,min_count=1024"},
        {"topk:ratio=1e-3,min_count=0", "topk:ratio=0.001,min_count=0"},
        {"topk:masking=1,nesterov=0,momentum=0,clip=0,warmup_steps=0", "topk:ratio=0.01,min_count=1024"},
        {"topk:warmup_steps=500,masking=0,nesterov=1,clip=2.5,momentum=.9,ratio=0.001",
         "topk:ratio=0.001,min_count=1024,momentum=0.9,nesterov=1,masking=0,clip=2.5,warmup_steps=500"},
        {"topk:global=1", "topk:ratio=0.01,min_count=1024,global=1"},
        {"topk:ratio=.25", "topk:ratio=0.25,min_count=1024"},
        {"topk:ratio=0.000012345", "topk:ratio=1.2345e-05,min_count=1024"},
        {"topk:clip=0013200E22", "topk:ratio=0.01,min_count=1024,clip=1.32e+26"},
        {"topk:clip=1e30", "topk:ratio=0.01,min_count=1024,clip=1e+30"},
        {"topk:clip=999999999999999e15", "topk:ratio=0.01,min_count=1024,clip=9.99999999999999e+29"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        char text[WEFT_CODEC_TEXT_BYTES];
        struct weft_codec_spec spec = spec_of(pairs[i][0]), again;
        weft_codec_format(&spec, text, sizeof text);
        assert_string_equal(text, pairs[i][1]);
        again = spec_of(text);
        assert_memory_equal(&again, &spec, sizeof spec);
    }
}

static void test_refusals(void **state)
{
    static const char *const bad[] = {
        "",
        "Dense",
        "dens",
        "dense:",
        "dense:rank=1",
        "powersgd:",
        "powersgd:rank",
        "powersgd:rank=",
        "powersgd:rank=0",
        "powersgd:rank=65",
        "powersgd:iterations=0",
        "powersgd:iterations=9",
        "powersgd:rank=4x",
        "powersgd:rank=-1",
        "powersgd:rank=4,",
        "powersgd:ratio=0.1",
        "powersgd:min_ratio=0.5",
        "powersgd:min_ratio=1e7",
        "powersgd:min_ratio=nan",
        "powersgd:seed=18446744073709551616",
        "topk:ratio=0",
        "topk:ratio=1.01",
        "topk:ratio=-0.1",
        "topk:ratio=0,01",
        "topk:ratio=1e-99",
        "topk:ratio=.",
        "topk:ratio=1e",
        "topk:rank=4",
        "topk:momentum=1",
        "topk:momentum=-0.1",
        "topk:nesterov=2",
        "topk:masking=",
        "topk:masking=00",
        "topk:clip=1e31",
        "topk:clip=inf",
        "topk:warmup_steps=1.5",
        "randomk:momentum=0.9",
        "randomk:feedback=1.1",
        "powersgd:stacked=2",
        "topk:stacked=1",
        "topk:feedback=0.5",
        "randomk:feedback=-1",
        "int8:clip=1",
        "topk:min_count=1.5",
        "topk:ratio=0.1234567890123456789",
        "topk ",
        "topk:ratio=0.1 ",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct weft_codec_spec spec = {.rank = 77};
        struct weft_error error = {0};
        if (weft_codec_parse(bad[i], &spec, &error) != WEFT_ERR_INVALID) fail_msg("accepted \"%s\"", bad[i]);
        assert_int_equal(spec.rank, 77); /* written only on success */
        assert_true(strlen(error.text) > 20);
    }
}

static void test_resolve(void **state)
{
    struct weft_codec_spec spec = spec_of("powersgd:rank=4,min_ratio=2");
    /* (rows + cols) * rank * min_ratio < rows * cols, strictly: 16 x 16 gives 32 * 8 == 256. */
    const struct { struct weft_shape shape; enum weft_codec_id id; } cases[] = {
        {shape_of(16, 16), WEFT_CODEC_DENSE},
        {shape_of(16, 17), WEFT_CODEC_POWERSGD},
        {shape_of(1024, 784), WEFT_CODEC_POWERSGD},
        {shape_of(10, 1024), WEFT_CODEC_POWERSGD},
        {shape_of(8, 100000), WEFT_CODEC_DENSE},
        {shape_of(1024, 0), WEFT_CODEC_DENSE},
        {{.dim_count = 4, .dims = {64, 32, 3, 3}}, WEFT_CODEC_POWERSGD},
        {{.dim_count = 0}, WEFT_CODEC_DENSE},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_int_equal(weft_codec_resolve(&spec, &cases[i].shape).id, cases[i].id);

    /* each matrix by itself: 16 x 17 pays, the stack's number does not matter */
    spec = spec_of("powersgd:rank=4,stacked=1");
    const struct weft_shape layers = {.dim_count = 3, .dims = {100, 16, 17}},
                            square = {.dim_count = 3, .dims = {100, 16, 16}};
    const struct weft_shape convolutions = {.dim_count = 5, .dims = {3, 64, 32, 3, 3}},
                            matrix = shape_of(1024, 784);
    assert_int_equal(weft_codec_resolve(&spec, &layers).id, WEFT_CODEC_POWERSGD);
    assert_int_equal(weft_codec_resolve(&spec, &square).id, WEFT_CODEC_DENSE);
    assert_int_equal(weft_codec_resolve(&spec, &convolutions).id, WEFT_CODEC_POWERSGD);
    assert_int_equal(weft_codec_resolve(&spec, &matrix).id, WEFT_CODEC_DENSE); /* a stack of vectors */

    struct weft_shape small = shape_of(1023, 0), large = shape_of(1024, 0);
    spec = spec_of("topk");
    assert_int_equal(weft_codec_resolve(&spec, &small).id, WEFT_CODEC_DENSE);
    assert_int_equal(weft_codec_resolve(&spec, &large).id, WEFT_CODEC_TOPK);
    large.dims[0] = (uint64_t)1 << 32;
    assert_int_equal(weft_codec_resolve(&spec, &large).id, WEFT_CODEC_DENSE);
}

static void test_shape(void **state)
{
    const struct weft_shape zero = {.dim_count = 2, .dims = {3, 0}}, none = {.dim_count = 0},
                            many = {.dim_count = 9, .dims = {1, 1, 1, 1, 1, 1, 1, 1}},
                            overflow = {.dim_count = 2, .dims = {(uint64_t)1 << 33, (uint64_t)1 << 33}},
                            good = {.dim_count = 3, .dims = {2, 3, 5}};
    assert_int_equal(weft_shape_elems(&zero), 0);
    assert_int_equal(weft_shape_elems(&none), 0);
    assert_int_equal(weft_shape_elems(&many), 0);
    assert_int_equal(weft_shape_elems(&overflow), 0);
    assert_int_equal(weft_shape_elems(&good), 30);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults_and_text),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_resolve),
        cmocka_unit_test(test_shape),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
