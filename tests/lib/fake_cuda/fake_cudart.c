/* fake_cudart.c - the calls of the runtime that weft uses, on host memory. See fake_cuda.h. */
#include "fake_cuda.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "device_order.h"

enum {
    OK = 0,
    INVALID_VALUE = 1,
    NO_MEMORY = 2,
    INVALID_DEVICE = 101,
    INVALID_HANDLE = 400,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    LAUNCH_FAILED = 719,
    ALREADY_PINNED = 712,
    NOT_PINNED = 713,
    NOT_SUPPORTED = 801,
};
enum { DEVICES_MAX = 4, RANGES_MAX = 4096 };
enum range_kind { DEVICE = 2, PINNED = 1 };

struct range {
    enum range_kind kind;
    const uint8_t *address;
    uint8_t *shadow; /* of device memory */
    size_t bytes;
    int device;
};

/* What a record orders: the work before it. A later record of the event orders other work. */
struct point {
    int users;
};

struct event {
    int device;
    void *stream; /* of the last record */
    uint64_t recorded, passed; /* tickets */
    struct point *point;       /* of the last record */
};

struct item {
    struct item *next;
    void (*fn)(void *context); /* a kernel; NULL: a copy */
    void *context;
    bool owned; /* allocated with malloc, and freed here in any case */
    void *to;   /* of a copy; zeros if `from` is NULL */
    const void *from;
    size_t bytes;
    struct event *record, *wait;
    struct point *point; /* of both */
    uint64_t ticket;
    _Atomic uint32_t *word; /* waits until it is `value` or above, or stores that */
    uint32_t value;
    bool waits_for_word;
};

struct stream {
    struct item *first, **last;
    int device;
    bool busy, closing;
    uint64_t draw;
    pthread_t thread;
    struct stream *next_closed;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct range ranges[RANGES_MAX];
static int range_count, live_handles, device_count = 1, sticky, copies_until_failure, launches_until_failure,
                                      allocs_until_failure, launches, unpinned_copies, queued;
static uint64_t copied_bytes, next_draw = 1;
static _Atomic unsigned contexts; /* bit d: device d has a context */
static unsigned delay_us_max;
static _Atomic int dropped_order; /* enum fake_cuda_order */
static void *_Atomic dropped_stream;
static _Atomic unsigned copy_us;
static _Atomic bool is_hanging;
static _Atomic int hung_calls;
static struct stream *default_streams[DEVICES_MAX], *closed;
static _Thread_local int current, last_error; /* last_error: returned and cleared by cudaGetLastError */

static void enter(void)
{
    order_ignore();
    pthread_mutex_lock(&lock);
}

static void leave(void)
{
    pthread_mutex_unlock(&lock);
    order_observe();
}

/* order_before and order_after; the caller holds the lock. */
static void publish(const void *address)
{
    order_observe();
    order_before(address);
    order_ignore();
}

static void observe(const void *address)
{
    order_observe();
    order_after(address);
    order_ignore();
}

/* ---- dropped order ----
 *
 * A site is a place of weft that calls an operation of its memory table: FAKE_CUDA_SITES names a file to
 * which the sites of a process are appended, "what module+offset table"; FAKE_CUDA_DROP_SITE names a site
 * whose calls have no effect; FAKE_CUDA_COPY_US makes each copy take that time.
 * tests/client/call/test_waits.py removes each site in turn. */

enum { SITES_MAX = 512 };
static void *_Atomic seen_sites[SITES_MAX];

static void write_site(const char *file_name, const char *text)
{
    FILE *file = fopen(file_name, "ae");
    if (!file) abort();
    fprintf(file, "%s\n", text);
    fclose(file);
}

static bool is_own(const void *frame, const Dl_info *own)
{
    Dl_info found;
    return dladdr(frame, &found) && found.dli_fbase == own->dli_fbase;
}

/* Frames: perhaps one of a sanitizer, then of this library, the memory table of weft, the site. Without the
 * lock. */
static __attribute__((noinline)) bool site_is_dropped(const char *what)
{
    const char *list = getenv("FAKE_CUDA_SITES"), *dropped = getenv("FAKE_CUDA_DROP_SITE");
    void *frames[8];
    Dl_info own, found = {0};
    char text[256];
    if ((!list && !dropped) || !dladdr((void *)&device_count, &own)) return false;
    const int count = backtrace(frames, 8);
    int at = 0;
    while (at < count && !is_own(frames[at], &own)) at++;
    while (at < count && is_own(frames[at], &own)) at++;
    const void *const table = at < count ? frames[at] : NULL;
    if (++at >= count || !dladdr(frames[at], &found) || !found.dli_fname) return false;
    const char *name = strrchr(found.dli_fname, '/');
    snprintf(text, sizeof text, "%s %s+%#lx %#lx", what, name ? name + 1 : found.dli_fname,
             (unsigned long)((uint8_t *)frames[at] - (uint8_t *)found.dli_fbase) - 1,
             (unsigned long)((uint8_t *)table - (uint8_t *)found.dli_fbase) - 1);
    for (int i = 0; list && i < SITES_MAX; i++) {
        void *none = NULL;
        if (seen_sites[i] == frames[at]) break;
        if (!atomic_compare_exchange_strong(&seen_sites[i], &none, frames[at])) continue;
        write_site(list, text);
        break;
    }
    return dropped && strcmp(dropped, text) == 0;
}

/* ---- memory: with the lock held ---- */

static struct range *range_of(const void *address)
{
    for (int i = 0; i < range_count; i++)
        if ((const uint8_t *)address >= ranges[i].address &&
            (const uint8_t *)address < ranges[i].address + ranges[i].bytes)
            return &ranges[i];
    return NULL;
}

static size_t pages(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) / page * page;
}

