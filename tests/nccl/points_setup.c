/* points_setup.c - table, contexts, properties, listen, connect and accept. */
#include <arpa/inet.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/nccl/harness.h"

/* NCCL calls these entries without a check. */
static void table(struct harness *harness)
{
    const char *missing;
    CHECK(driver_is_complete(&harness->driver, &missing), "the table of version %d lacks %s",
          harness->driver.version, missing);
    CHECK(driver_name(&harness->driver)[0], "the network has no name");
}

static void life(struct harness *harness)
{
    struct driver *driver = &harness->driver;
    void *contexts[6];
    struct pair pair;
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 6; i++) CHECK_OK(driver_init(driver, (uint64_t)i, &contexts[i]));
        CHECK_OK(driver_finalize(driver, contexts[0]));
        CHECK_OK(driver_finalize(driver, contexts[3]));
        pair_open_in(&pair, harness, contexts[1], contexts[2]);
        CHECK_OK(driver_finalize(driver, contexts[4]));
        char from[16] = "after finalize", to[16] = "";
        transfer(&pair, from, sizeof from, to, sizeof to, 0);
        CHECK(memcmp(from, to, sizeof from) == 0, "the message is wrong");
        pair_close(&pair);
        for (int i = 1; i < 6; i += i == 2 ? 3 : 1)
            if (i != 4) CHECK_OK(driver_finalize(driver, contexts[i]));
    }
    CHECK_OK(driver_finalize(driver, NULL)); /* NCCL 2.28 does so after an init that failed */
}

static void properties(struct harness *harness)
{
    struct driver *driver = &harness->driver;
    struct nccl_properties_v12 first, second;
    void *context;
    int count = 0, again = 0;
    CHECK_OK(driver_init(driver, 1, &context));
    CHECK_OK(driver_devices(driver, &count));
    CHECK(count > 0, "there is no device");
    for (int device = 0; device < count; device++) {
        CHECK_OK(driver_properties(driver, device, &first));
        CHECK(first.name && first.name[0], "device %d has no name", device);
        CHECK(first.pointers & NCCL_POINTER_HOST, "device %d does not take host memory", device);
        CHECK(first.max_recvs >= 1 && first.max_comms >= 1 && first.speed > 0,
              "device %d: max_recvs %d, max_comms %d, speed %d", device, first.max_recvs, first.max_comms,
              first.speed);
        CHECK(first.max_p2p_bytes > 0 && first.max_coll_bytes > 0, "device %d moves no bytes", device);
        CHECK(first.device_type == NCCL_DEVICE_HOST, "device %d wants code on the GPU", device);
    }
    char *name = strdup(first.name);
    CHECK_OK(driver_finalize(driver, context));
    CHECK_OK(driver_init(driver, 2, &context));
    CHECK_OK(driver_devices(driver, &again));
    CHECK_OK(driver_properties(driver, count - 1, &second));
    CHECK(again == count, "%d devices, and %d after finalize", count, again);
    CHECK(strcmp(first.name, name) == 0 && strcmp(second.name, name) == 0 && first.guid == second.guid &&
              first.speed == second.speed,
          "the properties of device %d have changed", count - 1);
    CHECK_OK(driver_finalize(driver, context));
    CHECK(strcmp(first.name, name) == 0, "the name is not valid after finalize");
    free(name);
}

/* A handle has 128 bytes, and is copied byte by byte to another address. */
static void handle(struct harness *harness)
{
    struct driver *driver = &harness->driver;
    struct pair pair = {.driver = driver};
    char bytes[NCCL_HANDLE_BYTES + 64], *copy = malloc(NCCL_HANDLE_BYTES);
    void *listener = NULL, *context;
    CHECK_OK(driver_init(driver, 1, &context));
    pair.send_context = pair.recv_context = context;
    memset(bytes, 0x77, sizeof bytes);
    CHECK_OK(driver_listen(driver, context, 0, bytes, &listener));
    CHECK(listener, "listen returned no listener");
    for (size_t i = NCCL_HANDLE_BYTES; i < sizeof bytes; i++)
        CHECK(bytes[i] == 0x77, "byte %zu behind the handle was written", i - NCCL_HANDLE_BYTES);
    memcpy(copy, bytes, NCCL_HANDLE_BYTES);
    memset(bytes, 0, sizeof bytes);
    pair_connect(&pair, listener, copy);
    /* the listener serves further connections */
    struct pair other = pair;
    pair_connect(&other, listener, copy);
    CHECK_OK(driver_close_listen(driver, listener));
    free(copy);
    char from[8] = "copied", to[8] = "";
    transfer(&other, from, sizeof from, to, sizeof to, 0);
    transfer(&pair, from, sizeof from, to, sizeof to, 0);
    CHECK(memcmp(from, to, sizeof from) == 0, "the message is wrong");
    pair_close(&pair);
    pair_close(&other);
    CHECK_OK(driver_finalize(driver, context));
}

