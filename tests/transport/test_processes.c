/* test_processes.c - endpoints in two processes: `test_processes FLAVOUR [--networks]`; with the option in
 * two network namespaces that are joined by a pair of virtual Ethernet devices only (root, else skipped).
 *
 * The child opens a window and echoes its input: a message returns with its tag, header and bytes; for the
 * notification of a put it returns the contents of the window. "bye" makes it close in order. */
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/transport/process_pair.h"

enum { WINDOW = 300001, COUNT = 600 };
#define TAG(n) WEFT_TAG(WEFT_CHANNEL_TEST, n)
#define TAG_KEY TAG(1000000)
#define TAG_PUT TAG(1000001)

static const struct flavour *flavour;
static bool networks;

/* ---- the child ---- */

struct echo {
    struct weft_completion completion;
    struct child *child;
    uint64_t tag;
    uint32_t header_bytes;
    uint8_t header[WEFT_TRANSPORT_HEADER_BYTES_MAX];
    size_t bytes;
    unsigned char *payload;
    bool here;             /* accepted completely */
    bool back;             /* being sent back */
    struct weft_list link; /* in child->waiting until then, in arrival order */
};

struct child {
    struct side side;
    unsigned char *window;
    struct weft_list waiting;
    int alive; /* echoes */
    bool bye;
};

static void must(bool condition, const char *text)
{
    if (condition) return;
    fprintf(stderr, "child: %s\n", text);
    _exit(9);
}

static void echo_done(struct weft_completion *completion, enum weft_status status)
{
    struct echo *echo = weft_container_of(completion, struct echo, completion);
    must(status == WEFT_OK, "an echo failed");
    if (!echo->back) {
        echo->here = true;
        return;
    }
    if (echo->payload != echo->child->window) free(echo->payload);
    echo->child->alive--;
    free(echo);
}

/* In arrival order, whatever the order of completion. WEFT_ERR_AGAIN: later. */
static void send_back(struct child *child)
{
    while (!weft_list_empty(&child->waiting)) {
        struct echo *echo = weft_list_first(&child->waiting, struct echo, link);
        if (!echo->here) return;
        struct weft_message message = {echo->tag, echo->header, echo->header_bytes, echo->payload,
                                       echo->bytes};
        echo->back = true;
        weft_completion_init(&echo->completion, 1, echo_done);
        enum weft_status status = weft_transport_send(child->side.peer, &message, &echo->completion);
        if (status == WEFT_ERR_AGAIN) return;
        must(status == WEFT_IN_PROGRESS, "an echo could not be sent");
        weft_list_remove(&echo->link);
    }
}

static void on_arrival(void *context, struct weft_arrival *arrival)
{
    struct child *child = context;
    if (arrival->header_bytes == 3 && memcmp(arrival->header, "bye", 3) == 0) {
        child->bye = true;
        weft_transport_discard(child->side.transport, arrival);
        return;
    }
    struct echo *echo = calloc(1, sizeof *echo);
    bool of_put = arrival->tag == TAG_PUT;
    weft_completion_init(&echo->completion, 1, echo_done);
    echo->child = child;
    echo->tag = arrival->tag;
    echo->header_bytes = arrival->header_bytes;
    memcpy(echo->header, arrival->header, arrival->header_bytes);
    echo->bytes = of_put ? WINDOW : arrival->payload_bytes;
    echo->payload = of_put ? child->window : malloc(echo->bytes + 1);
    echo->here = of_put;
    child->alive++;
    weft_list_append(&child->waiting, &echo->link);
    if (of_put) weft_transport_discard(child->side.transport, arrival);
    else
        must(weft_transport_accept(child->side.transport, arrival, echo->payload, echo->bytes,
                                   &echo->completion) == WEFT_IN_PROGRESS,
             "accept");
}

static struct weft_window *open_window(struct child *child, struct op *key_sent)
{
    struct weft_window *window = NULL;
    struct weft_window_options options = {
        sizeof options, child->window, WINDOW, WEFT_MEMORY_HOST, WEFT_WINDOW_READ | WEFT_WINDOW_WRITE,
        WEFT_ANY_PEER};
    const void *key;
    size_t bytes;
    if (!(weft_transport_abilities(child->side.transport) & WEFT_TRANSPORT_WINDOWS)) return NULL;
    must(weft_window_open(child->side.transport, &options, &window, NULL) == WEFT_OK, "no window");
    weft_window_key(window, &key, &bytes);
    must(op_send(key_sent, child->side.peer, TAG_KEY, NULL, key, bytes) == WEFT_IN_PROGRESS,
         "the key cannot be sent");
    return window;
}

