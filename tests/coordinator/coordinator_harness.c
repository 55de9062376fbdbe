#include "tests/coordinator/coordinator_harness.h"

#include <stdio.h>

static struct harness *of_env(struct weft_env *env) { return (struct harness *)(void *)env; }
/* a real clock is later at each reading */
static uint64_t manual_now(struct weft_env *env) { return of_env(env)->now_ns++; }
static uint64_t manual_random(struct weft_env *env)
{
    struct harness *harness = of_env(env);
    harness->random = harness->random * 6364136223846793005ull + 1442695040888963407ull;
    return harness->random;
}
static void no_log(struct weft_env *env, enum weft_log_level level, const char *module, const char *text) {}

static void on_send(void *context, uint64_t id, const Control *message)
{
    struct harness *harness = context;
    struct harness_connection *connection = &harness->connections[id];
    uint8_t *data;
    size_t bytes;
    assert_true(id >= 1 && id <= harness->opened_count);
    assert_true(connection->open && !connection->closed_by_coordinator);
    if (harness->same) assert_ptr_equal(message, harness->same);
    harness->sends_of_same += harness->same != NULL;
    if (weft_control_pack(weft_env_system(), message, &data, &bytes) != WEFT_OK)
        fail_msg("the coordinator sent a message of kind %d that breaks its own limits",
                 (int)message->body_case);
    connection->frame_bytes = bytes;
    if (connection->received < HARNESS_INBOX)
        assert_int_equal(
            weft_control_unpack(weft_env_system(), data, bytes, &connection->inbox[connection->received++]),
            WEFT_OK);
    weft_free_bytes(weft_env_system(), data);
}

static void on_send_same(void *context, const Control *message)
{
    struct harness *harness = context;
    assert_true(!message || !harness->same); /* ended before the next begins */
    harness->same_count += message != NULL;
    harness->same = message;
}

static void on_close(void *context, uint64_t id, const char *why)
{
    struct harness *harness = context;
    assert_true(harness->connections[id].open && !harness->connections[id].closed_by_coordinator);
    harness->connections[id].closed_by_coordinator = true;
    snprintf(harness->connections[id].why, sizeof harness->connections[id].why, "%s", why);
}

static void on_ended(void *context, enum weft_status status, const char *text)
{
    struct harness *harness = context;
    harness->ended_count++;
    harness->end_status = status;
    snprintf(harness->end_text, sizeof harness->end_text, "%s", text);
}

static struct harness *harness_alloc(uint32_t workers, uint32_t shards)
{
    struct harness *harness = calloc(1, sizeof *harness);
    assert_non_null(harness);
    harness->env = *weft_env_system();
    harness->env.now_ns = manual_now;
    harness->env.random_u64 = manual_random;
    harness->env.log = no_log;
    harness->now_ns = WEFT_SECONDS(1000);
    weft_coordinator_options_init(&harness->options);
    harness->options.job = "mnist";
    harness->options.workers = workers;
    harness->options.shards = shards;
    harness->options.process.host = "hostb"; /* the first connection's process */
    harness->options.process.pid = 41;
    harness->options.net.send = on_send;
    harness->options.net.send_same = on_send_same;
    harness->options.net.close = on_close;
    harness->options.ended = on_ended;
    harness->options.context = harness;
    return harness;
}

static struct harness *harness_start(struct harness *harness)
{
    assert_int_equal(weft_coordinator_create(&harness->env, &harness->options, &harness->coordinator),
                     WEFT_OK);
    return harness;
}

static struct harness *harness_create_with(uint32_t workers, uint32_t shards, uint32_t workers_min,
                                           uint32_t workers_max, const char *secret)
{
    struct harness *harness = harness_alloc(workers, shards);
    harness->options.secret = secret;
    harness->options.workers_min = workers_min;
    harness->options.workers_max = workers_max;
    return harness_start(harness);
}

