/* test_topology.c - the network model against closed formulas, the reliable layer over faulty links, and
 * the grammar of the file.
 *
 * Tolerances: a single flow is exact to a burst's rounding (0.1 %); shares of a link are fair to a window
 * of bytes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/transport/net.h"
#include "transport/sim/topology.h"

#define TAG(n) WEFT_TAG(WEFT_CHANNEL_TEST, n)
enum { ENDS = 80, MIB = 1 << 20 };

struct end {
    struct weft_loop *loop;
    struct weft_transport *transport;
    int failed;
    char text[200];
};

static struct {
    struct weft_topology *topology;
    struct weft_sim *sim;
    struct end ends[ENDS];
    uint32_t count;
    size_t slab_bytes;
    bool real; /* payloads are carried, not only timed */
} world = {.slab_bytes = 256 << 10};

struct work {
    struct weft_completion completion;
    struct weft_receive receive;
    int fired;
    enum weft_status status;
    uint64_t ended_ns;
};

static void on_done(struct weft_completion *completion, enum weft_status status)
{
    struct work *work = weft_container_of(completion, struct work, completion);
    work->fired++;
    work->status = status;
    work->ended_ns = weft_sim_now_ns(world.sim);
}

static void on_failed(void *context, uint32_t peer_id, enum weft_status status, const char *text)
{
    struct end *end = context;
    end->failed++;
    snprintf(end->text, sizeof end->text, "%s", text);
}

static struct weft_topology *parse(const char *content)
{
    struct weft_topology *topology = NULL;
    struct weft_error error = {0};
    if (weft_topology_parse(weft_env_system(), "net", content, strlen(content), &topology, &error) < 0)
        fail_msg("%s", error.text);
    return topology;
}

/* One endpoint on hosts[i] for each i (NULL: on host i), all connected. */
static void open_world(struct weft_topology *topology, uint64_t seed, const uint32_t *hosts, uint32_t count)
{
    assert_true(count <= ENDS);
    world.topology = topology;
    world.count = count;
    struct weft_sim_options options;
    weft_sim_options_init(&options);
    options.topology = topology;
    options.seed = seed;
    options.slab_bytes = world.slab_bytes;
    options.timing_only = !world.real;
    assert_int_equal(weft_sim_create(weft_env_system(), &options, &world.sim), WEFT_OK);
    for (uint32_t i = 0; i < count; i++) {
        struct end *end = &world.ends[i];
        uint32_t host = hosts ? hosts[i] : i;
        struct weft_env *env = weft_sim_env(world.sim, host);
        struct weft_loop_options loop_options;
        struct weft_transport_options transport;
        memset(end, 0, sizeof *end);
        weft_loop_options_init(&loop_options);
        loop_options.virtual_time = true;
        assert_int_equal(weft_loop_create(env, &loop_options, &end->loop), WEFT_OK);
        assert_int_equal(weft_sim_add(world.sim, host, end->loop), WEFT_OK);
        weft_transport_options_init(&transport);
        transport.backend = "sim";
        transport.sim = world.sim;
        transport.sim_host = host;
        transport.id = i;
        transport.peer_failed = on_failed;
        transport.peer_failed_context = end;
        assert_int_equal(weft_transport_open(env, &transport, &end->transport, NULL), WEFT_OK);
        assert_int_equal(weft_transport_attach(end->transport, end->loop), WEFT_OK);
    }
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t k = 0; k < count; k++) {
            const void *blob;
            size_t bytes;
            struct weft_peer *peer;
            weft_transport_address(world.ends[k].transport, &blob, &bytes);
            assert_int_equal(weft_transport_connect(world.ends[i].transport, k, blob, bytes, &peer), WEFT_OK);
        }
    }
}

static void close_world(void)
{
    for (uint32_t i = 0; i < world.count; i++) {
        weft_transport_close(world.ends[i].transport);
        while (!weft_transport_drained(world.ends[i].transport))
            weft_transport_progress(world.ends[i].transport, 64);
        weft_transport_free(world.ends[i].transport);
        weft_sim_remove(world.sim, world.ends[i].loop);
        weft_loop_free(world.ends[i].loop);
    }
    weft_sim_free(world.sim);
    weft_topology_free(world.topology);
}

