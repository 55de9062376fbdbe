/* wrap.c - fault and delay: a transport around another one, for tests and for links that are too good.
 *
 *   outer core ─ send ─► [vanish?] ─► [wait until due] ─► inner transport ═══ wire
 *   outer core ◄─ core_arrived ─ [wait until due] ◄─ [vanish?] ◄─ handler of every channel of the inner one
 *
 * The inner transport is a whole endpoint, used through the public face; the wrapper only decides, for
 * each message, whether it vanishes and when it goes on. With no parameters it changes nothing, and the
 * conformance suite holds for it.
 *
 * Vanishing. Transports are reliable, so one lost message is a broken connection that nobody has noticed:
 * from then on the peer is silent in both directions. Its sends are taken and never complete, its
 * messages never arrive, its death is not reported, until somebody above runs into a deadline and calls
 * weft_transport_fail_peer, or closes. kill does the same for all peers at once.
 *
 * Rate and delay. A send leaves when the endpoint's own link is free (rate_bytes per second) and travels
 * delay plus jitter; an arrival is let through when the link in has had time for its bytes. */
#include <stdio.h>
#include <string.h>

#include "transport/core/core.h"
#include "transport/wrap/wrap_ops.h"
#include "transport/wrap/wrap_options.h"

enum { HELD_MAX = 8192, FRAMING_BYTES = 64, RETRY_NS = 10000 };

struct wrap_op {
    struct core_done done; /* first */
    struct weft_completion inner;
    struct weft_transport *outer;
    struct weft_list link; /* wrap->leaving or wrap_peer->vanished while not with the inner transport */
    uint64_t due_ns;
    struct weft_message message;
    uint8_t header[WEFT_TRANSPORT_HEADER_BYTES_MAX];
};

struct wrap_arrival {
    struct core_arrival core; /* first */
    struct weft_arrival *inner;
    struct wrap_op op; /* its acceptance */
    uint64_t due_ns;
    struct weft_list link; /* wrap->arriving */
};

struct wrap_peer {
    struct weft_peer *inner;
    bool cut;
    struct weft_list vanished; /* struct wrap_op: nothing will happen to them by itself */
};

struct wrap {
    struct weft_transport *outer, *inner;
    struct wrap_options options;
    bool fault, killed;
    uint64_t random, message_count;
    uint64_t out_free_ns, out_due_ns, in_due_ns;
    uint32_t op_count;
    struct weft_list leaving, arriving, sunk;
};

static struct wrap *wrap_of(struct weft_transport *transport) { return transport->backend; }

