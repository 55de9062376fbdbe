/* sim_bench.c - speed of the simulator and memory of an endpoint: `sim_bench --help`.
 *
 * Every endpoint sends to the next one of a ring and receives from the previous one, `rounds` times with
 * `window` messages in flight: the traffic of a ring all-reduce without sums. Prints events per second of CPU
 * time, virtual time, and the memory of the process. With --memory-max it is a test: exit status 1 if the
 * process ever used more. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/sim_memory.h"
#include "transport/transport.h"

struct settings {
    uint32_t endpoints, window, rounds;
    size_t bytes;
    const char *topology;
    bool timing_only, all;
    uint64_t memory_max;
};

struct runner;

struct lane {
    struct weft_completion sent, received;
    struct weft_receive receive;
    struct runner *runner;
};

struct runner {
    struct weft_loop *loop;
    struct weft_transport *transport;
    struct weft_peer *next;
    uint32_t previous_id, sent, received, sending, receiving;
    struct lane *lanes;
};

static struct settings settings = {.endpoints = 256, .window = 4, .rounds = 200, .bytes = 1024};
static struct runner *runners;
static void *payload;
static uint32_t unfinished;
static bool done;

static void go_on(struct runner *runner);

static struct weft_topology *topology;

static void check(enum weft_status status, const char *what)
{
    if (status >= 0) return;
    fprintf(stderr, "sim_bench: %s: %s\n", what, weft_status_name(status));
    exit(1);
}

static void on_sent(struct weft_completion *completion, enum weft_status status)
{
    struct runner *runner = weft_container_of(completion, struct lane, sent)->runner;
    if (done) return; /* closing cancels what is in flight */
    check(status, "send");
    runner->sending--;
    go_on(runner);
}

static void on_received(struct weft_completion *completion, enum weft_status status)
{
    struct runner *runner = weft_container_of(completion, struct lane, received)->runner;
    if (done) return;
    check(status, "receive");
    runner->receiving--;
    if (++runner->received == settings.rounds && --unfinished == 0) done = true;
    go_on(runner);
}

/* As in a ring, message n is sent after message n - window has arrived. */
static void go_on(struct runner *runner)
{
    while (runner->receiving < settings.window && runner->received + runner->receiving < settings.rounds) {
        struct lane *lane = &runner->lanes[(runner->received + runner->receiving) % settings.window];
        weft_completion_init(&lane->received, 1, on_received);
        lane->receive = (struct weft_receive){
            .completion = &lane->received, .buffer = payload, .buffer_bytes = settings.bytes};
        check(weft_transport_recv(runner->transport, runner->previous_id, WEFT_TAG(WEFT_CHANNEL_TEST, 1),
                                  &lane->receive),
              "recv");
        runner->receiving++;
    }
    while (runner->sending < settings.window && runner->sent < settings.rounds &&
           runner->sent < runner->received + settings.window) {
        struct lane *lane = &runner->lanes[runner->sent % settings.window];
        weft_completion_init(&lane->sent, 1, on_sent);
        struct weft_message message = {
            .tag = WEFT_TAG(WEFT_CHANNEL_TEST, 1), .payload = payload, .payload_bytes = settings.bytes};
        check(weft_transport_send(runner->next, &message, &lane->sent), "send");
        runner->sending++;
        runner->sent++;
    }
}

static void open_all(struct weft_sim *sim)
{
    for (uint32_t i = 0; i < settings.endpoints; i++) {
        struct runner *runner = &runners[i];
        /* neighbours share hosts */
        uint32_t host = topology ? i * weft_topology_hosts(topology) / settings.endpoints : i;
        struct weft_env *env = weft_sim_env(sim, host);
        struct weft_loop_options loop_options;
        struct weft_transport_options options;
        weft_loop_options_init(&loop_options);
        loop_options.virtual_time = true;
        check(weft_loop_create(env, &loop_options, &runner->loop), "loop");
        check(weft_sim_add(sim, host, runner->loop), "add");
        weft_transport_options_init(&options);
        options.backend = "sim";
        options.id = i;
        options.sim = sim;
        options.sim_host = host;
        check(weft_transport_open(env, &options, &runner->transport, NULL), "open");
        check(weft_transport_attach(runner->transport, runner->loop), "attach");
        runner->lanes = calloc(settings.window, sizeof *runner->lanes);
        for (uint32_t k = 0; k < settings.window; k++) runner->lanes[k].runner = runner;
    }
    for (uint32_t i = 0; i < settings.endpoints && settings.all; i++) {
        for (uint32_t k = 0; k < settings.endpoints; k++) {
            const void *blob;
            size_t bytes;
            struct weft_peer *peer;
            if (k == i) continue;
            check(weft_transport_address(runners[k].transport, &blob, &bytes), "address");
            check(weft_transport_connect(runners[i].transport, k, blob, bytes, &peer), "connect");
        }
    }
    for (uint32_t i = 0; i < settings.endpoints; i++) {
        uint32_t next = (i + 1) % settings.endpoints,
                 previous = (i + settings.endpoints - 1) % settings.endpoints;
        const void *blob;
        size_t bytes;
        struct weft_peer *peer;
        runners[i].previous_id = previous;
        if (settings.all) runners[i].next = weft_transport_peer(runners[i].transport, next);
        if (settings.all) continue;
        check(weft_transport_address(runners[next].transport, &blob, &bytes), "address");
        check(weft_transport_connect(runners[i].transport, next, blob, bytes, &runners[i].next), "connect");
        check(weft_transport_address(runners[previous].transport, &blob, &bytes), "address");
        if (previous != next)
            check(weft_transport_connect(runners[i].transport, previous, blob, bytes, &peer), "connect");
    }
}