static void send(struct work *work, uint32_t from, uint32_t to, uint64_t tag, const void *data, size_t bytes)
{
    memset(work, 0, sizeof *work);
    weft_completion_init(&work->completion, 1, on_done);
    struct weft_message message = {.tag = tag, .payload = data, .payload_bytes = bytes};
    assert_int_equal(
        weft_transport_send(weft_transport_peer(world.ends[from].transport, to), &message, &work->completion),
        WEFT_IN_PROGRESS);
}

static void receive(struct work *work, uint32_t at, uint32_t from, uint64_t tag, void *data, size_t bytes)
{
    memset(work, 0, sizeof *work);
    weft_completion_init(&work->completion, 1, on_done);
    work->receive =
        (struct weft_receive){.completion = &work->completion, .buffer = data, .buffer_bytes = bytes};
    assert_int_equal(weft_transport_recv(world.ends[at].transport, from, tag, &work->receive),
                     WEFT_IN_PROGRESS);
}

static void run(void) { assert_int_equal(weft_sim_run(world.sim, NULL, WEFT_SECONDS(1000)), WEFT_ERR_STATE); }

/* One message from from[i] to to[i] each, all at once; returns arrival times in seconds, less three
 * latencies: announcement, acceptance, data. */
static void transfers(uint32_t count, const uint32_t *from, const uint32_t *to, const size_t *bytes,
                      double latency, double *seconds_out)
{
    static struct work sends[ENDS], receives[ENDS];
    static char nowhere[1];
    uint64_t start_ns = weft_sim_now_ns(world.sim);
    for (uint32_t i = 0; i < count; i++) {
        receive(&receives[i], to[i], from[i], TAG(i), nowhere, bytes[i]);
        send(&sends[i], from[i], to[i], TAG(i), nowhere, bytes[i]);
    }
    run();
    for (uint32_t i = 0; i < count; i++) {
        assert_int_equal(sends[i].fired + receives[i].fired, 2);
        assert_int_equal(receives[i].status, WEFT_OK);
        seconds_out[i] = (double)(receives[i].ended_ns - start_ns) / 1e9 - 3 * latency;
    }
}

static void assert_near(double value, double expected, double tolerance)
{
    if (value >= expected * (1 - tolerance) && value <= expected * (1 + tolerance)) return;
    fail_msg("%.9f is not within %.1f %% of %.9f", value, tolerance * 100, expected);
}

static const char cable[] =
    "[host node]\ncount = 2\n[link cable]\nfrom = node[0]\nto = node[1]\nrate = 100Gbit\nlatency = 2us\n";

static void test_one_flow(void **state)
{
    const size_t sizes[] = {20000, 1 * MIB, 100 * MIB + 17};
    for (int i = 0; i < 3; i++) {
        double seconds;
        open_world(parse(cable), 1, NULL, 2);
        transfers(1, (uint32_t[]){0}, (uint32_t[]){1}, &sizes[i], 2e-6, &seconds);
        /* plus 96 bytes of announcement */
        assert_near(seconds, (double)sizes[i] / 12.5e9, i == 0 ? 0.01 : 0.001);
        close_world();
    }
}

/* Three links of different rates: the slowest counts, in any position. */
static void test_path(void **state)
{
    static const char *const rates[3][3] = {
        {"10Gbit", "40Gbit", "100Gbit"}, {"100Gbit", "10Gbit", "40Gbit"}, {"100Gbit", "40Gbit", "10Gbit"}};
    for (int i = 0; i < 3; i++) {
        char text[600];
        size_t bytes = 10 * MIB;
        double seconds;
        snprintf(text, sizeof text,
                 "[host a]\ncount = 1\n[host b]\ncount = 1\n[switch s]\ncount = 1\n[switch t]\ncount = 1\n"
                 "[link one]\nfrom = a\nto = s\nrate = %s\nlatency = 1us\n[link two]\nfrom = s\nto = t\nrate "
                 "= %s\nlatency = 5us\n"
                 "[link three]\nfrom = b\nto = t\nrate = %s\nlatency = 2us\n",
                 rates[i][0], rates[i][1], rates[i][2]);
        open_world(parse(text), 1, NULL, 2);
        transfers(1, (uint32_t[]){0}, (uint32_t[]){1}, &bytes, 8e-6, &seconds);
        assert_near(seconds, (double)bytes / 1.25e9, 0.001);
        close_world();
    }
}