/* The real address of (bytes,); NULL: beyond the end of device memory. */
static uint8_t *real(const void *address, size_t bytes)
{
    struct range *range = range_of(address);
    if (!range || range->kind != DEVICE) return (uint8_t *)address;
    size_t at = (size_t)((const uint8_t *)address - range->address);
    return at + bytes <= range->bytes ? range->shadow + at : NULL;
}

static void count_copy(const struct item *item)
{
    const struct range *to = range_of(item->to), *from = range_of(item->from);
    bool to_device = to && to->kind == DEVICE, from_device = from && from->kind == DEVICE;
    if (to_device == from_device) return;
    copied_bytes += item->bytes;
    if (!(to_device ? from : to)) unpinned_copies++;
}

/* ---- streams ---- */

/* The host stores such words without a notice. */
static void wait_for_word(const struct item *item)
{
    while ((int32_t)(atomic_load(item->word) - item->value) < 0 && !sticky) {
        leave();
        usleep(20);
        enter();
    }
}

static void run(struct stream *stream, struct item *item)
{
    if (item->waits_for_word) {
        wait_for_word(item);
        observe(item->word);
    } else if (item->word) {
        publish(item->word);
        order_observe();
        if (!sticky) order_store(item->word, item->value);
        order_ignore();
    } else if (item->wait) {
        while (item->wait->passed < item->ticket && !sticky) pthread_cond_wait(&changed, &lock);
        observe(item->point);
    } else if (item->record) {
        publish(item->point);
        if (item->record->passed < item->ticket) item->record->passed = item->ticket;
    } else if (sticky) {
        return; /* a failed context runs no further work */
    } else if (item->fn) {
        leave();
        while (is_hanging) usleep(100);
        item->fn(item->context);
        enter();
    } else if (item->bytes > 0) {
        uint8_t *to = real(item->to, item->bytes), *from = item->from ? real(item->from, item->bytes) : NULL;
        if ((item->from && copies_until_failure > 0 && --copies_until_failure == 0) || !to ||
            (item->from && !from)) {
            sticky = ILLEGAL_ADDRESS;
            return;
        }
        if (item->from) count_copy(item);
        leave();
        if (copy_us > 0) usleep(copy_us);
        if (from) memcpy(to, from, item->bytes);
        else memset(to, 0, item->bytes);
        enter();
    }
}

