/* crowd.c - see crowd.h. */
#include "tests/transport/conformance/crowd.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

enum { PUMP_NS = 20000 }; /* of virtual time */

void crowd_init(struct crowd *crowd, const struct flavour *flavour, int count, struct weft_env *env)
{
    *crowd = (struct crowd){.flavour = flavour, .backend = flavour->backend, .wrap = flavour->wrap, .env = env, .count = count, .next_id = 1};
    crowd->residents = calloc((size_t)count, sizeof *crowd->residents);
    for (int i = 0; i < count; i++) crowd->residents[i] = (struct resident){.crowd = crowd, .slot = i};
    if (!net_is_sim(flavour)) return;
    crowd->sim = net_sim_create(env, flavour, count, 5, &crowd->topology);
}

void crowd_empty(struct crowd *crowd)
{
    for (int i = 0; i < crowd->count; i++)
        if (crowd->residents[i].transport) weft_transport_close(crowd->residents[i].transport);
    for (int i = 0; i < crowd->count; i++) crowd_leave(crowd, i);
}

void crowd_fini(struct crowd *crowd)
{
    crowd_empty(crowd);
    weft_sim_free(crowd->sim);
    weft_topology_free(crowd->topology);
    free(crowd->residents);
}

static void peer_failed(void *context, uint32_t peer_id, enum weft_status status, const char *text)
{
    struct resident *resident = context;
    if (resident->crowd->peer_failed) resident->crowd->peer_failed(resident, peer_id);
}

void crowd_enter(struct crowd *crowd, int slot)
{
    struct resident *resident = &crowd->residents[slot];
    struct weft_env *env = crowd->env;
    struct weft_transport_options options;
    struct weft_error error = {0};
    weft_transport_options_init(&options);
    options.backend = crowd->backend;
    options.id = resident->id = crowd->next_id++;
    options.nonce = 0x50a4;
    options.secret = "soak";
    options.secret_bytes = 4;
    if (crowd->flavour->lanes) options.lanes = crowd->flavour->lanes;
    if (net_devices(slot)) options.devices = net_devices(slot);
    options.wrap = crowd->wrap;
    options.tune = flavour_tune(crowd->flavour, slot);
    options.peer_failed = peer_failed;
    options.peer_failed_context = resident;
    if (crowd->sim) {
        struct weft_loop_options loop_options;
        weft_loop_options_init(&loop_options);
        loop_options.virtual_time = true;
        options.sim = crowd->sim;
        options.sim_host = (uint32_t)slot;
        env = weft_sim_env(crowd->sim, (uint32_t)slot);
        assert_int_equal(weft_loop_create(env, &loop_options, &resident->loop), WEFT_OK);
        assert_int_equal(weft_sim_add(crowd->sim, (uint32_t)slot, resident->loop), WEFT_OK);
    }
    if (weft_transport_open(env, &options, &resident->transport, &error) < 0) fail_msg("open %s: %s", crowd->backend, error.text);
    if (resident->loop) assert_int_equal(weft_transport_attach(resident->transport, resident->loop), WEFT_OK);
}

static void connect_one(struct crowd *crowd, int from, int to, struct weft_peer **peer_out)
{
    const void *blob;
    size_t bytes;
    struct weft_peer *peer;
    assert_int_equal(weft_transport_address(crowd->residents[to].transport, &blob, &bytes), WEFT_OK);
    assert_int_equal(weft_transport_connect(crowd->residents[from].transport, crowd->residents[to].id, blob, bytes, &peer), WEFT_OK);
    if (peer_out) *peer_out = peer;
}

void crowd_connect(struct crowd *crowd, int a, int b, struct weft_peer **of_a, struct weft_peer **of_b)
{
    connect_one(crowd, a, b, of_a);
    connect_one(crowd, b, a, of_b);
}

void crowd_leave(struct crowd *crowd, int slot)
{
    struct resident *resident = &crowd->residents[slot];
    if (!resident->transport) return;
    weft_transport_close(resident->transport);
    if (resident->loop) {
        weft_sim_remove(crowd->sim, resident->loop);
        weft_loop_free(resident->loop);
        resident->loop = NULL;
    }
    CROWD_UNTIL(crowd, weft_transport_drained(resident->transport));
    weft_transport_free(resident->transport);
    resident->transport = NULL;
}

void crowd_pump(struct crowd *crowd)
{
    if (crowd->sim) weft_sim_run(crowd->sim, NULL, weft_sim_now_ns(crowd->sim) + PUMP_NS);
    for (int i = 0; i < crowd->count; i++) {
        struct resident *resident = &crowd->residents[i];
        if (resident->transport && !resident->loop) weft_transport_progress(resident->transport, 64);
    }
}

int crowd_descriptors(void)
{
    int count = 0;
    DIR *directory = opendir("/proc/self/fd");
    if (!directory) return 0;
    while (readdir(directory)) count++;
    closedir(directory);
    return count - 3; /* ".", ".." and the directory itself */
}
