/* interpreter.c - runs the plan of one operation through a window of steps over the transport.
 *
 *     plan cursor ─► [tail ... head) of at most `window` steps ─► retired in order
 *
 * A step starts when two conditions hold: the step that it depends on is done or older than the window, and
 * no older step of the window still waits for the same peer and direction. Messages of a pair carry the
 * operation's tag and match in post order. A receive with a sum continues in state COMPUTING.
 *
 * Nothing here allocates, blocks or reads the clock. Sums run in units within the byte budget of the loop
 * step. A completion only marks its step and makes the operation ready; coll_advance does the work.
 *
 * coll_abort cancels the receives and lets the sends complete. The caller's buffers are free after that. */

#include "collective/core/interpreter.h"

#include "collective/core/control/peer_table.h"
#include "collective/core/group.h"
#include "collective/core/layout_hash.h"
#include "collective/core/op.h"
#include "collective/core/record/op_record.h"
#include "collective/core/record/straggler_time.h"
#include "collective/core/reduce_buffer.h"

#include <string.h>

static struct slot *slot_at(const struct weft_coll *coll, uint64_t number)
{
    const uint32_t window = coll->group->limits.window;
    /* avoids the division, which is slower than the rest of a short step */
    return (struct slot *)&coll->slots[number < window ? number : number % window];
}

static bool is_receive(enum weft_action_kind kind)
{
    return kind == WEFT_ACTION_RECV || kind == WEFT_ACTION_RECV_FOLD || kind == WEFT_ACTION_RECV_SUM;
}

/* ---- addresses ---- */
static const uint8_t *input_at(const struct weft_coll *coll, uint64_t elem)
{
    return coll->data.in + elem * coll->data.elem_bytes;
}
static uint8_t *output_at(const struct weft_coll *coll, uint64_t elem)
{
    return (uint8_t *)coll->args.out + elem * coll->data.elem_bytes;
}
static uint8_t *scratch_at(const struct weft_coll *coll, uint64_t elem)
{
    return coll->buffers.plan_scratch + elem * coll->data.scratch_elem_bytes;
}

static size_t message_elem_bytes(const struct weft_coll *coll, const struct weft_action *action)
{
    return action->wide ? coll->data.scratch_elem_bytes : coll->data.elem_bytes;
}

/* Elements received into wide scratch lie at the end of their space, so widening them forward overwrites
 * none unread. */
static uint8_t *scratch_received(const struct weft_coll *coll, const struct weft_action *action)
{
    return scratch_at(coll, action->scratch) +
           action->count * (coll->data.scratch_elem_bytes - message_elem_bytes(coll, action));
}

/* Elements of [first, first+count) that a piece of piece_bytes has. */
static uint64_t clip(uint64_t piece_bytes, uint64_t first, uint64_t count)
{
    if (first >= piece_bytes) return 0;
    return piece_bytes - first < count ? piece_bytes - first : count;
}

static size_t send_bytes(const struct weft_coll *coll, const struct weft_action *action)
{
    if (coll->args.kind == WEFT_COLL_ALL_GATHER_BYTES)
        return clip(coll->args.count, action->offset_in, action->count);
    if (coll->args.kind == WEFT_COLL_EXCHANGE_BYTES && action->count) {
        uint64_t piece = action->offset_in / coll->args.piece_bytes_max;
        return clip(coll->args.piece_bytes_in[piece], action->offset_in - piece * coll->args.piece_bytes_max,
                    action->count);
    }
    return action->count * message_elem_bytes(coll, action);
}

static const uint8_t *send_buffer(const struct weft_coll *coll, const struct weft_action *action)
{
    if (action->place == WEFT_PLACE_INPUT) return input_at(coll, action->offset_in);
    if (action->place == WEFT_PLACE_OUTPUT) return output_at(coll, action->offset);
    return scratch_received(coll, action); /* partials, or elements as received */
}

static uint8_t *receive_buffer(struct weft_coll *coll, const struct weft_action *action)
{
    switch (action->kind) {
    case WEFT_ACTION_RECV_FOLD:
        return reduce_buffer_slot(&coll->buffers.reduce_buffers[action->area],
                                  reduce_buffer_index(coll, action->peer));
    case WEFT_ACTION_RECV_SUM: return scratch_received(coll, action);
    default:
        if (action->count == 0) return NULL;
        return action->place == WEFT_PLACE_SCRATCH ? scratch_received(coll, action)
                                                   : output_at(coll, action->offset);
    }
}

