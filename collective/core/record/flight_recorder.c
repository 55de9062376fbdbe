/* flight_recorder.c - see flight_recorder.h. Each slot is a seqlock: its version is odd while the owner
 * writes it, and a reader drops a copy whose version has changed. */
#include "base/json_text.h"
#include "collective/collective.h"
#include "collective/flight_recorder.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

_Static_assert(sizeof(struct weft_record) % 8 == 0, "whole words");
#define RECORD_WORDS (sizeof(struct weft_record) / 8)

struct slot {
    _Atomic uint64_t version;
    _Atomic uint64_t number; /* of the record in this slot */
    _Atomic uint64_t words[RECORD_WORDS];
};

/* Position of the lengths of a record. The ring is endless: number i is words[i % capacity]. */
struct pieces {
    _Atomic uint64_t number; /* of their record, plus one; 0: none, or being written */
    _Atomic uint64_t first;
    _Atomic uint32_t in_count, out_count;
};

struct lengths {
    _Atomic uint64_t written; /* numbers whose write has begun, since the start */
    uint64_t capacity;
    struct pieces *of; /* (capacity,) */
    _Atomic uint64_t words[];
};

struct weft_recorder {
    struct weft_env *env;
    _Atomic uint64_t count;
    struct lengths *lengths; /* NULL: lengths are not kept */
    uint32_t capacity;
    uint32_t last; /* slot of the newest record; written by the owner. Avoids a division */
    struct slot slots[];
};

enum weft_status weft_recorder_create(struct weft_env *env, uint32_t capacity,
                                      struct weft_recorder **recorder_out)
{
    size_t bytes;
    if (capacity == 0 || __builtin_mul_overflow((size_t)capacity, sizeof(struct slot), &bytes))
        return WEFT_ERR_INVALID;
    struct weft_recorder *recorder = weft_alloc_zero(env, sizeof *recorder + bytes);
    if (!recorder) return WEFT_ERR_NO_MEMORY;
    recorder->env = env;
    recorder->capacity = capacity;
    recorder->last = capacity - 1;
    *recorder_out = recorder;
    return WEFT_OK;
}

void weft_recorder_free(struct weft_recorder *recorder)
{
    if (!recorder) return;
    if (recorder->lengths) weft_free_bytes(recorder->env, recorder->lengths->of);
    weft_free_bytes(recorder->env, recorder->lengths);
    weft_free_bytes(recorder->env, recorder);
}

enum weft_status weft_recorder_keep_lengths(struct weft_recorder *recorder, uint64_t numbers)
{
    if (numbers == 0 || numbers > SIZE_MAX / 2 / sizeof(uint64_t)) return WEFT_ERR_INVALID;
    struct lengths *lengths =
        weft_alloc_zero(recorder->env, sizeof *lengths + (size_t)numbers * sizeof(uint64_t));
    if (!lengths) return WEFT_ERR_NO_MEMORY;
    lengths->capacity = numbers;
    lengths->of = weft_alloc_zero(recorder->env, recorder->capacity * sizeof *lengths->of);
    if (!lengths->of) {
        weft_free_bytes(recorder->env, lengths);
        return WEFT_ERR_NO_MEMORY;
    }
    recorder->lengths = lengths;
    return WEFT_OK;
}

void weft_recorder_lengths(struct weft_recorder *recorder, uint64_t number, const uint64_t *in,
                           uint32_t in_count, const uint64_t *out, uint32_t out_count)
{
    struct lengths *lengths = recorder ? recorder->lengths : NULL;
    uint64_t total = (uint64_t)in_count + out_count;
    if (!lengths || total > lengths->capacity) return;
    struct pieces *pieces = &lengths->of[number % recorder->capacity];
    uint64_t first = atomic_load_explicit(&lengths->written, memory_order_relaxed);
    atomic_store_explicit(&pieces->number, 0, memory_order_relaxed);
    /* Release on the stores below, as in write_slot: a reader that sees any of them sees the 0 above and
     * the extent of the write. */
    atomic_store_explicit(&lengths->written, first + total, memory_order_release);
    for (uint64_t i = 0; i < total; i++)
        atomic_store_explicit(&lengths->words[(first + i) % lengths->capacity],
                              i < in_count ? in[i] : out[i - in_count], memory_order_release);
    atomic_store_explicit(&pieces->first, first, memory_order_release);
    atomic_store_explicit(&pieces->in_count, in_count, memory_order_release);
    atomic_store_explicit(&pieces->out_count, out_count, memory_order_release);
    atomic_store_explicit(&pieces->number, number + 1, memory_order_release);
}

/* Copies the lengths of record `number`, (in_count + out_count,). The caller frees them. NULL: none, or
 * overwritten. */
