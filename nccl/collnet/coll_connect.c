/* coll_connect.c - connects one rank of each node with all others.
 *
 * Every rank has all handles. Rank i dials the listeners of higher ranks and accepts lower ones; a hello
 * carries the sender's rank in the first four bytes of its challenge, under its MAC. Each exchange gives two
 * ranks the address of each other's endpoint. The secret of the endpoints follows from the first handle,
 * so it is one for all. The call blocks, as NCCL allows, but no longer than COLL_CONNECT_NS and the
 * deadline: then NCCL falls back to its other algorithms. */
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "nccl/collnet/coll.h"

enum { POLL_MS = 1, UNPROVEN_MAX = 16 };

struct link {                  /* one exchange */
    struct exchange *exchange; /* NULL: none, or over */
    uint8_t key[WEFT_HMAC_BYTES], challenge[WIRE_SECRET_BYTES];
};

struct rendezvous {
    struct coll_comm *comm;
    const struct net_listener_identity *listener;
    void *listener_handle;
    struct link *dialed, *accepted; /* (ranks,) by rank; (ranks + UNPROVEN_MAX,) in any order */
    bool *is_connected;             /* (ranks,) */
    uint32_t connected_count;
    const void *blob;
    size_t blob_bytes;
};

static struct weft_env *env(void)
{
    return &net_process()->env;
}

static void link_end(struct link *link)
{
    if (!link->exchange) return;
    exchange_close(link->exchange);
    weft_free_bytes(env(), link->exchange);
    link->exchange = NULL;
}

static enum weft_status connect_rank(struct rendezvous *rendezvous, uint32_t rank,
                                     const struct wire_message *message)
{
    struct weft_peer *peer;
    if (rendezvous->is_connected[rank]) return WEFT_ERR_AUTH;
    WEFT_TRY(weft_transport_connect(rendezvous->comm->transport, rank + 1, message->blob, message->blob_bytes,
                                    &peer));
    return WEFT_OK;
}

static enum weft_status message_prepare(struct rendezvous *rendezvous, struct link *link, enum wire_kind kind,
                                        uint64_t listener)
{
    struct wire_message message = {.kind = kind,
                                   .listener = listener,
                                   .blob = rendezvous->blob,
                                   .blob_bytes = (uint32_t)rendezvous->blob_bytes};
    memcpy(message.challenge, link->challenge, sizeof message.challenge);
    link->exchange->out_bytes = wire_message_encode(&message, link->key, link->exchange->out);
    return link->exchange->out_bytes > 0 ? WEFT_OK : WEFT_ERR_NO_MEMORY;
}

/* ---- higher ranks ---- */

static enum weft_status dial(struct rendezvous *rendezvous, uint32_t rank, const void *handle_bytes)
{
    struct link *link = &rendezvous->dialed[rank];
    struct wire_handle handle;
    WEFT_TRY(wire_handle_decode(handle_bytes, &handle));
    WEFT_TRY(wire_key(handle.secret, net_process()->secret, link->key));
    weft_random_bytes(env(), link->challenge, sizeof link->challenge);
    put_le32(link->challenge, rendezvous->comm->rank);
    link->exchange = weft_alloc_bytes(env(), sizeof *link->exchange);
    if (!link->exchange) return WEFT_ERR_NO_MEMORY;
    exchange_init(link->exchange, -1);
    WEFT_TRY(exchange_dial(link->exchange, &handle));
    return message_prepare(rendezvous, link, WIRE_HELLO, handle.listener);
}

static enum weft_status dialed_step(struct rendezvous *rendezvous, uint32_t rank)
{
    struct link *link = &rendezvous->dialed[rank];
    struct wire_message reply;
    if (!link->exchange) return WEFT_OK;
    enum weft_status status = exchange_write(link->exchange);
    if (status == WEFT_OK) status = exchange_read(link->exchange);
    if (status == WEFT_IN_PROGRESS) return WEFT_OK;
    WEFT_TRY(status);
    WEFT_TRY(
        wire_message_decode(WIRE_ANSWER, link->exchange->in, link->exchange->in_bytes, link->key, &reply));
    if (memcmp(reply.challenge, link->challenge, sizeof reply.challenge) != 0) return WEFT_ERR_AUTH;
    WEFT_TRY(connect_rank(rendezvous, rank, &reply));
    rendezvous->is_connected[rank] = true;
    rendezvous->connected_count++;
    link_end(link);
    return WEFT_OK;
}