/* ---- completions ---- */

const char *coll_title(const struct weft_coll *coll, uint64_t sequence, char out[48])
{
    if (sequence == WEFT_COLL_SEQUENCE_PAIR) snprintf(out, 48, "a %s", weft_coll_kind_name(coll->args.kind));
    else snprintf(out, 48, "operation %llu", (unsigned long long)sequence);
    return out;
}

enum { COUNT_TEXT_BYTES = 48 };

static void append(char *text, size_t text_bytes, const char *format, unsigned long long number)
{
    const size_t used = strlen(text);
    snprintf(text + used, text_bytes - used, format, number);
}

static void append_own_counts(const struct weft_coll *coll, char *own_call)
{
    const struct weft_plan_args *plan = &coll->steps.cursor.args;
    const size_t used = strlen(own_call);
    char counts[128];
    if (plan->displs_in) {
        coll_layout_format(plan->displs_in, coll->group->ranks, counts, sizeof counts);
        snprintf(own_call + used, COLL_CALL_BYTES - used, " (counts %s)", counts);
    } else if (plan->own_lengths) {
        append(own_call, COLL_CALL_BYTES, " (%llu elements in its piece)", coll->args.count);
    }
}

/* Call if the counts of pieces differ. Appends the counts that the hashes determine to both call texts, else
 * the own counts. `text` receives the name of the piece. Returns the text of what differs. */
static const char *describe_counts(const struct weft_coll *coll, const struct coll_header *own,
                                   const struct coll_header *theirs, const char *what, char *own_call,
                                   char *call, char text[COUNT_TEXT_BYTES])
{
    static const char of_piece[] = " (%llu elements in that piece)";
    const uint64_t *cuts = coll->steps.cursor.args.displs_in;
    const uint32_t ranks = coll->group->ranks;
    struct coll_layout_difference other = {0};
    if (own->cuts != coll->header.cuts) return what;
    if (cuts && !coll->steps.cursor.args.own_lengths &&
        coll_layout_find(cuts, ranks, own->cuts, theirs->cuts, &other)) {
        append(own_call, COLL_CALL_BYTES, of_piece, cuts[other.piece + 1] - cuts[other.piece]);
        append(call, COLL_CALL_BYTES, of_piece, other.count);
        snprintf(text, COUNT_TEXT_BYTES, "the count of rank %u's piece", other.piece);
        return text;
    }
    append_own_counts(coll, own_call);
    return what;
}

void coll_report_mismatch(struct weft_coll *coll, const struct coll_header *own, uint32_t peer,
                          const struct coll_header *theirs, const char *what)
{
    char name[128], own_name[128], call[COLL_CALL_BYTES], own_call[COLL_CALL_BYTES];
    struct weft_group *group = coll->group;
    group_describe(group, peer, name, sizeof name);
    group_describe(group, group->rank, own_name, sizeof own_name);
    group_describe_call(group, theirs, call, sizeof call);
    group_describe_call(group, own, own_call, sizeof own_call);
    char title[48], counts[COUNT_TEXT_BYTES];
    if ((what == coll_header_count || what == coll_header_cuts) && own->cuts != theirs->cuts)
        what = describe_counts(coll, own, theirs, what, own_call, call, counts);
    group_end(group, WEFT_ERR_MISMATCH, true, "%s differs in %s: %s called %s, %s called %s",
              coll_title(coll, own->sequence, title), what, name, call, own_name, own_call);
}

/* "the count of rank 1's piece", "the count of the piece from rank 0 to rank 1" */
static void describe_piece(const struct weft_coll *coll, uint32_t from, uint32_t to, char *out,
                           size_t out_bytes)
{
    const enum weft_coll_kind kind = coll->args.kind;
    if (kind == WEFT_COLL_GATHER || kind == WEFT_COLL_SCATTER)
        snprintf(out, out_bytes, "the count of rank %u's piece", kind == WEFT_COLL_GATHER ? from : to);
    else if (coll->flags.is_sendrecv) snprintf(out, out_bytes, "the count");
    else snprintf(out, out_bytes, "the count of the piece from rank %u to rank %u", from, to);
}