static void point_release(struct point *point)
{
    if (point && --point->users == 0) free(point);
}

static void *stream_main(void *context)
{
    struct stream *stream = context;
    enter();
    current = stream->device;
    for (;;) {
        while (!stream->first && !stream->closing) pthread_cond_wait(&changed, &lock);
        struct item *item = stream->first;
        if (!item) break;
        stream->draw = stream->draw * 6364136223846793005u + 1442695040888963407u;
        unsigned delay_us = delay_us_max ? (unsigned)((stream->draw >> 33) % delay_us_max) : 0;
        if (delay_us > 0) {
            leave();
            usleep(delay_us);
            enter();
        }
        observe(item);
        run(stream, item);
        stream->first = item->next;
        if (!stream->first) stream->last = &stream->first;
        queued--;
        publish(stream);
        publish(&queued);
        if (item->owned) free(item->context);
        point_release(item->point);
        free(item);
        pthread_cond_broadcast(&changed);
    }
    leave();
    return NULL;
}

/* Ends the threads of destroyed streams without queued work. Also called at process exit: the leak sanitizer
 * fails on threads that are just ending. */
static void reap(void)
{
    struct stream *done = NULL;
    enter();
    for (struct stream **at = &closed, *stream; (stream = *at) != NULL;) {
        if (stream->first) {
            at = &stream->next_closed;
            continue;
        }
        *at = stream->next_closed;
        stream->next_closed = done;
        done = stream;
    }
    leave();
    while (done) {
        struct stream *stream = done;
        done = stream->next_closed;
        order_ignore(); /* the destruction of a stream waits for nothing */
        pthread_join(stream->thread, NULL);
        free(stream);
        order_observe();
    }
}

static struct stream *stream_new(int device)
{
    static bool reaps;
    struct stream *stream = calloc(1, sizeof *stream);
    if (!stream || (!reaps && atexit(reap) != 0)) abort();
    reaps = true;
    stream->last = &stream->first;
    stream->device = device;
    stream->draw = next_draw++ * 0x9e3779b97f4a7c15u;
    if (pthread_create(&stream->thread, NULL, stream_main, stream) != 0) abort();
    return stream;
}

static struct stream *stream_of(void *handle)
{
    if (handle) return handle;
    if (!default_streams[current]) default_streams[current] = stream_new(current);
    return default_streams[current];
}

static int queue(void *handle, struct item item)
{
    if (sticky) return sticky;
    struct stream *stream = stream_of(handle);
    struct item *own = malloc(sizeof *own);
    if (!own) abort();
    *own = item;
    own->next = NULL;
    if (own->point) own->point->users++;
    publish(own);
    *stream->last = own;
    stream->last = &own->next;
    queued++;
    pthread_cond_broadcast(&changed);
    return OK;
}

/* ---- calls of the runtime ---- */

/* Called by nearly every function: from now on the current device has a context. */
static void need_context(void)
{
    contexts |= 1u << current;
}

#define LOCKED(expression)          \
    do {                            \
        enter();                    \
        int answer_ = (expression); \
        leave();                    \
        return answer_;             \
    } while (0)

int cudaGetDeviceCount(int *count_out)
{
    *count_out = device_count;
    return device_count > 0 ? OK : 100;
}
int cudaGetDevice(int *device_out)
{
    *device_out = current;
    return OK;
}
int cudaSetDevice(int device)
{
    if (device < 0 || device >= device_count) return INVALID_DEVICE;
    current = device;
    need_context();
    return OK;
}
int cudaGetLastError(void)
{
    int error = last_error;
    last_error = OK;
    LOCKED(sticky ? sticky : error);
}

