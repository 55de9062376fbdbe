/* shm_ring.c - both ends of a ring. Layout and rules: shm_ring.h. */
#include "transport/shm/shm_ring.h"

#include <string.h>

bool ring_writer_refresh(struct ring_writer *writer)
{
    uint64_t cells = atomic_load_explicit(&writer->shared->reader.cells_taken, memory_order_acquire);
    uint64_t bytes = atomic_load_explicit(&writer->shared->reader.bytes_taken, memory_order_relaxed);
    if (cells < writer->cells_taken || cells > writer->cells) return false;
    if (bytes < writer->bytes_taken || bytes > writer->bytes) return false;
    writer->cells_taken = cells;
    writer->bytes_taken = bytes;
    return true;
}

static bool has_space(const struct ring_writer *writer, size_t data_bytes)
{
    if (writer->cells - writer->cells_taken >= RING_CELLS) return false;
    if (data_bytes == 0) return true;
    return ring_data_start(writer->bytes, data_bytes) + ring_align(data_bytes) - writer->bytes_taken <=
           RING_DATA_BYTES;
}

bool ring_writer_space(struct ring_writer *writer, size_t data_bytes, bool *broken_out)
{
    if (has_space(writer, data_bytes)) return true;
    if (!ring_writer_refresh(writer)) *broken_out = true;
    return !*broken_out && has_space(writer, data_bytes);
}

bool ring_writer_wait(struct ring_writer *writer, size_t data_bytes, bool *broken_out)
{
    if (!writer->is_waiting) {
        writer->is_waiting = true;
        atomic_store_explicit(&writer->shared->writer.is_waiting, 1, memory_order_relaxed);
        atomic_thread_fence(memory_order_seq_cst);
    }
    if (!ring_writer_space(writer, data_bytes, broken_out)) return false;
    writer->is_waiting = false;
    atomic_store_explicit(&writer->shared->writer.is_waiting, 0, memory_order_relaxed);
    return true;
}

void *ring_writer_data(struct ring_writer *writer, size_t data_bytes)
{
    uint64_t start = ring_data_start(writer->bytes, data_bytes);
    writer->bytes = start + ring_align(data_bytes);
    return &writer->shared->data[start % RING_DATA_BYTES];
}

void ring_reader_copy(const struct ring_reader *reader, struct ring_cell *cell_out)
{
    memcpy(cell_out, &reader->shared->cells[reader->at], sizeof *cell_out);
    atomic_signal_fence(memory_order_seq_cst); /* the copy is checked, not the original again */
}

const uint8_t *ring_reader_data(const struct ring_reader *reader, size_t data_bytes)
{
    if (data_bytes > RING_DATA_BYTES) return NULL;
    uint64_t start = ring_data_start(reader->bytes, data_bytes);
    /* more than the writer may have in flight */
    if (start + ring_align(data_bytes) - reader->bytes_reported > RING_DATA_BYTES) return NULL;
    return &reader->shared->data[start % RING_DATA_BYTES];
}

bool ring_reader_report(struct ring_reader *reader)
{
    reader->cells_reported = reader->cells;
    reader->bytes_reported = reader->bytes;
    atomic_store_explicit(&reader->shared->reader.bytes_taken, reader->bytes, memory_order_relaxed);
    atomic_store_explicit(&reader->shared->reader.cells_taken, reader->cells, memory_order_release);
    atomic_thread_fence(memory_order_seq_cst);
    return atomic_load_explicit(&reader->shared->writer.is_waiting, memory_order_relaxed) != 0;
}
