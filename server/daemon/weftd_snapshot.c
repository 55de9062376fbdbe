/* weftd_snapshot.c - snapshots of this process: commands to the engines, a thread that writes, the manifest.
 *
 *     net      Snap -> every engine arms -> SnapArmed        SnapPassed -> engines
 *     engine   captured pieces, ends -> queue                 a worker has ended the step -> SnapPassed
 *     writer   queue -> pieces on disk -> net: SnapPieces
 *     net      (coordinator) pieces of all shards -> manifest -> writer: commit, prune -> net
 *
 * Captured bytes are bounded by snapshot.memory_bytes, unless one group of chunks alone is larger. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "server/daemon/weftd.h"
#include "server/daemon/weftd_snapshot.h"
#include "server/shard/snapshot/shard_snapshot.h"

#define MESSAGE_PIECES 64u

/* ---- memory ---- */

static void wake_engines(struct weftd_snapshots *snapshots)
{
    for (uint32_t i = 0; i < snapshots->weftd->options.engines; i++) {
        struct snapshot_engine *engine = &snapshots->engines[i];
        if (atomic_exchange(&engine->wants_memory, false) && !atomic_exchange(&engine->resume_posted, true))
            weft_loop_post(engine->engine->loop, &engine->resume);
    }
}

static void on_resume(struct weft_command *command)
{
    struct snapshot_engine *engine = weft_container_of(command, struct snapshot_engine, resume);
    atomic_store(&engine->resume_posted, false);
    if (engine->engine->shard) weft_shard_engine_snapshot_resume(engine->engine->shard);
}

static bool take(struct weftd_snapshots *snapshots, size_t bytes)
{
    size_t used = atomic_load(&snapshots->used_bytes);
    do {
        if (used > 0 && used + bytes > snapshots->most_bytes) return false;
    } while (!atomic_compare_exchange_weak(&snapshots->used_bytes, &used, used + bytes));
    return true;
}

static bool on_reserve(void *context, size_t bytes)
{
    struct snapshot_engine *engine = context;
    if (take(engine->snapshots, bytes)) return true;
    atomic_store(&engine->wants_memory, true);
    if (!take(engine->snapshots, bytes)) return false; /* the writer sees wants_memory */
    atomic_store(&engine->wants_memory, false);
    return true;
}

void weftd_snapshot_give_back(struct weftd_snapshots *snapshots, size_t bytes)
{
    atomic_fetch_sub(&snapshots->used_bytes, bytes);
    wake_engines(snapshots);
}

static void on_unreserve(void *context, size_t bytes)
{
    weftd_snapshot_give_back(((struct snapshot_engine *)context)->snapshots, bytes);
}

/* ---- from the engines to the writer ---- */

void weftd_snapshot_task_put(struct weftd_snapshots *snapshots, struct snapshot_task *task)
{
    if (!snapshots->writer.has_thread) {
        weftd_snapshot_writer_run(snapshots, task);
        return;
    }
    pthread_mutex_lock(&snapshots->writer.lock);
    weft_list_append(&snapshots->writer.queue, &task->link);
    pthread_cond_signal(&snapshots->writer.changed);
    pthread_mutex_unlock(&snapshots->writer.lock);
}

static void on_captured(void *context, uint32_t id, struct weft_piece *piece)
{
    struct snapshot_engine *engine = context;
    struct weftd_snapshots *snapshots = engine->snapshots;
    struct snapshot_task *task = weft_alloc_zero(snapshots->weftd->env, sizeof *task);
    if (!task) { /* the piece is lost, and with it the snapshot */
        weftd_snapshot_give_back(snapshots, piece->bytes);
        weft_piece_free(piece);
        atomic_store(&engine->has_lost, true);
        return;
    }
    *task = (struct snapshot_task){.kind = SNAPSHOT_TASK_PIECE, .id = id, .piece = piece};
    weft_list_init(&task->link);
    weftd_snapshot_task_put(snapshots, task);
}

static void on_passed(void *context, uint32_t id)
{
    struct snapshot_engine *engine = context;
    atomic_store(&engine->passed_id, id);
    if (!atomic_exchange(&engine->passed_posted, true))
        weft_net_post(engine->snapshots->weftd->net, &engine->passed);
}

