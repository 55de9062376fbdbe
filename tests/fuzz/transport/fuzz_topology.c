/* fuzz_topology.c - a topology file: refused with one sentence that names a line, or a network over which two
 * endpoints communicate until a virtual deadline, with little memory. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"
#include "transport/sim/topology.h"

enum { MEMORY_MAX = 4 << 20, HOSTS_MAX = 64, PAYLOAD_BYTES = 30000 };

/* A file may describe a network that is too large for the memory; the error must report it. */
static size_t taken_bytes;

static void *small_alloc(struct weft_env *env, size_t bytes)
{
    if (bytes > MEMORY_MAX - taken_bytes) return NULL;
    size_t *block = calloc(1, bytes + 16);
    if (!block) return NULL;
    taken_bytes += block[0] = bytes;
    return block + 2;
}

static void small_free(struct weft_env *env, void *memory)
{
    if (!memory) return;
    size_t *block = (size_t *)memory - 2;
    taken_bytes -= block[0];
    free(block);
}

static void log_nothing(struct weft_env *env, enum weft_log_level level, const char *capacity,
                        const char *text)
{
}

struct end {
    struct weft_loop *loop;
    struct weft_transport *transport;
    struct weft_peer *peer;
    struct weft_completion sent, received;
    struct weft_receive receive;
    char buffer[PAYLOAD_BYTES];
    int over;
};

static void is_sent(struct weft_completion *completion, enum weft_status status)
{
    weft_container_of(completion, struct end, sent)->over++;
}

static void is_received(struct weft_completion *completion, enum weft_status status)
{
    struct end *end = weft_container_of(completion, struct end, received);
    if (status == WEFT_OK &&
        (end->receive.payload_bytes != PAYLOAD_BYTES || end->buffer[PAYLOAD_BYTES - 1] != 7))
        abort();
    end->over++;
}

static bool end_open(struct end *end, struct weft_sim *sim, uint32_t host, uint32_t id)
{
    struct weft_loop_options loop_options;
    struct weft_transport_options options;
    memset(end, 0, sizeof *end);
    weft_loop_options_init(&loop_options);
    loop_options.virtual_time = true;
    weft_transport_options_init(&options);
    options.backend = "sim";
    options.sim = sim;
    options.sim_host = host;
    options.id = id;
    return weft_loop_create(weft_sim_env(sim, host), &loop_options, &end->loop) == WEFT_OK &&
           weft_transport_open(weft_sim_env(sim, host), &options, &end->transport, NULL) == WEFT_OK &&
           weft_sim_add(sim, host, end->loop) == WEFT_OK &&
           weft_transport_attach(end->transport, end->loop) == WEFT_OK;
}

static bool end_connect(struct end *end, const struct end *other)
{
    const void *blob;
    size_t bytes;
    return weft_transport_address(other->transport, &blob, &bytes) == WEFT_OK &&
           weft_transport_connect(end->transport, weft_transport_id(other->transport), blob, bytes,
                                  &end->peer) == WEFT_OK;
}

/* One message each way. Returns how many completions are expected. */
static int end_start(struct end *end)
{
    static char payload[PAYLOAD_BYTES];
    payload[PAYLOAD_BYTES - 1] = 7;
    struct weft_message message = {WEFT_TAG(WEFT_CHANNEL_TEST, 1), NULL, 0, payload, sizeof payload};
    weft_completion_init(&end->sent, 1, is_sent);
    weft_completion_init(&end->received, 1, is_received);
    end->receive = (struct weft_receive){
        .completion = &end->received, .buffer = end->buffer, .buffer_bytes = sizeof end->buffer};
    uint32_t peer_id = weft_transport_id(end->transport) ^ 1;
    return (weft_transport_send(end->peer, &message, &end->sent) == WEFT_IN_PROGRESS) +
           (weft_transport_recv(end->transport, peer_id, message.tag, &end->receive) == WEFT_IN_PROGRESS);
}

/* Both route queries agree. */
static void check_ways(const struct weft_topology *topology)
{
    uint32_t hosts = topology->host_count, path[TOPOLOGY_HOPS_MAX];
    for (uint32_t i = 0; i < hosts * hosts * 4; i++) {
        uint32_t from = i / 4 / hosts, to = i / 4 % hosts;
        bool way = topology_route(topology, from, i % 2, to, i / 2 % 2, i, path) > 0;
        if (way != topology_reaches(topology, from, i % 2, to, i / 2 % 2)) abort();
    }
}

