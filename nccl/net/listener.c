/* listener.c - listen and accept.
 *
 * A listener serves a bounded number of unproven connections. The first valid hello gets an endpoint, whose
 * address is the answer; then accept returns the connection. A hello that is not valid is dropped without
 * effect on the others, the oldest unproven connection if all places are in use, and a silent one after
 * HALF_OPEN_NS. No call waits. */
#include "nccl/net/net.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define HALF_OPEN_NS WEFT_SECONDS(10)
enum { PLACES = 16 };

struct place {
    struct exchange *exchange; /* NULL: free */
    struct net_comm *comm;     /* once the hello was valid: its answer is being written */
    uint64_t since_ns;
};

struct net_listener {
    struct net_listener_identity identity;
    int fd;
    uint64_t limit_ns;
    struct place places[PLACES];
};

static void place_free(struct place *place)
{
    if (!place->exchange) return;
    exchange_close(place->exchange);
    if (place->comm) net_comm_close(place->comm);
    weft_free_bytes(&net_process()->env, place->exchange);
    *place = (struct place){0};
}

/* ---- listen ---- */

static enum weft_status listener_open(struct net_listener *listener, uint8_t *handle_out,
                                      struct weft_error *error)
{
    struct net_process *process = net_process();
    struct wire_handle handle = {0};
    WEFT_TRY(net_device_address(&process->devices[listener->identity.device], &handle.address,
                                &handle.address_bytes, error));
    weft_random_bytes(&process->env, handle.secret, sizeof handle.secret);
    handle.listener = listener->identity.id = weft_random_u64(&process->env);
    enum weft_status status = wire_key(handle.secret, process->secret, listener->identity.key);
    if (status != WEFT_OK) return weft_error_set(error, status, "no memory for the key of a listener");
    WEFT_TRY(exchange_listen(&handle.address, handle.address_bytes, process->ports, &listener->fd, error));
    wire_handle_encode(&handle, handle_out);
    return WEFT_OK;
}

enum nccl_result net_listen(void *context, int device, void *handle_out, void **listener_out)
{
    struct net_process *process = net_process();
    struct weft_error error = {0};
    *listener_out = NULL;
    if (!process || !context || device < 0 || device >= process->device_count)
        return net_report(WEFT_ERR_STATE, "listen on device %d without a communicator", device);
    struct net_listener *listener = weft_alloc_zero(&process->env, sizeof *listener);
    if (!listener) return net_report(WEFT_ERR_NO_MEMORY, "no memory for a listener");
    listener->identity.context = context;
    listener->identity.device = device;
    listener->limit_ns = weft_now_ns(&process->env) + process->deadline_ns;
    enum weft_status status = listener_open(listener, handle_out, &error);
    if (status != WEFT_OK) {
        weft_free_bytes(&process->env, listener);
        return net_report(status, "listen on %s: %s", process->devices[device].name, error.text);
    }
    *listener_out = listener;
    return NCCL_RESULT_SUCCESS;
}

enum nccl_result net_close_listen(void *listener)
{
    struct net_listener *own = listener;
    if (!own) return net_report(WEFT_ERR_STATE, "closeListen without a listener");
    for (int i = 0; i < PLACES; i++) place_free(&own->places[i]);
    close(own->fd);
    weft_wipe(own->identity.key, sizeof own->identity.key);
    weft_free_bytes(&net_process()->env, own);
    return NCCL_RESULT_SUCCESS;
}

const struct net_listener_identity *net_listener_identity(const void *listener)
{
    return &((const struct net_listener *)listener)->identity;
}

