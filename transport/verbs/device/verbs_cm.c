/* verbs_cm.c - see verbs_cm.h. This backend owns the queue pairs: librdmacm carries the handshake and
 * supplies the attributes for their transitions. Its events arrive on one channel.
 *
 *  dialling: address resolved -> route resolved -> connect (token) ............ response -> ready, establish
 *  accepting:                              request (token known?) -> ready, accept -> established */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <rdma/rdma_cma.h>

#include "transport/verbs/device/verbs_cm.h"
#include "transport/verbs/device/verbs_internal.h"

enum { RESOLVE_MS = 2000, BACKLOG = 128, READS_AT_ONCE = 16, RNR_FOR_EVER = 7 };

/* One queue pair that connects or is connected. */
struct dialogue {
    struct weft_list link;
    struct verbs_queue_pair *queue_pair;
    struct rdma_cm_id *id;    /* accepting: NULL until the request arrives */
    bool dials, connected;
    uint8_t token[VERBS_CM_TOKEN_BYTES];
};

struct verbs_cm {
    struct verbs_rail *rail;
    struct rdma_event_channel *channel;
    struct rdma_cm_id *listener;
    struct weft_list dialogues;
    uint64_t refused;
};

/* ---- addresses: family, port, scope and IP of the rail's GID ---- */

union place {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    struct sockaddr_storage room;
};

static void place_of(const uint8_t gid[16], uint16_t port, uint32_t scope, union place *out)
{
    static const uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    memset(out, 0, sizeof *out);
    if (memcmp(gid, mapped, sizeof mapped) == 0) {
        out->v4.sin_family = AF_INET;
        out->v4.sin_port = htons(port);
        memcpy(&out->v4.sin_addr, gid + 12, 4);
    } else {
        out->v6.sin6_family = AF_INET6;
        out->v6.sin6_port = htons(port);
        out->v6.sin6_scope_id = scope;
        memcpy(&out->v6.sin6_addr, gid, 16);
    }
}

static uint32_t scope_of(const struct verbs_rail *rail)
{
    return rail->port.gid.raw[0] == 0xfe && rail->port.interface[0] ? if_nametoindex(rail->port.interface)
                                                                    : 0;
}

void verbs_cm_address(const struct verbs_cm *cm, uint8_t out[VERBS_CM_ADDRESS_BYTES])
{
    uint16_t port = rdma_get_src_port(cm->listener); /* network order */
    memset(out, 0, VERBS_CM_ADDRESS_BYTES);
    memcpy(out, "WC", 2);
    memcpy(out + 2, &port, 2);
    memcpy(out + 4, cm->rail->port.gid.raw, 16);
}

/* ---- open and close ---- */

static enum weft_status cannot_open(const struct verbs_rail *rail, const char *what, struct weft_error *error)
{
    int number = errno;
    enum weft_status status = number == ENOMEM ? WEFT_ERR_NO_MEMORY
                              : number == ENODEV || number == ENOENT || number == EADDRNOTAVAIL
                                  ? WEFT_ERR_UNSUPPORTED
                                  : WEFT_ERR_IO;
    return (enum weft_status)weft_error_set(error, status,
                                            "%s: the RDMA connection manager refuses %s: %s (module "
                                            "rdma_ucm; an IP address on the port; or connect=exchange)",
                                            rail->port.device, what, strerror(number));
}

enum weft_status verbs_cm_open(struct verbs_rail *rail, struct verbs_cm **out, struct weft_error *error)
{
    struct verbs_cm *cm = weft_alloc_zero(rail->env, sizeof *cm);
    union place here;
    enum weft_status status;
    if (!cm)
        return (enum weft_status)weft_error_set(error, WEFT_ERR_NO_MEMORY,
                                                "no memory for the connection manager");
    cm->rail = rail;
    weft_list_init(&cm->dialogues);
    if (!rail->port.roce) {
        errno = EADDRNOTAVAIL;
        status = cannot_open(rail, "an InfiniBand port by its GID", error);
        goto err;
    }
    cm->channel = rdma_create_event_channel();
    if (!cm->channel || fcntl(cm->channel->fd, F_SETFL, fcntl(cm->channel->fd, F_GETFL) | O_NONBLOCK) != 0) {
        status = cannot_open(rail, "an event channel", error);
        goto err;
    }
    place_of(rail->port.gid.raw, 0, scope_of(rail), &here);
    if (rdma_create_id(cm->channel, &cm->listener, NULL, RDMA_PS_TCP) != 0 ||
        rdma_bind_addr(cm->listener, &here.any) != 0 || rdma_listen(cm->listener, BACKLOG) != 0) {
        status = cannot_open(rail, "a listener", error);
        goto err;
    }
    *out = cm;
    return WEFT_OK;

err:
    verbs_cm_close(cm);
    return status;
}