/* Neither side waits for the other: a thousand calls of one before the first of the other. */
static void either_order(struct harness *harness)
{
    struct driver *driver = &harness->driver;
    char bytes[NCCL_HANDLE_BYTES];
    void *context, *listener;
    CHECK_OK(driver_init(driver, 1, &context));
    for (int accept_first = 0; accept_first < 2; accept_first++) {
        struct pair pair = {.driver = driver, .send_context = context, .recv_context = context};
        CHECK_OK(driver_listen(driver, context, 0, bytes, &listener));
        for (int i = 0; i < 1000; i++) {
            if (accept_first) CHECK_OK(driver_accept(driver, listener, &pair.recv));
            else if (!pair.send) CHECK_OK(driver_connect(driver, context, 0, bytes, &pair.send));
            CHECK(!pair.recv, "accept without a connect has returned a connection");
        }
        while (!pair.send || !pair.recv) {
            if (!pair.recv) CHECK_OK(driver_accept(driver, listener, &pair.recv));
            if (!pair.send) CHECK_OK(driver_connect(driver, context, 0, bytes, &pair.send));
            sched_yield();
        }
        CHECK_OK(driver_close_listen(driver, listener));
        char from[8] = "ordered", to[8] = "";
        transfer(&pair, from, sizeof from, to, sizeof to, 0);
        CHECK(memcmp(from, to, sizeof from) == 0, "the message is wrong");
        pair_close(&pair);
    }
    CHECK_OK(driver_finalize(driver, context));
}

/* The question about GPU-direct: listen, connect, accept and regMr of one context with itself. */
static void self(struct harness *harness)
{
    void *context;
    struct pair pair;
    char from[64], to[64];
    CHECK_OK(driver_init(&harness->driver, 1, &context));
    pair_open_in(&pair, harness, context, context);
    void *one = reg(&pair, pair.send, from, sizeof from), *other = reg(&pair, pair.recv, to, sizeof to);
    pattern_fill(from, sizeof from, 2);
    transfer(&pair, from, sizeof from, to, sizeof to, 0);
    CHECK(pattern_is(to, sizeof to, 2), "the message is wrong");
    CHECK_OK(driver_dereg(pair.driver, pair.send, one));
    CHECK_OK(driver_dereg(pair.driver, pair.recv, other));
    pair_close(&pair);
    CHECK_OK(driver_finalize(&harness->driver, context));
}

/* No listener any more: an error, not an endless attempt and not a connection that carries messages. */
static void listener_closed(struct harness *harness)
{
    struct driver *driver = &harness->driver;
    char bytes[NCCL_HANDLE_BYTES], data[8] = "";
    void *context, *listener, *send = NULL, *request = NULL;
    CHECK_OK(driver_init(driver, 1, &context));
    CHECK_OK(driver_listen(driver, context, 0, bytes, &listener));
    CHECK_OK(driver_close_listen(driver, listener));
    enum nccl_result result = NCCL_RESULT_SUCCESS;
    for (int done = 0; result == NCCL_RESULT_SUCCESS; sched_yield()) {
        if (!send) result = driver_connect(driver, context, 0, bytes, &send);
        else if (!request) result = driver_isend(driver, send, data, 8, 0, NULL, NULL, &request);
        else result = driver_test(driver, request, &done, NULL);
        if (done) request = NULL;
    }
    CHECK(result == NCCL_RESULT_REMOTE, "a closed listener gave %d, not %d", (int)result, NCCL_RESULT_REMOTE);
    if (send) CHECK_OK(driver_close_send(driver, send));
    CHECK_OK(driver_finalize(driver, context));
}