/* splitmix64 */
static uint64_t next_random(struct wrap *wrap)
{
    uint64_t z = (wrap->random += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

/* One more message with this peer: does it get through? */
static bool passes(struct wrap *wrap, struct wrap_peer *peer)
{
    wrap->message_count++;
    if (wrap->options.kill_after > 0 && wrap->message_count > wrap->options.kill_after) wrap->killed = true;
    if (wrap->options.drop > 0 && (double)(next_random(wrap) >> 11) * 0x1p-53 < wrap->options.drop) peer->cut = true;
    return !wrap->killed && !peer->cut;
}

static uint64_t link_ns(const struct wrap *wrap, uint64_t bytes)
{
    return wrap->options.rate_bytes ? (uint64_t)((double)(bytes + FRAMING_BYTES) * 1e9 / (double)wrap->options.rate_bytes) : 0;
}

static uint64_t due_out(struct wrap *wrap, uint64_t bytes)
{
    uint64_t now_ns = weft_now_ns(wrap->outer->env);
    const struct wrap_options *options = &wrap->options;
    if (wrap->out_free_ns < now_ns) wrap->out_free_ns = now_ns;
    wrap->out_free_ns += link_ns(wrap, bytes);
    uint64_t due_ns = wrap->out_free_ns + options->delay_ns + (options->jitter_ns ? next_random(wrap) % options->jitter_ns : 0);
    if (wrap->out_due_ns < due_ns) wrap->out_due_ns = due_ns; /* the order stays */
    return wrap->out_due_ns;
}

static uint64_t due_in(struct wrap *wrap, uint64_t bytes)
{
    uint64_t now_ns = weft_now_ns(wrap->outer->env);
    wrap->in_due_ns += link_ns(wrap, bytes);
    if (wrap->in_due_ns < now_ns) wrap->in_due_ns = now_ns;
    return wrap->in_due_ns;
}

/* ---- operations ---- */

static void recycle_send(struct weft_transport *transport, struct core_done *done)
{
    wrap_of(transport)->op_count--;
    weft_free_bytes(transport->env, weft_container_of(done, struct wrap_op, done));
}

static void recycle_accept(struct weft_transport *transport, struct core_done *done)
{
    weft_free_bytes(transport->env, weft_container_of(done, struct wrap_arrival, op.done));
}

static void inner_done(struct weft_completion *completion, enum weft_status status)
{
    struct wrap_op *op = weft_container_of(completion, struct wrap_op, inner);
    struct wrap *wrap = wrap_of(op->outer);
    struct wrap_peer *peer = op->done.peer->backend;
    bool silent = (wrap->killed || peer->cut) && !wrap->outer->closed && op->done.peer->status == WEFT_OK;
    if (silent) weft_list_append(&peer->vanished, &op->link);
    else core_finish(op->outer, &op->done, status);
}

static void op_init(struct wrap_op *op, struct weft_transport *outer, struct weft_peer *peer, struct weft_completion *completion)
{
    op->done = (struct core_done){.peer = peer, .completion = completion, .recycle = recycle_send};
    op->outer = outer;
    weft_completion_init(&op->inner, 1, inner_done);
    weft_list_init(&op->link);
}

static enum weft_status wrap_send(struct weft_transport *transport, struct weft_peer *peer, const struct weft_message *message,
                                  struct weft_completion *completion)
{
    struct wrap *wrap = wrap_of(transport);
    struct wrap_peer *known = peer->backend;
    bool waits = wrap->options.delay_ns || wrap->options.jitter_ns || wrap->options.rate_bytes;
    if (wrap->op_count >= HELD_MAX) return WEFT_ERR_AGAIN;
    struct wrap_op *op = weft_alloc_bytes(transport->env, sizeof *op);
    if (!op) return WEFT_ERR_NO_MEMORY;
    op_init(op, transport, peer, completion);
    if (!waits && weft_list_empty(&wrap->leaving) && !wrap->killed && !known->cut) {
        /* Ask the inner transport first: a refused send is no message. */
        if (passes(wrap, known)) {
            enum weft_status status = weft_transport_send(known->inner, message, &op->inner);
            if (status != WEFT_IN_PROGRESS) {
                wrap->message_count--;
                weft_free_bytes(transport->env, op);
                return status;
            }
        } else {
            weft_list_append(&known->vanished, &op->link);
        }
    } else if (!passes(wrap, known)) {
        weft_list_append(&known->vanished, &op->link);
    } else {
        op->message = *message;
        op->message.header = op->header;
        if (message->header_bytes > 0) memcpy(op->header, message->header, message->header_bytes);
        op->due_ns = due_out(wrap, message->header_bytes + message->payload_bytes);
        weft_list_append(&wrap->leaving, &op->link);
        core_wake_at(transport, weft_list_first(&wrap->leaving, struct wrap_op, link)->due_ns);
    }
    wrap->op_count++;
    return WEFT_IN_PROGRESS;
}

/* Sends whose time has come. */
static int leave(struct wrap *wrap, int budget)
{
    int count = 0;
    while (count < budget && !weft_list_empty(&wrap->leaving)) {
        struct wrap_op *op = weft_list_first(&wrap->leaving, struct wrap_op, link);
        struct wrap_peer *peer = op->done.peer->backend;
        if (op->due_ns > weft_now_ns(wrap->outer->env)) break;
        if (wrap->killed || peer->cut) {
            weft_list_remove(&op->link);
            weft_list_append(&peer->vanished, &op->link);
            continue;
        }
        enum weft_status status = weft_transport_send(peer->inner, &op->message, &op->inner);
        if (status == WEFT_ERR_AGAIN) {
            op->due_ns = weft_now_ns(wrap->outer->env) + RETRY_NS;
            break;
        }
        weft_list_remove(&op->link);
        if (status != WEFT_IN_PROGRESS) core_finish(wrap->outer, &op->done, status);
        count++;
    }
    return count;
}

/* ---- arrivals ---- */

static void on_inner_arrival(void *context, struct weft_arrival *inner)
{
    struct wrap *wrap = context;
    struct weft_peer *peer = core_peer_find(wrap->outer, inner->peer_id);
    WEFT_ASSERT(peer && peer->backend); /* the inner transport keeps what comes before connect */
    struct wrap_arrival *arrival = passes(wrap, peer->backend) ? weft_alloc_bytes(wrap->outer->env, sizeof *arrival) : NULL;
    if (!arrival) { /* silent, or no memory: then it is lost as well, and a deadline will say so */
        ((struct wrap_peer *)peer->backend)->cut = true;
        weft_list_append(&wrap->sunk, &inner->link);
        return;
    }
    struct weft_arrival *face = &arrival->core.face;
    face->peer_id = inner->peer_id;
    face->tag = inner->tag;
    face->payload_bytes = inner->payload_bytes;
    face->header_bytes = inner->header_bytes;
    memcpy(face->header, inner->header, inner->header_bytes);
    arrival->core.whole = weft_container_of(inner, struct core_arrival, face)->whole;
    arrival->inner = inner;
    arrival->due_ns = due_in(wrap, inner->payload_bytes + inner->header_bytes);
    weft_list_append(&wrap->arriving, &arrival->link);
}

static int arrive(struct wrap *wrap, int budget)
{
    int count = 0;
    while (count < budget && !weft_list_empty(&wrap->arriving)) {
        struct wrap_arrival *arrival = weft_list_first(&wrap->arriving, struct wrap_arrival, link);
        if (arrival->due_ns > weft_now_ns(wrap->outer->env)) break;
        weft_list_remove(&arrival->link);
        count++;
        core_arrived(wrap->outer, &arrival->core);
    }
    return count;
}

static enum weft_status wrap_accept(struct weft_transport *transport, struct weft_arrival *face, void *buffer,
                                    struct weft_completion *completion)
{
    struct wrap *wrap = wrap_of(transport);
    struct wrap_arrival *arrival = weft_container_of(face, struct wrap_arrival, core.face);
    op_init(&arrival->op, transport, arrival->core.peer, completion);
    arrival->op.done.recycle = recycle_accept;
    enum weft_status status = weft_transport_accept(wrap->inner, arrival->inner, buffer, face->payload_bytes, &arrival->op.inner);
    if (status != WEFT_IN_PROGRESS) { /* the inner transport lost the peer and the outer is not told yet */
        weft_transport_discard(wrap->inner, arrival->inner);
        core_finish(transport, &arrival->op.done, status);
    }
    return WEFT_IN_PROGRESS;
}

static void wrap_discard(struct weft_transport *transport, struct weft_arrival *face)
{
    struct wrap_arrival *arrival = weft_container_of(face, struct wrap_arrival, core.face);
    weft_transport_discard(wrap_of(transport)->inner, arrival->inner);
    weft_free_bytes(transport->env, arrival);
}

/* ---- peers ---- */

/* What the peer said before it left goes up before the news that it has. */
static void flush_arriving(struct wrap *wrap, const struct weft_peer *peer)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &wrap->arriving) {
        struct wrap_arrival *arrival = weft_container_of(node, struct wrap_arrival, link);
        if (arrival->core.face.peer_id != peer->id) continue;
        weft_list_remove(node);
        core_arrived(wrap->outer, &arrival->core);
    }
}