void coll_report_lengths(struct weft_coll *coll, uint32_t peer, bool peer_sends, uint64_t sent,
                         uint64_t expected)
{
    char name[128], own[128], piece[80];
    struct weft_group *group = coll->group;
    const uint32_t from = peer_sends ? peer : group->rank, to = peer_sends ? group->rank : peer;
    const size_t elem_bytes = coll->data.elem_bytes;
    const bool is_whole = sent % elem_bytes == 0 && expected % elem_bytes == 0;
    const unsigned long long unit = is_whole ? elem_bytes : 1;
    group_describe(group, peer, name, sizeof name);
    group_describe(group, group->rank, own, sizeof own);
    describe_piece(coll, from, to, piece, sizeof piece);
    group_end(group, WEFT_ERR_MISMATCH, true, "%s differs in %s: %s sends %llu %s to %s, which expects %llu",
              weft_coll_kind_name(coll->args.kind), piece, peer_sends ? name : own, sent / unit,
              is_whole && elem_bytes > 1 ? weft_dtype_name(coll->args.dtype) : "bytes",
              peer_sends ? own : name, expected / unit);
}

static bool same_rank(const struct weft_group *group, uint32_t a, uint32_t b)
{
    return a == b ||
           (group->modes.rank_modulus && a % group->modes.rank_modulus == b % group->modes.rank_modulus);
}

/* Checks that the message belongs to this operation and has the expected length. Otherwise ends the group. */
static bool message_fits(struct slot *slot, enum weft_status status)
{
    struct weft_coll *coll = slot->coll;
    struct weft_group *group = coll->group;
    const struct weft_action *action = &slot->action;
    struct coll_header header;
    char name[128];
    bool readable = coll_header_read(slot->receive.header, slot->receive.header_bytes, &header) &&
                    header.type == COLL_MESSAGE_DATA && same_rank(group, header.rank, action->peer) &&
                    header.group == group->group_id;
    if (readable && header.epoch == group->epoch) {
        const char *what = coll_header_difference(&header, &coll->header);
        if (what) {
            coll_report_mismatch(coll, &coll->header, action->peer, &header, what);
            return false;
        }
        size_t expected = action->count * message_elem_bytes(coll, action);
        uint64_t *piece = coll_has_byte_pieces(coll->args.kind) && action->count
                              ? &coll->args.piece_bytes_out[action->peer]
                              : NULL;
        if (piece) {
            uint64_t first = action->offset - action->peer * coll->args.piece_bytes_max;
            readable = header.piece_bytes <= coll->args.piece_bytes_max &&
                       (*piece == UINT64_MAX || header.piece_bytes == *piece);
            expected = clip(header.piece_bytes, first, action->count);
        }
        if (coll->steps.cursor.args.own_lengths && action->message > 0) {
            /* also compares lengths that differ by whole messages */
            uint64_t whole =
                weft_plan_piece(&coll->steps.cursor.args, action->peer, false) * coll->data.elem_bytes;
            if (header.piece_bytes != whole) {
                coll_report_lengths(coll, action->peer, true, header.piece_bytes, whole);
                return false;
            }
        }
        if (readable && status == WEFT_OK && header.message == action->message &&
            slot->receive.payload_bytes == expected) {
            if (piece) *piece = header.piece_bytes;
            straggler_merge_delay(coll, header.status);
            return true;
        }
        if (readable && !piece && header.message == action->message &&
            slot->receive.payload_bytes != expected) {
            coll_report_lengths(coll, action->peer, true, slot->receive.payload_bytes, expected);
            return false;
        }
    }
    group_describe(group, action->peer, name, sizeof name);
    char title[48];
    group_end(group, WEFT_ERR_MALFORMED, true,
              "%s: a message of %s does not belong here (%zu bytes, epoch of this group %u)",
              coll_title(coll, coll->sequence, title), name, slot->receive.payload_bytes, group->epoch);
    return false;
}

static void transfer_failed(struct slot *slot, enum weft_status status)
{
    struct weft_coll *coll = slot->coll;
    char name[128], title[48];
    group_describe(coll->group, slot->action.peer, name, sizeof name);
    group_end(coll->group, status, status != WEFT_ERR_CLOSED, "lost %s during %s (%s): %s", name,
              coll_title(coll, coll->sequence, title), weft_coll_kind_name(coll->args.kind),
              weft_reason_text(status));
}

