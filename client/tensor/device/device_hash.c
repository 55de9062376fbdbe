/* device_hash.c - see device_hash.h. One copy at a time, on a stream of its own: no request of the tensor is
 * open, so the last result has arrived. */
#include "client/tensor/device/device_hash.h"

#include "client/session/session.h"
#include "client/tensor/device/device_wait.h"
#include "client/tensor/tensor.h"
#include "proto/proto.h"

#define COPY_NS WEFT_SECONDS(30)
enum { PAGE = 4096, WINDOW_BYTES = 4 << 20 };

struct reader {
    struct weft_codec_device at; /* memory, number, stream: owned */
    void *event;                 /* owned */
    uint8_t *block, *window;     /* owned; (WINDOW_BYTES,) in it */
    void *hash;                  /* owned: weft_weight_hash_begin */
    bool is_pinned;              /* else copies are slower */
};

static enum weft_status reader_open(struct reader *reader, struct weft_env *env, struct weft_error *error)
{
    const struct weft_memory_ops *memory = reader->at.memory;
    reader->hash = weft_weight_hash_begin();
    reader->block = weft_alloc_bytes(env, WINDOW_BYTES + PAGE);
    if (!reader->block || !reader->hash)
        return (enum weft_status)weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for a window");
    reader->window = reader->block + (PAGE - (uintptr_t)reader->block % PAGE) % PAGE;
    reader->is_pinned = memory->pin(reader->window, WINDOW_BYTES, NULL) == WEFT_OK;
    WEFT_TRY(memory->stream_create(&reader->at.stream, error));
    return memory->event_create(&reader->event, error);
}

static enum weft_status read_all(struct reader *reader, const struct weft_tensor *tensor,
                                 struct weft_error *error)
{
    const struct weft_memory_ops *memory = reader->at.memory;
    for (size_t at = 0; at < tensor->bytes; at += WINDOW_BYTES) {
        const size_t bytes = tensor->bytes - at < WINDOW_BYTES ? tensor->bytes - at : WINDOW_BYTES;
        WEFT_TRY(memory->copy(reader->window, (const uint8_t *)tensor->buffers.weights + at, bytes,
                              reader->at.stream, error));
        WEFT_TRY(memory->record(reader->event, reader->at.stream, error));
        WEFT_TRY(client_device_wait(&reader->at, reader->event, tensor->session->env, COPY_NS, error));
        weft_weight_hash_add(reader->hash, reader->window, bytes);
    }
    return WEFT_OK;
}

static void reader_close(struct reader *reader, struct weft_env *env)
{
    const struct weft_memory_ops *memory = reader->at.memory;
    memory->event_free(reader->event);
    memory->stream_free(reader->at.stream);
    if (reader->is_pinned) memory->unpin(reader->window);
    if (reader->block) weft_free_bytes(env, reader->block);
}

enum weft_status client_device_hash_weights(const struct weft_tensor *tensor, uint64_t *hash_out,
                                            struct weft_error *error)
{
    struct reader reader = {.is_pinned = false};
    struct weft_env *env = tensor->session->env;
    enum weft_memory_kind kind;
    int before;
    WEFT_TRY(weft_memory_ops(tensor->buffers.memory, &reader.at.memory, error));
    WEFT_TRY(reader.at.memory->find(tensor->buffers.weights, &kind, &reader.at.number, error));
    if (!weft_memory_is_device(kind)) {
        *hash_out = weft_weight_hash(tensor->buffers.weights, tensor->bytes);
        return WEFT_OK;
    }
    WEFT_TRY(reader.at.memory->enter(reader.at.number, &before, error));
    enum weft_status status = reader_open(&reader, env, error);
    if (status == WEFT_OK) status = read_all(&reader, tensor, error);
    /* after a deadline the device may still write into the window, so it is kept */
    if (status != WEFT_ERR_DEADLINE) reader_close(&reader, env);
    reader.at.memory->leave(before);
    *hash_out = weft_weight_hash_end(reader.hash);
    return status;
}