/* ---- lower ranks ---- */

static void take_sockets(struct rendezvous *rendezvous)
{
    for (uint32_t i = 0; i < rendezvous->comm->ranks + UNPROVEN_MAX; i++) {
        struct link *link = &rendezvous->accepted[i];
        if (link->exchange) continue;
        int fd = net_listener_take_socket(rendezvous->listener_handle);
        if (fd < 0) return;
        link->exchange = weft_alloc_bytes(env(), sizeof *link->exchange);
        if (link->exchange) exchange_init(link->exchange, fd);
        else close(fd);
    }
}

/* WEFT_ERR_AUTH: the connection is not of a rank, and is closed. */
static enum weft_status accepted_step(struct rendezvous *rendezvous, struct link *link)
{
    struct exchange *exchange = link->exchange;
    if (exchange->out_bytes == 0) {
        struct wire_message hello;
        enum weft_status status = exchange_read(exchange);
        if (status != WEFT_OK) return status == WEFT_IN_PROGRESS ? status : WEFT_ERR_AUTH;
        memcpy(link->key, rendezvous->listener->key, sizeof link->key);
        status = wire_message_decode(WIRE_HELLO, exchange->in, exchange->in_bytes, link->key, &hello);
        if (status != WEFT_OK || hello.listener != rendezvous->listener->id) return WEFT_ERR_AUTH;
        if (exchange_has_ended(exchange)) return WEFT_ERR_AUTH;
        memcpy(link->challenge, hello.challenge, sizeof link->challenge);
        uint32_t rank = get_le32(hello.challenge);
        if (rank >= rendezvous->comm->rank) return WEFT_ERR_AUTH;
        WEFT_TRY(connect_rank(rendezvous, rank, &hello));
        WEFT_TRY(message_prepare(rendezvous, link, WIRE_ANSWER, 0));
    }
    enum weft_status status = exchange_write(exchange);
    if (status != WEFT_OK) return status == WEFT_IN_PROGRESS ? status : WEFT_ERR_PEER_LOST;
    rendezvous->is_connected[get_le32(link->challenge)] = true;
    rendezvous->connected_count++;
    return WEFT_OK;
}

static enum weft_status accepted_steps(struct rendezvous *rendezvous)
{
    take_sockets(rendezvous);
    for (uint32_t i = 0; i < rendezvous->comm->ranks + UNPROVEN_MAX; i++) {
        struct link *link = &rendezvous->accepted[i];
        if (!link->exchange) continue;
        enum weft_status status = accepted_step(rendezvous, link);
        if (status == WEFT_IN_PROGRESS) continue;
        link_end(link);
        if (status != WEFT_OK && status != WEFT_ERR_AUTH) return status;
    }
    return WEFT_OK;
}

/* ---- all ranks ---- */

static enum weft_status rendezvous_run(struct rendezvous *rendezvous, void *handles[], uint64_t limit_ns,
                                       struct weft_error *error)
{
    uint32_t ranks = rendezvous->comm->ranks;
    for (uint32_t rank = rendezvous->comm->rank + 1; rank < ranks; rank++) {
        enum weft_status status = dial(rendezvous, rank, handles[rank]);
        if (status != WEFT_OK) return weft_error_set(error, status, "rank %u has no valid handle", rank);
    }
    while (rendezvous->connected_count < ranks - 1) {
        enum weft_status status = accepted_steps(rendezvous);
        if (status != WEFT_OK) return weft_error_set(error, status, "a lower rank has ended");
        for (uint32_t rank = rendezvous->comm->rank + 1; rank < ranks; rank++) {
            status = dialed_step(rendezvous, rank);
            if (status != WEFT_OK) return weft_error_set(error, status, "rank %u has ended or refuses", rank);
        }
        if (rendezvous->connected_count == ranks - 1) break;
        if (weft_now_ns(env()) < limit_ns) {
            poll(NULL, 0, POLL_MS);
            continue;
        }
        uint32_t missing = 0;
        while (missing == rendezvous->comm->rank || rendezvous->is_connected[missing]) missing++;
        return weft_error_set(error, WEFT_ERR_DEADLINE, "rank %u of %u has not connected in time", missing,
                              ranks);
    }
    return WEFT_OK;
}