struct harness *harness_create_version(uint32_t workers, uint32_t shards, uint32_t workers_max,
                                       uint32_t wire_newest)
{
    struct harness *harness = harness_alloc(workers, shards);
    harness->options.wire_newest = wire_newest;
    harness->options.workers_min = workers_max > 0;
    harness->options.workers_max = workers_max;
    return harness_start(harness);
}

struct harness *harness_create_copies(uint32_t workers, uint32_t shards, bool one_host)
{
    struct harness *harness = harness_alloc(workers, shards);
    harness->options.copies = 1;
    harness->options.copies_on_one_host = one_host;
    return harness_start(harness);
}

struct harness *harness_create_growing_copies(uint32_t workers, uint32_t shards, uint32_t workers_max)
{
    struct harness *harness = harness_alloc(workers, shards);
    harness->options.copies = 1;
    harness->options.copies_on_one_host = true;
    harness->options.workers_min = 1;
    harness->options.workers_max = workers_max;
    return harness_start(harness);
}

struct harness *harness_create(uint32_t workers, uint32_t shards, const char *secret)
{
    return harness_create_with(workers, shards, 0, 0, secret);
}

struct harness *harness_create_elastic(uint32_t workers, uint32_t workers_min)
{
    return harness_create_with(workers, 0, workers_min, 0, NULL);
}

struct harness *harness_create_elastic_shards(uint32_t workers, uint32_t shards, uint32_t workers_min)
{
    return harness_create_with(workers, shards, workers_min, 0, NULL);
}

struct harness *harness_create_growing(uint32_t workers, uint32_t shards, uint32_t workers_min,
                                       uint32_t workers_max)
{
    return harness_create_with(workers, shards, workers_min, workers_max, NULL);
}

void harness_free(struct harness *harness)
{
    weft_coordinator_free(harness->coordinator);
    for (uint64_t id = 1; id <= harness->opened_count; id++)
        for (uint32_t i = 0; i < harness->connections[id].received; i++)
            weft_control_free(weft_env_system(), harness->connections[id].inbox[i]);
    free(harness);
}

uint64_t harness_open(struct harness *harness)
{
    assert_true(harness->opened_count < HARNESS_CONNECTIONS);
    uint64_t id = ++harness->opened_count;
    harness->connections[id].open = true;
    weft_coordinator_opened(harness->coordinator, id, "127.0.0.1:1");
    return id;
}

void harness_close(struct harness *harness, uint64_t connection, const char *why)
{
    harness->connections[connection].open = false;
    weft_coordinator_closed(harness->coordinator, connection, why);
}

void harness_deliver(struct harness *harness, uint64_t connection, const Control *message)
{
    uint8_t *data;
    size_t bytes;
    Control *unpacked;
    assert_int_equal(weft_control_pack(weft_env_system(), message, &data, &bytes), WEFT_OK);
    assert_int_equal(weft_control_unpack(weft_env_system(), data, bytes, &unpacked), WEFT_OK);
    weft_free_bytes(weft_env_system(), data);
    weft_coordinator_message(harness->coordinator, connection, unpacked);
    weft_control_free(weft_env_system(), unpacked);
}

Control *harness_next(struct harness *harness, uint64_t id)
{
    struct harness_connection *connection = &harness->connections[id];
    return connection->read < connection->received ? connection->inbox[connection->read++] : NULL;
}

Control *harness_expect(struct harness *harness, uint64_t connection, Weft__Control__Control__BodyCase body)
{
    Control *message = harness_next(harness, connection);
    if (!message)
        fail_msg("connection %d: no message arrived, message %d was due", (int)connection, (int)body);
    if (message->body_case != body)
        fail_msg(
            "connection %d: message %d (%s) arrived, %d was due", (int)connection, (int)message->body_case,
            message->body_case == WEFT__CONTROL__CONTROL__BODY_ABORT ? message->abort->text : "", (int)body);
    return message;
}

void harness_expect_nothing(struct harness *harness, uint64_t connection)
{
    Control *message = harness_next(harness, connection);
    if (message) fail_msg("connection %d: unexpected message %d", (int)connection, (int)message->body_case);
}

