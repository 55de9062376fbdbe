#include "tests/transport/net.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int net_stranger = -1, net_impostor = -1;
size_t net_unread_bytes;
bool op_inside_call;
int op_order;

uint64_t net_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

bool net_is_sim(const struct flavour *flavour) { return strstr(flavour->backend, "sim") != NULL; }

struct failed_context {
    struct net *net;
    int index;
};
static struct failed_context failed_contexts[NET_MAX];

static void peer_failed(void *context, uint32_t peer_id, enum weft_status status, const char *text)
{
    struct failed_context *at = context;
    assert_false(op_inside_call);
    at->net->failed_count[at->index]++;
    at->net->failed_id[at->index] = peer_id;
    at->net->failed_status[at->index] = status;
    snprintf(at->net->failed_text[at->index], sizeof at->net->failed_text[0], "%s", text);
}

const char *net_devices(int index)
{
    static char text[256], *names[NET_MAX];
    static int count = -1;
    if (count < 0) {
        const char *set = getenv("WEFT_TEST_DEVICES");
        snprintf(text, sizeof text, "%s", set ? set : "");
        count = 0;
        char *rest = text, *name;
        while (count < NET_MAX && (name = strtok_r(rest, " ", &rest))) names[count++] = name;
    }
    return count > 0 ? names[index % count] : NULL;
}

static void open_one(struct net *net, int index)
{
    const struct flavour *flavour = net->flavour;
    struct weft_env *env = weft_env_system();
    struct weft_transport_options options;
    weft_transport_options_init(&options);
    options.backend = flavour->backend;
    options.id = 100 + (uint32_t)index;
    options.secret = index == net_impostor ? "SECRET" : "secret";
    options.secret_bytes = 6;
    options.nonce = index == net_stranger ? 666 : 0x1234567890abcdefull;
    options.eager_bytes_max = NET_EAGER;
    options.unread_bytes_max = net_unread_bytes;
    if (flavour->lanes) options.lanes = flavour->lanes;
    if (net_devices(index)) options.devices = net_devices(index);
    options.wrap = flavour->wrap;
    options.tune = flavour_tune(flavour, index);
    options.peer_failed = peer_failed;
    failed_contexts[index] = (struct failed_context){net, index};
    options.peer_failed_context = &failed_contexts[index];
    if (net->sim) {
        options.sim = net->sim;
        options.sim_host = (uint32_t)index;
        env = weft_sim_env(net->sim, (uint32_t)index);
        struct weft_loop_options loop_options;
        weft_loop_options_init(&loop_options);
        loop_options.virtual_time = true;
        assert_int_equal(weft_loop_create(env, &loop_options, &net->loops[index]), WEFT_OK);
        assert_int_equal(weft_sim_add(net->sim, (uint32_t)index, net->loops[index]), WEFT_OK);
    }
    struct weft_error error = {0};
    enum weft_status status = weft_transport_open(env, &options, &net->transports[index], &error);
    if (status < 0) fail_msg("open %s: %s", flavour->backend, error.text);
    if (net->loops[index])
        assert_int_equal(weft_transport_attach(net->transports[index], net->loops[index]), WEFT_OK);
}

/* Bursts are lost, duplicated and reordered; a message is delayed by about ten pumps. */
static const char lossy[] = "[topology]\nburst = 4KiB\n[host node]\ncount = %d\n[switch s]\ncount = 1\n[link "
                            "l]\nfrom = node\nto = s\n"
                            "rate = 100Gbit\nlatency = 300ns\njitter = 2us\nloss = 0.02\nduplicate = "
                            "0.02\n[reliable]\ntimeout = 10us\n"
                            "retries = 40\n";

struct weft_sim *net_sim_create(struct weft_env *env, const struct flavour *flavour, int hosts, uint64_t seed,
                                struct weft_topology **topology_out)
{
    struct weft_sim *sim = NULL;
    struct weft_sim_options options;
    char text[400];
    weft_sim_options_init(&options);
    options.host_count = (uint32_t)hosts;
    options.seed = seed;
    *topology_out = NULL;
    if (flavour->lossy) {
        snprintf(text, sizeof text, lossy, hosts);
        assert_int_equal(weft_topology_parse(env, "lossy", text, strlen(text), topology_out, NULL), WEFT_OK);
        options.topology = *topology_out;
    }
    assert_int_equal(weft_sim_create(env, &options, &sim), WEFT_OK);
    return sim;
}

/* Connects all to all. An endpoint of another job is refused by the job mark in its address, and only it
 * forges the mark. */
static void connect_one(struct net *net, int from, int to)
{
    struct weft_transport *transport = net->transports[from];
    struct weft_peer **peer = &net->peers[from][to];
    const void *blob, *own;
    size_t bytes, own_bytes;
    unsigned char forged[WEFT_TRANSPORT_ADDRESS_BYTES_MAX];
    assert_int_equal(weft_transport_address(net->transports[to], &blob, &bytes), WEFT_OK);
    assert_int_equal(weft_transport_address(transport, &own, &own_bytes), WEFT_OK);
    if (memcmp((const char *)own + 8, (const char *)blob + 8, 4) != 0) { /* the nonce's hash */
        assert_int_equal(weft_transport_connect(transport, 100 + (uint32_t)to, blob, bytes, peer),
                         WEFT_ERR_AUTH);
        if (from != net_stranger) return;
    }
    memcpy(forged, blob, bytes);
    memcpy(forged + 8, (const char *)own + 8, 4);
    enum weft_status status = weft_transport_connect(transport, 100 + (uint32_t)to, forged, bytes, peer);
    bool odd = from == net_stranger || ((from == net_impostor) != (to == net_impostor));
    if (!odd) assert_int_equal(status, WEFT_OK);
    /* some backends authenticate their addresses */
    else assert_true(status == WEFT_OK || (status == WEFT_ERR_AUTH && !*peer));
}