const char *cudaGetErrorName(int error)
{
    switch (error) {
    case OK: return "cudaSuccess";
    case NO_MEMORY: return "cudaErrorMemoryAllocation";
    case 100: return "cudaErrorNoDevice";
    case LAUNCH_FAILED: return "cudaErrorLaunchFailure";
    case ILLEGAL_ADDRESS: return "cudaErrorIllegalAddress";
    case INVALID_HANDLE: return "cudaErrorInvalidResourceHandle";
    default: return "cudaErrorOfTheFake";
    }
}

const char *cudaGetErrorString(int error)
{
    return cudaGetErrorName(error);
}

struct attributes {
    int type, device;
    void *device_pointer, *host_pointer;
    long reserved[8];
};

int cudaPointerGetAttributes(struct attributes *out, const void *address)
{
    enter();
    struct range *range = range_of(address);
    memset(out, 0, sizeof *out);
    out->type = range ? (int)range->kind : 0;
    out->device = range ? range->device : -2;
    leave();
    return OK;
}

static int range_add(struct range range)
{
    if (range_count == RANGES_MAX) return NO_MEMORY;
    ranges[range_count++] = range;
    return OK;
}

int cudaMalloc(void **memory_out, size_t bytes)
{
    need_context();
    enter();
    const bool none = allocs_until_failure == 1;
    if (allocs_until_failure > 1) allocs_until_failure--;
    leave();
    if (none) return last_error = NO_MEMORY;
    size_t mapped_bytes = pages(bytes ? bytes : 1);
    void *address = mmap(NULL, mapped_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    uint8_t *shadow = mmap(NULL, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address == MAP_FAILED || shadow == MAP_FAILED) return NO_MEMORY;
    memset(shadow, 0xa5, mapped_bytes); /* device memory is not zero */
    *memory_out = address;
    LOCKED(sticky ? sticky : range_add((struct range){DEVICE, address, shadow, bytes, current}));
}

int cudaFree(void *memory)
{
    if (!memory) return OK;
    if (is_hanging) {
        hung_calls++;
        return OK;
    }
    fake_cuda_synchronize(); /* cudaFree waits for the device */
    enter();
    struct range *range = range_of(memory);
    if (!range || range->kind != DEVICE || range->address != memory) {
        leave();
        return INVALID_VALUE;
    }
    munmap((void *)range->address, pages(range->bytes ? range->bytes : 1));
    munmap(range->shadow, pages(range->bytes ? range->bytes : 1));
    *range = ranges[--range_count];
    leave();
    return OK;
}

int cudaHostRegister(void *memory, size_t bytes, unsigned flags)
{
    need_context();
    LOCKED(range_of(memory) ? ALREADY_PINNED
                            : range_add((struct range){PINNED, memory, NULL, bytes, current}));
}

static int unregister(const void *memory)
{
    struct range *range = range_of(memory);
    if (!range || range->kind != PINNED || range->address != memory) return NOT_PINNED;
    *range = ranges[--range_count];
    return OK;
}
int cudaHostUnregister(void *memory)
{
    LOCKED(unregister(memory));
}

int cudaStreamCreateWithFlags(void **stream_out, unsigned flags)
{
    need_context();
    reap();
    enter();
    *stream_out = stream_new(current);
    live_handles++;
    leave();
    return OK;
}

int cudaStreamCreate(void **stream_out)
{
    return cudaStreamCreateWithFlags(stream_out, 0);
}

int cudaStreamQuery(void *handle)
{
    need_context();
    enter();
    const struct stream *stream = stream_of(handle);
    const int answer = sticky ? sticky : stream->first ? NOT_READY : OK;
    if (answer == OK) observe(stream);
    leave();
    return answer;
}

int cudaStreamDestroy(void *handle)
{
    struct stream *stream = handle;
    enter();
    stream->closing = true;
    stream->next_closed = closed;
    closed = stream;
    live_handles--;
    pthread_cond_broadcast(&changed);
    leave();
    return OK;
}

static void *_Atomic captured;
void fake_cuda_capture(void *stream)
{
    captured = stream;
}
int cudaStreamIsCapturing(void *stream, int *status_out)
{
    *status_out = stream && stream == captured;
    return OK;
}

int cudaEventCreateWithFlags(void **event_out, unsigned flags)
{
    need_context();
    enter();
    struct event *event = calloc(1, sizeof *event);
    if (event) {
        event->device = current;
        *event_out = event;
        live_handles++;
    }
    leave();
    return event ? OK : NO_MEMORY;
}

/* CUDA allows the destruction of an event with waiters; here it exists until all work has run, which tests
 * cannot observe. */
int cudaEventDestroy(void *handle)
{
    struct event *event = handle;
    need_context();
    if (is_hanging) return OK;
    enter();
    while (queued > 0) pthread_cond_wait(&changed, &lock);
    live_handles--;
    point_release(event->point);
    free(event);
    leave();
    return OK;
}

static int record(struct event *event, void *handle)
{
    need_context();
    if (event->device != stream_of(handle)->device) return INVALID_HANDLE;
    struct point *point = calloc(1, sizeof *point);
    if (!point) abort();
    point->users = 1;
    int answer = queue(handle, (struct item){.record = event, .point = point, .ticket = event->recorded + 1});
    if (answer == OK) event->recorded++;
    event->stream = handle;
    point_release(event->point);
    event->point = point;
    return answer;
}
int cudaEventRecord(void *event, void *stream)
{
    if (site_is_dropped("record")) return OK;
    LOCKED(record(event, stream));
}

int cudaStreamWaitEvent(void *stream, void *handle, unsigned flags)
{
    need_context();
    struct event *event = handle;
    if (site_is_dropped("wait")) return OK;
    enter();
    const bool is_dropped = (dropped_order == FAKE_CUDA_WAIT_FOR_STREAM && event->stream == dropped_stream) ||
                            (dropped_order == FAKE_CUDA_STREAM_WAITS && stream == dropped_stream);
    int answer =
        event->recorded == 0 || is_dropped
            ? sticky
            : queue(stream, (struct item){.wait = event, .point = event->point, .ticket = event->recorded});
    leave();
    return answer;
}

int cudaEventQuery(void *handle)
{
    need_context();
    struct event *event = handle;
    if (site_is_dropped("passed")) return OK;
    enter();
    int answer = sticky ? sticky : event->passed < event->recorded ? NOT_READY : OK;
    if (answer == OK && event->point) observe(event->point);
    leave();
    if (answer) last_error = answer;
    return answer;
}

int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream)
{
    need_context();
    LOCKED(queue(stream, (struct item){.to = to, .from = from, .bytes = bytes}));
}