static void on_ended(void *context, uint32_t id, enum weft_status status, const char *text, uint64_t stall_ns)
{
    struct snapshot_engine *engine = context;
    struct weftd_snapshots *snapshots = engine->snapshots;
    struct snapshot_task *task = weft_alloc_zero(snapshots->weftd->env, sizeof *task);
    atomic_fetch_add(&snapshots->stats.stall_ns, stall_ns);
    if (!task) return; /* the coordinator ends the request after its deadline */
    task->kind = SNAPSHOT_TASK_END;
    task->id = id;
    weft_list_init(&task->link);
    if (atomic_exchange(&engine->has_lost, false)) snprintf(task->text, sizeof task->text, "no memory");
    else if (status < 0) snprintf(task->text, sizeof task->text, "%s", text);
    weftd_snapshot_task_put(snapshots, task);
}

/* ---- net thread: commands of the coordinator ---- */

struct arm_request {
    struct weft_command command;
    struct weftd_snapshots *snapshots;
    uint32_t engine, id;
    uint64_t step, newest;
    bool drops, is_late;
};

static void on_armed(struct weft_command *command)
{
    struct arm_request *request = weft_container_of(command, struct arm_request, command);
    struct weftd_snapshots *snapshots = request->snapshots;
    struct weftd *weftd = snapshots->weftd;
    const struct arm_request answer = *request;
    weft_free_bytes(weftd->env, request);
    if (answer.drops || answer.id != snapshots->arming.id || weftd->state.failing) return;
    if (answer.newest > snapshots->arming.newest) snapshots->arming.newest = answer.newest;
    snapshots->arming.is_late |= answer.is_late;
    if (--snapshots->arming.pending > 0) return;
    Weft__Control__SnapArmed armed = WEFT__CONTROL__SNAP_ARMED__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    armed.id = answer.id;
    armed.newest = snapshots->arming.newest;
    armed.late = snapshots->arming.is_late;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_SNAP_ARMED;
    message.snap_armed = &armed;
    (void)weft_control_client_send(weftd->member, &message);
}

/* Engine thread. */
static void on_arm(struct weft_command *command)
{
    struct arm_request *request = weft_container_of(command, struct arm_request, command);
    struct snapshot_engine *engine = &request->snapshots->engines[request->engine];
    const struct shard_snapshot_ops ops = {.reserve = on_reserve,
                                           .unreserve = on_unreserve,
                                           .captured = on_captured,
                                           .passed = on_passed,
                                           .ended = on_ended,
                                           .context = engine,
                                           .piece_bytes = WEFT_PIECE_BYTES_MAX};
    struct weft_shard_engine *shard = engine->engine->shard;
    request->is_late = !shard;
    if (shard && request->drops) weft_shard_engine_snapshot_abandon(shard, "the coordinator dropped it");
    else if (shard)
        request->is_late =
            !weft_shard_engine_snapshot_arm(shard, request->id, request->step, &ops, &request->newest);
    request->command.fn = on_armed;
    weft_net_post(request->snapshots->weftd->net, &request->command);
}

/* The shard has reported, or the coordinator has dropped the snapshot. */
static void storing_ended(struct weftd_snapshots *snapshots, uint32_t id)
{
    struct weftd *weftd = snapshots->weftd;
    if (!snapshots->is_storing || id != snapshots->storing_id) return;
    snapshots->is_storing = false;
    if (snapshots->leaves && !weftd->state.failing) (void)weft_control_client_leave(weftd->member, "");
}

static void post_arm(struct weftd_snapshots *snapshots, const Weft__Control__Snap *snap)
{
    struct weftd *weftd = snapshots->weftd;
    if (snap->drop) storing_ended(snapshots, snap->id);
    else snapshots->arming = (struct snapshot_arming){.id = snap->id, .pending = weftd->options.engines};
    for (uint32_t i = 0; i < weftd->options.engines; i++) {
        struct arm_request *request = weft_alloc_zero(weftd->env, sizeof *request);
        if (!request) { /* the coordinator makes no snapshot without an answer */
            weft_log(weftd->env, WEFT_LOG_WARN, "weftd", "no memory to arm a snapshot");
            return;
        }
        *request = (struct arm_request){.command.fn = on_arm,
                                        .snapshots = snapshots,
                                        .engine = i,
                                        .id = snap->id,
                                        .step = snap->step,
                                        .drops = snap->drop};
        weft_loop_post(weftd->engines[i].loop, &request->command);
    }
}

struct pass_request {
    struct weftd_command base; /* must be the first member */
    uint32_t id;
};

static void on_pass(struct weft_command *command)
{
    struct pass_request *request = weft_container_of(command, struct pass_request, base.command);
    if (request->base.engine->shard)
        weft_shard_engine_snapshot_passed(request->base.engine->shard, request->id);
    weftd_command_reply(&request->base);
}

