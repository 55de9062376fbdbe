/* test_orthogonalise.c - the basis is orthonormal and spans the space of any input. A dependent column
 * is dropped; no value is NaN. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "kernels/kernels.h"
#include "tests/kernels/sample.h"

enum { ROWS = 200, RANK = 6 };
static const double tolerance = 2e-6;

static double dot(const float *a, const float *b, size_t rows)
{
    double sum = 0;
    for (size_t i = 0; i < rows; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

/* Kept vectors are orthonormal, dropped ones exactly zero; returns the number kept. */
static size_t check_basis(const float *p, const bool *dropped, size_t rows, size_t rank)
{
    size_t kept = 0;
    for (size_t a = 0; a < rank; a++) {
        for (size_t i = 0; i < rows; i++)
            assert_true(isfinite(p[a * rows + i]));
        for (size_t b = 0; b <= a; b++) {
            const double expected = a == b && !dropped[a] ? 1.0 : 0.0;
            assert_true(fabs(dot(p + a * rows, p + b * rows, rows) - expected) < tolerance);
        }
        if (dropped[a]) assert_true(dot(p + a * rows, p + a * rows, rows) == 0.0);
        kept += !dropped[a];
    }
    return kept;
}

/* |v - B B^T v| / |v|: how much of v the basis misses. */
static double missed(const float *v, const float *p, size_t rows, size_t rank)
{
    double left[ROWS], sum = 0;
    for (size_t i = 0; i < rows; i++)
        left[i] = v[i];
    for (size_t r = 0; r < rank; r++) {
        double along = 0;
        for (size_t i = 0; i < rows; i++)
            along += left[i] * (double)p[r * rows + i];
        for (size_t i = 0; i < rows; i++)
            left[i] -= along * (double)p[r * rows + i];
    }
    for (size_t i = 0; i < rows; i++)
        sum += left[i] * left[i];
    return sqrt(sum / dot(v, v, rows));
}

/* Vectors of condition number about kappa: one common direction plus own parts of size 1/kappa. */
static void test_condition(void **state)
{
    struct sample sample = {sample_seed(11)};
    for (double kappa = 1; kappa <= 1e7; kappa *= 10) {
        float p[RANK * ROWS], before[RANK * ROWS], common[ROWS];
        bool dropped[RANK];
        sample_fill(&sample, SAMPLE_NORMAL, common, ROWS);
        for (size_t r = 0; r < RANK; r++)
            for (size_t i = 0; i < ROWS; i++)
                before[r * ROWS + i] = (float)((double)common[i] + (double)sample_normal(&sample) / kappa);
        memcpy(p, before, sizeof p);
        const size_t kept = weft_orthogonalise(p, ROWS, RANK, dropped);
        assert_int_equal(kept, check_basis(p, dropped, ROWS, RANK));
        if (kappa <= 1e3) assert_int_equal(kept, RANK); /* well above noise: nothing is lost */
        if (kappa >= 1e7) assert_int_equal(kept, 1);    /* below f32: only the common part is real */
        for (size_t r = 0; r < RANK; r++)               /* and in between, what is dropped was noise */
            assert_true(missed(before + r * ROWS, p, ROWS, RANK) < 1e-4);
    }
}

static void test_deficient(void **state)
{
    struct sample sample = {sample_seed(12)};
    float p[RANK * ROWS];
    bool dropped[RANK];
    sample_fill(&sample, SAMPLE_NORMAL, p, RANK * ROWS);
    memcpy(p + ROWS, p, ROWS * sizeof *p);         /* 1: a duplicate */
    memset(p + 2 * ROWS, 0, ROWS * sizeof *p);     /* 2: zero */
    for (size_t i = 0; i < ROWS; i++)              /* 4: a combination */
        p[4 * ROWS + i] = 3.0f * p[i] - 0.7f * p[3 * ROWS + i];
    p[5 * ROWS + 3] = NAN;                         /* 5: poisoned */
    assert_int_equal(weft_orthogonalise(p, ROWS, RANK, dropped), 2);
    const bool expected[RANK] = {false, true, true, false, true, true};
    assert_memory_equal(dropped, expected, sizeof expected);
    check_basis(p, dropped, ROWS, RANK);
    assert_int_equal(weft_orthogonalise(p, ROWS, RANK, NULL), 2); /* of a basis: the same basis again */
}