static void inner_peer_failed(void *context, uint32_t peer_id, enum weft_status status, const char *text)
{
    struct wrap *wrap = context;
    struct weft_peer *peer = core_peer_find(wrap->outer, peer_id);
    if (!peer) return;
    struct wrap_peer *known = peer->backend;
    if (wrap->killed || known->cut) return; /* silence tells nothing */
    flush_arriving(wrap, peer);
    if (known->inner->left) core_peer_left(wrap->outer, peer, text);
    else core_peer_lost(wrap->outer, peer, status, text);
}

static enum weft_status wrap_connect(struct weft_transport *transport, struct weft_peer *peer, const void *blob, size_t bytes)
{
    struct wrap_peer *known = weft_alloc_zero(transport->env, sizeof *known);
    if (!known) return WEFT_ERR_NO_MEMORY;
    weft_list_init(&known->vanished);
    enum weft_status status = weft_transport_connect(wrap_of(transport)->inner, peer->id, blob, bytes, &known->inner);
    if (status < 0) {
        weft_free_bytes(transport->env, known);
        return status;
    }
    peer->backend = known;
    return WEFT_OK;
}

static void end_ops(struct weft_transport *transport, struct weft_list *ops, const struct weft_peer *peer, enum weft_status status)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, ops) {
        struct wrap_op *op = weft_container_of(node, struct wrap_op, link);
        if (peer && op->done.peer != peer) continue;
        weft_list_remove(node);
        core_finish(transport, &op->done, status);
    }
}

