/* test_profiler.c - the profiler table as NCCL calls it: collectives on one thread, network steps on another,
 * handles of other processes, more events than slots, no file. The trace merges with `weft trace merge`.
 *
 *    test_profiler PLUGIN WEFT */
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "nccl/nccl.h"

enum { EVENTS = 1600, SLOTS = 8192, TEXT_BYTES = 64 << 20 };

#define CHECK(condition, ...)                               \
    do {                                                    \
        if (!(condition)) {                                 \
            fprintf(stderr, "%s:%d: ", __FILE__, __LINE__); \
            fprintf(stderr, __VA_ARGS__);                   \
            fprintf(stderr, "\n");                          \
            exit(1);                                        \
        }                                                   \
    } while (0)

static const struct nccl_profiler_v5 *v5;
static const struct nccl_profiler_v4 *v4;
static const char *weft;
static char folder[] = "/tmp/weft-profiler-XXXXXX", path[64];
static char *text;
static size_t text_bytes;

static void *start(void *context, struct nccl_profile_event *event)
{
    void *handle = (void *)1;
    CHECK(v5->start_event(context, &handle, event) == NCCL_RESULT_SUCCESS, "start_event failed");
    return handle;
}

static void *start_collective(void *context, uint64_t sequence)
{
    struct nccl_profile_event event = {.type = NCCL_PROFILE_COLLECTIVE, .rank = 1};
    event.collective = (struct nccl_profile_collective){.sequence = sequence,
                                                        .name = "AllReduce",
                                                        .count = 1000,
                                                        .dtype = "ncclFloat32",
                                                        .algorithm = "RING",
                                                        .protocol = "SIMPLE"};
    return start(context, &event);
}

static void *start_op(void *context, void *parent, pid_t pid, int is_send)
{
    struct nccl_profile_event event = {.type = NCCL_PROFILE_PROXY_OP, .parent = parent, .rank = 1};
    event.proxy_op = (struct nccl_profile_proxy_op){
        .pid = pid, .channel = 2, .peer = 3, .steps = 1, .chunk_bytes = 65536, .is_send = is_send};
    return start(context, &event);
}

static void run_step(void *context, void *op, int step, int is_send, size_t bytes)
{
    struct nccl_profile_event event = {.type = NCCL_PROFILE_PROXY_STEP, .parent = op, .rank = 1};
    union nccl_profile_update update = {.step_bytes = bytes};
    event.proxy_step = step;
    void *handle = start(context, &event);
    if (is_send) {
        v5->record_state(handle, NCCL_STATE_SEND_GPU_WAIT, NULL);
        usleep(2000);
        v5->record_state(handle, NCCL_STATE_SEND_PEER_WAIT, NULL);
        v5->record_state(handle, NCCL_STATE_SEND_WAIT, &update);
    } else {
        v5->record_state(handle, NCCL_STATE_RECV_WAIT, NULL);
        usleep(2000);
        v5->record_state(handle, NCCL_STATE_RECV_FLUSH_WAIT, &update);
    }
    v5->stop_event(handle);
}

static void read_text(const char *from)
{
    FILE *file = fopen(from, "r");
    CHECK(file, "%s is not there", from);
    if (!text) text = malloc(TEXT_BYTES);
    text_bytes = fread(text, 1, TEXT_BYTES - 1, file);
    text[text_bytes] = 0;
    fclose(file);
}

/* Copies the next line of the file and moves *at behind it; false: the end. Sanitizers read all of a string
 * in strstr, so each line is a string of its own. */
static bool next_line(const char **at, char *out, size_t bytes)
{
    const size_t rest = text_bytes - (size_t)(*at - text);
    const char *end = rest > 0 ? memchr(*at, '\n', rest) : NULL;
    if (!end) return false;
    const size_t length = (size_t)(end - *at) < bytes - 1 ? (size_t)(end - *at) : bytes - 1;
    memcpy(out, *at, length);
    out[length] = 0;
    *at = end + 1;
    return true;
}