static void child_main(int fd, const char *device)
{
    struct child child = {.window = side_alloc(flavour->memory, WINDOW)};
    struct op key_sent, closed;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    weft_list_init(&child.waiting);
    side_open(&child.side, flavour, device, CHILD, fd);
    weft_transport_handler(child.side.transport, WEFT_CHANNEL_TEST, on_arrival, &child);
    struct weft_window *window = open_window(&child, &key_sent);
    for (uint64_t end_ns = net_now_ns() + WEFT_SECONDS(100); !child.bye || child.alive > 0;) {
        weft_transport_progress(child.side.transport, 64);
        send_back(&child);
        must(net_now_ns() < end_ns, "no farewell arrived");
    }
    must(child.side.failed == 0, "the parent is reported as lost");
    op_init(&closed);
    if (window) weft_window_close(window, &closed.completion);
    while (window && !closed.fired) weft_transport_progress(child.side.transport, 64);
    side_close(&child.side);
    side_release_memory(flavour->memory, child.window);
    _exit(0);
}

/* ---- two networks ---- */

static void shell(const char *format, ...)
{
    char line[200];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    if (system(line) != 0) fprintf(stderr, "failed: %s\n", line), abort();
}

static char wire[20]; /* the parent's end */

/* Both ends are up, but the kernel reports it up to a second later, and UCX takes only a running device. */
static void await_running(const char *device)
{
    struct ifreq request = {0};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", device);
    for (int i = 0; i < 1000 && !(request.ifr_flags & IFF_RUNNING); i++) {
        if (fd < 0 || ioctl(fd, SIOCGIFFLAGS, &request) != 0)
            fprintf(stderr, "no flags of %s\n", device), abort();
        if (!(request.ifr_flags & IFF_RUNNING)) usleep(10000);
    }
    close(fd);
}

/* A network per child, so that concurrent tests and leftovers do not collide. */
static int network_of(pid_t child) { return (int)child % 16384; }

/* Between fork and open: the child enters its own network namespace, the parent creates the wire. */
static const char *network_of_child(int fd)
{
    char byte;
    if (!networks) return NULL;
    /* With its own view of /sys, where libraries look up network devices. */
    if (unshare(CLONE_NEWNET | CLONE_NEWNS) != 0) abort();
    shell("mount --make-rslave / && mount -t sysfs weft /sys");
    side_write(fd, "n", 1);
    side_read(fd, &byte, 1);
    int network = network_of(getpid());
    shell("ip link set lo up && ip address add 10.%d.%d.2/24 dev weft-child && ip link set weft-child up",
          64 + network / 256, network % 256);
    side_write(fd, "u", 1);
    await_running("weft-child");
    return "weft-child";
}

static const char *network_of_parent(int fd, pid_t child)
{
    char byte;
    int network = network_of(child);
    if (!networks) return NULL;
    snprintf(wire, sizeof wire, "weft-%d", (int)child % 1000000000);
    side_read(fd, &byte, 1);
    shell("ip link add %s type veth peer name weft-child netns %d && ip address add 10.%d.%d.1/24 dev %s && "
          "ip link set %s up",
          wire, (int)child, 64 + network / 256, network % 256, wire, wire);
    side_write(fd, "w", 1);
    side_read(fd, &byte, 1);
    await_running(wire);
    return wire;
}

/* Checks in a separate process whether networks can be created. */
static bool networks_allowed(void)
{
    int status = 1;
    pid_t pid = fork();
    if (pid == 0)
        _exit(unshare(CLONE_NEWNET | CLONE_NEWNS) == 0 &&
                      system("mount --make-rslave / && mount -t sysfs weft /sys") == 0 &&
                      system("ip link add try0 type veth peer name try1 >/dev/null 2>&1") == 0
                  ? 0
                  : 1);
    return waitpid(pid, &status, 0) == pid && status == 0;
}

/* ---- the parent ---- */

static struct side side;
static pid_t child_pid;
static int child_fd;

static int set_up(void **state)
{
    int fds[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    child_pid = fork();
    if (child_pid == 0) {
        close(fds[0]);
        child_main(fds[1], network_of_child(fds[1]));
    }
    close(fds[1]);
    child_fd = fds[0];
    side_open(&side, flavour, network_of_parent(child_fd, child_pid), PARENT, child_fd);
    return 0;
}

/* The child closes in order: reported once, and nothing is lost. */
static int tear_down(void **state)
{
    struct op bye;
    int status;
    assert_int_equal(op_send(&bye, side.peer, TAG(3), "bye", NULL, 0), WEFT_IN_PROGRESS);
    SPIN(&side, bye.fired && side.failed);
    assert_int_equal(bye.status, WEFT_OK);
    assert_int_equal(side.failed_status, WEFT_ERR_PEER_LOST);
    while (waitpid(child_pid, &status, WNOHANG) == 0) weft_transport_progress(side.transport, 64);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_int_equal(side.failed, 1);
    side_close(&side);
    close(child_fd);
    /* it may have vanished with the child's network */
    if (networks) shell("ip link delete %s 2>/dev/null || true", wire);
    return 0;
}

static void test_sizes(void **state)
{
    static const size_t sizes[] = {0, 1, 7, 255, 4096, 8192, 8193, 65537, 1 << 20, (8 << 20) + 3};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t bytes = sizes[i], shift = i % 4;
        unsigned char *out = side_alloc(flavour->memory, bytes + 4),
                      *in = side_alloc(flavour->memory, bytes + 5);
        struct op send, recv;
        fill(out + shift, bytes, (uint32_t)i);
        in[shift + bytes] = 0xA5;
        assert_int_equal(op_recv(&recv, side.transport, 10, TAG(i), in + shift, bytes), WEFT_IN_PROGRESS);
        assert_int_equal(op_send(&send, side.peer, TAG(i), "hello", out + shift, bytes), WEFT_IN_PROGRESS);
        SPIN(&side, send.fired && recv.fired);
        assert_int_equal(send.status, WEFT_OK);
        assert_int_equal(recv.status, WEFT_OK);
        assert_int_equal(recv.receive.payload_bytes, bytes);
        assert_memory_equal(recv.receive.header, "hello", 5);
        assert_true(filled(in + shift, bytes, (uint32_t)i));
        assert_int_equal(in[shift + bytes], 0xA5);
        side_release_memory(flavour->memory, out);
        side_release_memory(flavour->memory, in);
    }
}