static void slot_completed(struct weft_completion *completion, enum weft_status status)
{
    struct slot *slot = weft_container_of(completion, struct slot, completion);
    struct weft_coll *coll = slot->coll;
    struct weft_group *group = coll->group;
    coll->steps.outstanding--;
    slot->state = SLOT_DONE;
    if (slot->action.kind == WEFT_ACTION_SEND) send_credit_return(slot);
    if (slot->is_first_message) {
        slot->is_first_message = false;
        straggler_recv_arrived(coll);
    }
    /* the message has arrived or will not arrive */
    if (status != WEFT_ERR_CANCELLED) coll->path.expects_message = false;
    if (coll->phase == COLL_RUNNING) {
        bool receive = is_receive(slot->action.kind);
        if (status < 0 && !(receive && status == WEFT_ERR_TRUNCATED)) {
            transfer_failed(slot, status);
        } else if (receive && message_fits(slot, status)) {
            if (slot->action.kind == WEFT_ACTION_RECV_SUM) slot->state = SLOT_COMPUTING;
            if (slot->action.kind == WEFT_ACTION_RECV_FOLD)
                coll->buffers.reduce_buffers[slot->action.area]
                    .present[reduce_buffer_index(coll, slot->action.peer)] = 1;
        }
    }
    coll_mark_ready(coll);
    group_transport_op_done(group);
}

/* ---- starting steps ---- */

static uint64_t tag_of(const struct weft_coll *coll)
{
    return coll->flags.is_sendrecv ? group_pair_tag(coll->group) : group_tag(coll->group, coll->sequence);
}

/* Returns whether an older send or recv of the same pair is not yet with the transport. */
static bool sendrecv_would_overtake(const struct weft_coll *coll)
{
    if (!coll->flags.is_sendrecv) return false;
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &coll->group->ops.active) {
        const struct weft_coll *older = weft_container_of(node, struct weft_coll, link);
        if (older == coll) return false;
        bool same = older->flags.is_sendrecv && older->args.kind == coll->args.kind &&
                    older->args.root == coll->args.root;
        /* plan_ended: it completed on the one-host path (sendrecv.c) */
        bool waits =
            older->steps.head == 0 ? !older->steps.plan_ended : older->slots[0].state == SLOT_WAITING;
        if (same && older->phase == COLL_RUNNING && waits) return true;
    }
    return false;
}

/* Posts a send or receive. The step stays WAITING if the transport returns WEFT_ERR_AGAIN or the group has
 * ended. */
static void start_transfer(struct weft_coll *coll, struct slot *slot)
{
    struct weft_group *group = coll->group;
    const struct weft_action *action = &slot->action;
    enum weft_status status;
    if (sendrecv_would_overtake(coll)) {
        group->progress.needs_retry = true;
        return;
    }
    const size_t payload_bytes = action->kind == WEFT_ACTION_SEND ? send_bytes(coll, action) : 0;
    if (payload_bytes > 0 && send_credit_holds(coll, action->peer, payload_bytes)) return;
    weft_completion_init(&slot->completion, 1, slot_completed);
    if (action->kind == WEFT_ACTION_SEND) {
        uint8_t bytes[COLL_HEADER_BYTES];
        coll->header.message = action->message;
        if (coll->args.kind == WEFT_COLL_EXCHANGE_BYTES && action->count)
            coll->header.piece_bytes = coll->args.piece_bytes_in[action->peer];
        if (coll->steps.cursor.args.own_lengths && action->message > 0)
            coll->header.piece_bytes =
                weft_plan_piece(&coll->steps.cursor.args, action->peer, true) * coll->data.elem_bytes;
        coll->header.status = straggler_delay_us(coll);
        coll_header_write(bytes, &coll->header);
        coll->header.status = 0;
        struct weft_message message = {.tag = tag_of(coll), .header = bytes, .header_bytes = sizeof bytes};
        message.payload_bytes = payload_bytes;
        if (payload_bytes > 0) message.payload = send_buffer(coll, action);
        status = weft_transport_send(group->peer_table->peers[action->peer], &message, &slot->completion);
    } else {
        slot->receive.completion = &slot->completion;
        slot->receive.buffer = receive_buffer(coll, action);
        slot->receive.buffer_bytes = action->count * message_elem_bytes(coll, action);
        status = weft_transport_recv(group->transport, weft_peer_id(group->peer_table->peers[action->peer]),
                                     tag_of(coll), &slot->receive);
    }
    if (status == WEFT_IN_PROGRESS) {
        slot->is_first_message = action->kind != WEFT_ACTION_SEND && straggler_recv_posted(coll, action);
        slot->state = SLOT_POSTED;
        if (action->kind == WEFT_ACTION_SEND) send_credit_take(slot, payload_bytes);
        coll->steps.outstanding++;
        group->sending.outstanding++;
    } else if (status == WEFT_ERR_AGAIN || status == WEFT_ERR_NO_MEMORY) {
        group->progress.needs_retry = true;
    } else {
        transfer_failed(slot, status);
    }
}

