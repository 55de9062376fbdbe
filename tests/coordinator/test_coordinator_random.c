/* test_coordinator_random.c - random messages in random order from many connections, against the invariants:
 * no crash, `ended` is called at most once, nothing is sent to a closed connection, every sent message is
 * within the limits, every member is notified of the end, the status is JSON. */
#include <jansson.h>
#include <stdio.h>

#include "tests/coordinator/coordinator_harness.h"

#define BODY(name) WEFT__CONTROL__CONTROL__BODY_##name
#define SEEDS 400
#define EVENTS 160

static uint64_t random_state;

static uint32_t below(uint32_t bound)
{
    random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)((random_state >> 33) % bound);
}

/* A message that the job may or may not expect. */
static void random_message(struct harness *h, uint64_t id)
{
    struct harness_declare declare;
    char name[8];
    Control message = WEFT__CONTROL__CONTROL__INIT;
    Weft__Control__Heartbeat beat = WEFT__CONTROL__HEARTBEAT__INIT;
    Weft__Control__Abort abort = WEFT__CONTROL__ABORT__INIT;
    Weft__Control__WeightHash hash = WEFT__CONTROL__WEIGHT_HASH__INIT;
    Weft__Control__StatusRequest request = WEFT__CONTROL__STATUS_REQUEST__INIT;
    Weft__Control__Finished finished = WEFT__CONTROL__FINISHED__INIT;
    Weft__Control__Shrink shrink = WEFT__CONTROL__SHRINK__INIT;
    switch (below(13)) {
    case 12:
        message.body_case = BODY(SHRINK), message.shrink = &shrink, shrink.epoch = 1 + below(4),
        shrink.committed = below(9);
        break;
    case 0:
    case 1: harness_endpoints(h, id, 1 + below(2)); return;
    case 2:
    case 3: harness_ready(h, id); return;
    case 4:
    case 5:
        snprintf(name, sizeof name, "t%u", below(3));
        harness_declare_init(&declare, below(3), name);
        if (below(8) == 0) declare.dims[0] = 1 + below(9);
        if (below(4) == 0) declare.declare.mode = WEFT_WIRE_MODE_ALL_REDUCE;
        harness_declare(h, id, &declare);
        return;
    case 6: harness_declared_ok(h, id, below(3)); return;
    case 7: harness_leave(h, id, below(2) ? "" : "enough"); return;
    case 8: message.body_case = BODY(HEARTBEAT), message.heartbeat = &beat; break;
    case 9:
        message.body_case = BODY(WEIGHT_HASH), message.weight_hash = &hash, hash.worker = below(3),
        hash.tensor = below(3);
        break;
    case 10: message.body_case = BODY(STATUS_REQUEST), message.status_request = &request; break;
    default:
        if (below(2)) message.body_case = BODY(FINISHED), message.finished = &finished;
        else
            message.body_case = BODY(ABORT), message.abort = &abort, abort.status = -(int)(1 + below(99)),
            abort.text = (char *)"why";
        break;
    }
    harness_deliver(h, id, &message);
}

static void random_hello(struct harness *h)
{
    struct harness_hello hello = {.role = (Weft__Control__Role)(1 + below(3)),
                                  .wanted_index = (int)below(4) - 1,
                                  .endpoints = below(3),
                                  .wire_version = below(10) ? 0 : 9,
                                  .job = below(10) ? NULL : "other",
                                  .secret = below(10) ? h->options.secret : NULL};
    harness_hello(h, &hello);
}

static void close_where_asked(struct harness *h)
{
    for (uint64_t id = 1; id <= h->opened_count; id++)
        if (h->connections[id].open && h->connections[id].closed_by_coordinator && below(3) == 0)
            harness_close(h, id, "closed here");
}

/* A valid start, so that half of the seeds reach a running job. */
static void good_start(struct harness *h)
{
    uint64_t c[8];
    if (below(2)) harness_run(h, c, 1 + below(2));
}