/* As for streams with implicit synchronization: behind all queued work. */
int cudaMemcpy(void *to, const void *from, size_t bytes, int kind)
{
    fake_cuda_synchronize();
    int answer = cudaMemcpyAsync(to, from, bytes, kind, NULL);
    fake_cuda_synchronize();
    return answer ? answer : sticky;
}

int cudaMemsetAsync(void *memory, int value, size_t bytes, void *stream)
{
    LOCKED(value != 0 ? INVALID_VALUE : queue(stream, (struct item){.to = memory, .bytes = bytes}));
}

/* ---- words that streams wait for ---- */

int cudaHostAlloc(void **memory_out, size_t bytes, unsigned flags)
{
    need_context();
    if (!(*memory_out = aligned_alloc(64, 64 * ((bytes + 63) / 64)))) return NO_MEMORY;
    LOCKED(range_add((struct range){PINNED, *memory_out, NULL, bytes, current}));
}

int cudaFreeHost(void *memory)
{
    if (is_hanging) {
        hung_calls++;
        return OK;
    }
    enter(); /* waits here, but promises no order */
    while (queued > 0) pthread_cond_wait(&changed, &lock);
    int answer = unregister(memory);
    leave();
    if (answer == OK) free(memory);
    return answer;
}

void fake_cuda_drop(enum fake_cuda_order order, void *stream)
{
    dropped_order = FAKE_CUDA_NONE;
    dropped_stream = stream;
    dropped_order = order;
}