void net_open(struct net *net, const struct flavour *flavour, int count)
{
    memset(net, 0, sizeof *net);
    net->flavour = flavour;
    net->count = count;
    op_inside_call = false;
    if (net_is_sim(flavour)) net->sim = net_sim_create(weft_env_system(), flavour, count, 11, &net->topology);
    for (int i = 0; i < count; i++) open_one(net, i);
    for (int i = 0; i < count; i++)
        for (int k = 0; k < count; k++) connect_one(net, i, k);
}

void *net_alloc(struct net *net, size_t bytes)
{
    if (!net->flavour->memory) return calloc(1, bytes);
    void *memory = NULL;
    assert_int_equal(weft_memory_alloc(weft_env_system(), bytes, &memory, NULL), WEFT_OK);
    return memory;
}

void net_release_memory(struct net *net, void *memory)
{
    if (net->flavour->memory) weft_memory_free(weft_env_system(), memory);
    else free(memory);
}

void net_pump(struct net *net)
{
    if (net->sim) weft_sim_run(net->sim, NULL, weft_sim_now_ns(net->sim) + 2000);
    for (int i = 0; i < net->count; i++) {
        if (net->transports[i] && (!net->sim || !net->loops[i]))
            weft_transport_progress(net->transports[i], 64);
    }
}

void net_drop(struct net *net, int index)
{
    weft_transport_close(net->transports[index]);
    if (net->loops[index]) {
        weft_sim_remove(net->sim, net->loops[index]);
        weft_loop_free(net->loops[index]);
        net->loops[index] = NULL;
    }
    PUMP_UNTIL(net, weft_transport_drained(net->transports[index]));
    weft_transport_free(net->transports[index]);
    net->transports[index] = NULL;
}

void net_close(struct net *net)
{
    for (int i = 0; i < net->count; i++) {
        if (net->transports[i]) weft_transport_close(net->transports[i]);
    }
    for (int i = 0; i < net->count; i++) {
        if (net->transports[i]) net_drop(net, i);
    }
    weft_sim_free(net->sim);
    weft_topology_free(net->topology);
}

static void op_done(struct weft_completion *completion, enum weft_status status)
{
    struct op *op = weft_container_of(completion, struct op, completion);
    if (op_inside_call) fail_msg("a completion ran inside the call that started it");
    if (op->over) fail_msg("a completion ran for what was over when its call returned");
    op->fired++;
    op->status = status;
    op->order = ++op_order;
}

void op_init(struct op *op)
{
    memset(op, 0, sizeof *op);
    weft_completion_init(&op->completion, 1, op_done);
}

static enum weft_status answered(struct op *op, enum weft_status status)
{
    op_inside_call = false;
    if (status != WEFT_OK) return status;
    assert_int_equal(op->completion.count, 1); /* must not have run */
    op->over = true;
    op->fired = 1;
    op->order = ++op_order;
    return status;
}

enum weft_status op_put(struct op *op, struct weft_remote *remote, const struct weft_put *put)
{
    op_init(op);
    op_inside_call = true;
    return answered(op, weft_transport_put(remote, put, &op->completion));
}

enum weft_status op_get(struct op *op, struct weft_remote *remote, uint64_t offset, void *destination,
                        size_t bytes)
{
    op_init(op);
    op_inside_call = true;
    return answered(op, weft_transport_get(remote, offset, destination, bytes, &op->completion));
}

enum weft_status op_send(struct op *op, struct weft_peer *peer, uint64_t tag, const char *header,
                         const void *payload, size_t bytes)
{
    struct weft_message message = {
        .tag = tag,
        .header = header,
        .header_bytes = header ? (uint32_t)strlen(header) : 0,
        .payload = payload,
        .payload_bytes = bytes,
    };
    op_init(op);
    op_inside_call = true;
    enum weft_status status = weft_transport_send(peer, &message, &op->completion);
    op_inside_call = false;
    return status;
}

enum weft_status op_recv(struct op *op, struct weft_transport *transport, uint32_t peer_id, uint64_t tag,
                         void *buffer, size_t bytes)
{
    op_init(op);
    op->receive.completion = &op->completion;
    op->receive.buffer = buffer;
    op->receive.buffer_bytes = bytes;
    op_inside_call = true;
    enum weft_status status = weft_transport_recv(transport, peer_id, tag, &op->receive);
    op_inside_call = false;
    return status;
}

void fill(void *memory, size_t bytes, uint32_t seed)
{
    unsigned char *at = memory;
    for (size_t i = 0; i < bytes; i++) at[i] = (unsigned char)((i * 2654435761u + seed * 40503u) >> 13);
}

bool filled(const void *memory, size_t bytes, uint32_t seed)
{
    const unsigned char *at = memory;
    for (size_t i = 0; i < bytes; i++) {
        if (at[i] != (unsigned char)((i * 2654435761u + seed * 40503u) >> 13)) return false;
    }
    return true;
}

void net_connect_pair(struct net *net)
{
    struct op send, recv;
    char in[2];
    op_recv(&recv, net->transports[1], 100, WEFT_TAG(WEFT_CHANNEL_TEST, 9), in, 2);
    op_send(&send, net->peers[0][1], WEFT_TAG(WEFT_CHANNEL_TEST, 9), NULL, "hi", 2);
    PUMP_UNTIL(net, recv.fired && send.fired);
    assert_int_equal(recv.status, WEFT_OK);
}
