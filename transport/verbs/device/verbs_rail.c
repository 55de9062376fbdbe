/* verbs_rail.c - one open port: poll, sleep and asynchronous events.
 *
 * One completion queue serves everything. It must not overflow (that kills the device context), so it has
 * an entry for every receive and every work request that can be in flight, and grows when a queue pair
 * joins. The channel wakes a sleeper once per arm; while polling no event is requested and no system call
 * is made. */
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transport/verbs/device/verbs_internal.h"

enum { POLL_BATCH = 16, RECEIVE_BATCH = 64, EVENTS_ACKNOWLEDGED_AT = 64, QUEUE_SPARE = 256 };

static bool set_nonblocking(int fd)
{
    int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0;
}

/* ---- open ---- */

static struct ibv_context *open_device(const char *name)
{
    int count = 0;
    struct ibv_device **devices = ibv_get_device_list(&count);
    struct ibv_context *context = NULL;
    for (int i = 0; devices && i < count; i++) {
        if (strcmp(ibv_get_device_name(devices[i]), name) == 0) context = ibv_open_device(devices[i]);
    }
    if (devices) ibv_free_device_list(devices);
    return context;
}

static enum weft_status set_failure(struct verbs_rail *rail, const char *what, struct weft_error *error)
{
    int number = errno;
    enum weft_status status = number == ENOMEM                      ? WEFT_ERR_NO_MEMORY
                              : number == EPERM || number == EACCES ? WEFT_ERR_UNSUPPORTED
                                                                    : WEFT_ERR_IO;
    const char *advice = number == ENOMEM ? ": too little locked memory (ulimit -l) or device memory" : "";
    return (enum weft_status)weft_error_set(error, status, "%s: cannot make a %s: %s%s", rail->port.device,
                                            what, strerror(number), advice);
}

static uint32_t smaller_positive(uint32_t a, int64_t b)
{
    return b > 0 && (int64_t)a > b ? (uint32_t)b : a;
}

static enum weft_status open_queues(struct verbs_rail *rail, struct weft_error *error)
{
    rail->options.receive_depth = smaller_positive(
        smaller_positive(rail->options.receive_depth, rail->limits.max_srq_wr), rail->limits.max_cqe / 2);
    rail->options.send_depth = smaller_positive(rail->options.send_depth, rail->limits.max_qp_wr - 1);
    rail->queue_reserved = rail->options.receive_depth;
    rail->channel = ibv_create_comp_channel(rail->context);
    if (!rail->channel || !set_nonblocking(rail->channel->fd))
        return set_failure(rail, "completion channel", error);
    int capacity = (int)smaller_positive(rail->queue_reserved + QUEUE_SPARE, rail->limits.max_cqe);
    rail->queue = ibv_create_cq(rail->context, capacity, rail, rail->channel, 0);
    if (!rail->queue) return set_failure(rail, "completion queue", error);
    rail->queue_capacity = (uint32_t)rail->queue->cqe;
    struct ibv_srq_init_attr receives = {.attr = {.max_wr = rail->options.receive_depth, .max_sge = 1}};
    rail->receives = ibv_create_srq(rail->domain, &receives);
    if (!rail->receives) return set_failure(rail, "shared receive queue", error);
    rail->receive_missing = rail->options.receive_depth;
    if (!verbs_receives_fill(rail)) return set_failure(rail, "set of receives", error);
    return WEFT_OK;
}

static enum weft_status rail_open(struct verbs_rail *rail, struct weft_error *error)
{
    rail->context = open_device(rail->port.device);
    if (!rail->context || !set_nonblocking(rail->context->async_fd))
        return set_failure(rail, "device context", error);
    int failed = ibv_query_device(rail->context, &rail->limits);
    if (failed) {
        errno = failed;
        return set_failure(rail, "query of the device's limits", error);
    }
    rail->domain = ibv_alloc_pd(rail->context);
    if (!rail->domain) return set_failure(rail, "protection domain", error);
    rail->bucket_count = 256;
    rail->buckets = weft_alloc_zero(rail->env, rail->bucket_count * sizeof *rail->buckets);
    if (!rail->buckets)
        return (enum weft_status)weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for the rail over %s",
                                                rail->port.device);
    return open_queues(rail, error);
}