void fake_cuda_slow_copies(unsigned us)
{
    copy_us = us;
}

static _Atomic bool words_unsupported;
void fake_cuda_refuse_words(bool refuse)
{
    words_unsupported = refuse;
}

static int queue_word(void *stream, uint64_t address, uint32_t value, bool waits)
{
    _Atomic uint32_t *word = (_Atomic uint32_t *)(uintptr_t)address;
    if (words_unsupported) return NOT_SUPPORTED;
    need_context();
    if (waits && dropped_order == FAKE_CUDA_WAIT_WORD) return OK;
    LOCKED(queue(stream, (struct item){.word = word, .value = value, .waits_for_word = waits}));
}
int cuStreamWaitValue32_v2(void *stream, uint64_t address, uint32_t value, unsigned flags)
{
    if (site_is_dropped("wait_word")) return OK;
    return queue_word(stream, address, value, true);
}
int cuStreamWriteValue32_v2(void *stream, uint64_t address, uint32_t value, unsigned flags)
{
    return queue_word(stream, address, value, false);
}

/* ---- writes of other devices ---- */

static _Atomic int flush_count;

int cuFlushGPUDirectRDMAWrites(int target, int scope)
{
    if (words_unsupported) return NOT_SUPPORTED;
    if (target != 0 || scope != 100) return INVALID_VALUE;
    flush_count++;
    return OK;
}

int fake_cuda_flushes(void)
{
    return flush_count;
}

/* ---- for tests ---- */

void fake_cuda_setup(uint64_t seed, unsigned delay, int devices)
{
    enter();
    next_draw = seed * 1000003u + 1;
    delay_us_max = delay;
    device_count = devices;
    contexts = 0;
    if (getenv("FAKE_CUDA_COPY_US")) copy_us = (unsigned)strtoul(getenv("FAKE_CUDA_COPY_US"), NULL, 10);
    leave();
}

void *fake_cuda_shadow(const void *address)
{
    enter();
    void *shadow = real(address, 0);
    leave();
    return shadow;
}

static int launch(void *stream, void (*fn)(void *context), void *context, bool owned)
{
    enter();
    int answer = OK;
    if (launches_until_failure > 0 && --launches_until_failure == 0) answer = sticky = LAUNCH_FAILED;
    if (answer == OK) answer = queue(stream, (struct item){.fn = fn, .context = context, .owned = owned});
    launches++;
    leave();
    return answer;
}

int fake_cuda_launch(void *stream, void (*fn)(void *context), void *context)
{
    return launch(stream, fn, context, false);
}
int fake_cuda_launch_owned(void *stream, void (*fn)(void *context), void *context)
{
    return launch(stream, fn, context, true);
}

void fake_cuda_fail_launch(int n)
{
    enter();
    launches_until_failure = n;
    leave();
}

int fake_cuda_launches(void)
{
    LOCKED(launches);
}

void fake_cuda_fail_copy(int n)
{
    enter();
    copies_until_failure = n;
    leave();
}

void fake_cuda_fail_alloc(int n)
{
    enter();
    allocs_until_failure = n;
    leave();
}

void fake_cuda_hang(bool hangs)
{
    is_hanging = hangs;
}
int fake_cuda_hung_calls(void)
{
    return hung_calls;
}

void fake_cuda_reset(void)
{
    fake_cuda_synchronize();
    enter();
    sticky = OK;
    copies_until_failure = launches_until_failure = 0;
    leave();
}

int fake_cuda_live_count(void)
{
    LOCKED(range_count + live_handles);
}
unsigned fake_cuda_contexts(void)
{
    return contexts;
}
int fake_cuda_unpinned_copies(void)
{
    LOCKED(unpinned_copies);
}

uint64_t fake_cuda_copied_bytes(void)
{
    enter();
    uint64_t bytes = copied_bytes;
    leave();
    return bytes;
}

void fake_cuda_synchronize(void)
{
    enter();
    while (queued > 0) pthread_cond_wait(&changed, &lock);
    observe(&queued);
    leave();
}