/* n flows on one cable fill it and get equal shares. */
static void test_fair_share(void **state)
{
    enum { FLOWS = 16 };
    uint32_t hosts[2 * FLOWS], from[FLOWS], to[FLOWS];
    size_t bytes[FLOWS];
    double seconds[FLOWS];
    for (uint32_t i = 0; i < 2 * FLOWS; i++) hosts[i] = i / FLOWS;
    for (uint32_t i = 0; i < FLOWS; i++) from[i] = i, to[i] = FLOWS + i, bytes[i] = (i == 3 ? 20 : 40) * MIB;
    open_world(parse(cable), 1, hosts, 2 * FLOWS);
    transfers(FLOWS, from, to, bytes, 2e-6, seconds);
    double total = (double)(FLOWS - 1) * 40 * MIB + 20 * MIB;
    for (uint32_t i = 0; i < FLOWS; i++) {
        /* half as long: completes when all have had so much */
        if (i == 3) assert_near(seconds[i], FLOWS * 20.0 * MIB / 12.5e9, 0.02);
        else assert_near(seconds[i], total / 12.5e9, 0.02);
    }
    close_world();
}

/* n to one: the receiver's link is full all the time; the rest is queued before it. */
static void test_incast(void **state)
{
    enum { SENDERS = 32 };
    static const char star[] = "[host node]\ncount = 33\n[switch s]\ncount = 1\n[link l]\nfrom = node\nto = "
                               "s\nrate = 100Gbit\nlatency = 1us\n";
    uint32_t from[SENDERS], to[SENDERS] = {0};
    size_t bytes[SENDERS];
    double seconds[SENDERS], last = 0;
    struct weft_sim_traffic traffic;
    for (uint32_t i = 0; i < SENDERS; i++) from[i] = i + 1, bytes[i] = 8 * MIB;
    open_world(parse(star), 1, NULL, SENDERS + 1);
    transfers(SENDERS, from, to, bytes, 2e-6, seconds);
    for (uint32_t i = 0; i < SENDERS; i++) {
        if (seconds[i] > last) last = seconds[i];
        assert_near(seconds[i], SENDERS * 8.0 * MIB / 12.5e9, 0.05);
    }
    assert_near(last, SENDERS * 8.0 * MIB / 12.5e9, 0.002);
    weft_sim_traffic(world.sim, &traffic);
    /* all windows except one burst are in that queue */
    assert_true(traffic.queue_max_ns > WEFT_MS(0.5));
    assert_int_equal(traffic.lost, 0);
    close_world();
}

/* Four hosts below each of two leaves, one cable between the leaves as fast as a host's: 4:1. */
static void test_over_subscription(void **state)
{
    static const char tree[] =
        "[host node]\ncount = 8\n[switch leaf]\ncount = 2\n[link access]\nfrom = node\nto = leaf\nrate = "
        "100Gbit\n"
        "latency = 1us\n[link core]\nfrom = leaf[0]\nto = leaf[1]\nrate = 100Gbit\nlatency = 1us\n";
    const uint32_t from[4] = {0, 1, 2, 3}, across[4] = {4, 5, 6, 7}, below[4] = {1, 2, 3, 0};
    const size_t bytes[4] = {64 * MIB, 64 * MIB, 64 * MIB, 64 * MIB};
    double seconds[4];
    open_world(parse(tree), 1, NULL, 8);
    transfers(4, from, below, bytes, 2e-6, seconds);
    for (int i = 0; i < 4; i++) assert_near(seconds[i], 64.0 * MIB / 12.5e9, 0.001);
    transfers(4, from, across, bytes, 3e-6, seconds);
    for (int i = 0; i < 4; i++) assert_near(seconds[i], 4 * 64.0 * MIB / 12.5e9, 0.02);
    close_world();
}