static void end(struct verbs_cm *cm, struct dialogue *dialogue)
{
    weft_list_remove(&dialogue->link);
    if (dialogue->id) {
        if (dialogue->connected) rdma_disconnect(dialogue->id);
        rdma_destroy_id(dialogue->id);
    }
    memset(dialogue->token, 0, sizeof dialogue->token);
    weft_free_bytes(cm->rail->env, dialogue);
}

void verbs_cm_close(struct verbs_cm *cm)
{
    if (!cm) return;
    while (!weft_list_empty(&cm->dialogues)) end(cm, weft_list_first(&cm->dialogues, struct dialogue, link));
    if (cm->listener) rdma_destroy_id(cm->listener);
    if (cm->channel) rdma_destroy_event_channel(cm->channel);
    weft_free_bytes(cm->rail->env, cm);
}

int verbs_cm_fd(const struct verbs_cm *cm) { return cm->channel->fd; }
uint64_t verbs_cm_refused(const struct verbs_cm *cm) { return cm->refused; }

/* ---- dialogues ---- */

static struct dialogue *begin(struct verbs_cm *cm, struct verbs_queue_pair *queue_pair, bool dials)
{
    struct dialogue *dialogue = weft_alloc_zero(cm->rail->env, sizeof *dialogue);
    if (!dialogue) return NULL;
    dialogue->queue_pair = queue_pair;
    dialogue->dials = dials;
    weft_list_append(&cm->dialogues, &dialogue->link);
    return dialogue;
}

static struct dialogue *find_id(struct verbs_cm *cm, const struct rdma_cm_id *id)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &cm->dialogues) {
        struct dialogue *dialogue = weft_container_of(node, struct dialogue, link);
        if (dialogue->id == id) return dialogue;
    }
    return NULL;
}

void verbs_cm_drop(struct verbs_cm *cm, struct verbs_queue_pair *queue_pair)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &cm->dialogues) {
        struct dialogue *dialogue = weft_container_of(node, struct dialogue, link);
        if (dialogue->queue_pair == queue_pair) end(cm, dialogue);
    }
}

enum weft_status verbs_cm_expect(struct verbs_cm *cm, struct verbs_queue_pair *queue_pair,
                                 uint8_t token_out[VERBS_CM_TOKEN_BYTES])
{
    if (queue_pair->state != VERBS_FRESH) return WEFT_ERR_STATE;
    struct dialogue *dialogue = begin(cm, queue_pair, false);
    if (!dialogue) return WEFT_ERR_NO_MEMORY;
    for (size_t i = 0; i < VERBS_CM_TOKEN_BYTES; i += sizeof(uint64_t)) {
        uint64_t random = weft_random_u64(cm->rail->env);
        memcpy(dialogue->token + i, &random, sizeof random);
    }
    memcpy(token_out, dialogue->token, VERBS_CM_TOKEN_BYTES);
    return WEFT_OK;
}

enum weft_status verbs_cm_dial(struct verbs_cm *cm, struct verbs_queue_pair *queue_pair,
                               const uint8_t address[VERBS_CM_ADDRESS_BYTES],
                               const uint8_t token[VERBS_CM_TOKEN_BYTES], struct weft_error *error)
{
    uint16_t port;
    union place here, there;
    if (queue_pair->state != VERBS_FRESH) return WEFT_ERR_STATE;
    memcpy(&port, address + 2, 2);
    if (memcmp(address, "WC", 2) != 0 || port == 0) {
        return (enum weft_status)weft_error_set(error, WEFT_ERR_MALFORMED,
                                                "%s sent an address that is none of the connection manager",
                                                queue_pair->peer);
    }
    struct dialogue *dialogue = begin(cm, queue_pair, true);
    if (!dialogue)
        return (enum weft_status)weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for a connection to %s",
                                                queue_pair->peer);
    memcpy(dialogue->token, token, VERBS_CM_TOKEN_BYTES);
    place_of(cm->rail->port.gid.raw, 0, scope_of(cm->rail), &here);
    place_of(address + 4, ntohs(port), scope_of(cm->rail), &there);
    if (rdma_create_id(cm->channel, &dialogue->id, NULL, RDMA_PS_TCP) == 0 &&
        rdma_resolve_addr(dialogue->id, &here.any, &there.any, RESOLVE_MS) == 0) {
        return WEFT_OK;
    }
    int number = errno;
    end(cm, dialogue);
    return (enum weft_status)weft_error_set(error, WEFT_ERR_UNREACHABLE, "%s cannot look for %s: %s",
                                            cm->rail->port.device, queue_pair->peer, strerror(number));
}