static void talk(struct weft_sim *sim, uint32_t hosts)
{
    static struct end ends[2];
    int due = 0;
    ends[1].transport = NULL;
    ends[1].loop = NULL;
    bool opened = end_open(&ends[0], sim, 0, 100) && end_open(&ends[1], sim, hosts - 1, 101);
    if (opened && end_connect(&ends[0], &ends[1]) && end_connect(&ends[1], &ends[0]))
        due = end_start(&ends[0]) + end_start(&ends[1]);
    weft_sim_run(sim, NULL, WEFT_SECONDS(20));
    for (int i = 0; i < 2; i++) {
        if (ends[i].transport) weft_transport_close(ends[i].transport);
        for (int k = 0; ends[i].transport && k < 100 && !weft_transport_drained(ends[i].transport); k++)
            weft_transport_progress(ends[i].transport, 64);
    }
    if (ends[0].over + ends[1].over != due) abort(); /* each once, at the latest at close */
    for (int i = 0; i < 2; i++) {
        if (ends[i].loop) weft_sim_remove(sim, ends[i].loop);
        weft_transport_free(ends[i].transport);
        weft_loop_free(ends[i].loop);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct weft_env env = *weft_env_system();
    struct weft_error error = {0};
    struct weft_topology *topology;
    struct weft_sim_options options;
    struct weft_sim *sim;
    env.alloc = small_alloc;
    env.free = small_free;
    env.log = log_nothing;
    taken_bytes = 0;
    if (weft_topology_parse(&env, "net.ini", (const char *)data, bytes, &topology, &error) < 0) {
        if (!strstr(error.text, "net.ini") || taken_bytes > 0) abort();
        return 0;
    }
    char line[200];
    weft_topology_describe(topology, line, sizeof line);
    weft_sim_options_init(&options);
    options.topology = topology;
    options.slab_bytes = 0; /* so that a sanitizer sees every block */
    if (weft_topology_hosts(topology) <= HOSTS_MAX) check_ways(topology);
    if (weft_topology_hosts(topology) <= HOSTS_MAX && weft_sim_create(&env, &options, &sim) == WEFT_OK) {
        talk(sim, weft_topology_hosts(topology));
        weft_sim_free(sim);
    }
    weft_topology_free(topology);
    if (taken_bytes > 0) abort();
    return 0;
}

size_t weft_fuzz_seed(uint64_t number, uint8_t *out, size_t capacity)
{
    static const char *const patterns[] = {"block", "spread", "rail", "full"};
    static const char *const faults[] = {"kill = h[1]\n", "slow = h\nfactor = 3\nuntil = 1ms\n",
                                         "cut = h[0]:h[1-2]\nuntil = 2ms\n", "down = up\nuntil = 100us\n"};
    unsigned a = (unsigned)(number % 4), b = (unsigned)(number / 4 % 4), c = (unsigned)(number / 16 % 2);
    int bytes = snprintf(
        (char *)out, capacity,
        "# net %u\n[topology]\nname = n\nburst = %uKiB\nlocal_rate = 40GB\nlocal_latency = 300ns\ndetect = "
        "5ms\n"
        "[host h]\ncount = %u\n[switch s]\ncount = %u\n[switch t]\ncount = 2\n"
        "[link up]\nfrom = h\nto = s\npattern = %s\nrails = %u\nrate = 100Gbit\nlatency = 500ns\njitter = "
        "%uns\nloss = %s\nduplicate = 0.01\n"
        "[link core]\nfrom = s\nto = t\npattern = full\nparallel = 2\nrate = 12.5GB\nbuffer = 64KiB\n"
        "[reliable]\nwindow = 128KiB\ntimeout = 50us\nretries = 6\n[fault f]\nat = 20us\n%s",
        (unsigned)number, 1u << b, 3 + a, 2 + 2 * c, patterns[a], 1 + c, b * 100, b ? "0.02" : "0",
        faults[b]);
    return bytes > 0 && (size_t)bytes < capacity ? (size_t)bytes : 0;
}