/* All at once, more than a backend queues; in order per tag. */
static void test_many(void **state)
{
    struct op *sends = calloc(COUNT, sizeof *sends), *recvs = calloc(COUNT, sizeof *recvs);
    static unsigned char out[20000];
    unsigned char *in[COUNT];
    fill(out, sizeof out, 9);
    for (int i = 0; i < COUNT; i++) {
        in[i] = malloc(sizeof out);
        assert_int_equal(op_recv(&recvs[i], side.transport, 10, TAG(i % 3), in[i], sizeof out),
                         WEFT_IN_PROGRESS);
    }
    for (int i = 0; i < COUNT; i++) {
        char header[12];
        size_t bytes = i % 5 == 0 ? 20000 - (size_t)i : (size_t)i;
        snprintf(header, sizeof header, "n%d", i);
        enum weft_status status;
        while ((status = op_send(&sends[i], side.peer, TAG(i % 3), header, out, bytes)) == WEFT_ERR_AGAIN)
            weft_transport_progress(side.transport, 64);
        assert_int_equal(status, WEFT_IN_PROGRESS);
    }
    for (int i = 0; i < COUNT; i++) {
        char header[12];
        size_t bytes = i % 5 == 0 ? 20000 - (size_t)i : (size_t)i;
        SPIN(&side, sends[i].fired && recvs[i].fired);
        snprintf(header, sizeof header, "n%d", i);
        assert_int_equal(recvs[i].status, WEFT_OK);
        assert_int_equal(recvs[i].receive.payload_bytes, bytes);
        assert_memory_equal(recvs[i].receive.header, header, strlen(header));
        assert_memory_equal(in[i], out, bytes);
        free(in[i]);
    }
    for (int i = 0; i < COUNT; i++) assert_int_equal(sends[i].fired + recvs[i].fired, 2);
    free(sends), free(recvs);
}

/* The put bytes are there when the notification arrives, and get reads them. */
static void test_window(void **state)
{
    static unsigned char key[WEFT_WINDOW_KEY_BYTES_MAX];
    struct op key_came, put_done, notified, got;
    struct weft_remote *remote;
    if (!(weft_transport_abilities(side.transport) & WEFT_TRANSPORT_WINDOWS)) return;
    unsigned char *out = side_alloc(flavour->memory, WINDOW), *in = side_alloc(flavour->memory, WINDOW);
    op_recv(&key_came, side.transport, 10, TAG_KEY, key, sizeof key);
    SPIN(&side, key_came.fired);
    assert_int_equal(weft_transport_import(side.peer, key, key_came.receive.payload_bytes, &remote), WEFT_OK);
    for (uint32_t round = 0; round < 5; round++) {
        fill(out, WINDOW, round);
        struct weft_put put = {out, WINDOW, 0, true, TAG_PUT, "put", 3};
        op_recv(&notified, side.transport, 10, TAG_PUT, in, WINDOW);
        assert_true(op_taken(op_put(&put_done, remote, &put)));
        SPIN(&side, put_done.fired && notified.fired);
        assert_int_equal(put_done.status, WEFT_OK);
        assert_true(filled(in, WINDOW, round));
        memset(in, 0, WINDOW);
        assert_true(op_taken(op_get(&got, remote, 1, in + 1, WINDOW - 1)));
        SPIN(&side, got.fired);
        assert_int_equal(got.status, WEFT_OK);
        assert_memory_equal(in + 1, out + 1, WINDOW - 1);
    }
    assert_int_equal(weft_remote_release(remote), WEFT_OK);
    side_release_memory(flavour->memory, out);
    side_release_memory(flavour->memory, in);
}

int main(int argc, char **argv)
{
    flavour = flavour_find(argc > 1 ? argv[1] : "shm");
    networks = argc > 2 && strcmp(argv[2], "--networks") == 0;
    if (!flavour || !flavour->processes || (networks && !flavour->networks)) {
        fprintf(stderr, "usage: test_processes FLAVOUR [--networks]; not for this one\n");
        return 2;
    }
    if (networks && !networks_allowed()) {
        fprintf(stderr, "skipped: networks cannot be made here\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_sizes, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_many, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_window, set_up, tear_down),
    };
    return cmocka_run_group_tests_name(flavour->name, tests, NULL, NULL);
}
