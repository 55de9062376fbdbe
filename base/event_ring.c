/* event_ring.c - memory and dumps of the flight recorder.
 *
 *     writer (engine thread)           reader (any thread)
 *     slot.sequence = odd              before = slot.sequence  -> must be the expected even number
 *     slot.words    = event            copy words
 *     slot.sequence = even             slot.sequence == before -> the copy is consistent
 *
 * A slot is a sequence lock. Event n is in slot n % capacity, and complete while the sequence is 2n + 2. The
 * event is stored as relaxed atomic words, so a torn read is defined and the sequence check discards it. The
 * writer never waits. */
#include "base/event_ring.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#include "base/json_text.h"

#define EVENT_WORDS ((sizeof(struct weft_event) + 7) / 8)

struct slot {
    _Atomic uint64_t sequence;
    _Atomic uint64_t words[EVENT_WORDS];
};

struct weft_event_ring {
    struct weft_env *env;
    _Atomic uint64_t count; /* events added so far */
    uint32_t capacity;
    uint32_t next; /* writer only: slot of the next event; avoids a division */
    struct slot slots[];
};

enum weft_status weft_event_ring_create(struct weft_env *env, uint32_t capacity,
                                        struct weft_event_ring **ring_out)
{
    if (capacity == 0) return WEFT_ERR_INVALID;
    size_t bytes;
    if (__builtin_mul_overflow((size_t)capacity, sizeof(struct slot), &bytes)) return WEFT_ERR_INVALID;
    struct weft_event_ring *ring = weft_alloc_zero(env, sizeof *ring + bytes);
    if (!ring) return WEFT_ERR_NO_MEMORY;
    ring->env = env;
    ring->capacity = capacity;
    *ring_out = ring;
    return WEFT_OK;
}

void weft_event_ring_free(struct weft_event_ring *ring)
{
    if (ring) weft_free_bytes(ring->env, ring);
}

void weft_event_ring_add(struct weft_event_ring *ring, const char *name, enum weft_event_phase phase,
                         uint64_t id, uint32_t peer, uint64_t bytes, enum weft_status status)
{
    if (ring) weft_event_ring_add_at(ring, weft_now_ns(ring->env), name, phase, id, peer, bytes, status);
}

/* An event as 64-bit words. */
#define WORD_OF(field) (offsetof(struct weft_event, field) / 8)
#define IS_WORD(field) \
    (offsetof(struct weft_event, field) % 8 == 0 && sizeof(((struct weft_event *)0)->field) == 8)
_Static_assert(IS_WORD(time_ns) && IS_WORD(name) && IS_WORD(id) && IS_WORD(bytes), "a word each");
struct small { /* same layout as in struct weft_event */
    uint8_t phase;
    int16_t status;
    uint32_t peer;
};
_Static_assert(offsetof(struct weft_event, phase) % 8 == 0 &&
                   offsetof(struct weft_event, status) % 8 == offsetof(struct small, status) &&
                   offsetof(struct weft_event, peer) % 8 == offsetof(struct small, peer) &&
                   sizeof(struct weft_event) == 5 * 8,
               "the rest is one word");

static inline uint64_t word_of(struct small small)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    return (uint64_t)small.phase | (uint64_t)(uint16_t)small.status << 8 * offsetof(struct small, status) |
           (uint64_t)small.peer << 8 * offsetof(struct small, peer);
#else
    uint64_t word = 0;
    memcpy(&word, &small, sizeof small);
    return word;
#endif
}

void weft_event_ring_add_at(struct weft_event_ring *ring, uint64_t time_ns, const char *name,
                            enum weft_event_phase phase, uint64_t id, uint32_t peer, uint64_t bytes,
                            enum weft_status status)
{
    if (!ring) return;
    /* Byte stores that are loaded as a word would stall on store forwarding. */
    const struct small small = {.phase = (uint8_t)phase, .status = (int16_t)status, .peer = peer};
    uint64_t number = atomic_load_explicit(&ring->count, memory_order_relaxed);
    struct slot *slot = &ring->slots[ring->next];
    ring->next = ring->next + 1 < ring->capacity ? ring->next + 1 : 0;
    atomic_store_explicit(&slot->sequence, 2 * number + 1, memory_order_relaxed);
    /* A release per word, not a fence: a reader that sees a new word also sees the odd sequence, and the
     * thread sanitizer supports it. On x86 both are plain stores. */
    atomic_store_explicit(&slot->words[WORD_OF(time_ns)], time_ns, memory_order_release);
    atomic_store_explicit(&slot->words[WORD_OF(name)], (uintptr_t)name, memory_order_release);
    atomic_store_explicit(&slot->words[WORD_OF(phase)], word_of(small), memory_order_release);
    atomic_store_explicit(&slot->words[WORD_OF(id)], id, memory_order_release);
    atomic_store_explicit(&slot->words[WORD_OF(bytes)], bytes, memory_order_release);
    atomic_store_explicit(&slot->sequence, 2 * number + 2, memory_order_release);
    atomic_store_explicit(&ring->count, number + 1, memory_order_release);
}

