/* random_topology.h - a random network for a seed: a star, a fat tree with a thin core, separate rails, or
 * two sites. Links lose, duplicate and delay bursts; a host may be slow, a cut or a link may fail for some
 * time. Every fault ends long before the reliable layer gives up, so above the transport only times
 * change. */
#ifndef WEFT_TESTS_RANDOM_TOPOLOGY_H
#define WEFT_TESTS_RANDOM_TOPOLOGY_H

#include <stdio.h>
#include <string.h>

#include "transport/transport.h"

static inline uint64_t random_topology_draw(uint64_t *state, uint64_t below)
{
    uint64_t x = *state += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return (x ^ (x >> 31)) % below;
}

/* The text of a network of `hosts` hosts (at least 2). */
static inline void random_topology_text(uint64_t seed, uint32_t hosts, char *out, size_t bytes)
{
    static const char *const losses[] = {"0", "0.001", "0.01", "0.03"};
    uint64_t state = seed ^ 0x70b0;
    unsigned kind = (unsigned)random_topology_draw(&state, 4),
             leaves = 2 + (unsigned)random_topology_draw(&state, 3);
    unsigned rails = kind == 2 ? 2 : 1, east = kind == 3 ? hosts / 2 : hosts;
    char hurt[160], *at = out, *end = out + bytes;
    snprintf(hurt, sizeof hurt, "rate = %uGbit\nlatency = %uns\njitter = %uns\nloss = %s\nduplicate = %s\n",
             10 * (1 + (unsigned)random_topology_draw(&state, 20)),
             100 + (unsigned)random_topology_draw(&state, 2000), (unsigned)random_topology_draw(&state, 3000),
             losses[random_topology_draw(&state, 4)], losses[random_topology_draw(&state, 3)]);
    at += snprintf(at, (size_t)(end - at),
                   "[topology]\nname = seed %llu\nburst = %uKiB\ndetect = %uus\n[reliable]\ntimeout = "
                   "%uus\nretries = 60\n",
                   (unsigned long long)seed, 1u << random_topology_draw(&state, 7),
                   100 + (unsigned)random_topology_draw(&state, 100000),
                   50 + (unsigned)random_topology_draw(&state, 500));
    at += snprintf(at, (size_t)(end - at), "[host node]\ncount = %u\n", east);
    if (kind == 3) at += snprintf(at, (size_t)(end - at), "[host west]\ncount = %u\n", hosts - east);
    at += snprintf(
        at, (size_t)(end - at),
        "[switch leaf]\ncount = %u\n[link access]\nfrom = node\nto = leaf\nrails = %u\npattern = %s\n%s",
        kind == 0   ? 1
        : kind == 2 ? 2
                    : leaves,
        rails, kind == 2 ? "rail" : "spread", hurt);
    if (kind == 1 || kind == 3)
        at += snprintf(at, (size_t)(end - at),
                       "[switch spine]\ncount = 2\n[link core]\nfrom = leaf\nto = spine\npattern = "
                       "full\nbuffer = 1MiB\n%s",
                       hurt);
    if (kind == 3) {
        at += snprintf(at, (size_t)(end - at),
                       "[switch far]\ncount = 1\n[link there]\nfrom = west\nto = far\n%s[link wide]\nfrom = "
                       "far\nto = spine\npattern = full\nrate = 10Gbit\nlatency = %uus\nloss = 0.005\n",
                       hurt, 20 + (unsigned)random_topology_draw(&state, 200));
    }
    for (int i = 0; i < 3; i++) {
        unsigned begin_us = (unsigned)random_topology_draw(&state, 1500),
                 a = (unsigned)random_topology_draw(&state, east),
                 b = (unsigned)random_topology_draw(&state, east);
        unsigned what = (unsigned)random_topology_draw(&state, 6),
                 until_us = begin_us + 1 + (unsigned)random_topology_draw(&state, 4000);
        if (what < 3)
            at += snprintf(at, (size_t)(end - at), "[fault f%d]\nat = %uus\nuntil = %uus\n", i, begin_us,
                           until_us);
        if (what == 0)
            at += snprintf(at, (size_t)(end - at), "slow = node[%u]\nfactor = %u\n", a,
                           2 + (unsigned)random_topology_draw(&state, 20));
        if (what == 1) at += snprintf(at, (size_t)(end - at), "cut = node[%u]:node[%u]\n", a, b);
        if (what == 2) at += snprintf(at, (size_t)(end - at), "down = access\n");
    }
}

/* NULL: no memory. Any other failure is a bug of this file and ends the program. */
static inline struct weft_topology *random_topology(struct weft_env *env, uint64_t seed, uint32_t hosts)
{
    char text[4000];
    struct weft_error error = {0};
    struct weft_topology *topology = NULL;
    random_topology_text(seed, hosts, text, sizeof text);
    enum weft_status status = weft_topology_parse(env, "seed", text, strlen(text), &topology, &error);
    if (status == WEFT_OK) return topology;
    fprintf(stderr, "%s\n%s\n", text, error.text);
    WEFT_ASSERT(status == WEFT_ERR_NO_MEMORY);
    return NULL;
}

#endif
