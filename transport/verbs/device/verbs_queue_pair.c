/* verbs_queue_pair.c - life of one queue pair: fresh, connected, broken, flushed, destroyed.
 *
 * A broken queue pair is never reused: a new one has another number and first packet number, so packets
 * and completions of the old one cannot be mistaken.
 *
 * Completions of one queue pair arrive in posting order, so a signalled request completes all before it.
 * `signals` stores `posted` at each signalled request; posted - retired is the fill of the send queue.
 *
 * When it breaks, every work request is flushed; a marker posted then is the last of them. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "transport/verbs/device/verbs_internal.h"

enum { READS_AT_ONCE = 16, RNR_TIMER_640_US = 12, RNR_FOR_EVER = 7, HOPS = 64 };

static enum ibv_mtu mtu_code(uint32_t bytes)
{
    return bytes >= 4096   ? IBV_MTU_4096
           : bytes >= 2048 ? IBV_MTU_2048
           : bytes >= 1024 ? IBV_MTU_1024
           : bytes >= 512  ? IBV_MTU_512
                           : IBV_MTU_256;
}

static uint8_t reads_at_once(int limit)
{
    return (uint8_t)(limit < 1 ? 1 : limit < READS_AT_ONCE ? limit : READS_AT_ONCE);
}

/* ---- create ---- */

static struct ibv_qp *make(struct verbs_rail *rail, struct ibv_qp_init_attr *attr)
{
    uint32_t wanted = rail->options.inline_bytes;
    for (;;) { /* the inline limit is found by trial */
        *attr = (struct ibv_qp_init_attr){
            .send_cq = rail->queue,
            .recv_cq = rail->queue,
            .srq = rail->receives,
            .qp_type = IBV_QPT_RC,
            .cap = {.max_send_wr = rail->options.send_depth + 1,
                    .max_send_sge = 1,
                    .max_inline_data = wanted},
        };
        struct ibv_qp *qp = ibv_create_qp(rail->domain, attr);
        if (qp || wanted == 0 || (errno != EINVAL && errno != ENOMEM)) return qp;
        wanted /= 2;
    }
}

static enum weft_status to_init(struct verbs_queue_pair *queue_pair, struct weft_error *error)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_INIT,
        .port_num = queue_pair->rail->port.port,
        .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
    };
    int failed = ibv_modify_qp(queue_pair->qp, &attr,
                               IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    if (!failed) return WEFT_OK;
    return (enum weft_status)weft_error_set(error, WEFT_ERR_IO, "%s port %u refuses a queue pair: %s",
                                            queue_pair->rail->port.device, queue_pair->rail->port.port,
                                            strerror(failed));
}

static enum weft_status cannot_create(const struct verbs_rail *rail, struct weft_error *error)
{
    int number = errno;
    if (number == EOVERFLOW || number == ENOSPC) {
        return (enum weft_status)weft_error_set(
            error, WEFT_ERR_LIMIT,
            "%s holds no more queue pairs of depth %u beside its %u: name a smaller depth", rail->port.device,
            rail->options.send_depth, rail->queue_pair_count);
    }
    return (enum weft_status)weft_error_set(
        error, number == ENOMEM ? WEFT_ERR_NO_MEMORY : WEFT_ERR_IO,
        "%s cannot make a queue pair beside its %u: %s (locked memory: ulimit -l; depth %u)",
        rail->port.device, rail->queue_pair_count, strerror(number), rail->options.send_depth);
}