/* ---- faulty links ---- */

static const char hurt[] =
    "[topology]\nburst = 1KiB\n[host node]\ncount = 2\n[switch s]\ncount = 1\n[link l]\nfrom = node\nto = "
    "s\nrate = 10Gbit\n"
    "latency = 5us\njitter = 20us\nloss = 0.05\nduplicate = 0.05\n[reliable]\ntimeout = 100us\n";

static uint64_t exchange_hurt(uint64_t seed)
{
    enum { COUNT = 60, BYTES = 30000 };
    static unsigned char out[COUNT][BYTES], in[COUNT][BYTES];
    static struct work sends[COUNT], receives[COUNT];
    struct weft_sim_traffic traffic;
    world.real = true;
    open_world(parse(hurt), seed, NULL, 2);
    memset(in, 0, sizeof in);
    for (uint32_t i = 0; i < COUNT; i++) {
        size_t bytes = i % 3 ? BYTES : 200;
        fill(out[i], bytes, i);
        receive(&receives[i], i % 2, !(i % 2), TAG(7), in[i], BYTES); /* one tag: in the order sent */
        send(&sends[i], !(i % 2), i % 2, TAG(7), out[i], bytes);
    }
    run();
    for (uint32_t i = 0; i < COUNT; i++) {
        assert_int_equal(sends[i].fired, 1);
        assert_int_equal(receives[i].fired, 1);
        assert_int_equal(sends[i].status | receives[i].status, WEFT_OK);
        assert_int_equal(receives[i].receive.payload_bytes, i % 3 ? BYTES : 200);
        assert_true(filled(in[i], receives[i].receive.payload_bytes, i));
    }
    weft_sim_traffic(world.sim, &traffic);
    assert_true(traffic.lost > 20 && traffic.retried > 20 && traffic.duplicated > 20);
    assert_int_equal(world.ends[0].failed + world.ends[1].failed, 0);
    uint64_t trace = weft_sim_trace(world.sim);
    close_world();
    world.real = false;
    return trace;
}

/* Loss, duplicates and reordering become delay; equal seeds give equal runs, for any slab size. */
static void test_hurt_links(void **state)
{
    uint64_t first = exchange_hurt(1);
    world.slab_bytes = 0;
    assert_true(exchange_hurt(1) == first);
    world.slab_bytes = 3000;
    assert_true(exchange_hurt(1) == first);
    world.slab_bytes = 256 << 10;
    for (uint64_t seed = 2; seed < 12; seed++) assert_true(exchange_hurt(seed) != first);
}

/* A switch with small buffers drops what does not fit; everything arrives nevertheless. */
static void test_small_buffer(void **state)
{
    static const char star[] = "[host node]\ncount = 9\n[switch s]\ncount = 1\n[link l]\nfrom = node\nto = "
                               "s\nrate = 100Gbit\nlatency = 1us\n"
                               "buffer = 256KiB\n[reliable]\nwindow = 128KiB\nretries = 30\n";
    uint32_t from[8], to[8] = {0};
    size_t bytes[8];
    double seconds[8];
    struct weft_sim_traffic traffic;
    for (uint32_t i = 0; i < 8; i++) from[i] = i + 1, bytes[i] = 4 * MIB;
    open_world(parse(star), 1, NULL, 9);
    transfers(8, from, to, bytes, 2e-6, seconds);
    weft_sim_traffic(world.sim, &traffic);
    assert_true(traffic.overflowed > 0 && traffic.retried >= traffic.overflowed);
    /* the buffer and a burst, at 12.5 bytes per ns */
    assert_true(traffic.queue_max_ns <= 256 * 1024 * 2 / 25 + 64 * 1024 * 2 / 25);
    close_world();
}