int net_listener_take_socket(void *listener)
{
    return accept4(((struct net_listener *)listener)->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
}

/* ---- accept ---- */

/* A free place, or that of the oldest unproven connection. NULL: all have valid hellos. */
static struct place *place_take(struct net_listener *listener)
{
    struct place *oldest = NULL;
    for (int i = 0; i < PLACES; i++) {
        struct place *place = &listener->places[i];
        if (!place->exchange) return place;
        if (!place->comm && (!oldest || place->since_ns < oldest->since_ns)) oldest = place;
    }
    if (oldest) place_free(oldest);
    return oldest;
}

static void take_sockets(struct net_listener *listener, uint64_t now_ns)
{
    struct weft_env *env = &net_process()->env;
    for (int i = 0; i < PLACES; i++) {
        int fd = net_listener_take_socket(listener);
        if (fd < 0) return;
        struct place *place = place_take(listener);
        struct exchange *exchange = place ? weft_alloc_bytes(env, sizeof *exchange) : NULL;
        if (!exchange) {
            close(fd);
            return;
        }
        exchange_init(exchange, fd);
        *place = (struct place){.exchange = exchange, .since_ns = now_ns};
    }
}

static void peer_name_of(int fd, char *out, size_t bytes)
{
    struct sockaddr_storage address;
    socklen_t address_bytes = sizeof address;
    if (getpeername(fd, (struct sockaddr *)&address, &address_bytes) == 0)
        exchange_describe(&address, address_bytes, out, bytes);
    else snprintf(out, bytes, "a lost peer");
}

/* Opens the endpoint for a valid hello and prepares the answer. An error is one of this process, except
 * WEFT_ERR_MALFORMED and WEFT_ERR_AUTH, which drop the hello. */
static enum weft_status answer(struct net_listener *listener, struct place *place, struct weft_error *error)
{
    struct exchange *exchange = place->exchange;
    struct wire_message hello, reply = {.kind = WIRE_ANSWER};
    uint8_t secret[WEFT_HMAC_BYTES];
    char name[NET_NAME_BYTES];
    size_t bytes;
    const void *blob;
    if (wire_message_decode(WIRE_HELLO, exchange->in, exchange->in_bytes, listener->identity.key, &hello) !=
            WEFT_OK ||
        hello.listener != listener->identity.id)
        return WEFT_ERR_AUTH;
    WEFT_TRY(wire_connection_secret(listener->identity.key, hello.challenge, secret));
    WEFT_TRY(net_comm_create(listener->identity.context, listener->identity.device, false, secret,
                             &place->comm, error));
    weft_wipe(secret, sizeof secret);
    peer_name_of(exchange->fd, name, sizeof name);
    enum weft_status status = net_comm_connect(place->comm, hello.blob, hello.blob_bytes, name);
    if (status != WEFT_OK)
        return weft_error_set(error, status, "cannot connect to %s%s", name,
                              weft_transport_connect_hint(status));
    WEFT_TRY(weft_transport_address(place->comm->transport, &blob, &bytes));
    memcpy(reply.challenge, hello.challenge, sizeof reply.challenge);
    if (weft_transport_direct_kinds(place->comm->transport) != 0) reply.flags = WIRE_ANNOUNCE_ALL;
    reply.blob = blob;
    reply.blob_bytes = (uint32_t)bytes;
    exchange->out_bytes = wire_message_encode(&reply, listener->identity.key, exchange->out);
    return exchange->out_bytes > 0 ? WEFT_OK : WEFT_ERR_NO_MEMORY;
}

/* Continues one place. WEFT_OK: its connection is ready. */
static enum weft_status place_step(struct net_listener *listener, struct place *place, uint64_t now_ns,
                                   struct weft_error *error)
{
    if (!place->comm) {
        enum weft_status status = exchange_read(place->exchange);
        if (status == WEFT_IN_PROGRESS && now_ns - place->since_ns < HALF_OPEN_NS) return status;
        if (status != WEFT_OK || exchange_has_ended(place->exchange)) return WEFT_ERR_AUTH;
        WEFT_TRY(answer(listener, place, error));
    }
    enum weft_status status = exchange_write(place->exchange);
    return status < 0 ? WEFT_ERR_AUTH : status; /* the peer has closed: the place is free */
}

enum nccl_result net_accept(void *listener, void **comm_out, struct nccl_device_handle **handle_out)
{
    struct net_listener *own = listener;
    struct net_process *process = net_process();
    uint64_t now_ns = weft_now_ns(&process->env);
    *comm_out = NULL;
    if (handle_out) *handle_out = NULL;
    net_linger_progress();
    take_sockets(own, now_ns);
    for (int i = 0; i < PLACES; i++) {
        struct place *place = &own->places[i];
        struct weft_error error = {0};
        if (!place->exchange) continue;
        enum weft_status status = place_step(own, place, now_ns, &error);
        if (status == WEFT_IN_PROGRESS) continue;
        if (status == WEFT_OK) {
            net_watch_begin(place->comm, place->exchange);
            *comm_out = place->comm;
            place->comm = NULL;
        }
        place_free(place);
        if (status == WEFT_OK) return NCCL_RESULT_SUCCESS;
        if (status != WEFT_ERR_AUTH)
            return net_report(status, "accept on %s: %s", process->devices[own->identity.device].name,
                              error.text);
    }
    if (now_ns < own->limit_ns) return NCCL_RESULT_SUCCESS;
    return net_report(WEFT_ERR_DEADLINE, "accept on %s: no rank has connected within nccl.deadline",
                      process->devices[own->identity.device].name);
}
