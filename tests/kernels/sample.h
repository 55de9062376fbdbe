/* sample.h - seeded inputs for the tests of kernels and codecs: a small generator and the values that
 * hurt. */
#ifndef WEFT_TESTS_KERNELS_SAMPLE_H
#define WEFT_TESTS_KERNELS_SAMPLE_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* splitmix64 (Steele, Lea, Flood 2014): one word of state, any seed. */
struct sample {
    uint64_t state;
};

static inline uint64_t sample_u64(struct sample *sample)
{
    uint64_t z = (sample->state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static inline uint64_t sample_below(struct sample *sample, uint64_t bound)
{
    return sample_u64(sample) % bound;
}

/* Near enough to a standard normal: the sum of four uniforms, variance 1. */
static inline float sample_normal(struct sample *sample)
{
    const uint64_t word = sample_u64(sample);
    double sum = 0;
    for (int part = 0; part < 4; part++)
        sum += (double)((word >> (16 * part)) & 0xffff) / 65536.0 - 0.5;
    return (float)(sum * 1.7320508075688772);
}

static inline float sample_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t sample_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* Any bit pattern, with the patterns that break things far more often than chance would bring them. */
static inline float sample_wild(struct sample *sample)
{
    static const uint32_t hard[] = {
        0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007fffff, 0x00800000, 0x3f800000, 0xbf800000,
        0x7f7fffff, 0xff7fffff, 0x7f800000, 0xff800000, 0x7fc00000, 0xffc00000, 0x7f800001, 0xffbfffff,
        0x7fffffff, 0x7fc12345, 0x477ff000, 0x477fefff, 0x33000000, 0x33000001, 0x387fffff, 0x38800000,
        0x3f808000, 0x3f818000, 0x7f7f8000, 0x3f801000, 0x3f803000,
    };
    const uint64_t choice = sample_below(sample, 4);
    if (choice == 0) return sample_from_bits(hard[sample_below(sample, sizeof hard / sizeof hard[0])]);
    if (choice == 1) return sample_from_bits((uint32_t)sample_u64(sample));
    return sample_normal(sample);
}

enum sample_kind { SAMPLE_NORMAL, SAMPLE_WILD, SAMPLE_DENORMAL, SAMPLE_ZERO, SAMPLE_KINDS };

static inline void sample_fill(struct sample *sample, enum sample_kind kind, float *out, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        switch (kind) {
        case SAMPLE_WILD: out[i] = sample_wild(sample); break;
        case SAMPLE_DENORMAL: out[i] = sample_from_bits((uint32_t)sample_u64(sample) & 0x807fffffu); break;
        case SAMPLE_ZERO: out[i] = sample_u64(sample) & 1 ? 0.0f : -0.0f; break;
        default: out[i] = sample_normal(sample); break;
        }
    }
}

/* The seed of a test: WEFT_TEST_SEED or the one written in the test. */
static inline uint64_t sample_seed(uint64_t usual)
{
    const char *text = getenv("WEFT_TEST_SEED");
    return text ? strtoull(text, NULL, 0) : usual;
}

#endif