void harness_expect_abort(struct harness *harness, uint64_t connection, enum weft_status status,
                          const char *text, bool closed)
{
    Control *message = harness_expect(harness, connection, WEFT__CONTROL__CONTROL__BODY_ABORT);
    assert_string_equal(message->abort->text, text);
    assert_int_equal(message->abort->status, status);
    assert_int_equal(harness->connections[connection].closed_by_coordinator, closed);
}

uint64_t harness_hello(struct harness *harness, const struct harness_hello *given)
{
    uint64_t id = harness_open(harness);
    Control *challenge = harness_expect(harness, id, WEFT__CONTROL__CONTROL__BODY_CHALLENGE);
    uint8_t proof[WEFT_PROOF_BYTES], nonce[WEFT_NONCE_BYTES];
    memset(nonce, (int)id, sizeof nonce);
    char name[64];
    snprintf(name, sizeof name, "newcomer %d", (int)id);
    Weft__Control__Hello hello = WEFT__CONTROL__HELLO__INIT;
    Control message = WEFT__CONTROL__CONTROL__INIT;
    hello.wire_version = given->wire_version ? given->wire_version : WEFT_WIRE_VERSION;
    hello.wire_oldest = given->wire_oldest;
    hello.wire_newest = given->wire_newest;
    hello.weft_version = (char *)"9.9";
    hello.job = (char *)(given->job ? given->job : "mnist");
    hello.role = given->role;
    hello.name = name;
    hello.wanted_index = given->wanted_index;
    hello.host = (char *)"hostb";
    hello.pid = 40 + id;
    hello.endpoints = given->endpoints;
    hello.seals = given->has_no_seal ? 0 : WEFT_SEAL_VERSION;
    hello.progress = true;
    hello.slots = !given->has_no_slots;
    hello.chunk_runs = !harness->has_no_chunk_runs;
    hello.moves = harness->has_moves && given->role == WEFT__CONTROL__ROLE__ROLE_SHARD;
    hello.joins = given->joins;
    hello.additions = harness->has_moves;
    if (harness->zones && given->role == WEFT__CONTROL__ROLE__ROLE_SHARD && given->wanted_index >= 0)
        hello.zone = (char *)harness->zones[given->wanted_index];
    hello.frees = given->role == WEFT__CONTROL__ROLE__ROLE_SHARD;
    hello.nonce = (ProtobufCBinaryData){sizeof nonce, nonce};
    if (given->secret) {
        assert_int_equal(weft_proof_make(given->secret, WEFT_PROOF_JOIN, challenge->challenge->nonce.data,
                                         hello.job, name, proof),
                         WEFT_OK);
        hello.proof = (ProtobufCBinaryData){sizeof proof, proof};
    }
    message.body_case = WEFT__CONTROL__CONTROL__BODY_HELLO;
    message.hello = &hello;
    harness_deliver(harness, id, &message);
    return id;
}

uint64_t harness_join(struct harness *harness, Weft__Control__Role role, int index, uint32_t endpoints,
                      Weft__Control__Welcome *welcome_out)
{
    uint64_t id = harness_hello(harness, &(struct harness_hello){.role = role,
                                                                 .wanted_index = index,
                                                                 .endpoints = endpoints,
                                                                 .secret = harness->options.secret});
    Control *message = harness_expect(harness, id, WEFT__CONTROL__CONTROL__BODY_WELCOME);
    if (welcome_out) *welcome_out = *message->welcome;
    return id;
}

void harness_endpoints(struct harness *harness, uint64_t connection, uint32_t count)
{
    ProtobufCBinaryData addresses[WEFT_LIMIT_ENGINES];
    uint8_t byte = (uint8_t)connection;
    for (uint32_t i = 0; i < count; i++) addresses[i] = (ProtobufCBinaryData){1, &byte};
    Weft__Control__Endpoints endpoints = WEFT__CONTROL__ENDPOINTS__INIT;
    Control message = WEFT__CONTROL__CONTROL__INIT;
    endpoints.n_addresses = count;
    endpoints.addresses = addresses;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_ENDPOINTS;
    message.endpoints = &endpoints;
    harness_deliver(harness, connection, &message);
}