/* ---- many connections, two threads for each communicator ---- */

enum { COMMUNICATORS = 4, EACH_MAX = 16, ROUNDS = 12, MANY_BYTES = 9000 };

struct communicator {
    struct harness *harness;
    void *one, *other; /* contexts */
    struct pair pairs[EACH_MAX];
    atomic_int open_count;   /* pairs ready for the progress thread */
    atomic_bool is_finished; /* the progress thread uses no pair any more */
    char from[MANY_BYTES], to[MANY_BYTES];
};

static int each = EACH_MAX; /* connections of a communicator */

/* NCCL's service thread: opens, registers and deregisters while messages move, closes at the end. */
static void *service(void *context)
{
    struct communicator *own = context;
    struct driver *driver = &own->harness->driver;
    static _Thread_local char registered[8192];
    for (int i = 0; i < each; i++) {
        pair_open_in(&own->pairs[i], own->harness, i % 2 ? own->one : own->other,
                     i % 3 ? own->one : own->other);
        atomic_fetch_add(&own->open_count, 1);
        void *memory = reg(&own->pairs[i / 2], own->pairs[i / 2].recv, registered + 64 * i, 4096);
        CHECK_OK(driver_dereg(driver, own->pairs[i / 2].recv, memory));
    }
    while (!own->is_finished) {
        for (int i = 0; i < each; i++) {
            void *memory = reg(&own->pairs[i], own->pairs[i].send, registered + 100 * i, 1000);
            CHECK_OK(driver_dereg(driver, own->pairs[i].send, memory));
        }
        sched_yield();
    }
    for (int i = 0; i < each; i++) pair_close(&own->pairs[i]);
    return NULL;
}

/* NCCL's progress thread. */
static void *progress(void *context)
{
    struct communicator *own = context;
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < each; i++) {
            size_t bytes = (size_t)((round * 977 + i * 131) % MANY_BYTES);
            while (own->open_count <= i) sched_yield();
            pattern_fill(own->from, bytes, (uint64_t)(round + i));
            transfer(&own->pairs[i], own->from, bytes, own->to, MANY_BYTES, i);
            CHECK(pattern_is(own->to, bytes, (uint64_t)(round + i)), "message %d of connection %d is wrong",
                  round, i);
        }
    }
    own->is_finished = true;
    return NULL;
}

static void many(struct harness *harness)
{
    static struct communicator all[COMMUNICATORS];
    pthread_t threads[2 * COMMUNICATORS];
    struct rlimit files;
    /* as NCCL does; both ends of 64 connections over shared memory need about 1,300 descriptors */
    CHECK(getrlimit(RLIMIT_NOFILE, &files) == 0, "no limit of descriptors");
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    if (files.rlim_cur < 2048) each = EACH_MAX / 2;
    for (int i = 0; i < COMMUNICATORS; i++) {
        all[i].harness = harness;
        CHECK_OK(driver_init(&harness->driver, (uint64_t)i, &all[i].one));
        CHECK_OK(driver_init(&harness->driver, (uint64_t)i, &all[i].other));
    }
    for (int i = 0; i < COMMUNICATORS; i++) {
        CHECK(pthread_create(&threads[2 * i], NULL, service, &all[i]) == 0, "no thread");
        CHECK(pthread_create(&threads[2 * i + 1], NULL, progress, &all[i]) == 0, "no thread");
    }
    for (int i = 0; i < 2 * COMMUNICATORS; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < COMMUNICATORS; i++) {
        CHECK_OK(driver_finalize(&harness->driver, all[i].one));
        CHECK_OK(driver_finalize(&harness->driver, all[i].other));
    }
}

/* ---- hostile input ---- */