static void test_partition(void **state)
{
    for (int heals = 0; heals < 2; heals++) {
        struct work sent, received, back, late;
        static char big[3 * MIB], in[3 * MIB];
        open_world(parse(cable), 1, NULL, 2);
        weft_sim_partition(world.sim, 0, 1, true);
        receive(&received, 1, 0, TAG(1), in, sizeof in);
        receive(&back, 0, 1, TAG(1), in, 10);
        send(&sent, 0, 1, TAG(1), big, sizeof big);
        weft_sim_run(world.sim, NULL, WEFT_MS(20));
        assert_int_equal(sent.fired + received.fired, 0);
        if (heals) weft_sim_partition(world.sim, 0, 1, false);
        send(&late, 1, 0, TAG(1), big, 10);
        run();
        assert_int_equal(sent.fired + received.fired + back.fired + late.fired, 4);
        assert_int_equal(sent.status, heals ? WEFT_OK : WEFT_ERR_PEER_LOST);
        assert_int_equal(received.status, heals ? WEFT_OK : WEFT_ERR_PEER_LOST);
        assert_int_equal(back.status, heals ? WEFT_OK : WEFT_ERR_PEER_LOST);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(world.ends[i].failed, heals ? 0 : 1);
            if (!heals) assert_non_null(strstr(world.ends[i].text, "acknowledged after 11 attempts"));
        }
        close_world();
    }
}

/* Faults of the file: a link down for 3 ms, a slow host, a dying host. */
static void test_faults(void **state)
{
    char text[500];
    size_t bytes = 10 * MIB;
    double plain, seconds;
    open_world(parse(cable), 1, NULL, 2);
    transfers(1, (uint32_t[]){0}, (uint32_t[]){1}, &bytes, 2e-6, &plain);
    close_world();
    snprintf(text, sizeof text, "%s[fault cut]\ndown = cable\nat = 100us\nuntil = 3ms\n", cable);
    open_world(parse(text), 1, NULL, 2);
    transfers(1, (uint32_t[]){0}, (uint32_t[]){1}, &bytes, 2e-6, &seconds);
    assert_true(seconds > plain + 0.002);
    close_world();
    snprintf(text, sizeof text, "%s[fault tired]\nslow = node[1]\nfactor = 5\n", cable);
    open_world(parse(text), 1, NULL, 2);
    transfers(1, (uint32_t[]){0}, (uint32_t[]){1}, &bytes, 2e-6, &seconds);
    assert_near(seconds, 5 * plain, 0.01);
    close_world();
    snprintf(text, sizeof text, "%s[fault dead]\nkill = node[1]\nat = 200us\n", cable);
    struct work sent;
    open_world(parse(text), 1, NULL, 2);
    send(&sent, 0, 1, TAG(1), text, bytes);
    run();
    assert_int_equal(sent.status, WEFT_ERR_PEER_LOST);
    assert_string_equal(world.ends[0].text, "host 1 of endpoint 1 died");
    close_world();
    snprintf(text, sizeof text, "%s[fault split]\ncut = node[0]:node[1]\n", cable);
    open_world(parse(text), 1, NULL, 2);
    send(&sent, 0, 1, TAG(1), text, bytes);
    run();
    assert_int_equal(sent.status, WEFT_ERR_PEER_LOST);
    close_world();
}

/* ---- paths ---- */

static struct weft_topology *load(const char *name)
{
    char path[600];
    struct weft_topology *topology = NULL;
    struct weft_error error = {0};
    const char *folder = getenv("WEFT_TEST_TOPOLOGIES");
    snprintf(path, sizeof path, "%s/%s.ini", folder ? folder : "examples/topologies", name);
    if (weft_topology_load(weft_env_system(), path, &topology, &error) < 0) fail_msg("%s", error.text);
    return topology;
}

