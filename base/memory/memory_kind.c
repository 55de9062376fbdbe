/* memory_kind.c - selects the table of operations of a memory kind. A kind of device is one row here. */
#include "base/memory/memory_kind.h"

#include "base/memory/memory_cuda.h"
#include "base/memory/memory_library.h"

static const struct kind {
    enum weft_memory_kind kind;
    enum weft_status (*ops)(const struct weft_memory_ops **ops_out, struct weft_error *error);
    bool (*in_use)(void);
    /* NULL: it exports none */
    enum weft_status (*dmabuf)(const void *address, size_t bytes, int *descriptor_out, uint64_t *offset_out,
                               struct weft_error *error);
    enum weft_status (*flush)(struct weft_error *error); /* NULL: other devices cannot write to it */
} kinds[] = {
    {WEFT_MEMORY_CUDA, memory_cuda_ops, memory_cuda_in_use, memory_cuda_dmabuf, memory_cuda_flush},
    {WEFT_MEMORY_DEVICE, memory_library_ops, memory_library_in_use, NULL, NULL},
};
#define KIND_COUNT (sizeof kinds / sizeof *kinds)

static const struct kind *kind_find(enum weft_memory_kind kind)
{
    for (size_t i = 0; i < KIND_COUNT; i++)
        if (kinds[i].kind == kind) return &kinds[i];
    return NULL;
}

static enum weft_status not_a_device(enum weft_memory_kind kind, struct weft_error *error)
{
    return (enum weft_status)weft_error_set(
        error, WEFT_ERR_INVALID,
        "memory kind %d is none that lies on a device (WEFT_MEMORY_CUDA, WEFT_MEMORY_DEVICE)", (int)kind);
}

enum weft_status weft_memory_ops(enum weft_memory_kind kind, const struct weft_memory_ops **ops_out,
                                 struct weft_error *error)
{
    const struct kind *found = kind_find(kind);
    return found ? found->ops(ops_out, error) : not_a_device(kind, error);
}

bool weft_memory_in_use(enum weft_memory_kind kind)
{
    const struct kind *found = kind_find(kind);
    return found && found->in_use();
}

bool weft_memory_device_in_use(void)
{
    for (size_t i = 0; i < KIND_COUNT; i++)
        if (kinds[i].in_use()) return true;
    return false;
}

bool weft_memory_is_kind(int kind)
{
    return kind >= WEFT_MEMORY_HOST && kind <= WEFT_MEMORY_DEVICE;
}

enum weft_status weft_memory_dmabuf(enum weft_memory_kind kind, const void *address, size_t bytes,
                                    int *descriptor_out, uint64_t *offset_out, struct weft_error *error)
{
    const struct kind *found = kind_find(kind);
    if (!found) return not_a_device(kind, error);
    if (!found->dmabuf)
        return (enum weft_status)weft_error_set(
            error, WEFT_ERR_UNSUPPORTED,
            "memory kind %d exports no dma-buf: copy %zu bytes at %p to the host first", (int)kind, bytes,
            address);
    return found->dmabuf(address, bytes, descriptor_out, offset_out, error);
}

enum weft_status weft_memory_flush(enum weft_memory_kind kind, struct weft_error *error)
{
    const struct kind *found = kind_find(kind);
    if (!found) return not_a_device(kind, error);
    if (!found->flush)
        return (enum weft_status)weft_error_set(error, WEFT_ERR_UNSUPPORTED,
                                                "memory kind %d takes no writes of other devices", (int)kind);
    return found->flush(error);
}