/* Number of begun spans with this name whose line has the words. */
static int spans(const char *name, const char *words)
{
    char head[96], line[1024];
    int count = 0;
    snprintf(head, sizeof head, "{\"name\":\"%s\",", name);
    for (const char *at = text; next_line(&at, line, sizeof line);)
        count +=
            strncmp(line, head, strlen(head)) == 0 && strstr(line, "\"ph\":\"b\"") && strstr(line, words);
    return count;
}

/* The number behind the key in the first begun span with this name. */
static double number_of(const char *name, const char *key)
{
    char head[96];
    snprintf(head, sizeof head, "{\"name\":\"%s\",", name);
    const char *line = strstr(text, head), *at = line ? strstr(line, key) : NULL;
    CHECK(at, "no %s of %s", key, name);
    return strtod(at + strlen(key), NULL);
}

static void *open_comm(uint64_t id, int *mask_out)
{
    void *context = NULL;
    CHECK(v5->init(&context, id, mask_out, "comm", 2, 4, 1, NULL) == NCCL_RESULT_SUCCESS, "init failed");
    return context;
}

/* ---- cases: each in a process of its own, because the options are read once ---- */

static void one_collective(void)
{
    int mask = -1;
    void *context = open_comm(0xabcdef, &mask);
    CHECK(context && mask == (2 | 4 | 8 | 16 | 64), "mask %d", mask);
    void *collective = start_collective(context, 7);
    v5->stop_event(collective); /* NCCL stops it when the kernel is queued */
    void *op = start_op(context, collective, getpid(), 1);
    run_step(context, op, 0, 1, 4096);
    v5->stop_event(op);
    op = start_op(context, collective, getpid(), 0);
    run_step(context, op, 5, 0, 512);
    v5->stop_event(op);
    struct nccl_profile_event kernel = {.type = NCCL_PROFILE_KERNEL, .parent = collective};
    kernel.kernel = (struct nccl_profile_kernel){.channel = 4, .timer_ns = 1000000};
    void *handle = start(context, &kernel);
    v5->record_state(handle, NCCL_STATE_KERNEL_STOP, &(union nccl_profile_update){.timer_ns = 3500000});
    v5->stop_event(handle);
    struct nccl_profile_event p2p = {.type = NCCL_PROFILE_P2P};
    p2p.p2p = (struct nccl_profile_p2p){.name = "Send", .count = 12, .dtype = "ncclInt8", .peer = 2};
    v5->stop_event(start(context, &p2p));
    CHECK(v5->stop_event(NULL) == NCCL_RESULT_SUCCESS && v5->stop_event(collective) == NCCL_RESULT_SUCCESS,
          "stop");
    CHECK(v5->record_state(NULL, NCCL_STATE_SEND_WAIT, NULL) == NCCL_RESULT_SUCCESS, "state");
    v5->finalize(context);
    v5->finalize(NULL);
    read_text(path);
    const char *of = "\"comm\":\"0000000000abcdef\",\"sequence\":7";
    CHECK(spans("AllReduce", of) == 1, "no collective");
    CHECK(spans("AllReduce",
                "\"count\":1000,\"dtype\":\"ncclFloat32\",\"algorithm\":\"RING\",\"protocol\":\"SIMPLE\"") ==
              1,
          "its arguments");
    CHECK(spans("send", "\"of\":\"AllReduce\",\"channel\":2,\"peer\":3,\"steps\":1,\"chunk_bytes\":65536") ==
              1,
          "send");
    CHECK(spans("send step", of) == 1 && spans("send step", "\"step\":0,\"bytes\":4096") == 1, "send step");
    CHECK(spans("recv step", "\"step\":5,\"bytes\":512,\"gpu_wait_us\":0,\"peer_wait_us\":0") == 1,
          "recv step");
    CHECK(spans("send step", "\"gpu_wait_us\":0,") == 0 && spans("recv step", "\"network_us\":0}") == 0,
          "waits");
    CHECK(number_of("send step", "\"gpu_wait_us\":") >= 2000 &&
              number_of("recv step", "\"network_us\":") >= 2000 &&
              number_of("send step", "\"gpu_wait_us\":") < 60e6,
          "the times of waits");
    CHECK(spans("kernel", "\"channel\":4,\"gpu_us\":2500") == 1 && spans("kernel", of) == 1, "kernel");
    CHECK(spans("Send", "\"peer\":2,\"count\":12") == 1, "p2p");
    char command[256], merged[80];
    snprintf(merged, sizeof merged, "%s/all.json", folder);
    snprintf(command, sizeof command, "%s trace merge -o %s %s", weft, merged, path);
    CHECK(system(command) == 0, "%s failed", command);
    read_text(merged);
    CHECK(spans("AllReduce", of) == 1 && strstr(text, "NCCL rank 1 of 4"), "merged");
}