void weftd_snapshots_message(struct weftd *weftd, const Weft__Control__Control *message)
{
    if (!weftd->snapshots || !weftd->state.running) {
        weftd_fail(weftd, WEFT_ERR_MALFORMED, "the coordinator asked for a snapshot that was not due");
        return;
    }
    if (message->body_case == WEFT__CONTROL__CONTROL__BODY_SNAP) {
        post_arm(weftd->snapshots, message->snap);
        return;
    }
    weftd->snapshots->is_storing = true;
    weftd->snapshots->storing_id = message->snap_passed->id;
    weftd->snapshots->passed_ns = weft_now_ns(weftd->env);
    for (uint32_t i = 0; i < weftd->options.engines; i++) {
        struct pass_request *request = weft_alloc_zero(weftd->env, sizeof *request);
        if (!request) return; /* the coordinator abandons the snapshot after its deadline */
        request->id = message->snap_passed->id;
        weftd_command_post(&request->base, &weftd->engines[i], on_pass);
    }
}

static void on_finish(struct weft_command *command)
{
    struct weftd_command *request = weft_container_of(command, struct weftd_command, command);
    if (request->engine->shard) weft_shard_engine_snapshot_finish(request->engine->shard);
    weftd_command_reply(request);
}

bool weftd_snapshots_defer_leave(struct weftd *weftd)
{
    if (!weftd->snapshots || !weftd->snapshots->is_storing) return false;
    for (uint32_t i = 0; i < weftd->options.engines; i++) {
        struct weftd_command *request = weft_alloc_zero(weftd->env, sizeof *request);
        if (!request) return false; /* the snapshot is lost */
        weftd_command_post(request, &weftd->engines[i], on_finish);
    }
    weftd->snapshots->leaves = true;
    return true;
}

static void on_passed_net(struct weft_command *command)
{
    struct snapshot_engine *engine = weft_container_of(command, struct snapshot_engine, passed);
    struct weftd *weftd = engine->snapshots->weftd;
    Weft__Control__SnapPassed passed = WEFT__CONTROL__SNAP_PASSED__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    atomic_store(&engine->passed_posted, false);
    passed.id = atomic_load(&engine->passed_id);
    message.body_case = WEFT__CONTROL__CONTROL__BODY_SNAP_PASSED;
    message.snap_passed = &passed;
    if (!weftd->state.failing) (void)weft_control_client_send(weftd->member, &message);
}

/* ---- net thread: the pieces of this shard ---- */

static void fill_piece(const struct weft_snapshot_piece *from, Weft__Control__SnapPiece *to,
                       uint8_t names[2][WEFT_SNAP_NAME_BYTES])
{
    weft_hex_decode(from->ref.name, WEFT_SNAP_NAME_BYTES, names[0]);
    if (from->ref.base[0]) weft_hex_decode(from->ref.base, WEFT_SNAP_NAME_BYTES, names[1]);
    weft__control__snap_piece__init(to);
    to->name = (ProtobufCBinaryData){WEFT_SNAP_NAME_BYTES, names[0]};
    if (from->ref.base[0]) to->base_name = (ProtobufCBinaryData){WEFT_SNAP_NAME_BYTES, names[1]};
    to->chain = from->ref.chain;
    to->bytes = from->ref.bytes;
    to->stored = from->ref.stored;
    to->n_ranges = from->range_count;
}

static void fill_ranges(const struct weft_snapshot_piece *from, Weft__Control__SnapRange *ranges,
                        Weft__Control__SnapRange **pointers)
{
    for (uint32_t i = 0; i < from->range_count; i++) {
        weft__control__snap_range__init(&ranges[i]);
        ranges[i].tensor = from->ranges[i].tensor;
        ranges[i].part = from->ranges[i].part;
        ranges[i].offset = from->ranges[i].offset;
        ranges[i].count = from->ranges[i].count;
        ranges[i].step = from->ranges[i].step;
        pointers[i] = &ranges[i];
    }
}

