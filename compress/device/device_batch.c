/* device_batch.c - see device_batch.h. A batch:
 *
 *     idle ──add──► collecting ──first query, or full──► queued ──last member collects or leaves──► idle
 *
 * Memory of a batch, on the device and in pinned host memory: the largest magnitudes (a word for each entry),
 * then scales and codes of the entries, which one copy moves to the host; apart from these the exponents that
 * one copy moves to the device. A batch is used again while copies for members that left may still run: the
 * next batch follows them on the stream, and its results are read after its own event. */
#include "compress/device/device_batch.h"

#include <pthread.h>
#include <string.h>

enum { BATCHES = 6, LINE = 64, PAGE = 4096 };
enum { DOWN_BYTES = 512 << 10, UP_BYTES = 8 << 10, WORDS_BYTES = WEFT_SEGMENTS_MAX * 4 };
_Static_assert(UP_BYTES >= WEFT_SEGMENTS_MAX * (WEFT_SEGMENT_ELEMS_MAX / WEFT_BLOCK),
               "exponents of a full batch");

/* Where an entry's results are. */
struct result {
    uint8_t *to;
    size_t at, bytes;
};

struct device_batch {
    struct weft_segment segments[WEFT_SEGMENTS_MAX];
    struct result results[WEFT_SEGMENTS_MAX];
    struct device_matrix_job job; /* of all members; its copies are not used */
    struct device_matrix_copy ups[WEFT_SEGMENTS_MAX],
        downs[WEFT_SEGMENTS_MAX]; /* of an entry with matrices */
    uint32_t count, members; /* entries; those that have neither collected nor left */
    bool is_queued;
    enum weft_status status; /* of the queueing */
    void *event;             /* owned */
    uint8_t *up_device, *up_host, *down_device, *down_host;
    size_t up_used, down_used;
    struct weft_error error;
};

struct weft_codec_batcher {
    struct weft_env *env;
    const struct weft_memory_ops *memory;
    void *stream;
    pthread_mutex_t lock;
    struct device_batch batches[BATCHES];

    void *device_memory;             /* owned; NULL: not reserved, or refused */
    uint8_t *block;                  /* owned host memory */
    uint8_t *window;                 /* in `block`, pinned where the system allows it */
    bool is_pinned, is_refused;
};

