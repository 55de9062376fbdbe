/* request.c - sends, receives and their completion.
 *
 *   isend --> one message, tag = NCCL's tag        irecv --> one posted receive for each buffer and its tag
 *   test  --> progress of the endpoint, then the request
 *
 * Messages with equal tags match in the order sent, and a group has one buffer for each of its sends, so the
 * first group receives its messages before the next one does. If the service thread holds the lock, a call
 * returns "again" or "not done": NCCL's progress thread never waits here. */
#include "nccl/net/net.h"

#include <limits.h>
#include <string.h>

#define CLOCK_EVERY_POLLS 64u /* polls of a connection between two checks of its deadline */

static uint64_t message_tag(int tag)
{
    return WEFT_TAG(WEFT_CHANNEL_NCCL, (uint32_t)tag);
}

bool net_request_is_pending(const struct net_comm *comm)
{
    for (const struct weft_list *node = comm->open_requests.next; node != &comm->open_requests;
         node = node->next)
        if (!weft_container_of(node, struct net_request, link)->is_done) return true;
    return false;
}

/* The request no longer refers to the registration, which is being freed. */
void net_request_forget(struct net_comm *comm, const struct net_memory *memory)
{
    struct weft_list *node, *spare;
    weft_list_foreach (node, spare, &comm->open_requests) {
        struct net_request *request = weft_container_of(node, struct net_request, link);
        for (int i = 0; i < request->count; i++)
            if (request->memories[i] == memory) request->memories[i] = NULL;
    }
}

static void request_completed(struct weft_completion *completion, enum weft_status status)
{
    struct net_request *request = weft_container_of(completion, struct net_request, completion);
    request->is_done = true;
    request->status = status;
}

static struct net_request *request_take(struct net_comm *comm, int count, void **memories)
{
    if (weft_list_empty(&comm->free_requests)) return NULL;
    struct net_request *request = weft_list_first(&comm->free_requests, struct net_request, link);
    weft_list_remove(&request->link);
    weft_list_append(&comm->open_requests, &request->link);
    request->is_done = false;
    request->count = count;
    for (int i = 0; i < count; i++) {
        request->memories[i] = memories ? memories[i] : NULL;
        if (request->memories[i]) request->memories[i]->open_count++;
    }
    weft_completion_init(&request->completion, (uint32_t)count, request_completed);
    return request;
}

static void request_release(struct net_request *request)
{
    struct net_comm *comm = request->comm;
    for (int i = 0; i < request->count; i++)
        if (request->memories[i]) request->memories[i]->open_count--;
    weft_list_remove(&request->link);
    weft_list_prepend(&comm->free_requests, &request->link);
}

/* ---- posting ---- */

static enum nccl_result post_send(struct net_comm *comm, void *data, size_t bytes, int tag, void *memory,
                                  void **request_out)
{
    if (comm->failed != NCCL_RESULT_SUCCESS) return comm->failed;
    struct net_request *request = request_take(comm, 1, &memory);
    if (!request) return NCCL_RESULT_SUCCESS;
    struct weft_message message = {
        .tag = message_tag(tag), .payload = bytes > 0 ? data : NULL, .payload_bytes = bytes};
    enum weft_status status = weft_transport_send(comm->peer, &message, &request->completion);
    if (status == WEFT_IN_PROGRESS) {
        request->send_bytes = bytes;
        *request_out = request;
        return NCCL_RESULT_SUCCESS;
    }
    request_release(request);
    if (status != WEFT_ERR_AGAIN) return net_comm_fail(comm, status, "a send was refused");
    weft_transport_progress(comm->transport, NET_PROGRESS_BUDGET);
    return NCCL_RESULT_SUCCESS;
}

enum nccl_result net_isend(void *comm, void *data, size_t bytes, int tag, void *memory, void *parent,
                           void **request_out)
{
    struct net_comm *own = comm;
    *request_out = NULL;
    if (!own->is_send || bytes > NCCL_NET_BYTES_MAX)
        return net_report(WEFT_ERR_STATE, "isend of %zu bytes on a %s connection", bytes,
                          own->is_send ? "sending" : "receiving");
    if (pthread_mutex_trylock(&own->lock) != 0) return NCCL_RESULT_SUCCESS;
    enum nccl_result result = post_send(own, data, bytes, tag, memory, request_out);
    pthread_mutex_unlock(&own->lock);
    return result;
}

