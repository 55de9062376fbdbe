/* transport_try.c - see transport_try.h. */
#include "tools/doctor/transport_try.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tools/bench/p2p/options.h"

enum { SLICE_MS = 2, CLOSE_S = 3 };

/* What one side sends to the other, twice: with its address, and at the end. */
struct record {
    int32_t status;
    uint32_t address_bytes;
    uint8_t address[WEFT_TRANSPORT_ADDRESS_BYTES_MAX];
    char text[480];
};

struct attempt {
    const struct doctor_try_args *plan;
    struct weft_env *env;
    struct weft_loop *loop;
    struct weft_transport *transport;
    struct weft_probe *probe;
    bool done;
    struct weft_error error;
};

/* ---- the socket ---- */

/* Waits until the socket is ready, at most until limit_ns. */
static bool wait_ready(int fd, short events, uint64_t limit_ns)
{
    for (;;) {
        struct pollfd wait = {.fd = fd, .events = events};
        uint64_t now_ns = weft_now_ns(weft_env_system());
        if (now_ns >= limit_ns) return false;
        uint64_t left_ms = (limit_ns - now_ns) / 1000000 + 1;
        int ready = poll(&wait, 1, left_ms > 1000 ? 1000 : (int)left_ms);
        if (ready > 0) return true;
        if (ready < 0 && errno != EINTR) return false;
    }
}