/* Sends pieces first .. first + count. WEFT_ERR_NO_MEMORY: nothing was sent. */
static enum weft_status send_pieces(struct weftd *weftd, const struct snapshot_report *report, uint32_t first,
                                    uint32_t count)
{
    Weft__Control__SnapPiece pieces[MESSAGE_PIECES], *pointers[MESSAGE_PIECES];
    uint8_t names[MESSAGE_PIECES][2][WEFT_SNAP_NAME_BYTES];
    Weft__Control__SnapPieces body = WEFT__CONTROL__SNAP_PIECES__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    size_t ranges = 0;
    for (uint32_t i = 0; i < count; i++) ranges += report->stored.pieces[first + i].range_count;
    Weft__Control__SnapRange *memory = weft_alloc_array(weftd->env, ranges + 1, sizeof *memory);
    Weft__Control__SnapRange **range_pointers =
        weft_alloc_array(weftd->env, ranges + 1, sizeof(Weft__Control__SnapRange *));
    const bool has_memory = memory && range_pointers;
    ranges = 0;
    for (uint32_t i = 0; has_memory && i < count; i++) {
        const struct weft_snapshot_piece *from = &report->stored.pieces[first + i];
        fill_piece(from, &pieces[i], names[i]);
        fill_ranges(from, memory + ranges, range_pointers + ranges);
        pieces[i].ranges = range_pointers + ranges;
        pointers[i] = &pieces[i];
        ranges += from->range_count;
    }
    body.id = report->id;
    body.n_pieces = count;
    body.pieces = pointers;
    body.last = first + count == report->stored.piece_count;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_SNAP_PIECES;
    message.snap_pieces = &body;
    if (has_memory) (void)weft_control_client_send(weftd->member, &message);
    weft_free_bytes(weftd->env, memory);
    weft_free_bytes(weftd->env, range_pointers);
    return has_memory ? WEFT_OK : WEFT_ERR_NO_MEMORY;
}

static void send_error(struct weftd *weftd, const struct snapshot_report *report, const char *text)
{
    Weft__Control__SnapPieces body = WEFT__CONTROL__SNAP_PIECES__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    body.id = report->id;
    body.error = (char *)text;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_SNAP_PIECES;
    message.snap_pieces = &body;
    (void)weft_control_client_send(weftd->member, &message);
}

/* All engines have ended, and the writer has stored what they captured. */
void weftd_snapshot_on_report(struct weft_command *command)
{
    struct snapshot_report *report = weft_container_of(command, struct snapshot_report, command);
    struct weftd *weftd = report->snapshots->weftd;
    const uint32_t count = report->stored.piece_count;
    bool is_sent = !weftd->state.failing;
    if (is_sent && report->text[0]) send_error(weftd, report, report->text);
    for (uint32_t first = 0; is_sent && !report->text[0] && (first == 0 || first < count);
         first += MESSAGE_PIECES) {
        const uint32_t rest = count - first;
        is_sent = send_pieces(weftd, report, first, rest < MESSAGE_PIECES ? rest : MESSAGE_PIECES) == WEFT_OK;
        if (!is_sent) send_error(weftd, report, "no memory to report its pieces");
    }
    storing_ended(report->snapshots, report->id);
    weft_snapshot_fini(&report->stored);
    weft_free_bytes(weftd->env, report);
}

/* ---- net thread, where the coordinator runs: the manifest ---- */

static void on_begin(void *context, uint64_t step)
{
    struct weftd_snapshots *snapshots = ((struct weftd *)context)->snapshots;
    weft_snapshot_fini(&snapshots->manifest);
    snapshots->begun++;
    snapshots->manifest.step = step;
    snapshots->manifest_failed = false;
}

static void name_of(const ProtobufCBinaryData *bytes, char out[WEFT_PIECE_NAME_BYTES])
{
    weft_hex_encode(bytes->data, bytes->len, out);
}

static void on_pieces(void *context, const Weft__Control__SnapPieces *pieces)
{
    struct weftd_snapshots *snapshots = ((struct weftd *)context)->snapshots;
    for (size_t i = 0; i < pieces->n_pieces; i++) {
        const Weft__Control__SnapPiece *from = pieces->pieces[i];
        struct weft_snapshot_piece *piece =
            weft_snapshot_add_piece(&snapshots->manifest, (uint32_t)from->n_ranges);
        if (!piece) {
            snapshots->manifest_failed = true;
            return;
        }
        name_of(&from->name, piece->ref.name);
        name_of(&from->base_name, piece->ref.base);
        piece->ref.chain = from->chain;
        piece->ref.bytes = from->bytes;
        piece->ref.stored = from->stored;
        for (uint32_t k = 0; k < from->n_ranges; k++)
            piece->ranges[k] = (struct weft_snapshot_range){.tensor = from->ranges[k]->tensor,
                                                            .part = (uint8_t)from->ranges[k]->part,
                                                            .offset = from->ranges[k]->offset,
                                                            .count = from->ranges[k]->count,
                                                            .step = from->ranges[k]->step};
    }
}