static enum nccl_result post_receives(struct net_comm *comm, int count, void **data, const size_t *bytes,
                                      const int *tags, void **memories, void **request_out)
{
    if (comm->failed != NCCL_RESULT_SUCCESS) return comm->failed;
    struct net_request *request = request_take(comm, count, memories);
    if (!request) return NCCL_RESULT_SUCCESS;
    for (int i = 0; i < count; i++) {
        struct weft_receive *receive = &request->receives[i];
        receive->completion = &request->completion;
        receive->buffer = data[i];
        receive->buffer_bytes = bytes[i];
        receive->payload_bytes = 0;
        enum weft_status status = weft_transport_recv(comm->transport, weft_peer_id(comm->peer),
                                                      message_tag(tags ? tags[i] : 0), receive);
        if (status == WEFT_IN_PROGRESS) continue;
        if (i == 0 && status == WEFT_ERR_AGAIN) {
            request_release(request);
            return NCCL_RESULT_SUCCESS;
        }
        for (int left = i; left < count; left++) weft_completion_finish(&request->completion, status);
        break;
    }
    *request_out = request;
    return NCCL_RESULT_SUCCESS;
}

enum nccl_result net_irecv(void *comm, int count, void **data, size_t *bytes, int *tags, void **memories,
                           void **parents, void **request_out)
{
    struct net_comm *own = comm;
    *request_out = NULL; /* set also if NCCL offers to go without a completion */
    if (own->is_send || count < 1 || count > NCCL_RECVS_LIMIT)
        return net_report(WEFT_ERR_STATE, "irecv of %d buffers (1-%d) on a %s connection", count,
                          NCCL_RECVS_LIMIT, own->is_send ? "sending" : "receiving");
    if (pthread_mutex_trylock(&own->lock) != 0) return NCCL_RESULT_SUCCESS;
    enum nccl_result result = post_receives(own, count, data, bytes, tags, memories, request_out);
    pthread_mutex_unlock(&own->lock);
    return result;
}

/* ---- completion ---- */

/* Fails the connection if its sender has died before the first message, or if nothing has completed for
 * longer than the deadline. */
static enum nccl_result check_deadline(struct net_comm *comm)
{
    if (++comm->polls % CLOCK_EVERY_POLLS != 0) return NCCL_RESULT_SUCCESS;
    if (net_watch_shows_death(comm))
        return net_comm_fail(comm, WEFT_ERR_PEER_LOST, "the rank has ended before its first message");
    struct net_process *process = net_process();
    uint64_t now_ns = weft_now_ns(&process->env);
    if (comm->waiting_ns == 0) comm->waiting_ns = now_ns;
    if (now_ns - comm->waiting_ns < process->deadline_ns) return NCCL_RESULT_SUCCESS;
    return net_comm_fail(comm, WEFT_ERR_DEADLINE, "nothing completed within nccl.deadline");
}

static enum nccl_result request_result(struct net_request *request, int *bytes_out)
{
    struct net_comm *comm = request->comm;
    if (request->status == WEFT_ERR_TRUNCATED)
        return net_report(WEFT_ERR_TRUNCATED, "a message of %s is longer than its receive of %zu bytes",
                          comm->peer_name, request->receives[0].buffer_bytes);
    if (request->status < 0) {
        if (comm->failed == NCCL_RESULT_SUCCESS)
            comm->failed = net_report(request->status, "the connection with %s is lost: %s", comm->peer_name,
                                      comm->lost_text);
        return comm->failed;
    }
    comm->waiting_ns = 0;
    net_watch_end(comm);
    for (int i = 0; bytes_out && i < request->count; i++) {
        size_t bytes = request->receives ? request->receives[i].payload_bytes : request->send_bytes;
        bytes_out[i] = bytes > INT_MAX ? INT_MAX : (int)bytes;
    }
    return NCCL_RESULT_SUCCESS;
}

/* NCCL calls test only while a request is open, and only test progresses the endpoint. So a request completes
 * only after the transport has passed on all messages of complete requests. */
static bool is_complete(const struct net_request *request)
{
    const struct net_comm *comm = request->comm;
    return request->is_done && (request->status < 0 || comm->failed != NCCL_RESULT_SUCCESS ||
                                !comm->transport || weft_transport_is_flushed(comm->transport));
}

static enum nccl_result test_locked(struct net_request *request, int *is_done_out, int *bytes_out)
{
    struct net_comm *comm = request->comm;
    if (!is_complete(request) && comm->transport)
        weft_transport_progress(comm->transport, NET_PROGRESS_BUDGET);
    if (!is_complete(request))
        return comm->failed != NCCL_RESULT_SUCCESS ? comm->failed : check_deadline(comm);
    enum nccl_result result = request_result(request, bytes_out);
    *is_done_out = result == NCCL_RESULT_SUCCESS;
    request_release(request);
    return result;
}

enum nccl_result net_test(void *request, int *is_done_out, int *bytes_out)
{
    struct net_request *own = request;
    *is_done_out = 0;
    if (!own) return net_report(WEFT_ERR_STATE, "test without a request");
    struct net_comm *comm = own->comm;
    if (pthread_mutex_trylock(&comm->lock) != 0) return NCCL_RESULT_SUCCESS;
    enum nccl_result result = test_locked(own, is_done_out, bytes_out);
    pthread_mutex_unlock(&comm->lock);
    return result;
}
