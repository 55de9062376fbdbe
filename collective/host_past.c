/* host_past.c - which results of the one-host plan are written past the caches.
 *
 * A store brings its line into the cache first, and pushes another out. Where all buffers of all ranks together do not stay in the last cache anyway, that is
 * a pass over memory for nothing. A sum has several sources for each store, and gains as soon as they are a quarter of the last cache; a copy has one,
 * which its other readers or the next operation find there, and gains only from half as much again as the whole of it on. What goes through
 * stages is in the cache once more. Measured with readers of the results behind the operations,
 * 2 to 8 ranks on two processors with 32 MiB (docs/performance.md): what decides is not the vector's length, but that of all buffers.
 *
 * But a last cache that is shown larger is shared with other machines, or not all its parts are near: with 480 MiB of it, copies past the cache are slower
 * up to 32 MiB of two ranks and faster from 64 on. */
#include "collective/host.h"

enum { LAST_LEAST = 32 << 20, LAST_MOST = 128 << 20 };

size_t host_past_bytes(void)
{
    const size_t bytes = weft_last_cache_bytes();
    return bytes < LAST_LEAST ? LAST_LEAST : bytes > LAST_MOST ? LAST_MOST : bytes;
}

/* Of all ranks. */
static uint64_t buffer_bytes(const struct weft_coll *coll)
{
    uint64_t vector = host_vector_elems(coll) * coll->elem_bytes, ranks = coll->group->ranks;
    switch (coll->args.kind) {
    case WEFT_COLL_ALL_REDUCE: return 2 * ranks * vector;
    case WEFT_COLL_BROADCAST: return ranks * vector;
    case WEFT_COLL_GATHER:
    case WEFT_COLL_SCATTER: return 2 * ranks * vector; /* of these it is a piece */
    case WEFT_COLL_ALL_TO_ALL: return 2 * ranks * ranks * vector;
    default: return (ranks + 1) * vector; /* a vector at each rank, and one in pieces or at the root */
    }
}

bool host_sums_past(const struct host *host, const struct weft_coll *coll) { return buffer_bytes(coll) >= host->past_bytes / 4; }
bool host_copies_past(const struct host *host, const struct weft_coll *coll) { return buffer_bytes(coll) >= host->past_bytes / 2 * 3; }
bool host_stages_past(const struct host *host, const struct weft_coll *coll) { return buffer_bytes(coll) >= 2 * host->past_bytes; }
