/* weftd_move.c - copies of slots while the job runs: requests of the coordinator, reports of the engines.
 *
 *     SlotCopy  -> every engine: the one that leads the slot copies it (shard_move.c) -> SlotCopied
 *     SlotQuiet -> every engine: the one that leads the slot hands it over            -> SlotQuiet
 *
 * A request or a report that has no memory is dropped: the coordinator repeats its request. */
#include "server/daemon/weftd.h"

/* ---- engine thread ---- */

struct move_request {
    struct weftd_command base; /* must be the first member */
    uint32_t slot, term, to;
    bool is_copy;
};

static void on_request(struct weft_command *command)
{
    struct move_request *request = weft_container_of(command, struct move_request, base.command);
    struct weft_shard_engine *shard = request->base.engine->shard;
    if (shard && request->is_copy) weft_shard_engine_copy(shard, request->slot, request->term, request->to);
    else if (shard) weft_shard_engine_hand_over(shard, request->slot, request->term);
    weftd_command_reply(&request->base);
}

/* Travels from an engine to the net thread, which frees it. */
struct move_report {
    struct weftd_command base; /* must be the first member */
    struct weft_slot_report report;
};

static void send_report(struct weft_command *command)
{
    struct move_report *report = weft_container_of(command, struct move_report, base.command);
    struct weftd *weftd = report->base.engine->weftd;
    const struct weft_slot_report *of = &report->report;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    Weft__Control__SlotCopied copied = WEFT__CONTROL__SLOT_COPIED__INIT;
    Weft__Control__SlotQuiet quiet = WEFT__CONTROL__SLOT_QUIET__INIT;
    copied.slot = quiet.slot = of->slot;
    copied.term = quiet.term = of->term;
    copied.to = of->to;
    copied.chunks = of->chunks;
    copied.bytes = of->bytes;
    copied.done = of->is_done;
    copied.status = of->status;
    message.body_case =
        of->is_quiet ? WEFT__CONTROL__CONTROL__BODY_SLOT_QUIET : WEFT__CONTROL__CONTROL__BODY_SLOT_COPIED;
    if (of->is_quiet) message.slot_quiet = &quiet;
    else message.slot_copied = &copied;
    if (!weftd->state.failing) (void)weft_control_client_send(weftd->member, &message);
    weft_free_bytes(weftd->env, report);
}

void weftd_move_report(void *context, const struct weft_slot_report *of)
{
    struct weftd_engine *engine = context;
    struct move_report *report = weft_alloc_zero(engine->weftd->env, sizeof *report);
    if (!report) return;
    report->base.engine = engine;
    report->base.command.fn = send_report;
    report->report = *of;
    weft_net_post(engine->weftd->net, &report->base.command);
}

/* ---- net thread ---- */

void weftd_move(struct weftd *weftd, const Weft__Control__Control *message)
{
    const bool is_copy = message->body_case == WEFT__CONTROL__CONTROL__BODY_SLOT_COPY;
    for (uint32_t i = 0; weftd->state.running && i < weftd->options.engines; i++) {
        struct move_request *request = weft_alloc_zero(weftd->env, sizeof *request);
        if (!request) return;
        request->is_copy = is_copy;
        request->slot = is_copy ? message->slot_copy->slot : message->slot_quiet->slot;
        request->term = is_copy ? message->slot_copy->term : message->slot_quiet->term;
        if (is_copy) request->to = message->slot_copy->to;
        weftd_command_post(&request->base, &weftd->engines[i], on_request);
    }
}
