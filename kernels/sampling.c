/* sampling.c - keys of stochastic rounding, and stratified random indices: sorted, without repetition,
 * identical on all machines. */
#include "kernels/kernels.h"
#include "kernels/philox.h"

struct weft_noise weft_noise_of(uint64_t seed, uint64_t tensor, uint32_t worker, uint64_t step)
{
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    const uint32_t counter[4] = {(uint32_t)tensor, (uint32_t)(tensor >> 32), worker, 0};
    uint32_t words[4];
    philox(counter, key, words);
    return (struct weft_noise){{words[0], words[1]}, step, 0};
}

void weft_sample_strata(uint32_t *indices_out, uint64_t count, uint64_t k, const struct weft_noise *noise)
{
    uint32_t words[4];
    for (uint64_t j = 0; j < k; j++) {
        const uint64_t first = j * count / k, width = (j + 1) * count / k - first;
        const uint32_t counter[4] = {(uint32_t)(j / 4), 0, (uint32_t)noise->step,
                                     (uint32_t)(noise->step >> 32)};
        if (j % 4 == 0) philox(counter, noise->key, words);
        indices_out[j] = (uint32_t)(first + (words[j % 4] * width >> 32));
    }
}
