/* points_direct.c - messages in device memory, by a stand-in for a dma-buf.
 *
 *   memory file --(descriptor)--> regMrDmaBuf        as the dma-buf of a device
 *               --(mapping without access)--> the "device address" of isend and irecv
 *               --(second mapping)--> the test, in the part of the device
 *
 * A processor that touches a device address ends the point by SIGSEGV. Skipped where the plugin offers no
 * dma-buf: then the transport or its devices cannot. */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/nccl/harness.h"

struct memory {
    int fd;
    uint8_t *address; /* (bytes,) for the plugin */
    uint8_t *view;    /* (bytes,) the same bytes, for the test */
    size_t bytes;
};

static struct memory device_alloc(size_t bytes)
{
    struct memory memory = {.fd = memfd_create("device", MFD_CLOEXEC), .bytes = bytes};
    CHECK(memory.fd >= 0 && ftruncate(memory.fd, (off_t)bytes) == 0, "no memory file");
    memory.address = mmap(NULL, bytes, PROT_NONE, MAP_SHARED, memory.fd, 0);
    memory.view = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.fd, 0);
    CHECK(memory.address != MAP_FAILED && memory.view != MAP_FAILED, "no mapping");
    return memory;
}

static void device_free(struct memory *memory)
{
    munmap(memory->address, memory->bytes);
    munmap(memory->view, memory->bytes);
    close(memory->fd);
}

/* Registers (bytes,) at `offset` of the memory. */
static void *device_reg(struct pair *pair, void *comm, const struct memory *memory, size_t offset,
                        size_t bytes)
{
    void *registered = NULL;
    CHECK_OK(driver_reg_dmabuf(pair->driver, comm, memory->address + offset, bytes, offset, memory->fd,
                               &registered));
    CHECK(registered, "regMrDmaBuf returned no registration");
    return registered;
}

static bool is_offered(const struct harness *harness)
{
    if (harness->properties.pointers & NCCL_POINTER_DMABUF) return true;
    printf("     direct: skipped, the plugin offers no dma-buf\n");
    return false;
}

/* ---- sizes ---- */

enum { SPACE = 4 << 20, GUARD = 64 };

struct ends {
    struct memory from, to; /* view == address: host memory */
    void *from_registered, *to_registered;
};

static void flush(struct pair *pair, void *data, int bytes, void *registered)
{
    void *request = NULL;
    CHECK_OK(driver_iflush(pair->driver, pair->recv, 1, &data, &bytes, &registered, &request));
    while (request) is_done(pair, &request, NULL);
}

static void move(struct pair *pair, const struct ends *ends, size_t bytes, bool send_first)
{
    const size_t at = GUARD + bytes % 61;
    void *send = NULL, *recv = NULL;
    pattern_fill(ends->from.view + at, bytes, bytes);
    memset(ends->to.view, 0x3c, at + bytes + GUARD);
    if (send_first) {
        while (!send) send = send_try(pair, ends->from.address + at, bytes, 0, ends->from_registered);
        for (int k = 0; send && k < 40; k++) is_done(pair, &send, NULL);
    }
    while (!recv) recv = recv_try(pair, ends->to.address + at, bytes, 0, ends->to_registered);
    while (!send_first && !send)
        send = send_try(pair, ends->from.address + at, bytes, 0, ends->from_registered);
    const int got = finish(pair, send, recv);
    CHECK(got == (int)bytes, "a message of %zu bytes was received as %d", bytes, got);
    flush(pair, ends->to.address + at, (int)bytes, ends->to_registered);
    CHECK(pattern_is(ends->to.view + at, bytes, bytes), "%zu bytes in device memory are wrong", bytes);
    for (size_t i = 0; i < GUARD; i++)
        CHECK(ends->to.view[at - 1 - i] == 0x3c && ends->to.view[at + bytes + i] == 0x3c,
              "a byte beside the message was written");
}

