/* fuzz_calibration.c - the calibration blob: an accepted one is encoded to
 * the same bytes; a refused one leaves zeros. */
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"
#include "transport/transport.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const struct weft_link_memory no_memory;
    static const struct weft_link_runs no_runs;
    struct weft_link_memory memory;
    struct weft_link_runs runs;
    uint8_t again[WEFT_CALIBRATION_BYTES_MAX];
    const enum weft_status status = weft_calibration_decode(data, bytes, &memory, &runs);
    const bool is_empty =
        memcmp(&memory, &no_memory, sizeof memory) == 0 && memcmp(&runs, &no_runs, sizeof runs) == 0;
    if (status < 0 && !is_empty) abort();
    if (status < 0 || is_empty) return 0;
    if (!weft_link_runs_are_valid(&runs)) abort();
    if (weft_calibration_encode(&memory, &runs, again) != bytes || memcmp(again, data, bytes) != 0) abort();
    return 0;
}

size_t weft_fuzz_seed(uint64_t number, uint8_t *out, size_t capacity)
{
    struct weft_link_memory memory = {.private_cache_kib = (uint32_t)(number % 1000)};
    struct weft_link_runs runs = {0};
    if (capacity < WEFT_CALIBRATION_BYTES_MAX) return 0;
    uint32_t numbers[WEFT_LINK_RUNS_NUMBERS];
    for (uint32_t i = 0; i < WEFT_LINK_RUNS_NUMBERS; i++)
        numbers[i] = 1 + (uint32_t)(number * 2654435761u >> i % 32) % 999999999;
    if (number % 2) memcpy(&runs, numbers, sizeof runs);
    if (number % 3) memcpy(&memory, numbers, sizeof memory);
    return weft_calibration_encode(&memory, &runs, out);
}
