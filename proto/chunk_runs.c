/* chunk_runs.c - chunks of one length as one entry of a Declared message: offset, end, length, and the
 * endpoint of each chunk. The coordinator packs them; weft_control_unpack makes the list of chunks again. */
#include "proto/chunk_runs.h"

#include "proto/proto.h"

typedef Weft__Control__Chunk Chunk;
typedef Weft__Control__ChunkRun ChunkRun;

bool chunk_run_is_valid(const ChunkRun *run)
{
    if (run->cut == 0 || run->end <= run->offset) return false;
    const uint64_t elems = run->end - run->offset, count = elems / run->cut + (elems % run->cut != 0);
    if (count != run->n_endpoints) return false;
    for (size_t i = 0; i < run->n_endpoints; i++)
        if (run->endpoints[i] >= WEFT_LIMIT_ENDPOINTS) return false;
    return true;
}

static void chunk_of_run(const ChunkRun *run, size_t index, Chunk *chunk_out)
{
    weft__control__chunk__init(chunk_out);
    chunk_out->offset = run->offset + index * run->cut;
    const uint64_t left = run->end - chunk_out->offset;
    chunk_out->count = left < run->cut ? left : run->cut;
    chunk_out->endpoint = run->endpoints[index];
    chunk_out->candidate = run->candidate;
}

bool chunk_runs_expand(ProtobufCAllocator *allocator, Weft__Control__Declared *declared)
{
    size_t count = 0;
    for (size_t r = 0; r < declared->n_runs; r++) count += declared->runs[r]->n_endpoints;
    declared->chunks = allocator->alloc(allocator->allocator_data, count * sizeof *declared->chunks);
    if (!declared->chunks) return false;
    for (size_t r = 0; r < declared->n_runs; r++)
        for (size_t i = 0; i < declared->runs[r]->n_endpoints; i++) {
            Chunk *chunk = allocator->alloc(allocator->allocator_data, sizeof *chunk);
            if (!chunk) return false;
            chunk_of_run(declared->runs[r], i, chunk);
            declared->chunks[declared->n_chunks++] = chunk;
        }
    for (size_t r = 0; r < declared->n_runs; r++)
        weft__control__chunk_run__free_unpacked(declared->runs[r], allocator);
    allocator->free(allocator->allocator_data, declared->runs);
    declared->runs = NULL;
    declared->n_runs = 0;
    return true;
}

/* A chunk with a field that a run does not have stays in the list. */
static bool is_plain(const Chunk *chunk)
{
    Chunk plain = WEFT__CONTROL__CHUNK__INIT;
    plain.offset = chunk->offset;
    plain.count = chunk->count;
    plain.endpoint = chunk->endpoint;
    plain.candidate = chunk->candidate;
    return weft__control__chunk__get_packed_size(chunk) == weft__control__chunk__get_packed_size(&plain);
}

/* Does the chunk continue a run of chunks of the length `cut`, all of them whole? */
static bool continues(const ChunkRun *run, const Chunk *chunk)
{
    return chunk->candidate == run->candidate && chunk->offset == run->end && chunk->count <= run->cut &&
           (run->end - run->offset) % run->cut == 0;
}

bool weft_chunk_runs_make(const Chunk *chunks, size_t count, struct weft_chunk_runs *runs,
                          uint32_t *endpoints)
{
    ChunkRun *run = NULL;
    runs->count = 0;
    for (size_t i = 0; i < count; i++) {
        if (!is_plain(&chunks[i])) return false;
        if (!run || !continues(run, &chunks[i])) {
            if (runs->count == WEFT_LIMIT_CANDIDATES) return false;
            run = &runs->run[runs->count];
            runs->pointers[runs->count++] = run;
            weft__control__chunk_run__init(run);
            run->offset = run->end = chunks[i].offset;
            run->cut = chunks[i].count;
            run->candidate = chunks[i].candidate;
            run->endpoints = &endpoints[i];
        }
        endpoints[i] = chunks[i].endpoint;
        run->end += chunks[i].count;
        run->n_endpoints++;
    }
    return true;
}