/* In a fat tree equal paths get about equal load, and a flow always uses the same path. */
static void test_ways(void **state)
{
    struct weft_topology *tree = load("fat-tree");
    static uint32_t used[1 << 14];
    uint32_t path[TOPOLOGY_HOPS_MAX], again[TOPOLOGY_HOPS_MAX], flows = 0, most = 0;
    memset(used, 0, sizeof used);
    assert_true(tree->link_count <= 1 << 14);
    for (uint32_t from = 0; from < 512; from++) {
        for (uint32_t rail = 0; rail < 8; rail++) {
            uint32_t to = (from + 256) % 512;
            uint64_t hash = ((uint64_t)from * 8 + rail) * 0x9e3779b97f4a7c15ull;
            uint32_t hops = topology_route(tree, from, rail, to, rail, hash, path);
            assert_int_equal(hops, 4);
            assert_int_equal(topology_route(tree, from, rail, to, rail, hash, again), 4);
            assert_memory_equal(path, again, 4 * sizeof *path);
            assert_int_equal(tree->links[path[0]].from, from);
            assert_int_equal(tree->links[path[3]].to, to);
            for (uint32_t i = 0; i < 3; i++)
                assert_int_equal(tree->links[path[i]].to, tree->links[path[i + 1]].from);
            used[path[1]]++, flows++;
        }
    }
    for (uint32_t i = 0; i < 1 << 14; i++) most = used[i] > most ? used[i] : most;
    assert_int_equal(flows, 4096); /* over 128 * 16 links up: 2 each on average */
    assert_true(most <= 10);
    weft_topology_free(tree);

    struct weft_topology *rails = load("rails");
    for (uint32_t rail = 0; rail < 4; rail++) {
        /* to rail 2 of another host: from rail 2, because rails are separate */
        assert_int_equal(topology_route(rails, 3, rail, 9, 2, 0, path), 2);
        assert_int_equal(rails->links[path[1]].from, rails->host_count + 2);
    }
    weft_topology_free(rails);
    const char *const others[] = {"one-host", "two-hosts", "wide-area"};
    for (int i = 0; i < 3; i++) weft_topology_free(load(others[i]));
}

/* A one-sided transfer and a message on one host, and across the wide-area link with all its faults. */
static void test_wide_area(void **state)
{
    struct weft_topology *line = load("wide-area");
    const uint32_t hosts[] = {0, 0, 8};
    static char memory[4 * MIB], data[4 * MIB];
    world.real = true;
    open_world(line, 5, hosts, 3);
    struct weft_window_options options = {sizeof options,    memory,       sizeof memory, WEFT_MEMORY_HOST,
                                          WEFT_WINDOW_WRITE, WEFT_ANY_PEER};
    struct weft_window *window;
    struct weft_remote *remote;
    const void *key;
    size_t bytes;
    fill(data, sizeof data, 2);
    assert_int_equal(weft_window_open(world.ends[2].transport, &options, &window, NULL), WEFT_OK);
    weft_window_key(window, &key, &bytes);
    assert_int_equal(
        weft_transport_import(weft_transport_peer(world.ends[0].transport, 2), key, bytes, &remote), WEFT_OK);
    struct work wrote, notified, sent, received;
    char in[6];
    memset(&wrote, 0, sizeof wrote);
    weft_completion_init(&wrote.completion, 1, on_done);
    receive(&notified, 2, 0, TAG(3), NULL, 0);
    receive(&received, 1, 0, TAG(3), in, sizeof in);
    struct weft_put put = {data, sizeof data, 0, true, TAG(3), NULL, 0};
    assert_int_equal(weft_transport_put(remote, &put, &wrote.completion), WEFT_IN_PROGRESS);
    send(&sent, 0, 1, TAG(3), "local", 6);
    run();
    assert_int_equal(wrote.fired + notified.fired + sent.fired + received.fired, 4);
    assert_int_equal(wrote.status | notified.status | received.status, WEFT_OK);
    assert_true(filled(memory, sizeof memory, 2));
    assert_true(received.ended_ns < 10000);
    assert_true(notified.ended_ns >= WEFT_MS(15) + 3355443 &&
                wrote.ended_ns >= notified.ended_ns + WEFT_MS(14));
    world.real = false;
    close_world();
}

/* Three hosts in a row without a switch: neighbours are connected, the ends have no path, and hosts do not
 * forward. */