void verbs_rail_close(struct verbs_rail *rail)
{
    WEFT_ASSERT(rail->queue_pair_count == 0);
    if (rail->receives) ibv_destroy_srq(rail->receives);
    if (rail->queue && rail->events_unacknowledged)
        ibv_ack_cq_events(rail->queue, rail->events_unacknowledged);
    if (rail->queue) ibv_destroy_cq(rail->queue);
    if (rail->channel) ibv_destroy_comp_channel(rail->channel);
    if (rail->domain) ibv_dealloc_pd(rail->domain);
    if (rail->context) ibv_close_device(rail->context);
    weft_free_bytes(rail->env, rail->buckets);
    memset(rail, 0, sizeof *rail);
}

/* "mlx5_0:1", "mlx5_0" or "eth0". */
static bool names_port(const char *name, const struct verbs_port *port)
{
    const char *colon = strchr(name, ':');
    size_t bytes = colon ? (size_t)(colon - name) : strlen(name);
    bool device = strlen(port->device) == bytes && memcmp(port->device, name, bytes) == 0;
    if (device && colon) return port->port == (unsigned)strtoul(colon + 1, NULL, 10);
    return device || (!colon && port->interface[0] && strcmp(port->interface, name) == 0);
}

/* Writes the available ports into `text`, for the error sentence. */
static void list_ports(const struct verbs_port *ports, uint32_t count, char *text, size_t bytes)
{
    size_t at = 0;
    for (uint32_t i = 0; i < count && at < bytes; i++) {
        char one[256];
        verbs_port_describe(&ports[i], one, sizeof one);
        at += (size_t)snprintf(text + at, bytes - at, "%s%s", i ? "; " : "", one);
    }
    if (count == 0) snprintf(text, bytes, "this machine has no RDMA device");
}

/* Chooses the ports to open, in the order named or by preference; returns how many. */
static enum weft_status choose(const struct verbs_options *options, const struct verbs_port *ports,
                               uint32_t count, const struct verbs_port **chosen, uint32_t *chosen_out,
                               struct weft_error *error)
{
    char there[300], list[sizeof options->devices];
    uint32_t picked = 0;
    list_ports(ports, count, there, sizeof there);
    memcpy(list, options->devices, sizeof list);
    char *rest = list, *name;
    while ((name = strtok_r(rest, ", ", &rest))) {
        const struct verbs_port *found = NULL;
        for (uint32_t i = 0; i < count && !found; i++) {
            if (names_port(name, &ports[i])) found = &ports[i]; /* usable ports are first */
        }
        if (!found)
            return (enum weft_status)weft_error_set(
                error, WEFT_ERR_NOT_FOUND, "there is no RDMA device or port '%s'; there is: %s", name, there);
        if (!found->usable)
            return (enum weft_status)weft_error_set(error, WEFT_ERR_NOT_FOUND, "%s cannot be used: %s",
                                                    found->device, found->why_not);
        if (picked == VERBS_RAILS_MAX)
            return (enum weft_status)weft_error_set(error, WEFT_ERR_LIMIT, "at most %d rails can be named",
                                                    VERBS_RAILS_MAX);
        chosen[picked++] = found;
    }
    for (uint32_t i = 0; i < count && !options->devices[0] && picked < options->rails; i++) {
        if (ports[i].usable && (picked == 0 || ports[i].roce == chosen[0]->roce))
            chosen[picked++] = &ports[i];
    }
    if (picked == 0)
        return (enum weft_status)weft_error_set(error, WEFT_ERR_NOT_FOUND, "no RDMA port can be used: %s",
                                                there);
    *chosen_out = picked;
    return WEFT_OK;
}

