/* faulty_plugin.c - a plugin with one fault around another plugin: the harness must find each fault.
 *
 * NCCL_TEST_INNER is the path of the inner plugin, NCCL_TEST_FAULT the name of the fault; each fault is one
 * line in the call that it spoils, or a short function. test_faults.py lists them with the point that must
 * fail. */
#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nccl/nccl.h"
#include "tests/nccl/faulty_collnet.h"

#define EXPORT __attribute__((visibility("default")))
#define FAULT(name_) (fault && strcmp(fault, name_) == 0)

extern struct nccl_net_v12 ncclNetPlugin_v12;
static const struct nccl_net_v12 *inner;
static const char *fault;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- what the wrapper remembers ---- */

struct noted { /* an open receive */
    void *request;
    char *data;
    size_t bytes;
    int count;
};
static struct noted noted[256];
static int noted_count;
static int contexts, lives, accepts, sends, receives, tests;
static bool has_failed, has_finalized, is_once_used;
static void *listen_handle;
static void *newest[512];
static char *registered[512];
static int memory_count;
static atomic_int inside;
static char fake; /* a request that is complete at once */
static struct {
    char request; /* its address is the request */
    void *comm, *memory, *real;
    void *data;
    size_t bytes;
    int tag;
    bool waits;
} held;

static void note(void *request, void *data, size_t bytes, int count)
{
    pthread_mutex_lock(&lock);
    if (noted_count < 256) noted[noted_count++] = (struct noted){request, data, bytes, count};
    pthread_mutex_unlock(&lock);
}

