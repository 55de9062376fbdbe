/* bootstrap.c - see bootstrap.h. Launched processes form a star of socket pairs with the parent as the hub.
 *
 *   child 0 ─┐                     one all-gather: every child writes its record,
 *   child 1 ─┼─ parent (hub)       the hub reads one record from each
 *   child 2 ─┘                     and sends all records to all of them.
 *
 * A child that dies closes its socket: the hub then ends the others, so that none waits without limit. */
#include "tools/bench/p2p/bootstrap.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "weft/weft.h"

enum { HUB_GRACE_S = 60 };

static bool read_all(int fd, void *data, size_t bytes)
{
    char *at = data;
    while (bytes > 0) {
        ssize_t got = read(fd, at, bytes);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        at += got;
        bytes -= (size_t)got;
    }
    return true;
}

static bool write_all(int fd, const void *data, size_t bytes)
{
    const char *at = data;
    while (bytes > 0) {
        ssize_t put = send(fd, at, bytes, MSG_NOSIGNAL);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) return false;
        at += put;
        bytes -= (size_t)put;
    }
    return true;
}

/* ---- all-gather by hub or by session ---- */

static bool gather_by_hub(struct p2p_bootstrap *bootstrap, const void *mine, size_t bytes, void *all)
{
    uint32_t length = (uint32_t)bytes;
    return write_all(bootstrap->fd, &length, sizeof length) && write_all(bootstrap->fd, mine, bytes) &&
           read_all(bootstrap->fd, all, bytes * bootstrap->ranks);
}

static bool gather_by_session(struct p2p_bootstrap *bootstrap, const void *mine, size_t bytes, void *all)
{
    size_t words = (bytes + 7) / 8;
    int64_t *in = calloc(words, 8), *out = calloc(words * bootstrap->ranks, 8);
    struct weft_request request = {{0}};
    bool fine = in && out;
    if (fine) {
        memcpy(in, mine, bytes);
        enum weft_status status = weft_all_gather(bootstrap->session, in, out, words, WEFT_I64, &request);
        if (status >= 0) status = weft_wait(&request, 0);
        fine = status >= 0;
        if (!fine)
            fprintf(stderr, "weft bench p2p: rank %u: %s\n", bootstrap->rank,
                    weft_error_text(bootstrap->session));
        for (uint32_t i = 0; fine && i < bootstrap->ranks; i++)
            memcpy((char *)all + i * bytes, out + i * words, bytes);
    }
    free(in);
    free(out);
    return fine;
}

bool p2p_all_gather(struct p2p_bootstrap *bootstrap, const void *mine, size_t bytes, void *all)
{
    return bootstrap->session ? gather_by_session(bootstrap, mine, bytes, all)
                              : gather_by_hub(bootstrap, mine, bytes, all);
}

bool p2p_bootstrap_join(struct p2p_bootstrap *bootstrap)
{
    *bootstrap = (struct p2p_bootstrap){.fd = -1};
    if (weft_init(NULL, &bootstrap->session) < 0) {
        fprintf(stderr, "weft bench p2p: %s\n", weft_error_text(NULL));
        return false;
    }
    bootstrap->rank = weft_rank(bootstrap->session);
    bootstrap->ranks = weft_ranks(bootstrap->session);
    if (bootstrap->ranks >= 2 && bootstrap->ranks <= P2P_RANKS_MAX) return true;
    fprintf(stderr, "weft bench p2p: the job has %u workers; it needs 2 to %d\n", bootstrap->ranks,
            P2P_RANKS_MAX);
    p2p_bootstrap_leave(bootstrap);
    return false;
}

void p2p_bootstrap_leave(struct p2p_bootstrap *bootstrap)
{
    if (bootstrap->session) weft_finalize(bootstrap->session);
    bootstrap->session = NULL;
}

/* ---- the hub ---- */

struct hub {
    uint32_t count;
    int fds[P2P_RANKS_MAX];
    pid_t children[P2P_RANKS_MAX];
    bool failed;
};

static void pin(const struct p2p_options *options, uint32_t rank)
{
    if (options->cpu_count == 0) return;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(options->cpus[rank % options->cpu_count], &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0) perror("weft bench p2p: cannot pin a process");
}

