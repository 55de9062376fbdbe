/* test_ucx_pair.c - two processes in separate network namespaces use UCX's tcp lanes: `test_ucx_pair
 * NAMESPACE NAMESPACE DEVICE`; test_ucx_networks.py creates the namespaces and their link. Messages of all
 * protocols and sizes, put and get, a fixed port range, and both ends: close in order, then kill. */
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/transport/net.h"

enum { BYTES = 3 << 20 };
#define TAG(n) WEFT_TAG(WEFT_CHANNEL_TEST, n)
#define MUST(expression)                                                                     \
    do {                                                                                     \
        if (!(expression)) {                                                                 \
            fprintf(stderr, "side %d, line %d: does not hold: %s\n", side, __LINE__, #expression); \
            _exit(1);                                                                        \
        }                                                                                    \
    } while (0)
#define UNTIL(expression)                                                                    \
    for (uint64_t limit_ns_ = net_now_ns() + WEFT_SECONDS(40); !(expression);) {             \
        weft_transport_progress(transport, 64);                                              \
        MUST(net_now_ns() < limit_ns_);                                                      \
    }

static int side, lost;
static struct weft_transport *transport;
static struct weft_peer *peer;
static char source[BYTES], memory[BYTES];

static void on_failed(void *context, uint32_t peer_id, enum weft_status status, const char *text)
{
    fprintf(stderr, "side %d: the other has ended: %s\n", side, text);
    lost++;
}

static void enter(const char *name)
{
    char path[200];
    snprintf(path, sizeof path, "/run/netns/%s", name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    MUST(fd >= 0 && setns(fd, CLONE_NEWNET) == 0);
    close(fd);
    MUST(unshare(CLONE_NEWNS) == 0 && mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0);
    /* where UCX looks for devices */
    MUST(umount2("/sys", MNT_DETACH) == 0 && mount("sysfs", "/sys", "sysfs", 0, NULL) == 0);
}

/* Exchanges a blob with the other process. */
static size_t swap(int fd, const void *ours, size_t bytes, void *theirs)
{
    ssize_t got;
    MUST(send(fd, ours, bytes, 0) == (ssize_t)bytes);
    MUST((got = recv(fd, theirs, WEFT_TRANSPORT_ADDRESS_BYTES_MAX, 0)) > 0);
    return (size_t)got;
}

static void open_here(int fd, const char *device)
{
    struct weft_transport_options options;
    struct weft_error error = {0};
    const void *blob;
    size_t bytes;
    uint8_t theirs[WEFT_TRANSPORT_ADDRESS_BYTES_MAX];
    weft_transport_options_init(&options);
    options.backend = "ucx";
    options.devices = device;
    options.ports = "18500-18503";
    options.id = 1 + (uint32_t)side;
    options.secret = "of both";
    options.secret_bytes = 7;
    options.peer_failed = on_failed;
    if (weft_transport_open(weft_env_system(), &options, &transport, &error) < 0)
        fprintf(stderr, "side %d: %s\n", side, error.text);
    MUST(transport);
    MUST(weft_transport_address(transport, &blob, &bytes) == WEFT_OK);
    bytes = swap(fd, blob, bytes, theirs);
    MUST(weft_transport_connect(transport, 2 - (uint32_t)side, theirs, bytes, &peer) == WEFT_OK);
}

static void messages(void)
{
    const size_t sizes[] = {0, 100, 60000, 70000, BYTES};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct op out, in;
        fill(source, sizes[i], (uint32_t)(i * 2) + (uint32_t)side);
        op_recv(&in, transport, 2 - (uint32_t)side, TAG(i), memory, sizes[i]);
        MUST(op_send(&out, peer, TAG(i), NULL, source, sizes[i]) == WEFT_IN_PROGRESS);
        UNTIL(in.fired && out.fired);
        MUST(in.status == WEFT_OK && out.status == WEFT_OK &&
             filled(memory, sizes[i], (uint32_t)(i * 2) + 1 - (uint32_t)side));
    }
}

static void windows(int fd)
{
    struct weft_window_options own = {.size = sizeof own,
                                      .address = memory,
                                      .bytes = BYTES,
                                      .rights = WEFT_WINDOW_READ | WEFT_WINDOW_WRITE,
                                      .peer_id = WEFT_ANY_PEER};
    struct weft_window *window;
    struct weft_remote *remote;
    const void *key;
    size_t bytes;
    uint8_t theirs[WEFT_TRANSPORT_ADDRESS_BYTES_MAX];
    struct op put_op, heard, got;
    MUST(weft_window_open(transport, &own, &window, NULL) == WEFT_OK);
    weft_window_key(window, &key, &bytes);
    bytes = swap(fd, key, bytes, theirs);
    MUST(weft_transport_import(peer, theirs, bytes, &remote) == WEFT_OK);
    fill(source, BYTES, 50 + (uint32_t)side);
    struct weft_put put = {.source = source, .bytes = BYTES, .notify = true, .tag = TAG(60)};
    op_init(&put_op);
    op_recv(&heard, transport, 2 - (uint32_t)side, TAG(60), NULL, 0);
    MUST(weft_transport_put(remote, &put, &put_op.completion) == WEFT_IN_PROGRESS);
    UNTIL(put_op.fired && heard.fired);
    MUST(put_op.status == WEFT_OK && filled(memory, BYTES, 51 - (uint32_t)side));
    op_init(&got);
    memset(source, 0, BYTES);
    MUST(weft_transport_get(remote, 0, source, BYTES, &got.completion) == WEFT_IN_PROGRESS);
    UNTIL(got.fired);
    MUST(got.status == WEFT_OK && filled(source, BYTES, 50 + (uint32_t)side));
    messages(); /* the other process has read, too */
}

static int run(int fd, const char *name, const char *device, bool killed)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    enter(name);
    open_here(fd, device);
    messages();
    windows(fd);
    if (side == 1 && killed) raise(SIGKILL);
    if (side == 1) weft_transport_close(transport);
    else UNTIL(lost == 1);
    if (side == 0) weft_transport_close(transport);
    UNTIL(weft_transport_drained(transport));
    weft_transport_free(transport);
    return 0;
}

static int pair(char **argv, bool killed)
{
    int fds[2], status[2];
    pid_t pids[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) < 0) return 1;
    for (int i = 0; i < 2; i++) {
        pids[i] = fork();
        if (pids[i] == 0) {
            side = i;
            _exit(run(fds[i], argv[1 + i], argv[3], killed));
        }
    }
    for (int i = 0; i < 2; i++) waitpid(pids[i], &status[i], 0);
    bool right = killed ? WIFSIGNALED(status[1]) : WIFEXITED(status[1]) && WEXITSTATUS(status[1]) == 0;
    bool left = WIFEXITED(status[0]) && WEXITSTATUS(status[0]) == 0;
    printf("%s: %s\n", killed ? "killed" : "closed", left && right ? "ok" : "FAILED");
    fflush(stdout);
    return left && right ? 0 : 1;
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: test_ucx_pair NAMESPACE NAMESPACE DEVICE\n");
        return 2;
    }
    return pair(argv, false) | pair(argv, true);
}