/* Opens a TCP connection to every port on which this process listens; returns how many. */
static int dial_own_ports(int *fds, int most)
{
    FILE *file = fopen("/proc/self/net/tcp", "re");
    char line[256];
    int count = 0;
    while (file && fgets(line, sizeof line, file)) {
        unsigned address, port, state, unused_address, unused_port;
        unsigned long inode;
        if (sscanf(line, " %*d: %x:%x %x:%x %x %*s %*s %*s %*u %*u %lu", &address, &port, &unused_address,
                   &unused_port, &state, &inode) != 6 ||
            state != 10)
            continue;
        bool is_own = false;
        for (int fd = 3; fd < 256 && !is_own; fd++) {
            char path[64], target[64] = "", wanted[64];
            snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
            snprintf(wanted, sizeof wanted, "socket:[%lu]", inode);
            is_own = readlink(path, target, sizeof target - 1) > 0 && strcmp(target, wanted) == 0;
        }
        struct sockaddr_in to = {.sin_family = AF_INET,
                                 .sin_port = htons((uint16_t)port),
                                 .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        if (!is_own || count == most) continue;
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to) == 0) fds[count++] = fd;
        else if (fd >= 0) close(fd);
    }
    if (file) fclose(file);
    return count;
}

/* Handles with wrong bytes give an error or a connection that is never accepted, never a crash. */
static void hostile_handles(struct harness *harness, void *context, void *listener, const char *right)
{
    uint64_t random = 3;
    for (int i = 0; i < 200; i++) {
        char bytes[NCCL_HANDLE_BYTES];
        void *send = NULL, *recv = NULL;
        memcpy(bytes, right, sizeof bytes);
        if (i == 0) memset(bytes, 0, sizeof bytes);
        else if (i == 1) memset(bytes, 0xff, sizeof bytes);
        else bytes[random_next(&random) % 32] ^= (char)(1 + random_next(&random) % 255);
        for (int k = 0; k < 20 && !send; k++) {
            if (driver_connect(&harness->driver, context, 0, bytes, &send) != NCCL_RESULT_SUCCESS) break;
            if (!recv) CHECK_OK(driver_accept(&harness->driver, listener, &recv));
        }
        if (send) CHECK_OK(driver_close_send(&harness->driver, send));
        if (recv)
            CHECK_OK(driver_close_recv(&harness->driver, recv)); /* a byte without meaning was changed */
    }
}

/* Foreign connections send nothing, a little or noise, and stay. The right rank still gets its connection. */
static void hostile(struct harness *harness)
{
    struct driver *driver = &harness->driver;
    struct pair pair = {.driver = driver};
    char bytes[NCCL_HANDLE_BYTES], noise[600];
    void *context, *other, *listener;
    int foreign[64], count = 0;
    CHECK_OK(driver_init(driver, 1, &context));
    CHECK_OK(driver_init(driver, 1, &other));
    pair.send_context = other;
    pair.recv_context = context;
    CHECK_OK(driver_listen(driver, context, 0, bytes, &listener));
    hostile_handles(harness, other, listener, bytes);
    for (int round = 0; round < 40 && count < 60; round++) {
        count += dial_own_ports(foreign + count, 60 - count);
        void *unexpected = NULL;
        CHECK_OK(driver_accept(driver, listener, &unexpected));
        CHECK(!unexpected, "a foreign connection was accepted");
    }
    CHECK(count > 0, "no listening port was found");
    memset(noise, 0x41, sizeof noise);
    for (int i = 0; i < count; i++) {
        ssize_t sent = send(foreign[i], noise, i % 3 == 0 ? 1 : sizeof noise, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 || i % 5 != 0) continue;
        close(foreign[i]);
        foreign[i] = -1;
    }
    pair_connect(&pair, listener, bytes);
    CHECK_OK(driver_close_listen(driver, listener));
    char from[8] = "right", to[8] = "";
    transfer(&pair, from, sizeof from, to, sizeof to, 0);
    CHECK(memcmp(from, to, sizeof from) == 0, "the message is wrong");
    pair_close(&pair);
    for (int i = 0; i < count; i++)
        if (foreign[i] >= 0) close(foreign[i]);
    CHECK_OK(driver_finalize(driver, context));
    CHECK_OK(driver_finalize(driver, other));
}

const struct point setup_points[] = {{"table", table},
                                     {"life", life},
                                     {"properties", properties},
                                     {"handle", handle},
                                     {"either-order", either_order},
                                     {"self", self},
                                     {"listener-closed", listener_closed},
                                     {"many", many},
                                     {"hostile", hostile},
                                     {NULL, NULL}};
