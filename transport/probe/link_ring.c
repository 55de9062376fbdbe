/* link_ring.c - see link_ring.h. */
#include "transport/probe/link_ring.h"

#include <stdbool.h>

#define PASSES_MAX 32

struct search {
    uint32_t count;
    const uint32_t *times;
    uint32_t *order;
};

static uint64_t time_of(const struct search *s, uint32_t a, uint32_t b)
{
    uint32_t there = s->times[(size_t)a * s->count + b], back = s->times[(size_t)b * s->count + a];
    return there > back ? there : back;
}

static uint64_t total_time(const struct search *s)
{
    uint64_t time = 0;
    for (uint32_t i = 0; i < s->count; i++) time += time_of(s, s->order[i], s->order[(i + 1) % s->count]);
    return time;
}

static void start_from(const struct search *s)
{
    for (uint32_t i = 0; i < s->count; i++) s->order[i] = i;
}

/* Appends the nearest host that is not in `order` after place i. Among equals the lowest number, so equal
 * hosts keep their order. */
static void append_nearest(const struct search *s)
{
    start_from(s);
    for (uint32_t i = 0; i + 1 < s->count; i++) {
        uint32_t best = i + 1;
        for (uint32_t j = i + 2; j < s->count; j++) {
            uint64_t time = time_of(s, s->order[i], s->order[j]),
                     least = time_of(s, s->order[i], s->order[best]);
            if (time < least || (time == least && s->order[j] < s->order[best])) best = j;
        }
        uint32_t host = s->order[best];
        s->order[best] = s->order[i + 1];
        s->order[i + 1] = host;
    }
}

/* Reverses places i + 1 .. j: two links are replaced, the links between are traversed backwards. */
static bool reverse(const struct search *s, uint32_t i, uint32_t j)
{
    uint32_t a = s->order[i], b = s->order[i + 1], c = s->order[j], d = s->order[(j + 1) % s->count];
    if (time_of(s, a, c) + time_of(s, b, d) >= time_of(s, a, b) + time_of(s, c, d)) return false;
    for (uint32_t low = i + 1, high = j; low < high; low++, high--) {
        uint32_t host = s->order[low];
        s->order[low] = s->order[high];
        s->order[high] = host;
    }
    return true;
}

static bool improve(const struct search *s)
{
    bool better = false;
    for (uint32_t i = 0; i + 2 < s->count; i++)
        for (uint32_t j = i + 2; j < s->count; j++)
            if (i > 0 || j + 1 < s->count) better |= reverse(s, i, j);
    return better;
}

void weft_link_ring(uint32_t count, const uint32_t *times, uint32_t *order_out)
{
    struct search s = {count, times, order_out};
    start_from(&s);
    /* three hosts have one ring and its reverse */
    if (count < 4 || count > WEFT_LINK_RING_HOSTS_MAX) return;
    uint64_t plain = total_time(&s);
    append_nearest(&s);
    for (int pass = 0; pass < PASSES_MAX && improve(&s); pass++) {}
    if (total_time(&s) > plain - plain / 10) start_from(&s);
}

/* ---- from a table ---- */
static uint32_t saturate_u32(uint64_t value)
{
    return value < UINT32_MAX ? (uint32_t)value : UINT32_MAX;
}

static uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }

static bool fill(const struct weft_link_table *table, const uint32_t *hosts, uint32_t count, uint64_t bytes,
                 uint32_t *times, uint32_t *out, uint32_t *in)
{
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t j = 0; j < count; j++) {
            const struct weft_link *link =
                i == j ? NULL : weft_link_table_best(table, hosts[i], hosts[j], bytes);
            times[(size_t)i * count + j] = 0;
            if (i == j) continue;
            if (!link || link->bytes_per_second == 0) return false;
            times[(size_t)i * count + j] = saturate_u32(weft_link_time_ns(link, bytes));
            uint32_t speed = larger(1, saturate_u32(link->bytes_per_second / 1000000));
            out[i] = larger(out[i], speed);
            in[j] = larger(in[j], speed);
        }
    return true;
}

enum weft_status weft_link_ring_among(const struct weft_link_table *table, const uint32_t *hosts,
                                      uint32_t count, uint64_t bytes, uint32_t *order_out,
                                      uint32_t *speeds_out)
{
    struct weft_env *env = weft_link_table_env(table);
    if (count < 3 || count > WEFT_LINK_RING_HOSTS_MAX) return WEFT_ERR_NOT_FOUND;
    for (uint32_t i = 0; i < count; i++)
        if (hosts[i] >= weft_link_table_host_count(table)) return WEFT_ERR_INVALID;
    uint32_t *times = weft_alloc_array(env, ((size_t)count + 1) * count, sizeof *times),
             *in = times + (size_t)count * count;
    if (!times) return WEFT_ERR_NO_MEMORY;
    for (uint32_t i = 0; i < count; i++) in[i] = speeds_out[i] = 0;
    bool known = fill(table, hosts, count, bytes, times, speeds_out, in);
    for (uint32_t i = 0; i < count; i++) speeds_out[i] = speeds_out[i] < in[i] ? speeds_out[i] : in[i];
    if (known) weft_link_ring(count, times, order_out);
    weft_free_bytes(env, times);
    return known ? WEFT_OK : WEFT_ERR_NOT_FOUND;
}
