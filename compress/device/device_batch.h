/* device_batch.h - small tensors that become ready together are encoded by one launch, and matrices of one
 * shape by one launch of each kernel.
 *
 *     encode, part 0   device_batch_add: an entry of the batch that collects; nothing is queued
 *     first query      queues the batch: one copy up, one launch (encode_segments), one copy down, one event
 *     encode, part 1   after the event: device_batch_collect copies this codec's bytes out of the batch
 *
 * A caller polls an encode some 20 us after it began (weft_memory_look_ns), so encodes of that time share a
 * launch. A batch is also queued when it is full. If no batch is idle, device_batch_add returns false and the
 * codec launches its own kernels: the bits are equal. Any thread: a mutex guards the batches. Private to the
 * module. */
#ifndef WEFT_COMPRESS_DEVICE_DEVICE_BATCH_H
#define WEFT_COMPRESS_DEVICE_DEVICE_BATCH_H

#include "compress/device/device.h"
#include "kernels/device_matrix.h"
#include "kernels/device_segment.h"

/* What one codec adds. The batch sets max_bits of the segment, and pointers of the parts that have bytes. */
struct device_batch_entry {
    struct weft_segment segment;
    const uint8_t *up; /* host (up_bytes,): becomes `exponents`; copied here */
    size_t up_bytes;
    uint8_t *to; /* host: the scales, then the codes, at the collection */
    size_t scales_bytes, codes_bytes;
};

/* What one codec adds for its matrices (device_powersgd.c). Members of a batch have one stage and shape. */
enum device_matrix_stage {
    DEVICE_MATRIX_NONE = 0, /* the batch has segments */
    DEVICE_MATRIX_FIRST,    /* before: m = m - p^T q; then m = a*factor + b, p = m q */
    DEVICE_MATRIX_P,        /* p = m q */
    DEVICE_MATRIX_Q,        /* before: p is orthogonalised; then q = m^T p */
    DEVICE_MATRIX_RESULT,   /* m = p^T q; of a finish: ends with weft_codec_settle */
};
struct device_matrix_key {
    enum device_matrix_stage stage;
    size_t rows, cols, rank;
};
struct device_matrix_copy {
    void *to;
    const void *from;
    size_t bytes;
};
struct device_matrix_job {
    struct device_matrix_key key;
    struct weft_matrix before[WEFT_MATRICES_MAX], matrices[WEFT_MATRICES_MAX];
    uint32_t before_count, count;
    struct device_matrix_copy up, down; /* before and behind the kernels; 0 bytes: none */
};

/* Allocates the memory of the batches, once. Without memory each codec launches its own kernels. The device
 * is current. */
void device_batch_reserve(struct weft_codec *codec);
/* True: the entry is in a batch and the part of the encode is begun. The device is current. */
bool device_batch_add(struct weft_codec *codec, const struct device_batch_entry *entry);
/* The same for matrices; max_bits of those of the first stage is the batch's. */
bool device_batch_add_matrices(struct weft_codec *codec, const struct device_matrix_job *job);
/* Queues the kernels of a stage, one launch of each (device_matrix.c). At most WEFT_MATRICES_MAX of both. */
enum weft_status device_matrix_launch(const struct weft_device_kernels *kernels,
                                      const struct device_matrix_key *key, const struct weft_matrix *before,
                                      size_t before_count, const struct weft_matrix *matrices, size_t count,
                                      void *stream);
/* State of the codec's entry; queues its batch if it is not queued. The device is current. */
enum weft_status device_batch_query(struct weft_codec *codec);
/* After device_batch_query returned WEFT_OK: copies the bytes to `to` and the maximum to max_seen. */
void device_batch_collect(struct weft_codec *codec);
/* The codec no longer wants its entry: that of a small tensor is dropped, kernels of matrices are queued. No
 * effect without an entry, or in a forked child. */
void device_batch_leave(struct weft_codec *codec);

#endif