static bool dependencies_are_done(const struct weft_coll *coll, uint64_t number)
{
    uint64_t after = slot_at(coll, number)->action.after;
    if (after > 0 && number >= after && number - after >= coll->steps.tail) return false;
    uint64_t depends = slot_at(coll, number)->action.depends;
    if (depends == 0 || number - depends < coll->steps.tail) return true;
    return slot_at(coll, number - depends)->state == SLOT_DONE;
}

/* Returns whether an older step of the window still waits for the same peer and direction. */
static bool would_overtake(const struct weft_coll *coll, uint64_t number)
{
    const struct weft_action *action = &slot_at(coll, number)->action;
    bool receive = is_receive(action->kind);
    if (!receive && action->kind != WEFT_ACTION_SEND) return false;
    for (uint64_t older = coll->steps.tail; older < number; older++) {
        const struct slot *other = slot_at(coll, older);
        if (other->state != SLOT_WAITING || other->action.peer != action->peer) continue;
        if (receive ? is_receive(other->action.kind) : other->action.kind == WEFT_ACTION_SEND) return true;
    }
    return false;
}

static void start(struct weft_coll *coll, struct slot *slot)
{
    const struct weft_action *action = &slot->action;
    switch (action->kind) {
    case WEFT_ACTION_RECV_FOLD: {
        struct reduce_buffer *area = &coll->buffers.reduce_buffers[action->area];
        if (!area->open) reduce_buffer_open(coll, area, action->offset_in, action->count);
        WEFT_ASSERT(area->offset_in == action->offset_in && area->count == action->count);
        start_transfer(coll, slot);
        break;
    }
    case WEFT_ACTION_SEND:
    case WEFT_ACTION_RECV:
    case WEFT_ACTION_RECV_SUM:
        start_transfer(coll, slot);
        break;
    case WEFT_ACTION_FOLD:
    case WEFT_ACTION_COPY:
    case WEFT_ACTION_PACK:
    case WEFT_ACTION_SUM:
        slot->state = SLOT_COMPUTING;
        break;
    default:
        slot->state = SLOT_DONE;
        break;
    }
}

/* ---- sums and copies ---- */
static void reduce_unit(struct weft_coll *coll, const struct weft_action *action, uint64_t from,
                        uint64_t count)
{
    struct reduce_src received = {scratch_received(coll, action) + from * message_elem_bytes(coll, action),
                                  action->wide};
    struct reduce_src own = {input_at(coll, action->offset_in + from), false};
    if (action->place == WEFT_PLACE_OUTPUT) own.data = output_at(coll, action->offset + from);
    if (action->place == WEFT_PLACE_SCRATCH)
        own = (struct reduce_src){scratch_at(coll, action->scratch_own + from), coll->data.wide};
    struct reduce_dst out = {
        scratch_at(coll, (action->into_own ? action->scratch_own : action->scratch) + from), coll->data.wide,
        false};
    if (action->last) out = (struct reduce_dst){output_at(coll, action->offset + from), false, true};
    reduce_pair(&coll->data.sum, out, action->own_first ? own : received, action->own_first ? received : own,
                count);
}

static void copy_unit(struct weft_coll *coll, const struct weft_action *action, uint64_t from, uint64_t count)
{
    struct reduce_dst out = {output_at(coll, action->offset + from), false, action->last};
    if (action->place != WEFT_PLACE_SCRATCH) {
        memmove(out.data, input_at(coll, action->offset_in + from), count * coll->data.elem_bytes);
        return;
    }
    reduce_copy(&coll->data.sum, out,
                (struct reduce_src){scratch_at(coll, action->scratch + from), coll->data.wide}, count);
}

