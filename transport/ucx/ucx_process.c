/* ucx_process.c - processes of peers on this host, watched by pidfd: a death is detected at once on every
 * lane, also where UCX has no connection that breaks (shared memory).
 *
 * A peer's address blob, which is authenticated, holds pid, start time, pid namespace and boot id. Only a
 * process of the same boot and namespace is watched. Its start time is compared after pidfd_open, so a
 * reused pid is not mistaken. One pidfd per process, whatever the number of peers; this process is not
 * watched. Without a pidfd (old kernel, no descriptor) UCX alone watches the peer. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "transport/ucx/ucx.h"

static size_t read_file(const char *path, char *out, size_t room)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t got = read(fd, out, room - 1);
    close(fd);
    if (got < 0) got = 0;
    out[got] = 0;
    return (size_t)got;
}

/* Field 22 of /proc/PID/stat; field 2, the name in brackets, may hold any character. 0: unknown. */
static uint64_t start_of(uint64_t pid)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%llu/stat", (unsigned long long)pid);
    if (read_file(path, text, sizeof text) == 0) return 0;
    char *at = strrchr(text, ')');
    for (int field = 2; at && field < 22; field++) at = strchr(at + 1, ' ');
    return at ? strtoull(at, NULL, 10) : 0;
}

static void read_host(uint8_t host[16])
{
    char text[64];
    size_t bytes = read_file("/proc/sys/kernel/random/boot_id", text, sizeof text), digits = 0;
    for (size_t i = 0; i < bytes && digits < 32; i++) {
        const char *hex = "0123456789abcdef", *digit = text[i] ? strchr(hex, text[i]) : NULL;
        if (!digit) continue;
        host[digits / 2] = (uint8_t)(host[digits / 2] << 4 | (uint8_t)(digit - hex));
        digits++;
    }
}

void ucx_process_self(struct ucx_wire_process *self_out)
{
    struct stat space;
    *self_out = (struct ucx_wire_process){.pid = (uint64_t)getpid(), .start = start_of((uint64_t)getpid())};
    if (stat("/proc/self/ns/pid", &space) == 0) self_out->namespace = space.st_ino;
    read_host(self_out->host);
    /* without /proc processes cannot be identified */
    if (self_out->start == 0 || self_out->namespace == 0) self_out->pid = 0;
}

static bool can_watch(const struct ucx_wire_process *self, const struct ucx_wire_process *other)
{
    static const uint8_t unknown[16];
    if (self->pid == 0 || other->pid == 0 || other->pid > INT32_MAX || other->pid == self->pid) return false;
    if (memcmp(self->host, unknown, sizeof unknown) == 0) return false;
    return memcmp(self->host, other->host, sizeof self->host) == 0 && self->namespace == other->namespace;
}

/* Opens the pidfd and adds it to the endpoint's epoll. -1: dead; -2: cannot be watched. */
static int open_watch(struct ucx_endpoint *endpoint, struct ucx_process *process)
{
    int fd = (int)syscall(SYS_pidfd_open, (pid_t)process->identity.pid, 0);
    if (fd < 0) return errno == ESRCH ? -1 : -2;
    uint64_t start = start_of(process->identity.pid);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = process};
    int answer = start != process->identity.start                              ? -1
                 : epoll_ctl(endpoint->events.fd, EPOLL_CTL_ADD, fd, &event) < 0 ? -2
                                                                          : fd;
    if (answer < 0) close(fd);
    return answer;
}

static struct ucx_process *find(struct ucx_endpoint *endpoint, const struct ucx_wire_process *identity)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &endpoint->processes) {
        struct ucx_process *process = weft_container_of(node, struct ucx_process, link);
        if (process->identity.pid == identity->pid && process->identity.start == identity->start)
            return process;
    }
    return NULL;
}

static struct ucx_process *make(struct ucx_endpoint *endpoint, const struct ucx_wire_process *identity)
{
    struct weft_env *env = endpoint->transport->env;
    struct ucx_process *process = weft_alloc_zero(env, sizeof *process);
    if (!process) return NULL;
    process->identity = *identity;
    process->fd = open_watch(endpoint, process);
    if (process->fd == -2) {
        weft_log(env, WEFT_LOG_WARN, "transport",
                 "endpoint %u cannot watch process %llu (%s): its death is seen by UCX alone",
                 endpoint->transport->id, (unsigned long long)identity->pid, strerror(errno));
        weft_free_bytes(env, process);
        return NULL;
    }
    weft_list_append(&endpoint->processes, &process->link);
    return process;
}

void ucx_process_watch(struct ucx_peer *ucx_peer, const struct ucx_wire_process *identity)
{
    struct ucx_endpoint *endpoint = ucx_peer->endpoint;
    if (!can_watch(&endpoint->self, identity)) return;
    struct ucx_process *process = find(endpoint, identity);
    if (!process) process = make(endpoint, identity);
    if (!process) return;
    process->peers++;
    ucx_peer->process = process;
    if (process->fd < 0) ucx_peer_failed(ucx_peer, UCS_ERR_CONNECTION_RESET);
}

static void unwatch(struct ucx_endpoint *endpoint, struct ucx_process *process)
{
    if (process->fd < 0) return;
    /* after a fork close alone would leave it in epoll */
    epoll_ctl(endpoint->events.fd, EPOLL_CTL_DEL, process->fd, NULL);
    close(process->fd);
    process->fd = -1;
}

void ucx_process_forget(struct ucx_peer *ucx_peer)
{
    struct ucx_process *process = ucx_peer->process;
    ucx_peer->process = NULL;
    if (!process || --process->peers > 0) return;
    unwatch(ucx_peer->endpoint, process);
    weft_list_remove(&process->link);
    weft_free_bytes(ucx_peer->endpoint->transport->env, process);
}

static int process_died(struct ucx_endpoint *endpoint, struct ucx_process *process)
{
    int count = 0;
    unwatch(endpoint, process);
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &endpoint->peers) {
        struct ucx_peer *ucx_peer = weft_container_of(node, struct ucx_peer, link);
        if (ucx_peer->process != process) continue;
        ucx_peer_failed(ucx_peer, UCS_ERR_CONNECTION_RESET);
        count++;
    }
    return count;
}

int ucx_processes_progress(struct ucx_endpoint *endpoint)
{
    struct epoll_event events[16];
    int count = epoll_wait(endpoint->events.fd, events, 16, 0), failed = 0;
    for (int i = 0; i < count; i++) {
        struct ucx_process *process = events[i].data.ptr;
        if (process) failed += process_died(endpoint, process);
    }
    return failed;
}