static void one_seed(uint64_t seed)
{
    random_state = seed * 2654435761u + 1;
    uint32_t workers = 1 + below(3);
    struct harness *h = below(3) ? harness_create(workers, below(3), below(2) ? "key" : NULL)
                                 : harness_create_elastic(workers, 1 + below(workers));
    h->random = seed;
    good_start(h);
    for (int event = 0; event < EVENTS; event++) {
        uint64_t id = h->opened_count ? 1 + below((uint32_t)h->opened_count) : 0;
        switch (below(12)) {
        case 0: random_hello(h); break;
        case 1: harness_open(h); break;
        case 2:
            if (id && h->connections[id].open && below(4) == 0) harness_close(h, id, below(2) ? "" : "reset");
            break;
        case 3: h->now_ns += WEFT_SECONDS(below(12)), weft_coordinator_tick(h->coordinator); break;
        case 4: close_where_asked(h); break;
        default:
            if (id && h->connections[id].open) random_message(h, id);
            break;
        }
        if (event % 32 == 0) {
            char *json = weft_coordinator_status_json(h->coordinator);
            json_t *parsed = json ? json_loads(json, 0, NULL) : NULL;
            if (!parsed) fail_msg("seed %llu: status is no JSON", (unsigned long long)seed);
            json_decref(parsed);
            weft_free_bytes(&h->env, json);
        }
        if (h->ended_count > 1)
            fail_msg("replay: WEFT_TEST_SEED=%llu: ended twice", (unsigned long long)seed);
    }
    /* Silence ends every job that has not ended. */
    h->now_ns += WEFT_SECONDS(400);
    weft_coordinator_tick(h->coordinator);
    if (h->ended_count != 1)
        fail_msg("replay: WEFT_TEST_SEED=%llu: not ended after long silence", (unsigned long long)seed);
    harness_free(h);
}

static void random_orders(void **state)
{
    const char *given = getenv("WEFT_TEST_SEED");
    uint64_t first = given ? strtoull(given, NULL, 0) : 1, count = given ? 1 : SEEDS;
    for (uint64_t seed = first; seed < first + count; seed++) {
        if (given) print_message("seed %llu\n", (unsigned long long)seed);
        one_seed(seed);
    }
}

/* The Nth allocation fails: a sentence or a refusal, no crash and no leak (sanitizer builds check). */
static int allocations_left;
static void *failing_alloc(struct weft_env *env, size_t bytes)
{
    return allocations_left-- > 0 ? weft_env_system()->alloc(env, bytes) : NULL;
}

static void allocation_failures(void **state)
{
    for (int n = 0; n < 60; n++) {
        struct harness *h = harness_create(1, 1, NULL);
        allocations_left = n;
        h->env.alloc = failing_alloc;
        for (int i = 0; i < 2; i++) {
            uint64_t id = harness_open(h);
            Weft__Control__Hello hello = WEFT__CONTROL__HELLO__INIT;
            Control message = WEFT__CONTROL__CONTROL__INIT;
            uint8_t nonce[WEFT_NONCE_BYTES] = {1};
            hello.wire_version = WEFT_WIRE_VERSION, hello.job = (char *)"mnist", hello.name = (char *)"x";
            hello.role = i ? WEFT__CONTROL__ROLE__ROLE_SHARD : WEFT__CONTROL__ROLE__ROLE_WORKER;
            hello.nonce = (ProtobufCBinaryData){sizeof nonce, nonce};
            message.body_case = BODY(HELLO), message.hello = &hello;
            harness_deliver(h, id, &message);
            harness_endpoints(h, id, 1);
        }
        harness_ready(h, 1);
        harness_ready(h, 2);
        struct harness_declare declare;
        harness_declare_init(&declare, 0, "fc1");
        harness_declare(h, 1, &declare);
        harness_declared_ok(h, 2, 0);
        weft_free_bytes(weft_env_system(), weft_coordinator_status_json(h->coordinator));
        assert_true(h->ended_count <= 1);
        harness_free(h);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_orders),
                                       cmocka_unit_test(allocation_failures)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