static void wrap_disconnect(struct weft_transport *transport, struct weft_peer *peer, enum weft_status status)
{
    struct wrap *wrap = wrap_of(transport);
    struct wrap_peer *known = peer->backend;
    end_ops(transport, &wrap->leaving, peer, status);
    end_ops(transport, &known->vanished, NULL, status);
    weft_transport_fail_peer(wrap->inner, peer->id, status, peer->text); /* ends what it has, with the same status */
}

static struct wrap *fault_of(struct weft_transport *transport)
{
    return transport->ops == &fault_transport_ops ? wrap_of(transport) : NULL;
}

enum weft_status weft_transport_fault_cut(struct weft_transport *transport, uint32_t peer_id)
{
    struct weft_peer *peer = weft_transport_peer(transport, peer_id);
    if (!fault_of(transport)) return WEFT_ERR_UNSUPPORTED;
    if (!peer) return WEFT_ERR_NOT_FOUND;
    ((struct wrap_peer *)peer->backend)->cut = true;
    return WEFT_OK;
}

enum weft_status weft_transport_fault_kill(struct weft_transport *transport)
{
    if (!fault_of(transport)) return WEFT_ERR_UNSUPPORTED;
    wrap_of(transport)->killed = true;
    return WEFT_OK;
}

/* ---- life ---- */

static enum weft_status wrap_open(struct weft_transport *transport, const struct weft_transport_options *options, struct weft_error *error)
{
    struct wrap *wrap = weft_alloc_zero(transport->env, sizeof *wrap);
    if (!wrap) return (enum weft_status)weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for a transport wrapper");
    wrap->outer = transport;
    wrap->fault = transport->ops == &fault_transport_ops;
    weft_list_init(&wrap->leaving);
    weft_list_init(&wrap->arriving);
    weft_list_init(&wrap->sunk);
    enum weft_status status = wrap_options_parse(options->wrap, wrap->fault, &wrap->options, error);
    struct weft_transport_options inner = *options;
    inner.backend = strchr(options->backend, ':') + 1;
    inner.wrap = NULL; /* the parameters are the outermost wrapper's */
    inner.peer_failed = inner_peer_failed;
    inner.peer_failed_context = wrap;
    if (status == WEFT_OK) status = weft_transport_open(transport->env, &inner, &wrap->inner, error);
    if (status < 0) {
        weft_free_bytes(transport->env, wrap);
        return status;
    }
    wrap->random = wrap->options.seed * 0x9e3779b97f4a7c15ull + options->id;
    for (int channel = 0; channel < CORE_CHANNELS; channel++) {
        weft_transport_handler(wrap->inner, (uint8_t)channel, on_inner_arrival, wrap);
    }
    snprintf(transport->name, sizeof transport->name, "%s:%.50s", transport->ops->name, weft_transport_name(wrap->inner));
    transport->backend = wrap;
    return WEFT_OK;
}

static enum weft_status wrap_address(struct weft_transport *transport, const void **blob_out, size_t *bytes_out)
{
    return weft_transport_address(wrap_of(transport)->inner, blob_out, bytes_out);
}