/* Fills in the tensors; ranges then have their indices in place of the numbers of the job. */
static bool add_tensors(struct weftd *weftd, struct weft_snapshot *manifest)
{
    const struct weft_coordinator *coordinator = weft_coordinator_server_inner(weftd->coordinator);
    uint32_t *index = weft_alloc_zero(weftd->env, WEFT_LIMIT_TENSORS * sizeof *index); /* + 1; 0: not yet */
    bool is_good = index != NULL;
    for (uint32_t i = 0; is_good && i < manifest->piece_count; i++) {
        if (weft_snapshot_is_worker_piece(&manifest->pieces[i])) continue;
        for (uint32_t k = 0; is_good && k < manifest->pieces[i].range_count; k++) {
            struct weft_snapshot_range *range = &manifest->pieces[i].ranges[k];
            const uint32_t number = range->tensor;
            const Weft__Control__Declare *declare = weft_coordinator_declare_of(coordinator, number);
            if (index[number] == 0) {
                struct weft_snapshot_tensor *tensor = declare ? weft_snapshot_add_tensor(manifest) : NULL;
                is_good = tensor != NULL;
                if (!tensor) break;
                snprintf(tensor->name, sizeof tensor->name, "%s", declare->name);
                snprintf(tensor->codec, sizeof tensor->codec, "%s", declare->codec);
                snprintf(tensor->optimizer, sizeof tensor->optimizer, "%s", declare->optimizer);
                tensor->dim_count = (uint32_t)declare->n_dims;
                memcpy(tensor->dims, declare->dims, declare->n_dims * sizeof *declare->dims);
                index[number] = manifest->tensor_count;
            }
            range->tensor = index[number] - 1;
        }
    }
    weft_free_bytes(weftd->env, index);
    return is_good;
}

static void on_commit(void *context, uint64_t step)
{
    struct weftd *weftd = context;
    struct weftd_snapshots *snapshots = weftd->snapshots;
    struct snapshot_task *task = weft_alloc_zero(weftd->env, sizeof *task);
    if (!task || snapshots->manifest_failed || !add_tensors(weftd, &snapshots->manifest)) {
        weft_free_bytes(weftd->env, task);
        weft_coordinator_snapshot_committed(weft_coordinator_server_inner(weftd->coordinator), false);
        return;
    }
    struct timespec now;
    task->kind = SNAPSHOT_TASK_COMMIT;
    weft_list_init(&task->link);
    task->passed_ns = snapshots->passed_ns;
    task->manifest = snapshots->manifest;
    weft_snapshot_init(&snapshots->manifest, weftd->env);
    snprintf(task->manifest.job, sizeof task->manifest.job, "%s", weftd->options.job);
    task->manifest.step = step;
    task->manifest.workers = weftd->welcome.workers;
    task->manifest.shards = weftd->welcome.shards;
    task->manifest.weights = snapshots->weights;
    (void)timespec_get(&now, TIME_UTC);
    task->manifest.time_s = (uint64_t)now.tv_sec;
    weftd_snapshot_task_put(snapshots, task);
}

static void on_committed(struct weft_command *command)
{
    struct weftd_snapshots *snapshots = weft_container_of(command, struct weftd_snapshots, committed);
    weft_coordinator_snapshot_committed(weft_coordinator_server_inner(snapshots->weftd->coordinator),
                                        snapshots->commit_is_good);
}

void weftd_snapshots_coordinate(struct weftd *weftd, struct weft_coordinator_options *options)
{
    if (!weftd->snapshots) return;
    options->snapshots.steps = weftd->snapshots->interval.steps;
    options->snapshots.period_ns = weftd->snapshots->interval.ns;
    options->snapshot_calls.begin = on_begin;
    options->snapshot_calls.pieces = on_pieces;
    options->snapshot_calls.commit = on_commit;
    options->snapshot_calls.part = weftd_snapshot_on_part;
    options->snapshots.last_ns = weftd->snapshots->passed_ns;
}

/* ---- life ---- */

enum weft_status weftd_snapshots_check(const struct weftd_options *options, struct weft_error *error)
{
    struct weft_snapshot_interval interval;
    char folder[1024];
    uint64_t step;
    WEFT_TRY(
        weft_snapshot_interval_parse(weft_config_text(options->config, "snapshot.every"), &interval, error));
    return options->restore[0]
               ? weft_snapshot_place_parse(options->restore, folder, sizeof folder, &step, error)
               : WEFT_OK;
}