static void test_no_way(void **state)
{
    struct weft_sim_options options;
    struct weft_transport_options transport;
    struct weft_transport *ends[2];
    struct weft_topology *row = parse("[host a]\ncount = 4\n[link x]\nfrom = a[0]\nto = a[1-3]\npattern = "
                                      "full\n[link y]\nfrom = a[1]\nto = a[2]\n"
                                      "[link z]\nfrom = a[2]\nto = a[3]\n");
    struct weft_peer *peer;
    const void *blob;
    size_t bytes;
    weft_sim_options_init(&options);
    options.topology = row;
    assert_int_equal(weft_sim_create(weft_env_system(), &options, &world.sim), WEFT_OK);
    for (uint32_t i = 0; i < 2; i++) {
        weft_transport_options_init(&transport);
        transport.backend = "sim";
        transport.sim = world.sim;
        transport.id = i;
        transport.sim_host = i ? 3 : 1;
        assert_int_equal(
            weft_transport_open(weft_sim_env(world.sim, transport.sim_host), &transport, &ends[i], NULL),
            WEFT_OK);
    }
    weft_transport_address(ends[1], &blob, &bytes);
    assert_int_equal(weft_transport_connect(ends[0], 1, blob, bytes, &peer), WEFT_ERR_UNREACHABLE);
    weft_transport_free(ends[0]);
    weft_transport_free(ends[1]);
    weft_sim_free(world.sim);
    weft_topology_free(row);
}

/* ---- the grammar ---- */

