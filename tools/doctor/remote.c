/* remote.c - see remote.h. */
#include "tools/doctor/remote.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "proto/proto.h"

enum { MAGIC = 0x31636f64, ASKERS_MAX = 8, ASKER_S = 120, REQUEST_TRY = 1, REQUEST_END = 2 };

#define PURPOSE_ASKER "weft-doctor-asker"
#define PURPOSE_LISTENER "weft-doctor-listener"

struct hello {
    uint32_t magic;
    uint8_t challenge[WEFT_NONCE_BYTES];
};

struct about {
    char name[WEFT_LINK_NAME_BYTES];
    uint64_t fingerprint;
    int64_t wall_ns;
};

struct request {
    uint32_t kind;
    char lane[DOCTOR_LANE_MAX];
};

static int64_t wall_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void make_challenge(uint8_t *out)
{
    for (size_t i = 0; i < WEFT_NONCE_BYTES; i += 8) {
        uint64_t word = weft_random_u64(weft_env_system());
        memcpy(out + i, &word, 8);
    }
}

/* The network device that has the socket's own address; "lo" when none is found. */
static void device_of(int fd, char *out, size_t room)
{
    struct sockaddr_storage own = {0};
    socklen_t bytes = sizeof own;
    struct ifaddrs *all = NULL;
    snprintf(out, room, "lo");
    if (getsockname(fd, (struct sockaddr *)&own, &bytes) != 0 || getifaddrs(&all) != 0) return;
    for (struct ifaddrs *at = all; at; at = at->ifa_next) {
        if (!at->ifa_addr || at->ifa_addr->sa_family != own.ss_family) continue;
        bool same = own.ss_family == AF_INET
                        ? ((struct sockaddr_in *)at->ifa_addr)->sin_addr.s_addr == ((struct sockaddr_in *)&own)->sin_addr.s_addr
                        : own.ss_family == AF_INET6 && memcmp(&((struct sockaddr_in6 *)at->ifa_addr)->sin6_addr,
                                                              &((struct sockaddr_in6 *)&own)->sin6_addr, 16) == 0;
        if (same) snprintf(out, room, "%s", at->ifa_name);
    }
    freeifaddrs(all);
}

/* Both prove the secret over the other's challenge, the asker first: a stranger learns nothing. */
static bool prove(int fd, const char *secret, bool asker, const uint8_t *mine, const uint8_t *theirs)
{
    uint8_t own[WEFT_PROOF_BYTES], expected[WEFT_PROOF_BYTES], got[WEFT_PROOF_BYTES];
    const char *own_purpose = asker ? PURPOSE_ASKER : PURPOSE_LISTENER, *other_purpose = asker ? PURPOSE_LISTENER : PURPOSE_ASKER;
    if (!secret) secret = "none"; /* loopback only: see doctor_serve */
    if (weft_proof_make(secret, own_purpose, theirs, "doctor", "doctor", own) < 0) return false;
    if (weft_proof_make(secret, other_purpose, mine, "doctor", "doctor", expected) < 0) return false;
    if (asker && !doctor_send_all(fd, own, sizeof own)) return false;
    if (!doctor_recv_all(fd, got, sizeof got) || !weft_proof_check(got, sizeof got, expected)) return false;
    return asker || doctor_send_all(fd, own, sizeof own);
}

static uint64_t nonce_of(const uint8_t *asker, const uint8_t *listener)
{
    uint64_t a, b;
    memcpy(&a, asker, 8);
    memcpy(&b, listener, 8);
    return a ^ (b << 1 | b >> 63);
}

/* ---- the listener ---- */