/* Scaling every vector by a power of two changes no bit of the basis, from denormals' edge to 1e30. */
static void test_scale(void **state)
{
    struct sample sample = {sample_seed(13)};
    float base[RANK * ROWS], p[RANK * ROWS], scaled[RANK * ROWS];
    bool dropped[RANK];
    sample_fill(&sample, SAMPLE_NORMAL, base, RANK * ROWS);
    memcpy(p, base, sizeof p);
    assert_int_equal(weft_orthogonalise(p, ROWS, RANK, dropped), RANK);
    for (int power = -100; power <= 100; power += 25) {
        for (size_t i = 0; i < RANK * ROWS; i++)
            scaled[i] = ldexpf(base[i], power);
        weft_orthogonalise(scaled, ROWS, RANK, dropped);
        assert_memory_equal(scaled, p, sizeof p);
    }
    sample_fill(&sample, SAMPLE_DENORMAL, p, RANK * ROWS);
    assert_int_equal(weft_orthogonalise(p, ROWS, RANK, dropped), RANK);
    check_basis(p, dropped, ROWS, RANK);
    for (size_t i = 0; i < RANK * ROWS; i++) /* so small that the 7 bits of an element are all there is */
        p[i] = sample_from_bits((uint32_t)sample_u64(&sample) & 0x8000007fu);
    assert_int_equal(weft_orthogonalise(p, ROWS, RANK, dropped), RANK);
    check_basis(p, dropped, ROWS, RANK);
    for (size_t i = 0; i < RANK * ROWS; i++)
        p[i] = base[i] * (i / ROWS % 2 ? 1e30f : 1e-30f);
    assert_int_equal(weft_orthogonalise(p, ROWS, RANK, dropped), RANK);
    check_basis(p, dropped, ROWS, RANK);
    sample_fill(&sample, SAMPLE_ZERO, p, RANK * ROWS);
    assert_int_equal(weft_orthogonalise(p, ROWS, RANK, dropped), 0);
    check_basis(p, dropped, ROWS, RANK);
}

/* All independent columns, in any order, and all 64 that a codec may have. */
static void test_any_order(void **state)
{
    enum { MANY = 64, LONG = 333 };
    static float from[MANY * LONG], p[MANY * LONG];
    struct sample sample = {sample_seed(15)};
    for (int turn = 0; turn < 20; turn++) {
        bool dropped[MANY];
        size_t order[MANY];
        const size_t independent = turn == 0 ? MANY : 1 + sample_below(&sample, MANY);
        sample_fill(&sample, SAMPLE_NORMAL, from, MANY * LONG);
        /* the rest: sums of two others, larger or smaller by far */
        for (size_t r = independent; r < MANY; r++)
            for (size_t i = 0; i < LONG; i++)
                from[r * LONG + i] = ldexpf(
                    from[r % independent * LONG + i] - from[(r + 1) % independent * LONG + i], (int)r - 40);
        for (size_t r = 0; r < MANY; r++)
            order[r] = r;
        for (size_t r = MANY - 1; r > 0; r--) {
            const size_t other = sample_below(&sample, r + 1), kept = order[r];
            order[r] = order[other];
            order[other] = kept;
        }
        for (size_t r = 0; r < MANY; r++)
            memcpy(p + r * LONG, from + order[r] * LONG, LONG * sizeof *p);
        assert_int_equal(weft_orthogonalise(p, LONG, MANY, dropped), independent);
        assert_int_equal(check_basis(p, dropped, LONG, MANY), independent);
        for (size_t r = 0; r < MANY; r++) {
            double left = 0, whole = 0, rest[LONG];
            for (size_t i = 0; i < LONG; i++)
                rest[i] = from[r * LONG + i];
            for (size_t b = 0; b < MANY; b++) {
                double along = 0;
                for (size_t i = 0; i < LONG; i++)
                    along += rest[i] * (double)p[b * LONG + i];
                for (size_t i = 0; i < LONG; i++)
                    rest[i] -= along * (double)p[b * LONG + i];
            }
            for (size_t i = 0; i < LONG; i++) {
                left += rest[i] * rest[i];
                whole += (double)from[r * LONG + i] * (double)from[r * LONG + i];
            }
            assert_true(left <= 1e-8 * whole);
        }
    }
}

/* More vectors than dimensions: exactly `rows` can be independent. */
static void test_more_vectors_than_rows(void **state)
{
    struct sample sample = {sample_seed(14)};
    float p[RANK * 3];
    bool dropped[RANK];
    sample_fill(&sample, SAMPLE_NORMAL, p, RANK * 3);
    assert_int_equal(weft_orthogonalise(p, 3, RANK, dropped), 3);
    check_basis(p, dropped, 3, RANK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_condition),
        cmocka_unit_test(test_deficient),
        cmocka_unit_test(test_scale),
        cmocka_unit_test(test_any_order),
        cmocka_unit_test(test_more_vectors_than_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