enum weft_status verbs_rails_open(struct weft_env *env, const struct verbs_options *options,
                                  struct verbs_rail *rails, uint32_t *count_out, struct weft_error *error)
{
    struct verbs_port *ports;
    const struct verbs_port *chosen[VERBS_RAILS_MAX];
    uint32_t count, picked = 0, opened = 0;
    enum weft_status status = verbs_ports_list(env, options, &ports, &count);
    if (status < 0)
        return (enum weft_status)weft_error_set(error, status, "no memory for the list of RDMA ports");
    status = choose(options, ports, count, chosen, &picked, error);
    for (; status == WEFT_OK && opened < picked; opened++) {
        rails[opened] =
            (struct verbs_rail){.env = env, .options = *options, .port = *chosen[opened], .index = opened};
        status = rail_open(&rails[opened], error);
    }
    weft_free_bytes(env, ports);
    if (status == WEFT_OK) {
        *count_out = picked;
        return WEFT_OK;
    }
    while (opened > 0) verbs_rail_close(&rails[--opened]);
    return status;
}

void verbs_rail_memory(const struct verbs_rail *rail, uint64_t *own_out, uint64_t *queue_pair_out)
{
    uint64_t receive_bytes = 32, completion_bytes = 64,
             request_bytes = 64 + (uint64_t)rail->options.inline_bytes;
    *own_out = sizeof *rail + rail->bucket_count * sizeof *rail->buckets +
               rail->options.receive_depth * receive_bytes + rail->queue_capacity * completion_bytes;
    *queue_pair_out =
        sizeof(struct verbs_queue_pair) +
        (rail->options.send_depth + 1ull) * (request_bytes + sizeof(uint64_t) + completion_bytes);
}

/* Reserves completion queue entries for a new queue pair. */
bool verbs_queue_reserve(struct verbs_rail *rail, uint32_t completions)
{
    uint64_t needed = (uint64_t)rail->queue_reserved + completions;
    if (needed > (uint64_t)rail->limits.max_cqe) {
        errno = EOVERFLOW;
        return false;
    }
    if (needed > rail->queue_capacity) {
        int wanted =
            (int)(needed * 2 < (uint64_t)rail->limits.max_cqe ? needed * 2 : (uint64_t)rail->limits.max_cqe);
        int failed = ibv_resize_cq(rail->queue, wanted);
        if (failed) {
            errno = failed;
            return false;
        }
        rail->queue_capacity = (uint32_t)rail->queue->cqe;
    }
    rail->queue_reserved += completions;
    return true;
}

/* ---- receives ---- */

/* Reposts consumed receives, many with one doorbell. */
bool verbs_receives_fill(struct verbs_rail *rail)
{
    struct ibv_recv_wr requests[RECEIVE_BATCH], *bad;
    while (rail->receive_missing > 0) {
        uint32_t count = rail->receive_missing < RECEIVE_BATCH ? rail->receive_missing : RECEIVE_BATCH;
        for (uint32_t i = 0; i < count; i++)
            requests[i] = (struct ibv_recv_wr){.wr_id = VERBS_ID_RECEIVE,
                                               .next = i + 1 < count ? &requests[i + 1] : NULL};
        int failed = ibv_post_srq_recv(rail->receives, requests, &bad);
        if (failed) {
            errno = failed;
            return false;
        }
        rail->receive_missing -= count;
        rail->counters.receive_doorbells++;
    }
    return true;
}

/* ---- completions ---- */

static struct verbs_queue_pair **bucket(const struct verbs_rail *rail, uint32_t number)
{
    return &rail->buckets[(number * 2654435761u >> 16) & (rail->bucket_count - 1)];
}

struct verbs_queue_pair *verbs_queue_pair_find(const struct verbs_rail *rail, uint32_t number)
{
    struct verbs_queue_pair *at = *bucket(rail, number);
    while (at && at->number != number) at = at->next;
    return at;
}

void verbs_queue_pair_enter(struct verbs_queue_pair *queue_pair)
{
    struct verbs_queue_pair **at = bucket(queue_pair->rail, queue_pair->number);
    queue_pair->next = *at;
    *at = queue_pair;
    queue_pair->rail->queue_pair_count++;
}

void verbs_queue_pair_remove(struct verbs_queue_pair *queue_pair)
{
    struct verbs_queue_pair **at = bucket(queue_pair->rail, queue_pair->number);
    while (*at && *at != queue_pair) at = &(*at)->next;
    WEFT_ASSERT(*at == queue_pair);
    *at = queue_pair->next;
    queue_pair->rail->queue_pair_count--;
}

