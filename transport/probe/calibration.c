/* calibration.c - see calibration.h. Every length is checked before the numbers behind it are read. */
#include "transport/probe/calibration.h"

#include <string.h>

enum { VERSION = 1, MEMORY_NUMBERS = 8, NUMBER_MAX = 999999999 };

_Static_assert(sizeof(struct weft_link_memory) == MEMORY_NUMBERS * sizeof(uint32_t),
               "numbers without padding");
_Static_assert(sizeof(struct weft_link_runs) == WEFT_LINK_RUNS_NUMBERS * sizeof(uint32_t),
               "numbers without padding");
_Static_assert((3 + MEMORY_NUMBERS + WEFT_LINK_RUNS_NUMBERS) * sizeof(uint32_t) <= WEFT_CALIBRATION_BYTES_MAX,
               "a blob fits");

/* A count and so many numbers; returns the end. */
static uint8_t *put_numbers(uint8_t *at, const void *numbers, uint32_t count)
{
    put_le32(at, count);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t number;
        memcpy(&number, (const uint8_t *)numbers + i * sizeof number, sizeof number);
        put_le32(at + 4 * (1 + i), number);
    }
    return at + 4 * (1 + count);
}

/* Reads a count and its numbers into `numbers` (count_max,) and advances *at. False: another count than 0 or
 * count_max, too few bytes, or a number that is too large. */
static bool take_numbers(const uint8_t **at, const uint8_t *end, void *numbers, uint32_t count_max,
                         uint32_t *count_out)
{
    if (end - *at < 4) return false;
    const uint32_t count = get_le32(*at);
    if ((count != 0 && count != count_max) || (size_t)(end - *at - 4) / 4 < count) return false;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t number = get_le32(*at + 4 * (1 + i));
        if (number > NUMBER_MAX) return false;
        memcpy((uint8_t *)numbers + i * sizeof number, &number, sizeof number);
    }
    *at += 4 * (1 + count);
    *count_out = count;
    return true;
}

size_t weft_calibration_encode(const struct weft_link_memory *memory, const struct weft_link_runs *runs,
                               uint8_t out[WEFT_CALIBRATION_BYTES_MAX])
{
    static const struct weft_link_memory no_memory = {0};
    if (runs->ranks == 0 && memcmp(memory, &no_memory, sizeof no_memory) == 0) return 0;
    put_le32(out, VERSION);
    uint8_t *end = put_numbers(out + 4, memory, MEMORY_NUMBERS);
    end = put_numbers(end, runs, runs->ranks > 0 ? WEFT_LINK_RUNS_NUMBERS : 0);
    return (size_t)(end - out);
}

enum weft_status weft_calibration_decode(const void *data, size_t bytes, struct weft_link_memory *memory_out,
                                         struct weft_link_runs *runs_out)
{
    struct weft_link_memory memory = {0};
    struct weft_link_runs runs = {0};
    const uint8_t *at = data, *end = at + bytes;
    uint32_t memory_count, runs_count;
    *memory_out = memory;
    *runs_out = runs;
    if (bytes == 0) return WEFT_OK;
    if (bytes < 4 || bytes > WEFT_CALIBRATION_BYTES_MAX) return WEFT_ERR_MALFORMED;
    if (get_le32(at) != VERSION) return WEFT_ERR_VERSION;
    at += 4;
    if (!take_numbers(&at, end, &memory, MEMORY_NUMBERS, &memory_count) || memory_count == 0)
        return WEFT_ERR_MALFORMED;
    if (!take_numbers(&at, end, &runs, WEFT_LINK_RUNS_NUMBERS, &runs_count) || at != end)
        return WEFT_ERR_MALFORMED;
    if (!weft_link_runs_are_valid(&runs) || (runs_count > 0 && runs.ranks == 0)) return WEFT_ERR_MALFORMED;
    *memory_out = memory;
    *runs_out = runs;
    return WEFT_OK;
}
