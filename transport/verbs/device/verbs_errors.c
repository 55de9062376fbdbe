/* verbs_errors.c - errors of the wire and the device, as status and as a sentence with advice. */
#include <stdio.h>
#include <string.h>

#include "transport/verbs/device/verbs_internal.h"

/* Devices report one mistake by different codes, so only the text depends on the exact code. */
static const struct {
    enum ibv_wc_status cause;
    enum weft_status status;
    bool rebuild; /* the path failed, not the program */
    const char *text;
} causes[] = {
    {IBV_WC_SUCCESS, WEFT_OK, false, "done"},
    {IBV_WC_WR_FLUSH_ERR, WEFT_ERR_CANCELLED, true, "flushed: the queue pair had broken before"},
    {IBV_WC_RETRY_EXC_ERR, WEFT_ERR_PEER_LOST, true,
     "no acknowledgement after all retries: the peer's process, its host or the link is down, or the "
     "path's MTU or "
     "priority does not fit"},
    {IBV_WC_RNR_RETRY_EXC_ERR, WEFT_ERR_PEER_LOST, true,
     "the peer has had no receive ready for too long: is it stopped?"},
    {IBV_WC_RESP_TIMEOUT_ERR, WEFT_ERR_PEER_LOST, true, "the peer's answer timed out"},
    {IBV_WC_REM_ABORT_ERR, WEFT_ERR_PEER_LOST, true, "the peer gave the operation up"},
    {IBV_WC_REM_ACCESS_ERR, WEFT_ERR_PEER_LOST, true,
     "the peer's device refused the key or address: it has taken its memory back, or a key was wrong"},
    {IBV_WC_REM_INV_REQ_ERR, WEFT_ERR_PEER_LOST, true, "the peer's device found the request invalid"},
    {IBV_WC_REM_OP_ERR, WEFT_ERR_PEER_LOST, true, "the peer's device could not do the operation"},
    {IBV_WC_REM_INV_RD_REQ_ERR, WEFT_ERR_PEER_LOST, true, "the peer's device refused a read"},
    {IBV_WC_LOC_LEN_ERR, WEFT_ERR_INTERNAL, false, "a message was longer than the device takes"},
    /* Soft-RoCE also reports this if it has no route for a packet because its link is down. */
    {IBV_WC_LOC_QP_OP_ERR, WEFT_ERR_PEER_LOST, true,
     "this device could not send: its link is down or it has no route any more (or the work request is "
     "inconsistent)"},
    {IBV_WC_LOC_EEC_OP_ERR, WEFT_ERR_INTERNAL, false, "this device found the work request inconsistent"},
    {IBV_WC_LOC_PROT_ERR, WEFT_ERR_INTERNAL, false, "memory of the work request is not registered here"},
    {IBV_WC_LOC_ACCESS_ERR, WEFT_ERR_INTERNAL, false, "the memory written to is not registered for it"},
    {IBV_WC_MW_BIND_ERR, WEFT_ERR_INTERNAL, false, "a memory window could not be bound"},
    {IBV_WC_BAD_RESP_ERR, WEFT_ERR_PEER_LOST, true, "the peer's device answered out of turn"},
    {IBV_WC_FATAL_ERR, WEFT_ERR_IO, true, "this device failed: see the kernel's log"},
    {IBV_WC_GENERAL_ERR, WEFT_ERR_IO, true, "this device failed: see the kernel's log"},
};

enum { CAUSES = sizeof causes / sizeof *causes };

static int row_of(enum ibv_wc_status cause)
{
    for (int i = 0; i < CAUSES; i++) {
        if (causes[i].cause == cause) return i;
    }
    return CAUSES - 1;
}

enum weft_status verbs_status_of(enum ibv_wc_status cause) { return causes[row_of(cause)].status; }
bool verbs_may_rebuild(enum ibv_wc_status cause) { return causes[row_of(cause)].rebuild; }