static void direct(struct harness *harness)
{
    static const size_t sizes[] = {0, 1, 8, 220, 221, 4096, 8192, 8193, 65537, (3 << 20) + 5};
    static uint8_t host[2][SPACE];
    struct memory device[2] = {device_alloc(SPACE), device_alloc(SPACE)};
    struct pair pair;
    if (!is_offered(harness)) return;
    pair_open(&pair, harness);
    void *first = device_reg(&pair, pair.recv, &device[1], 0, SPACE);
    struct ends ends[] = {{device[0], device[1], device_reg(&pair, pair.send, &device[0], 0, SPACE), NULL},
                          {{0, host[0], host[0], SPACE}, device[1], NULL, NULL},
                          {device[0], {0, host[1], host[1], SPACE}, NULL, NULL}};
    ends[0].to_registered = ends[1].to_registered = device_reg(&pair, pair.recv, &device[1], 0, SPACE);
    ends[2].from_registered = ends[0].from_registered;
    ends[1].from_registered = reg(&pair, pair.send, host[0], SPACE);
    ends[2].to_registered = reg(&pair, pair.recv, host[1], SPACE);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        for (int e = 0; e < 3; e++) move(&pair, &ends[e], sizes[i], (i + (size_t)e) % 2 == 0);
        if (i == 5) CHECK_OK(driver_dereg(pair.driver, pair.recv, first)); /* the other covers the range */
    }
    CHECK_OK(driver_dereg(pair.driver, pair.send, ends[0].from_registered));
    CHECK_OK(driver_dereg(pair.driver, pair.recv, ends[0].to_registered));
    pair_close(&pair);
    device_free(&device[0]);
    device_free(&device[1]);
}

/* ---- the end with requests open ---- */

enum { OPEN = 8, CHUNK = 1 << 20 };

static void poll_any(struct pair *pair, void **requests, int rounds)
{
    for (; rounds > 0; rounds--) {
        for (int i = 0; i < OPEN; i++) {
            int done = 0;
            if (requests[i] &&
                (driver_test(pair->driver, requests[i], &done, NULL) != NCCL_RESULT_SUCCESS || done))
                requests[i] = NULL;
        }
    }
}

/* After deregMr of the receiver no device writes into its memory. */
static void abort_run(struct harness *harness, int polls)
{
    struct memory from = device_alloc((size_t)OPEN * CHUNK), to = device_alloc((size_t)OPEN * CHUNK);
    void *sends[OPEN], *recvs[OPEN];
    struct pair pair;
    pair_open(&pair, harness);
    void *one = device_reg(&pair, pair.send, &from, 0, from.bytes),
         *other = device_reg(&pair, pair.recv, &to, 0, to.bytes);
    for (size_t i = 0; i < OPEN; i++) {
        recvs[i] = recv_try(&pair, to.address + i * CHUNK, CHUNK, 0, other);
        sends[i] = i > OPEN / 2 ? NULL : send_try(&pair, from.address + i * CHUNK, CHUNK, 0, one);
    }
    poll_any(&pair, sends, polls);
    poll_any(&pair, recvs, polls);
    CHECK_OK(driver_dereg(pair.driver, pair.recv, other));
    memset(to.view, 0x77, to.bytes);
    poll_any(&pair, sends, 50);
    CHECK_OK(driver_close_recv(pair.driver, pair.recv));
    poll_any(&pair, sends, 50);
    CHECK_OK(driver_dereg(pair.driver, pair.send, one));
    CHECK_OK(driver_close_send(pair.driver, pair.send));
    CHECK_OK(driver_finalize(pair.driver, pair.send_context));
    CHECK_OK(driver_finalize(pair.driver, pair.recv_context));
    for (size_t i = 0; i < to.bytes; i++) CHECK(to.view[i] == 0x77, "byte %zu was written after deregMr", i);
    device_free(&from);
    device_free(&to);
}

static void direct_abort(struct harness *harness)
{
    if (!is_offered(harness)) return;
    abort_run(harness, 0);
    abort_run(harness, 5);
}

/* ---- refusals ---- */

/* A registration that the devices refuse is an error of that call only. */
static void direct_refused(struct harness *harness)
{
    struct memory memory = device_alloc(SPACE);
    struct pair pair;
    void *registered = NULL;
    static char from[1000], to[1000];
    pair_open(&pair, harness);
    CHECK(driver_reg_dmabuf(pair.driver, pair.recv, memory.address, SPACE, 0, -2, &registered) !=
                  NCCL_RESULT_SUCCESS &&
              !registered,
          "a descriptor that is not valid was registered");
    if (!(harness->properties.pointers & NCCL_POINTER_DMABUF))
        CHECK(driver_reg_dmabuf(pair.driver, pair.recv, memory.address, SPACE, 0, memory.fd, &registered) !=
                      NCCL_RESULT_SUCCESS &&
                  !registered,
              "a dma-buf was registered that the properties do not offer");
    pattern_fill(from, sizeof from, 3);
    transfer(&pair, from, sizeof from, to, sizeof to, 0);
    CHECK(pattern_is(to, sizeof to, 3), "the message behind the refusal is wrong");
    pair_close(&pair);
    device_free(&memory);
}

const struct point direct_points[] = {
    {"direct", direct}, {"direct-abort", direct_abort}, {"direct-refused", direct_refused}, {NULL, NULL}};