/* Small messages one after the other: none may wait for the answer to the one before. */
static void send_at_once(int fd)
{
    int yes = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

static void serve_asker(const struct doctor_listen *listen, int fd)
{
    struct hello mine = {.magic = MAGIC}, theirs;
    struct about about = {.fingerprint = weft_host_fingerprint("/")};
    char device[64];
    make_challenge(mine.challenge);
    doctor_set_timeouts(fd, listen->deadline_s);
    send_at_once(fd);
    if (!doctor_send_all(fd, &mine, sizeof mine) || !doctor_recv_all(fd, &theirs, sizeof theirs) || theirs.magic != MAGIC) return;
    if (memcmp(mine.challenge, theirs.challenge, sizeof mine.challenge) == 0) return;
    if (!prove(fd, listen->secret, false, mine.challenge, theirs.challenge)) {
        fprintf(stderr, "weft doctor: somebody without the right secret was turned away\n");
        return;
    }
    gethostname(about.name, sizeof about.name - 1);
    about.wall_ns = wall_ns();
    if (!doctor_send_all(fd, &about, sizeof about)) return;
    device_of(fd, device, sizeof device);
    doctor_set_timeouts(fd, 3 * listen->deadline_s);
    for (;;) {
        struct request request;
        struct doctor_try_result result;
        if (!doctor_recv_all(fd, &request, sizeof request) || request.kind != REQUEST_TRY) return;
        request.lane[sizeof request.lane - 1] = 0;
        struct doctor_try_plan plan = {.lane = request.lane, .devices = listen->devices ? listen->devices : device, .secret = listen->secret,
                                       .nonce = nonce_of(theirs.challenge, mine.challenge), .fd = fd, .deadline_s = listen->deadline_s};
        if (strncmp(request.lane, "ucx", 3) != 0) plan.devices = listen->devices;
        doctor_try(&plan, &result);
        fprintf(stderr, "weft doctor: %s: %s\n", request.lane, result.status < 0 ? result.text : "works");
    }
}

static int open_listener(const struct doctor_listen *listen_at, uint16_t *port_out)
{
    char port[8];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *found = NULL;
    const char *host = listen_at->host ? listen_at->host : "127.0.0.1";
    snprintf(port, sizeof port, "%u", listen_at->port);
    int answer = getaddrinfo(host, port, &hints, &found), fd = -1, yes = 1;
    if (answer != 0) return fprintf(stderr, "weft doctor: cannot listen on %s: %s\n", host, gai_strerror(answer)), -1;
    fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool fine = fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0 && bind(fd, found->ai_addr, found->ai_addrlen) == 0 &&
                listen(fd, ASKERS_MAX) == 0;
    struct sockaddr_storage own;
    socklen_t bytes = sizeof own;
    if (!fine || getsockname(fd, (struct sockaddr *)&own, &bytes) != 0) {
        fprintf(stderr, "weft doctor: cannot listen on %s port %u: %s\n", host, listen_at->port, strerror(errno));
        if (fd >= 0) close(fd);
        fd = -1;
    } else {
        *port_out = ntohs(own.ss_family == AF_INET ? ((struct sockaddr_in *)&own)->sin_port : ((struct sockaddr_in6 *)&own)->sin6_port);
    }
    freeaddrinfo(found);
    return fd;
}

static bool is_loopback(const char *host)
{
    return !host || strncmp(host, "127.", 4) == 0 || strcmp(host, "localhost") == 0 || strcmp(host, "::1") == 0;
}

static bool write_port(const char *path, uint16_t port)
{
    char fresh[1024];
    if (!path) return true;
    snprintf(fresh, sizeof fresh, "%s.new", path);
    FILE *file = fopen(fresh, "we");
    bool fine = file && fprintf(file, "%u\n", port) > 0;
    if (file) fine = fclose(file) == 0 && fine;
    fine = fine && rename(fresh, path) == 0;
    if (!fine) fprintf(stderr, "weft doctor: cannot write %s\n", path);
    return fine;
}

int doctor_serve(const struct doctor_listen *listen)
{
    uint16_t port = 0;
    uint32_t askers = 0;
    if (!listen->secret && !is_loopback(listen->host)) {
        fprintf(stderr, "weft doctor: to listen on %s needs a secret (--secret-file, the same file on both hosts): without one anybody could "
                        "have this host open endpoints\n", listen->host);
        return 2;
    }
    int fd = open_listener(listen, &port);
    if (fd < 0 || !write_port(listen->port_file, port)) return 3;
    fprintf(stderr, "weft doctor: listening on port %u; on the other host: weft doctor THIS_HOST:%u\n", port, port);
    for (;;) {
        while (waitpid(-1, NULL, askers >= ASKERS_MAX ? 0 : WNOHANG) > 0) askers--;
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        if (poll(&wait, 1, 1000) <= 0) continue;
        int asker = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
        if (asker < 0) continue;
        pid_t parent = getpid();
        fflush(NULL);
        pid_t child = fork();
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() != parent) _exit(1);
            close(fd);
            alarm(ASKER_S);
            serve_asker(listen, asker);
            fflush(NULL);
            _exit(0);
        }
        close(asker);
        if (child > 0) askers++;
        if (child > 0 && listen->once) {
            while (waitpid(child, NULL, 0) < 0 && errno == EINTR) continue;
            close(fd);
            return 0;
        }
    }
}

/* ---- the asker ---- */

bool doctor_split_target(const char *target, char *host, size_t room, char *port, size_t port_room)
{
    const char *colon = strrchr(target, ':');
    bool several = colon && strchr(target, ':') != colon; /* an IPv6 address; with a port it stands in brackets */
    if (target[0] == '[') {
        const char *end = strchr(target, ']');
        if (!end) return false;
        snprintf(host, room, "%.*s", (int)(end - target - 1), target + 1);
        colon = end[1] == ':' ? end + 1 : NULL;
    } else {
        snprintf(host, room, "%.*s", colon && !several ? (int)(colon - target) : (int)strlen(target), target);
        if (several) colon = NULL;
    }
    if (colon) snprintf(port, port_room, "%s", colon + 1);
    else snprintf(port, port_room, "%d", DOCTOR_PORT);
    return host[0] != 0 && strlen(port) < 6;
}