/* True: the completion is for the caller. */
static bool translate(struct verbs_rail *rail, const struct ibv_wc *wc, struct verbs_completion *completion)
{
    struct verbs_queue_pair *queue_pair = verbs_queue_pair_find(rail, wc->qp_num);
    bool received = wc->wr_id == VERBS_ID_RECEIVE;
    if (received) rail->receive_missing++;
    if (!queue_pair) return false; /* its queue pair was destroyed meanwhile */
    if (wc->status == IBV_WC_SUCCESS && !received) verbs_queue_pair_retire(queue_pair);
    if (wc->status != IBV_WC_SUCCESS && !queue_pair->broken) verbs_queue_pair_break(queue_pair);
    if (wc->wr_id == VERBS_ID_MARKER) {
        queue_pair->state = VERBS_FLUSHED;
        queue_pair->retired = queue_pair->posted;
        return false;
    }
    /* Flushed receives of a shared queue belong to no queue pair. */
    if (received && wc->status == IBV_WC_WR_FLUSH_ERR) return false;
    *completion = (struct verbs_completion){
        .event = received ? VERBS_ARRIVED : VERBS_SENT,
        .queue_pair = queue_pair,
        .id = received ? 0 : wc->wr_id,
        .status = verbs_status_of(wc->status),
        .cause = wc->status,
        .vendor = wc->vendor_err,
    };
    if (received && wc->status == IBV_WC_SUCCESS) {
        completion->immediate = be32toh(wc->imm_data);
        completion->bytes = wc->byte_len;
    }
    return true;
}

int verbs_rail_poll(struct verbs_rail *rail, struct verbs_completion *completions, int max)
{
    struct ibv_wc found[POLL_BATCH];
    int count = 0;
    while (count < max) {
        int wanted = max - count < POLL_BATCH ? max - count : POLL_BATCH, got = 0;
        if (rail->has_lookahead) {
            found[got++] = rail->lookahead;
            rail->has_lookahead = false;
        } else {
            got = ibv_poll_cq(rail->queue, wanted, found);
            rail->counters.polls++;
            if (got < 0) return WEFT_ERR_IO;
        }
        if (got == 0) break;
        rail->counters.completions += (uint64_t)got;
        for (int i = 0; i < got; i++) count += translate(rail, &found[i], &completions[count]);
    }
    if (rail->receive_missing >= RECEIVE_BATCH || rail->receive_missing * 2 >= rail->options.receive_depth) {
        if (!verbs_receives_fill(rail)) return WEFT_ERR_IO;
    }
    return count;
}

/* ---- sleep ---- */

enum weft_status verbs_rail_arm(struct verbs_rail *rail)
{
    if (rail->has_lookahead) return WEFT_ERR_AGAIN;
    if (rail->armed) verbs_rail_woken(rail);
    if (!rail->armed) {
        if (ibv_req_notify_cq(rail->queue, 0) != 0) return WEFT_ERR_IO;
        rail->armed = true;
    }
    /* Completions before the arm cause no event. */
    rail->counters.polls++;
    int got = ibv_poll_cq(rail->queue, 1, &rail->lookahead);
    if (got < 0) return WEFT_ERR_IO;
    rail->has_lookahead = got > 0;
    return got > 0 ? WEFT_ERR_AGAIN : WEFT_OK;
}

void verbs_rail_woken(struct verbs_rail *rail)
{
    struct ibv_cq *queue;
    void *context;
    while (rail->armed && ibv_get_cq_event(rail->channel, &queue, &context) == 0) {
        rail->armed = false; /* one event per arm */
        rail->counters.events++;
        rail->events_unacknowledged++;
    }
    if (rail->events_unacknowledged >= EVENTS_ACKNOWLEDGED_AT) {
        ibv_ack_cq_events(rail->queue, rail->events_unacknowledged);
        rail->events_unacknowledged = 0;
    }
}

int verbs_rail_fd(const struct verbs_rail *rail) { return rail->channel->fd; }
int verbs_rail_async_fd(const struct verbs_rail *rail) { return rail->context->async_fd; }
