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

enum { BATCHES = 4, LINE = 64, PAGE = 4096 };
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
    struct device_batch *collecting; /* NULL: none */
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

void device_batch_reserve(struct weft_codec *codec, size_t elems)
{
    struct weft_codec_batcher *batcher = codec->device->at.batcher;
    if (!batcher || elems > WEFT_SEGMENT_ELEMS_MAX) return;
    pthread_mutex_lock(&batcher->lock);
    if (!batcher->device_memory && !batcher->is_refused) batcher->is_refused = reserve(batcher) < 0;
    pthread_mutex_unlock(&batcher->lock);
}

/* ---- under the lock ---- */

static void batch_reset(struct device_batch *batch)
{
    batch->count = batch->members = 0;
    batch->is_queued = false;
    batch->status = WEFT_OK;
    batch->up_used = 0;
    batch->down_used = WORDS_BYTES;
}

static enum weft_status queue_batch(struct weft_codec_batcher *batcher, struct device_batch *batch,
                                    const struct weft_device_kernels *kernels)
{
    const struct weft_memory_ops *memory = batcher->memory;
    struct weft_error *error = &batch->error;
    void *stream = batcher->stream;
    WEFT_TRY(memory->zero(batch->down_device, WORDS_BYTES, stream, error));
    if (batch->up_used > 0)
        WEFT_TRY(memory->copy(batch->up_device, batch->up_host, batch->up_used, stream, error));
    const enum weft_status status = kernels->encode_segments(batch->segments, batch->count, stream);
    if (status < 0)
        return (enum weft_status)weft_error_set(error, WEFT_ERR_STATE,
                                                "%s: the kernel of %u small tensors could not be queued: %s",
                                                memory->name, batch->count, weft_status_text(status));
    WEFT_TRY(memory->copy(batch->down_host, batch->down_device, batch->down_used, stream, error));
    return memory->record(batch->event, stream, error);
}

static void batch_queue(struct weft_codec_batcher *batcher, struct device_batch *batch,
                        const struct weft_device_kernels *kernels)
{
    if (batcher->collecting == batch) batcher->collecting = NULL;
    batch->is_queued = true;
    batch->status = queue_batch(batcher, batch, kernels);
}

static bool has_space(const struct device_batch *batch, const struct device_batch_entry *entry)
{
    return batch->count < WEFT_SEGMENTS_MAX && batch->up_used + entry->up_bytes <= UP_BYTES &&
           batch->down_used + round_up_to(entry->scales_bytes + entry->codes_bytes, LINE) <= DOWN_BYTES;
}

/* The batch that collects, with space for the entry; NULL: none is idle. */
static struct device_batch *batch_for(struct weft_codec_batcher *batcher,
                                      const struct device_batch_entry *entry,
                                      const struct weft_device_kernels *kernels)
{
    if (batcher->collecting && !has_space(batcher->collecting, entry))
        batch_queue(batcher, batcher->collecting, kernels);
    for (int b = 0; b < BATCHES && !batcher->collecting; b++) {
        if (batcher->batches[b].members > 0) continue;
        batcher->collecting = &batcher->batches[b];
        batch_reset(batcher->collecting);
    }
    if (!batcher->collecting || !has_space(batcher->collecting, entry)) return NULL;
    return batcher->collecting;
}

static void member_leaves(struct weft_codec_batcher *batcher, struct device_batch *batch, uint32_t place)
{
    if (!batch->is_queued) batch->segments[place].kind = WEFT_SEGMENT_NONE;
    if (--batch->members == 0 && batcher->collecting == batch) batcher->collecting = NULL;
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
    if (entry->up_bytes == 0) return;
    memcpy(batch->up_host + batch->up_used, entry->up, entry->up_bytes);
    segment->exponents = batch->up_device + batch->up_used;
    batch->up_used += entry->up_bytes;
}

bool device_batch_add(struct weft_codec *codec, const struct device_batch_entry *entry)
{
    struct codec_device *device = codec->device;
    struct weft_codec_batcher *batcher = device->at.batcher;
    if (!batcher || entry->segment.count > WEFT_SEGMENT_ELEMS_MAX) return false;
    pthread_mutex_lock(&batcher->lock);
    const bool is_ready = batcher->device_memory && !batcher->is_refused;
    struct device_batch *batch = is_ready ? batch_for(batcher, entry, device_kernels(codec)) : NULL;
    if (batch) {
        device->batch = batch;
        device->place = batch->count++;
        batch->members++;
        entry_put(batch, entry, device->place);
        device->part++;
    }
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

void device_batch_leave(struct weft_codec *codec)
{
    struct codec_device *device = codec->device;
    struct weft_codec_batcher *batcher = device->at.batcher;
    if (!device->batch || device->at.is_forked_child) return; /* a thread of the parent may have the lock */
    pthread_mutex_lock(&batcher->lock);
    member_leaves(batcher, device->batch, device->place);
    pthread_mutex_unlock(&batcher->lock);
    device->batch = NULL;
}

void weft_codec_settle(struct weft_codec *codec)
{
    struct codec_device *device = codec->device;
    if (!device || !device->batch) return;
    pthread_mutex_lock(&device->at.batcher->lock);
    if (!device->batch->is_queued) batch_queue(device->at.batcher, device->batch, device_kernels(codec));
    pthread_mutex_unlock(&device->at.batcher->lock);
}