enum weft_status verbs_queue_pair_create(struct verbs_rail *rail, const char *peer_name, void *owner,
                                         struct verbs_queue_pair **out, struct weft_error *error)
{
    if (rail->broken)
        return (enum weft_status)weft_error_set(error, WEFT_ERR_UNREACHABLE, "%s port %u is down",
                                                rail->port.device, rail->port.port);
    struct verbs_queue_pair *queue_pair = weft_alloc_zero(rail->env, sizeof *queue_pair);
    uint32_t depth = rail->options.send_depth;
    uint64_t *signals = weft_alloc_array(rail->env, depth + 1, sizeof *signals);
    enum weft_status status;
    if (!queue_pair || !signals) {
        status = (enum weft_status)weft_error_set(error, WEFT_ERR_NO_MEMORY,
                                                  "no memory for a queue pair to %s", peer_name);
        goto err_free;
    }
    status = WEFT_ERR_LIMIT;
    if (!verbs_queue_reserve(rail, depth + 1)) {
        status = cannot_create(rail, error);
        goto err_free;
    }
    struct ibv_qp_init_attr attr;
    struct ibv_qp *qp = make(rail, &attr);
    if (!qp) {
        status = cannot_create(rail, error);
        goto err_promise;
    }
    *queue_pair = (struct verbs_queue_pair){
        .rail = rail,
        .qp = qp,
        .owner = owner,
        .state = VERBS_FRESH,
        .number = qp->qp_num,
        .packet_number = (uint32_t)weft_random_u64(rail->env) & 0xffffff, /* a forged packet must guess it */
        .send_depth = depth,
        .inline_bytes = attr.cap.max_inline_data,
        .mtu_bytes = rail->port.mtu_bytes,
        .signal_every = depth / 4 > 0 ? depth / 4 : 1,
        .signals = signals,
    };
    snprintf(queue_pair->peer, sizeof queue_pair->peer, "%s", peer_name);
    status = to_init(queue_pair, error);
    if (status < 0) goto err_destroy;
    verbs_queue_pair_enter(queue_pair);
    *out = queue_pair;
    return WEFT_OK;

err_destroy:
    ibv_destroy_qp(qp);
err_promise:
    rail->queue_reserved -= depth + 1;
err_free:
    weft_free_bytes(rail->env, signals);
    weft_free_bytes(rail->env, queue_pair);
    return status;
}

void verbs_queue_pair_destroy(struct verbs_queue_pair *queue_pair)
{
    if (!queue_pair) return;
    struct verbs_rail *rail = queue_pair->rail;
    verbs_queue_pair_remove(queue_pair);
    int failed = ibv_destroy_qp(queue_pair->qp);
    if (failed) {
        weft_log(rail->env, WEFT_LOG_WARN, "transport", "%s does not let go of queue pair %u: %s",
                 rail->port.device, queue_pair->number, strerror(failed));
    }
    rail->queue_reserved -= queue_pair->send_depth + 1;
    weft_free_bytes(rail->env, queue_pair->signals);
    weft_free_bytes(rail->env, queue_pair);
}

/* ---- exchanged addresses ----
 * 0: 'W' 'Q', 2: version, 3: 1 on RoCE, 4: number, 8: first packet number, 12: MTU in bytes, 14: LID,
 * 16: GID, 32: concurrent reads */

enum { BLOB_VERSION = 1 };

void verbs_queue_pair_address(const struct verbs_queue_pair *queue_pair, uint8_t out[VERBS_ADDRESS_BYTES])
{
    const struct verbs_port *port = &queue_pair->rail->port;
    memset(out, 0, VERBS_ADDRESS_BYTES);
    out[0] = 'W';
    out[1] = 'Q';
    out[2] = BLOB_VERSION;
    out[3] = port->roce;
    put_le32(out + 4, queue_pair->number);
    put_le32(out + 8, queue_pair->packet_number);
    put_le16(out + 12, (uint16_t)port->mtu_bytes);
    put_le16(out + 14, port->lid);
    memcpy(out + 16, port->gid.raw, 16);
    out[32] = reads_at_once(queue_pair->rail->limits.max_qp_rd_atom);
}

/* Sets the destination of packets. InfiniBand addresses ports of its own subnet by LID alone. */
static void route(const struct verbs_rail *rail, const uint8_t *blob, struct ibv_ah_attr *out)
{
    const struct verbs_port *port = &rail->port;
    *out = (struct ibv_ah_attr){
        .dlid = get_le16(blob + 14), .sl = rail->options.service_level, .port_num = port->port};
    bool elsewhere = port->gid_index >= 0 && memcmp(blob + 16, port->gid.raw, 8) != 0;
    if (!port->roce && !elsewhere) return;
    out->is_global = 1;
    memcpy(out->grh.dgid.raw, blob + 16, 16);
    out->grh.sgid_index = (uint8_t)port->gid_index;
    out->grh.hop_limit = HOPS;
    out->grh.traffic_class = rail->options.traffic_class;
}

