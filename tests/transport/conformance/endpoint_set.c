/* endpoint_set.c - see endpoint_set.h. */
#include "tests/transport/conformance/endpoint_set.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

enum { PUMP_NS = 20000 }; /* of virtual time */

void endpoint_set_init(struct endpoint_set *endpoint_set, const struct flavour *flavour, int count,
                       struct weft_env *env)
{
    *endpoint_set = (struct endpoint_set){.flavour = flavour,
                                          .backend = flavour->backend,
                                          .wrap = flavour->wrap,
                                          .env = env,
                                          .count = count,
                                          .next_id = 1};
    endpoint_set->members = calloc((size_t)count, sizeof *endpoint_set->members);
    for (int i = 0; i < count; i++)
        endpoint_set->members[i] = (struct set_member){.endpoint_set = endpoint_set, .slot = i};
    if (!net_is_sim(flavour)) return;
    endpoint_set->sim = net_sim_create(env, flavour, count, 5, &endpoint_set->topology);
}

void endpoint_set_empty(struct endpoint_set *endpoint_set)
{
    for (int i = 0; i < endpoint_set->count; i++)
        if (endpoint_set->members[i].transport) weft_transport_close(endpoint_set->members[i].transport);
    for (int i = 0; i < endpoint_set->count; i++) endpoint_set_leave(endpoint_set, i);
}

void endpoint_set_fini(struct endpoint_set *endpoint_set)
{
    endpoint_set_empty(endpoint_set);
    weft_sim_free(endpoint_set->sim);
    weft_topology_free(endpoint_set->topology);
    free(endpoint_set->members);
}

static void peer_failed(void *context, uint32_t peer_id, enum weft_status status, const char *text)
{
    struct set_member *set_member = context;
    if (set_member->endpoint_set->peer_failed) set_member->endpoint_set->peer_failed(set_member, peer_id);
}

void endpoint_set_enter(struct endpoint_set *endpoint_set, int slot)
{
    struct set_member *set_member = &endpoint_set->members[slot];
    struct weft_env *env = endpoint_set->env;
    struct weft_transport_options options;
    struct weft_error error = {0};
    weft_transport_options_init(&options);
    options.backend = endpoint_set->backend;
    options.id = set_member->id = endpoint_set->next_id++;
    options.nonce = 0x50a4;
    options.secret = "soak";
    options.secret_bytes = 4;
    if (endpoint_set->flavour->lanes) options.lanes = endpoint_set->flavour->lanes;
    if (net_devices(slot)) options.devices = net_devices(slot);
    options.wrap = endpoint_set->wrap;
    options.tune = flavour_tune(endpoint_set->flavour, slot);
    options.peer_failed = peer_failed;
    options.peer_failed_context = set_member;
    if (endpoint_set->sim) {
        struct weft_loop_options loop_options;
        weft_loop_options_init(&loop_options);
        loop_options.virtual_time = true;
        options.sim = endpoint_set->sim;
        options.sim_host = (uint32_t)slot;
        env = weft_sim_env(endpoint_set->sim, (uint32_t)slot);
        assert_int_equal(weft_loop_create(env, &loop_options, &set_member->loop), WEFT_OK);
        assert_int_equal(weft_sim_add(endpoint_set->sim, (uint32_t)slot, set_member->loop), WEFT_OK);
    }
    if (weft_transport_open(env, &options, &set_member->transport, &error) < 0)
        fail_msg("open %s: %s", endpoint_set->backend, error.text);
    if (set_member->loop)
        assert_int_equal(weft_transport_attach(set_member->transport, set_member->loop), WEFT_OK);
}

static void connect_one(struct endpoint_set *endpoint_set, int from, int to, struct weft_peer **peer_out)
{
    const void *blob;
    size_t bytes;
    struct weft_peer *peer;
    assert_int_equal(weft_transport_address(endpoint_set->members[to].transport, &blob, &bytes), WEFT_OK);
    assert_int_equal(weft_transport_connect(endpoint_set->members[from].transport,
                                            endpoint_set->members[to].id, blob, bytes, &peer),
                     WEFT_OK);
    if (peer_out) *peer_out = peer;
}

void endpoint_set_connect(struct endpoint_set *endpoint_set, int a, int b, struct weft_peer **of_a,
                          struct weft_peer **of_b)
{
    connect_one(endpoint_set, a, b, of_a);
    connect_one(endpoint_set, b, a, of_b);
}

void endpoint_set_leave(struct endpoint_set *endpoint_set, int slot)
{
    struct set_member *set_member = &endpoint_set->members[slot];
    if (!set_member->transport) return;
    weft_transport_close(set_member->transport);
    if (set_member->loop) {
        weft_sim_remove(endpoint_set->sim, set_member->loop);
        weft_loop_free(set_member->loop);
        set_member->loop = NULL;
    }
    ENDPOINT_SET_UNTIL(endpoint_set, weft_transport_drained(set_member->transport));
    weft_transport_free(set_member->transport);
    set_member->transport = NULL;
}

void endpoint_set_pump(struct endpoint_set *endpoint_set)
{
    if (endpoint_set->sim)
        weft_sim_run(endpoint_set->sim, NULL, weft_sim_now_ns(endpoint_set->sim) + PUMP_NS);
    for (int i = 0; i < endpoint_set->count; i++) {
        struct set_member *set_member = &endpoint_set->members[i];
        if (set_member->transport && !set_member->loop) weft_transport_progress(set_member->transport, 64);
    }
}

int endpoint_set_descriptors(void)
{
    int count = 0;
    DIR *directory = opendir("/proc/self/fd");
    if (!directory) return 0;
    while (readdir(directory)) count++;
    closedir(directory);
    return count - 3; /* ".", ".." and the directory's own descriptor */
}