void verbs_completion_describe(const struct verbs_completion *completion, char *out, size_t bytes)
{
    const struct verbs_queue_pair *queue_pair = completion->queue_pair;
    const struct verbs_port *port = &queue_pair->rail->port;
    snprintf(out, bytes, "%s over %s port %u: %s (%s, vendor code %u)", queue_pair->peer, port->device,
             port->port, causes[row_of(completion->cause)].text, ibv_wc_status_str(completion->cause),
             completion->vendor);
}

/* ---- asynchronous events ---- */

static enum verbs_async_kind kind_of(enum ibv_event_type type)
{
    switch (type) {
    case IBV_EVENT_PORT_ERR: return VERBS_ASYNC_PORT_DOWN;
    case IBV_EVENT_PORT_ACTIVE: return VERBS_ASYNC_PORT_UP;
    case IBV_EVENT_GID_CHANGE:
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_PKEY_CHANGE:
    case IBV_EVENT_SM_CHANGE:
    case IBV_EVENT_CLIENT_REREGISTER: return VERBS_ASYNC_ADDRESS;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_PATH_MIG_ERR: return VERBS_ASYNC_QUEUE_PAIR;
    case IBV_EVENT_CQ_ERR:
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_DEVICE_FATAL: return VERBS_ASYNC_DEVICE;
    default: return VERBS_ASYNC_OTHER;
    }
}

static bool is_queue_pair_event(enum ibv_event_type type)
{
    return kind_of(type) == VERBS_ASYNC_QUEUE_PAIR || type == IBV_EVENT_COMM_EST ||
           type == IBV_EVENT_SQ_DRAINED || type == IBV_EVENT_PATH_MIG ||
           type == IBV_EVENT_QP_LAST_WQE_REACHED;
}

/* A device also reports events of its other ports. */
static bool is_of_other_port(const struct verbs_rail *rail, const struct ibv_async_event *event)
{
    enum verbs_async_kind kind = kind_of(event->event_type);
    return (kind == VERBS_ASYNC_PORT_DOWN || kind == VERBS_ASYNC_PORT_UP || kind == VERBS_ASYNC_ADDRESS) &&
           event->element.port_num != rail->port.port;
}

static void describe_event(const struct verbs_rail *rail, const struct ibv_async_event *event,
                           struct verbs_async *out)
{
    const char *advice = out->kind == VERBS_ASYNC_PORT_DOWN ? ": the link is down (cable, switch, interface)"
                         : out->kind == VERBS_ASYNC_DEVICE
                             ? ": the device cannot go on (see the kernel's log)"
                             : "";
    snprintf(out->text, sizeof out->text, "%s port %u: %s%s%s%s", rail->port.device, rail->port.port,
             ibv_event_type_str(event->event_type), out->queue_pair ? ", connection to " : "",
             out->queue_pair ? out->queue_pair->peer : "", advice);
}

bool verbs_rail_async(struct verbs_rail *rail, struct verbs_async *out)
{
    struct ibv_async_event event;
    while (ibv_get_async_event(rail->context, &event) == 0) {
        *out = (struct verbs_async){.kind = kind_of(event.event_type)};
        bool other = is_of_other_port(rail, &event);
        if (is_queue_pair_event(event.event_type))
            out->queue_pair = verbs_queue_pair_find(rail, event.element.qp->qp_num);
        ibv_ack_async_event(&event); /* destroying a queue pair waits for this */
        if (other || event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED) continue;
        describe_event(rail, &event, out);
        if (out->kind == VERBS_ASYNC_PORT_DOWN || out->kind == VERBS_ASYNC_DEVICE) rail->broken = true;
        if (out->kind == VERBS_ASYNC_PORT_UP) rail->broken = false;
        if (out->kind == VERBS_ASYNC_QUEUE_PAIR && out->queue_pair) verbs_queue_pair_break(out->queue_pair);
        return true;
    }
    return false;
}