/* ---- transitions of the queue pair ---- */

static bool same_port(const struct verbs_cm *cm, const struct rdma_cm_id *id)
{
    return id->verbs && id->port_num == cm->rail->port.port &&
           strcmp(ibv_get_device_name(id->verbs->device), cm->rail->port.device) == 0;
}

static bool move(const struct dialogue *dialogue, enum ibv_qp_state state)
{
    const struct verbs_options *options = &dialogue->queue_pair->rail->options;
    struct ibv_qp_attr attr = {.qp_state = state};
    int mask = 0;
    if (rdma_init_qp_attr(dialogue->id, &attr, &mask) != 0) return false;
    if (state == IBV_QPS_RTR) {
        attr.ah_attr.sl = options->service_level;
        attr.ah_attr.grh.traffic_class = options->traffic_class;
    }
    if (state == IBV_QPS_RTS) {
        attr.timeout = options->timeout;
        attr.retry_cnt = options->retries;
        attr.rnr_retry = RNR_FOR_EVER;
    }
    int failed = ibv_modify_qp(dialogue->queue_pair->qp, &attr, mask);
    errno = failed;
    return failed == 0;
}

static bool make_ready(struct dialogue *dialogue)
{
    if (!move(dialogue, IBV_QPS_RTR) || !move(dialogue, IBV_QPS_RTS)) return false;
    dialogue->queue_pair->state = VERBS_CONNECTED;
    return true;
}

static struct rdma_conn_param parameters(const struct dialogue *dialogue, bool with_token)
{
    const struct verbs_rail *rail = dialogue->queue_pair->rail;
    int reads = rail->limits.max_qp_rd_atom < READS_AT_ONCE ? rail->limits.max_qp_rd_atom : READS_AT_ONCE;
    return (struct rdma_conn_param){
        .private_data = with_token ? dialogue->token : NULL, /* at most 56 bytes */
        .private_data_len = with_token ? VERBS_CM_TOKEN_BYTES : 0,
        .responder_resources = (uint8_t)reads,
        .initiator_depth = (uint8_t)reads,
        .retry_count = rail->options.retries,
        .rnr_retry_count = RNR_FOR_EVER,
        .srq = 1,
        .qp_num = dialogue->queue_pair->number,
    };
}

/* The expected dialogue with this token. Compares every byte, in constant time. */
static struct dialogue *find_token(struct verbs_cm *cm, const uint8_t *token)
{
    struct dialogue *found = NULL;
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &cm->dialogues) {
        struct dialogue *dialogue = weft_container_of(node, struct dialogue, link);
        uint8_t differs = 0;
        for (int i = 0; i < VERBS_CM_TOKEN_BYTES; i++) differs |= dialogue->token[i] ^ token[i];
        if (!differs && !dialogue->dials && !dialogue->id) found = dialogue;
    }
    return found;
}

/* ---- events ---- each returns whether there is an event to report, in *out */

static bool report(struct verbs_cm_event *out, enum verbs_cm_kind kind, struct dialogue *dialogue,
                 enum weft_status status, const char *cause)
{
    const struct verbs_queue_pair *queue_pair = dialogue->queue_pair;
    *out = (struct verbs_cm_event){.kind = kind, .queue_pair = dialogue->queue_pair, .status = status};
    snprintf(out->text, sizeof out->text, "%s over %s port %u: %s", queue_pair->peer,
             queue_pair->rail->port.device, queue_pair->rail->port.port, cause);
    return true;
}

/* Ends the dialogue; its id is destroyed after its event was acknowledged. */
static bool fail(struct verbs_cm_event *out, struct dialogue *dialogue, enum weft_status status,
                 const char *cause)
{
    char text[160];
    snprintf(text, sizeof text, "the connection manager could not connect: %s", cause);
    return report(out, VERBS_CM_FAILED, dialogue, status, text);
}

