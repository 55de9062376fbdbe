/* link_cost.c - see link_cost.h. */
#include "transport/probe/link_cost.h"

static void worsen(struct weft_link_cost *cost, const struct weft_link *link)
{
    cost->pairs++;
    if (!link || link->bytes_per_second == 0) {
        cost->unknown++;
        return;
    }
    bool first = cost->bytes_per_second == 0;
    if (link->latency_ns > cost->latency_ns) cost->latency_ns = link->latency_ns;
    if (first || link->bytes_per_second < cost->bytes_per_second)
        cost->bytes_per_second = link->bytes_per_second;
}

static uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }

static uint32_t smaller_nonzero(uint32_t a, uint32_t b)
{
    return b && (a == 0 || b < a) ? b : a;
}

/* The slowest memory and the smallest caches. */
static void worsen_memory(struct weft_link_memory *cost, const struct weft_link_memory *memory)
{
    cost->flag_round_ns = larger(cost->flag_round_ns, memory->flag_round_ns);
    cost->slices_overhead_ns = larger(cost->slices_overhead_ns, memory->slices_overhead_ns);
    cost->copyin_ps = larger(cost->copyin_ps, memory->copyin_ps);
    cost->private_cache_ps = larger(cost->private_cache_ps, memory->private_cache_ps);
    cost->last_cache_ps = larger(cost->last_cache_ps, memory->last_cache_ps);
    cost->nt_store_ps = larger(cost->nt_store_ps, memory->nt_store_ps);
    cost->private_cache_kib = smaller_nonzero(cost->private_cache_kib, memory->private_cache_kib);
    cost->last_cache_kib = smaller_nonzero(cost->last_cache_kib, memory->last_cache_kib);
}

/* The slowest machine; the smallest eager limit. */
static void worsen_machine(struct weft_link_cost *cost, const struct weft_link_machine *machine)
{
    cost->inject_ns = larger(cost->inject_ns, machine->inject_ns);
    cost->sum_ps = larger(cost->sum_ps, machine->sum_ps);
    cost->pass_ps = larger(cost->pass_ps, machine->pass_ps);
    cost->incast_milli = larger(cost->incast_milli, machine->incast_milli);
    if (machine->eager_bytes && (cost->eager_bytes == 0 || machine->eager_bytes < cost->eager_bytes))
        cost->eager_bytes = machine->eager_bytes;
}

enum weft_status weft_link_cost_among(const struct weft_link_table *table, const uint32_t *hosts,
                                      uint32_t count, uint64_t bytes, struct weft_link_cost *cost_out)
{
    *cost_out = (struct weft_link_cost){0};
    if (count < 2) return WEFT_ERR_INVALID;
    for (uint32_t i = 0; i < count; i++) {
        if (hosts[i] >= weft_link_table_host_count(table)) return WEFT_ERR_INVALID;
    }
    bool together = true;
    for (uint32_t i = 1; i < count; i++) together &= hosts[i] == hosts[0];
    if (together) cost_out->runs = *weft_link_table_runs(table, hosts[0]);
    for (uint32_t i = 0; i < count; i++) {
        worsen_machine(cost_out, weft_link_table_machine(table, hosts[i]));
        worsen_memory(&cost_out->memory, weft_link_table_memory(table, hosts[i]));
        for (uint32_t j = 0; j < count; j++) {
            if (i != j) worsen(cost_out, weft_link_table_best(table, hosts[i], hosts[j], bytes));
        }
    }
    return WEFT_OK;
}