/* A connection within the deadline: 0, or an errno. */
static int connect_within(int fd, const struct addrinfo *to, uint32_t seconds)
{
    int error = 0;
    socklen_t bytes = sizeof error;
    struct pollfd wait = {.fd = fd, .events = POLLOUT};
    if (connect(fd, to->ai_addr, to->ai_addrlen) == 0) return 0;
    if (errno != EINPROGRESS) return errno;
    if (poll(&wait, 1, 1000 * (int)seconds) <= 0) return ETIMEDOUT;
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes);
    return error;
}

static int open_connection(const char *target, uint32_t deadline_s, struct doctor_report *report)
{
    char host[256], port[16];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    if (!doctor_split_target(target, host, sizeof host, port, sizeof port)) {
        doctor_find(report, DOCTOR_BROKEN, "reach", target, "say HOST or HOST:PORT", "is no address");
        return -1;
    }
    int answer = getaddrinfo(host, port, &hints, &found);
    if (answer != 0) {
        doctor_find(report, DOCTOR_BROKEN, "reach", target, "look at /etc/hosts and the name server, or give the address", "%s", gai_strerror(answer));
        return -1;
    }
    int fd = -1, error = ETIMEDOUT;
    for (struct addrinfo *to = found; to && fd < 0; to = to->ai_next) {
        fd = socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        error = fd < 0 ? errno : connect_within(fd, to, deadline_s);
        if (error == 0) break;
        if (fd >= 0) close(fd);
        fd = -1;
    }
    freeaddrinfo(found);
    if (fd < 0) {
        const char *advice = error == ECONNREFUSED ? "start `weft doctor --listen HOST` there, and name its port"
                             : error == ETIMEDOUT  ? "a firewall drops the packets, or the host is down: open the port there, try `ping`"
                                                   : "look at the routes (`ip route get HOST`)";
        doctor_find(report, DOCTOR_BROKEN, "reach", target, advice, "port %s: %s", port, error == ETIMEDOUT ? "no answer" : strerror(error));
        return -1;
    }
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
    doctor_set_timeouts(fd, deadline_s);
    send_at_once(fd);
    return fd;
}

bool doctor_reach(const char *target, const char *secret, uint32_t deadline_s, struct doctor_remote *remote, struct doctor_report *report)
{
    struct hello mine = {.magic = MAGIC}, theirs;
    struct about about;
    *remote = (struct doctor_remote){.fd = open_connection(target, deadline_s, report)};
    if (remote->fd < 0) return false;
    make_challenge(mine.challenge);
    int64_t before = 0, after = 0;
    bool greeted = doctor_recv_all(remote->fd, &theirs, sizeof theirs) && theirs.magic == MAGIC && doctor_send_all(remote->fd, &mine, sizeof mine);
    before = wall_ns();
    bool proven = greeted && prove(remote->fd, secret, true, mine.challenge, theirs.challenge);
    bool fine = proven && doctor_recv_all(remote->fd, &about, sizeof about);
    after = wall_ns();
    if (!fine) {
        if (!greeted) doctor_find(report, DOCTOR_BROKEN, "reach", target, "name the port that `weft doctor --listen` printed", "something else answers on this port");
        else doctor_find(report, DOCTOR_BROKEN, "reach", target, "give both sides the same --secret-file", "the two sides do not hold the same secret");
        doctor_leave(remote);
        return false;
    }
    about.name[sizeof about.name - 1] = 0;
    snprintf(remote->name, sizeof remote->name, "%s", about.name);
    for (char *at = remote->name; *at; at++) {
        if (*at <= ' ' || *at > '~') *at = '?';
    }
    remote->fingerprint = about.fingerprint;
    remote->nonce = nonce_of(mine.challenge, theirs.challenge);
    remote->clock_offset_ns = about.wall_ns - (before + (after - before) / 2);
    device_of(remote->fd, remote->devices, sizeof remote->devices);
    return true;
}

bool doctor_remote_try(struct doctor_remote *remote, const char *lane, const char *devices, const char *secret, uint32_t deadline_s,
                       struct doctor_try_result *result)
{
    struct request request = {.kind = REQUEST_TRY};
    snprintf(request.lane, sizeof request.lane, "%s", lane);
    memset(result, 0, sizeof *result);
    result->status = WEFT_ERR_PEER_LOST;
    snprintf(result->text, sizeof result->text, "the listener has gone");
    if (!doctor_send_all(remote->fd, &request, sizeof request)) return false;
    struct doctor_try_plan plan = {.lane = lane, .devices = devices, .secret = secret, .nonce = remote->nonce, .first = true, .fd = remote->fd,
                                   .deadline_s = deadline_s};
    if (!devices && strncmp(lane, "ucx", 3) == 0) plan.devices = remote->devices;
    doctor_try(&plan, result);
    return true;
}

void doctor_leave(struct doctor_remote *remote)
{
    struct request request = {.kind = REQUEST_END};
    if (remote->fd < 0) return;
    doctor_send_all(remote->fd, &request, sizeof request);
    close(remote->fd);
    remote->fd = -1;
}
