/* plain_plugin.c - the reference plugin "plain": one socket for each connection and nothing else.
 *
 * A message is its size (8 bytes) and its bytes; sends and receives are queues in the order posted. It is
 * the baseline of bandwidth and latency, and the plugin that every conformance point must accept. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/env.h"
#include "nccl/net/tables.h"

enum { QUEUE = 64, COOKIE_BYTES = 16, PLACES = 32, PENDING = 256 };

struct handle {
    uint8_t cookie[COOKIE_BYTES];
    struct sockaddr_in address;
    uint32_t magic;
};

struct request {
    struct comm *comm;
    char *data;
    size_t bytes, moved; /* moved: of size word and data */
    uint64_t size;       /* of the message */
    void *memory;
    bool is_used, is_done, is_short;
};

struct comm {
    int fd;
    bool is_send;
    enum nccl_result failed;
    struct request requests[QUEUE];
    uint64_t first, next; /* queue: first not done, next to post */
    uint64_t tested;
    pthread_mutex_t lock;
};

struct listener {
    int fd;
    uint8_t cookie[COOKIE_BYTES];
    struct {
        int fd;
        size_t got;
        uint8_t cookie[COOKIE_BYTES];
    } places[PLACES];
    int oldest;
};

struct pending { /* a connect that has begun */
    const void *handle;
    struct handle bytes;
    int fd; /* -1: free */
    size_t sent;
};
static struct pending pendings[PENDING];
static pthread_mutex_t pending_lock = PTHREAD_MUTEX_INITIALIZER;

static enum nccl_result init(void **context_out, uint64_t comm_id, struct nccl_config_v12 *config,
                             nccl_logger_fn logger, nccl_profiler_fn profiler)
{
    *context_out = malloc(1);
    return NCCL_RESULT_SUCCESS;
}

static enum nccl_result finalize(void *context)
{
    free(context);
    return NCCL_RESULT_SUCCESS;
}

static enum nccl_result devices(int *count_out)
{
    *count_out = 1;
    return NCCL_RESULT_SUCCESS;
}

static enum nccl_result get_properties(int device, struct nccl_properties_v12 *out)
{
    static char name[] = "lo";
    if (device != 0) return NCCL_RESULT_INTERNAL;
    *out = (struct nccl_properties_v12){.name = name,
                                        .guid = 1,
                                        .pointers = NCCL_POINTER_HOST,
                                        .speed = 10000,
                                        .port = 1,
                                        .max_comms = 1024,
                                        .max_recvs = 1,
                                        .members = {1, {0}},
                                        .max_p2p_bytes = NCCL_NET_BYTES_MAX,
                                        .max_coll_bytes = NCCL_NET_BYTES_MAX,
                                        .max_multi_request = 1,
                                        .rail_id = -1,
                                        .plane_id = -1};
    return NCCL_RESULT_SUCCESS;
}

static void cookie_make(uint8_t *out)
{
    for (int i = 0; i < COOKIE_BYTES; i += 8) {
        uint64_t word = weft_random_u64(weft_env_system());
        memcpy(out + i, &word, 8);
    }
}

static enum nccl_result listen_at(void *context, int device, void *handle_out, void **listener_out)
{
    struct listener *listener = calloc(1, sizeof *listener);
    struct handle handle = {.address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)},
                            .magic = 0x706c6e31};
    socklen_t bytes = sizeof handle.address;
    for (int i = 0; i < PLACES; i++) listener->places[i].fd = -1;
    cookie_make(listener->cookie);
    memcpy(handle.cookie, listener->cookie, COOKIE_BYTES);
    listener->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (listener->fd < 0 || bind(listener->fd, (struct sockaddr *)&handle.address, bytes) != 0 ||
        listen(listener->fd, 64) != 0 ||
        getsockname(listener->fd, (struct sockaddr *)&handle.address, &bytes) != 0) {
        if (listener->fd >= 0) close(listener->fd);
        free(listener);
        return NCCL_RESULT_SYSTEM;
    }
    memset(handle_out, 0, NCCL_HANDLE_BYTES);
    memcpy(handle_out, &handle, sizeof handle);
    *listener_out = listener;
    return NCCL_RESULT_SUCCESS;
}

static struct comm *comm_create(int fd, bool is_send)
{
    struct comm *comm = calloc(1, sizeof *comm);
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    comm->fd = fd;
    comm->is_send = is_send;
    pthread_mutex_init(&comm->lock, NULL);
    for (int i = 0; i < QUEUE; i++) comm->requests[i].comm = comm;
    return comm;
}

static bool is_later(ssize_t got)
{
    return got < 0 && (errno == EAGAIN || errno == EINTR);
}