static void test_mistakes(void **state)
{
    static const struct {
        const char *text;
        int line;
        const char *words;
    } bad[] = {
        {"", 1, "nothing in it"},
        {"# only this\n", 1, "nothing in it"},
        {"count = 1\n", 1, "under a heading"},
        {"[host a\ncount = 1\n", 1, "ends with ]"},
        {"[host a]\ncount\n", 2, "setting = value"},
        {"[host a]\ncount =\n", 2, "a name and a value"},
        {"[host]\ncount = 1\n", 1, "needs a name"},
        {"[host a[1]]\ncount = 1\n", 1, "no brackets"},
        {"[hosts a]\ncount = 1\n", 1, "a section is host, switch"},
        {"[host a]\ncount = 0\n", 2, "from 1 to 65536"},
        {"[host a]\ncount = 99999999999999999999999\n", 2, "from 1 to 65536"},
        {"[host a]\ncount = two\n", 2, "whole number"},
        {"[host a]\ncount = 1\ncount = 2\n", 3, "stands twice"},
        {"[host a]\n[host a]\n", 2, "there is a a already"},
        {"[host a]\n[switch a]\n", 2, "already"},
        {"[host a]\nspeed = 3\n", 2, "no setting speed; it has count"},
        {"[switch a]\n", 1, "no [host NAME]"},
        {"[host a]\n\n[link x]\nto = a\n", 3, "needs from"},
        {"[host a]\n[link x]\nfrom = a\nto = b\n", 4, "no [host] or [switch] of the name b"},
        {"[host a]\n[switch s]\n[link x]\nfrom = a[1]\nto = s\n", 4, "write a, or a[0] to a[0]"},
        {"[host a]\n[switch s]\n[link x]\nfrom = a[0-5]\nto = s\n", 4, "range"},
        {"[host a]\n[switch s]\n[link x]\nfrom = a[0]x\nto = s\n", 4, "range"},
        {"[host a]\n[switch s]\n[link x]\nfrom = s\nto = a\n", 3, "host as `from`"},
        {"[host a]\n[switch s]\n[link x]\nfrom = a\nto = s\nrate = fast\n", 6, "100Gbit"},
        {"[host a]\n[switch s]\n[link x]\nfrom = a\nto = s\nrate = nanGbit\n", 6, "100Gbit"},
        {"[host a]\n[switch s]\n[link x]\nfrom = a\nto = s\nrate = -1Gbit\n", 6, "100Gbit"},
        {"[host a]\n[switch s]\n[link x]\nfrom = a\nto = s\nlatency = 5\n", 6, "500ns"},
        {"[host a]\n[switch s]\n[link x]\nfrom = a\nto = s\nloss = 1\n", 6, "from 0 to 0.9"},
        {"[host a]\n[switch s]\n[link x]\nfrom = a\nto = s\nloss = nan\n", 6, "from 0 to 0.9"},
        {"[host a]\n[switch s]\n[link x]\nfrom = a\nto = s\nbuffer = 1\n", 6, "64KiB"},
        {"[host a]\n[switch s]\n[link x]\nfrom = a\nto = s\npattern = mesh\n", 6,
         "block, spread, rail, pair or full"},
        {"[host a]\ncount = 2\n[switch s]\n[link x]\nfrom = a\nto = s\npattern = pair\n", 7, "2 and 1"},
        {"[host a]\n[switch s]\ncount = 3\n[link x]\nfrom = a\nto = s\npattern = rail\nrails = 2\n", 7,
         "2 rails divide, not 3"},
        {"[host a]\n[switch s]\ncount = 2\n[link x]\nfrom = s[0]\nto = s[1]\nrails = 2\n", 4,
         "rails are of hosts"},
        {"[host a]\ncount = 3\n", 1, "host 1 cannot be reached from host 0"},
        {"[host a]\ncount = 2\n[switch s]\ncount = 2\n[link x]\nfrom = a\nto = s\n", 1, "cannot be reached"},
        {"[host a]\n[fault f]\nat = 1ms\n", 2, "kill, slow, cut or down"},
        {"[host a]\n[fault f]\nkill = b\n", 3, "of the name b"},
        {"[host a]\n[switch s]\n[fault f]\nkill = s\n", 4, "is a switch"},
        {"[host a]\n[fault f]\nkill = a\nslow = a\n", 4, "one fault is one of"},
        {"[host a]\n[fault f]\ncut = a\n", 3, "two groups"},
        {"[host a]\n[fault f]\ndown = x\n", 3, "no [link] of the name x"},
        {"[host a]\n[fault f]\nkill = a\nat = 2ms\nuntil = 1ms\n", 2, "until must be after at"},
        {"[host a]\n[reliable]\nretries = 1000\n", 3, "from 0 to 100"},
        {"[host a]\n[topology]\nburst = none\n", 3, "64KiB"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct weft_topology *topology = NULL;
        struct weft_error error = {0};
        char place[20];
        assert_int_equal(weft_topology_parse(weft_env_system(), "my.ini", bad[i].text, strlen(bad[i].text),
                                             &topology, &error),
                         WEFT_ERR_MALFORMED);
        snprintf(place, sizeof place, "my.ini:%d: ", bad[i].line);
        if (strncmp(error.text, place, strlen(place)) != 0 || !strstr(error.text, bad[i].words)) {
            fail_msg("for %s\nwanted %s... %s, not %s", bad[i].text, place, bad[i].words, error.text);
        }
        assert_null(topology);
    }
    struct weft_topology *topology;
    struct weft_error error = {0};
    assert_int_equal(weft_topology_load(weft_env_system(), "/nonexistent/net.ini", &topology, &error),
                     WEFT_ERR_NOT_FOUND);
    assert_non_null(strstr(error.text, "/nonexistent/net.ini"));
}

/* Every prefix of a valid file is valid or refused; so is every corrupted file. */
static void test_damage(void **state)
{
    size_t bytes = strlen(hurt);
    char copy[1000];
    for (size_t i = 0; i < 2 * bytes; i++) {
        struct weft_topology *topology = NULL;
        memcpy(copy, hurt, bytes);
        if (i >= bytes) copy[i - bytes] = (char)(copy[i - bytes] ^ (1 << i % 7));
        enum weft_status status =
            weft_topology_parse(weft_env_system(), "x", copy, i < bytes ? i : bytes, &topology, NULL);
        assert_true(status == WEFT_OK || status == WEFT_ERR_MALFORMED);
        weft_topology_free(topology);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_flow),
        cmocka_unit_test(test_path),
        cmocka_unit_test(test_fair_share),
        cmocka_unit_test(test_incast),
        cmocka_unit_test(test_over_subscription),
        cmocka_unit_test(test_hurt_links),
        cmocka_unit_test(test_small_buffer),
        cmocka_unit_test(test_partition),
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_ways),
        cmocka_unit_test(test_wide_area),
        cmocka_unit_test(test_mistakes),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_no_way),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