static void pack_unit(struct weft_coll *coll, const struct weft_action *action, uint64_t from, uint64_t count)
{
    struct reduce_dst out = {scratch_at(coll, action->scratch + from), coll->data.wide, false};
    struct reduce_src in = {input_at(coll, action->offset_in + from), false};
    if (action->place == WEFT_PLACE_OUTPUT) in.data = output_at(coll, action->offset + from);
    if (action->place == WEFT_PLACE_SCRATCH)
        in = (struct reduce_src){scratch_at(coll, action->scratch_own + from), coll->data.wide};
    reduce_copy(&coll->data.sum, out, in, count);
}

/* Runs part of a COMPUTING step within the budget. */
static void compute(struct weft_coll *coll, struct slot *slot, size_t *budget)
{
    const struct weft_action *action = &slot->action;
    if (*budget == 0) return;
    if (action->kind == WEFT_ACTION_FOLD) {
        struct reduce_buffer *area = &coll->buffers.reduce_buffers[action->area];
        /* otherwise the buffer still serves an earlier chunk */
        bool mine = area->open && area->offset_in == action->offset_in;
        if (!mine || !reduce_buffer_advance(coll, area, budget)) return;
        struct reduce_dst out = {output_at(coll, action->offset), false, action->last};
        if (action->place == WEFT_PLACE_SCRATCH)
            out = (struct reduce_dst){scratch_at(coll, action->scratch), coll->data.wide, action->last};
        if (reduce_buffer_finish(coll, area, out, budget)) slot->state = SLOT_DONE;
        return;
    }
    if (coll->group->modes.timing_only) {
        slot->state = SLOT_DONE;
        return;
    }
    bool copies = action->kind == WEFT_ACTION_COPY, area = action->place == WEFT_PLACE_SCRATCH;
    uint64_t count = copies && !area ? send_bytes(coll, action) / coll->data.elem_bytes : action->count;
    if (copies && !area && input_at(coll, action->offset_in) == output_at(coll, action->offset))
        slot->computed = count;
    while (slot->computed < count && *budget > 0) {
        uint64_t unit = COLL_COMPUTE_UNIT_BYTES / coll->data.elem_bytes;
        if (unit > count - slot->computed) unit = count - slot->computed;
        if (copies) copy_unit(coll, action, slot->computed, unit);
        else if (action->kind == WEFT_ACTION_PACK) pack_unit(coll, action, slot->computed, unit);
        else reduce_unit(coll, action, slot->computed, unit);
        slot->computed += unit;
        size_t bytes = unit * coll->data.elem_bytes;
        *budget = *budget > bytes ? *budget - bytes : 0;
    }
    if (slot->computed >= count) slot->state = SLOT_DONE;
}

/* ---- the window ---- */
static void window_fill(struct weft_coll *coll)
{
    while (coll->steps.tail < coll->steps.head && slot_at(coll, coll->steps.tail)->state == SLOT_DONE)
        coll->steps.tail++;
    while (!coll->steps.plan_ended && coll->steps.head - coll->steps.tail < coll->group->limits.window) {
        struct slot *slot = slot_at(coll, coll->steps.head);
        weft_plan_next(&coll->steps.cursor, &slot->action);
        if (slot->action.kind == WEFT_ACTION_DONE) {
            coll->steps.plan_ended = true;
            break;
        }
        slot->coll = coll;
        slot->computed = 0;
        slot->state = SLOT_WAITING;
        if (slot->action.kind == WEFT_ACTION_NONE && dependencies_are_done(coll, coll->steps.head)) {
            /* a vector with fewer elements than ranks consists mostly of empty steps */
            slot->state = SLOT_DONE;
            if (coll->steps.head == coll->steps.tail) coll->steps.tail++;
        }
        coll->steps.head++;
    }
}

/* Runs before the first step: scales the contribution (SCALED_SUM) or copies the input of an in-place
 * exchange. */
bool coll_scale_input(struct weft_coll *coll, size_t *budget)
{
    while (coll->data.input_elems_prepared < coll->data.input_elems_to_prepare && *budget > 0) {
        uint64_t unit = COLL_COMPUTE_UNIT_BYTES / coll->data.elem_bytes;
        if (unit > coll->data.input_elems_to_prepare - coll->data.input_elems_prepared)
            unit = coll->data.input_elems_to_prepare - coll->data.input_elems_prepared;
        size_t at = coll->data.input_elems_prepared * coll->data.elem_bytes,
               bytes = unit * coll->data.elem_bytes;
        uint8_t *to = (uint8_t *)coll->data.in + at;
        const uint8_t *from = coll->data.unscaled + at;
        if (coll->args.op == WEFT_SCALED_SUM)
            reduce_scale(coll->data.sum.dtype, coll->args.factor, to, from, unit);
        else memcpy(to, from, bytes);
        coll->data.input_elems_prepared += unit;
        *budget = *budget > bytes ? *budget - bytes : 0;
    }
    return coll->data.input_elems_prepared >= coll->data.input_elems_to_prepare;
}