static void version_4(void)
{
    void *context = NULL, *handle = NULL;
    int mask = 0;
    CHECK(v4->init(&context, &mask, "comm", 5, 2, 4, 1, NULL) == NCCL_RESULT_SUCCESS && mask, "init");
    struct nccl_profile_event_v4 event;
    memset(&event, 0xee, sizeof event); /* NCCL leaves the bytes behind the type as they are */
    event.type = NCCL_PROFILE_COLLECTIVE;
    event.parent = NULL;
    event.collective.sequence = 9;
    event.collective.name = "Broadcast";
    event.collective.count = 77;
    event.collective.dtype = event.collective.algorithm = event.collective.protocol = NULL;
    v4->start_event(context, &handle, &event);
    v4->stop_event(handle);
    v4->finalize(context);
    read_text(path);
    CHECK(spans("Broadcast", "\"comm\":\"0000000000000005\",\"sequence\":9,\"count\":77") == 1, "version 4");
}

/* A proxy that serves another process gets that process's handles, which may look like ours. */
static void other_process(void)
{
    int mask;
    void *context = open_comm(1, &mask);
    void *collective = start_collective(context, 7);
    void *op = start_op((void *)0x7f0000001000, collective, getpid() + 1, 1);
    run_step((void *)0x7f0000001000, op, 0, 1, 10);
    v5->stop_event(op);
    v5->stop_event(start_op(context, (void *)0x7f0000002000, getpid(), 0));
    v5->stop_event((void *)0x7f0000003000);
    v5->stop_event(collective);
    v5->finalize(context);
    read_text(path);
    CHECK(spans("send", "\"comm\":\"0000000000000000\",\"sequence\":0") == 1, "another process's operation");
    CHECK(spans("recv", "\"comm\":\"0000000000000001\",\"sequence\":0") == 1, "an unknown parent");
}

static void *progress(void *context)
{
    for (int i = 0; i < EVENTS; i++) {
        void *op = start_op(context, NULL, getpid(), 1);
        struct nccl_profile_event event = {.type = NCCL_PROFILE_PROXY_STEP, .parent = op};
        v5->stop_event(start(context, &event));
        v5->stop_event(op);
    }
    return NULL;
}

/* Two communicators, their threads at once: each event is written once. There are fewer than slots. */
static void threads(void)
{
    int mask;
    pthread_t thread[2];
    void *contexts[2] = {open_comm(1, &mask), open_comm(2, &mask)};
    for (int i = 0; i < 2; i++) pthread_create(&thread[i], NULL, progress, contexts[i]);
    for (int i = 0; i < EVENTS; i++) v5->stop_event(start_collective(contexts[0], (uint64_t)i));
    for (int i = 0; i < 2; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < 2; i++) v5->finalize(contexts[i]);
    read_text(path);
    CHECK(spans("AllReduce", "") == EVENTS, "%d collectives", spans("AllReduce", ""));
    CHECK(spans("send", "\"comm\":\"0000000000000002\"") == EVENTS, "%d operations",
          spans("send", "\"comm\":\"0000000000000002\""));
    CHECK(spans("send step", "") == 2 * EVENTS, "%d steps", spans("send step", ""));
}

