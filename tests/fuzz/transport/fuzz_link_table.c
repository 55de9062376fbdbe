/* fuzz_link_table.c - text form of the link table: an accepted table is written and read again as the same
 * table. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"
#include "transport/transport.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct weft_link_table *table, *again;
    char *text, *second;
    size_t text_bytes, second_bytes;
    struct weft_error error = {0};
    if (weft_link_table_read(weft_env_system(), (const char *)data, bytes, &table, &error) < 0) {
        if (error.text[0] == 0) abort();
        return 0;
    }
    for (uint32_t i = 0; i < weft_link_table_count(table); i++) {
        const struct weft_link *link = weft_link_table_get(table, i);
        if (weft_link_table_find(table, link->from, link->to, link->lane) != link) abort();
        weft_link_table_best(table, link->from, link->to, bytes);
    }
    if (weft_link_table_write(table, &text, &text_bytes) < 0) abort();
    if (weft_link_table_read(weft_env_system(), text, text_bytes, &again, NULL) < 0) abort();
    if (weft_link_table_write(again, &second, &second_bytes) < 0) abort();
    if (text_bytes != second_bytes || memcmp(text, second, text_bytes) != 0) abort();
    weft_free_bytes(weft_env_system(), text);
    weft_free_bytes(weft_env_system(), second);
    weft_link_table_free(table);
    weft_link_table_free(again);
    return 0;
}

size_t weft_fuzz_seed(uint64_t number, uint8_t *out, size_t capacity)
{
    uint32_t hosts = (uint32_t)(number % 4 + 1), links = (uint32_t)(number / 4 % 7);
    char *text = (char *)out;
    size_t at = (size_t)snprintf(text, capacity, "weft-links 1\n");
    for (uint32_t i = 0; i < hosts && at + 100 < capacity; i++)
        at += (size_t)snprintf(text + at, capacity - at, "host %x host%u\n", i * 77, i);
    for (uint32_t i = 0; i < links && at + 100 < capacity; i++) {
        at += (size_t)snprintf(text + at, capacity - at, "link %u %u %s %u %u lane%u|some way\n", i % hosts,
                               i / 2 % hosts, i % 3 ? "works" : "failed", i * 1000 + 1, i * 5000 + 1, i);
    }
    if (number % 2 && at + 400 < capacity) {
        at += (size_t)snprintf(text + at, capacity - at, "runs 0 4096 3 2");
        for (unsigned i = 2; i < WEFT_LINK_RUNS_NUMBERS; i++)
            at += (size_t)snprintf(text + at, capacity - at, " %u", i * 111);
        at += (size_t)snprintf(text + at, capacity - at, "\n"), links++;
    }
    if (at + 20 < capacity) at += (size_t)snprintf(text + at, capacity - at, "end %u\n", hosts + links);
    return at < capacity ? at : capacity;
}