static enum nccl_result accept_one(void *opaque, void **comm_out, struct nccl_device_handle **handle_out)
{
    struct listener *listener = opaque;
    *comm_out = NULL;
    for (int fd; (fd = accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0;) {
        int place = listener->oldest;
        for (int i = 0; i < PLACES; i++)
            if (listener->places[i].fd < 0) place = i;
        if (listener->places[place].fd >= 0) {
            close(listener->places[place].fd);
            listener->oldest = (listener->oldest + 1) % PLACES;
        }
        listener->places[place].fd = fd;
        listener->places[place].got = 0;
    }
    for (int i = 0; i < PLACES; i++) {
        if (listener->places[i].fd < 0) continue;
        size_t got = listener->places[i].got;
        ssize_t step = recv(listener->places[i].fd, listener->places[i].cookie + got, COOKIE_BYTES - got, 0);
        if (is_later(step)) continue;
        if (step > 0 && (listener->places[i].got += (size_t)step) < COOKIE_BYTES) continue;
        int fd = listener->places[i].fd;
        listener->places[i].fd = -1;
        if (step > 0 && memcmp(listener->places[i].cookie, listener->cookie, COOKIE_BYTES) == 0) {
            *comm_out = comm_create(fd, false);
            return NCCL_RESULT_SUCCESS;
        }
        close(fd);
    }
    return NCCL_RESULT_SUCCESS;
}

static enum nccl_result close_listen(void *opaque)
{
    struct listener *listener = opaque;
    for (int i = 0; i < PLACES; i++)
        if (listener->places[i].fd >= 0) close(listener->places[i].fd);
    close(listener->fd);
    free(listener);
    return NCCL_RESULT_SUCCESS;
}

static struct pending *pending_find(const void *handle, bool *is_new_out)
{
    struct pending *found = NULL;
    *is_new_out = false;
    for (int i = 0; i < PENDING && !found; i++)
        if (pendings[i].handle == handle && memcmp(&pendings[i].bytes, handle, sizeof(struct handle)) == 0)
            found = &pendings[i];
    for (int i = 0; i < PENDING && !found; i++) {
        if (pendings[i].handle) continue;
        found = &pendings[i];
        *is_new_out = true;
        memcpy(&found->bytes, handle, sizeof found->bytes);
        found->handle = handle;
        found->sent = 0;
        found->fd = -1;
    }
    return found;
}

static enum nccl_result connect_step(struct pending *pending, bool is_new, int *fd_out)
{
    if (is_new) {
        if (pending->bytes.magic != 0x706c6e31) return NCCL_RESULT_INTERNAL;
        pending->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (pending->fd < 0) return NCCL_RESULT_SYSTEM;
        if (connect(pending->fd, (struct sockaddr *)&pending->bytes.address, sizeof pending->bytes.address) !=
                0 &&
            errno != EINPROGRESS)
            return NCCL_RESULT_REMOTE;
    }
    ssize_t step =
        send(pending->fd, pending->bytes.cookie + pending->sent, COOKIE_BYTES - pending->sent, MSG_NOSIGNAL);
    if (is_later(step)) return NCCL_RESULT_SUCCESS;
    if (step < 0) return NCCL_RESULT_REMOTE;
    if ((pending->sent += (size_t)step) == COOKIE_BYTES) *fd_out = pending->fd;
    return NCCL_RESULT_SUCCESS;
}

static enum nccl_result connect_to(void *context, int device, void *handle, void **comm_out,
                                   struct nccl_device_handle **handle_out)
{
    bool is_new;
    int fd = -1;
    *comm_out = NULL;
    pthread_mutex_lock(&pending_lock);
    struct pending *pending = pending_find(handle, &is_new);
    enum nccl_result result = pending ? connect_step(pending, is_new, &fd) : NCCL_RESULT_SYSTEM;
    if (pending && (fd >= 0 || result != NCCL_RESULT_SUCCESS)) {
        if (fd < 0 && pending->fd >= 0) close(pending->fd);
        pending->handle = NULL;
    }
    pthread_mutex_unlock(&pending_lock);
    if (fd >= 0) *comm_out = comm_create(fd, true);
    return result;
}

static enum nccl_result reg_mr(void *comm, void *data, size_t bytes, int pointer, void **memory_out)
{
    *memory_out = malloc(1);
    return pointer == NCCL_POINTER_HOST ? NCCL_RESULT_SUCCESS : NCCL_RESULT_INTERNAL;
}

static enum nccl_result dereg_mr(void *opaque, void *memory)
{
    struct comm *comm = opaque;
    pthread_mutex_lock(&comm->lock);
    for (uint64_t i = comm->first; i < comm->next; i++)
        if (comm->requests[i % QUEUE].memory == memory) comm->failed = NCCL_RESULT_REMOTE;
    pthread_mutex_unlock(&comm->lock);
    free(memory);
    return NCCL_RESULT_SUCCESS;
}

/* ---- messages ---- */

/* Moves bytes of the first request. False: the socket has no more, or has ended. */
static bool move(struct comm *comm, struct request *request)
{
    size_t head = request->moved < 8 ? 8 - request->moved : 0;
    size_t at = request->moved > 8 ? request->moved - 8 : 0;
    size_t wanted = request->moved < 8 && !comm->is_send ? 0 : (size_t)request->size - at;
    struct iovec parts[2] = {{(char *)&request->size + (8 - head), head}, {request->data + at, wanted}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    ssize_t step = comm->is_send ? sendmsg(comm->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT)
                                 : recvmsg(comm->fd, &message, MSG_DONTWAIT);
    if (is_later(step)) return false;
    if (step <= 0) {
        comm->failed = NCCL_RESULT_REMOTE;
        return false;
    }
    request->moved += (size_t)step;
    if (!comm->is_send && request->moved >= 8 && request->size > request->bytes) {
        request->is_short = true;
        comm->failed = NCCL_RESULT_USAGE;
        return false;
    }
    return true;
}

static void progress(struct comm *comm)
{
    while (comm->first < comm->next && comm->failed == NCCL_RESULT_SUCCESS) {
        struct request *request = &comm->requests[comm->first % QUEUE];
        if (request->moved < 8 || request->moved < 8 + request->size)
            if (!move(comm, request)) return;
        if (request->moved < 8 || request->moved < 8 + request->size) continue;
        request->is_done = true;
        comm->first++;
    }
}

static enum nccl_result post(struct comm *comm, char *data, size_t bytes, void *memory, void **request_out)
{
    *request_out = NULL;
    if (pthread_mutex_trylock(&comm->lock) != 0) return NCCL_RESULT_SUCCESS;
    enum nccl_result result = comm->failed;
    struct request *request = &comm->requests[comm->next % QUEUE];
    if (result == NCCL_RESULT_SUCCESS && !request->is_used && comm->next - comm->first < NCCL_REQUESTS_MAX) {
        *request = (struct request){.comm = comm,
                                    .data = data,
                                    .bytes = bytes,
                                    .memory = memory,
                                    .size = comm->is_send ? bytes : 0,
                                    .is_used = true};
        comm->next++;
        progress(comm);
        *request_out = request;
    }
    pthread_mutex_unlock(&comm->lock);
    return result;
}

static enum nccl_result isend(void *comm, void *data, size_t bytes, int tag, void *memory, void *parent,
                              void **request_out)
{
    return post(comm, data, bytes, memory, request_out);
}

static enum nccl_result irecv(void *comm, int count, void **data, size_t *bytes, int *tags, void **memories,
                              void **parents, void **request_out)
{
    if (count != 1) return NCCL_RESULT_INTERNAL;
    return post(comm, data[0], bytes[0], memories ? memories[0] : NULL, request_out);
}

static enum nccl_result iflush(void *comm, int count, void **data, int *bytes, void **memories,
                               void **request_out)
{
    *request_out = NULL;
    return NCCL_RESULT_SUCCESS;
}

static enum nccl_result test(void *opaque, int *is_done_out, int *bytes_out)
{
    struct request *request = opaque;
    struct comm *comm = request->comm;
    *is_done_out = 0;
    if (pthread_mutex_trylock(&comm->lock) != 0) return NCCL_RESULT_SUCCESS;
    if (!request->is_done) progress(comm);
    enum nccl_result result = request->is_done ? NCCL_RESULT_SUCCESS : comm->failed;
    if (request->is_done) {
        *is_done_out = 1;
        if (bytes_out) bytes_out[0] = (int)request->size;
        request->is_used = false;
    }
    pthread_mutex_unlock(&comm->lock);
    return result;
}

static enum nccl_result close_comm(void *opaque)
{
    struct comm *comm = opaque;
    close(comm->fd);
    pthread_mutex_destroy(&comm->lock);
    free(comm);
    return NCCL_RESULT_SUCCESS;
}

NCCL_EXPORT const struct nccl_net_v12 ncclNetPlugin_v12 = {.name = NCCL_PLUGIN_NAME,
                                                           .init = init,
                                                           .devices = devices,
                                                           .get_properties = get_properties,
                                                           .listen = listen_at,
                                                           .connect = connect_to,
                                                           .accept = accept_one,
                                                           .reg_mr = reg_mr,
                                                           .dereg_mr = dereg_mr,
                                                           .isend = isend,
                                                           .irecv = irecv,
                                                           .iflush = iflush,
                                                           .test = test,
                                                           .close_send = close_comm,
                                                           .close_recv = close_comm,
                                                           .close_listen = close_listen,
                                                           .finalize = finalize};
