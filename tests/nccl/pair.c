/* pair.c - connections, messages and data of the points (harness.h). */
#include <dirent.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/nccl/harness.h"

void point_fail(const char *file, int line, const char *format, ...)
{
    char text[400];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "  %s:%d: %s\n", strrchr(file, '/') ? strrchr(file, '/') + 1 : file, line, text);
    fflush(NULL);
    _exit(1);
}

/* ---- pairs ---- */

static enum nccl_result connect_both(struct pair *pair, void *listener, void *handle)
{
    enum nccl_result result = NCCL_RESULT_SUCCESS;
    pair->send = pair->recv = NULL;
    while (result == NCCL_RESULT_SUCCESS && (!pair->send || !pair->recv)) {
        if (!pair->send) result = driver_connect(pair->driver, pair->send_context, 0, handle, &pair->send);
        if (result == NCCL_RESULT_SUCCESS && !pair->recv)
            result = driver_accept(pair->driver, listener, &pair->recv);
        sched_yield();
    }
    return result;
}

void pair_connect(struct pair *pair, void *listener, void *handle)
{
    CHECK_OK(connect_both(pair, listener, handle));
}

void pair_open_in(struct pair *pair, struct harness *harness, void *send_context, void *recv_context)
{
    char handle[NCCL_HANDLE_BYTES], copy[NCCL_HANDLE_BYTES];
    void *listener = NULL;
    *pair =
        (struct pair){.driver = &harness->driver, .send_context = send_context, .recv_context = recv_context};
    CHECK_OK(driver_listen(pair->driver, recv_context, 0, handle, &listener));
    CHECK(listener, "listen returned no listener");
    memcpy(copy, handle, sizeof copy);
    memset(handle, 0x5a, sizeof handle);
    pair_connect(pair, listener, copy);
    CHECK_OK(driver_close_listen(pair->driver, listener));
}

void pair_open(struct pair *pair, struct harness *harness)
{
    void *send_context, *recv_context;
    CHECK_OK(driver_init(&harness->driver, 1, &send_context));
    CHECK_OK(driver_init(&harness->driver, 1, &recv_context));
    pair_open_in(pair, harness, send_context, recv_context);
    pair->owns = true;
}

enum nccl_result pair_open_under_faults(struct pair *pair, struct harness *harness)
{
    char handle[NCCL_HANDLE_BYTES];
    void *listener = NULL;
    *pair = (struct pair){.driver = &harness->driver, .owns = true};
    CHECK_OK(driver_init(pair->driver, 1, &pair->send_context));
    CHECK_OK(driver_init(pair->driver, 1, &pair->recv_context));
    CHECK_OK(driver_listen(pair->driver, pair->recv_context, 0, handle, &listener));
    const enum nccl_result result = connect_both(pair, listener, handle);
    CHECK_OK(driver_close_listen(pair->driver, listener));
    return result;
}

void pair_close(struct pair *pair)
{
    if (pair->send) CHECK_OK(driver_close_send(pair->driver, pair->send));
    if (pair->recv) CHECK_OK(driver_close_recv(pair->driver, pair->recv));
    if (!pair->owns) return;
    CHECK_OK(driver_finalize(pair->driver, pair->send_context));
    CHECK_OK(driver_finalize(pair->driver, pair->recv_context));
}

void *reg(struct pair *pair, void *comm, void *data, size_t bytes)
{
    void *memory = NULL;
    CHECK_OK(driver_reg(pair->driver, comm, data, bytes, &memory));
    return memory;
}

void *send_try(struct pair *pair, void *data, size_t bytes, int tag, void *memory)
{
    void *request = NULL;
    CHECK_OK(driver_isend(pair->driver, pair->send, data, bytes, tag, memory, NULL, &request));
    return request;
}

void *recv_try(struct pair *pair, void *data, size_t bytes, int tag, void *memory)
{
    void *request = NULL, *parent = NULL;
    CHECK_OK(driver_irecv(pair->driver, pair->recv, 1, &data, &bytes, &tag, &memory, &parent, &request));
    return request;
}

bool is_done(struct pair *pair, void **request, int *bytes_out)
{
    int done = 0;
    CHECK_OK(driver_test(pair->driver, *request, &done, bytes_out));
    if (done) *request = NULL;
    return done != 0;
}

int finish(struct pair *pair, void *send, void *recv)
{
    int bytes = -1, sent = -1;
    while (send || recv) {
        if (recv) is_done(pair, &recv, &bytes);
        if (send) is_done(pair, &send, &sent);
        sched_yield();
    }
    return bytes;
}

void transfer(struct pair *pair, void *from, size_t bytes, void *to, size_t capacity, int tag)
{
    void *recv = NULL, *send = NULL;
    while (!recv) recv = recv_try(pair, to, capacity, tag, NULL);
    while (!send) send = send_try(pair, from, bytes, tag, NULL);
    int got = finish(pair, send, recv);
    CHECK(got == (int)bytes, "a receive of a message of %zu bytes reports %d", bytes, got);
}

/* ---- data ---- */

uint64_t random_next(uint64_t *state)
{
    uint64_t x = *state += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

void pattern_fill(void *data, size_t bytes, uint64_t seed)
{
    unsigned char *out = data;
    for (size_t i = 0; i < bytes; i++) out[i] = (unsigned char)((i * 131 + (i >> 8) * 17 + seed * 29) & 255);
}

bool pattern_is(const void *data, size_t bytes, uint64_t seed)
{
    const unsigned char *in = data;
    for (size_t i = 0; i < bytes; i++)
        if (in[i] != (unsigned char)((i * 131 + (i >> 8) * 17 + seed * 29) & 255)) return false;
    return true;
}

int thread_count(void)
{
    DIR *folder = opendir("/proc/self/task");
    int count = 0;
    for (const struct dirent *entry; folder && (entry = readdir(folder));) count += entry->d_name[0] != '.';
    if (folder) closedir(folder);
    return count;
}
