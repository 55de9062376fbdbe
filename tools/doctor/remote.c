/* remote.c - the side of the client; see remote.h. */
#include "tools/doctor/remote.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tools/doctor/hello.h"

bool doctor_parse_target(const char *target, char *host, size_t capacity, char *port, size_t port_capacity)
{
    const char *colon = strrchr(target, ':');
    bool several = colon && strchr(target, ':') != colon; /* an IPv6 address; with a port it is in brackets */
    if (target[0] == '[') {
        const char *end = strchr(target, ']');
        if (!end) return false;
        snprintf(host, capacity, "%.*s", (int)(end - target - 1), target + 1);
        colon = end[1] == ':' ? end + 1 : NULL;
    } else {
        snprintf(host, capacity, "%.*s", colon && !several ? (int)(colon - target) : (int)strlen(target),
                 target);
        if (several) colon = NULL;
    }
    snprintf(port, port_capacity, "%s", colon ? colon + 1 : "");
    return host[0] != 0 && strlen(port) < 6 && (!colon || port[0]);
}

/* Connects within the deadline. 0, or an errno. */
static int connect_with_timeout(int fd, const struct addrinfo *to, uint32_t seconds)
{
    int error = 0;
    socklen_t bytes = sizeof error;
    struct pollfd wait = {.fd = fd, .events = POLLOUT};
    if (connect(fd, to->ai_addr, to->ai_addrlen) == 0) return 0;
    if (errno != EINPROGRESS) return errno;
    /* also after a signal: the user has interrupted */
    if (poll(&wait, 1, 1000 * (int)seconds) <= 0) return ETIMEDOUT;
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes);
    return error;
}

/* A name server may not answer for a long time: resolves on a thread of its own and gives up after
 * `seconds`. The memory of an abandoned query is not freed, because the thread may still write it. 0, or
 * an EAI_ code. */
static int resolve(const char *host, const char *port, uint32_t seconds, struct addrinfo **found_out)
{
    struct query {
        struct gaicb request;
        struct addrinfo hints;
        char host[256], port[16];
    } *query = calloc(1, sizeof *query);
    if (!query) return EAI_MEMORY;
    snprintf(query->host, sizeof query->host, "%s", host);
    snprintf(query->port, sizeof query->port, "%s", port);
    query->hints.ai_socktype = SOCK_STREAM;
    query->request =
        (struct gaicb){.ar_name = query->host, .ar_service = query->port, .ar_request = &query->hints};
    struct gaicb *list[1] = {&query->request};
    struct timespec limit = {.tv_sec = seconds};
    int answer = getaddrinfo_a(GAI_NOWAIT, list, 1, NULL);
    if (answer == 0) {
        while ((answer = gai_suspend((const struct gaicb *const *)list, 1, &limit)) == EAI_INTR) continue;
        answer = gai_error(&query->request);
    }
    if (answer == EAI_INPROGRESS && gai_cancel(&query->request) != EAI_CANCELED) return EAI_AGAIN;
    *found_out = answer == 0 ? query->request.ar_result : NULL;
    free(query);
    return answer == EAI_INPROGRESS ? EAI_AGAIN : answer;
}

static const char *advice_for(int error)
{
    if (error == ECONNREFUSED) return "start `weft doctor --listen HOST` there, and name its port";
    if (error == ETIMEDOUT)
        return "a firewall drops the packets, or the host is down: open the port there, try `ping`";
    return "check the routes (`ip route get HOST`)";
}

static int open_connection(const char *target, uint32_t deadline_s, struct doctor_report *report)
{
    char host[256], port[16];
    struct addrinfo *found = NULL;
    if (!doctor_parse_target(target, host, sizeof host, port, sizeof port)) {
        doctor_add_finding(report, DOCTOR_BROKEN, "reach", target, "use HOST or HOST:PORT", "is no address");
        return -1;
    }
    if (!port[0]) snprintf(port, sizeof port, "%d", DOCTOR_PORT);
    int answer = resolve(host, port, deadline_s, &found);
    if (answer != 0) {
        doctor_add_finding(report, DOCTOR_BROKEN, "reach", target,
                           "check /etc/hosts and the name server, or use the address", "%s",
                           gai_strerror(answer));
        return -1;
    }
    int fd = -1, error = ETIMEDOUT;
    for (struct addrinfo *to = found; to && fd < 0; to = to->ai_next) {
        fd = socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        error = fd < 0 ? errno : connect_with_timeout(fd, to, deadline_s);
        if (error == 0) break;
        if (fd >= 0) close(fd);
        fd = -1;
    }
    freeaddrinfo(found);
    if (fd < 0) {
        doctor_add_finding(report, DOCTOR_BROKEN, "reach", target, advice_for(error), "port %s: %s", port,
                           error == ETIMEDOUT ? "no answer" : strerror(error));
        return -1;
    }
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
    hello_set_nodelay(fd);
    return fd;
}

/* The path MTU that the kernel has discovered; 0: unknown. */
static uint32_t path_mtu(int fd)
{
    int mtu = 0;
    socklen_t bytes = sizeof mtu;
    if (getsockopt(fd, IPPROTO_IP, IP_MTU, &mtu, &bytes) != 0) {
        bytes = sizeof mtu;
        if (getsockopt(fd, IPPROTO_IPV6, IPV6_MTU, &mtu, &bytes) != 0) mtu = 0;
    }
    return mtu > 0 ? (uint32_t)mtu : 0;
}