/* All endpoints leave, all are notified, and all memory is freed. */
static void close_all(struct weft_sim *sim)
{
    for (uint32_t i = 0; i < settings.endpoints; i++) weft_transport_close(runners[i].transport);
    enum weft_status status = weft_sim_run(sim, NULL, weft_sim_now_ns(sim) + WEFT_SECONDS(1));
    if (status != WEFT_ERR_STATE) check(status, "the end"); /* no event is left */
    for (uint32_t i = 0; i < settings.endpoints; i++) {
        for (int k = 0; k < 100 && !weft_transport_drained(runners[i].transport); k++)
            weft_transport_progress(runners[i].transport, 64);
        weft_transport_free(runners[i].transport);
        weft_sim_remove(sim, runners[i].loop);
        weft_loop_free(runners[i].loop);
        free(runners[i].lanes);
    }
    weft_sim_free(sim);
    weft_topology_free(topology);
    free(runners);
    if (!settings.timing_only) free(payload);
}

static bool read_settings(int argc, char **argv)
{
    for (int i = 1; i < argc; i += 2) {
        bool timing = strcmp(argv[i], "--timing-only") == 0, all = strcmp(argv[i], "--all") == 0;
        settings.timing_only |= timing;
        settings.all |= all;
        if (timing || all) {
            i--;
            continue;
        }
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--endpoints") == 0) settings.endpoints = (uint32_t)strtoul(value, NULL, 10);
        else if (strcmp(argv[i], "--bytes") == 0) settings.bytes = strtoul(value, NULL, 10);
        else if (strcmp(argv[i], "--rounds") == 0) settings.rounds = (uint32_t)strtoul(value, NULL, 10);
        else if (strcmp(argv[i], "--window") == 0) settings.window = (uint32_t)strtoul(value, NULL, 10);
        else if (strcmp(argv[i], "--topology") == 0) settings.topology = value;
        else if (strcmp(argv[i], "--memory-max") == 0) settings.memory_max = strtoull(value, NULL, 10);
        else return false;
    }
    return settings.endpoints >= 2 && settings.window > 0 && settings.rounds > 0;
}

int main(int argc, char **argv)
{
    if (!read_settings(argc, argv)) {
        fprintf(stderr,
                "usage: %s [--endpoints N] [--bytes B] [--rounds R] [--window W] [--topology FILE] "
                "[--timing-only]\n"
                "          [--all] [--memory-max BYTES]\n"
                "  --all   every endpoint is connected to every other, not only to its neighbours\n",
                argv[0]);
        return 2;
    }
    struct weft_sim_options options;
    struct weft_sim *sim;
    struct weft_error error = {0};
    weft_sim_options_init(&options);
    options.host_count = settings.endpoints;
    options.timing_only = settings.timing_only;
    if (settings.topology &&
        weft_topology_load(weft_env_system(), settings.topology, &topology, &error) < 0) {
        fprintf(stderr, "sim_bench: %s\n", error.text);
        return 2;
    }
    options.topology = topology;
    check(weft_sim_create(weft_env_system(), &options, &sim), "sim");
    payload = settings.timing_only ? (void *)16 : calloc(1, settings.bytes + 1);
    runners = calloc(settings.endpoints, sizeof *runners);
    open_all(sim);
    unfinished = settings.endpoints;
    for (uint32_t i = 0; i < settings.endpoints; i++) go_on(&runners[i]);
    double start = sim_cpu_seconds();
    check(weft_sim_run(sim, &done, WEFT_NEVER), "run");
    double took = sim_cpu_seconds() - start;
    uint64_t peak = sim_memory_peak_bytes();
    uint64_t messages = (uint64_t)settings.endpoints * settings.rounds;
    printf("%u endpoints%s, %llu messages of %zu bytes: %.3f CPU s, %.2f M events/s, %.2f M messages/s, "
           "virtual %.6f s, memory %.0f MB, "
           "peak %.0f MB, %.0f bytes per endpoint\n",
           settings.endpoints, settings.all ? " (all connected)" : "", (unsigned long long)messages,
           settings.bytes, took, (double)weft_sim_event_count(sim) / took / 1e6,
           (double)messages / took / 1e6, (double)weft_sim_now_ns(sim) / 1e9,
           (double)sim_memory_bytes() / 1e6, (double)peak / 1e6, (double)peak / settings.endpoints);
    start = sim_cpu_seconds();
    close_all(sim);
    printf("closed in %.3f CPU s\n", sim_cpu_seconds() - start);
    if (settings.memory_max == 0 || peak <= settings.memory_max) return 0;
    fprintf(stderr, "sim_bench: the peak of %llu bytes is above %llu\n", (unsigned long long)peak,
            (unsigned long long)settings.memory_max);
    return 1;
}