static enum weft_status check_blob(const struct verbs_queue_pair *queue_pair, const uint8_t *blob,
                                   size_t bytes, struct weft_error *error)
{
    const struct verbs_port *port = &queue_pair->rail->port;
    if (bytes < VERBS_ADDRESS_BYTES || blob[0] != 'W' || blob[1] != 'Q' || blob[2] != BLOB_VERSION ||
        blob[3] > 1 || get_le32(blob + 4) > 0xffffff || get_le32(blob + 8) > 0xffffff ||
        get_le16(blob + 12) < 256) {
        return (enum weft_status)weft_error_set(
            error, WEFT_ERR_MALFORMED, "%s sent an address that is none of a queue pair", queue_pair->peer);
    }
    if ((blob[3] == 1) != port->roce) {
        return (enum weft_status)weft_error_set(
            error, WEFT_ERR_UNSUPPORTED, "%s has %s, %s here is %s: name devices of one kind",
            queue_pair->peer, blob[3] ? "a RoCE port" : "an InfiniBand port", port->device,
            port->roce ? "RoCE" : "InfiniBand");
    }
    return WEFT_OK;
}

static enum weft_status cannot_connect(const struct verbs_queue_pair *queue_pair, int number,
                                       struct weft_error *error)
{
    const struct verbs_port *port = &queue_pair->rail->port;
    bool routeless =
        number == ETIMEDOUT || number == EHOSTUNREACH || number == ENETUNREACH || number == ENODATA;
    return (enum weft_status)weft_error_set(
        error, routeless ? WEFT_ERR_UNREACHABLE : WEFT_ERR_IO, "%s cannot connect to %s: %s%s", port->device,
        queue_pair->peer, strerror(number),
        routeless ? " (is there a route between the two GIDs' networks?)" : "");
}

enum weft_status verbs_queue_pair_connect(struct verbs_queue_pair *queue_pair, const void *blob, size_t bytes,
                                          struct weft_error *error)
{
    const uint8_t *address = blob;
    struct verbs_rail *rail = queue_pair->rail;
    if (queue_pair->state != VERBS_FRESH) {
        return (enum weft_status)weft_error_set(
            error, WEFT_ERR_STATE, "the queue pair to %s has been connected before", queue_pair->peer);
    }
    enum weft_status status = check_blob(queue_pair, address, bytes, error);
    if (status < 0) return status;
    uint32_t mtu = get_le16(address + 12);
    if (mtu < queue_pair->mtu_bytes) queue_pair->mtu_bytes = mtu;
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = mtu_code(queue_pair->mtu_bytes),
        .dest_qp_num = get_le32(address + 4),
        .rq_psn = get_le32(address + 8),
        .max_dest_rd_atomic = reads_at_once(rail->limits.max_qp_rd_atom),
        .min_rnr_timer = RNR_TIMER_640_US,
    };
    route(rail, address, &attr.ah_attr);
    int failed = ibv_modify_qp(queue_pair->qp, &attr,
                               IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    if (failed) return cannot_connect(queue_pair, failed, error);
    int reads =
        address[32] < rail->limits.max_qp_init_rd_atom ? address[32] : rail->limits.max_qp_init_rd_atom;
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTS,
        .timeout = rail->options.timeout,
        .retry_cnt = rail->options.retries,
        .rnr_retry = RNR_FOR_EVER, /* the peer reposts receives in its progress: it may just be busy */
        .sq_psn = queue_pair->packet_number,
        .max_rd_atomic = reads_at_once(reads),
    };
    failed = ibv_modify_qp(queue_pair->qp, &attr,
                           IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                               IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
    if (failed) return cannot_connect(queue_pair, failed, error);
    queue_pair->state = VERBS_CONNECTED;
    return WEFT_OK;
}

/* ---- posting ---- */

uint32_t verbs_queue_pair_space(const struct verbs_queue_pair *queue_pair)
{
    if (queue_pair->state != VERBS_CONNECTED) return 0;
    return queue_pair->send_depth - (uint32_t)(queue_pair->posted - queue_pair->retired);
}

void verbs_queue_pair_retire(struct verbs_queue_pair *queue_pair)
{
    WEFT_ASSERT(queue_pair->signal_count > 0);
    queue_pair->retired = queue_pair->signals[queue_pair->signal_head];
    queue_pair->signal_head = (queue_pair->signal_head + 1) % (queue_pair->send_depth + 1);
    queue_pair->signal_count--;
}