static uint64_t patience(void)
{
    return net_process()->deadline_ns < COLL_CONNECT_NS ? net_process()->deadline_ns : COLL_CONNECT_NS;
}

static enum weft_status rendezvous_hold(struct coll_comm *comm, void *handles[], void *listener,
                                        struct weft_error *error)
{
    struct rendezvous rendezvous = {
        .comm = comm, .listener = net_listener_identity(listener), .listener_handle = listener};
    uint32_t places = comm->ranks + UNPROVEN_MAX;
    rendezvous.dialed = weft_alloc_zero(env(), comm->ranks * sizeof *rendezvous.dialed);
    rendezvous.accepted = weft_alloc_zero(env(), places * sizeof *rendezvous.accepted);
    rendezvous.is_connected = weft_alloc_zero(env(), comm->ranks * sizeof *rendezvous.is_connected);
    enum weft_status status = WEFT_ERR_NO_MEMORY;
    if (rendezvous.dialed && rendezvous.accepted && rendezvous.is_connected)
        status = weft_transport_address(comm->transport, &rendezvous.blob, &rendezvous.blob_bytes);
    if (status == WEFT_OK)
        status = rendezvous_run(&rendezvous, handles, weft_now_ns(env()) + patience(), error);
    for (uint32_t i = 0; rendezvous.dialed && i < comm->ranks; i++) link_end(&rendezvous.dialed[i]);
    for (uint32_t i = 0; rendezvous.accepted && i < places; i++) link_end(&rendezvous.accepted[i]);
    weft_free_bytes(env(), rendezvous.dialed);
    weft_free_bytes(env(), rendezvous.accepted);
    weft_free_bytes(env(), rendezvous.is_connected);
    return status;
}

static enum weft_status endpoint_open(struct coll_comm *comm, int device, const void *first_handle,
                                      struct weft_error *error)
{
    struct wire_handle first;
    uint8_t key[WEFT_HMAC_BYTES], secret[WEFT_HMAC_BYTES];
    enum weft_status status = wire_handle_decode(first_handle, &first);
    if (status != WEFT_OK) return weft_error_set(error, status, "rank 0 has no valid handle");
    WEFT_TRY(wire_key(first.secret, net_process()->secret, key));
    WEFT_TRY(wire_connection_secret(key, (const uint8_t[WIRE_SECRET_BYTES]){"CollNet"}, secret));
    struct net_endpoint_options options = {.device = device, .id = comm->rank + 1, .secret = secret};
    return net_endpoint_open(&options, &comm->transport, error);
}

enum nccl_result coll_connect(void *handles[], int ranks, int rank, void *listener, void **comm_out)
{
    struct weft_error error = {0};
    *comm_out = NULL;
    if (!listener || ranks < 1 || rank < 0 || rank >= ranks)
        return net_report(WEFT_ERR_STATE, "CollNet: connect as rank %d of %d", rank, ranks);
    struct coll_comm *comm = weft_alloc_zero(env(), sizeof *comm);
    if (!comm) return net_report(WEFT_ERR_NO_MEMORY, "CollNet: no memory for a communicator");
    comm->rank = (uint32_t)rank;
    comm->ranks = (uint32_t)ranks;
    pthread_mutex_init(&comm->lock, NULL);
    weft_list_init(&comm->free_requests);
    weft_list_init(&comm->open_requests);
    weft_list_init(&comm->memories);
    enum weft_status status =
        endpoint_open(comm, net_listener_identity(listener)->device, handles[0], &error);
    if (status == WEFT_OK) status = rendezvous_hold(comm, handles, listener, &error);
    if (status == WEFT_OK) status = coll_group_create(comm, &error);
    if (status == WEFT_OK)
        status = coll_fleet_open(comm, net_listener_identity(listener)->device, patience(), &error);
    if (status == WEFT_OK) {
        *comm_out = comm;
        return NCCL_RESULT_SUCCESS;
    }
    coll_comm_free(comm);
    return net_report(status, "CollNet: rank %d of %d falls back to NCCL's own algorithms: %s", rank, ranks,
                      error.text);
}