void harness_ready(struct harness *harness, uint64_t connection)
{
    harness_ready_with(harness, connection, NULL);
}

void harness_ready_with(struct harness *harness, uint64_t connection, Weft__Control__LinkCost *cost)
{
    Weft__Control__Ready ready = WEFT__CONTROL__READY__INIT;
    ready.cost = cost;
    Control message = WEFT__CONTROL__CONTROL__INIT;
    ready.epoch = 1;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_READY;
    message.ready = &ready;
    harness_deliver(harness, connection, &message);
}

void harness_leave(struct harness *harness, uint64_t connection, const char *text)
{
    Weft__Control__Leave leave = WEFT__CONTROL__LEAVE__INIT;
    Control message = WEFT__CONTROL__CONTROL__INIT;
    leave.text = (char *)text;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_LEAVE;
    message.leave = &leave;
    harness_deliver(harness, connection, &message);
}

void harness_declare_init(struct harness_declare *declare, uint32_t ordinal, const char *name)
{
    weft__control__declare__init(&declare->declare);
    declare->dims[0] = 1024;
    declare->dims[1] = 784;
    declare->declare.ordinal = ordinal;
    declare->declare.name = (char *)name;
    declare->declare.dtype = WEFT_F32;
    declare->declare.n_dims = 2;
    declare->declare.codec = (char *)"dense";
    declare->declare.optimizer = (char *)"sgd:momentum=0.9";
    declare->declare.mode = WEFT_WIRE_MODE_SERVER;
    declare->declare.chunk_bytes = 1u << 20;
}

void harness_declare(struct harness *harness, uint64_t connection, const struct harness_declare *declare)
{
    Weft__Control__Declare copy = declare->declare;
    Control message = WEFT__CONTROL__CONTROL__INIT;
    copy.dims = (uint64_t *)declare->dims;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_DECLARE;
    message.declare = &copy;
    harness_deliver(harness, connection, &message);
}

void harness_declared_ok(struct harness *harness, uint64_t connection, uint32_t tensor)
{
    Weft__Control__DeclaredOk ok = WEFT__CONTROL__DECLARED_OK__INIT;
    Control message = WEFT__CONTROL__CONTROL__INIT;
    ok.tensor = tensor;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_DECLARED_OK;
    message.declared_ok = &ok;
    harness_deliver(harness, connection, &message);
}

void harness_run(struct harness *harness, uint64_t *connections_out, uint32_t engines)
{
    uint32_t workers = harness->options.workers, total = workers + harness->options.shards;
    for (uint32_t i = 0; i < total; i++) {
        bool worker = i < workers;
        connections_out[i] =
            harness_join(harness, worker ? WEFT__CONTROL__ROLE__ROLE_WORKER : WEFT__CONTROL__ROLE__ROLE_SHARD,
                         (int)(worker ? i : i - workers), worker ? 1 : engines, NULL);
    }
    for (uint32_t i = 0; i < total; i++)
        harness_endpoints(harness, connections_out[i], i < workers ? 1 : engines);
    for (uint32_t i = 0; i < total; i++)
        harness_expect(harness, connections_out[i], WEFT__CONTROL__CONTROL__BODY_ROSTER);
    for (uint32_t i = 0; harness->options.copies && i < total; i++)
        harness_expect(harness, connections_out[i], WEFT__CONTROL__CONTROL__BODY_MAP);
    for (uint32_t i = 0; i < total; i++) harness_ready(harness, connections_out[i]);
    for (uint32_t i = 0; i < total; i++)
        harness_expect(harness, connections_out[i], WEFT__CONTROL__CONTROL__BODY_GO);
}