/* Counts one request and decides whether it is signalled. */
static bool note_posted(struct verbs_queue_pair *queue_pair, bool wanted)
{
    queue_pair->posted++;
    queue_pair->since_signal++;
    if (!wanted && queue_pair->since_signal < queue_pair->signal_every) return false;
    queue_pair->since_signal = 0;
    queue_pair
        ->signals[(queue_pair->signal_head + queue_pair->signal_count++) % (queue_pair->send_depth + 1)] =
        queue_pair->posted;
    queue_pair->rail->counters.signalled++;
    return true;
}

static void fill(const struct verbs_work *work, struct ibv_sge *piece, struct ibv_send_wr *request)
{
    static const enum ibv_wr_opcode opcodes[] = {[VERBS_WRITE] = IBV_WR_RDMA_WRITE,
                                                 [VERBS_WRITE_IMMEDIATE] = IBV_WR_RDMA_WRITE_WITH_IMM,
                                                 [VERBS_READ] = IBV_WR_RDMA_READ};
    *piece = (struct ibv_sge){.addr = (uintptr_t)work->local, .length = work->bytes, .lkey = work->lkey};
    *request = (struct ibv_send_wr){
        .wr_id = work->id,
        .sg_list = piece,
        .num_sge = work->bytes > 0,
        .opcode = opcodes[work->opcode],
        .send_flags = work->inlined ? IBV_SEND_INLINE : 0,
        .imm_data = htobe32(work->immediate),
        .wr.rdma = {.remote_addr = work->remote, .rkey = work->rkey},
    };
}

enum weft_status verbs_queue_pair_post(struct verbs_queue_pair *queue_pair, const struct verbs_work *works,
                                       uint32_t count)
{
    struct ibv_sge pieces[VERBS_POST_MAX];
    struct ibv_send_wr requests[VERBS_POST_MAX], *bad;
    WEFT_ASSERT(count > 0 && count <= VERBS_POST_MAX);
    if (queue_pair->state != VERBS_CONNECTED) return WEFT_ERR_STATE;
    if (verbs_queue_pair_space(queue_pair) < count) return WEFT_ERR_AGAIN;
    for (uint32_t i = 0; i < count; i++) {
        WEFT_ASSERT(works[i].id < VERBS_ID_MARKER);
        WEFT_ASSERT(!works[i].inlined || works[i].bytes <= queue_pair->inline_bytes);
        fill(&works[i], &pieces[i], &requests[i]);
        if (note_posted(queue_pair, works[i].signalled)) requests[i].send_flags |= IBV_SEND_SIGNALED;
        requests[i].next = i + 1 < count ? &requests[i + 1] : NULL;
    }
    queue_pair->rail->counters.work_requests += count;
    queue_pair->rail->counters.doorbells++;
    int failed = ibv_post_send(queue_pair->qp, requests, &bad);
    if (!failed) return WEFT_OK;
    weft_log(queue_pair->rail->env, WEFT_LOG_WARN, "transport", "%s refuses work for %s: %s",
             queue_pair->rail->port.device, queue_pair->peer, strerror(failed));
    verbs_queue_pair_break(queue_pair);
    return WEFT_ERR_IO;
}

/* ---- end ---- */

void verbs_queue_pair_break(struct verbs_queue_pair *queue_pair)
{
    if (queue_pair->broken) return;
    bool fresh = queue_pair->state == VERBS_FRESH;
    queue_pair->broken = true;
    queue_pair->state = VERBS_BROKEN;
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    int failed = ibv_modify_qp(queue_pair->qp, &attr, IBV_QP_STATE);
    struct ibv_send_wr marker = {.wr_id = VERBS_ID_MARKER,
                                 .opcode = IBV_WR_RDMA_WRITE,
                                 .send_flags = IBV_SEND_SIGNALED},
                       *bad;
    if (!failed && !fresh) failed = ibv_post_send(queue_pair->qp, &marker, &bad);
    /* Nothing was in flight, or the device is lost and accesses no memory. */
    if (failed || fresh) queue_pair->state = VERBS_FLUSHED;
}