static int start_child(struct hub *hub, uint32_t rank, const struct p2p_options *options,
                       int (*body)(void *, struct p2p_bootstrap *), void *context)
{
    int pair[2];
    pid_t parent = getpid();
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return -1;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(1);
        for (uint32_t i = 0; i < rank; i++) close(hub->fds[i]);
        close(pair[0]);
        pin(options, rank);
        struct p2p_bootstrap bootstrap = {.rank = rank, .ranks = options->processes, .fd = pair[1]};
        int answer = body(context, &bootstrap);
        fflush(NULL);
        _exit(answer);
    }
    close(pair[1]);
    if (child < 0) {
        close(pair[0]);
        return -1;
    }
    hub->children[rank] = child;
    hub->fds[rank] = pair[0];
    hub->count = rank + 1;
    return 0;
}

/* Waits until every open child has begun an all-gather. False: one has ended or does not answer. */
static bool hub_ready(struct hub *hub, int timeout_ms, bool *all_ended_out)
{
    uint32_t ended_count = 0;
    for (uint32_t i = 0; i < hub->count; i++) {
        struct pollfd wait = {.fd = hub->fds[i], .events = POLLIN};
        char probe;
        int found = poll(&wait, 1, timeout_ms);
        while (found < 0 && errno == EINTR) found = poll(&wait, 1, timeout_ms);
        if (found == 0) {
            fprintf(stderr, "weft bench p2p: process %u has been silent for %d s; ending the run\n", i,
                    timeout_ms / 1000);
            return false;
        }
        if (recv(hub->fds[i], &probe, 1, MSG_PEEK) <= 0) ended_count++;
        else if (ended_count > 0) return false; /* the others would wait for it without limit */
    }
    *all_ended_out = ended_count == hub->count;
    return ended_count == 0;
}

static bool hub_round(struct hub *hub)
{
    uint32_t length = 0, first = 0;
    for (uint32_t i = 0; i < hub->count; i++) {
        if (!read_all(hub->fds[i], &length, sizeof length) || length > P2P_RECORD_BYTES_MAX ||
            (i > 0 && length != first))
            return false;
        first = length;
        /* the records are read below, once all lengths are equal */
    }
    char *all = malloc((size_t)first * hub->count + 1);
    bool fine = all != NULL;
    for (uint32_t i = 0; fine && i < hub->count; i++)
        fine = read_all(hub->fds[i], all + (size_t)i * first, first);
    for (uint32_t i = 0; fine && i < hub->count; i++)
        fine = write_all(hub->fds[i], all, (size_t)first * hub->count);
    free(all);
    return fine;
}

/* The process that failed first prints the reason; the others only end. */
static int reap(struct hub *hub)
{
    int answer = hub->failed ? 1 : 0;
    for (uint32_t i = 0; i < hub->count; i++) {
        int status = 0;
        close(hub->fds[i]);
        if (hub->failed) kill(hub->children[i], SIGTERM);
        while (waitpid(hub->children[i], &status, 0) < 0 && errno == EINTR) continue;
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) answer = 1;
        if (WIFSIGNALED(status) && WTERMSIG(status) != SIGTERM) {
            fprintf(stderr, "weft bench p2p: process %u was ended by signal %d\n", i, WTERMSIG(status));
        }
    }
    return answer;
}

int p2p_launch(const struct p2p_options *options, int (*body)(void *context, struct p2p_bootstrap *bootstrap),
               void *context)
{
    struct hub *hub = calloc(1, sizeof *hub);
    if (!hub) return fprintf(stderr, "weft bench p2p: out of memory\n"), 1;
    for (uint32_t rank = 0; rank < options->processes; rank++) {
        if (start_child(hub, rank, options, body, context) < 0) {
            fprintf(stderr, "weft bench p2p: cannot start process %u: %s\n", rank, strerror(errno));
            hub->failed = true;
            break;
        }
    }
    bool all_ended_out = false;
    int timeout_ms = 1000 * (int)(options->deadline_s + HUB_GRACE_S + options->row_ms / 1000);
    while (!hub->failed && !all_ended_out) {
        if (hub_ready(hub, timeout_ms, &all_ended_out)) hub->failed = !hub_round(hub);
        else hub->failed = !all_ended_out;
    }
    int answer = reap(hub);
    free(hub);
    return answer;
}