/* Copies event `number`. false: it is overwritten, or being overwritten. */
static bool read_event(struct weft_event_ring *ring, uint64_t number, struct weft_event *event_out)
{
    struct slot *slot = &ring->slots[number % ring->capacity];
    uint64_t words[EVENT_WORDS];
    if (atomic_load_explicit(&slot->sequence, memory_order_acquire) != 2 * number + 2) return false;
    for (size_t i = 0; i < EVENT_WORDS; i++)
        words[i] = atomic_load_explicit(&slot->words[i], memory_order_acquire);
    if (atomic_load_explicit(&slot->sequence, memory_order_relaxed) != 2 * number + 2) return false;
    memcpy(event_out, words, sizeof *event_out);
    return true;
}

static const char *phase_name(unsigned phase)
{
    switch (phase) {
    case WEFT_EVENT_BEGIN: return "begin";
    case WEFT_EVENT_END: return "end";
    default: return "mark";
    }
}

static void print_peer(FILE *out, uint32_t peer)
{
    if (peer != UINT32_MAX) fprintf(out, ",\"peer\":%" PRIu32, peer);
}

static void print_flight_event(FILE *out, const struct weft_event *event, int pid)
{
    fprintf(out, "{\"time_ns\":%" PRIu64 ",\"name\":", event->time_ns);
    weft_json_text(out, event->name);
    fprintf(out, ",\"phase\":\"%s\",\"id\":%" PRIu64 ",\"bytes\":%" PRIu64, phase_name(event->phase),
            event->id, event->bytes);
    print_peer(out, event->peer);
    if (event->phase == WEFT_EVENT_END)
        fprintf(out, ",\"status\":\"%s\"", weft_status_name((enum weft_status)event->status));
    fputc('}', out);
}

/* Trace Event Format of ui.perfetto.dev. Operations overlap, so BEGIN and END are asynchronous events ("b",
 * "e"), paired by name and id. */
static void print_trace_event(FILE *out, const struct weft_event *event, int pid)
{
    const char *kind = event->phase == WEFT_EVENT_BEGIN ? "b" : event->phase == WEFT_EVENT_END ? "e" : "i";
    fputs("{\"name\":", out);
    weft_json_text(out, event->name);
    fprintf(out, ",\"cat\":\"weft\",\"ph\":\"%s\",\"ts\":%" PRIu64 ".%03u,\"pid\":%d,\"tid\":1", kind,
            event->time_ns / 1000, (unsigned)(event->time_ns % 1000), pid);
    if (event->phase == WEFT_EVENT_MARK) fputs(",\"s\":\"p\"", out);
    else fprintf(out, ",\"id\":\"0x%" PRIx64 "\"", event->id);
    fprintf(out, ",\"args\":{\"bytes\":%" PRIu64, event->bytes);
    print_peer(out, event->peer);
    if (event->phase == WEFT_EVENT_END)
        fprintf(out, ",\"status\":\"%s\"", weft_status_name((enum weft_status)event->status));
    fputs("}}", out);
}

struct printer {
    FILE *out;
    int pid;
    bool first;
    void (*print)(FILE *, const struct weft_event *, int);
};

static void print_phase(struct printer *printer, struct weft_event event, enum weft_event_phase phase)
{
    event.phase = (uint8_t)phase;
    fputs(printer->first ? "\n" : ",\n", printer->out);
    printer->first = false;
    printer->print(printer->out, &event, printer->pid);
}

static void print_events(struct weft_event_ring *ring, struct printer printer)
{
    uint64_t end = atomic_load_explicit(&ring->count, memory_order_acquire);
    uint64_t start = end > ring->capacity ? end - ring->capacity : 0;
    for (uint64_t number = start; number < end; number++) {
        struct weft_event event;
        if (!read_event(ring, number, &event)) continue;
        bool both = event.phase == WEFT_EVENT_BOTH;
        print_phase(&printer, event, both ? WEFT_EVENT_BEGIN : (enum weft_event_phase)event.phase);
        if (both) print_phase(&printer, event, WEFT_EVENT_END);
    }
}

static enum weft_status finish(FILE *out)
{
    return fflush(out) != 0 || ferror(out) ? WEFT_ERR_IO : WEFT_OK;
}

enum weft_status weft_event_ring_dump_json(struct weft_event_ring *ring, const char *engine, FILE *out)
{
    uint64_t count = atomic_load_explicit(&ring->count, memory_order_acquire);
    fputs("{\"engine\":", out);
    weft_json_text(out, engine);
    fprintf(out, ",\"capacity\":%" PRIu32 ",\"added\":%" PRIu64 ",\"events\":[", ring->capacity, count);
    print_events(ring, (struct printer){out, 0, true, print_flight_event});
    fputs("\n]}\n", out);
    return finish(out);
}

enum weft_status weft_event_ring_dump_perfetto(struct weft_event_ring *ring, const char *engine, int pid,
                                               FILE *out)
{
    fprintf(out, "{\"traceEvents\":[\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"name\":",
            pid);
    weft_json_text(out, engine);
    fputs("}}", out);
    print_events(ring, (struct printer){out, pid, false, print_trace_event});
    fputs("\n]}\n", out);
    return finish(out);
}