static uint64_t *take_lengths(struct weft_recorder *recorder, uint64_t number, uint32_t *in_count,
                              uint32_t *out_count)
{
    struct lengths *lengths = recorder->lengths;
    struct pieces *pieces = lengths ? &lengths->of[number % recorder->capacity] : NULL;
    if (!lengths || atomic_load_explicit(&pieces->number, memory_order_acquire) != number + 1) return NULL;
    uint64_t first = atomic_load_explicit(&pieces->first, memory_order_acquire);
    *in_count = atomic_load_explicit(&pieces->in_count, memory_order_acquire);
    *out_count = atomic_load_explicit(&pieces->out_count, memory_order_acquire);
    uint64_t total = (uint64_t)*in_count + *out_count;
    uint64_t *taken = total <= lengths->capacity
                          ? weft_alloc_zero(recorder->env, (size_t)(total + 1) * sizeof *taken)
                          : NULL;
    if (!taken) return NULL;
    for (uint64_t i = 0; i < total; i++)
        taken[i] =
            atomic_load_explicit(&lengths->words[(first + i) % lengths->capacity], memory_order_acquire);
    bool whole = atomic_load_explicit(&lengths->written, memory_order_relaxed) <= first + lengths->capacity &&
                 atomic_load_explicit(&pieces->number, memory_order_relaxed) == number + 1;
    if (whole) return taken;
    weft_free_bytes(recorder->env, taken);
    return NULL;
}

/* Owner's thread. NULL: overwritten. */
static struct slot *own_slot(struct weft_recorder *recorder, uint64_t number)
{
    uint64_t count = atomic_load_explicit(&recorder->count, memory_order_relaxed);
    if (number + 1 == count) return &recorder->slots[recorder->last];
    return number + recorder->capacity < count ? NULL : &recorder->slots[number % recorder->capacity];
}

static __attribute__((noinline)) void write_slot(struct slot *slot, uint64_t number,
                                                 const struct weft_record *record)
{
    uint64_t version = atomic_load_explicit(&slot->version, memory_order_relaxed);
    atomic_store_explicit(&slot->version, version + 1, memory_order_relaxed);
    /* Release on each word: a reader that sees a new word also sees the odd version (as in event_ring.c). */
    atomic_store_explicit(&slot->number, number, memory_order_release);
#pragma GCC unroll 16
    for (size_t i = 0; i < RECORD_WORDS; i++) {
        /* one word at a time: a vector load of bytes that were just stored would wait for these stores */
        uint64_t word;
        memcpy(&word, (const char *)record + i * sizeof word, sizeof word);
        atomic_store_explicit(&slot->words[i], word, memory_order_release);
    }
    atomic_store_explicit(&slot->version, version + 2, memory_order_release);
}

uint64_t weft_recorder_add(struct weft_recorder *recorder, const struct weft_record *record)
{
    if (!recorder) return 0;
    uint64_t number = atomic_load_explicit(&recorder->count, memory_order_relaxed);
    recorder->last = recorder->last + 1 < recorder->capacity ? recorder->last + 1 : 0;
    write_slot(&recorder->slots[recorder->last], number, record);
    atomic_store_explicit(&recorder->count, number + 1, memory_order_release);
    return number;
}

void weft_recorder_update(struct weft_recorder *recorder, uint64_t number, const struct weft_record *record)
{
    struct slot *slot = recorder ? own_slot(recorder, number) : NULL;
    if (slot) write_slot(slot, number, record);
}

#define WORD_OF(field) (offsetof(struct weft_record, field) / 8)
struct word_of_status { /* layout as in struct weft_record */
    uint32_t peer;
    int32_t status;
};
_Static_assert(offsetof(struct weft_record, peer) % 8 == 0 &&
                   offsetof(struct weft_record, status) == offsetof(struct weft_record, peer) + 4,
               "one word");
_Static_assert(offsetof(struct weft_record, ended_ns) % 8 == 0 &&
                   offsetof(struct weft_record, phase) % 8 == 0 && sizeof(char *) == 8,
               "a word each");

void weft_recorder_end(struct weft_recorder *recorder, uint64_t number, uint64_t ended_ns)
{
    static const char *const phase = "done";
    struct slot *slot = recorder ? own_slot(recorder, number) : NULL;
    struct word_of_status pair;
    uint64_t status, name;
    if (!slot) return;
    status = atomic_load_explicit(&slot->words[WORD_OF(peer)], memory_order_relaxed);
    memcpy(&pair, &status, sizeof pair);
    pair.status = WEFT_OK;
    memcpy(&status, &pair, sizeof status);
    memcpy(&name, &phase, sizeof name);
    uint64_t version = atomic_load_explicit(&slot->version, memory_order_relaxed);
    atomic_store_explicit(&slot->version, version + 1, memory_order_relaxed);
    atomic_store_explicit(&slot->words[WORD_OF(ended_ns)], ended_ns, memory_order_release);
    atomic_store_explicit(&slot->words[WORD_OF(phase)], name, memory_order_release);
    atomic_store_explicit(&slot->words[WORD_OF(peer)], status, memory_order_release);
    atomic_store_explicit(&slot->version, version + 2, memory_order_release);
}