static int warned;
static void logger(enum nccl_log_level level, unsigned long subsystems, const char *file, int line,
                   const char *format, ...)
{
    char line_text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line_text, sizeof line_text, format, arguments);
    va_end(arguments);
    if (strstr(line_text, "the trace lacks 10 events")) warned++;
}

/* Events that stay open use all slots; further ones are dropped and counted. */
static void full(void)
{
    static void *handles[SLOTS + 10];
    int mask, dropped = 0;
    void *context = NULL;
    v5->init(&context, 1, &mask, NULL, 1, 1, 0, logger);
    for (int i = 0; i < SLOTS + 10; i++) dropped += !(handles[i] = start_collective(context, (uint64_t)i));
    CHECK(dropped == 10, "%d dropped", dropped);
    for (int i = 0; i < SLOTS + 10; i++) v5->stop_event(handles[i]);
    v5->finalize(context);
    CHECK(warned == 1, "%d warnings", warned);
    read_text(path);
    CHECK(spans("AllReduce", "") == SLOTS, "%d written", spans("AllReduce", ""));
    /* the slots have new events: the old handles are those of none */
    for (int i = 0; i < SLOTS - 1; i++) v5->stop_event(start_collective(context, 1000000));
    void *latest = start_collective(context, 1000001);
    for (int i = 0; i < SLOTS; i++) v5->stop_event(handles[i]);
    v5->stop_event(start_op(context, handles[0], getpid(), 1));
    v5->finalize(context);
    read_text(path);
    CHECK(spans("AllReduce", "\"sequence\":1000001") == 0, "an old handle stopped a new event");
    CHECK(spans("send", "\"sequence\":0") == 1, "an old handle is a parent");
    v5->stop_event(latest);
}

static void no_file(void)
{
    int mask = -1;
    void *context = open_comm(1, &mask);
    CHECK(!context && mask == 0, "without a file NCCL must report nothing (mask %d)", mask);
    CHECK(v5->finalize(context) == NCCL_RESULT_SUCCESS, "finalize");
}

static void unwritable(void)
{
    no_file();
}

static void run_case(const char *name, void (*run)(void), const char *file)
{
    int status = -1;
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        setenv("WEFT_NCCL_TRACE", file, 1);
        run();
        _exit(0);
    }
    waitpid(child, &status, 0);
    CHECK(status == 0, "case %s failed", name);
    unlink(path);
}

int main(int argc, char **argv)
{
    CHECK(argc == 3, "test_profiler PLUGIN WEFT");
    weft = argv[2];
    CHECK(mkdtemp(folder), "no folder");
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    CHECK(library, "%s", dlerror());
    v5 = dlsym(library, "ncclProfiler_v5");
    v4 = dlsym(library, "ncclProfiler_v4");
    CHECK(v5 && v4 && strcmp(v5->name, "weft") == 0, "tables");
    char pattern[64], merged[80];
    snprintf(pattern, sizeof pattern, "%s/trace.1", folder);
    setenv("WEFT_TRANSPORT_DEVICES", "lo", 1);
    /* a pattern without %p and %e gets the number of the process in the viewer */
    snprintf(path, sizeof path, "%s/trace-%u.1", folder, 0x4e000000u + 1);
    run_case("one collective", one_collective, pattern);
    run_case("version 4", version_4, pattern);
    run_case("other process", other_process, pattern);
    run_case("threads", threads, pattern);
    snprintf(path, sizeof path, "%s/trace-%u.1", folder, 0x4e000000u);
    run_case("full", full, pattern);
    run_case("no file", no_file, "");
    run_case("unwritable", unwritable, "/nowhere/trace.json");
    snprintf(merged, sizeof merged, "%s/all.json", folder);
    unlink(merged);
    CHECK(rmdir(folder) == 0, "%s has files left", folder);
    return 0;
}