/* Removes and returns the note of a receive. */
static bool take_note(void *request, struct noted *out, bool keep)
{
    bool found = false;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < noted_count && !found; i++) {
        if (noted[i].request != request) continue;
        found = true;
        *out = noted[i];
        if (keep) break;
        memmove(&noted[i], &noted[i + 1], (size_t)(noted_count - i - 1) * sizeof noted[0]);
        noted_count--;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

/* ---- set-up ---- */

static void *spin(void *context)
{
    for (volatile uint64_t i = 0;; i++) {
    }
    return NULL;
}

static enum nccl_result init(void **context_out, uint64_t comm_id, struct nccl_config_v12 *config,
                             nccl_logger_fn logger, nccl_profiler_fn profiler)
{
    pthread_t thread;
    if (FAULT("second-life") && lives >= 2) return NCCL_RESULT_INTERNAL;
    if (FAULT("spins") && contexts == 0) pthread_create(&thread, NULL, spin, NULL);
    contexts++;
    return inner->init(context_out, comm_id, config, logger, profiler);
}

static enum nccl_result finalize(void *context)
{
    if (FAULT("finalize-null") && *(volatile char *)context == 1) return NCCL_RESULT_INTERNAL;
    if (context && --contexts == 0) lives++;
    has_finalized = contexts > 0;
    return inner->finalize(context);
}

static enum nccl_result devices(int *count_out)
{
    enum nccl_result result = inner->devices(count_out);
    if (FAULT("no-device")) *count_out = 0;
    return result;
}

static enum nccl_result get_properties(int device, struct nccl_properties_v12 *out)
{
    static char name[16];
    static int calls;
    enum nccl_result result = inner->get_properties(device, out);
    if (FAULT("name-changes")) snprintf(out->name = name, sizeof name, "lo%d", calls++);
    return result;
}

static enum nccl_result listen_at(void *context, int device, void *handle_out, void **listener_out)
{
    enum nccl_result result = inner->listen(context, device, handle_out, listener_out);
    if (FAULT("handle-long")) memset((char *)handle_out + NCCL_HANDLE_BYTES, 0, 8);
    listen_handle = handle_out;
    return result;
}

static enum nccl_result connect_to(void *context, int device, void *handle, void **comm_out,
                                   struct nccl_device_handle **handle_out)
{
    if (FAULT("handle-address") && handle != listen_handle) return NCCL_RESULT_INTERNAL;
    if (FAULT("handle-trusted") && (((unsigned char *)handle)[0] == 0xff)) abort();
    while (FAULT("connect-waits") && accepts == 0) poll(NULL, 0, 1);
    enum nccl_result result = inner->connect(context, device, handle, comm_out, handle_out);
    if (FAULT("connect-forever") && result != NCCL_RESULT_SUCCESS) {
        *comm_out = NULL;
        return NCCL_RESULT_SUCCESS;
    }
    return result;
}

static enum nccl_result accept_one(void *listener, void **comm_out, struct nccl_device_handle **handle_out)
{
    enum nccl_result result;
    accepts++;
    if (FAULT("listen-once") && is_once_used) {
        *comm_out = NULL;
        return NCCL_RESULT_SUCCESS;
    }
    do result = inner->accept(listener, comm_out, handle_out);
    while (FAULT("accept-waits") && result == NCCL_RESULT_SUCCESS && !*comm_out && poll(NULL, 0, 1) == 0);
    is_once_used = is_once_used || *comm_out;
    return result;
}

static enum nccl_result close_listen(void *listener)
{
    is_once_used = false;
    return inner->close_listen(listener);
}

/* ---- memory ---- */

static enum nccl_result reg_mr(void *comm, void *data, size_t bytes, int pointer, void **memory_out)
{
    if (FAULT("one-thread") && inside > 0) return NCCL_RESULT_INTERNAL;
    for (int i = 0; FAULT("overlap-refused") && i < memory_count; i++)
        if (registered[i] && (char *)data < registered[i] + bytes && registered[i] < (char *)data + bytes)
            return NCCL_RESULT_INTERNAL;
    enum nccl_result result = inner->reg_mr(comm, data, bytes, pointer, memory_out);
    if (memory_count < 512) {
        registered[memory_count] = data;
        newest[memory_count++] = *memory_out;
    }
    return result;
}

static enum nccl_result dereg_mr(void *comm, void *memory)
{
    if (FAULT("dereg-newest") && memory_count > 0 && newest[memory_count - 1] != memory)
        return NCCL_RESULT_INTERNAL;
    if (memory_count > 0) memory_count--;
    return inner->dereg_mr(comm, memory);
}

/* ---- messages ---- */

/* Counts calls in progress; a fault that allows one thread refuses reg_mr meanwhile. */
static enum nccl_result spoil_result(enum nccl_result result)
{
    if (result == NCCL_RESULT_REMOTE) has_failed = true;
    if (FAULT("death-spreads") && has_failed) return NCCL_RESULT_REMOTE;
    if (result != NCCL_RESULT_REMOTE) return result;
    if (FAULT("death-silent")) return NCCL_RESULT_SUCCESS;
    return FAULT("death-code") ? NCCL_RESULT_SYSTEM : result;
}

static enum nccl_result isend(void *comm, void *data, size_t bytes, int tag, void *memory, void *parent,
                              void **request_out)
{
    sends++;
    *request_out = NULL;
    if (FAULT("finalize-all") && has_finalized) return NCCL_RESULT_INTERNAL;
    if (FAULT("request-leak") && sends > 1000) return NCCL_RESULT_SUCCESS;
    if (FAULT("empty-lost") && bytes == 0) {
        *request_out = &fake;
        return NCCL_RESULT_SUCCESS;
    }
    if (FAULT("tail-lost") && bytes > 4096) ((char *)data)[bytes - 1] ^= 1;
    enum nccl_result result = inner->isend(comm, data, bytes, tag, memory, parent, request_out);
    if (FAULT("sent-twice") && sends % 50 == 7) *request_out = NULL;
    if (FAULT("full-taken") && result == NCCL_RESULT_SUCCESS && !*request_out) *request_out = &fake;
    if (FAULT("full-error") && result == NCCL_RESULT_SUCCESS && !*request_out) return NCCL_RESULT_INTERNAL;
    return spoil_result(result);
}

/* Every 16th receive is posted after the one behind it. */
static bool hold(void *comm, void *data, size_t bytes, int tag, void *memory, void **request_out)
{
    if (held.waits || held.real || receives % 16 != 7) return false;
    held.comm = comm, held.data = data, held.bytes = bytes, held.tag = tag, held.memory = memory;
    held.waits = true;
    *request_out = &held.request;
    return true;
}

static void release(void *comm)
{
    if (!held.waits || held.comm != comm) return;
    void *parent = NULL;
    held.waits = false;
    inner->irecv(comm, 1, &held.data, &held.bytes, &held.tag, &held.memory, &parent, &held.real);
}

static enum nccl_result irecv(void *comm, int count, void **data, size_t *bytes, int *tags, void **memories,
                              void **parents, void **request_out)
{
    bool is_optional = *request_out == NCCL_OPTIONAL_COMPLETION;
    receives++;
    if (FAULT("swapped") && count == 1 && hold(comm, data[0], bytes[0], tags[0], memories[0], request_out))
        return NCCL_RESULT_SUCCESS;
    if (FAULT("tag-order") && count > 1) {
        void *kept = data[0];
        data[0] = data[1];
        data[1] = kept;
    }
    enum nccl_result result = inner->irecv(comm, count, data, bytes, tags, memories, parents, request_out);
    if (FAULT("full-error") && result == NCCL_RESULT_SUCCESS && !*request_out) return NCCL_RESULT_INTERNAL;
    if (*request_out) note(*request_out, data[0], bytes[0], count);
    if (FAULT("swapped")) release(comm);
    if (FAULT("optional-left") && is_optional) *request_out = NCCL_OPTIONAL_COMPLETION;
    if (FAULT("profiler-changed") && parents) parents[0] = NULL;
    return spoil_result(result);
}

static enum nccl_result iflush(void *comm, int count, void **data, int *bytes, void **memories,
                               void **request_out)
{
    if (FAULT("flush-left")) return NCCL_RESULT_SUCCESS;
    enum nccl_result result = inner->iflush(comm, count, data, bytes, memories, request_out);
    if (FAULT("flush-never")) *request_out = &held.request;
    return result;
}

/* Shows the flags of the next round before its data. */
static void show_flags(const struct noted *receive)
{
    uint64_t *words = (uint64_t *)receive->data;
    for (size_t i = 0; i < receive->bytes / 8; i++) words[i] += (uint64_t)1 << 32;
    poll(NULL, 0, 2);
}

static void spoil_done(const struct noted *receive, int *bytes_out)
{
    int bytes = bytes_out ? bytes_out[0] : 0;
    if (FAULT("size-of-buffer") && bytes_out) bytes_out[0] = (int)receive->bytes;
    if (FAULT("writes-behind") && bytes_out) receive->data[bytes] = 0;
    for (int i = 0; FAULT("group-sizes") && bytes_out && i < receive->count / 2; i++) {
        int kept = bytes_out[i];
        bytes_out[i] = bytes_out[receive->count - 1 - i];
        bytes_out[receive->count - 1 - i] = kept;
    }
}

static enum nccl_result test(void *request, int *done_out, int *bytes_out)
{
    struct noted receive = {0};
    int unused[NCCL_RECVS_LIMIT];
    *done_out = 0;
    if (request == &fake) {
        *done_out = 1;
        return NCCL_RESULT_SUCCESS;
    }
    if (request == &held.request && !held.real) return NCCL_RESULT_SUCCESS;
    bool is_held = request == &held.request;
    if (is_held) request = held.real;
    bool is_receive = take_note(request, &receive, true);
    if (FAULT("oldest-only") && is_receive && noted[0].request != request) return NCCL_RESULT_INTERNAL;
    if (FAULT("done-early") && is_receive) {
        *done_out = 1;
        if (bytes_out) bytes_out[0] = (int)receive.bytes;
        return NCCL_RESULT_SUCCESS;
    }
    if (FAULT("flag-first") && is_receive && receive.bytes == 4096 && ++tests % 64 == 1) show_flags(&receive);
    if (FAULT("sizes-null")) *(volatile int *)bytes_out = 0;
    inside++;
    enum nccl_result result = inner->test(request, done_out, bytes_out ? bytes_out : unused);
    if (FAULT("one-thread")) poll(NULL, 0, 1);
    inside--;
    if (FAULT("long-silent") && result == NCCL_RESULT_USAGE) {
        *done_out = 1;
        result = NCCL_RESULT_SUCCESS;
    }
    if (*done_out && take_note(request, &receive, false)) spoil_done(&receive, bytes_out);
    if (*done_out && is_held) held.real = NULL;
    return spoil_result(result);
}

static enum nccl_result close_send(void *comm)
{
    while (FAULT("close-waits") && noted_count > 0) poll(NULL, 0, 1);
    return inner->close_send(comm);
}

static enum nccl_result close_recv(void *comm)
{
    if (FAULT("late-write") && noted_count > 0) noted[0].data[0] = 1;
    noted_count = 0;
    return inner->close_recv(comm);
}

EXPORT struct nccl_net_v12 ncclNetPlugin_v12 = {.name = NCCL_PLUGIN_NAME,
                                                .init = init,
                                                .devices = devices,
                                                .get_properties = get_properties,
                                                .listen = listen_at,
                                                .connect = connect_to,
                                                .accept = accept_one,
                                                .reg_mr = reg_mr,
                                                .dereg_mr = dereg_mr,
                                                .isend = isend,
                                                .irecv = irecv,
                                                .iflush = iflush,
                                                .test = test,
                                                .close_send = close_send,
                                                .close_recv = close_recv,
                                                .close_listen = close_listen,
                                                .finalize = finalize};

__attribute__((constructor)) static void open_inner(void)
{
    const char *path = getenv("NCCL_TEST_INNER");
    void *library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    fault = getenv("NCCL_TEST_FAULT");
    inner = library ? dlsym(library, "ncclNetPlugin_v12") : NULL;
    if (!inner) {
        fprintf(stderr, "NCCL_TEST_INNER: %s\n", library ? "no table" : dlerror());
        abort();
    }
    if (FAULT("entry-missing")) ncclNetPlugin_v12.irecv = NULL;
    faulty_collnet_open(dlsym(library, "ncclCollNetPlugin_v12"), fault);
}