/* Handles a connection request. Each request has a new id, which this side destroys. */
static bool on_request(struct verbs_cm *cm, struct rdma_cm_id *id, const uint8_t *token,
                       struct verbs_cm_event *out, struct rdma_cm_id **unexpected)
{
    struct dialogue *dialogue = token ? find_token(cm, token) : NULL;
    if (!dialogue || !same_port(cm, id)) {
        cm->refused++;
        rdma_reject(id, NULL, 0);
        *unexpected = id;
        return false;
    }
    dialogue->id = id;
    struct rdma_conn_param answer = parameters(dialogue, false);
    if (make_ready(dialogue) && rdma_accept(id, &answer) == 0) return false; /* ESTABLISHED follows */
    return fail(out, dialogue, WEFT_ERR_IO, strerror(errno));
}

static bool on_progress(struct dialogue *dialogue, enum rdma_cm_event_type type, struct verbs_cm_event *out)
{
    struct rdma_conn_param request = parameters(dialogue, true);
    bool fine = type == RDMA_CM_EVENT_ADDR_RESOLVED ? rdma_resolve_route(dialogue->id, RESOLVE_MS) == 0
                : type == RDMA_CM_EVENT_ROUTE_RESOLVED
                    ? rdma_connect(dialogue->id, &request) == 0
                    : make_ready(dialogue) && rdma_establish(dialogue->id) == 0;
    if (!fine) return fail(out, dialogue, WEFT_ERR_IO, strerror(errno));
    if (type != RDMA_CM_EVENT_CONNECT_RESPONSE) return false;
    dialogue->connected = true;
    return report(out, VERBS_CM_CONNECTED, dialogue, WEFT_OK, "connected");
}

static bool on_event(struct verbs_cm *cm, struct dialogue *dialogue, enum rdma_cm_event_type type, int status,
                     struct verbs_cm_event *out)
{
    switch (type) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
        if (!same_port(cm, dialogue->id))
            return fail(out, dialogue, WEFT_ERR_UNREACHABLE,
                        "its address is reached by another device or port");
        return on_progress(dialogue, type, out);
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
    case RDMA_CM_EVENT_CONNECT_RESPONSE: return on_progress(dialogue, type, out);
    case RDMA_CM_EVENT_ESTABLISHED:
        dialogue->connected = true;
        return report(out, VERBS_CM_CONNECTED, dialogue, WEFT_OK, "connected");
    case RDMA_CM_EVENT_ADDR_ERROR:
        return fail(out, dialogue, WEFT_ERR_UNREACHABLE, "its address is not found from here");
    case RDMA_CM_EVENT_ROUTE_ERROR:
        return fail(out, dialogue, WEFT_ERR_UNREACHABLE, "there is no route to it");
    case RDMA_CM_EVENT_UNREACHABLE: return fail(out, dialogue, WEFT_ERR_UNREACHABLE, "it does not answer");
    case RDMA_CM_EVENT_REJECTED:
        return fail(out, dialogue, WEFT_ERR_AUTH,
                    "it refused: nothing listens there, or the token is not (or no longer) good");
    case RDMA_CM_EVENT_CONNECT_ERROR:
        return fail(out, dialogue, WEFT_ERR_IO, strerror(status < 0 ? -status : status));
    case RDMA_CM_EVENT_DISCONNECTED:
        dialogue->connected = false;
        return report(out, VERBS_CM_DISCONNECTED, dialogue, WEFT_ERR_PEER_LOST,
                    "the connection manager reports that the peer has disconnected");
    case RDMA_CM_EVENT_DEVICE_REMOVAL:
        cm->rail->broken = true;
        return report(out, VERBS_CM_DISCONNECTED, dialogue, WEFT_ERR_PEER_LOST, "the device was removed");
    default: return false;
    }
}

bool verbs_cm_next(struct verbs_cm *cm, struct verbs_cm_event *event_out)
{
    struct rdma_cm_event *event;
    while (rdma_get_cm_event(cm->channel, &event) == 0) {
        enum rdma_cm_event_type type = event->event;
        struct rdma_cm_id *id = event->id, *unexpected = NULL;
        struct dialogue *dialogue = find_id(cm, id);
        bool has_event = false;
        if (type == RDMA_CM_EVENT_CONNECT_REQUEST) {
            const struct rdma_conn_param *param = &event->param.conn;
            bool whole = param->private_data && param->private_data_len >= VERBS_CM_TOKEN_BYTES;
            has_event = on_request(cm, id, whole ? param->private_data : NULL, event_out, &unexpected);
        } else if (dialogue) {
            has_event = on_event(cm, dialogue, type, event->status, event_out);
        }
        rdma_ack_cm_event(event); /* destroying an id waits for it */
        if (unexpected) rdma_destroy_id(unexpected);
        if (has_event) return true;
    }
    return false;
}