static void wrap_close(struct weft_transport *transport)
{
    struct wrap *wrap = wrap_of(transport);
    end_ops(transport, &wrap->leaving, NULL, WEFT_ERR_CLOSED);
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &transport->peers) {
        struct weft_peer *peer = weft_container_of(node, struct weft_peer, link);
        end_ops(transport, &((struct wrap_peer *)peer->backend)->vanished, NULL, WEFT_ERR_CLOSED);
    }
    while (!weft_list_empty(&wrap->arriving)) {
        struct wrap_arrival *arrival = weft_list_first(&wrap->arriving, struct wrap_arrival, link);
        weft_list_remove(&arrival->link);
        wrap_discard(transport, &arrival->core.face);
    }
    while (!weft_list_empty(&wrap->sunk)) {
        struct weft_arrival *inner = weft_list_first(&wrap->sunk, struct weft_arrival, link);
        weft_list_remove(&inner->link);
        weft_transport_discard(wrap->inner, inner);
    }
    weft_transport_close(wrap->inner);
}

static bool wrap_drained(struct weft_transport *transport) { return weft_transport_drained(wrap_of(transport)->inner); }

static void wrap_free(struct weft_transport *transport)
{
    struct wrap *wrap = wrap_of(transport);
    weft_transport_free(wrap->inner);
    while (!weft_list_empty(&transport->done)) { /* given up on: nobody will run these */
        struct core_done *done = weft_list_first(&transport->done, struct core_done, link);
        weft_list_remove(&done->link);
        done->recycle(transport, done);
    }
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &transport->peers) {
        weft_free_bytes(transport->env, weft_container_of(node, struct weft_peer, link)->backend);
    }
    weft_free_bytes(transport->env, wrap);
}

/* When this wrapper, or the one inside, wants to be looked at again. */
static void wake_next(struct wrap *wrap)
{
    if (!weft_list_empty(&wrap->leaving)) core_wake_at(wrap->outer, weft_list_first(&wrap->leaving, struct wrap_op, link)->due_ns);
    if (!weft_list_empty(&wrap->arriving)) core_wake_at(wrap->outer, weft_list_first(&wrap->arriving, struct wrap_arrival, link)->due_ns);
    if (wrap->inner->wake_ns == WEFT_NEVER) return;
    if (wrap->inner->wake_ns <= weft_now_ns(wrap->outer->env)) wrap->inner->wake_ns = WEFT_NEVER;
    else core_wake_at(wrap->outer, wrap->inner->wake_ns);
}

static int wrap_progress(struct weft_transport *transport, int budget)
{
    struct wrap *wrap = wrap_of(transport);
    int count = leave(wrap, budget);
    count += weft_transport_progress(wrap->inner, budget);
    count += arrive(wrap, budget);
    wake_next(wrap);
    return count;
}

static void wrap_count(struct weft_transport *transport)
{
    struct weft_transport_stats inner;
    weft_transport_stats(wrap_of(transport)->inner, &inner);
    transport->stats.refused_count = inner.refused_count;
}

static enum weft_status wrap_arm(struct weft_transport *transport)
{
    struct wrap *wrap = wrap_of(transport);
    uint64_t now_ns = weft_now_ns(transport->env);
    if (!weft_list_empty(&wrap->leaving) && weft_list_first(&wrap->leaving, struct wrap_op, link)->due_ns <= now_ns) return WEFT_ERR_AGAIN;
    if (!weft_list_empty(&wrap->arriving) && weft_list_first(&wrap->arriving, struct wrap_arrival, link)->due_ns <= now_ns) {
        return WEFT_ERR_AGAIN;
    }
    WEFT_TRY(core_arm(wrap->inner));
    wake_next(wrap);
    return WEFT_OK;
}

static int wrap_fd(struct weft_transport *transport)
{
    struct weft_transport *inner = wrap_of(transport)->inner;
    return inner->ops->fd(inner);
}

#define WRAP_OPS(the_name)                                                                                    \
    {                                                                                                         \
        .name = the_name, .open = wrap_open, .close = wrap_close, .drained = wrap_drained, .free = wrap_free, \
        .address = wrap_address, .connect = wrap_connect, .disconnect = wrap_disconnect, .send = wrap_send,   \
        .accept = wrap_accept, .discard = wrap_discard, .progress = wrap_progress,                            \
        .count = wrap_count, .arm = wrap_arm,                                                                 \
        .fd = wrap_fd,                                                                                        \
    }

const struct weft_transport_ops fault_transport_ops = WRAP_OPS("fault");
const struct weft_transport_ops delay_transport_ops = WRAP_OPS("delay");
