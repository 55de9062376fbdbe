/* fuzz_store.c - the file of a store: any bytes are refused and left as they are, or become a store that
 * takes a transaction and is the same after it is opened again.
 *
 * Input: a file; or 'B' and the body of a record behind its chain, which gets a valid head. */
#include <stdlib.h>
#include <string.h>

#include "coordinator/store/file.h"
#include "coordinator/store/state.h"
#include "proto/proto.h"
#include "tests/coordinator/store/memory_disk.h"
#include "tests/fuzz/fuzz.h"

#define BYTES_MAX 65536u

static void count(void *context, const struct weft_store_entry *entry)
{
    size_t *sum = context;
    *sum += strlen(entry->key) + entry->bytes; /* the sanitizer checks both */
    for (size_t i = 0; i < entry->bytes; i++) *sum += entry->value[i];
}

static size_t sum_of(struct weft_store *store, uint64_t *revision_out)
{
    size_t sum = 0;
    if (weft_store_snapshot(store, "", count, &sum, revision_out) < 0) abort();
    return sum;
}

static void use(struct memory_disk *memory, struct weft_store *store)
{
    const struct weft_store_put put = {"key", "value", 5, 0};
    const struct weft_store_txn txn = {.puts = &put, .put_count = 1};
    struct weft_store *again;
    uint64_t revision, revision_again;
    if (weft_store_txn(store, &txn, NULL) < 0) abort();
    const size_t sum = sum_of(store, &revision);
    weft_store_close(store);
    if (store_file_open(weft_env_system(), &memory->disk, "x", &again, NULL) < 0) abort();
    /* leases of an input may end between the two */
    if (sum_of(again, &revision_again) > sum || revision_again < revision) abort();
    weft_store_close(again);
}

/* Returns the length of the file that it writes. */
static size_t write_input(const uint8_t *data, size_t bytes, uint8_t *out)
{
    if (bytes == 0 || data[0] != 'B') {
        if (bytes > 0) memcpy(out, data, bytes);
        return bytes;
    }
    uint8_t *record = out + 8, *body = record + STORE_RECORD_HEAD_BYTES;
    const size_t body_bytes = 8 + bytes - 1;
    memcpy(out, "WEFTSTO1", 8);
    memset(record, 0, STORE_RECORD_HEAD_BYTES + 8);
    memcpy(body + 8, data + 1, bytes - 1);
    put_le32(record, (uint32_t)body_bytes);
    put_le64(record + 8, weft_bytes_hash(body, body_bytes));
    return 8 + STORE_RECORD_HEAD_BYTES + body_bytes;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct memory_disk memory;
    static uint8_t input[BYTES_MAX + 64];
    struct weft_store *store;
    if (bytes > BYTES_MAX) return 0;
    memory_disk_init(&memory, 1);
    bytes = write_input(data, bytes, input);
    memcpy(memory.file->now, input, bytes);
    memory.file->now_bytes = bytes;
    const enum weft_status status = store_file_open(weft_env_system(), &memory.disk, "x", &store, NULL);
    if (status == WEFT_OK) use(&memory, store);
    else if (memory.file->now_bytes != bytes || memcmp(memory.file->now, input, bytes) != 0) abort();
    return 0;
}

/* ---- valid files ---- */

size_t weft_fuzz_seed(uint64_t number, uint8_t *out, size_t capacity)
{
    struct store_change changes[3] = {
        {.kind = STORE_LEASE, .entry.lease = 1, .ttl_ns = WEFT_SECONDS(1000)},
        {.kind = STORE_PUT, .entry = {"reign", (const uint8_t *)"a", 1, 2, 2, 1}},
        {.kind = STORE_PUT, .entry = {"jobs/a/epoch", NULL, 0, 2, 2, 0}},
    };
    const struct store_change last[] = {
        {.kind = STORE_BEAT, .entry.lease = 1},
        {.kind = STORE_REVOKE, .entry.lease = 1},
        {.kind = STORE_DELETE, .entry.key = "jobs/a/epoch"},
    };
    size_t bytes = 8;
    uint64_t chain = 0;
    const size_t first_bytes = store_record_bytes(changes, 3),
                 last_bytes = store_record_bytes(last, number % 4);
    if (capacity < bytes + first_bytes + last_bytes) return 0;
    memcpy(out, "WEFTSTO1", 8);
    chain = store_record_encode(changes, 3, 2, chain, out + bytes);
    if (number % 3 == 0) { /* its body */
        const size_t skipped = 8 + STORE_RECORD_HEAD_BYTES + 8;
        out[0] = 'B';
        memmove(out + 1, out + skipped, 8 + first_bytes - skipped);
        return 1 + 8 + first_bytes - skipped;
    }
    bytes += first_bytes;
    (void)store_record_encode(last, number % 4, 3, chain, out + bytes);
    bytes += last_bytes;
    return number % 5 == 0 ? bytes - number % last_bytes : bytes; /* a torn tail */
}
