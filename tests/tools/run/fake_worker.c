/* fake_worker.c - a minimal worker for tests of weftd and `weft run`: joins as any worker, opens a real
 * transport, and then acts as its argument requires.
 *
 *     fake_worker leave          leaves in order at once
 *     fake_worker stay           stays until the job ends
 *     fake_worker die            kills itself once the job runs
 *     fake_worker exit N         exits with status N once the job runs, without leaving
 *     fake_worker declare SHAPE  declares tensor 'fc1' with that shape ("8x4"), then leaves
 *     fake_worker abort          aborts the job
 *
 * The end of the job is printed as one line; the exit status is 0 only after leaving in order. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "server/server.h"
#include "tools/common.h"

struct fake {
    struct weft_env *env;
    struct weft_control_client *member;
    struct weft_transport *transport;
    char *secret;
    char **words;
    bool left, done;
    int status;
};

static void send_body(struct fake *fake, Weft__Control__Control__BodyCase body, void *content)
{
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    message.body_case = body;
    message.challenge = content; /* the pointers of the union overlap */
    (void)weft_control_client_send(fake->member, &message);
}

static void on_welcomed(void *context, const Weft__Control__Welcome *welcome)
{
    struct fake *fake = context;
    struct weft_transport_options options;
    struct weft_error error = {0};
    const void *blob;
    size_t bytes;
    weft_transport_options_init(&options);
    options.backend = "auto";
    options.id = welcome->endpoint_first;
    options.nonce = welcome->transport_nonce;
    options.secret = fake->secret;
    options.secret_bytes = fake->secret ? strlen(fake->secret) : 0;
    if (weft_transport_open(fake->env, &options, &fake->transport, &error) != WEFT_OK ||
        weft_transport_address(fake->transport, &blob, &bytes) != WEFT_OK) {
        printf("no transport: %s\n", error.text);
        fake->done = true;
        return;
    }
    ProtobufCBinaryData address = {bytes, (uint8_t *)blob};
    Weft__Control__Endpoints endpoints = WEFT__CONTROL__ENDPOINTS__INIT;
    endpoints.n_addresses = 1;
    endpoints.addresses = &address;
    send_body(fake, WEFT__CONTROL__CONTROL__BODY_ENDPOINTS, &endpoints);
}

static void declare(struct fake *fake)
{
    uint64_t dims[2] = {1, 1};
    Weft__Control__Declare declare = WEFT__CONTROL__DECLARE__INIT;
    char *times = strchr(fake->words[1], 'x');
    dims[0] = strtoull(fake->words[1], NULL, 10);
    dims[1] = times ? strtoull(times + 1, NULL, 10) : 1;
    declare.name = (char *)"fc1";
    declare.dtype = WEFT_F32;
    declare.n_dims = 2;
    declare.dims = dims;
    declare.codec = (char *)"dense";
    declare.optimizer = (char *)"sgd";
    declare.mode = WEFT_WIRE_MODE_SERVER;
    declare.chunk_bytes = 1024;
    send_body(fake, WEFT__CONTROL__CONTROL__BODY_DECLARE, &declare);
}

static void leave(struct fake *fake)
{
    fake->left = true;
    (void)weft_control_client_leave(fake->member, "");
}

static void on_go(struct fake *fake)
{
    const char *word = fake->words[0];
    printf("the job runs\n");
    fflush(stdout);
    if (strcmp(word, "leave") == 0) leave(fake);
    if (strcmp(word, "die") == 0) raise(SIGKILL);
    if (strcmp(word, "exit") == 0) _exit(atoi(fake->words[1]));
    if (strcmp(word, "declare") == 0) declare(fake);
    if (strcmp(word, "abort") == 0) {
        (void)weft_control_client_abort(fake->member, WEFT_ERR_ABORTED, "enough of this");
        fake->done = true;
    }
}

static void on_message(void *context, const Weft__Control__Control *message)
{
    struct fake *fake = context;
    Weft__Control__Ready ready = WEFT__CONTROL__READY__INIT;
    switch (message->body_case) {
    case WEFT__CONTROL__CONTROL__BODY_ROSTER:
        ready.epoch = message->roster->epoch;
        send_body(fake, WEFT__CONTROL__CONTROL__BODY_READY, &ready);
        break;
    case WEFT__CONTROL__CONTROL__BODY_GO: on_go(fake); break;
    case WEFT__CONTROL__CONTROL__BODY_DECLARED:
        printf("declared, %zu chunks\n", message->declared->n_chunks);
        leave(fake);
        break;
    case WEFT__CONTROL__CONTROL__BODY_MEMBER_LOST:
        printf("%s\n", message->member_lost->text);
        fake->done = true;
        break;
    case WEFT__CONTROL__CONTROL__BODY_ABORT:
        printf("%s\n", message->abort->text);
        fake->done = true;
        break;
    default: break;
    }
}

static void on_closed(void *context, enum weft_status status, const char *text)
{
    struct fake *fake = context;
    if (!fake->left) printf("%s\n", text);
    fake->done = true;
}

int main(int argc, char **argv)
{
    struct fake fake = {.env = weft_env_system(), .words = argv + 1};
    struct weft_control_client_options options;
    struct weft_error error = {0};
    struct weft_net *net;
    char host[256];
    signal(SIGPIPE, SIG_IGN);
    weft_control_client_options_init(&options);
    const char *coordinator = getenv("WEFT_COORDINATOR"), *rank = getenv("WEFT_RANK");
    if (argc < 2 || !coordinator || weft_host_port_parse(coordinator, host, &options.port, &error) != WEFT_OK)
        return 2;
    if (!tool_read_secret("fake_worker", NULL, NULL, &fake.secret) ||
        weft_net_create(fake.env, &net) != WEFT_OK)
        return 2;
    options.host = host;
    options.secret = fake.secret;
    options.job = getenv("WEFT_JOB") ? getenv("WEFT_JOB") : "weft";
    options.role = WEFT__CONTROL__ROLE__ROLE_WORKER;
    options.wanted_index = rank ? atoi(rank) : -1;
    options.join_ns = WEFT_SECONDS(10);
    options.welcomed = on_welcomed;
    options.message = on_message;
    options.closed = on_closed;
    options.context = &fake;
    if (weft_control_client_start(fake.env, net, &options, &fake.member, &error) != WEFT_OK) {
        printf("%s\n", error.text);
        return 1;
    }
    while (!fake.done) {
        weft_net_step(net, 50);
        if (fake.transport) (void)weft_transport_progress(fake.transport, 16);
    }
    weft_net_free(net);
    weft_control_client_free(fake.member);
    if (fake.transport) {
        weft_transport_close(fake.transport);
        for (int i = 0; i < 1000 && !weft_transport_drained(fake.transport); i++)
            (void)weft_transport_progress(fake.transport, 16);
        weft_transport_free(fake.transport);
    }
    free(fake.secret);
    return fake.left ? 0 : 1;
}
