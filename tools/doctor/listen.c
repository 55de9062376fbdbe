/* listen.c - `weft doctor --listen`: one process per client, so that clients do not wait for each other.
 *
 * A client that has not authenticated has one deadline for the whole handshake. If all slots are in use, the
 * oldest client without authentication is ended and its slot reused. An authenticated client has
 * CLIENT_DEADLINES deadlines, but at least CLIENT_SECONDS_MIN seconds. */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/doctor/hello.h"
#include "tools/doctor/machine.h"
#include "tools/doctor/remote.h"

enum {
    CHILDREN_MAX = 32,
    BACKLOG = 128,
    CLIENT_SECONDS_MIN = 120,
    CLIENT_DEADLINES = 24,
    REAP_MS = 100,
    EXIT_CANNOT = 3
};

struct child_slot {
    pid_t child;     /* 0: free */
    uint64_t number; /* sequence number of the accepted connection */
};

struct server {
    const struct doctor_listen *listen;
    int fd;
    struct child_slot slots[CHILDREN_MAX];
    uint64_t accepted_count;
    /* (CHILDREN_MAX,), shared with the children: each child sets its own entry */
    volatile uint8_t *has_authenticated;
    bool served; /* an authenticated client has ended */
};

/* ---- the child ---- */

static bool send_findings(int fd, bool need_rdma, uint32_t seconds)
{
    struct doctor_report report = {0};
    doctor_check_machine(&report, "", need_rdma);
    uint32_t count = report.count < HELLO_FINDINGS_MAX ? (uint32_t)report.count : HELLO_FINDINGS_MAX;
    bool sent = doctor_send_all(fd, &count, sizeof count, seconds) &&
                doctor_send_all(fd, report.findings, count * sizeof *report.findings, seconds);
    doctor_report_free(&report);
    return sent;
}

static void try_lane(const struct doctor_listen *listen, int fd, const char *lane, const char *device,
                     uint64_t nonce)
{
    struct doctor_try_result result;
    struct doctor_try_args plan = {.lane = lane,
                                   .devices = listen->devices,
                                   .secret = listen->secret,
                                   .nonce = nonce,
                                   .fd = fd,
                                   .deadline_s = listen->deadline_s};
    if (!listen->devices && doctor_lane_needs_device(lane)) plan.devices = device;
    doctor_try(&plan, &result);
    fprintf(stderr, "weft doctor: %s: %s\n", lane, result.status < 0 ? result.text : "works");
}

static void serve_client(const struct doctor_listen *listen, int fd, volatile uint8_t *has_authenticated)
{
    uint32_t seconds = listen->deadline_s;
    struct hello_challenge mine = {.magic = HELLO_MAGIC}, theirs;
    struct hello_host about;
    struct hello_request request;
    hello_draw_challenge(mine.challenge);
    hello_set_nodelay(fd);
    alarm(seconds); /* limit of the whole handshake: SIGALRM ends an unauthenticated client */
    if (!doctor_send_all(fd, &mine, sizeof mine, seconds) ||
        !doctor_recv_all(fd, &theirs, sizeof theirs, seconds))
        return;
    if (theirs.magic != HELLO_MAGIC || memcmp(mine.challenge, theirs.challenge, sizeof mine.challenge) == 0)
        return;
    if (!hello_authenticate(fd, listen->secret, false, mine.challenge, theirs.challenge, seconds)) {
        fprintf(stderr, "weft doctor: a client without the right secret was refused\n");
        return;
    }
    *has_authenticated = 1;
    alarm(seconds * CLIENT_DEADLINES > CLIENT_SECONDS_MIN ? seconds * CLIENT_DEADLINES : CLIENT_SECONDS_MIN);
    hello_describe_host(fd, &about);
    if (!doctor_send_all(fd, &about, sizeof about, seconds)) return;
    uint64_t nonce = hello_nonce(theirs.challenge, mine.challenge);
    while (doctor_recv_all(fd, &request, sizeof request, 3 * seconds)) {
        request.lane[sizeof request.lane - 1] = 0;
        if (request.kind == HELLO_TRY) try_lane(listen, fd, request.lane, about.device, nonce);
        else if (request.kind != HELLO_EXAMINE || !send_findings(fd, request.need_rdma != 0, seconds)) return;
    }
}

/* ---- slots ---- */

static void free_slot(struct server *server, size_t index)
{
    server->served = server->served || server->has_authenticated[index];
    server->has_authenticated[index] = 0;
    server->slots[index].child = 0;
}

static void reap(struct server *server)
{
    for (size_t i = 0; i < CHILDREN_MAX; i++) {
        struct child_slot *child_slot = &server->slots[i];
        if (child_slot->child > 0 && waitpid(child_slot->child, NULL, WNOHANG) == child_slot->child)
            free_slot(server, i);
    }
}

/* A free slot, or the slot of the oldest unauthenticated client, which is ended. -1: all clients are
 * authenticated. */