static size_t round_up_to(size_t bytes, size_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

/* ---- life ---- */

struct weft_codec_batcher *weft_codec_batcher_create(struct weft_env *env,
                                                     const struct weft_memory_ops *memory, void *stream)
{
    struct weft_codec_batcher *batcher = weft_alloc_zero(env, sizeof *batcher);
    if (!batcher) return NULL;
    batcher->env = env;
    batcher->memory = memory;
    batcher->stream = stream;
    pthread_mutex_init(&batcher->lock, NULL);
    return batcher;
}

void weft_codec_batcher_free(struct weft_codec_batcher *batcher, bool hangs)
{
    if (!batcher) return;
    if (!hangs) {
        for (int b = 0; b < BATCHES; b++) batcher->memory->event_free(batcher->batches[b].event);
        batcher->memory->free(batcher->device_memory);
        if (batcher->is_pinned) batcher->memory->unpin(batcher->window);
        weft_free_bytes(batcher->env, batcher->block);
    }
    pthread_mutex_destroy(&batcher->lock);
    weft_free_bytes(batcher->env, batcher);
}

static enum weft_status reserve(struct weft_codec_batcher *batcher)
{
    const size_t each = DOWN_BYTES + UP_BYTES, all = BATCHES * each;
    WEFT_TRY(batcher->memory->alloc(all, &batcher->device_memory, NULL));
    batcher->block = weft_alloc_bytes(batcher->env, all + PAGE);
    if (!batcher->block) return WEFT_ERR_NO_MEMORY;
    batcher->window =
        batcher->block + (round_up_to((uintptr_t)batcher->block, PAGE) - (uintptr_t)batcher->block);
    batcher->is_pinned =
        batcher->memory->pin(batcher->window, all, NULL) == WEFT_OK; /* else copies are slower */
    for (size_t b = 0; b < BATCHES; b++) {
        struct device_batch *batch = &batcher->batches[b];
        WEFT_TRY(batcher->memory->event_create(&batch->event, NULL));
        batch->down_device = (uint8_t *)batcher->device_memory + b * each;
        batch->down_host = batcher->window + b * each;
        batch->up_device = batch->down_device + DOWN_BYTES;
        batch->up_host = batch->down_host + DOWN_BYTES;
    }
    return WEFT_OK;
}

void device_batch_reserve(struct weft_codec *codec)
{
    struct weft_codec_batcher *batcher = codec->device->at.batcher;
    if (!batcher) return;
    pthread_mutex_lock(&batcher->lock);
    if (!batcher->device_memory && !batcher->is_refused) batcher->is_refused = reserve(batcher) < 0;
    pthread_mutex_unlock(&batcher->lock);
}

/* ---- under the lock ---- */

static void batch_reset(struct device_batch *batch)
{
    batch->count = batch->members = 0;
    batch->job.key = (struct device_matrix_key){.stage = DEVICE_MATRIX_NONE};
    batch->job.count = batch->job.before_count = 0;
    batch->is_queued = false;
    batch->status = WEFT_OK;
    batch->up_used = 0;
    batch->down_used = WORDS_BYTES;
}

static enum weft_status queue_copies(const struct weft_codec_batcher *batcher,
                                     const struct device_matrix_copy *copies, uint32_t count,
                                     struct weft_error *error)
{
    for (uint32_t i = 0; i < count; i++)
        if (copies[i].bytes > 0)
            WEFT_TRY(
                batcher->memory->copy(copies[i].to, copies[i].from, copies[i].bytes, batcher->stream, error));
    return WEFT_OK;
}

static enum weft_status queue_batch(struct weft_codec_batcher *batcher, struct device_batch *batch,
                                    const struct weft_device_kernels *kernels)
{
    const struct weft_memory_ops *memory = batcher->memory;
    struct weft_error *error = &batch->error;
    void *stream = batcher->stream;
    const struct device_matrix_job *job = &batch->job;
    WEFT_TRY(memory->zero(batch->down_device, WORDS_BYTES, stream, error));
    if (batch->up_used > 0)
        WEFT_TRY(memory->copy(batch->up_device, batch->up_host, batch->up_used, stream, error));
    WEFT_TRY(queue_copies(batcher, batch->ups, batch->count, error));
    const enum weft_status status =
        job->key.stage == DEVICE_MATRIX_NONE
            ? kernels->encode_segments(batch->segments, batch->count, stream)
            : device_matrix_launch(kernels, &job->key, job->before, job->before_count, job->matrices,
                                   job->count, stream);
    if (status < 0)
        return (enum weft_status)weft_error_set(error, WEFT_ERR_STATE,
                                                "%s: the kernels of %u tensors could not be queued: %s",
                                                memory->name, batch->count, weft_status_text(status));
    WEFT_TRY(queue_copies(batcher, batch->downs, batch->count, error));
    WEFT_TRY(memory->copy(batch->down_host, batch->down_device, batch->down_used, stream, error));
    return memory->record(batch->event, stream, error);
}

static void batch_queue(struct weft_codec_batcher *batcher, struct device_batch *batch,
                        const struct weft_device_kernels *kernels)
{
    batch->is_queued = true;
    batch->status = queue_batch(batcher, batch, kernels);
}

/* What an entry takes of a batch. */
struct demand {
    struct device_matrix_key key;
    size_t up_bytes, down_bytes;
    uint32_t before, matrices;
};

static bool has_space(const struct device_batch *batch, const struct demand *demand)
{
    return batch->count < WEFT_SEGMENTS_MAX && batch->up_used + demand->up_bytes <= UP_BYTES &&
           batch->down_used + demand->down_bytes <= DOWN_BYTES &&
           batch->job.before_count + demand->before <= WEFT_MATRICES_MAX &&
           batch->job.count + demand->matrices <= WEFT_MATRICES_MAX;
}

static bool is_of(const struct device_batch *batch, const struct device_matrix_key *key)
{
    const struct device_matrix_key *own = &batch->job.key;
    return own->stage == key->stage && own->rows == key->rows && own->cols == key->cols &&
           own->rank == key->rank;
}

/* A batch that collects such entries and has space; NULL: none is idle. */
static struct device_batch *batch_for(struct weft_codec_batcher *batcher, const struct demand *demand,
                                      const struct weft_device_kernels *kernels)
{
    struct device_batch *idle = NULL;
    for (int b = 0; b < BATCHES; b++) {
        struct device_batch *batch = &batcher->batches[b];
        if (batch->members == 0) idle = batch;
        if (batch->members == 0 || batch->is_queued || !is_of(batch, &demand->key)) continue;
        if (has_space(batch, demand)) return batch;
        batch_queue(batcher, batch, kernels);
    }
    if (!idle) return NULL;
    batch_reset(idle);
    idle->job.key = demand->key;
    return has_space(idle, demand) ? idle : NULL;
}

static void member_leaves(struct device_batch *batch, uint32_t place)
{
    if (!batch->is_queued) batch->segments[place].kind = WEFT_SEGMENT_NONE;
    batch->members--;
}

/* ---- of one codec ---- */

static void entry_put(struct device_batch *batch, const struct device_batch_entry *entry, uint32_t place)
{
    struct weft_segment *segment = &batch->segments[place];
    const size_t bytes = entry->scales_bytes + entry->codes_bytes;
    *segment = entry->segment;
    segment->max_bits = (uint32_t *)(void *)batch->down_device + place;
    batch->results[place] = (struct result){entry->to, batch->down_used, bytes};
    segment->scales = batch->down_device + batch->down_used;
    segment->codes = batch->down_device + batch->down_used + entry->scales_bytes;
    batch->down_used += round_up_to(bytes, LINE);
    batch->ups[place].bytes = batch->downs[place].bytes = 0;
    if (entry->up_bytes == 0) return;
    memcpy(batch->up_host + batch->up_used, entry->up, entry->up_bytes);
    segment->exponents = batch->up_device + batch->up_used;
    batch->up_used += entry->up_bytes;
}

/* The batch for an entry, which the codec has joined; NULL: none. Under the lock. */
static struct device_batch *join_batch(struct weft_codec *codec, const struct demand *demand)
{
    struct codec_device *device = codec->device;
    struct weft_codec_batcher *batcher = device->at.batcher;
    if (!batcher->device_memory || batcher->is_refused || device->batch) return NULL;
    struct device_batch *batch = batch_for(batcher, demand, device_kernels(codec));
    if (!batch) return NULL;
    device->batch = batch;
    device->place = batch->count++;
    batch->members++;
    if (demand->key.stage != DEVICE_MATRIX_RESULT) device->part++;
    return batch;
}

bool device_batch_add(struct weft_codec *codec, const struct device_batch_entry *entry)
{
    struct weft_codec_batcher *batcher = codec->device->at.batcher;
    const struct demand demand = {.up_bytes = entry->up_bytes,
                                  .down_bytes = round_up_to(entry->scales_bytes + entry->codes_bytes, LINE)};
    if (!batcher || entry->segment.count > WEFT_SEGMENT_ELEMS_MAX) return false;
    pthread_mutex_lock(&batcher->lock);
    struct device_batch *batch = join_batch(codec, &demand);
    if (batch) entry_put(batch, entry, codec->device->place);
    pthread_mutex_unlock(&batcher->lock);
    return batch != NULL;
}

static void matrices_put(struct device_batch *batch, const struct device_matrix_job *job, uint32_t place)
{
    struct device_matrix_job *all = &batch->job;
    batch->segments[place].kind = WEFT_SEGMENT_NONE;
    batch->results[place].bytes = 0;
    batch->ups[place] = job->up;
    batch->downs[place] = job->down;
    for (uint32_t i = 0; i < job->before_count; i++) all->before[all->before_count++] = job->before[i];
    for (uint32_t i = 0; i < job->count; i++) {
        struct weft_matrix *matrix = &all->matrices[all->count++];
        *matrix = job->matrices[i];
        matrix->max_bits = (uint32_t *)(void *)batch->down_device + place;
    }
}

bool device_batch_add_matrices(struct weft_codec *codec, const struct device_matrix_job *job)
{
    struct weft_codec_batcher *batcher = codec->device->at.batcher;
    const struct demand demand = {.key = job->key, .before = job->before_count, .matrices = job->count};
    if (!batcher) return false;
    pthread_mutex_lock(&batcher->lock);
    struct device_batch *batch = join_batch(codec, &demand);
    if (batch) matrices_put(batch, job, codec->device->place);
    pthread_mutex_unlock(&batcher->lock);
    return batch != NULL;
}

enum weft_status device_batch_query(struct weft_codec *codec)
{
    struct codec_device *device = codec->device;
    struct weft_codec_batcher *batcher = device->at.batcher;
    struct device_batch *batch = device->batch;
    pthread_mutex_lock(&batcher->lock);
    if (!batch->is_queued) batch_queue(batcher, batch, device_kernels(codec));
    enum weft_status status = batch->status;
    if (status < 0) device->error = batch->error;
    else status = batcher->memory->passed(batch->event, &device->error);
    pthread_mutex_unlock(&batcher->lock);
    return status;
}

void device_batch_collect(struct weft_codec *codec)
{
    struct codec_device *device = codec->device;
    const struct device_batch *batch = device->batch;
    if (!batch) return;
    const struct result *result = &batch->results[device->place];
    memcpy(device->max_seen, batch->down_host + device->place * sizeof(uint32_t), sizeof *device->max_seen);
    if (result->bytes > 0) memcpy(result->to, batch->down_host + result->at, result->bytes);
    device_batch_leave(codec);
}

/* Queues the batch of the codec's entry if it is not queued. */
static enum weft_status queue_entry(struct weft_codec *codec)
{
    struct codec_device *device = codec->device;
    struct device_batch *batch = device->batch;
    int before;
    WEFT_TRY(device_enter(codec, &before));
    pthread_mutex_lock(&device->at.batcher->lock);
    if (!batch->is_queued) batch_queue(device->at.batcher, batch, device_kernels(codec));
    const enum weft_status status = batch->status < 0 ? batch->status : WEFT_OK;
    if (status < 0) device->error = batch->error;
    pthread_mutex_unlock(&device->at.batcher->lock);
    device_leave(codec, before);
    return status;
}

/* Matrices: a lazy residual is formed by the kernels of the entry, so these run. */
void device_batch_leave(struct weft_codec *codec)
{
    struct codec_device *device = codec->device;
    struct weft_codec_batcher *batcher = device->at.batcher;
    if (!device->batch || device->at.is_forked_child) return; /* a thread of the parent may have the lock */
    if (device->batch->job.key.stage != DEVICE_MATRIX_NONE) (void)queue_entry(codec);
    pthread_mutex_lock(&batcher->lock);
    member_leaves(device->batch, device->place);
    pthread_mutex_unlock(&batcher->lock);
    device->batch = NULL;
}

enum weft_status weft_codec_settle(struct weft_codec *codec)
{
    struct codec_device *device = codec->device;
    if (!device || !device->batch) return WEFT_OK;
    const enum weft_status status = queue_entry(codec);
    if (device->part == 0) device_batch_leave(codec); /* of a finish */
    return status;
}
