/* points_random.c - random programs: connections, sizes, groups, orders of tests and ends from a seed.
 *
 * The plugin may be under faults (WEFT_TRANSPORT_WRAP): then a connection may end with a remote error, but
 * data that a test reports as received is right, and every call returns. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/nccl/harness.h"

enum { PAIRS = 3, OPEN = 8, BYTES_MAX = 80000, STEPS = 400 };

struct flow {
    struct pair pair;
    void *sends[OPEN], *recvs[OPEN];
    char *from[OPEN], *to[OPEN];
    long posted, sent, asked, received;
    bool has_failed;
};
static int failed_count; /* connections that ended with a remote error */

static size_t size_of(uint64_t seed, long number)
{
    uint64_t random = seed ^ (uint64_t)number * 77;
    uint64_t kind = random_next(&random) % 8;
    return kind == 0 ? 0 : (size_t)(random_next(&random) % (kind < 6 ? 600 : BYTES_MAX));
}

/* True: the connection continues. Errors are legal under faults only. */
static bool goes_on(struct flow *flow, enum nccl_result result, uint64_t seed)
{
    if (result == NCCL_RESULT_SUCCESS) return true;
    CHECK(getenv("WEFT_TRANSPORT_WRAP") && result == NCCL_RESULT_REMOTE, "seed %llu: result %d",
          (unsigned long long)seed, (int)result);
    flow->has_failed = true;
    failed_count++;
    return false;
}

static void step_send(struct flow *flow, uint64_t seed)
{
    int slot = (int)(flow->posted % OPEN), done = 0, bytes = 0;
    if (flow->posted - flow->sent < OPEN) {
        size_t size = size_of(seed, flow->posted);
        pattern_fill(flow->from[slot], size, (uint64_t)flow->posted);
        if (!goes_on(flow,
                     driver_isend(flow->pair.driver, flow->pair.send, flow->from[slot], size, 1, NULL, NULL,
                                  &flow->sends[slot]),
                     seed))
            return;
        if (flow->sends[slot]) flow->posted++;
    }
    slot = (int)(flow->sent % OPEN);
    if (flow->sent == flow->posted) return;
    if (goes_on(flow, driver_test(flow->pair.driver, flow->sends[slot], &done, &bytes), seed) && done)
        flow->sent++;
}

static void step_recv(struct flow *flow, uint64_t seed)
{
    int slot = (int)(flow->asked % OPEN), done = 0, bytes = 0, tag = 1;
    if (flow->asked - flow->received < OPEN) {
        void *data = flow->to[slot], *memory = NULL, *parent = NULL;
        size_t capacity = BYTES_MAX;
        if (!goes_on(flow,
                     driver_irecv(flow->pair.driver, flow->pair.recv, 1, &data, &capacity, &tag, &memory,
                                  &parent, &flow->recvs[slot]),
                     seed))
            return;
        if (flow->recvs[slot]) flow->asked++;
    }
    slot = (int)(flow->received % OPEN);
    if (flow->received == flow->asked) return;
    if (!goes_on(flow, driver_test(flow->pair.driver, flow->recvs[slot], &done, &bytes), seed) || !done)
        return;
    size_t size = size_of(seed, flow->received);
    CHECK(bytes == (int)size && pattern_is(flow->to[slot], size, (uint64_t)flow->received),
          "seed %llu: message %ld of %zu bytes is wrong (%d bytes)", (unsigned long long)seed, flow->received,
          size, bytes);
    flow->received++;
}

static void seed_run(struct harness *harness, struct flow *flows, uint64_t seed)
{
    uint64_t random = seed;
    for (int i = 0; i < PAIRS; i++) {
        struct flow *flow = &flows[i];
        flow->posted = flow->sent = flow->asked = flow->received = 0;
        flow->has_failed = false;
        goes_on(flow, pair_open_under_faults(&flow->pair, harness), seed); /* it may exceed the deadline */
        /* most programs begin when the endpoints are connected */
        bool begins_connected = random_next(&random) % 4 > 0;
        while (begins_connected && flow->received == 0 && !flow->has_failed) {
            step_send(flow, seed);
            if (!flow->has_failed) step_recv(flow, seed);
            sched_yield();
        }
    }
    int steps = (int)(random_next(&random) % STEPS);
    for (int i = 0; i < steps; i++) {
        struct flow *flow = &flows[random_next(&random) % PAIRS];
        bool sends = random_next(&random) % 2;
        for (uint64_t k = random_next(&random) % 6; k > 0 && !flow->has_failed; k--) {
            if (sends) step_send(flow, seed);
            else step_recv(flow, seed);
        }
    }
    for (int i = 0; i < PAIRS; i++) { /* requests may be open */
        if (random_next(&random) % 2 && !flows[i].has_failed) {
            long wanted = flows[i].posted;
            while (flows[i].received < wanted && !flows[i].has_failed) {
                step_recv(&flows[i], seed);
                if (flows[i].sent < flows[i].posted && !flows[i].has_failed) {
                    int done = 0;
                    if (goes_on(&flows[i],
                                driver_test(flows[i].pair.driver, flows[i].sends[flows[i].sent % OPEN], &done,
                                            NULL),
                                seed) &&
                        done)
                        flows[i].sent++;
                }
                sched_yield();
            }
        }
        pair_close(&flows[i].pair);
    }
}

static void seeds(struct harness *harness)
{
    static struct flow flows[PAIRS];
    for (int i = 0; i < PAIRS; i++) {
        for (int k = 0; k < OPEN; k++) {
            flows[i].from[k] = malloc(BYTES_MAX);
            flows[i].to[k] = malloc(BYTES_MAX);
        }
    }
    for (int seed = harness->first_seed; seed < harness->first_seed + harness->seeds; seed++)
        seed_run(harness, flows, (uint64_t)seed);
    const char *wrap = getenv("WEFT_TRANSPORT_WRAP");
    CHECK(!wrap || !strstr(wrap, "fault:") || harness->seeds < 20 || failed_count > 0,
          "no fault has happened");
    if (failed_count > 0)
        printf("     seeds: %d connections of %d failed\n", failed_count, harness->seeds * PAIRS);
    for (int i = 0; i < PAIRS; i++) {
        for (int k = 0; k < OPEN; k++) {
            free(flows[i].from[k]);
            free(flows[i].to[k]);
        }
    }
}

const struct point random_points[] = {{"seeds", seeds}, {NULL, NULL}};