static int find_slot(struct server *server)
{
    int oldest = -1;
    for (int i = 0; i < CHILDREN_MAX; i++) {
        const struct child_slot *child_slot = &server->slots[i];
        if (child_slot->child == 0) return i;
        if (!server->has_authenticated[i] &&
            (oldest < 0 || child_slot->number < server->slots[oldest].number))
            oldest = i;
    }
    if (oldest < 0) return -1;
    kill(server->slots[oldest].child, SIGKILL);
    while (waitpid(server->slots[oldest].child, NULL, 0) < 0 && errno == EINTR) continue;
    free_slot(server, (size_t)oldest);
    return oldest;
}

static void start_child(struct server *server, int index, int client)
{
    pid_t parent = getpid();
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(1);
        close(server->fd);
        serve_client(server->listen, client, &server->has_authenticated[index]);
        fflush(NULL);
        _exit(0);
    }
    if (child < 0) fprintf(stderr, "weft doctor: cannot start a process for a client: %s\n", strerror(errno));
    server->slots[index] =
        (struct child_slot){.child = child > 0 ? child : 0, .number = ++server->accepted_count};
}

static void serve(struct server *server)
{
    while (!(server->listen->once && server->served)) {
        struct pollfd wait = {.fd = server->fd, .events = POLLIN};
        int ready = poll(&wait, 1, REAP_MS), index;
        reap(server);
        if (ready <= 0 || (index = find_slot(server)) < 0) {
            if (ready > 0) poll(NULL, 0, REAP_MS); /* all slots are in use */
            continue;
        }
        int client = accept4(server->fd, NULL, NULL, SOCK_CLOEXEC);
        if (client < 0) {
            poll(NULL, 0, REAP_MS); /* the connection was reset, or no descriptor is free: do not spin */
            continue;
        }
        start_child(server, index, client);
        close(client);
    }
    for (size_t i = 0; i < CHILDREN_MAX; i++) {
        if (server->slots[i].child > 0) kill(server->slots[i].child, SIGKILL);
    }
}

/* ---- the socket ---- */

static int open_listener(const char *host, uint16_t asked_port, uint16_t *port_out)
{
    char port[8];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV},
                    *found = NULL;
    snprintf(port, sizeof port, "%u", asked_port);
    int answer = getaddrinfo(host, port, &hints, &found), fd = -1, yes = 1;
    if (answer != 0)
        return fprintf(stderr, "weft doctor: cannot listen on %s: %s\n", host, gai_strerror(answer)), -1;
    fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool fine = fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0 &&
                bind(fd, found->ai_addr, found->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0;
    struct sockaddr_storage own;
    socklen_t bytes = sizeof own;
    if (!fine || getsockname(fd, (struct sockaddr *)&own, &bytes) != 0) {
        fprintf(stderr, "weft doctor: cannot listen on %s port %u: %s\n", host, asked_port, strerror(errno));
        if (fd >= 0) close(fd);
        fd = -1;
    } else {
        *port_out = ntohs(own.ss_family == AF_INET ? ((struct sockaddr_in *)&own)->sin_port
                                                   : ((struct sockaddr_in6 *)&own)->sin6_port);
    }
    freeaddrinfo(found);
    return fd;
}

bool doctor_is_loopback(const char *host)
{
    return strncmp(host, "127.", 4) == 0 || strcmp(host, "localhost") == 0 || strcmp(host, "::1") == 0;
}

static bool write_port(const char *path, uint16_t port)
{
    char text[16];
    if (!path) return true;
    snprintf(text, sizeof text, "%u\n", port);
    const int reason = weft_replace_file(path, text, strlen(text), 0644);
    if (reason != 0)
        fprintf(stderr, "weft doctor: cannot write the port file %s: %s\n", path, strerror(reason));
    return reason == 0;
}

int doctor_serve(const struct doctor_listen *listen)
{
    struct server server = {.listen = listen};
    uint16_t port = 0;
    if (!listen->secret && !doctor_is_loopback(listen->host)) {
        fprintf(
            stderr,
            "weft doctor: to listen on %s requires a secret (--secret-file, the same file on both hosts): "
            "without one any client could make this host open endpoints\n",
            listen->host);
        return 2;
    }
    server.fd = open_listener(listen->host, listen->port, &port);
    if (server.fd < 0 || !write_port(listen->port_file, port)) return EXIT_CANNOT;
    void *shared = mmap(NULL, CHILDREN_MAX, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return fprintf(stderr, "weft doctor: no memory\n"), EXIT_CANNOT;
    server.has_authenticated = shared;
    fprintf(stderr, "weft doctor: listening on %s port %u; on the other host: weft doctor %sTHIS_HOST:%u\n",
            listen->host, port, listen->secret ? "--secret-file FILE " : "", port);
    serve(&server);
    munmap(shared, CHILDREN_MAX);
    close(server.fd);
    return 0;
}