static void copy_text(struct doctor_remote *remote, struct hello_host *about)
{
    struct hello_host own;
    hello_describe_host(remote->fd, &own);
    about->name[sizeof about->name - 1] = about->device[sizeof about->device - 1] = 0;
    snprintf(remote->name, sizeof remote->name, "%s", about->name);
    for (char *at = remote->name; *at; at++) {
        if (*at <= ' ' || *at > '~') *at = '?';
    }
    remote->fingerprint = about->fingerprint;
    remote->same_kernel = own.kernel != 0 && own.kernel == about->kernel;
    snprintf(remote->devices, sizeof remote->devices, "%s", own.device);
    snprintf(remote->remote_device, sizeof remote->remote_device, "%s", about->device);
    remote->mtu = own.mtu;
    remote->remote_mtu = about->mtu;
    remote->path_mtu = path_mtu(remote->fd);
}

static void report_failure(const char *target, uint32_t magic, bool is_authenticated,
                           struct doctor_report *report)
{
    bool other_release = !is_authenticated && (magic & HELLO_MAGIC_MASK) == (HELLO_MAGIC & HELLO_MAGIC_MASK);
    if (is_authenticated) {
        doctor_add_finding(report, DOCTOR_BROKEN, "reach", target, "give both sides the same --secret-file",
                           "the two sides do not hold the same secret");
    } else if (other_release) {
        doctor_add_finding(report, DOCTOR_BROKEN, "reach", target, "install the same release on both hosts",
                           "the doctor there is of another release of weft");
    } else {
        doctor_add_finding(report, DOCTOR_BROKEN, "reach", target,
                           "name the port that `weft doctor --listen` printed",
                           "something else answers on this port");
    }
}

bool doctor_connect(const char *target, const char *secret, uint32_t deadline_s, struct doctor_remote *remote,
                    struct doctor_report *report)
{
    struct hello_challenge mine = {.magic = HELLO_MAGIC}, theirs = {0};
    struct hello_host about;
    *remote = (struct doctor_remote){.fd = open_connection(target, deadline_s, report)};
    if (remote->fd < 0) return false;
    hello_draw_challenge(mine.challenge);
    bool is_authenticated = doctor_recv_all(remote->fd, &theirs, sizeof theirs, deadline_s) &&
                            theirs.magic == HELLO_MAGIC &&
                            doctor_send_all(remote->fd, &mine, sizeof mine, deadline_s);
    int64_t before = hello_wall_clock_ns();
    bool fine = is_authenticated &&
                hello_authenticate(remote->fd, secret, true, mine.challenge, theirs.challenge, deadline_s) &&
                doctor_recv_all(remote->fd, &about, sizeof about, deadline_s);
    int64_t after = hello_wall_clock_ns();
    if (!fine) {
        report_failure(target, theirs.magic, is_authenticated, report);
        close(remote->fd);
        remote->fd = -1;
        return false;
    }
    copy_text(remote, &about);
    remote->nonce = hello_nonce(mine.challenge, theirs.challenge);
    remote->clock_offset_ns = (int64_t)((uint64_t)about.wall_ns - (uint64_t)(before + (after - before) / 2));
    return true;
}

bool doctor_remote_examine(struct doctor_remote *remote, const char *target, bool need_rdma,
                           uint32_t deadline_s, struct doctor_report *report)
{
    struct hello_request request = {.kind = HELLO_EXAMINE, .need_rdma = need_rdma};
    struct doctor_finding finding;
    uint32_t count = 0;
    char subject[200];
    if (!doctor_send_all(remote->fd, &request, sizeof request, deadline_s)) return false;
    if (!doctor_recv_all(remote->fd, &count, sizeof count, deadline_s) || count > HELLO_FINDINGS_MAX)
        return false;
    for (uint32_t i = 0; i < count; i++) {
        if (!doctor_recv_all(remote->fd, &finding, sizeof finding, deadline_s)) return false;
        finding.id[sizeof finding.id - 1] = finding.subject[sizeof finding.subject - 1] = 0;
        finding.text[sizeof finding.text - 1] = finding.advice[sizeof finding.advice - 1] = 0;
        if (finding.level < DOCTOR_OK || finding.level > DOCTOR_BROKEN) return false;
        snprintf(subject, sizeof subject, "%s: %s", target, finding.subject);
        doctor_add_finding(report, finding.level, finding.id, subject, finding.advice, "%s", finding.text);
    }
    return true;
}

bool doctor_remote_try(struct doctor_remote *remote, const char *lane, const char *devices,
                       const char *secret, uint32_t deadline_s, struct doctor_try_result *result)
{
    struct hello_request request = {.kind = HELLO_TRY};
    snprintf(request.lane, sizeof request.lane, "%s", lane);
    memset(result, 0, sizeof *result);
    result->status = WEFT_ERR_PEER_LOST;
    snprintf(result->text, sizeof result->text, "the connection to the listener was lost");
    if (!doctor_send_all(remote->fd, &request, sizeof request, deadline_s)) return false;
    struct doctor_try_args plan = {.lane = lane,
                                   .devices = devices,
                                   .secret = secret,
                                   .nonce = remote->nonce,
                                   .first = true,
                                   .fd = remote->fd,
                                   .deadline_s = deadline_s};
    if (!devices && doctor_lane_needs_device(lane)) plan.devices = remote->devices;
    return doctor_try_in_child(&plan, result);
}

void doctor_disconnect(struct doctor_remote *remote)
{
    struct hello_request request = {.kind = HELLO_END};
    if (remote->fd < 0) return;
    doctor_send_all(remote->fd, &request, sizeof request, 1);
    close(remote->fd);
    remote->fd = -1;
}