bool doctor_send_all(int fd, const void *data, size_t bytes, uint32_t seconds)
{
    uint64_t limit_ns = weft_now_ns(weft_env_system()) + WEFT_SECONDS(seconds);
    const char *at = data;
    while (bytes > 0) {
        if (!wait_ready(fd, POLLOUT, limit_ns)) return false;
        ssize_t put = send(fd, at, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (put < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (put <= 0) return false;
        at += put;
        bytes -= (size_t)put;
    }
    return true;
}

bool doctor_recv_all(int fd, void *data, size_t bytes, uint32_t seconds)
{
    uint64_t limit_ns = weft_now_ns(weft_env_system()) + WEFT_SECONDS(seconds);
    char *at = data;
    while (bytes > 0) {
        if (!wait_ready(fd, POLLIN, limit_ns)) return false;
        ssize_t got = recv(fd, at, bytes, MSG_DONTWAIT);
        if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (got <= 0) return false;
        at += got;
        bytes -= (size_t)got;
    }
    return true;
}

/* Exchanges records. Meanwhile the transport makes progress, so that its last messages are sent. */
static bool exchange(struct attempt *attempt, const struct record *mine, struct record *theirs)
{
    int fd = attempt->plan->fd;
    uint64_t limit_ns = weft_now_ns(attempt->env) + WEFT_SECONDS(attempt->plan->deadline_s);
    if (!doctor_send_all(fd, mine, sizeof *mine, attempt->plan->deadline_s)) return false;
    for (;;) {
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        int ready = poll(&wait, 1, attempt->transport ? SLICE_MS : 100);
        if (ready > 0) break;
        if (attempt->transport) weft_transport_progress(attempt->transport, 64);
        if (weft_now_ns(attempt->env) > limit_ns) return false;
    }
    if (!doctor_recv_all(fd, theirs, sizeof *theirs, attempt->plan->deadline_s)) return false;
    theirs->text[sizeof theirs->text - 1] = 0;
    return theirs->address_bytes <= sizeof theirs->address;
}

/* ---- the steps ---- */

static enum weft_status open_endpoint(struct attempt *attempt)
{
    const struct doctor_try_args *plan = attempt->plan;
    struct weft_transport_options options;
    struct weft_loop_options loop_options;
    struct p2p_transport_spec spec;
    if (!p2p_transport_parse(plan->lane, &spec))
        return weft_error_set(&attempt->error, WEFT_ERR_INVALID, "no such transport");
    weft_transport_options_init(&options);
    options.backend = spec.backend;
    if (spec.lanes[0]) options.lanes = spec.lanes;
    if (plan->devices) options.devices = plan->devices;
    options.id = plan->first ? 1 : 2;
    options.nonce = plan->nonce;
    options.secret = plan->secret;
    options.secret_bytes = plan->secret ? strlen(plan->secret) : 0;
    weft_loop_options_init(&loop_options);
    enum weft_status status = weft_loop_create(attempt->env, &loop_options, &attempt->loop);
    if (status < 0) return weft_error_set(&attempt->error, status, "no loop");
    return weft_transport_open(attempt->env, &options, &attempt->transport, &attempt->error);
}

static void fill_record(struct attempt *attempt, enum weft_status status, struct record *record)
{
    const void *address;
    size_t bytes = 0;
    memset(record, 0, sizeof *record);
    if (status >= 0) status = weft_transport_address(attempt->transport, &address, &bytes);
    record->status = status;
    if (status >= 0 && bytes <= sizeof record->address) {
        record->address_bytes = (uint32_t)bytes;
        memcpy(record->address, address, bytes);
    }
    snprintf(record->text, sizeof record->text, "%s", status < 0 ? attempt->error.text : "");
}

static void on_done(void *context)
{
    ((struct attempt *)context)->done = true;
}

static enum weft_status connect_and_probe(struct attempt *attempt, const struct record *theirs)
{
    struct weft_peer *peer;
    struct weft_probe_options options;
    uint32_t ids[2] = {1, 2};
    enum weft_status status = weft_transport_attach(attempt->transport, attempt->loop);
    if (status >= 0) {
        status = weft_transport_connect(attempt->transport, attempt->plan->first ? 2 : 1, theirs->address,
                                        theirs->address_bytes, &peer);
    }
    if (status < 0)
        return weft_error_set(&attempt->error, status, "cannot connect: %s", weft_reason_text(status));
    weft_probe_options_init(&options);
    options.ids = ids;
    options.count = 2;
    options.contact_ns = WEFT_SECONDS(attempt->plan->deadline_s) / 2;
    options.pair_ns = WEFT_SECONDS(attempt->plan->deadline_s) / 2;
    options.done = on_done;
    options.context = attempt;
    status = weft_probe_start(attempt->transport, attempt->loop, &options, &attempt->probe, &attempt->error);
    if (status < 0) return status;
    uint64_t limit_ns = weft_now_ns(attempt->env) + WEFT_SECONDS(2 * attempt->plan->deadline_s);
    if (weft_loop_wait(attempt->loop, &attempt->done, limit_ns) < 0)
        return weft_error_set(&attempt->error, WEFT_ERR_DEADLINE, "no answer in time");
    uint32_t count;
    const struct weft_probe_result *found = weft_probe_results(attempt->probe, &count);
    return found->status < 0 ? weft_error_set(&attempt->error, found->status, "%s", found->text) : WEFT_OK;
}

static void close_attempt(struct attempt *attempt)
{
    uint64_t limit_ns = weft_now_ns(attempt->env) + WEFT_SECONDS(CLOSE_S);
    if (attempt->probe) weft_probe_close(attempt->probe);
    if (attempt->transport) {
        weft_transport_close(attempt->transport);
        while (!weft_transport_drained(attempt->transport) && weft_now_ns(attempt->env) < limit_ns) {
            if (weft_transport_progress(attempt->transport, 64) == 0)
                nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
        }
    }
    weft_transport_free(attempt->transport);
    if (attempt->probe && weft_probe_drained(attempt->probe)) weft_probe_free(attempt->probe);
    weft_loop_free(attempt->loop);
}

static void write_result(struct attempt *attempt, enum weft_status status, const struct record *theirs,
                         struct doctor_try_result *result)
{
    uint32_t count;
    const struct weft_probe_result *found =
        attempt->probe ? weft_probe_results(attempt->probe, &count) : NULL;
    result->status = status < 0 ? status : theirs->status < 0 ? (enum weft_status)theirs->status : WEFT_OK;
    result->absent = status == WEFT_ERR_UNSUPPORTED || theirs->status == WEFT_ERR_UNSUPPORTED;
    if (status < 0) snprintf(result->text, sizeof result->text, "%s", attempt->error.text);
    else if (theirs->status < 0)
        snprintf(result->text, sizeof result->text, "the other side: %s", theirs->text);
    if (result->status < 0 || !found) return;
    result->latency_ns = found->latency_ns;
    result->out_bytes_per_second = found->out_bytes_per_second;
    result->in_bytes_per_second = found->in_bytes_per_second;
    snprintf(result->text, sizeof result->text, "%s", found->text);
}

void doctor_try(const struct doctor_try_args *plan, struct doctor_try_result *result)
{
    struct attempt attempt = {.plan = plan, .env = weft_env_system()};
    struct record mine, theirs = {0};
    memset(result, 0, sizeof *result);
    enum weft_status status = open_endpoint(&attempt);
    fill_record(&attempt, status, &mine);
    status = (enum weft_status)mine.status;
    bool has_answer = exchange(&attempt, &mine, &theirs);
    if (has_answer && status >= 0 && theirs.status >= 0) {
        status = connect_and_probe(&attempt, &theirs);
        mine.status = status;
        snprintf(mine.text, sizeof mine.text, "%s", attempt.error.text);
        has_answer = exchange(&attempt, &mine, &theirs);
    }
    if (!has_answer && status >= 0)
        status =
            weft_error_set(&attempt.error, WEFT_ERR_PEER_LOST, "the other side has ended or does not answer");
    write_result(&attempt, status, &theirs, result);
    close_attempt(&attempt);
}

/* ---- in a child process: a transport that blocks or crashes ends its try, not the doctor ---- */

static pid_t start_side(const struct doctor_try_args *plan, int other, int output)
{
    pid_t parent = getpid();
    fflush(NULL);
    pid_t child = fork();
    if (child != 0) return child;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    if (other >= 0) close(other);
    struct doctor_try_result result;
    doctor_try(plan, &result);
    if (output >= 0 && write(output, &result, sizeof result) != sizeof result) _exit(1);
    _exit(0);
}

static void end_child(pid_t child, bool kill_it)
{
    if (child <= 0) return;
    if (kill_it) kill(child, SIGKILL);
    while (waitpid(child, NULL, 0) < 0 && errno == EINTR) continue;
}

/* Limit for all steps of a try if each step keeps its deadline, seconds. */
static uint32_t try_seconds(uint32_t deadline_s)
{
    return 5 * deadline_s + CLOSE_S + 1;
}

/* Reads the result of the child that writes into `output`, within the time of a try. False: the child wrote
 * none. */
static bool read_result(int output, uint32_t deadline_s, struct doctor_try_result *result)
{
    uint64_t limit_ns = weft_now_ns(weft_env_system()) + WEFT_SECONDS(try_seconds(deadline_s));
    bool ready = wait_ready(output, POLLIN, limit_ns);
    if (ready && read(output, result, sizeof *result) == sizeof *result) return true;
    memset(result, 0, sizeof *result);
    result->status = ready ? WEFT_ERR_PEER_LOST : WEFT_ERR_DEADLINE;
    if (ready) snprintf(result->text, sizeof result->text, "the process of the try ended without a result");
    else
        snprintf(result->text, sizeof result->text, "it blocked, and was ended after %u s",
                 try_seconds(deadline_s));
    return false;
}

bool doctor_try_in_child(const struct doctor_try_args *plan, struct doctor_try_result *result)
{
    int output[2];
    memset(result, 0, sizeof *result);
    result->status = WEFT_ERR_INTERNAL;
    snprintf(result->text, sizeof result->text, "cannot start a process");
    if (pipe2(output, O_CLOEXEC) != 0) return false;
    pid_t child = start_side(plan, output[0], output[1]);
    close(output[1]);
    bool has_result = child > 0 && read_result(output[0], plan->deadline_s, result);
    end_child(child, !has_result);
    close(output[0]);
    return has_result;
}

void doctor_try_on_host(const char *lane, const char *devices, uint32_t deadline_s,
                        struct doctor_try_result *result)
{
    int pair[2], output[2];
    memset(result, 0, sizeof *result);
    result->status = WEFT_ERR_INTERNAL;
    snprintf(result->text, sizeof result->text, "cannot start two processes: %s", strerror(errno));
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return;
    if (pipe2(output, O_CLOEXEC) == 0) {
        struct doctor_try_args plan = {.lane = lane,
                                       .devices = devices,
                                       .nonce = 0x646f63746f72ull,
                                       .first = true,
                                       .fd = pair[0],
                                       .deadline_s = deadline_s};
        pid_t one = start_side(&plan, pair[1], output[1]);
        plan.first = false;
        plan.fd = pair[1];
        pid_t two = start_side(&plan, pair[0], -1);
        close(output[1]);
        bool has_result = one > 0 && two > 0 && read_result(output[0], deadline_s, result);
        end_child(one, !has_result);
        end_child(two, !has_result);
        close(output[0]);
    }
    close(pair[0]);
    close(pair[1]);
}

/* The reader is a sibling: a parent may read the memory of its children even where siblings may not. */
int doctor_check_cma(void)
{
    static char from[16] = "weft", to[16];
    int status = 0;
    pid_t owner = fork();
    if (owner == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;) pause();
    }
    pid_t reader = owner > 0 ? fork() : -1;
    if (reader == 0) {
        struct iovec local = {to, sizeof to}, remote = {from, sizeof from};
        _exit(process_vm_readv(owner, &local, 1, &remote, 1, 0) == sizeof to ? 0 : errno);
    }
    if (reader > 0) {
        while (waitpid(reader, &status, 0) < 0 && errno == EINTR) continue;
    }
    end_child(owner, true);
    return reader > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : EAGAIN;
}