bool weft_recorder_read(struct weft_recorder *recorder, uint64_t number, struct weft_record *record_out)
{
    struct slot *slot = &recorder->slots[number % recorder->capacity];
    uint64_t words[RECORD_WORDS];
    if (number >= weft_recorder_count(recorder)) return false;
    uint64_t version = atomic_load_explicit(&slot->version, memory_order_acquire);
    bool mine = atomic_load_explicit(&slot->number, memory_order_acquire) == number;
    for (size_t i = 0; i < RECORD_WORDS; i++)
        words[i] = atomic_load_explicit(&slot->words[i], memory_order_acquire);
    if (version % 2 || !mine || atomic_load_explicit(&slot->version, memory_order_relaxed) != version)
        return false;
    memcpy(record_out, words, sizeof *record_out);
    return true;
}

uint64_t weft_recorder_count(struct weft_recorder *recorder)
{
    return atomic_load_explicit(&recorder->count, memory_order_acquire);
}

uint32_t weft_recorder_capacity(const struct weft_recorder *recorder) { return recorder->capacity; }

static void dump_numbers(const char *name, const uint64_t *numbers, uint32_t count, FILE *out)
{
    fprintf(out, ",\"%s\":[", name);
    for (uint32_t i = 0; i < count; i++) fprintf(out, "%s%" PRIu64, i ? "," : "", numbers[i]);
    fputs("]", out);
}

static void dump_lengths(struct weft_recorder *recorder, uint64_t number, FILE *out)
{
    uint32_t in_count, out_count;
    uint64_t *lengths = take_lengths(recorder, number, &in_count, &out_count);
    if (!lengths) return;
    dump_numbers("lengths", lengths, in_count, out);
    if (out_count) dump_numbers("lengths_out", lengths + in_count, out_count, out);
    weft_free_bytes(recorder->env, lengths);
}

static void dump_record(struct weft_recorder *recorder, uint64_t number, const struct weft_record *r,
                        FILE *out)
{
    fprintf(out,
            "{\"group\":%" PRIu32 ",\"epoch\":%" PRIu32 ",\"rank\":%" PRIu32 ",\"ranks\":%" PRIu32
            ",\"members\":%" PRIu32,
            r->group, r->epoch, r->rank, r->ranks, r->members_hash);
    /* sends and recvs have no sequence */
    if (r->sequence <= INT64_MAX) fprintf(out, ",\"sequence\":%" PRIu64, r->sequence);
    fprintf(out,
            ",\"kind\":\"%s\",\"count\":%" PRIu64 ",\"dtype\":\"%s\",\"op\":\"%s\",\"root\":%" PRIu32
            ",\"plan\":\"%s\"",
            weft_coll_kind_name(r->kind), r->count, r->dtype ? weft_dtype_name(r->dtype) : "",
            r->op ? weft_op_name(r->op) : "", r->root, weft_plan_name(r->plan));
    fprintf(out,
            ",\"posted_ns\":%" PRIu64 ",\"started_ns\":%" PRIu64 ",\"ended_ns\":%" PRIu64
            ",\"steps\":%" PRIu64 ",\"phase\":\"%s\"",
            r->posted_ns, r->started_ns, r->ended_ns, r->steps, r->phase ? r->phase : "");
    if (r->peer != WEFT_RECORD_NO_PEER) fprintf(out, ",\"peer\":%" PRIu32, r->peer);
    dump_lengths(recorder, number, out);
    fprintf(out, ",\"status\":\"%s\"}", weft_status_name(r->status));
}

void weft_recorder_dump(struct weft_recorder *recorder, FILE *out)
{
    uint64_t end = weft_recorder_count(recorder),
             first = end > recorder->capacity ? end - recorder->capacity : 0;
    bool any = false;
    fprintf(out, "\"recorded\":%" PRIu64 ",\"capacity\":%" PRIu32 ",\"operations\":[", end,
            recorder->capacity);
    for (uint64_t number = first; number < end; number++) {
        struct weft_record record;
        if (!weft_recorder_read(recorder, number, &record)) continue;
        fputs(any ? ",\n" : "\n", out);
        any = true;
        dump_record(recorder, number, &record, out);
    }
    fputs("\n]", out);
}