void coll_advance(struct weft_coll *coll, size_t *budget)
{
    /* onehost/engine.c runs it; it is not known yet how (retune.h) */
    if (coll->path.is_active || coll->flags.is_plan_pending) return;
    bool again = coll->phase == COLL_RUNNING && coll_scale_input(coll, budget);
    while (again && coll->phase == COLL_RUNNING) {
        window_fill(coll);
        /* steps depend on older steps only: repeat only if one completed and freed its slot */
        again = false;
        for (uint64_t number = coll->steps.tail; number < coll->steps.head && coll->phase == COLL_RUNNING;
             number++) {
            struct slot *slot = slot_at(coll, number);
            if (slot->state == SLOT_DONE || slot->state == SLOT_POSTED) continue;
            if (slot->state == SLOT_WAITING && dependencies_are_done(coll, number) &&
                !would_overtake(coll, number))
                start(coll, slot);
            if (slot->state == SLOT_COMPUTING) compute(coll, slot, budget);
            again |= slot->state == SLOT_DONE;
        }
        /* Folds advance while their last contributions are in flight. */
        for (uint32_t a = 0; a < coll->buffers.reduce_buffer_count && coll->phase == COLL_RUNNING; a++)
            if (coll->buffers.reduce_buffers[a].open)
                reduce_buffer_advance(coll, &coll->buffers.reduce_buffers[a], budget);
    }
}

bool coll_is_complete(const struct weft_coll *coll)
{
    if (coll->steps.outstanding > 0) return false;
    if (coll->path.is_active) return coll->phase == COLL_ENDING && !coll_path.has_peer_in_buffers(coll);
    return coll->phase == COLL_ENDING || (coll->steps.plan_ended && coll->steps.head == coll->steps.tail);
}

void coll_abort(struct weft_coll *coll, enum weft_status status, const char *text)
{
    if (coll->phase == COLL_ENDING) return;
    coll_record_phase(coll); /* while the waiting step is still known */
    coll->phase = COLL_ENDING;
    coll->status = status;
    coll->text = text;
    if (coll->path.is_active) coll_path.cancel(coll);
    for (uint64_t number = coll->steps.tail; number < coll->steps.head; number++) {
        struct slot *slot = slot_at(coll, number);
        if (slot->state == SLOT_POSTED && is_receive(slot->action.kind))
            weft_transport_cancel(coll->group->transport, &slot->receive);
    }
    coll_mark_ready(coll);
}

bool coll_has_received(const struct weft_coll *coll)
{
    if (coll->steps.tail > 0) return true;
    for (uint64_t number = coll->steps.tail; number < coll->steps.head; number++) {
        const struct slot *slot = slot_at(coll, number);
        if (slot->state == SLOT_POSTED ? weft_receive_is_matched(&slot->receive) : slot->state > SLOT_POSTED)
            return true;
    }
    return false;
}

bool coll_waits_for(const struct weft_coll *coll, uint32_t *rank_out, const char **phase_out)
{
    if (coll->path.is_active) return coll_path.waits_for(coll, rank_out, phase_out);
    const struct slot *found = NULL;
    for (uint64_t number = coll->steps.tail; number < coll->steps.head && !found; number++) {
        const struct slot *slot = slot_at(coll, number);
        if (slot->state == SLOT_POSTED && is_receive(slot->action.kind)) found = slot;
    }
    for (uint64_t number = coll->steps.tail; number < coll->steps.head && !found; number++) {
        const struct slot *slot = slot_at(coll, number);
        if (slot->state == SLOT_POSTED) found = slot;
    }
    if (!found) *phase_out = coll->flags.is_plan_pending ? "agreeing on a plan" : "summing";
    else if (found->action.kind == WEFT_ACTION_SEND) *phase_out = "sending";
    else if (found->action.message == 0) *phase_out = "greeting";
    else *phase_out = found->action.kind == WEFT_ACTION_RECV ? "gathering" : "reducing";
    if (found) *rank_out = found->action.peer;
    return found != NULL;
}