static enum weft_status options_read(struct weftd_snapshots *snapshots, struct weft_error *error)
{
    const struct weft_config *config = snapshots->weftd->options.config;
    const char *folder = weft_config_text(config, "snapshot.folder");
    if (strlen(folder) >= sizeof snapshots->folder)
        return weft_error_set(error, WEFT_ERR_INVALID, "snapshot.folder has more than %zu bytes",
                              sizeof snapshots->folder - 1);
    snprintf(snapshots->folder, sizeof snapshots->folder, "%s", folder);
    snapshots->keep = (uint32_t)weft_config_u64(config, "snapshot.keep");
    snapshots->hook_keep = (uint32_t)weft_config_u64(config, "snapshot.hook_keep");
    snapshots->most_bytes = weft_config_u64(config, "snapshot.memory_bytes");
    (void)weft_piece_dtype_parse(weft_config_text(config, "snapshot.weights"), &snapshots->weights);
    WEFT_TRY(weft_snapshot_interval_parse(weft_config_text(config, "snapshot.every"), &snapshots->interval,
                                          error));
    const char *hook = weft_config_text(config, "snapshot.hook");
    if (hook[0])
        WEFT_TRY(weft_snapshot_hook_create(snapshots->weftd->env, hook, &snapshots->writer.hook, error));
    return weft_snapshot_folder_make(snapshots->folder, error);
}

enum weft_status weftd_snapshots_start(struct weftd *weftd, struct weft_error *error)
{
    const char *folder = weft_config_text(weftd->options.config, "snapshot.folder");
    if (!folder[0]) return WEFT_OK;
    struct weftd_snapshots *snapshots = weft_alloc_zero(weftd->env, sizeof *snapshots);
    if (snapshots)
        snapshots->engines = weft_alloc_zero(weftd->env, weftd->options.engines * sizeof *snapshots->engines);
    if (!snapshots || !snapshots->engines) {
        weft_free_bytes(weftd->env, snapshots);
        return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for snapshots");
    }
    weftd->snapshots = snapshots;
    snapshots->weftd = weftd;
    weft_list_init(&snapshots->writer.queue);
    weft_list_init(&snapshots->parts);
    weft_snapshot_init(&snapshots->manifest, weftd->env);
    snapshots->committed.fn = on_committed;
    pthread_mutex_init(&snapshots->writer.lock, NULL);
    pthread_cond_init(&snapshots->writer.changed, NULL);
    WEFT_TRY(options_read(snapshots, error));
    return weftd_snapshot_writer_start(snapshots, error);
}

/* Net thread, when the engines have been made. */
void weftd_snapshots_attach(struct weftd *weftd)
{
    struct weftd_snapshots *snapshots = weftd->snapshots;
    for (uint32_t i = 0; snapshots && i < weftd->options.engines; i++) {
        struct snapshot_engine *engine = &snapshots->engines[i];
        engine->snapshots = snapshots;
        engine->engine = &weftd->engines[i];
        engine->resume.fn = on_resume;
        engine->passed.fn = on_passed_net;
    }
}

void weftd_snapshots_stop(struct weftd *weftd)
{
    struct weftd_snapshots *snapshots = weftd->snapshots;
    if (!snapshots || !snapshots->writer.has_thread) return;
    pthread_mutex_lock(&snapshots->writer.lock);
    snapshots->writer.stops = true;
    if (weftd->outcome.exit_status != 0) weft_snapshot_hook_cancel(snapshots->writer.hook);
    pthread_cond_signal(&snapshots->writer.changed);
    pthread_mutex_unlock(&snapshots->writer.lock);
    pthread_join(snapshots->writer.thread, NULL);
    snapshots->writer.has_thread = false;
}

void weftd_snapshots_free(struct weftd *weftd)
{
    struct weftd_snapshots *snapshots = weftd->snapshots;
    if (!snapshots) return;
    weftd_snapshot_writer_fini(snapshots);
    weftd_snapshot_parts_free(snapshots);
    weft_snapshot_fini(&snapshots->manifest);
    pthread_mutex_destroy(&snapshots->writer.lock);
    pthread_cond_destroy(&snapshots->writer.changed);
    weft_free_bytes(weftd->env, snapshots->engines);
    weft_free_bytes(weftd->env, snapshots);
    weftd->snapshots = NULL;
}
